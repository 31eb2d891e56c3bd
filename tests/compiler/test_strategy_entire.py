"""Sums of polynomial, exponential and trigonometric terms: the algebra, the graphs, and what they are measured by."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import sympy as sp
from compiler.forms import SIX, in_float32, in_float64, stable_of
from hypothesis import given, settings
from hypothesis import strategies as st

from momentgen.compiler.derive import derive
from momentgen.compiler.exact import ball_function, evaluate
from momentgen.compiler.function.pieces import split
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.elementary.entire_measure import TermsMeasure
from momentgen.compiler.strategies.elementary.exponentials import exponential_terms
from momentgen.rule import Rule, x

SNAKE = x + sp.sin(x) ** 2
STEADY = (SNAKE, sp.sin(x) + x / 2, x + sp.sin(sp.Rational(3, 10) * x) ** 2 * sp.Rational(10, 3))
GROWING = (
    x * sp.exp(x),
    sp.cosh(x),
    sp.exp(-x) + x**2,
    x * sp.sin(x),
    sp.exp(x) * sp.sin(x),
    x**3 - x,
)
T5 = 16 * x**5 - 20 * x**3 + 5 * x
named = pytest.mark.parametrize("f", [*STEADY, *GROWING], ids=str)


# --- the algebra -------------------------------------------------------------------
_RATES = [0, 1, -1, sp.Rational(1, 2), sp.I, 2 * sp.I, 1 + sp.I]


@settings(max_examples=12, deadline=None)
@given(
    terms=st.lists(
        st.tuples(st.integers(-3, 3), st.integers(0, 3), st.sampled_from(_RATES)), min_size=1, max_size=3, unique=True
    ),
    mean=st.floats(-2, 2),
    var=st.floats(0.01, 2),
)
def test_expectations_of_random_sums_and_their_squares_are_those_of_quadrature(
    terms: list[tuple[int, int, sp.Expr]], mean: float, var: float
) -> None:
    f = sum(sp.re(c * x**n * sp.exp(b * x)) for c, n, b in terms) + 0 * x
    found = exponential_terms(f)
    assert found is not None
    g = sp.lambdify(x, f, "mpmath")
    with mpmath.workdps(25):
        sigma = mpmath.sqrt(var)
        for power, moment in ((1, found.expectation()), (2, found.squared().expectation())):
            quadrature = mpmath.quad(
                lambda z, power=power: g(mean + sigma * z) ** power * mpmath.npdf(z), mpmath.linspace(-24, 24, 25)
            )
            assert abs(moment.at(mpmath.mpf(mean), mpmath.mpf(var)) - quadrature) < 1e-15 * (1 + abs(quadrature))


@named
def test_derivatives_of_the_moments_are_those_of_sympy(f: sp.Expr) -> None:
    derivation = derive(Rule("mine", f=f))
    terms = exponential_terms(f)
    assert terms is not None
    mean = terms.expectation()
    var = terms.squared().expectation() - mean * mean
    found = {"dmean_dmu": mean.derivative(0), "dmean_dvar": mean.derivative(1)}
    found |= {"dvar_dmu": var.derivative(0), "dvar_dvar": var.derivative(1)}
    mu, v = sp.symbols("mu", real=True), sp.symbols("v", positive=True)
    for name, moment in found.items():
        expected = sp.N(derivation.partials[name].subs({mu: sp.Rational(3, 7), v: sp.Rational(2, 5)}), 30)
        with mpmath.workdps(30):
            assert mpmath.almosteq(moment.at(mpmath.mpf(3) / 7, mpmath.mpf(2) / 5), mpmath.mpf(expected), 1e-25), name


@pytest.mark.parametrize("f", [sp.tanh(x), sp.exp(x**2), x ** sp.Rational(3, 2), sp.sin(x**2), 1 / x, sp.exp(x) / x])
def test_what_is_no_such_sum_is_left_to_others(f: sp.Expr) -> None:
    assert exponential_terms(f) is None


def test_floats_in_f_are_the_fractions_that_they_are() -> None:
    (piece,) = split(sp.sin(0.3 * x) ** 2 / 0.3)
    assert not piece.expr.atoms(sp.Float)
    assert float(piece.expr.subs(x, 2)) == pytest.approx(np.sin(0.3 * 2) ** 2 / 0.3, rel=1e-15)


# --- the graphs --------------------------------------------------------------------
@pytest.mark.parametrize(("f", "at"), [(SNAKE, -sp.pi / 4), (x * sp.exp(x), -1), (sp.cosh(x), 0)], ids=str)
def test_where_f_is_flat_the_variance_at_small_variances_is_relatively_accurate(f: sp.Expr, at: sp.Expr) -> None:
    """There V is of the order v², and a difference of moments would be noise."""
    stable, var = stable_of(f), np.array([1e-3, 1e-6, 1e-9], np.float32)
    mean = np.full(3, float(at), np.float32)
    got = in_float64(stable, mean, var)["var"]
    assert np.allclose(got, stable.truth(mean, var, {})["var"], rtol=1e-5, atol=0)


def test_a_sine_at_a_rate_that_single_floats_do_not_hold_keeps_its_angle_far_out() -> None:
    stable = stable_of(STEADY[2])
    mean = np.array([1.2e6, -9.876543e5, 3.3e5], np.float32)
    values = in_float32(stable, mean, np.full(3, 0.01, np.float32), double=True)
    exact = stable.truth(mean, np.full(3, 0.01, np.float32), {})
    assert np.abs(values["dmean_dmu"] - exact["dmean_dmu"]).max() < 1e-6


@pytest.mark.parametrize(("f", "edge"), [(sp.exp(-3 * x), 1e6 / 3), (sp.sin(x), 1e6)], ids=str)
def test_the_certificates_domain_ends_where_nothing_is_measured(f: sp.Expr, edge: float) -> None:
    (stable,) = stabilise(derive(Rule("mine", f=f)))
    assert stable.domain["mean"].endswith(f"|mean| <= {edge:g}")
    mean = np.array([-0.999 * edge, -1.01 * edge], np.float32)
    exact = stable.truth(mean, np.full(2, 1e-6, np.float32), {})["var"]
    wrong = np.full(2, 12.25, np.float32)  # measured up to there, and beyond not
    error = stable.measure("mean", wrong, np.array([1.0, exact[1]]), mean, np.full(2, 1e-6, np.float32))
    assert error[0] > 1
    assert error[1] == 0
    assert np.isinf(exact[1])


@pytest.mark.parametrize("f", [sp.exp(-2 * x), x**2, x**4], ids=str)
def test_a_rate_that_is_a_power_of_two_and_polynomials_are_measured_everywhere(f: sp.Expr) -> None:
    stable = stable_of(f)
    assert not stable.edge.words
    mean, var = np.array([-3e38, 3e38], np.float32), np.ones(2, np.float32)
    assert not np.isinf(
        stable.measure("mean", np.full(2, 3.4028235e38, np.float32), np.full(2, np.inf), mean, var)
    ).any()
    for wrong in (-np.inf, np.inf, 1e38, 0.0):
        error = stable.measure("mean", np.full(2, wrong, np.float32), np.full(2, np.inf), mean, var)
        assert (error > 1).all(), wrong


# --- beyond range ------------------------------------------------------------------
OVERFLOWING = (sp.exp(x) - x, sp.sinh(x), x * sp.exp(x), sp.exp(-2 * x) - sp.exp(x), x**4, T5, sp.exp(3 * x))


@pytest.mark.parametrize("f", OVERFLOWING, ids=str)
@pytest.mark.parametrize("form", ["double", "float64"])
def test_beyond_range_outputs_are_the_largest_number_of_the_right_sign(f: sp.Expr, form: str) -> None:
    stable = stable_of(f)
    means, variances = (
        [-3e38, -1e10, -700.0, -60.0, 0.5, 60.0, 90.0, 3e5, 1e30],
        [0.0, 1e-30, 1e-3, 1.0, 60.0, 2e5, 1e30],
    )
    mean, var = (axis.ravel().astype(np.float32) for axis in np.meshgrid(means, variances))
    exact = ball_function(list(stable_outputs(f).values()), ["mu", "v"])
    positive = var > 0
    want = dict(
        zip(
            SIX,
            evaluate(exact, {"mu": mean[positive].astype(float), "v": var[positive].astype(float)}),
            strict=True,
        )
    )
    largest = np.finfo(np.float64 if form == "float64" else np.float32).max
    values = in_float64(stable, mean, var) if form == "float64" else in_float32(stable, mean, var, double=True)
    inside = stable.edge.inside(mean.astype(np.float64), var.astype(np.float64))
    for name in SIX:
        assert not np.isinf(values[name]).any(), name
        assert not (np.isnan(values[name]) & inside).any(), name
        got, beyond = values[name][positive], np.abs(want[name]) > largest
        known = beyond & ~np.isnan(got)
        # What is beyond range next to a zero of the output is a difference of terms, and measured by them.
        error = stable.measure(
            name,
            np.clip(got, -3.4028235e38, 3.4028235e38).astype(np.float32),
            want[name],
            mean[positive],
            var[positive],
        )
        assert ((got == np.sign(want[name]) * largest) | (error <= 0.3))[known].all(), name
        near = ~beyond & ~np.isnan(got)
        assert (error[near] <= 0.3).all(), name


def stable_outputs(f: sp.Expr) -> dict[str, sp.Expr]:
    derivation = derive(Rule("mine", f=f))
    return {"mean": derivation.mean, "var": derivation.var, **derivation.partials}


def test_the_variance_of_a_difference_of_terms_beyond_range_is_not_0() -> None:
    """exp(x) - x at (60, 1): 6e52."""
    stable, at = stable_of(sp.exp(x) - x), (np.array([60.0], np.float32), np.ones(1, np.float32))
    single, double = in_float32(stable, *at, double=False), in_float64(stable, *at)
    assert double["var"][0] == pytest.approx(6.0915e52, rel=1e-4)
    assert single["var"][0] == np.finfo(np.float32).max
    assert single["dvar_dmu"][0] == single["dvar_dvar"][0] == np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("f", "mean"), [(sp.sin(30 * x), 1e5), (sp.sin(x), 3e6), (sp.cos(x), -3e6), (x + sp.sin(x), 3e6)], ids=str
)
def test_an_angle_without_digits_gives_nan_in_outputs_and_partials(f: sp.Expr, mean: float) -> None:
    stable, at = stable_of(f), (np.array([mean], np.float32), np.ones(1, np.float32))
    assert stable.edge.words
    assert not stable.edge.inside(at[0].astype(np.float64), at[1].astype(np.float64)).any()
    for values in (in_float32(stable, *at, double=False), in_float64(stable, *at)):
        assert all(np.isnan(values[name]).all() for name in SIX)


def test_an_exponent_whose_parts_cancel_far_out_gives_nan_and_others_their_limits() -> None:
    stable = stable_of(sp.exp(3 * x))
    mean, var = np.array([-1e9, -1e9, 1e9], np.float32), np.array([2e9 / 3, 1.0, 1.0], np.float32)
    for values, largest in (
        (in_float32(stable, mean, var, double=False), np.finfo(np.float32).max),
        (in_float64(stable, mean, var), np.finfo(np.float64).max),
    ):
        assert np.isnan(values["mean"][0])
        assert values["mean"][1] == 0 == values["var"][1]
        assert values["mean"][2] == largest == values["var"][2]


def test_x_to_the_fourth_keeps_the_half_of_a_curvature_whose_double_overflows() -> None:
    """E f''/2 = 6 (mu² + v)."""
    mean, var = np.array([6e18], np.float32), np.ones(1, np.float32)
    values = in_float32(stable_of(x**4), mean, var, double=False)
    assert values["dmean_dvar"][0] == pytest.approx(6 * float(mean[0]) ** 2, rel=1e-6)


# --- the tolerance -----------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(mean=st.floats(-5, 5), log_var=st.floats(-20, 2))
def test_sizes_of_growing_functions_bound_what_they_are_the_size_of(mean: float, log_var: float) -> None:
    at, var = np.array([mean], np.float32), np.array([2.0**log_var], np.float32)
    for f in (x * sp.exp(x), sp.cosh(x), x**3 - x):
        stable, terms = stable_of(f), exponential_terms(f)
        assert terms is not None
        measure = TermsMeasure.of(terms)
        exact = stable.truth(at, var, {})
        for name in SIX:
            share = {"mean": 1e-6, "var": 1e-5}.get(name, 1e-4)
            size = measure.allowed(name, exact[name], at.astype(np.float64), var.astype(np.float64)) / share
            # The variance of n terms is at most n times that of independent ones, and a covariance its geometric mean.
            assert abs(exact[name][0]) <= 2 * size[0] * (1 + 1e-9), (f, name)


def test_for_one_exponential_the_size_of_the_variance_is_the_variance() -> None:
    terms = exponential_terms(sp.exp(2 * x))
    assert terms is not None
    measure = TermsMeasure.of(terms)
    mean, var = np.array([-1.0, 0.0, 3.0]), np.array([1e-6, 0.1, 5.0])
    exact = np.exp(4 * mean + 8 * var) * -np.expm1(-4 * var)
    ratio = measure.allowed("var", exact, mean, var) / (1e-5 * exact)
    assert (ratio >= 1).all()
    assert (ratio <= 1.6).all()
