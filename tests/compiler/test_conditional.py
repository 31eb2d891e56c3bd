"""Rules whose output is random beyond its input: what they may state, what follows from it, and how it is measured."""

from __future__ import annotations

import functools
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy as sp
import torch
from contract.library import OPS
from flint import arb
from quadrature_truth import moments, partials
from real_rules import all_of, fresh_seed, op_of, rules, stables

from momentgen.commands.derive_text import derived
from momentgen.compiler.certify import joint_points
from momentgen.compiler.certify.bounds import tolerance_of
from momentgen.compiler.derive import derive
from momentgen.compiler.exact import ball_function
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.function.activation import analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.graph import Graph, madd
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.stable import PARTIALS, Stable
from momentgen.compiler.ir.values import evaluate_mpmath
from momentgen.compiler.lower.words import lower
from momentgen.compiler.measure.moments import ConditionalMeasure, ConditionalTruth, MomentsMeasure
from momentgen.compiler.measure.ulp import ulp_error
from momentgen.compiler.strategies.conditional import expected_conditional, with_conditional_variance
from momentgen.compiler.strategies.smooth.polynomials import DrawTruth
from momentgen.compiler.strategies.surfaces.point import PointWriter, has_point_form
from momentgen.errors import BuildError, MomentgenError
from momentgen.rule import Accuracy, Parameter, Phi, Rescaled, Rule, S, load_rules, x

GOAL = Accuracy(moments=True)
BUMP = x**2 * S(x) * S(-x)
w = Parameter("w", default=1, low=0.5, high=2)
(BOW_TIE,) = load_rules(Path(__file__).parents[2] / "rules" / "bow_tie.py")


def gate(**given: object) -> Rule:
    return Rule("gate", **{"f": x * S(x), "conditional_var": BUMP, "accuracy": GOAL, **given})  # type: ignore[arg-type]


# --- derive --------------------------------------------------------------------------
def test_in_other_units_it_is_their_square_times_its_base_and_what_is_constant() -> None:
    derivation = derive(BOW_TIE).conditional
    assert derivation is not None
    assert derivation.base is not None
    tau, eta = (p.symbol for p in BOW_TIE.parameters)
    rescaled = derivation.rule.rescaled
    assert rescaled == Rescaled(BUMP, width=tau, scale=tau**2, offset=eta**2)
    assert derivation.base.rule.f == BUMP


def test_derive_shows_the_mean_alone_and_says_what_the_variance_lacks() -> None:
    rule = gate(f=x * Phi(x), conditional_var=x**2 * Phi(x) * Phi(-x))
    shown = derived(rule)
    assert set(shown.outputs) == {"mean", "dmean_dmu", "dmean_dvar"}
    assert "the output has a variance given x" in shown.note
    with pytest.raises(MomentgenError, match="no closed form"):
        derived(BOW_TIE)


# --- truth, measure, words -----------------------------------------------------------
@functools.cache
def parts() -> tuple[ConditionalTruth, ConditionalMeasure]:
    """Of a gate, with scales of the partials that are not theirs: 2^-k, to be told apart."""
    rule = gate()
    derivation = derive(rule)
    assert derivation.conditional is not None
    f, h = (analyse("gate", d.pieces) for d in (derivation, derivation.conditional))
    truths = QuadratureTruth(f), QuadratureTruth(h)
    scales = {name: (-float(k),) * 89 for k, name in enumerate(PARTIALS)}
    measures = (MomentsMeasure(one.lipschitz, one.span, (), scales) for one in (f, h))
    return ConditionalTruth(*truths), ConditionalMeasure(*measures, 1.0)


