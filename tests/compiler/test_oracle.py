"""The oracle: its sources agree with each other and with what is known."""

from __future__ import annotations

import math

import flint
import mpmath
import numpy as np
import pytest
import sympy
from flint import arb
from hypothesis import given, settings
from hypothesis import strategies as st
from quadrature_truth import moments, partials

from momentgen.compiler.derive import derive
from momentgen.compiler.exact import ClosedFormTruth, ball_function, evaluate
from momentgen.compiler.fit.special import midpoint
from momentgen.rule import Phi, Rule, S, mu, phi, v, x

RELU = derive(Rule("relu", f=sympy.Max(x, 0)))
ALL = [RELU.mean, RELU.var, *RELU.partials.values()]


def evaluated(expr, **values):
    return evaluate(ball_function(expr, values), values)


def test_relu_at_zero_has_the_known_variance():
    with mpmath.workdps(40):
        mean, var = moments(sympy.Max(x, 0), 0, 1, digits=35)
        assert abs(mean - 1 / mpmath.sqrt(2 * mpmath.pi)) < mpmath.mpf(10) ** -34
        assert abs(var - (mpmath.mpf(1) / 2 - 1 / (2 * mpmath.pi))) < mpmath.mpf(10) ** -34


def test_quadrature_sees_a_narrow_piece_whose_nearest_point_is_a_zero():
    sigma, knots = mpmath.sqrt(1000), ((-1, 1), (0, -2), (1, 1))  # a hat as a sum of c relu(x - k)
    with mpmath.workdps(30):
        exact = sum(c * (sigma * mpmath.npdf(k / sigma) - k * mpmath.ncdf(-k / sigma)) for k, c in knots)
    mean, _ = moments(sympy.Max(0, 1 - sympy.Abs(x)), 0, 1000, digits=15)
    assert abs(mean - exact) < 1e-12 * exact


def test_a_point_mass_gives_f_itself():
    assert moments(sympy.Heaviside(x, 1), 0, 0) == (1, 0)
    assert moments(sympy.Max(x, 0), -2, 0) == (0, 0)


@pytest.mark.parametrize("at", [(1e4, 1.0), (-1e4, 1.0), (200.0, 1.0)])
def test_saturated_sigmoid_keeps_its_relative_accuracy(at):
    # Far out S(x) is e^-|x| up to a constant: a log-normal variable.
    with mpmath.workdps(40):
        m, w = abs(mpmath.mpf(at[0])), mpmath.mpf(at[1])
        var = (mpmath.exp(w) - 1) * mpmath.exp(w - 2 * m)
        assert abs(moments(S(x), *at)[1] / var - 1) < 1e-25


@settings(max_examples=60, deadline=None)
@given(st.floats(-1e30, 1e30), st.floats(1e-38, 1e30))
def test_balls_contain_the_value_at_more_bits(at_mu, at_v):
    got = evaluated(ALL, mu=at_mu, v=at_v)
    more, _ = ball_function(ALL, ["mu", "v"]).accurate_from(300, (at_mu, at_v), relative_bits=200)
    for value, ball in zip(got, more, strict=True):
        assert abs(arb(float(value)) - ball) <= math.ulp(value) + abs(ball) * arb(2) ** -190


def test_balls_agree_with_mpmath_on_a_grid():
    grid_mu, grid_v = (g.ravel() for g in np.meshgrid([-7.0, -0.5, 0.0, 3.0], [0.01, 1.0, 50.0]))
    got = evaluated(ALL, mu=grid_mu, v=grid_v)
    for i, (m, w) in enumerate(zip(grid_mu, grid_v, strict=True)):
        want = [*moments(sympy.Max(x, 0), m, w, digits=18), *partials(sympy.Max(x, 0), m, w, digits=18).values()]
        np.testing.assert_allclose(got[:, i], [float(value) for value in want], rtol=4e-16, atol=0)


def test_scaled_values_reach_where_float64_underflows():
    (ball,) = ball_function(Phi(mu), ["mu"]).accurate_from(64, [-1e4], floor_bits=1 << 62)[0]
    with mpmath.workdps(30):
        want = mpmath.ncdf(mpmath.mpf(-(10**4)))
        assert abs(midpoint(ball) / want - 1) < 1e-15


