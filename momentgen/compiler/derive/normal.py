"""Moments under a normal input: the closed algebra, by table and recursion.

Closed are sums of ``x^n exp(p x^2 + q x + r)``, on any interval, and of the
same times ``Phi(c x + d)``, on the whole line.  An exponential is absorbed by
tilting the Gaussian (another mean, another variance, a factor); what is left
are truncated moments, by their recursion in n, and E[X^n Phi(cX + d)], by
Stein's identity E[X g] = mu E g + v E g'.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import sympy
from sympy import Expr, Integer, exp, log, pi, sqrt

from momentgen.compiler.function.pieces import Pieces
from momentgen.rule.symbols import Phi, mu, phi, v, x


class AlgebraError(Exception):
    """An expression is outside the closed algebra; says why, and names the part at fault."""

    def __init__(self, cause: str, expression: object) -> None:
        self.cause, self.expression = cause, expression
        super().__init__(f"{cause}: {expression}")


class DivergentError(AlgebraError):
    """A moment that does not exist."""


@dataclass(frozen=True)
class _Term:
    """coefficient * x^power * exp(p x^2 + q x + r) * Phi(argument), the last where argument is not None."""

    coefficient: Expr
    power: int
    p: Expr
    q: Expr
    r: Expr
    argument: Expr | None


def expanded(expr: Expr) -> Expr:
    """Expanded, but for moments of Gaussians: there each of many powers of 1 - 2 p v would be multiplied out.

    >>> expanded(exp(mu / (1 + v)) * (1 + mu))
    (mu + 1)*exp(mu/(v + 1))
    """
    of_quotients = any(sympy.denom(sympy.together(part.args[0])).has(v) for part in expr.atoms(exp))
    return expr if of_quotients else sympy.expand(expr)


def expectation(pieces: Pieces) -> Expr:
    """E g(X) for X ~ N(mu, v).

    Raises:
        AlgebraError: if a piece is outside the algebra.
        DivergentError: if the expectation does not exist for every v.

    >>> from momentgen.compiler.function.pieces import split
    >>> expectation(split(sympy.Max(x, 0)))
    mu*Phi(mu/sqrt(v)) + sqrt(v)*phi(mu/sqrt(v))
    """
    total: Expr = Integer(0)
    for piece in pieces:
        for term in _terms(piece.expr, piece.low, piece.high):
            total += term.coefficient * _integral(term, piece.low, piece.high)
    if total.has(sympy.I):
        # Sines and cosines came in as pairs of conjugate exponentials.
        total = sympy.re(total.expand(complex=True))
    return expanded(total)


def _terms(expr: Expr, low: Expr, high: Expr) -> list[_Term]:
    """A piece, from ``low`` to ``high``, as a sum of terms of the algebra."""
    expr = expr.replace(phi, lambda z: exp(-(z**2) / 2) / sqrt(2 * pi)).rewrite(
        [sympy.sinh, sympy.cosh, sympy.sin, sympy.cos], exp
    )
    expr = expr.replace(sympy.erf, lambda z: 2 * Phi(sqrt(2) * z) - 1)
    expr = expr.replace(sympy.erfc, lambda z: 2 * Phi(-sqrt(2) * z))
    return [_term(term, low, high) for term in sympy.Add.make_args(sympy.expand(expr)) if term != 0]


def _term(term: Expr, low: Expr, high: Expr) -> _Term:
    coefficient: Expr = Integer(1)
    power, exponent, argument = 0, Integer(0), None
    for factor in sympy.Mul.make_args(term):
        if not factor.has(x):
            coefficient *= factor
            continue
        base, index = factor.as_base_exp()
        if isinstance(factor, exp):
            exponent += factor.args[0]
        elif not base.has(x):
            exponent += index * log(base)
        elif base == x and index.is_Integer and index > 0:
            power += int(index)
        elif isinstance(factor, Phi) and argument is None:
            argument = sympy.expand(factor.args[0])
        elif isinstance(base, Phi):
            raise AlgebraError("outside the algebra: a product of several Phi has no closed moment", factor)
        else:
            raise AlgebraError("outside the algebra (piecewise polynomial, exponential, Phi, phi)", factor)
    if argument is not None and (argument.as_poly(x) is None or argument.as_poly(x).degree() != 1):
        raise AlgebraError("outside the algebra: the argument of Phi must be linear in x", Phi(argument))
    poly = sympy.expand(exponent).as_poly(x) if exponent.has(x) else None
    if exponent.has(x) and (poly is None or poly.degree() > 2):
        ends = [side for side, end in ((-1, low), (1, high)) if not end.is_finite]
        if poly is not None and any((side ** poly.degree() * poly.LC()).is_positive for side in ends):
            raise DivergentError("the moment diverges: the exponential outgrows every Gaussian", exp(exponent))
        raise AlgebraError("outside the algebra: an exponent must be at most quadratic in x", exp(exponent))
    p, q, r = (poly.nth(2), poly.nth(1), poly.nth(0)) if poly is not None else (Integer(0), Integer(0), exponent)
    return _Term(coefficient, power, p, q, r, argument)


def _integral(term: _Term, low: Expr, high: Expr) -> Expr:
    """E[x^n exp(p x^2 + q x + r) Phi(...); low < X < high]."""
    p, q, r = term.p, term.q, term.r
    unbounded = low == -sympy.oo or high == sympy.oo
    if p != 0 and not p.is_nonpositive:
        if unbounded and p.is_positive:
            raise DivergentError("the moment diverges for v >= 1/(2p), p the factor of x**2", exp(p * x**2 + q * x))
        cause = "outside the algebra: exp needs a factor of x**2 known to be negative"
        raise AlgebraError(cause, exp(p * x**2 + q * x))
    if q.has(sympy.I) and not (low == -sympy.oo and high == sympy.oo):
        raise AlgebraError("outside the algebra: a sine or cosine on an interval", sympy.re(exp(q * x)))
    # exp(p x^2 + q x) times the density of N(mu, v) is a constant times that of N(m, w).
    shrink = 1 - 2 * p * v
    w = v / shrink
    m = sympy.expand(mu + q * v) / shrink
    exponent = sympy.expand(q * mu + q**2 * v / 2) if p == 0 else ((mu + q * v) ** 2 / shrink - mu**2) / (2 * v)
    factor = exp(sympy.expand(exponent + r) if p == 0 else sympy.factor(sympy.together(exponent)) + r) / sqrt(shrink)
    if term.argument is None:
        return factor * _truncated(term.power, low, high, m, w)
    if low != -sympy.oo or high != sympy.oo:
        raise AlgebraError("outside the algebra: Phi on an interval needs bivariate normals", Phi(term.argument))
    return factor * _with_phi(term.power, term.argument, m, w)


@lru_cache(maxsize=4096)
def _truncated(power: int, low: Expr, high: Expr, m: Expr, w: Expr) -> Expr:
    """E[Y^n; low < Y < high] for Y ~ N(m, w), by M_n = m M_{n-1} + (n-1) w M_{n-2} - w [y^{n-1} p(y)]."""
    # The upper tail's probability is written Phi((m - y)/s), never 1 - Phi: at 0 it is Phi(mu/sigma).
    s = sqrt(w)

    def above(point: Expr) -> Expr:
        return Integer(1) if point == -sympy.oo else Integer(0) if point == sympy.oo else Phi((m - point) / s)

    def edge(point: Expr) -> Expr:
        return Integer(0) if point.is_infinite else s * point ** (power - 1) * phi((m - point) / s)

    if power == 0:
        return above(low) - above(high)
    step = m * _truncated(power - 1, low, high, m, w) + edge(low) - edge(high)
    if power > 1:
        step += (power - 1) * w * _truncated(power - 2, low, high, m, w)
    return sympy.expand(step) if w == v else step


def _with_phi(power: int, argument: Expr, m: Expr, w: Expr) -> Expr:
    """E[Y^n Phi(c Y + d)] for Y ~ N(m, w), by Stein's identity."""
    poly = argument.as_poly(x)
    c, d = poly.nth(1), poly.nth(0)
    spread = sqrt(1 + c**2 * w)
    centre = (c * m + d) / spread
    # phi(c y + d) times the density is phi(centre)/spread times that of N(m2, w2).
    m2, w2 = (m - c * d * w) / spread**2, w / spread**2
    plain = [Integer(1)]
    for n in range(1, power):
        plain.append(m2 * plain[-1] + ((n - 1) * w2 * plain[-2] if n > 1 else 0))
    moments: list[Expr] = [Phi(centre)]
    for n in range(1, power + 1):
        step = m * moments[-1] + w * c * phi(centre) / spread * plain[n - 1]
        moments.append(step + ((n - 1) * w * moments[-2] if n > 1 else 0))
    return moments[power]
