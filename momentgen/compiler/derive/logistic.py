"""Moments under a logistic input, for piecewise polynomials.

With mean mu and scale s = sqrt(3 v)/pi, integrating the tail 1/(1 + e^((x-mu)/s))
n times from b on gives E[(X - b)_+^n] = -n! s^n Li_n(-e^((mu-b)/s)), where
-Li_0(-e^y) = S(y) and -Li_1(-e^y) = log(1 + e^y).  A piecewise polynomial is a
polynomial and, at every breakpoint, such powers.
"""

from __future__ import annotations

import itertools

import sympy
from sympy import Expr, Integer, exp, factorial, log, pi, polylog, sqrt

from momentgen.compiler.derive.normal import AlgebraError
from momentgen.compiler.function.pieces import Pieces
from momentgen.rule.symbols import S, mu, v, x

scale: Expr = sqrt(3 * v) / pi


class _Li(sympy.Function):
    """-Li_n(-e^y) as one function of (n, y); its derivative in y is that of order n - 1."""

    nargs = 2

    def fdiff(self, argindex: int = 2) -> Expr:
        n, y = self.args
        return S(y) if n == 1 else _Li(n - 1, y)


def differentiate(expr: Expr, symbol: sympy.Symbol) -> Expr:
    """Derivative of an :func:`expectation`, in S, log(1 + e^y) and polylog(n, -e^y)."""
    expr = expr.replace(polylog, lambda n, z: -_Li(n, log(-z)))
    expr = expr.replace(log, lambda z: _Li(1, (z - 1).args[0]) if isinstance(z - 1, exp) else log(z))
    derivative = sympy.expand(sympy.diff(expr, symbol))
    return derivative.replace(_Li, lambda n, y: log(1 + exp(y)) if n == 1 else -polylog(n, -exp(y)))


def expectation(pieces: Pieces) -> Expr:
    """E g(X) for X logistic with mean ``mu`` and variance ``v``.

    Raises:
        AlgebraError: if a piece is no polynomial.

    >>> from momentgen.compiler.function.pieces import split
    >>> expectation(split(sympy.Max(x, 0)))
    sqrt(3)*sqrt(v)*log(exp(sqrt(3)*pi*mu/(3*sqrt(v))) + 1)/pi
    """
    for piece in pieces:
        if not piece.expr.is_polynomial(x):
            raise AlgebraError("outside the algebra of a logistic input (piecewise polynomial)", piece.expr)
    first, *_ = pieces
    total: Expr = Integer(0)
    leading = sympy.Poly(first.expr, x)
    for (n,), coefficient in leading.terms():
        total += coefficient * _moment(n)
    for left, right in itertools.pairwise(pieces):
        jump = sympy.Poly(sympy.expand((right.expr - left.expr).subs(x, x + left.high)), x)
        for (n,), coefficient in jump.terms():
            total += coefficient * _tail(n, left.high)
    return sympy.expand(total)


def _moment(n: int) -> Expr:
    """E X^n, from the central moments E[(X - mu)^k] = (pi s)^k (2^k - 2) |B_k| for even k."""
    total: Expr = Integer(0)
    for k in range(0, n + 1, 2):
        central = Integer(1) if k == 0 else (pi * scale) ** k * (2**k - 2) * abs(sympy.bernoulli(k))
        total += sympy.binomial(n, k) * mu ** (n - k) * central
    return total


def _tail(n: int, point: Expr) -> Expr:
    """E[(X - point)_+^n]."""
    y = (mu - point) / scale
    if n == 0:
        return S(y)
    if n == 1:
        return scale * log(1 + exp(y))
    return -factorial(n) * scale**n * polylog(n, -exp(y))
