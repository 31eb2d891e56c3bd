r"""f(mu) itself on a graph of real operations, to a few ulp of float32: what the mean is at v = 0.

Written from the expression, function by function, each in a form that neither cancels nor overflows; E = exp(-|g|):

    S(g) = 1/(1 + E) or E/(1 + E)             tanh g = ±(1 - E²)/(1 + E²), near 0 a polynomial
    log(1 + exp g) = max(g, 0) + 2 atanh(E/(2 + E))
    1 + tanh g = 2 S(2g)
    tanh(log(1 + exp g)) = n/(n + 2), n = exp(g) (exp(g) + 2), for g >= 0 divided by exp(2g)
    Phi(g) by the Mills ratio                 erf g = 2 Phi(sqrt(2) g) - 1, near 0 a polynomial

An f of other functions has no such form (None): its mean at v = 0 is as near to f(mu) as the tolerance asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mpmath
import sympy as sp

from momentgen.compiler.fit import Polynomial, lowest_degree
from momentgen.compiler.ir.graph import Graph, Real, horner, madd, select
from momentgen.compiler.ir.kit import held_exp, number, tail_ratio
from momentgen.errors import BuildError
from momentgen.rule.symbols import Phi, S, x

_LEAST = -87.25  # exp of it is still a normal float32
_FIT = 1e-8
_FARTHEST, _LOST = 20, 8  # powers of 2 that sums are looked at, and how many times its value a term may be
_NEAR = {"tanh": 0.55, "erf": 0.75}  # below it a polynomial
_FUNCTIONS = (S, Phi, sp.tanh, sp.erf)


def _is_softplus(expr: sp.Expr) -> sp.Expr | None:
    """g, where the expression is log(1 + exp(g))."""
    if isinstance(expr, sp.log) and isinstance(expr.args[0], sp.Add):
        rest = expr.args[0] - 1
        if isinstance(rest, sp.exp):
            return rest.args[0]
    return None


def has_point_form(expr: sp.Expr) -> bool:
    """Whether every function in an expression of x has a form here.

    >>> has_point_form(x * S(x)), has_point_form(sp.atan(x))
    (True, False)
    >>> has_point_form(sp.log(1 + sp.exp(x)) - sp.log(1 + sp.exp(x - 1)))
    False
    """
    inner = _is_softplus(expr)
    if inner is not None:
        return has_point_form(inner)
    if expr == x or expr.is_number:
        return True
    if isinstance(expr, sp.Pow):
        return bool(expr.exp.is_Integer and expr.exp > 0) and has_point_form(expr.base)
    if isinstance(expr, sp.Add) and _cancels(expr):
        return False
    return isinstance(expr, (sp.Add, sp.Mul, *_FUNCTIONS)) and all(has_point_form(part) for part in expr.args)


def _cancels(total: sp.Add) -> bool:
    """Whether terms of a sum are far larger than what they leave, as those of log(1 + exp x) - log(1 + exp(x - 1))."""
    for at in (sign * sp.Integer(2) ** k for k in range(_FARTHEST) for sign in (-1, 1)):
        terms = [abs(sp.N(term.subs(x, at))) for term in total.args]
        if max(terms) > _LOST * max(1, abs(sp.N(total.subs(x, at)))):
            return True
    return False


@lru_cache
def _near_zero(name: str) -> Polynomial:
    """P with f(g) = g P(g²) near 0."""
    function: Callable[[Any], Any] = getattr(mpmath, name)

    def target(h: Any) -> Any:
        root = mpmath.sqrt(h)
        return function(root) / root if root > 0 else mpmath.diff(function, 0)

    return _lowest(target, mpmath.mpf(_NEAR[name]) ** 2, f"{name}(g)/g in g², |g| <= {_NEAR[name]}")


@lru_cache
def _log1p() -> Polynomial:
    """P with 2 atanh(s) = s P(s²), s <= 1/3."""

    def target(h: Any) -> Any:
        root = mpmath.sqrt(h)
        return 2 * mpmath.atanh(root) / root if root > 0 else mpmath.mpf(2)

    return _lowest(target, mpmath.mpf(1) / 9, "2 atanh(s)/s in s², s <= 1/3")


def _lowest(target: Callable[[Any], Any], end: Any, what: str) -> Polynomial:
    return lowest_degree(target, (mpmath.mpf(0), end), range(2, 16), _FIT, what)


class PointWriter:
    """Writes expressions of x on a graph, at the node of x."""

    def __init__(self, graph: Graph, at: Real) -> None:
        self.g, self.at = graph, at
        self.fits: list[Polynomial] = []

    def node(self, expr: sp.Expr) -> Real:
        """The value of ``expr``.

        Raises:
            BuildError: if :func:`has_point_form` does not hold.
        """
        inner = _is_softplus(expr)
        if inner is not None:
            return self.softplus(self.node(inner))
        if expr.is_number:
            return number(self.g, expr)
        if expr == x:
            return self.at
        if isinstance(expr, sp.Add) and len(expr.args) == 2 and expr.args[0] == 1 and isinstance(expr.args[1], sp.tanh):
            return 2 * self.logistic(self.node(2 * expr.args[1].args[0]))
        if isinstance(expr, sp.Add):
            constant, rest = expr.as_coeff_Add()
            total = self.node(constant)
            for part in sp.Add.make_args(rest):
                total = total + self.node(part)
            return total
        if isinstance(expr, sp.Mul):
            constant, rest = expr.as_coeff_Mul()
            total = self.node(constant)
            parts = sp.Mul.make_args(rest)
            powers = [part for part in parts if part.is_Pow and part.base == x]
            for part in parts:
                if part not in powers:
                    total = self.node(part) * total
            for power in powers:  # an x at a time, last: x² overflows where what decays with x is 0
                for _ in range(int(power.exp)):
                    total = self.at * total
            return total
        if isinstance(expr, sp.Pow) and expr.exp.is_Integer and expr.exp > 0:
            base = self.node(expr.base)
            return math.prod([base] * (int(expr.exp) - 1), start=base)
        if isinstance(expr, sp.tanh) and (within := _is_softplus(expr.args[0])) is not None:
            return self.tanh_softplus(self.node(within))
        writers = {S: self.logistic, Phi: self.normal_cdf, sp.tanh: self.tanh, sp.erf: self.erf}
        if type(expr) not in writers:
            raise BuildError("", "strategies", "expected sums, products, S, Phi, tanh, erf and log(1 + exp)", expr)
        return writers[type(expr)](self.node(expr.args[0]))

    # --- functions ---------------------------------------------------------------
    def exp(self, exponent: Real) -> Real:
        """exp of something not positive; 0 where it is below the normal range: x times it stays small for every x."""
        return held_exp(True, exponent, _LEAST)

    def decay(self, z: Real, rate: float = 1.0) -> tuple[Real, Real]:
        """exp(-rate |z|), and whether z < 0."""
        return self.exp(abs(z) * -rate), z < 0

    def logistic(self, z: Real) -> Real:
        e, negative = self.decay(z)
        return select(negative, e, 1) * (1 / (e + 1))

    def softplus(self, z: Real) -> Real:
        fit = _log1p()
        self.fits.append(fit)
        e, negative = self.decay(z)
        s = e * (1 / (e + 2))
        return madd(s, horner(s * s, fit.coefficients), select(negative, 0, z))

    def tanh_softplus(self, z: Real) -> Real:
        e, negative = self.decay(z)
        above = select(negative, e * (e + 2), madd(e, 2, 1))
        rest = select(negative, 2, e * e * 2)
        return above * (1 / (above + rest))

    def tanh(self, z: Real) -> Real:
        e, negative = self.decay(z, 2.0)
        far = (1 - e) * (1 / (e + 1))
        return self.joined("tanh", z, select(negative, -far, far))

    def erf(self, z: Real) -> Real:
        tail = self.normal_tail(z * z * -1, abs(z) * mpmath.sqrt(2))
        far = madd(-2, tail, 1)
        return self.joined("erf", z, select(z < 0, -far, far))

    def normal_cdf(self, z: Real) -> Real:
        tail = self.normal_tail(z * z * -0.5, abs(z))
        return select(z < 0, tail, 1 - tail)

    def normal_tail(self, exponent: Real, t: Real) -> Real:
        """Phi(-t), the exponent -t²/2 given."""
        ratio = tail_ratio(t, 2e-8, self.fits)
        return self.exp(exponent) * ratio

    def joined(self, name: str, z: Real, far: Real) -> Real:
        """A polynomial near 0, ``far`` elsewhere."""
        fit = _near_zero(name)
        self.fits.append(fit)
        near = z * horner(z * z, fit.coefficients)
        return select(abs(z) < _NEAR[name], near, far)