def test_the_small_tail_on_the_right_costs_no_bits():
    (ball,) = ball_function(RELU.partials["dvar_dmu"], ["mu", "v"]).accurate_from(64, [1e4, 1.0], floor_bits=1 << 62)[0]
    with mpmath.workdps(30):
        want = partials(sympy.Max(x, 0), 1e4, 1)["dvar_dmu"]
        assert abs(midpoint(ball) / want - 1) < 1e-15


def test_what_vanishes_by_symmetry_is_zero():
    assert evaluated(2 * Phi(mu / sympy.sqrt(v)) - 1, mu=0.0, v=3.0) == 0.0


def test_precision_is_left_as_it_was():
    before = flint.ctx.prec
    evaluated(ALL, mu=-9.0, v=2.0)
    assert flint.ctx.prec == before


def test_an_argument_may_bear_any_name():
    names = sympy.symbols("arb _t0 lambda")
    assert evaluated(names[0] + 2 * names[1] * names[2], **{"arb": 1.0, "_t0": 2.0, "lambda": 3.0}) == 13.0


def test_unknown_names_functions_and_values_are_refused():
    with pytest.raises(ValueError, match="got also v"):
        ball_function(mu + v, ["mu"])
    with pytest.raises(ValueError, match="no besselj"):
        ball_function(sympy.besselj(0, mu), ["mu"])
    with pytest.raises(ValueError, match="finite"):
        evaluated(mu, mu=float("inf"))
    with pytest.raises(ValueError, match="none came for v"):
        evaluate(ball_function(mu + v, ["mu", "v"]), {"mu": 1.0})


@pytest.mark.parametrize("at", [-1e4, -3.0, 0.0, 3.0, 1e4])
def test_softplus_and_dilogarithm_balls_agree_with_mpmath(at):
    y = sympy.Symbol("y", real=True)
    exprs = [sympy.log(1 + sympy.exp(y)), sympy.polylog(2, -sympy.exp(y)), phi(y)]
    balls = ball_function(exprs, ["y"]).accurate_from(64, [at], floor_bits=1 << 62)[0]
    with mpmath.workdps(40):
        z = mpmath.exp(mpmath.mpf(at))
        want = [mpmath.log1p(z), mpmath.polylog(2, -z), mpmath.npdf(mpmath.mpf(at))]
        for ball, value in zip(balls, want, strict=True):
            assert abs(midpoint(ball) / value - 1) < 1e-15


def test_the_fitted_leaky_relu_reaches_the_known_objective():
    # max over a of KL(N(m, exact var) || N(m, fitted var)): 0.03345 at the best t = 0.37576.
    slope, t = sympy.Rational(1, 100), 0.37576
    leaky = derive(Rule("leaky", f=sympy.Max(x, slope * x)))
    grid = np.linspace(-10, 10, 2001)
    true = evaluated(leaky.var, mu=grid, v=1.0)[0]
    fitted = 1e-4 + (1 - 1e-4) / (1 + np.exp(-grid / t))
    kl = 0.5 * (true / fitted - 1 - np.log(true / fitted))
    assert kl.max() == pytest.approx(0.033447, abs=2e-6)


def test_bits_that_served_one_point_are_as_good_as_those_that_the_next_would_find() -> None:
    at_mu = np.tile([0.5, -30.0, 1e-3, -12.0, 3.0], 20)  # some take twice the bits of others
    at_v = np.geomspace(1e-3, 40.0, at_mu.size)
    together = evaluated(ALL, mu=at_mu, v=at_v)
    alone = np.array([evaluated(ALL, mu=m, v=w) for m, w in zip(at_mu, at_v, strict=True)]).T
    assert np.all(np.abs(together - alone) <= np.spacing(np.abs(alone)))


def test_where_the_measure_does_not_look_nothing_is_evaluated():
    truth = ClosedFormTruth({"mean": mu / v}, inside=lambda mean, var: var > 0)
    values = truth(np.array([1.0, 2.0, -3.0], np.float32), np.array([0.0, 4.0, 2.0], np.float32), {})
    np.testing.assert_array_equal(values["mean"], [np.inf, 0.5, -1.5])
