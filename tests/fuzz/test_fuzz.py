"""Fifty random networks by every method, and whether the net that catches faults holds.

A failure prints the network as a script.  ``make fuzz`` runs thousands.
"""

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import momentgen
from fuzz.functions import LEFT_OUT, PATTERNS, TEMPLATES
from fuzz.generate import _Maker, program
from fuzz.judge import METHODS, judged, minimal
from fuzz.program import Given, Program, Step, Value
from momentgen import Moments
from momentgen.errors import UnsupportedError

SEEDS = range(50)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_network_is_right_noted_or_refused_by_every_method(seed):
    made = program(seed)
    faults = [verdict for verdict in judged(made) if verdict.outcome == "fault"]
    if faults:
        least, found = minimal(made, faults[0])
        shown = "\n".join(f"{one.method}, {one.kind}: {one.text}" for one in faults)
        pytest.fail(f"seed {seed}\n{shown}\n\n{least.listing(found.method)}\n{found.text}", pytrace=False)


# ------------------------------------------------------------------ the net itself


def test_every_function_of_the_table_with_a_value_is_called_or_left_out_for_a_reason():
    missing = [
        name
        for known in TEMPLATES.values()
        for name, templates in known.items()
        if not templates or not any(_can_be_called(name, template) for template in templates)
    ]
    assert not missing
    assert not [name for name in LEFT_OUT if any(name in known for known in TEMPLATES.values())]


@pytest.mark.parametrize("name", PATTERNS)
def test_every_call_of_a_pattern_runs(name):
    assert not [template.text for template in PATTERNS[name] if not _can_be_called(name, template)]


def _can_be_called(name: str, template: Any) -> bool:
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        for seed in range(400):
            maker = _Maker(seed)
            maker.inputs("float64")
            before = len(maker.steps)
            for _ in range(2):
                maker.attempt(name, template)
            if len(maker.steps) > before:
                return True
    return False


def test_a_seed_makes_the_same_network_again():
    assert [program(seed) for seed in range(20)] == [program(seed) for seed in range(20)]


def test_networks_are_of_all_dtypes_containers_and_numbers_of_inputs_and_outputs():
    made = [program(seed) for seed in range(200)]
    assert {one.dtype for one in made} == {"float16", "bfloat16", "float32", "float64"}
    assert {one.taken for one in made} == {"plain", "tuple", "list", "dict", "UserDict", "dataclass"}
    assert {one.returned for one in made} == {"plain", "tuple", "list", "dict", "UserDict", "dataclass", "nested"}
    assert {len(one.given) for one in made} == {1, 2, 3}
    assert {len(one.outputs) for one in made} == {1, 2}
    assert {one.batched for one in made} == {True, False}
    assert any(one.randomised for one in made)


@pytest.mark.parametrize("method", METHODS)
def test_the_listing_is_a_script(method):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(_one("torch.tanh(x)").listing(method), {"__name__": __name__})
    assert out.getvalue().startswith("Moments(") or "JointMoments(" in out.getvalue()


def _one(line: str, given: str = "noisy(torch.tensor([[0.3, -0.4]], dtype=torch.float64), std=0.3)") -> Program:
    a = Value("a", (1, 2), frozenset("x"), ("x",))
    return Program(0, "float64", (Given("x", given),), (Step((f"a = {line}",), (), a, ("x",), "test"),), (a,))


def _verdicts(monkeypatch: pytest.MonkeyPatch, change: Callable[[Moments], Any]) -> dict[str, tuple[str, str]]:
    """What is said of a network whose right result is changed."""
    convert = momentgen.convert

    def changed(*args: Any) -> Callable[..., Any]:
        network = convert(*args)
        return lambda *given: change(network(*given))

    monkeypatch.setattr(momentgen, "convert", changed)
    return {verdict.method: (verdict.outcome, verdict.kind) for verdict in judged(_one("torch.tanh(x)"))}


def test_a_right_result_is_right(monkeypatch):
    assert set(_verdicts(monkeypatch, lambda out: out).values()) == {("right", "")}


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("zero", lambda out: Moments(out.mean, 0 * out.var)),
        ("std", lambda out: Moments(out.mean, 1.2 * out.var)),
        ("mean", lambda out: Moments(out.mean + 0.03, out.var)),
        ("nan", lambda out: Moments(out.mean, out.var * float("nan"))),
        ("nan", lambda out: Moments(out.mean, -out.var)),
        ("form", lambda out: Moments(out.mean[0], out.var[0])),
        ("form", lambda out: (out, out)),
        ("form", lambda out: out.mean),
        ("exception", lambda out: _raise(StopIteration())),
        ("refusal", lambda out: _raise(UnsupportedError("run on each example alone, it fails"))),
    ],
)
def test_a_wrong_result_is_a_fault(monkeypatch, kind, change):
    found = _verdicts(monkeypatch, change)
    assert found["ap2"] == ("fault", kind)
    assert found["default"][0] == "fault"  # the changed result states no errors, and its mean is a sample's


def test_a_refusal_is_none(monkeypatch):
    found = _verdicts(monkeypatch, lambda out: _raise(UnsupportedError("no rule")))
    assert {found[method] for method in METHODS} == {("refused", "UnsupportedError")}


@pytest.mark.parametrize("method", ["ap1", "sample", "local"])
def test_a_method_that_runs_the_plain_network_is_held_to_its_output(monkeypatch, method):
    assert _verdicts(monkeypatch, lambda out: Moments(out.mean + 1e-6, out.var))[method] == ("fault", "mean")
