"""Functions with kinks in float64: exact below v*, above as accurate as is said, without a seam, at every input."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sympy as sp

from momentgen.compiler.derive import derive
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.strategies.kinks.piecewise import stable_variants
from momentgen.compiler.strategies.surfaces.fine_output import BEYOND, PARTIALS_OF
from momentgen.errors import BuildError
from momentgen.rule import Accuracy, Rule, x

F64 = npt.NDArray[np.float64]
HALF = sp.Rational(1, 2)
#: bounded; a line on one side; on both, with jumps and without; about a centre that is not 0; a bump
FUNCTIONS = {
    "hardtanh": sp.Max(-1, sp.Min(1, x)),
    "hardswish": sp.Piecewise((0, x <= -3), (x, x >= 3), (x * (x + 3) / 6, True)),
    "hardshrink": sp.Piecewise((x, (x > HALF) | (x < -HALF)), (0, True)),
    "softshrink": sp.Max(0, x - HALF) + sp.Min(0, x + HALF),
    "ramp": sp.Max(0, sp.Min(6, x - 2)),
    "tent": sp.Max(0, sp.Min(1 - x, 1 + x)),
}


@lru_cache
def made(name: str, f: sp.Expr | None = None) -> tuple[Activation, Stable]:
    rule = Rule(name, f=FUNCTIONS[name] if f is None else f, accuracy=Accuracy(moments=True))
    derivation = derive(rule)
    (stable,) = stable_variants(derivation)
    return analyse(name, derivation.pieces), stable


def switch_of(name: str) -> float:
    return float(made(name)[1].facts["switch_float64"])


def computed(name: str, mean: F64, var: F64) -> dict[str, F64]:
    stable, point = made(name)[1], {"mean": mean, "var": var}
    return outputs_float64(stable.forward64, point) | outputs_float64(stable.partials64, point)


def largest_partials(f: Activation, v: float) -> dict[str, float]:
    mean = f.centre + (np.sqrt(v) + f.reach) * np.linspace(-4, 4, 161)
    exact = QuadratureTruth(f).outputs(mean, np.full_like(mean, v))
    return {partial: float(np.abs(exact[partial]).max()) for pair in PARTIALS_OF.values() for partial in pair}


def allowed(f: Activation, v: float, exact: dict[str, Any]) -> dict[str, float]:
    """The error allowed to each output at a point."""
    return {
        "mean": BEYOND["mean"] * max(1.0, abs(exact["mean"])),
        "var": BEYOND["var"] * min(f.lipschitz**2 * v, (f.span / 2) ** 2),
        **{partial: BEYOND[partial] * size for partial, size in largest_partials(f, v).items()},
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_outputs_are_within_what_is_allowed_of_balls(name: str) -> None:
    f, truth, random = made(name)[0], BallTruth(made(name)[0]), np.random.default_rng(5)
    for v in switch_of(name) * np.array([1e-4, 0.3, 1.0, 1.1, 5.0, 300.0, 1e6]):
        mean = f.centre + np.sqrt(v) * np.concatenate([random.uniform(-7, 7, 12), [0.0]])
        found = computed(name, mean, np.full_like(mean, v))
        for place, m in enumerate(mean.tolist()):
            exact = {output: float(value) for output, value in truth.at(m, float(v)).items()}
            for output, most in allowed(f, float(v), exact).items():
                assert abs(found[output][place] - exact[output]) <= most, (output, m, v)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_certificates_say_what_is_allowed_beyond_the_switch(name: str) -> None:
    assert made(name)[1].facts["allowed_float64"] == BEYOND


def test_certificates_do_not_promise_what_the_polynomials_of_float32_miss_in_float64() -> None:
    limiter = sp.Piecewise((-sp.Rational(2, 3), x < -1), (x - x**3 / 3, x <= 1), (sp.Rational(2, 3), True))
    f, stable = made("limiter", limiter)
    assert stable.facts["surfaces_float64"] == {}
    assert stable.facts["allowed_float64"] == "as in float32, whose polynomials serve"
    exact = float(BallTruth(f).at(5.0, 1.0)["mean"])
    at = {"mean": np.array([5.0]), "var": np.array([1.0])}
    assert 1e-9 < abs(outputs_float64(stable.forward64, at)["mean"][0] - exact) < 1e-6


@pytest.mark.parametrize("name", FUNCTIONS)
def test_below_the_switch_means_are_exact_but_for_rounding(name: str) -> None:
    f, truth, random = made(name)[0], BallTruth(made(name)[0]), np.random.default_rng(6)
    for v in switch_of(name) * np.array([1e-6, 1e-3, 0.1, 0.99]):
        mean = np.concatenate([kink + np.sqrt(v) * random.uniform(-7, 7, 8) for kink in f.kinks])
        found = computed(name, mean, np.full_like(mean, v))["mean"]
        for m, value in zip(mean.tolist(), found.tolist(), strict=True):
            assert abs(value - float(truth.at(m, float(v))["mean"])) <= 1e-14 * (1 + abs(m) + np.sqrt(v)), (m, v)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_the_switch_there_is_no_step_beyond_what_is_allowed(name: str) -> None:
    f, v = made(name)[0], switch_of(name)
    mean = f.centre + np.sqrt(v) * np.linspace(-9, 9, 181)
    below = computed(name, mean, np.full_like(mean, np.nextafter(v, 0.0)))
    above = computed(name, mean, np.full_like(mean, v))
    for place in range(mean.size):
        for output, most in allowed(f, v, {"mean": above["mean"][place]}).items():
            assert abs(above[output][place] - below[output][place]) <= most, (output, mean[place])


def test_a_bounded_functions_variance_is_large_where_sigma_is() -> None:
    """Half of the mass at either level, 1 for levels of -1 and 1, but for what is between."""
    var = np.array([1e8, 1e16, 1e200])
    between = 4 / 3 / np.sqrt(2 * np.pi * var)
    assert np.abs(computed("hardtanh", np.zeros(3), var)["var"] - (1 - between)).max() <= 2 * BEYOND["var"]


def test_steps_are_refused_since_their_tolerance_is_nothing_far_out() -> None:
    with pytest.raises(BuildError, match="expected a tolerance that is nowhere 0"):
        made("steps", sp.Piecewise((0, x < 0), (1, x < 1), (0, True)))