def test_the_truth_is_the_total_variance_and_its_derivatives() -> None:
    truth, _ = parts()
    mean, var = np.array([-6.0, -0.4, 9.0], np.float32), np.array([0.25, 2.0, 1e-3], np.float32)
    found = truth(mean, var, {})
    with mpmath.workdps(20):

        def moments(m: mpmath.mpf, s2: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
            """E a and Var a, a = z u with z ~ Bernoulli(S(u)): E a² = E u² S(u)."""
            density = lambda u: mpmath.npdf(u, m, mpmath.sqrt(s2)) / (1 + mpmath.exp(-u))  # noqa: E731
            ends = [m + k * mpmath.sqrt(s2) for k in (-10, -5, -2, 0, 2, 5, 10)]
            first, second = (mpmath.quad(lambda u, n=n: u**n * density(u), ends) for n in (1, 2))
            return first, second - first**2

        for i, (m, s2) in enumerate(zip(map(mpmath.mpf, mean.tolist()), map(mpmath.mpf, var.tolist()), strict=True)):
            want = dict(zip(("mean", "var"), moments(m, s2), strict=True))
            step = s2 * mpmath.mpf(10) ** -6
            up, down = moments(m, s2 + step), moments(m, s2 - step)
            want |= {f"d{n}_dvar": (a - b) / (2 * step) for n, a, b in zip(("mean", "var"), up, down, strict=True)}
            step = mpmath.sqrt(s2) * mpmath.mpf(10) ** -6
            up, down = moments(m + step, s2), moments(m - step, s2)
            want |= {f"d{n}_dmu": (a - b) / (2 * step) for n, a, b in zip(("mean", "var"), up, down, strict=True)}
            for name, value in want.items():
                assert found[name][i] == pytest.approx(float(value), rel=1e-8, abs=1e-9), (name, m, s2)


def test_the_tolerance_is_that_of_both_terms() -> None:
    _, measure = parts()
    mean, var = np.zeros(3, np.float32), np.array([1e-6, 1.0, 100.0], np.float32)
    exact, wide = np.array([0.2, 0.5, 40.0]), (mean.astype(np.float64), var.astype(np.float64))
    by_h = measure.expected.allowed("dmean_dvar", exact, *wide)
    added = {"mean": 0, "dmean_dmu": 0, "var": 1e-6 * np.maximum(1.0, exact), "dvar_dvar": by_h}
    for output, more in added.items():
        allowed = measure.own.allowed(output, exact, *wide) + more
        np.testing.assert_allclose(measure.allowed(output, exact, *wide), allowed, rtol=1e-14)
    for output in ("var", "dvar_dmu"):
        off = (exact + measure.allowed(output, exact, *wide)).astype(np.float32)
        np.testing.assert_allclose(measure(output, off, exact, mean, var), 1.0, atol=0.2)
    assert np.isinf(measure("var", np.full(3, np.nan, np.float32), exact, mean, var)).all()


# --- forms ---------------------------------------------------------------------------
def stand_in(measure: object, truth: object, outputs: tuple[tuple[str, ...], tuple[str, ...]], unit: str) -> Stable:
    """A variant whose every output is mean + k var, k = 1, 2, ..."""
    graphs = []
    for names in outputs:
        g = Graph(("mean", "var"))
        for k, name in enumerate(names):
            g.output(name, madd(k + 1, g.input("var"), g.input("mean")))
        graphs.append(g)
    box = {"mu": (-1.0, 1.0), "log2_var": (0.0, 1.0)}
    forward, partials = graphs
    return Stable("exact", forward, partials, forward, partials, truth, measure, 1.0, 0.9, unit, box)  # type: ignore[arg-type]


def test_the_outputs_of_the_mean_of_h_are_added_to_those_of_the_variance() -> None:
    truth, measure = parts()
    both = ("dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")
    own = stand_in(measure.own, truth.own, (("mean", "var"), both), "tolerance")
    expected = stand_in(measure.expected, truth.expected, (("mean",), ("dmean_dmu", "dmean_dvar")), "tolerance")
    joined = with_conditional_variance(derive(gate()), own, expected)
    assert not joined.vanishes
    at = {"mean": 10, "var": 3}
    for graph in (joined.forward, joined.forward64):
        assert evaluate_mpmath(graph, at) == {"mean": 13, "var": 16 + 13}
    for graph in (joined.partials, joined.partials64):
        assert evaluate_mpmath(graph, at) == {"dmean_dmu": 13, "dmean_dvar": 16, "dvar_dmu": 19 + 13, "dvar_dvar": 38}
    assert tolerance_of(gate(), joined)["var"] == "1e-05*L^2*v + 1e-06*max(1, V)"
    with pytest.raises(BuildError, match="expected an f that is measured by moments"):
        with_conditional_variance(derive(gate()), stand_in(measure, truth, (("mean", "var"), both), "ulp"), expected)


def test_what_no_polynomial_serves_is_refused_with_the_name_of_the_field() -> None:
    derivation = derive(gate(conditional_var=sp.Max(x, 0)))
    assert derivation.conditional is not None
    with pytest.raises(BuildError, match="conditional_var: expected a smooth f, got kinks at 0"):
        expected_conditional(derivation.conditional)


@pytest.mark.parametrize("at", [3.0e38, -3.0e38, 1e20, -1e20, 88.0, -88.0])
def test_a_power_of_x_beside_what_decays_does_not_overflow_on_the_way(at: float) -> None:
    assert has_point_form(BUMP)
    g = Graph(("x",))
    g.output("y", PointWriter(g, g.input("x")).node(BUMP))
    found = evaluate(lower(g, "bump", frozenset(), {}), {"x": np.array([at], np.float32)})["y"][0]
    with mpmath.workdps(60):
        want = mpmath.mpf(at) ** 2 / ((1 + mpmath.exp(at)) * (1 + mpmath.exp(-at)))
    assert abs(float(found) - want) <= 1e-5 * want + 2.0**-100


def test_balls_have_steps() -> None:
    function = ball_function([sp.Heaviside(x, 0), sp.Heaviside(x, 1), sp.Heaviside(-x, 0)], ["x"])
    assert [[float(b) for b in function(at)] for at in (-0.5, 0.0, 0.5)] == [[0, 0, 1], [0, 1, 0], [1, 1, 0]]
    assert all(ball.contains(end) for ball in function(arb(0, 1)) for end in (0, 1))  # the sign is open


# Draws of 0 or 1 and rules of two inputs as they ship: exact values, and what mathematics says of them.
# Phi(X) of a normal X, and draws of 0 or 1: against exact values, and by what mathematics says of them.
DRAWS = [name for name, rule in rules().items() if rule.bernoulli]


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_s_variance_is_that_of_its_mean(name: str) -> None:
    m, v = torch.randn(1000) * 3, torch.rand(1000) * 9
    for variant in op_of(name).variants:
        out = op_of(name)(m.double(), v.double(), variant=variant)
        torch.testing.assert_close(out.var, out.mean * (1 - out.mean), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(("mu", "v"), [(0.7, 2.0), (-3.0, 0.1), (12.0, 40.0)])
def test_exact_values_of_a_draw_are_those_of_its_probability(mu: float, v: float) -> None:
    f = analyse("draw", split(S(x)))
    values = DrawTruth(QuadratureTruth(f))(np.float32([mu]), np.float32([v]), {})
    at = float(np.float32(mu)), float(np.float32(v))
    m, _ = moments(S(x), *at, digits=15)
    slopes = partials(S(x), *at, digits=15)
    want = {"mean": m, "var": m * (1 - m), "dmean_dmu": slopes["dmean_dmu"], "dmean_dvar": slopes["dmean_dvar"]}
    want |= {f"dvar_{by}": (1 - 2 * m) * slopes[f"dmean_{by}"] for by in ("dmu", "dvar")}
    for name, value in want.items():
        assert values[name][0] == pytest.approx(float(value), rel=1e-10, abs=1e-13), name


def test_the_maximum_s_variance_is_within_eight_ulp_of_itself() -> None:
    """Independent inputs: every term of the variance is positive, so that its terms' ulp are its own."""
    points = joint_points.spread(4000, fresh_seed("maximum var"), covariance=False, reach=60)
    computed = all_of("maximum", "exact", points)
    exact = stables("maximum")["exact"].truth(*points, {})
    assert ulp_error(computed["var"], exact["var"]).max() <= 8
    for i in (1, 2):
        assert ulp_error(computed[f"dmean_dmu{i}"], exact[f"dmean_dmu{i}"]).max() <= 8


def test_the_maximum_with_a_constant_is_a_shifted_relu() -> None:
    mean, var = joint_points.spread(3000, 1, covariance=False, reach=30)[:2]
    usable = var > 0
    m, v = torch.from_numpy(mean[usable]), torch.from_numpy(var[usable])
    zero = torch.zeros_like(m)
    got, want = op_of("maximum")(m, v, zero, zero), op_of("relu")(m, v)
    torch.testing.assert_close(got.mean, want.mean, rtol=16 * 2**-24, atol=1e-37)
    torch.testing.assert_close(got.var, want.var, rtol=16 * 2**-24, atol=1e-37)


def test_perfect_correlation_is_a_line() -> None:
    """x2 = x1 + 1 and x2 = -x1: the maximum is x2, and |x1|."""
    mean = np.float32([-2.0, 0.0, 3.0])
    var = np.float32([1.0, 4.0, 0.25])
    op = op_of("maximum_correlated")
    m, v = torch.from_numpy(mean), torch.from_numpy(var)
    same = op(m, v, m + 1, v, v)
    assert torch.equal(same.mean, m + 1)
    assert torch.equal(same.var, v)
    opposite, want = op(m, v, -m, v, -v), op_of("abs")(m, v)
    torch.testing.assert_close(opposite.mean, want.mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(opposite.var, want.var, rtol=2e-6, atol=0)


SYMMETRIC = ("maximum", "maximum_correlated")


@pytest.mark.parametrize("name", SYMMETRIC)
def test_the_order_of_the_inputs_does_not_matter_to_the_last_bit(name: str) -> None:
    points = joint_points.spread(3000, 2, covariance=len(op_of(name).input_names) == 5)
    points = tuple(array[points[0] != points[2]] for array in points)
    swapped = (points[2], points[3], points[0], points[1], *points[4:])
    other = str.maketrans("12", "21")
    for variant in op_of(name).variants:
        here, there = (all_of(name, variant, given) for given in (points, swapped))
        for output, values in here.items():
            assert np.array_equal(values, there[output.translate(other)]), (variant, output)


@pytest.mark.parametrize("name", [name for name in SYMMETRIC if len(OPS[name].input_names) == 5])
def test_an_impossible_covariance_gives_nan_and_one_of_rounding_does_not(name: str) -> None:
    one = torch.ones(1)
    for cov in (1.01, -1.01, -7.0, float("nan"), 1 + 2**-20, -1 - 2**-20):
        for found in tuple(op_of(name)(one, one, one, one, cov * one)):
            assert (found.isfinite() if abs(cov) < 1.001 else found.isnan()).all(), cov
