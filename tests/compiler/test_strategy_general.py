"""What the compiler finds out about f, and functions of any kind: slow tails, a reader's own, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import mpmath
import numpy as np
import pytest
import sympy as sp
from compiler.forms import by_quadrature, cubic

from momentgen.compiler.derive import derive
from momentgen.compiler.derive.existence import check_second_moment
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.function.activation import Line, analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.kit import NEAR64
from momentgen.compiler.ir.stable import Truth
from momentgen.compiler.ir.values import evaluate_float64
from momentgen.compiler.measure.moments import MomentsMeasure
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.kinks import piecewise
from momentgen.compiler.strategies.kinks.branch_series import BranchSeries
from momentgen.errors import BuildError
from momentgen.rule import Rule
from momentgen.rule.symbols import Phi, S, phi, x

SOFTSIGN = x / (1 + sp.Abs(x))
HUBER = sp.sqrt(1 + x**2) - 1
MISH = x * sp.tanh(sp.log(1 + sp.exp(x)))
ELU = sp.Piecewise((x, x > 0), (sp.exp(x) - 1, True))
SHRINK = sp.Piecewise((x, x > sp.Rational(1, 2)), (x, x < -sp.Rational(1, 2)), (sp.Integer(0), True))
NEAR = [(0.49, 1e-4), (-0.7, 1e-9), (40.0, 900.0)]
POINTS = [(0.3, 1e-6), (-2.5, 4.0), (40.0, 2500.0), (-900.0, 0.5)]


# What the compiler finds out about f from its expression: lines, lengths and centres, at every scale.
SHAPES = {
    "tanh": sp.tanh(x),
    "softplus": sp.log(1 + sp.exp(x)),
    "gaussian": sp.exp(-(x**2)),
    "elu": sp.Piecewise((sp.exp(x) - 1, x < 0), (x, True)),
    "two sigmoids": S(2 * x) + S(x),
}


@pytest.mark.parametrize(("power", "steps"), [(-12, 0), (-3, 700), (3, -40), (11, 5)])
@pytest.mark.parametrize("name", SHAPES)
def test_lengths_lines_and_centres_follow_the_units_of_f(name: str, power: int, steps: int) -> None:
    own = analyse(name, split(SHAPES[name]))
    width = sp.Integer(2) ** power
    f = analyse(name, split(SHAPES[name].subs(x, (x - steps * width) / width)))
    assert f.algebraic == own.algebraic
    assert f.length / width == pytest.approx(own.length, rel=0.1)
    assert abs(f.centre / width - steps - own.centre) <= 6 * own.length
    assert f.lipschitz * width == pytest.approx(own.lipschitz, rel=0.01)
    slopes, own_slopes = ([side.slope for side in (a.left, a.right) if side] for a in (f, own))
    assert [slope * width for slope in slopes] == pytest.approx(own_slopes)
    assert f.span == pytest.approx(own.span, rel=0.01)


@pytest.mark.parametrize(
    ("f", "left", "right"),
    [
        (x * S(x), Line(0.0, 0.0), Line(1.0, 0.0)),
        (sp.tanh(x - 10**6), Line(0.0, -1.0), Line(0.0, 1.0)),
        (phi(x) / Phi(x), Line(-1.0, 0.0), Line(0.0, 0.0)),  # nears -x as 1/x does, by a ratio of two tails
        (phi(x) / Phi(-x), Line(0.0, 0.0), Line(1.0, 0.0)),
        (SOFTSIGN, Line(0.0, -1.0), Line(0.0, 1.0)),
        (HUBER, Line(-1.0, -1.0), Line(1.0, -1.0)),
        (x * sp.tanh(sp.exp(x)), Line(0.0, 0.0), Line(1.0, 0.0)),
        (sp.log(1 + x**2), None, None),
    ],
    ids=str,
)
def test_the_lines_that_f_nears_are_found(f: sp.Expr, left: Line | None, right: Line | None) -> None:
    found = analyse("f", split(f))
    assert (found.left, found.right) == (left, right)
    assert found.algebraic or f not in (SOFTSIGN, HUBER)


def test_a_centre_spans_slopes_and_jumps_are_found() -> None:
    far, silu = analyse("far", split(sp.tanh(x - 10**6))), analyse("silu", split(x * S(x)))
    assert abs(far.centre - 1e6) < 2
    assert far.lipschitz == pytest.approx(1, rel=0.01)
    assert far.span == pytest.approx(2.0, abs=1e-9)
    assert not far.algebraic
    assert abs(silu.lipschitz - 1.0998393194) < 1e-5
    assert analyse("shrink", split(SHRINK)).jumps == ((-0.5, 0.5), (0.5, 0.5))


def test_an_exponential_of_an_exponential_does_not_overflow_where_its_tanh_is_1() -> None:
    f = analyse("f", split(x * sp.tanh(sp.exp(x))))
    assert [float(c) for c in f.taylor(0, 1e9, 3)] == [1e9, 1.0, 0.0]
    assert [float(c) for c in f.taylor(0, -1e9, 3)] == [0.0, 0.0, 0.0]
    assert f.evaluable == 1e6  # mpmath's tanh of e^1e10 runs out of memory
    assert analyse("mish", split(MISH)).evaluable == np.inf


@pytest.mark.parametrize(
    "f",
    [
        sp.Piecewise((sp.exp(-1 / (1 - x**2)), sp.Abs(x) < 1), (0, True)),
        sp.Piecewise((x / (1 - sp.exp(x)), x > 0), (0, True)),
    ],
)
def test_a_denominator_that_vanishes_at_a_kink_is_no_crash(f: sp.Expr) -> None:
    with suppress(BuildError):
        analyse("pole", split(f))


# Exact values of functions of any kind, by two ways.
@pytest.mark.parametrize(
    ("f", "quickly"),
    [
        (SOFTSIGN, GeneralTruth),
        (HUBER, GeneralTruth),
        pytest.param(sp.atan(x), GeneralTruth, marks=pytest.mark.slow),
        (ELU, QuadratureTruth),
        (SHRINK, QuadratureTruth),
        pytest.param(MISH, QuadratureTruth, marks=pytest.mark.slow),
    ],
    ids=["softsign", "huber", "atan", "elu", "hardshrink", "mish"],
)
def test_both_truths_agree_with_the_oracle(f: sp.Expr, quickly: Callable[..., Truth]) -> None:
    activation, slow = analyse("f", split(f)), quickly is GeneralTruth
    mean, var = (np.array(column, np.float32) for column in zip(*(POINTS if slow else NEAR), strict=True))
    quick, balls = quickly(activation)(mean, var, {}), BallTruth(activation)(mean, var, {})
    for i, (m, v) in enumerate(zip(mean.tolist(), var.tolist(), strict=True)):
        sizes = {"mean": 1e-6, "var": (1e-9 if slow else 1e-6) * v}
        for name, value in by_quadrature(f, m, v, digits=20).items():
            size = float(abs(value)) + sizes.get(name, 1e-12 if slow else 1e-6)
            assert abs(balls[name][i] - float(value)) < (1e-12 if slow else 1e-13) * size, (name, m, v)
            assert abs(quick[name][i] - float(value)) < (1e-7 if slow else 1e-8) * size, (name, m, v)


@pytest.mark.parametrize("f", [sp.tanh(x), x * S(x), sp.log(1 + sp.exp(x))], ids=["tanh", "silu", "softplus"])
def test_small_and_wide_forms_of_a_smooth_f_meet_and_are_right(f: sp.Expr) -> None:
    activation = analyse("f", split(f))
    sigma = activation.length * np.array([0.2499, 0.2501, 0.1, 1e-3] * 4)
    mean, var = activation.centre + activation.length * np.repeat([-4.0, -0.6, 0.1, 2.5], 4), sigma**2
    found, balls = QuadratureTruth(activation).outputs(mean, var), BallTruth(activation)
    exact = [balls.at(*point) for point in zip(mean.tolist(), var.tolist(), strict=True)]
    for name, values in found.items():
        want = np.array([float(row[name]) for row in exact])
        assert np.abs(values / want - 1).max() < (1e-11 if name == "mean" else 3e-9), name
    far = QuadratureTruth(activation).outputs(np.array([-1e30, 1e30]), np.full(2, activation.length**2 / 100))
    assert all(np.isfinite(values).all() for values in far.values())


@pytest.mark.parametrize(("mean", "var"), [(1e9, 1.0), (-3e5, 1e8), (-40.0, 4.0), (2.0, 1e-8)])
def test_what_a_mean_is_beside_its_line_keeps_its_own_digits(mean: float, var: float) -> None:
    activation = analyse("f", split(HUBER))
    rest = GeneralTruth(activation).outputs(np.array([mean]), np.array([var]), rests=True)["mean_rest"][0]
    with mpmath.workdps(40):
        mu, sigma = mpmath.mpf(mean), mpmath.sqrt(mpmath.mpf(var))
        slope = mpmath.sign(mu)  # of the line on mu's side, slope x - 1

        def beside(z: mpmath.mpf) -> mpmath.mpf:
            at = mu + sigma * z
            return (mpmath.sqrt(1 + at**2) - slope * at) * mpmath.npdf(z)

        exact = mpmath.quad(beside, mpmath.linspace(-14, 14, 15))
    assert rest == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("var", [1e10, 1e24, 1e37])
def test_a_bump_is_seen_however_wide_the_input_is(var: float) -> None:
    """E 1/(1 + X²) is pi times the density there, and E 1/(1 + X²)² half of that, but for 1/sigma."""
    activation, sigma, t = analyse("f", split(1 / (1 + x**2))), np.sqrt(var), np.array([0.0, 0.7, -1.5])
    found = GeneralTruth(activation).outputs(t * sigma, np.full(3, var))
    density = np.exp(-t * t / 2) / np.sqrt(2 * np.pi) / sigma
    np.testing.assert_allclose(found["mean"], np.pi * density, rtol=3 / sigma + 1e-12)
    np.testing.assert_allclose(found["var"], np.pi / 2 * density, rtol=9 / sigma + 1e-12)
    np.testing.assert_allclose(found["dmean_dmu"], -np.pi * density * t / sigma, rtol=3 / sigma + 1e-9, atol=1e-9 / var)


@pytest.mark.parametrize("var", [1e6, 1e9, 1e12])
def test_a_bump_on_a_line_keeps_its_own_digits_however_wide_the_input_is(var: float) -> None:
    """The line adds 4 slope v dmean_dvar to dvar_dmu, and nothing to dmean_dvar."""
    bump, slope, t = 1 / (1 + x**2), -2, np.array([0.3, 0.7, -1.5])
    alone, beside = (
        GeneralTruth(analyse("f", split(f))).outputs(t * np.sqrt(var), np.full(3, var))
        for f in (bump, slope * x + 3 + bump)
    )
    np.testing.assert_allclose(beside["dmean_dvar"], alone["dmean_dvar"], rtol=1e-12)
    added = 4 * slope * var * alone["dmean_dvar"]
    np.testing.assert_allclose(beside["dvar_dmu"] - alone["dvar_dmu"], added, rtol=1e-9)


LEAP = sp.Piecewise((x + 1, x > 0), (0, True))


@pytest.mark.parametrize("truth", [QuadratureTruth, GeneralTruth])
def test_references_follow_a_jump_as_far_as_tolerances_do(truth: type) -> None:
    """Where the jump is 10 to 13 standard deviations away its share is all of the variance."""
    activation = analyse("f", split(LEAP))
    sigma = 1e-18
    mean = (-np.array([9.0, 9.6, 10.5, 12.0, 13.0]) * sigma).astype(np.float32)
    var = np.full(mean.size, sigma**2, np.float32)
    got = truth(activation)(mean, var, {})
    for i, (m, v) in enumerate(zip(mean.tolist(), var.tolist(), strict=True)):
        for name, value in by_quadrature(LEAP, m, v, digits=20).items():
            assert got[name][i] == pytest.approx(float(value), rel=1e-6), (name, m)


def test_the_mean_of_a_bounded_function_is_held_to_its_range_at_any_variance() -> None:
    """1e-9 L sigma alone would be 2.5 for a sigmoid at v = 1e20."""
    activation = analyse("f", split(S(x)))
    measure = MomentsMeasure(activation.lipschitz, activation.span, activation.jumps, {})
    half, zero, wide = np.full(1, 0.5), np.zeros(1), np.full(1, 1e20)
    assert measure.allowed("mean", half, zero, wide)[0] <= 1.002e-6
    unbounded = MomentsMeasure(1.0, np.inf, (), {})
    assert unbounded.allowed("mean", half, zero, wide)[0] == pytest.approx(10.0, rel=1e-5)


@pytest.mark.parametrize(
    "expr",
    [
        x / (1 + x),
        sp.sqrt(1 + x**2),
        sp.exp(-x) * x**3,
        1 / sp.sqrt(1 + sp.exp(x)),
        (1 + x**2) ** sp.Rational(-3, 2),
        x * S(x),
        sp.tanh(2 * x) ** 2,
        sp.sinh(x / 2),
        sp.sin(x**2) + sp.cos(3 * x),
    ],
    ids=str,
)
@pytest.mark.parametrize("at", [1.37, 0.0, -0.8])
def test_a_branch_has_its_taylor_coefficients(expr: sp.Expr, at: float) -> None:
    graph, count = Graph(("u",)), 12
    row = BranchSeries(graph.input("u"), count, NEAR64, []).whole(expr)
    for n, node in enumerate(row):
        graph.output(str(n), node)
    values = evaluate_float64(graph, {"u": np.array([at])})
    exact = analyse("f", split(expr)).taylor(0, at, count)
    size = max(abs(float(c)) for c in exact)
    for node, c in zip(row, exact, strict=True):
        assert abs(float(np.ravel(values[node.index])[0]) - float(c)) < 4e-15 * size


def test_a_cubic_far_from_0_is_as_exact_as_beside_it() -> None:
    cubic = sp.expand(sp.Rational(3, 7) * (x - 90) ** 3 - 2 * (x - 90) + sp.Rational(1, 3))
    graph = Graph(("u",))
    row = BranchSeries(graph.input("u"), 5, NEAR64, [], centre=90.0).whole(cubic)
    for n, node in enumerate(row):
        graph.output(str(n), node)
    start = np.linspace(88.7, 91.3, 27)
    values = evaluate_float64(graph, {"u": start})
    calls = [sp.lambdify(x, sp.diff(cubic, x, n) / sp.factorial(n), "mpmath") for n in range(5)]
    for i, at in enumerate(start.tolist()):
        with mpmath.workdps(40):
            for node, call in zip(row, calls, strict=True):
                assert abs(np.broadcast_to(values[node.index], start.shape)[i] - call(mpmath.mpf(at))) < 2e-15


def test_a_denominator_with_double_roots_beside_the_real_line_is_no_pole() -> None:
    check_second_moment(derive(Rule("mine", f=1 / (1 + x**2) ** 2)))


def test_a_refusal_says_of_every_way_why_it_does_not_serve() -> None:
    with pytest.raises(BuildError) as caught:
        stabilise(derive(Rule("mine", f=sp.airyai(x))))
    assert caught.value.cause == "expected functions that the compiler knows, got airyai in `airyai(x)` (quadrature)"
    others = dict(caught.value.others)
    for way in ("homogeneous", "halves", "elementary", "smooth, by polynomials"):
        assert others[way].startswith(("expected", "the compiler does not know"))


# --- bring your own ------------------------------------------------------------------


@pytest.mark.slow
def test_the_float64_form_is_right_far_from_the_kinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piecewise, "_switches", lambda f: (float(np.float32(0.49)),))  # what a search of 25 s finds
    f = cubic(3)
    (stable,) = stabilise(derive(Rule("mine", f=f)))
    away = 40.0 * np.exp2(np.linspace(-2, 3, 12))
    mean = np.concatenate([away, -away]).astype(np.float32)
    var = np.tile([7.0, 30.0, 400.0], 8).astype(np.float32)
    assert stable.rigorous is not None
    exact = stable.rigorous(mean, var, {})
    for graph in (stable.forward64, stable.partials64):
        values = evaluate_float64(graph, {"mean": mean.astype(np.float64), "var": var.astype(np.float64)})
        for name, index in graph.outputs.items():
            computed = np.broadcast_to(values[index], mean.shape)
            assert stable.measure(name, computed, exact[name], mean, var).max() <= 0.9, name  # as in float32


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 14])
def test_a_random_piecewise_cubic_that_no_switch_serves_is_refused_with_what_was_tried(seed: int) -> None:
    with pytest.raises(BuildError, match=r"no switch serves both forms \(v\* = "):
        compile_rule(Rule("mine", f=cubic(seed)))
