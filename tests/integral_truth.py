"""E f and Var f as proven intervals, by integrating f itself in ball arithmetic.

``acb.integral`` encloses the integral over a finite interval; what lies beyond
is bounded by an exponential that dominates f, read off its expression.  No
closed form is used, so this can prove one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
from flint import acb, arb, ctx
from sympy import Expr

from momentgen.compiler.exact.balls import _NAMESPACE, _Writer
from momentgen.compiler.function.pieces import PiecesError, split
from momentgen.rule.symbols import Phi, S, phi, x

__all__ = ["rigorous_integral"]


@dataclass(frozen=True)
class _Growth:
    """|g(x)| <= sum over (factor, power, rate) of factor |x|^power e^(rate |x|)."""

    terms: tuple[tuple[Expr, int, Expr], ...]

    def __add__(self, other: _Growth) -> _Growth:
        return _Growth(self.terms + other.terms)

    def __mul__(self, other: _Growth) -> _Growth:
        return _Growth(
            tuple((f * g, n + m, r + s) for (f, n, r), (g, m, s) in itertools.product(self.terms, other.terms))
        )


def rigorous_integral(
    f: Expr, mu: float, v: float, params: Mapping[str, float] | None = None, bits: int = 128
) -> tuple[arb, arb]:
    """Balls that contain E f(X) and Var f(X) for X ~ N(mu, v).

    Args:
        f: in ``x`` and symbols named in ``params``; its pieces analytic near the real line and no larger than
            exp(c|x|) (polynomials, exp of linear arguments, S, Phi, phi, tanh, erf, sin, cos, atan, log(1 + exp)).
        mu, v: exact float64 numbers, v > 0.
        bits: working precision; balls are relatively accurate to about ``bits`` less what cancels.

    Raises:
        ValueError: for v <= 0, a symbol without a value, or an f that cannot be bounded or split.

    >>> mean, var = rigorous_integral(S(x), 0.0, 1.0)
    >>> mean.contains(arb(0.5)), bool(mean.rad() < 1e-30)
    (True, True)
    """
    values = params or {}
    f = f.subs({s: sympy.Rational(values[str(s)]) for s in f.free_symbols if str(s) in values})
    if f.free_symbols - {x}:
        raise ValueError(f"expected values for all parameters of {f}")
    if not v > 0:
        raise ValueError(f"expected v > 0, got {v}")
    try:
        pieces = split(f)
    except PiecesError as error:
        raise ValueError(f"expected an f of finitely many analytic pieces: {error}") from error
    precision = ctx.prec
    try:
        ctx.prec = bits + 32
        centre, scale = arb(mu), arb(v).sqrt()
        moments = []
        for power in (1, 2):
            total = arb(0)
            for piece in pieces:
                call = compile_analytic(piece.expr)
                low, high = _end(piece.low, centre, scale), _end(piece.high, centre, scale)
                total += _piece(call, _growth(piece.expr, piece.low, piece.high), power, low, high, centre, scale, bits)
            moments.append(total)
        mean, second = moments
        return mean, second - mean * mean
    finally:
        ctx.prec = precision


def _end(point: Expr, centre: arb, scale: arb) -> arb | None:
    """A breakpoint in units of the standard deviation; None at infinity."""
    if point.is_infinite:
        return None
    if isinstance(point, sympy.Rational):
        return (arb(point.p) / point.q - centre) / scale
    return (compile_analytic(point)(acb(0), False).real - centre) / scale


def _piece(
    call: Callable[[Any, bool], Any],
    growth: _Growth,
    power: int,
    low: arb | None,
    high: arb | None,
    centre: arb,
    scale: arb,
    bits: int,
) -> arb:
    """Integral of f(centre + scale z)^power phi(z) over a piece."""
    bound = growth if power == 1 else growth * growth
    # Beyond the nearest point of the piece by so much that phi has fallen by 2^-bits.
    near = max(float(low.lower()) if low is not None else 0.0, -float(high.upper()) if high is not None else 0.0, 0.0)
    reach = arb((near * near + 2 * 0.7 * (bits + 20) + 40) ** 0.5)
    reach += max((_number(rate) * scale for _, _, rate in bound.terms), default=arb(0))
    left, right = (low if low is not None else -reach), (high if high is not None else reach)
    tail = arb(0)
    if low is None:
        tail += _tail(bound, reach, centre, scale)
    if high is None:
        tail += _tail(bound, reach, centre, scale)
    # Where an end lies beyond the reach, the tail bound covers all there is.
    if left > reach or right < -reach:
        return arb(0, tail.upper())
    left, right = (end if abs(end) < reach else (reach if end > 0 else -reach) for end in (left, right))
    if (low is not None and low < -reach) or (high is not None and high > reach):
        tail += 2 * _tail(bound, reach, centre, scale)
    root = (2 * arb.pi()).sqrt()

    def integrand(z: Any, analytic: bool) -> Any:
        value = call(centre + scale * z, analytic)
        return (value if power == 1 else value * value) * (-z * z / 2).exp() / root

    # Panels of two standard deviations spare the integrator a search for the mass.
    count = max(1, int(float((right - left).upper()) / 2) + 1)
    cuts = [left + (right - left) * i / count for i in range(count + 1)]
    total = arb(0)
    for start, stop in itertools.pairwise(cuts):
        total += acb.integral(integrand, acb(start), acb(stop), rel_tol=arb(2) ** -bits).real
    return total + arb(0, tail.upper())


def _tail(growth: _Growth, reach: arb, centre: arb, scale: arb) -> arb:
    """Bound on the integral of |f(centre + scale z)| phi(z) over z > reach (or z < -reach)."""
    total = arb(0)
    for factor, power, rate in growth.terms:
        # |x|^n <= n! e^(|x| d)/d^n with d = 1/(1 + scale): the exponent stays moderate at any scale.
        d = 1 / (1 + scale)
        slope = _number(rate) + (d if power else arb(0))
        front = abs(_number(factor)) * arb(power).fac() / d**power
        s = slope * scale
        # The integral of e^(s z) phi(z) above reach is e^(s^2/2) times the normal tail above reach - s.
        total += front * (slope * abs(centre) + s * s / 2).exp() * ((reach - s) / arb(2).sqrt()).erfc() / 2
    return abs(total)


def _number(expr: Expr) -> arb:
    return compile_analytic(expr)(acb(0), False).real


def _growth(expr: Expr, low: Expr, high: Expr) -> _Growth:
    """A bound on ``expr`` over low < x < high."""
    one = _Growth(((sympy.Integer(1), 0, sympy.Integer(0)),))
    if not expr.has(x):
        return _Growth(((sympy.Abs(expr), 0, sympy.Integer(0)),))
    if expr == x:
        return _Growth(((sympy.Integer(1), 1, sympy.Integer(0)),))
    if isinstance(expr, sympy.Add):
        total = _Growth(())
        for arg in expr.args:
            total += _growth(arg, low, high)
        return total
    if isinstance(expr, sympy.Mul):
        product = one
        for arg in expr.args:
            product *= _growth(arg, low, high)
        return product
    if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
        product, base = one, _growth(expr.base, low, high)
        for _ in range(int(expr.exp)):
            product *= base
        return product
    if isinstance(expr, (S, Phi, phi, sympy.tanh, sympy.erf, sympy.sin, sympy.cos)):
        return one
    if isinstance(expr, (sympy.erfc, sympy.atan)):
        return _Growth(((sympy.Integer(2), 0, sympy.Integer(0)),))
    if isinstance(expr, sympy.exp):
        poly = sympy.expand(expr.args[0]).as_poly(x)
        if poly is not None and poly.degree() == 1:
            slope, end = poly.nth(1), (high if poly.nth(1).is_positive else low)
            if end.is_finite:
                return _Growth(((sympy.exp(poly.nth(0) + slope * end), 0, sympy.Integer(0)),))
            return _Growth(((sympy.exp(poly.nth(0)), 0, sympy.Abs(slope)),))
        if poly is not None and poly.degree() == 2 and poly.LC().is_negative:
            top = poly.nth(0) - poly.nth(1) ** 2 / (4 * poly.nth(2))
            return _Growth(((sympy.exp(top), 0, sympy.Integer(0)),))
    if isinstance(expr, sympy.log) and isinstance(expr.args[0] - 1, sympy.exp):
        # log(1 + e^y) <= 1 + |y|
        return one + _growth((expr.args[0] - 1).args[0], low, high)
    raise ValueError(f"expected an f bounded by an exponential of |x|, cannot bound {expr}")


def _analytic_atan(z: acb, analytic: bool) -> acb:
    """Arc tangent by logarithms: ``acb.atan`` of a ball across its cut is finite, as if it were analytic there."""
    turned = acb(0, 1) * z
    half = acb(0, arb("0.5"))
    return half * ((1 - turned).log(analytic=analytic) - (1 + turned).log(analytic=analytic))


def compile_analytic(expr: sympy.Expr) -> Callable[[Any, bool], Any]:
    """One expression in ``x`` over complex balls, as ``acb.integral`` wants it: ``call(x, analytic)``."""
    writer = _AnalyticWriter({"x": "_x"})
    source = writer.source(expr)
    scope: dict[str, Any] = {**_NAMESPACE, "_atan": _analytic_atan, **writer.constants}
    exec(f"def compiled(_x, _analytic):\n    return acb({source})", scope)
    compiled: Callable[[Any, bool], Any] = scope["compiled"]
    return compiled


class _AnalyticWriter(_Writer):
    """Writes for complex balls: functions with branch cuts are told when they must be analytic."""

    def source(self, expr: sympy.Expr) -> str:
        if isinstance(expr, sympy.log):
            return f"acb({self.source(expr.args[0])}).log(analytic=_analytic)"
        if isinstance(expr, sympy.atan):
            return f"_atan({self.source(expr.args[0])}, _analytic)"
        return super().source(expr)

    def power(self, base: sympy.Expr, exponent: sympy.Expr) -> str:
        if isinstance(exponent, sympy.Integer):
            return super().power(base, exponent)
        return f"acb({self.source(base)}).pow({self.source(exponent)}, analytic=_analytic)"
