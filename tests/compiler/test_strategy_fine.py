"""Float64 forms of functions with kinks and of smooth ones: as accurate as is said, without a seam, at every input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import sympy as sp

from momentgen.compiler.derive import derive
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.ir.values import evaluate_mpmath, outputs_float64
from momentgen.compiler.strategies.kinks.piecewise import stable_variants
from momentgen.compiler.strategies.surfaces import fine_output, fine_surface
from momentgen.compiler.strategies.surfaces.fine_output import ALLOWED, BEYOND, OF_SLOW, OF_TAILS, PARTIALS_OF
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces, find_fine_surfaces
from momentgen.compiler.strategies.surfaces.fine_surface_graph import build_fine_graph
from momentgen.compiler.strategies.surfaces.surface import least_mean
from momentgen.errors import BuildError
from momentgen.rule import Accuracy, Phi, Rule, S, x

# Functions with kinks in float64: exact below v*, above as accurate as is said, without a seam, at every input.
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


#: lines on both sides without jumps or slow tails, of which the others have each part
ALIKE = ("softshrink", "tanhshrink")


def each(functions: Mapping[str, sp.Expr]) -> pytest.MarkDecorator:
    marked = [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in functions]
    return pytest.mark.parametrize("name", marked)


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


@each(FUNCTIONS)
def test_all_outputs_are_within_what_is_allowed_of_balls(name: str) -> None:
    f, truth, random = made(name)[0], BallTruth(made(name)[0]), np.random.default_rng(5)
    assert made(name)[1].facts["allowed_float64"] == BEYOND
    for v in switch_of(name) * np.array([1e-4, 0.3, np.nextafter(1.0, 0.0), 1.0, 1.1, 5.0, 300.0, 1e6]):
        mean = f.centre + np.sqrt(v) * np.concatenate([random.uniform(-7, 7, 12), [0.0]])
        found = computed(name, mean, np.full_like(mean, v))
        for place, m in enumerate(mean.tolist()):
            exact = {output: float(value) for output, value in truth.at(m, float(v)).items()}
            for output, most in allowed(f, float(v), exact).items():
                assert abs(found[output][place] - exact[output]) <= most, (output, m, v)


def test_certificates_do_not_promise_what_the_polynomials_of_float32_miss_in_float64() -> None:
    limiter = sp.Piecewise((-sp.Rational(2, 3), x < -1), (x - x**3 / 3, x <= 1), (sp.Rational(2, 3), True))
    f, stable = made("limiter", limiter)
    assert stable.facts["surfaces_float64"] == {}
    assert stable.facts["allowed_float64"] == "as in float32, whose polynomials serve"
    exact = float(BallTruth(f).at(5.0, 1.0)["mean"])
    at = {"mean": np.array([5.0]), "var": np.array([1.0])}
    assert 1e-9 < abs(outputs_float64(stable.forward64, at)["mean"][0] - exact) < 1e-6


@each(FUNCTIONS)
def test_below_the_switch_means_are_exact_but_for_rounding(name: str) -> None:
    f, truth, random = made(name)[0], BallTruth(made(name)[0]), np.random.default_rng(6)
    for v in switch_of(name) * np.array([1e-6, 1e-3, 0.1, 0.99]):
        mean = np.concatenate([kink + np.sqrt(v) * random.uniform(-7, 7, 8) for kink in f.kinks])
        found = computed(name, mean, np.full_like(mean, v))["mean"]
        for m, value in zip(mean.tolist(), found.tolist(), strict=True):
            assert abs(value - float(truth.at(m, float(v))["mean"])) <= 1e-14 * (1 + abs(m) + np.sqrt(v)), (m, v)


def test_a_bounded_functions_variance_is_large_where_sigma_is() -> None:
    """Half of the mass at either level, 1 for levels of -1 and 1, but for what is between."""
    var = np.array([1e8, 1e16, 1e200])
    between = 4 / 3 / np.sqrt(2 * np.pi * var)
    assert np.abs(computed("hardtanh", np.zeros(3), var)["var"] - (1 - between)).max() <= 2 * BEYOND["var"]


def test_steps_are_refused_since_their_tolerance_is_nothing_far_out() -> None:
    with pytest.raises(BuildError, match="expected a tolerance that is nowhere 0"):
        made("steps", sp.Piecewise((0, x < 0), (1, x < 1), (0, True)))


# Smooth activations in float64: as accurate as is said, with gradients of what is computed, at every input.
#: bounded; a line on one side; on both; about a centre that is not 0; a bump; lines that are neared slowly
SMOOTH = {
    "erf": sp.erf(x),
    "gelu": x * Phi(x),
    "tanhshrink": x - sp.tanh(x),
    "softplus": sp.log(1 + sp.exp(x - 1)),
    "bump": S(x) * S(-x),
    "pseudo_huber": sp.sqrt(1 + x**2) - 1,
}


def truth_of(f: Activation) -> QuadratureTruth | GeneralTruth:
    return GeneralTruth(f) if f.algebraic else QuadratureTruth(f)


@lru_cache
def surfaces_of(name: str) -> tuple[Activation, FineSurfaces, Graph, Graph]:
    f = analyse(name, split(SMOOTH[name]))
    surfaces = find_fine_surfaces(f, truth_of(f), OUTPUTS)
    return f, surfaces, build_fine_graph(f, surfaces, OUTPUTS), build_fine_graph(f, surfaces, PARTIALS)


def smooth_values(name: str, mean: F64, var: F64) -> dict[str, F64]:
    _, _, forward, partials = surfaces_of(name)
    point = {"mean": mean, "var": var}
    return outputs_float64(forward, point) | outputs_float64(partials, point)


def random_inputs(f: Activation, count: int, seed: int) -> tuple[F64, F64]:
    random = np.random.default_rng(seed)
    var = f.length**2 * np.exp(random.uniform(-16, 9, count))
    return f.centre + np.sqrt(var + f.length**2) * random.uniform(-8, 8, count), var


@each(SMOOTH)
def test_mean_and_variance_are_within_what_is_allowed_of_balls(name: str) -> None:
    f, goals = surfaces_of(name)[0], surfaces_of(name)[1].goals
    mean, var = random_inputs(f, 60, seed=3)
    found, truth = smooth_values(name, mean, var), BallTruth(f)
    for place, (m, v) in enumerate(zip(mean.tolist(), var.tolist(), strict=True)):
        exact = {output: float(value) for output, value in truth.at(m, v).items()}
        allowed = {
            "mean": goals["mean"] * max(1.0, abs(exact["mean"])),
            "var": goals["var"] * min(f.lipschitz**2 * v, (f.span / 2) ** 2),
        }
        for output, most in allowed.items():
            assert abs(found[output][place] - exact[output]) <= most, (output, m, v)


@each(SMOOTH)
def test_partials_are_within_what_is_allowed_of_the_largest_at_that_variance(name: str) -> None:
    f, goals = surfaces_of(name)[0], surfaces_of(name)[1].goals
    truth = truth_of(f)
    for v in f.length**2 * np.exp([*np.linspace(-14, 8, 23), 15, 25, 40, 60, 300]):
        mean = f.centre + np.sqrt(v + f.length**2) * np.linspace(-8, 8, 129)
        exact, found = truth.outputs(mean, np.full_like(mean, v)), smooth_values(name, mean, np.full_like(mean, v))
        for output in (partial for pair in PARTIALS_OF.values() for partial in pair):
            error = np.abs(found[output] - exact[output]).max()
            assert error <= goals[output] * np.abs(exact[output]).max(), (output, v)


@each(SMOOTH)
def test_partials_are_derivatives_of_the_outputs(name: str) -> None:
    f, _, forward, partials = surfaces_of(name)
    mean, var = random_inputs(f, 6, seed=4)
    with mpmath.workdps(40):
        for m, v in zip(map(mpmath.mpf, mean.tolist()), map(mpmath.mpf, var.tolist()), strict=True):
            wanted = evaluate_mpmath(partials, {"mean": m, "var": v})
            for output, pair in PARTIALS_OF.items():
                for partial, at in zip(pair, ("mean", "var"), strict=True):
                    step = mpmath.mpf(10) ** -12 * (v if at == "var" else mpmath.sqrt(v))
                    point = {"mean": m, "var": v}
                    up, down = (
                        evaluate_mpmath(forward, {**point, at: point[at] + sign * step})[output] for sign in (1, -1)
                    )
                    slope = (up - down) / (2 * step)
                    # what a kink's mean is fitted by is no derivative of what its slope is fitted by
                    assert abs(slope - wanted[partial]) <= 1e-13 * (1 + abs(slope)) * (1 + 1 / v), (partial, m, v)


@each(SMOOTH)
def test_at_variance_0_the_mean_is_the_function_and_the_variance_0(name: str) -> None:
    f = surfaces_of(name)[0]
    mean = f.centre + f.length * np.linspace(-12, 12, 97)
    found = smooth_values(name, mean, np.zeros_like(mean))
    jet = f.jet(mean, 3)
    assert np.abs(found["mean"] - jet[:, 0]).max() <= surfaces_of(name)[1].goals["mean"]
    assert not found["var"].any()
    assert np.abs(found["dvar_dvar"] - jet[:, 1] ** 2).max() <= surfaces_of(name)[1].goals["dvar_dvar"] * f.lipschitz**2
    assert not found["dvar_dmu"].any()


@each(SMOOTH)
def test_far_out_a_mean_is_the_line_and_gradients_are_its(name: str) -> None:
    f, goals = surfaces_of(name)[0], surfaces_of(name)[1].goals
    assert f.left is not None
    assert f.right is not None
    for sign, line in ((-1, f.left), (1, f.right)):
        mean = sign * np.array([1e8 if f.algebraic else 1e3, 1e9, 1e150, 1e160, 1e250, 1e300])
        var = np.array([1e-3, 1.0, 1e4, 1e-300, 1.0, 1e280])  # squares of means, and over variances, are beyond range
        found = smooth_values(name, mean, var)
        assert np.allclose(found["mean"], line.slope * mean + line.offset, rtol=1e-15, atol=goals["mean"])
        assert np.allclose(found["dmean_dmu"], line.slope, rtol=0, atol=1e-300)
        assert np.allclose(found["var"] / var, line.slope**2, rtol=0, atol=goals["var"] * f.lipschitz**2)
        assert np.allclose(found["dvar_dmu"], 0.0, rtol=0, atol=1e-300)


@each(SMOOTH)
def test_between_cells_there_is_no_step_beyond_what_is_allowed_on_either_side(name: str) -> None:
    f, surfaces = surfaces_of(name)[:2]
    frame, cells = surfaces.frame, surfaces.cells
    assert cells.count > 1
    share = np.linspace(0.02, 0.98, 25)
    pairs: list[tuple[F64, F64]] = []  # mean and v beside a cut, on one side and the other
    for q in cells.q:
        v = np.full(49, fine_output.cut_below(frame, q))
        mean = f.centre + np.sqrt(v + frame.c) * np.linspace(-6, 6, 49)
        pairs += [(mean, v * (1 - 1e-14)), (mean, v * (1 + 1e-14))]
    for x_cut in (sign * cut for cut in cells.x for sign in (1, -1)):
        v = frame.least / share**2 - frame.c
        u = np.copysign(np.sqrt(fine_output.cut_at(frame, x_cut) * (v + frame.c)), x_cut)
        pairs += [(f.centre + u * (1 - 1e-14), v), (f.centre + u * (1 + 1e-14), v)]
    truth = truth_of(f)
    for one, other in zip(pairs[::2], pairs[1::2], strict=True):
        first, second = smooth_values(name, *one), smooth_values(name, *other)
        for output in ("mean", "var"):
            size = np.maximum(1.0, least_mean(f, one[1]))
            if output == "var":
                size = np.minimum(f.lipschitz**2 * one[1], (f.span / 2) ** 2)
            assert (np.abs(first[output] - second[output]) <= 2 * surfaces.goals[output] * size).all(), output
        for output in (partial for pair in PARTIALS_OF.values() for partial in pair):
            for v in np.unique(one[1]):
                here = one[1] == v
                mean = f.centre + np.sqrt(v + f.length**2) * np.linspace(-8, 8, 65)
                size = np.abs(truth.outputs(mean, np.full_like(mean, v))[output]).max()
                assert np.abs(first[output] - second[output])[here].max() <= 2 * surfaces.goals[output] * size, (
                    output,
                    v,
                )


def test_a_function_of_two_lengths_is_less_accurate_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fine_surface, "_TRIED", 1)
    f = analyse("steep", split(S(x - 5) + S(6 * x)))
    truth = QuadratureTruth(f)
    surfaces = find_fine_surfaces(f, truth, ("mean",))
    error = surfaces.error
    assert error > 1
    mean, var = random_inputs(f, 400, seed=5)
    found = outputs_float64(build_fine_graph(f, surfaces, OUTPUTS), {"mean": mean, "var": var})["mean"]
    assert np.abs(found - truth.outputs(mean, var)["mean"]).max() <= 2 * error * ALLOWED["mean"]


@pytest.mark.parametrize("sharp", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_function_that_bends_too_sharply_is_refused(sharp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does, or one for which no more terms are allowed than for a line."""
    if not sharp:
        monkeypatch.setattr(fine_surface, "_LARGEST", 4)
    f = analyse("steep", split(S(x) + S(200 * x) if sharp else sp.tanh(x)))
    with pytest.raises(BuildError, match="no polynomial in two variables for mean in float64"):
        find_fine_surfaces(f, QuadratureTruth(f), ("mean",))


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression",
    [sp.atan(x), x / sp.sqrt(1 + x**2), x * (sp.atan(x) / sp.pi + sp.Rational(1, 2))],
    ids=["odd powers", "even powers", "between lines of other slopes"],
)
def test_slow_tails_of_any_powers_are_within_what_is_allowed(expression: sp.Expr) -> None:
    f = analyse("f", split(expression))
    found = find_fine_surfaces(f, GeneralTruth(f), OUTPUTS)
    assert found.error <= 1
    assert found.goals == OF_SLOW
    var = np.array([1e8, 1e12, 1e16, 1e30])
    mean = np.array([0.3, -1.0, 2.0, 0.0]) * np.sqrt(var)
    exact = GeneralTruth(f).outputs(mean, var)["var"]
    size = np.minimum(f.lipschitz**2 * var, (f.span / 2) ** 2)
    values = outputs_float64(build_fine_graph(f, found, OUTPUTS), {"mean": mean, "var": var})["var"]
    assert (np.abs(values - exact) <= 2 * OF_SLOW["var"] * size).all()


