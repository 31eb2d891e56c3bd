"""Phi(X) of a normal X, and draws of 0 or 1: against exact values, and by what mathematics says of them."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from quadrature_truth import moments, partials
from real_rules import op_of, rules
from sympy import Max, Piecewise

from momentgen.compiler.derive import derive
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.function.activation import analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.strategies import ways
from momentgen.compiler.strategies.smooth.polynomials import DrawTruth
from momentgen.errors import BuildError
from momentgen.rule import Accuracy, Rule, S, x

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


def test_a_draw_that_has_no_way_is_refused_and_never_taken_for_f() -> None:
    rule = Rule("draw", f=Piecewise((S(x), x < 0), (S(x) / 2, True)), bernoulli=True, accuracy=Accuracy(moments=True))
    with pytest.raises(BuildError, match="expected f itself, got a draw of 0 or 1"):
        list(ways(derive(rule)))


def test_absolute_goals_are_refused_by_a_way_that_does_not_keep_them() -> None:
    with pytest.raises(BuildError, match="expected goals in ulp or by moments, got mean_abs or var_abs"):
        list(ways(derive(Rule("line", f=Max(x, 0), accuracy=Accuracy(mean_abs=1e-9)))))


def test_probit_by_monte_carlo_of_the_latent_variable() -> None:
    """Y = [X >= Z], Z standard normal: a heaviside of a difference."""
    m, v = torch.tensor([0.4]), torch.tensor([2.0])
    one, zero = torch.ones(1), torch.zeros(1)
    heaviside = op_of("heaviside")(*op_of("difference")(m, v, zero, one))
    probit = op_of("probit")(m, v)
    for a, b in zip(heaviside, probit, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
    assert probit.mean.item() == pytest.approx(float(mpmath.ncdf(0.4 / mpmath.sqrt(3))), rel=1e-6)


def test_rules_say_which_are_draws() -> None:
    assert {name for name, rule in rules().items() if rule.bernoulli} == set(DRAWS)
