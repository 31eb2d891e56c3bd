"""Whether f is a real function with a second moment: asked before any strategy, of an f outside the closed algebra.

E f(X)² diverges where f has a pole, whatever the variance; where log|f| grows like c x², for v >= 1/(4 c); and where it
grows faster, always.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import mpmath
import sympy as sp

from momentgen.compiler.derive.derivation import Derivation
from momentgen.compiler.function.pieces import Piece
from momentgen.errors import BuildError
from momentgen.rule.symbols import Phi, S, phi, x

_SAMPLES = (-40.0, -7.3, -1.1, -0.3, 0.0, 0.2, 0.9, 5.7, 40.0)
_GROWTH = (24.0, 48.0, 96.0)  # where log|f|/x² is looked at
_LEAST = 1e-3  # of log|f|/x²: below it f grows more slowly
_GRID = [k / 8 for k in range(-480, 481)]
_LARGE = 1e9  # |f| beside a pole, 1e-12 away

#: an expression at numbers, None where it has no value there
_Numbers = Callable[[float], mpmath.mpf | mpmath.mpc | None]


def check_second_moment(derivation: Derivation) -> None:
    """Refuse an f that is not real, or whose second moment diverges.

    Raises:
        BuildError: with the reason and where.
    """
    rule = derivation.rule
    defaults = {p.symbol: sp.Rational(p.low if p.default is None else p.default) for p in rule.parameters}

    def refuse(cause: str, expr: sp.Expr) -> None:
        raise BuildError(rule.name, "derive", cause, expr)

    for piece in derivation.pieces:
        low, high, expr = (_plain(e.subs(defaults)) for e in (piece.low, piece.high, piece.expr))
        part = Piece(low, high, expr)
        known = _numbers(expr)
        if known is None:  # a function that is not known; the strategies name it
            continue
        for at in _SAMPLES:
            if low < at < high:
                value = known(at)
                if value is not None and abs(mpmath.im(value)) > 1e-20 * (1 + abs(value)):
                    refuse(f"expected f to be real for every x, got {mpmath.nstr(value, 5)} at x = {at:g}", piece.expr)
        for side in (-1, 1):
            if (part.low if side < 0 else part.high).is_finite:
                continue
            rates = [_rate(known, side * at) for at in _GROWTH]
            if min(rates) > _LEAST and rates[-1] > 0.9 * rates[0]:
                if rates[-1] < 1.1 * rates[0]:
                    cause = f"the second moment diverges for v >= {1 / (4 * rates[-1]):.3g}: f grows like exp(c x**2)"
                else:
                    cause = "the second moment diverges for every v > 0: f grows faster than exp(c x**2) for any c"
                refuse(f"{cause} for x -> {'-' if side < 0 else ''}oo", piece.expr)
        pole = _pole(part, known)
        if pole is not None:
            refuse(f"the second moment diverges for every v > 0: f has a pole at x = {pole:.6g}", piece.expr)


def _plain(expr: sp.Expr) -> sp.Expr:
    expr = expr.replace(S, lambda z: 1 / (1 + sp.exp(-z)))
    expr = expr.replace(Phi, lambda z: sp.erfc(-z / sp.sqrt(2)) / 2)
    return expr.replace(phi, lambda z: sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi))


def _numbers(expr: sp.Expr) -> _Numbers | None:
    """f at numbers, None where it has no value; None where mpmath does not know one of its functions."""

    def value(at: float) -> mpmath.mpf | mpmath.mpc | None:
        with mpmath.workdps(40):
            try:
                return mpmath.mpmathify(call(mpmath.mpf(at)))
            except (ZeroDivisionError, ValueError):
                return None

    try:
        call = sp.lambdify(x, expr, "mpmath")
        value(1 / 3)
    except (NameError, TypeError):
        return None
    return value


def _rate(f: _Numbers, at: float) -> float:
    """log|f|/x²."""
    value = f(at)
    if value is None or value == 0 or not mpmath.isfinite(value):
        return 0.0
    return float(min(mpmath.log(abs(value)) / at**2, mpmath.mpf(1e300)))


def _pole(piece: Piece, f: _Numbers) -> float | None:
    """Where the denominator of a piece vanishes and f is not finite."""
    bottom = sp.denom(sp.together(piece.expr))
    if not bottom.has(x):
        return None
    candidates: list[float] = []
    if bottom.is_polynomial(x):
        candidates = [float(root) for root in sp.Poly(bottom, x).sqf_part().nroots(n=30) if root.is_real]
    else:
        call = sp.lambdify(x, bottom, "mpmath")
        of = _numbers(bottom)
        values = [(at, of(at)) for at in _GRID] if of else []
        inside = [(at, w) for at, w in values if piece.low <= at <= piece.high]  # elsewhere a root may be complex
        known = [(at, w) for at, w in inside if w is not None and mpmath.im(w) == 0]
        for (a, p), (b, q) in pairwise(known):
            if p == 0:
                candidates.append(a)
            elif p * q < 0:
                with mpmath.workdps(30):
                    candidates.append(float(mpmath.findroot(call, (a, b), solver="anderson", verify=False)))
    for at in candidates:
        within = piece.low <= at <= piece.high
        beside = [f(at + d) for d in (-1e-12, 1e-12)]
        if within and max((abs(w) for w in beside if w is not None), default=0) > _LARGE:
            return at
    return None
