"""The oracle: its sources agree with each other, and sums over nodes are right by C and by NumPy."""

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
from quadrature_truth import moments

from momentgen.compiler.derive import derive
from momentgen.compiler.exact import ClosedFormTruth, ball_function, evaluate, smoothing_sums
from momentgen.compiler.exact.smoothing_sums import ORDERS, density_sums
from momentgen.compiler.fit.special import midpoint
from momentgen.native.c_compiler import find_compiler
from momentgen.rule import Phi, Rule, S, mu, phi, v, x
from momentgen.sign_change import NAMES, TERMS, expand, truncated_moment

# The oracle: its sources agree with each other and with what is known.
RELU = derive(Rule("relu", f=sympy.Max(x, 0)))
ALL = [RELU.mean, RELU.var, *RELU.partials.values()]


def evaluated(expr, **values):
    return evaluate(ball_function(expr, values), values)


def test_quadrature_sees_a_narrow_piece_whose_nearest_point_is_a_zero():
    sigma, knots = mpmath.sqrt(1000), ((-1, 1), (0, -2), (1, 1))  # a hat as a sum of c relu(x - k)
    with mpmath.workdps(30):
        exact = sum(c * (sigma * mpmath.npdf(k / sigma) - k * mpmath.ncdf(-k / sigma)) for k, c in knots)
    mean, _ = moments(sympy.Max(0, 1 - sympy.Abs(x)), 0, 1000, digits=15)
    assert abs(mean - exact) < 1e-12 * exact


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
def test_softplus_and_the_normal_law_agree_with_mpmath_also_where_float64_underflows(at):
    y = sympy.Symbol("y", real=True)
    exprs = [sympy.log(1 + sympy.exp(y)), phi(y), Phi(y)]
    balls = ball_function(exprs, ["y"]).accurate_from(64, [at], floor_bits=1 << 62)[0]
    with mpmath.workdps(40):
        z = mpmath.mpf(at)
        want = [mpmath.log1p(mpmath.exp(z)), mpmath.npdf(z), mpmath.ncdf(z)]
        for ball, value in zip(balls, want, strict=True):
            assert abs(midpoint(ball) / value - 1) < 1e-15


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


# Sums over nodes of the normal density and its derivatives: right, and the same by C and by NumPy.
NODES = np.sort(np.random.default_rng(0).uniform(-9, 4, 333))
VALUES = np.random.default_rng(1).normal(size=(2, 333))
POINTS = np.array([-300.0, -11.0, -2.5, 0.0, 3.9, 7.0, 50.0])


@pytest.mark.parametrize("sigma", [0.05, 0.7, 6.0, 1e4])
def test_sums_are_right(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with mpmath.workdps(40):
        exact = np.zeros((2, ORDERS, POINTS.size))
        size = np.zeros_like(exact)
        for i, u in enumerate(POINTS.tolist()):
            density = [mpmath.npdf(mpmath.mpf(u), node, sigma) for node in NODES.tolist()]
            z = [(mpmath.mpf(u) - node) / sigma for node in NODES.tolist()]
            for j, he in enumerate((lambda z: 1, lambda z: -z, lambda z: z * z - 1, lambda z: 3 * z - z**3)):
                for k in range(2):
                    terms = [w * d * he(a) / sigma**j for w, d, a in zip(VALUES[k].tolist(), density, z, strict=True)]
                    exact[k, j, i], size[k, j, i] = float(mpmath.fsum(terms)), float(mpmath.fsum(map(abs, terms)))
    for compiler in (find_compiler(), None):
        monkeypatch.setattr(smoothing_sums, "find_compiler", lambda compiler=compiler: compiler)
        found = density_sums(POINTS, np.full(POINTS.size, sigma), NODES, VALUES)
        assert (np.abs(found - exact) <= 3e-13 * size + 1e-290).all()


def test_no_nodes_that_count_give_0() -> None:
    found = density_sums(POINTS, np.ones(POINTS.size), NODES, np.zeros((2, NODES.size)))
    assert found.shape == (2, ORDERS, POINTS.size)
    assert not found.any()


# The expansion about a mean's sign change: the root, its square to many digits, and the Taylor polynomial.
def leaky_mean(slope: str):
    """E max(x, slope·x) at a = -t, sigma = 1."""
    with mpmath.workdps(50):
        al = mpmath.mpf(slope)

    def function(t):
        return -al * t + (1 - al) * (mpmath.npdf(t) - t * mpmath.erfc(t / mpmath.sqrt(2)) / 2)

    return function


def words(values: tuple[float, ...]) -> dict[str, mpmath.mpf]:
    with mpmath.workdps(60):
        return {n: mpmath.mpf(values[2 * i]) + mpmath.mpf(values[2 * i + 1]) for i, n in enumerate(NAMES)}


@pytest.mark.parametrize("slope", ["0.01", "0.3", "0.0001", "0.9", "1e-30"])
def test_root_and_polynomial_of_a_leaky_mean(slope: str) -> None:
    function = leaky_mean(slope)
    found = words(expand(function))
    with mpmath.workdps(60):
        # Newton from what was found, to all digits.
        root = mpmath.findroot(function, found["sign_at"], tol=mpmath.mpf(10) ** -110)
        assert abs(found["sign_at"] / root - 1) < 2.0**-47
        square = found["sign_square"] + found["sign_square_rest"]
        assert abs(square / root**2 - 1) < mpmath.mpf("1e-27")
        width = found["sign_width"]
        assert 0 < width <= 0.25
        scale = abs(mpmath.diff(function, root))
        for k in range(-8, 9):
            d = width * k / 8
            polynomial = mpmath.polyval([found[f"sign_taylor{i}"] for i in reversed(range(TERMS))], d)
            assert abs(d * polynomial - function(root + d)) <= 1e-9 * scale * max(abs(d), mpmath.mpf(10) ** -20)


@pytest.mark.parametrize("function", [lambda t: 1 + t, lambda t: -1 / (1 + t), lambda t: t])
def test_without_a_sign_change_the_interval_is_empty(function) -> None:
    values = expand(function)
    assert values[0] == -1.0
    assert set(values[1:]) == {0.0}
    assert len(values) == 2 * len(NAMES)


def test_words_are_float32_numbers_whose_second_is_a_rounding_error_of_the_first() -> None:
    values = expand(leaky_mean("0.01"))
    for hi, lo in zip(values[::2], values[1::2], strict=True):
        assert abs(lo) <= abs(hi) * 2.0**-24
        assert float(mpmath.mpf(hi)) == hi


@pytest.mark.parametrize("n", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("t", [0, 0.5, 3, 18, 40])
def test_truncated_moments_are_their_integrals(n: int, t: float) -> None:
    with mpmath.workdps(30):
        if n < 0:
            want = mpmath.mpf(1)
        else:
            want = mpmath.quad(lambda x: x**n * mpmath.exp(-t * x - x * x / 2), [0, 0.1, 1, 4, 12]) / mpmath.factorial(
                n
            )
        assert abs(truncated_moment(n, t) / want - 1) < 1e-24


def test_a_sign_change_of_the_other_side_comes_with_a_negative_place() -> None:
    def other(t):
        return t - 2

    left, right = words(expand(lambda t: 1 + t, other)), words(expand(other))
    assert left["sign_at"] == -right["sign_at"] == -2
    assert {n: w for n, w in left.items() if n != "sign_at"} == {n: w for n, w in right.items() if n != "sign_at"}
    assert expand(other, lambda t: t - 3) == expand(other)
    assert expand(lambda t: 1 + t, lambda t: 2 + t)[0] == -1.0
