"""Reading certificates, good and damaged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from runtime.fixture_rules import square

from momentgen.errors import InputError
from momentgen.runtime import Certificate, CertificateError


def test_certificate_says_what_is_known() -> None:
    certificate = square.certificate()
    assert set(certificate.bounds) == {"mean", "var", "dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar"}
    assert certificate.bounds["mean"]["ulp"] == 4.0
    assert (certificate.rule, certificate.variant, certificate.digest) == ("square", "exact", "0123abcd")
    assert certificate.method == "sampled"
    assert certificate.operations == {"forward": 8, "backward": 12}
    assert "mean       ulp 4" in repr(certificate)
    assert square.certificate("linearised").variant == "linearised"


def test_unknown_variant() -> None:
    with pytest.raises(InputError, match="no variant 'tight'"):
        square.certificate("tight")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], str]:
    def make(text: str | None) -> str:
        folder = tmp_path / "certified_package"
        folder.mkdir()
        (folder / "__init__.py").touch()
        if text is not None:
            (folder / "exact.json").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop(folder.name, None)
        return folder.name

    return make


GOOD = {"rule": "square", "variant": "exact", "bounds": {"mean": 1}, "domain": "all", "method": "exhaustive"}
DAMAGED = {
    "missing": (None, "the file is missing"),
    "cut off": (json.dumps(GOOD)[:40], "does not read"),
    "not text": ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1") + "{", "does not read"),
    "a list": ("[1]", "expected a JSON object, got list"),
    "lacks keys": (json.dumps({"rule": "square", "variant": "exact"}), "missing bounds, domain, method"),
    "of another rule": (json.dumps(GOOD | {"rule": "relu"}), "expected rule 'square', got 'relu'"),
    "of another variant": (json.dumps(GOOD | {"variant": "tight"}), "expected variant 'exact', got 'tight'"),
    "odd bounds": (json.dumps(GOOD | {"bounds": 3}), "expected bounds to be an object, got int"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_certificate_is_one_clear_error(case: str, package: Callable[[str | None], str]) -> None:
    text, message = DAMAGED[case]
    with pytest.raises(CertificateError, match=f"certificate of square, variant exact .*{message}"):
        Certificate.read(package(text), "square", "exact")


def test_least_certificate(package: Callable[[str | None], str]) -> None:
    certificate = Certificate.read(package(json.dumps(GOOD)), "square", "exact")
    assert certificate.facts == {}
    assert certificate.digest == ""
