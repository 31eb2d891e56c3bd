"""Ops say what they promise: in their documentation and certificates, from the certificate's data alone."""

import json
import pydoc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import momentgen.generated
from momentgen.generated import relu
from momentgen.promise import RELATIVE, promise, tolerance_in_a_line
from momentgen.runtime import CertificateError, Op
from momentgen.runtime.certificate import Certificate

OPS = [op for name in momentgen.generated.__all__ if isinstance(op := getattr(momentgen.generated, name), Op)]
TANH: dict[str, Any] = {
    "goal": {"tolerance": 1.0},
    "bounds": {"mean": {"tolerance": 0.713}, "var": {"tolerance": 0.702}},
    "method": {"points": 17160},
    "domain": {"mean": "finite", "parameters": {}},
    "tolerance": {
        "least": "2^-126",
        "against": "the exact moments",
        "mean": "1e-06*max(1, |m|) + 1e-09*min(L*sigma, range)",
        "var": "1e-05*min(L^2*v, (range/2)^2)",
        "partials": "0.0001 of the largest value that it takes over all means at that variance",
        "where": {"m": "the exact mean", "v": "the input's variance, sigma its root", "L": "the largest |f'|"},
        "values": {"L": 1.0, "range": 2.0},
    },
}


def test_a_promise_says_for_which_inputs_it_holds() -> None:
    domain = {"mean": "0 or normal", "var": "0 or 2^-127 <= var < 2^128", "parameters": {}, "nan": "nowhere"}
    assert "This holds for mean 0 or normal; var 0 or 2^-127 <= var < 2^128." in promise(TANH | {"domain": domain})
    assert not any("This holds" in sentence for sentence in promise(TANH | {"domain": {}}))


def test_a_tolerance_is_said_with_its_symbols_and_that_it_is_not_relative() -> None:
    text = promise(TANH)
    assert text[:5] == (
        "Errors of the mean are at most 1e-06*max(1, |m|) + 1e-09*min(L*sigma, range).",
        "Errors of the variance are at most 1e-05*min(L^2*v, (range/2)^2).",
        f"Errors of each partial derivative are at most {TANH['tolerance']['partials']}.",
        f"The allowed error is no less than {TANH['tolerance']['least']}.",
        "Here m is the exact mean, v is the input's variance, sigma its root, L is the largest |f'| (1).",
    )
    assert RELATIVE in text
    assert text[-1] == "Largest errors found in a search of 17,160 points: mean 0.71, var 0.7 of this."
    assert tolerance_in_a_line(TANH).startswith("mean 1e-06*max(1, |m|) + 1e-09*min(L*sigma, range); var 1e-05*min")


def test_values_that_depend_on_parameters_are_said_to_be_those_of_the_defaults() -> None:
    (symbols,) = (s for s in promise(TANH | {"domain": {"parameters": {"beta": [0, 1]}}}) if s.startswith("Here"))
    assert "L is the largest |f'| (1 at the defaults)" in symbols


def test_where_the_domain_ends_is_said_if_the_certificate_says_it() -> None:
    domain = {"nan": "|mean| > 1e6", "overflow": "the largest number of the right sign", "parameters": {}}
    assert promise(TANH | {"domain": domain})[-2:] == (
        "Outputs and derivatives are NaN for |mean| > 1e6.",
        "A result beyond the range of its type is the largest number of the right sign.",
    )
    assert not any("NaN" in sentence for sentence in promise(TANH | {"domain": domain | {"nan": "nowhere"}}))
    assert not any("NaN" in sentence or "beyond" in sentence for sentence in promise(TANH))


def test_ulp_and_relative_tolerances_are_told_apart() -> None:
    ulp = promise({"goal": {"ulp": 2.0}, "bounds": {}, "tolerance": {"against": "a formula"}})
    assert ulp[0] == "Errors are measured from a formula."
    assert ulp[1].startswith("Errors are at most 2 ulp of the exact value, relatively 2.4e-07, where")
    assert RELATIVE not in ulp
    relative = promise(TANH | {"tolerance": TANH["tolerance"] | {"var": "1e-05*V"}})
    assert RELATIVE not in relative
    assert promise({"method": {"how": "as published"}}) == ("No bound is certified: as published.",)


def test_a_certificate_without_words_for_its_unit_says_so() -> None:
    old = {key: value for key, value in TANH.items() if key != "tolerance"}
    assert promise(old)[0].endswith("1 tolerance; this certificate does not say what that is: build the rule again.")


def test_the_documentation_has_the_words_of_every_variant() -> None:
    for text in (relu.__doc__, pydoc.render_doc(relu, renderer=pydoc.plaintext)):
        flat = " ".join(text.split())
        for variant in relu.variants:
            assert f"``{variant}``: {' '.join(' '.join(relu.certificate(variant).words).split())}" in flat
    assert Op.__doc__.startswith("The moments of one activation")
    assert " ".join(relu.certificate().words[0].split())[:60] in " ".join(repr(relu.certificate()).split())


def test_importing_an_op_reads_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = Certificate.read
    monkeypatch.setattr(Certificate, "read", lambda *args: (read.append(args[2]), real(*args))[1])
    op = Op("relu", "momentgen.generated.relu", variants=("exact", "tight"), float64={"tight": "exact"})
    assert read == []
    assert "Accuracy:" in op.__doc__
    assert read == ["exact", "tight"]


def test_a_missing_certificate_is_said_in_the_documentation() -> None:
    assert "``exact``: unknown: certificate of square" in Op("square", "no_such_package.square").__doc__


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_op_says_its_tolerance(op: Op) -> None:
    for variant in op.variants:
        words = op.certificate(variant).words
        assert words[0].startswith("Errors")
        assert "does not say" not in words[0]
        assert words[0].split()[0] in op.__doc__


# Reading certificates, good and damaged.
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
