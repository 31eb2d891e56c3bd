"""Reading certificates, good and damaged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from momentgen.errors import InputError
from momentgen.generated import square
from momentgen.runtime import Certificate, CertificateError


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


@pytest.mark.parametrize(
    "more", [{}, {"digest": "0123abcd", "operations": {"forward": {"add": 8}, "backward": {"add": 9, "mul": 3}}}]
)
def test_certificate_says_what_is_known(more: dict[str, Any], package: Callable[[str | None], str]) -> None:
    bounds = {"mean": {"ulp": 4.0}, "dvar_dvar": {"ulp": 2.0}}
    certificate = Certificate.read(package(json.dumps(GOOD | {"bounds": bounds} | more)), "square", "exact")
    assert certificate.bounds == bounds
    assert "  mean              4 ulp\n" in repr(certificate)
    assert ("  operations  8 forward, 12 backward\n" in repr(certificate)) is bool(more)
    assert (certificate.rule, certificate.variant, certificate.method) == ("square", "exact", "exhaustive")
    assert (certificate.digest, certificate.operations) == (more.get("digest", ""), more.get("operations", {}))
    assert certificate.facts == {}
