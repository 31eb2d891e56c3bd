r"""f(u + d) - f(u) on a graph without cancellation, however small d is: exact identities of differences.

Δ(a + b) = Δa + Δb,   Δ(a b) = a Δb + (b + Δb) Δa,   Δ(1/a) = -Δa/(a (a + Δa)),
Δ sqrt a = Δa/(sqrt(a + Δa) + sqrt a),   Δ exp a = exp(a) (exp(Δa) - 1),   Δ p = d (p'(u) + d (p''(u)/2 + d (...))).

A polynomial that is all of f is taken in powers of x less a centre: written in powers of x it cancels between kinks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import mpmath
import numpy as np
import sympy as sp

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.fit.reflections import least_squares
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.function.pieces import Piece, Pieces
from momentgen.compiler.ir.graph import Graph, Real, horner, madd, select, sqrt
from momentgen.compiler.strategies.kit import Precision, bounded_exp, exp_ratio, number
from momentgen.errors import BuildError
from momentgen.rule.symbols import S, x

_EDGE = mpmath.mpf(1) / 2  # up to where exp(y) - 1 is a polynomial


def plain(expr: sp.Expr, towards: int = 0) -> sp.Expr:
    """``expr`` by the functions that are covered; partial fractions where it is rational in x or in an exponential.

    Args:
        expr: in ``x``.
        towards: 1 for a branch that reaches to infinity, -1 to minus infinity: exponentials are written as decaying
            there, since quotients and products of growing ones overflow on the way to a small value.
    """
    expr = expr.replace(S, lambda z: 1 / (1 + sp.exp(-z)))
    expr = expr.rewrite(sp.exp) if expr.has(sp.tanh, sp.sinh, sp.cosh) else expr
    if expr.is_rational_function(x):
        return sp.apart(expr, x) if expr.has(x) else expr
    return _by_decaying(expr, towards) if towards else expr


def _by_decaying(expr: sp.Expr, towards: int) -> sp.Expr:
    """A sum of x^k r_k(E), E = exp(-towards c x), each r_k in partial fractions; other expressions as they are."""
    found = [e for e in expr.atoms(sp.exp) if e.has(x)]
    rates = [e.args[0] / x for e in found]
    if not found or not all(rate.is_Rational for rate in rates):
        return expr
    unit = reduce(sp.gcd, map(abs, rates))
    power = sp.Dummy("E", positive=True)
    powers = {e: power ** (-towards * rate / unit) for e, rate in zip(found, rates, strict=True)}
    top, bottom = sp.fraction(sp.cancel(sp.together(expr.subs(powers))))
    if not (top.is_polynomial(x, power) and bottom.is_polynomial(power)) or bottom.has(x):
        return expr
    terms = ((k, sp.apart(c / bottom, power)) for (k,), c in sp.Poly(top, x).terms())
    return sp.Add(*(x**k * c.subs(power, sp.exp(-towards * unit * x)) for k, c in terms))


def unknown_function(expr: sp.Expr) -> str | None:
    """The first part of ``expr`` that has no form in float32 primitives here; None where all have."""
    for part in sp.preorder_traversal(plain(expr)):
        if isinstance(part, (sp.Number, sp.NumberSymbol, sp.Symbol, sp.Add, sp.Mul, sp.exp)):
            continue
        if isinstance(part, sp.Pow) and (_is_half_whole(part.exp) or not part.has(x)):
            continue
        return str(part.func.__name__ if part.args else part)
    return None


def _is_half_whole(power: sp.Expr) -> bool:
    return bool((2 * power).is_Integer)


@dataclass(frozen=True)
class _Change:
    """An expression at u, at u + d, and the difference; each by itself, since none follows from the others safely."""

    before: Real
    after: Real
    change: Real


class Increments:
    """Values and increments of expressions in ``x`` between u and u + d.

    Args:
        graph: to write on.
        start: the node u.
        step: the node d.
        precision: of the graph.
        fits: takes the polynomials used.
        centre: a float32 number amid the points; polynomials are taken about it.
    """

    def __init__(
        self,
        graph: Graph,
        start: Real,
        step: Real,
        precision: Precision,
        fits: list[Polynomial],
        centre: float = 0.0,
    ) -> None:
        self.g, self.precision, self.fits, self.centre = graph, precision, fits, centre
        self._seen: dict[sp.Expr, _Change] = {x: _Change(start, start + step, step)}

    def value(self, expr: sp.Expr) -> Real:
        """``expr`` at u."""
        return self._whole(expr).before

    def difference(self, expr: sp.Expr) -> Real:
        """``expr`` at u + d less ``expr`` at u."""
        return self._whole(expr).change

    def _whole(self, expr: sp.Expr) -> _Change:
        return self._polynomial(expr) if expr.is_polynomial(x) else self._of(expr)

    def _of(self, expr: sp.Expr) -> _Change:
        """All three.

        Raises:
            BuildError: for a function that is not covered.
        """
        if expr not in self._seen:
            self._seen[expr] = self._written(expr)
        return self._seen[expr]

    def _written(self, expr: sp.Expr) -> _Change:
        g = self.g
        if not expr.has(x):
            value = number(g, expr)
            return _Change(value, value, g.const(0))
        if isinstance(expr, sp.Add):
            terms = [self._of(term) for term in expr.args]
            total = terms[0]
            for t in terms[1:]:
                total = _Change(total.before + t.before, total.after + t.after, total.change + t.change)
            return total
        if isinstance(expr, sp.Mul):
            one, two = expr.as_two_terms()
            return self._product(self._of(one), self._of(two))
        if isinstance(expr, sp.exp):
            inner = self._of(expr.args[0])
            value = bounded_exp(self.precision.scaled, inner.before)
            return _Change(
                value,
                bounded_exp(self.precision.scaled, inner.after),
                value * self._exp_less_one(inner.change),
            )
        if isinstance(expr, sp.Pow) and _is_half_whole(expr.exp):
            return self._power(expr.base, expr.exp)
        raise BuildError(
            "", "strategies", f"the function {type(expr).__name__} has no form in float32 primitives", expr
        )

    def _polynomial(self, expr: sp.Expr) -> _Change:
        """In powers of x - centre, and the change in powers of the step."""
        g, at, centre = self.g, self._seen[x], self.centre
        row = sp.Poly(expr.subs(x, x + sp.Rational(centre)), x).all_coeffs()[::-1]
        start, end = (point - centre if centre else point for point in (at.before, at.after))

        def written(coefficients: list[sp.Expr], point: Real) -> Real:
            with mpmath.workdps(50):
                return horner(point, [mpmath.mpf(sp.N(c, 50)) for c in coefficients])

        change = g.const(0)
        for k in reversed(range(1, len(row))):
            taylor = written([math.comb(n, k) * c for n, c in enumerate(row)][k:], start)
            change = madd(change, at.change, taylor) if k < len(row) - 1 else taylor
        return _Change(written(row, start), written(row, end), change * at.change)

    def _product(self, a: _Change, b: _Change) -> _Change:
        change = a.before * b.change
        if a.change.constant != 0:
            change = madd(b.after, a.change, change)
        return _Change(a.before * b.before, a.after * b.after, change)

    def _power(self, base: sp.Expr, power: sp.Expr) -> _Change:
        if power < 0:
            of = self._of(base ** (-power))
            before, after = 1 / of.before, 1 / of.after
            return _Change(before, after, -(of.change * (before * after)))
        if power == sp.Rational(1, 2):
            of = self._of(base)
            before, after = sqrt(of.before), sqrt(of.after)
            return _Change(before, after, of.change * (1 / (before + after)))
        if not power.is_Integer:
            return self._product(self._of(sp.sqrt(base)), self._of(base ** (power - sp.Rational(1, 2))))
        one = result = self._of(base)
        for _ in range(int(power) - 1):
            result = self._product(result, one)
        return result

    def _exp_less_one(self, y: Real) -> Real:
        g = self.g
        fitted = exp_ratio(-_EDGE, _EDGE, self.precision.fit)
        if fitted not in self.fits:
            self.fits.append(fitted)
        edge = g.const(_EDGE)
        small = abs(y) <= edge
        near = select(small, y, 0)
        return select(small, near * horner(near, fitted.coefficients), bounded_exp(self.precision.scaled, y) - 1)


# --- branches that have no form in float32 primitives ------------------------------
#: errors of value, slope and bend: of max(1, abs(f)), of the largest slope, of the largest bend
_GOALS = (3e-8, 5e-7, 5e-6)
_POINTS, _DEGREES = 160, range(3, 21)


def with_fitted_branches(f: Activation) -> Activation:
    """f, polynomials for those of its inner branches that are no functions of float32 primitives.

    Raises:
        BuildError: for an outer branch of that kind, or one that no polynomial follows.
    """
    pieces = list(f.pieces)
    for index, (low, high) in enumerate(pairwise([None, *f.kinks, None])):
        piece, name = pieces[index], unknown_function(pieces[index].expr)
        if name is None:
            continue
        if low is None or high is None:
            cause = f"expected {name} between kinks alone, got it on a branch that has no end"
            raise BuildError(f.name, "strategies", cause, piece.expr)
        pieces[index] = Piece(piece.low, piece.high, _polynomial(f, index, low, high))
    return replace(f, pieces=Pieces(tuple(pieces)))


def _polynomial(f: Activation, index: int, low: float, high: float) -> sp.Expr:
    """The polynomial of the lowest degree that is as close as the tolerance takes.

    Raises:
        BuildError: if there is none.
    """
    middle, half = (low + high) / 2, (high - low) / 2
    at = np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS)
    rows = [[float(c) for c in f.taylor(index, float(middle + half * p), 3)] for p in at]
    wanted = np.array(rows).T * np.array([[1.0], [1.0], [2.0]])
    by_value, by_slope, by_bend = _GOALS
    allowed = np.stack(
        [
            by_value * np.maximum(1.0, np.abs(wanted[0])),
            np.full(_POINTS, by_slope * f.lipschitz),
            np.full(_POINTS, by_bend * max(f.bend, 1e-3 * f.lipschitz / f.length)),
        ]
    )
    target = (wanted / allowed).ravel()
    for degree in _DEGREES:
        k = np.arange(degree + 1)
        powers = [at[:, None] ** np.maximum(k - n, 0) for n in range(3)]
        basis = np.array([powers[0], k * powers[1] / half, k * (k - 1) * powers[2] / half**2])
        matrix = (basis / allowed[:, :, None]).reshape(-1, degree + 1)
        found = least_squares(matrix, target)
        if np.abs(target - np.einsum("ij,j->i", matrix, found)).max() <= 1.0:
            unit = (x - sp.Rational(middle)) / sp.Rational(half)
            return sp.expand(sum(sp.Rational(float(c)) * unit ** int(n) for n, c in enumerate(found)))
    cause = f"expected branches that a polynomial of degree {_DEGREES[-1]} follows"
    raise BuildError(f.name, "strategies", cause, f.pieces.pieces[index].expr)
