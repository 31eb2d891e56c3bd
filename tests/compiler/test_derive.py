"""Closed forms against quadrature of f, in one dimension and in two."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import sympy
from compiler.forms import function
from hypothesis import given, settings
from hypothesis import strategies as st
from quadrature_truth import moments, partials
from real_rules import rules
from sympy import Abs, Integer, Max, Min, Piecewise, exp

from momentgen.compiler.derive import derive, derive_joint
from momentgen.compiler.derive.proof import disprove, grid
from momentgen.compiler.exact import ball_function
from momentgen.compiler.fit.special import midpoint
from momentgen.compiler.function.pieces import _OTHERS, rewritten
from momentgen.rule import (
    Accuracy,
    Noise,
    Parameter,
    Phi,
    Rule,
    S,
    a,
    cov,
    mu,
    mu1,
    mu2,
    phi,
    sigma,
    v,
    v1,
    v2,
    x,
    x1,
    x2,
)

# Derivation: closed forms against quadrature of f, and what stops a build.
RULES = rules()


def exact(expr, at_mu, at_v, digits=60):
    with mpmath.workdps(digits):
        return function(expr, [mu, v])(mpmath.mpf(at_mu), mpmath.mpf(at_v))


def assert_close(got, want, relative=1e-20, absolute=1e-20):
    assert abs(got - want) <= relative * abs(want) + absolute, (got, want)


@pytest.mark.parametrize("name", ["heaviside", "leaky_relu", "relu"])
def test_closed_forms_agree_with_quadrature_into_the_tails(name):
    rule = RULES[name]
    derivation = derive(rule)
    outputs = [derivation.mean, derivation.var, *derivation.partials.values()]
    closed = ball_function(outputs, ["mu", "v", *rule.defaults])
    for at in (-30.0, 30.0, -1e4, 1e4, 0.0, 0.75):
        balls = closed.accurate_from(64, [at, 1.0, *rule.defaults.values()], floor_bits=1 << 62)[0]
        direct = [*moments(rule.f, at, 1.0, rule.defaults), *partials(rule.f, at, 1.0, rule.defaults).values()]
        for ball, want in zip(balls, direct, strict=True):
            assert_close(midpoint(ball), want, relative=3e-16, absolute=1e-30 if at == 0 else 0)


coefficients = st.integers(-3, 3).map(sympy.Integer)
polynomials = st.lists(coefficients, min_size=1, max_size=3).map(lambda c: sum(k * x**i for i, k in enumerate(c)))
exponentials = st.tuples(coefficients, st.integers(-2, 2)).map(lambda t: t[0] * exp(sympy.Rational(t[1], 2) * x))
branches = st.tuples(polynomials, exponentials).map(lambda t: sympy.Add(*t))
kinks = st.lists(st.integers(-4, 4), min_size=1, max_size=2, unique=True).map(sorted)


@st.composite
def activations(draw):
    points = draw(kinks)
    pairs = [(draw(branches), x < k) for k in points]
    return sympy.sympify(Piecewise(*pairs, (draw(branches), True)))


@settings(max_examples=2, deadline=None)
@given(
    activations().filter(lambda f: f.has(x)), st.sampled_from([-2.0, 0.25, 3.0]), st.sampled_from([0.0625, 1.0, 4.0])
)
def test_any_piecewise_polynomial_with_exponentials_agrees_with_quadrature(f, at_mu, at_v):
    derivation = derive(Rule("f", f=f))
    mean, var = moments(f, at_mu, at_v, digits=20)
    assert_close(exact(derivation.mean, at_mu, at_v), mean, relative=1e-16, absolute=1e-16)
    assert_close(exact(derivation.var, at_mu, at_v), var, relative=1e-16, absolute=1e-16)


@pytest.mark.parametrize(
    "f",
    [
        sympy.cosh(x),
        exp(-(x**2)),
        sympy.sin(x),
        x * Max(0, Min(6, x + 3)) / 6,
        exp(-Abs(x)),
        Abs(Abs(x) - 1),
        x * exp(-x) * sympy.Heaviside(x, 1),
        sympy.sign(x) * x**2,
        pytest.param(phi(x) * x, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_moments_and_partials_agree_with_quadrature(f):
    derivation = derive(Rule("f", f=f))
    want = partials(f, 0.5, 2.0, digits=20)
    for name, expr in derivation.partials.items():
        assert_close(exact(expr, 0.5, 2.0), want[name], relative=1e-15, absolute=1e-16)
    mean, var = moments(f, 0.5, 2.0, digits=20)
    assert_close(exact(derivation.mean, 0.5, 2.0), mean, relative=1e-15, absolute=1e-16)
    assert_close(exact(derivation.var, 0.5, 2.0), var, relative=1e-15, absolute=1e-16)


def test_a_kink_may_depend_on_a_parameter():
    bound = Parameter("bound", default=1.0, low=0.1, high=10.0)
    rule = Rule("clip", f=Max(-bound.symbol, Min(bound.symbol, x)), parameters=(bound,))
    derivation = derive(rule)
    assert derivation.kinks == (-bound.symbol, bound.symbol)
    for width in (0.5, 3.0):
        mean, _ = moments(rule.f, 0.3, 1.5, {"bound": width})
        with mpmath.workdps(40):
            got = function(derivation.mean, [mu, v, bound.symbol])(*map(mpmath.mpf, (0.3, 1.5, width)))
        assert_close(got, mean)


def test_a_right_form_in_another_basis_is_not_refuted():
    mean = mu * sympy.erfc(-mu / sympy.sqrt(2 * v)) / 2 + sympy.sqrt(v / (2 * sympy.pi)) * exp(-(mu**2) / (2 * v))
    exact = derive(Rule("relu", f=Max(x, 0), mean=mean)).mean
    assert disprove(mean, exact, grid()) is None
    assert disprove(mu - mu * Phi(-a) + sigma * phi(-a), exact, grid()) is None


def test_a_form_whose_terms_cancel_by_100000_digits_is_not_refuted():
    # exp(v/2) Phi(-sqrt(v)) and its mirror image, at v = 1e6: only balls tell rounding from a difference.
    left = exp(v / 2) * (1 - Phi(mu / sigma + sigma))
    assert disprove(left, exp(v / 2) * Phi(-mu / sigma - sigma), grid()) is None
    assert disprove(left, exp(v / 2) * Phi(-mu / sigma - sigma) * (1 + v / 10**9), grid()) is not None


@pytest.mark.parametrize("name", ["ap2a", "ap2b", "pea", "practical", "large_variance"])
def test_the_approximations_of_the_logistic_transform_are_near_it(name):
    variant = RULES["logistic_transform"].variants[name]
    for at_v in (4.0, 9.0):
        mean, var = moments(S(x), 0.5, at_v, digits=15)
        assert_close(exact(variant.mean, 0.5, at_v), mean, relative=0, absolute=0.02)
        assert_close(exact(variant.var, 0.5, at_v), var, relative=0.3, absolute=0)


def test_the_pea_mean_is_that_of_the_piecewise_exponential():
    half = sympy.Rational(1, 2)
    laplace = Piecewise((half * 2**x, x < 0), (1 - half * 2**-x, True))
    derived = derive(Rule("pea", f=laplace)).mean
    assert disprove(derived, RULES["logistic_transform"].variants["pea"].mean, grid()) is None


def test_moments_of_a_gaussian_far_from_0_stay_short():
    """Multiplied out, the last partial has 133,000 characters, and comparing it takes a minute."""
    derivation = derive(Rule("bump", f=x**2 * sympy.exp(-5 * (x - 1) ** 2)))
    assert max(expr.count_ops() for expr in derivation.partials.values()) < 1000
    mean, var = moments(derivation.rule.f, 0.3, 1.5)
    with mpmath.workdps(40):
        at = [mpmath.mpf("0.3"), mpmath.mpf("1.5")]
        assert_close(function(derivation.mean, [mu, v])(*at), mean, relative=1e-14)
        assert_close(function(derivation.var, [mu, v])(*at), var, relative=1e-14)


@pytest.mark.parametrize(
    "f",
    [
        lambda k: Max(x, 0) / (k + Max(x, 0)),
        lambda k: x**2 / (k**2 + x**2),
        lambda k: k * x / (k + Abs(x)),
        lambda k: Max(x, 0) / (1 + k * Max(x, 0)),
    ],
)
def test_a_parameter_that_f_has_one_degree_with_is_its_unit(f):
    k = Parameter("K", default=2.0, low=0.25, high=4.0)
    units = derive(Rule("hill", f=f(k.symbol), parameters=(k,), accuracy=Accuracy(moments=True))).units
    assert units is not None
    assert units.of.free_symbols == {x}
    for at, value in ((-1.3, 0.5), (0.4, 3.0), (7.0, 1.7)):
        own = {k.symbol: value, x: at}
        inner = (at - units.centre.subs(own)) / units.width.subs(own)
        found = units.scale * units.of.subs(x, inner) + units.offset
        assert abs(sympy.N(found.subs(own) - f(k.symbol).subs(own))) < 1e-12


def test_rarer_functions_are_those_that_all_stages_know() -> None:
    inside = x / sympy.sqrt(2 + x**2)
    for rare in _OTHERS:
        f = rare(inside if rare in (sympy.asin, sympy.acos, sympy.atanh) else x)
        known = rewritten(f)
        assert not known.atoms(*_OTHERS)
        for at in (sympy.Rational(-7, 3), sympy.Rational(1, 5), sympy.Integer(4)):
            assert abs(sympy.N(known.subs(x, at) - f.subs(x, at), 30)) < 1e-20, f


# Closed forms of rules of several inputs, against quadrature of f itself in two dimensions.
POINTS = ((0.7, 1.0, -0.4, 2.25), (-1.0, 0.25, 0.5, 0.36), (0.0, 1.0, 0.0, 1.0))


def quadrature(f: sympy.Expr, point: tuple[float, ...], c: float = 0.0) -> tuple[float, float]:
    """E f and Var f by Gauss and Legendre: over x2 given x1, split where f has its kink x1 = x2, then over x1."""
    m1, v1_, m2, v2_ = point
    slope = c / v1_
    rest = np.sqrt(v2_ - slope * c)
    call = sympy.lambdify([x1, x2], f, [{"amax": lambda pair: np.maximum(*pair)}, "numpy"])
    nodes, weights = np.polynomial.legendre.leggauss(96)
    z, outer = 10 * nodes, 10 * weights * _density(10 * nodes)
    one = (m1 + np.sqrt(v1_) * z)[:, None]
    centre = m2 + slope * (one - m1)
    kink = np.clip((one - centre) / rest, -10, 10)
    moments = np.zeros(2)
    for low, high in ((-10.0, kink), (kink, 10.0)):
        half = (high - low) / 2
        w = (high + low) / 2 + half * nodes
        value = call(one, centre + rest * w)
        for power in (1, 2):
            moments[power - 1] += outer @ (half * (weights * _density(w) * value**power)).sum(axis=1)
    return float(moments[0]), float(moments[1] - moments[0] ** 2)


def _density(z: np.ndarray) -> np.ndarray:
    return np.exp(-z * z / 2) / np.sqrt(2 * np.pi)


@pytest.mark.parametrize("f", [x1 * x2, x1 - x2, Max(x1, x2)], ids=str)
@pytest.mark.parametrize("c", [0.0, -0.2, 0.25])
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_closed_forms_are_the_integrals(f: sympy.Expr, c: float, point: tuple[float, ...]) -> None:
    derivation = derive_joint(Rule("f", f=f, inputs=("x1", "x2"), covariance=c != 0))
    at = dict(zip((mu1, v1, mu2, v2, cov), (*point, c), strict=True))
    for expr, exact in zip((derivation.mean, derivation.var), quadrature(f, point, c), strict=True):
        assert float(sympy.N(expr.subs(at), 20)) == pytest.approx(exact, rel=1e-9)


def test_a_noise_enters_by_its_two_moments() -> None:
    p = Parameter("p", default=0.5, low=0, high=0.9)
    noise = Noise("z", mean=Integer(1), var=p.symbol / (1 - p.symbol))
    derivation = derive_joint(Rule("drop", f=x * noise.symbol, noise=noise, parameters=(p,)))
    # A Bernoulli variable by its definition: z is 0 with probability p, else 1/(1 - p).
    share = sympy.Rational(1, 5)
    mean, second = (
        sum(weight * z**n * moment for weight, z in ((share, Integer(0)), (1 - share, 1 / (1 - share))))
        for n, moment in ((1, Integer(3)), (2, Integer(3) ** 2 + 2))
    )
    symbols = {s.name: s for s in derivation.var.free_symbols}
    at = {symbols["mu"]: 3, symbols["v"]: 2, symbols["p"]: share}
    assert derivation.mean.subs(at) == mean
    assert derivation.var.subs(at) == second - mean**2
