"""Closed forms of rules of several inputs, against quadrature of f itself in two dimensions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import sympy
from sympy import Integer, Max

from momentgen.compiler.derive import derive_joint
from momentgen.errors import BuildError, RuleError
from momentgen.rule import Noise, Parameter, Rule, cov, mu1, mu2, v1, v2, x, x1, x2

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


def test_partials_are_named_after_the_inputs() -> None:
    derivation = derive_joint(Rule("product", f=x1 * x2, inputs=("x1", "x2")))
    assert set(derivation.partials) == {
        f"d{of}_d{by}{i}" for of, by, i in itertools.product(("mean", "var"), ("mu", "var"), (1, 2))
    }
    assert derivation.partials["dvar_dmu1"] == 2 * mu1 * v2


def test_an_author_s_mistake_is_refuted_with_the_point() -> None:
    with pytest.raises(BuildError, match=r"the rule's var is wrong, worst at mu1 = "):
        derive_joint(Rule("product", f=x1 * x2, inputs=("x1", "x2"), var=v1 * v2 + mu1**2 * v2))


@pytest.mark.parametrize(
    ("f", "cause"),
    [
        (sympy.exp(x1 * x2), r"a polynomial or Max\(x1, x2\)"),
        (Max(x1, x2, 0), r"beside Max\(x1, x2\) itself"),
        (Max(x1, x2) ** 2, r"beside Max\(x1, x2\) itself"),
    ],
    ids=str,
)
def test_what_is_outside_the_algebra_is_refused(f: sympy.Expr, cause: str) -> None:
    with pytest.raises(BuildError, match=cause):
        derive_joint(Rule("f", f=f, inputs=("x1", "x2")))


def test_rules_state_their_inputs() -> None:
    with pytest.raises(RuleError, match="unknown symbol x1; known are x"):
        Rule("f", f=x1 * x2)
    with pytest.raises(RuleError, match="inputs must be"):
        Rule("f", f=x1, inputs=("x1",))
    with pytest.raises(RuleError, match="a covariance needs two inputs"):
        Rule("f", f=x, covariance=True)
    with pytest.raises(RuleError, match="is taken by the op's own arguments"):
        Rule("f", f=x1 * x2, inputs=("x1", "x2"), parameters=(Parameter("var2", default=1.0),))