def test_beyond_the_least_q_outputs_are_the_kinks_alone() -> None:
    """sqrt(1 + x²) of so wide an input is abs(x) to every digit that is promised."""
    sigma = np.array([1e7, 1e20, 1e100, 1e150])
    for share in (0.0, 0.7, -2.0):
        found = smooth_values("pseudo_huber", share * sigma, sigma**2)
        mean = math.sqrt(2 / math.pi) * math.exp(-(share**2) / 2) + share * math.erf(share / math.sqrt(2))
        assert (found["mean"] + 1) / sigma == pytest.approx(mean, rel=OF_SLOW["mean"])
        assert found["var"] / sigma**2 == pytest.approx(1 + share**2 - mean**2, abs=OF_SLOW["var"])
        assert found["dmean_dmu"] == pytest.approx(math.erf(share / math.sqrt(2)), abs=OF_SLOW["dmean_dmu"])
        slope = math.exp(-(share**2) / 2) / math.sqrt(2 * math.pi)
        assert found["dmean_dvar"] * sigma == pytest.approx(slope, abs=OF_SLOW["dmean_dvar"] * slope)


@pytest.mark.parametrize(
    ("expression", "variances"),
    [(sp.erf(3 * x), (1 / 18,)), (x * Phi(x), (1.0,)), (Phi(x) + sp.erfc(2 * x - 1), (1 / 8, 1.0)), (sp.tanh(x), ())],
)
def test_the_variance_of_a_normal_tail_is_read_off_the_expression(
    expression: sp.Expr, variances: tuple[float, ...]
) -> None:
    assert analyse("f", split(expression)).smoothings == pytest.approx(variances)


@pytest.mark.parametrize("name", ["erf", "gelu"])
def test_in_the_frame_of_a_normal_tail_the_mean_takes_few_terms(name: str) -> None:
    f, surfaces = surfaces_of(name)[:2]
    assert surfaces.frame.c == f.smoothings[0]
    assert surfaces.outputs["mean"].terms < surfaces.outputs["var"].terms / 5
    assert surfaces.goals == OF_TAILS
