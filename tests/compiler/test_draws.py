"""Draws of 0 or 1 and rules of two inputs as they ship: exact values, and what mathematics says of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contract.library import OPS, outputs_of
from quadrature_truth import moments, partials
from real_rules import all_of, fresh_seed, op_of, rules, stables

from momentgen.compiler.certify import joint_points
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.function.activation import analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.measure.ulp import ulp_error
from momentgen.compiler.strategies.smooth.polynomials import DrawTruth
from momentgen.rule import S, x

# Phi(X) of a normal X, and draws of 0 or 1: against exact values, and by what mathematics says of them.
DRAWS = ("probit", "logistic_bernoulli")


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


def test_rules_say_which_are_draws() -> None:
    assert {name for name, rule in rules().items() if rule.bernoulli} == set(DRAWS)


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
    for variant in ("exact", "fitted"):
        got, want = op_of("maximum")(m, v, zero, zero, variant=variant), op_of("relu")(m, v, variant=variant)
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


def test_bernoulli_noise_is_what_torch_s_dropout_draws() -> None:
    torch.manual_seed(4)
    mean, var, p = 0.8, 0.5, 0.3
    draws = torch.nn.functional.dropout(torch.randn(1_000_000) * var**0.5 + mean, p).double()
    got = op_of("bernoulli_noise")(torch.tensor([mean]), torch.tensor([var]), p=p)
    assert abs(got.mean.item() - draws.mean()) < 5 * draws.std() / 1000
    spread = (draws - draws.mean()).square()
    assert abs(got.var.item() - draws.var()) < 5 * spread.std() / 1000
    kept = op_of("bernoulli_noise")(torch.tensor([mean]), torch.tensor([var]), p=0.0)
    assert (kept.mean.item(), kept.var.item()) == (np.float32(mean), np.float32(var))


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
        for found in outputs_of(op_of(name)(one, one, one, one, cov * one)):
            assert (found.isfinite() if abs(cov) < 1.001 else found.isnan()).all(), cov
