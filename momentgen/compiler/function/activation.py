"""What the compiler finds out about an activation f of one variable from its expression alone.

Where f has kinks and jumps, which line it follows far to the left and to the right, how steep it is, how far its
values range, and the length on which it bends.  Values and derivatives come from power series over rigorous balls
(python-flint), so that nothing is lost to cancellation however f is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import sympy as sp
from flint import arb, arb_series, ctx, fmpq

from momentgen.compiler.function.pieces import Pieces, rewritten
from momentgen.compiler.toolchain.arrays import F64
from momentgen.errors import BuildError
from momentgen.rule.symbols import Phi, S, phi, x

_BITS = 640  # exp(-200) beside 1 leaves 350 of them
_MOST_BITS = 4096  # where a denominator is still not told from 0
_LIMIT_BITS = (1200, 4096)  # for f at 2^260 less its line
_FAR = 160.0  # in units of the length; where f is looked at for its asymptotes
_USUAL, _BESIDE = (1 / 16, 2.0), 4.0  # lengths on which f bends, and how many of them from 0, that need no units
_HALVINGS, _HALVED = 12, 16  # of intervals in the search for units, and how many of them at a time
_LAYERED = 1e6  # where an exponential of an exponential can still be evaluated
_FAR_OUT, _EXPONENTIAL = 400, 1e30  # an x, and what no power of it that is in use exceeds
_METHODS = {sp.exp: "exp", sp.log: "log", sp.erf: "erf", sp.erfc: "erfc", sp.sin: "sin", sp.cos: "cos", sp.atan: "atan"}


@dataclass(frozen=True)
class Line:
    """slope·x + offset."""

    slope: float
    offset: float


# --- series ----------------------------------------------------------------------
def elementary(expr: sp.Expr) -> sp.Expr:
    """The special functions by those that series over balls know: exp, log, erf, erfc, sin, cos, atan and S.

    >>> elementary(sp.sech(x))
    1/(exp(x)/2 + exp(-x)/2)
    """
    expr = rewritten(expr).replace(sp.tanh, lambda z: 2 * S(2 * z) - 1)
    expr = expr.replace(phi, lambda z: sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi))
    expr = expr.replace(sp.asinh, lambda z: sp.log(z + sp.sqrt(z**2 + 1)))
    expr = expr.replace(sp.sinh, lambda z: (sp.exp(z) - sp.exp(-z)) / 2)
    return expr.replace(sp.cosh, lambda z: (sp.exp(z) + sp.exp(-z)) / 2)


def _source(expr: sp.Expr) -> str:
    """Python source over ``arb`` and ``arb_series``."""
    if expr == x:
        return "X"
    if isinstance(expr, (sp.Rational, sp.Float)):
        exact = sp.Rational(expr)
        return f"arb(fmpq({exact.p}, {exact.q}))"
    if expr is sp.pi:
        return "arb.pi()"
    if expr is sp.E:
        return "arb(1).exp()"
    if isinstance(expr, sp.Pow):
        base, power = _source(expr.base), expr.exp
        if power.is_Integer:
            product = "*".join([base] * abs(int(power))) if abs(int(power)) < 5 else f"{base}**{abs(int(power))}"
            return f"({product})" if power > 0 else f"(arb(1)/({product}))"
        if power == sp.Rational(1, 2):
            return f"({base}).sqrt()"
        if power == -sp.Rational(1, 2):
            return f"(arb(1)/({base}).sqrt())"
        return f"(({_source(power)})*({base}).log()).exp()"
    parts = [_source(a) for a in expr.args]
    if isinstance(expr, (sp.Add, sp.Mul)):
        return "(" + (" + " if isinstance(expr, sp.Add) else "*").join(parts) + ")"
    if isinstance(expr, (S, Phi)):
        return f"{'logistic' if isinstance(expr, S) else 'below'}({parts[0]})"
    if type(expr) in _METHODS:
        return f"({parts[0]}).{_METHODS[type(expr)]}()"
    raise ValueError(f"the compiler does not know the function {type(expr).__name__}")


def _logistic(z: Any) -> Any:
    """1/(1 + exp(-z)) by an exponential below 1: of z = exp(x), far out, another would overflow."""
    if bool((z[0] if isinstance(z, arb_series) else z) > 0):
        return 1 / (1 + (-z).exp())
    e = z.exp()
    return e / (1 + e)


def _below(z: Any) -> Any:
    """Phi(z); sympy makes 2 - erfc(z) of erfc(-z), of which nothing is left far out."""
    u = -z / arb(2).sqrt()
    value, series = u.erfc() / 2, isinstance(u, arb_series)
    at = u[0] if series else u
    if not (bool(at > 1) and (value[0] if series else value).contains(0)):
        return value
    # Beyond some exp(-10^12) flint leaves erfc open, not its slopes.
    first = (-at * at).exp() * (at * at).hypgeom_u(arb(0.5), arb(0.5)) / arb.pi().sqrt() / 2
    return arb_series([first, *(value[k] for k in range(1, value.prec))], value.prec) if series else first


class Series:
    """One piece of f as a power series about any point."""

    def __init__(self, expr: sp.Expr) -> None:
        scope: dict[str, Any] = {"arb": arb, "fmpq": fmpq, "logistic": _logistic, "below": _below}
        exec(f"def call(X):\n    return {_source(elementary(expr))}", scope)
        self.call: Callable[[Any], Any] = scope["call"]

    def coefficients(self, at: arb, count: int) -> list[arb]:
        """f^(k)(at)/k!, k < count; NaN where f divides by what no number of bits tells from 0."""
        cap, bits = ctx.cap, ctx.prec
        try:
            ctx.cap = count
            while True:
                try:
                    value = self.call(arb_series([at, arb(1)], count))
                except (ValueError, ZeroDivisionError):
                    if ctx.prec >= _MOST_BITS:
                        return [arb("nan")] * count
                    ctx.prec *= 2
                    continue
                return [value, *[arb(0)] * (count - 1)] if isinstance(value, arb) else [value[k] for k in range(count)]
        finally:
            ctx.cap, ctx.prec = cap, bits


# --- activation ------------------------------------------------------------------
@dataclass(frozen=True)
class Activation:
    """An activation with its parameters set, analysed.

    Attributes:
        name: of the rule, for messages.
        pieces: f, resolved.
        left, right: the lines that f approaches; None where it follows no line.
        length: on which f bends: 0.4 max|f'|/max|f''| where smooth, and the distance between its kinks.
        centre: the middle of what is not a line, a float32 number.
        reach: |x - centre| beyond which f is a line to 1e-19.
        lipschitz: max |f'|.
        span: max f - min f; infinite where f is unbounded.
        bend: max |f''| away from kinks.
        jumps: (point, height) where f jumps.
        algebraic: whether a line is approached no faster than by a power of 1/x; ``reach`` then says nothing.
    """

    name: str
    pieces: Pieces
    left: Line | None
    right: Line | None
    length: float
    centre: float
    reach: float
    lipschitz: float
    span: float
    bend: float
    jumps: tuple[tuple[float, float], ...]
    algebraic: bool = False

    @cached_property
    def kinks(self) -> tuple[float, ...]:
        """The breakpoints, from left to right."""
        return tuple(float(sp.N(k, 30)) for k in self.pieces.kinks)

    @property
    def smoothings(self) -> tuple[float, ...]:
        """The variances c, from low to high, of the normal distributions whose tails f is made of: of Phi(k x) 1/k².

        The mean of Phi(x), or x Phi(x), at a variance v is an elementary function of mu/sqrt(v + c).
        """
        shares = {Phi: 1, sp.erf: 2, sp.erfc: 2}
        tails = [part for p in self.pieces for part in p.expr.atoms(*shares)]
        slopes = [(sp.diff(tail.args[0], x), shares[type(tail)]) for tail in tails]
        return tuple(sorted({float(1 / (share * k**2)) for k, share in slopes if k.is_number and k != 0}))

    @property
    def evaluable(self) -> float:
        """The largest |x| at which mpmath evaluates f: exp(exp(x)) is a number of as many bits as exp(x)."""
        layers = [part.args[0] for p in self.pieces for part in p.expr.atoms(sp.exp, sp.tanh, sp.sinh, sp.cosh, S)]
        sizes = [abs(sp.N(inner.subs(x, at))) for inner in layers for at in (-_FAR_OUT, _FAR_OUT)]
        return _LAYERED if any(bool(size > _EXPONENTIAL) for size in sizes) else math.inf

    @cached_property
    def series(self) -> tuple[Series, ...]:
        """The pieces as power series."""
        return tuple(Series(p.expr) for p in self.pieces)

    def taylor(self, piece: int, at: float | arb, count: int) -> list[arb]:
        """f^(k)(at)/k! of one piece, also outside of its interval."""
        with ctx.workprec(_BITS):
            return self.series[piece].coefficients(arb(at), count)

    def values(self, piece: int, points: Sequence[arb]) -> list[arb]:
        """f of one piece at points, also outside of its interval."""
        call = self.series[piece].call
        with ctx.workprec(_BITS):
            return [call(point) for point in points]

    def home(self, at: float) -> int:
        """The piece that holds a point; a kink belongs to the piece on its right."""
        return sum(k <= at for k in self.kinks)

    def homes(self, points: F64) -> npt.NDArray[np.int64]:
        """The pieces that hold points, as :meth:`home`."""
        return np.searchsorted(self.kinks, points, side="right")

    def jet(self, points: F64, count: int) -> F64:
        """f and its derivatives up to ``count - 1``: shape (len(points), count)."""
        factorials = [math.factorial(k) for k in range(count)]
        at = zip(self.homes(points).tolist(), points.tolist(), strict=True)
        rows = [[float(c) for c in self.taylor(piece, point, count)] for piece, point in at]
        return np.array(rows) * np.array(factorials)


@lru_cache(maxsize=64)
def analyse(name: str, pieces: Pieces) -> Activation:
    """Look at an f without parameters.

    Raises:
        BuildError: if a piece has no power series, or f or its slope is not finite somewhere.
    """
    try:
        every = [Series(piece.expr) for piece in pieces]
    except ValueError as error:
        raise BuildError(name, "strategies", str(error)) from error
    outer = [every[0], every[-1]]
    kinks = [float(sp.N(k, 30)) for k in pieces.kinks]
    draft = Activation(name, pieces, None, None, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, ())
    unit, middle = _units(draft)
    middle = float(np.mean(kinks)) if kinks else middle
    base, wide = max([abs(p) for p in (*kinks, middle)]), _FAR * max(unit, 1.0)
    left, right = (_asymptote(s, side, base, wide) for s, side in zip(outer, (-1, 1), strict=True))
    algebraic = left is None or right is None
    left, right = left or _limit(outer[0], -1), right or _limit(outer[1], 1)
    points = _spread(kinks, unit, middle, 60.0)
    jet = _finite_jet(draft, points)
    slopes = [abs(side.slope) for side in (left, right) if side is not None]
    steep = max([float(np.abs(jet[:, 1]).max()), *slopes])
    bend = float(np.abs(jet[:, 2]).max())
    length = min([0.4 * steep / bend] if bend > 1e-9 * steep else [], default=math.inf)
    if len(kinks) > 1:
        length = min(length, (kinks[-1] - kinks[0]) / 2)
    length = length if math.isfinite(length) else 1.0
    points = _spread(kinks, length, middle, 60.0)
    jet = _finite_jet(draft, points)
    steep, bend = max([float(np.abs(jet[:, 1]).max()), *slopes]), float(np.abs(jet[:, 2]).max())
    centre = float(np.float32((kinks[0] + kinks[-1]) / 2 if kinks else middle))
    bounded = left is not None and right is not None and left.slope == 0 == right.slope
    ends = [side.offset for side in (left, right) if side is not None]
    span = max(jet[:, 0].max(), *ends) - min(jet[:, 0].min(), *ends) if bounded else math.inf
    jumps = []
    for i, kink in enumerate(kinks):
        before, after = (float(draft.taylor(j, kink, 1)[0]) for j in (i, i + 1))
        if abs(after - before) > 1e-15 * max(1.0, abs(before)):
            jumps.append((kink, after - before))
    sides = zip(outer, (left, right), (-1, 1), strict=True)
    reach = max([_reach(s, line, side, centre, kinks, wide) for s, line, side in sides])
    return Activation(
        name, pieces, left, right, length, centre, reach, steep, float(span), bend, tuple(jumps), algebraic
    )


def _units(f: Activation) -> tuple[float, float]:
    """The length on which f bends, and the point about which it does; 1 and 0 where it is near these anyway.

    Looked for over all scales, and about the centres of functions in it: intervals are halved where the slopes at both
    ends differ, or do not say how f changes.
    """
    sizes = np.logspace(-9, 9, 145)
    centres = {centre for piece in f.pieces for centre in _centres(piece.expr)}
    around = [c + side * d for c in centres if abs(c) > _BESIDE for d in sizes[sizes < abs(c)] for side in (-1, 1)]
    points = np.unique([*-sizes, 0.0, *sizes, *centres, *around])
    try:
        jet = _finite_jet(f, points)
        for _ in range(_HALVINGS):
            change, turn, _ = np.diff(jet, axis=0).T
            missed = np.abs(change / np.diff(points) - (jet[1:, 1] + jet[:-1, 1]) / 2) + np.abs(turn) / 8
            worst = np.argsort(missed)[-_HALVED:]
            worst = np.sort(worst[missed[worst] > 0.02 * np.abs(jet[:, 1]).max()]) + 1
            halves = (points[worst - 1] + points[worst]) / 2
            jet = np.insert(jet, worst, _finite_jet(f, halves).reshape(-1, 3), axis=0)
            points = np.insert(points, worst, halves)
    except BuildError:  # beyond all numbers far out, or at a point that is looked at again
        return 1.0, 0.0
    steep, bend = np.abs(jet[:, 1:]).max(0)
    line = max(abs(jet[0, 1] - jet[8, 1]), abs(jet[-1, 1] - jet[-9, 1])) <= 1e-3 * steep  # a decade before the ends
    if not line or bend * points[-1] <= steep:
        return 1.0, 0.0
    length, turned = 0.4 * float(steep / bend), np.cumsum(np.abs(np.diff(jet[:, 1])))
    half = int(np.searchsorted(turned, turned[-1] / 2))
    middle, step = float(points[half] + points[half + 1]) / 2, 2.0 ** math.ceil(math.log2(length))
    middle = 0.0 if abs(middle) <= _BESIDE * length else step * round(middle / step)
    return 1.0 if _USUAL[0] <= length <= _USUAL[1] else length, middle


def _centres(expr: sp.Expr) -> list[float]:
    """Where the arguments of functions of a line in x are 0, and those of functions of a parabola least or largest."""
    inner = [argument for part in expr.atoms(sp.Function) for argument in part.args]
    rows = [sp.Poly(argument, x).all_coeffs() for argument in inner if argument.is_polynomial(x)]
    return [float(-row[1] / ((len(row) - 1) * row[0])) for row in rows if len(row) in (2, 3)]


def _finite_jet(f: Activation, points: F64) -> F64:
    """f, f' and f'' at points.

    Raises:
        BuildError: if one is not finite.
    """
    rows = []
    for point in points.tolist():
        row = f.jet(np.array([point]), 3)[0]
        if not np.isfinite(row).all():
            cause = f"f or one of its first two derivatives is not finite near x = {point:.4g}"
            expr = f.pieces.pieces[f.home(point)].expr
            if _is_removable(expr, point):
                cause = f"f has a limit at x = {point:.4g}, where it is written as 0/0, which has no power series here"
            raise BuildError(f.name, "strategies", cause, expr)
        rows.append(row)
    return np.array(rows)


def _is_removable(expr: sp.Expr, point: float) -> bool:
    """Whether an expression has no value at a point, but the same finite one on either side."""
    if expr.subs(x, sp.Rational(point)).is_finite:
        return False
    beside = [complex(sp.N(expr.subs(x, sp.Rational(point) + side * sp.Rational(1, 10**9)), 30)) for side in (-1, 1)]
    return abs(beside[0]) < _LAYERED and abs(beside[0] - beside[1]) <= 1e-6 * max(1.0, abs(beside[0]))


def _spread(kinks: list[float], length: float, middle: float, far: float) -> F64:
    """Points dense around the middle and the kinks, out to ``far`` lengths."""
    grid = middle + length * far * np.sinh(np.linspace(-5, 5, 801)) / math.sinh(5)
    near = [k + side * length * d for k in kinks for side in (-1, 1) for d in (1e-9, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)]
    return np.sort(np.concatenate([grid, np.array(near)]))


def _asymptote(series: Series, side: int, base: float, far: float) -> Line | None:
    """The line that f follows on one side, if it does so by 1e-25 within reach of its last kink or its centre."""
    with ctx.workprec(_BITS):
        points = [arb(side * (base + d)) for d in (far, 2 * far)]
        near, last = (series.coefficients(point, 2) for point in points)
        slope = last[1]
        if not bool(abs(near[1] - slope) < arb("1e-25")):
            return None
        offset, other = last[0] - slope * points[1], near[0] - slope * points[0]
        if not bool(abs(offset - other) < arb("1e-20")):
            return None
        return Line(_plain(slope), _plain(offset))


def _limit(series: Series, side: int) -> Line | None:
    """The line that f approaches on one side by a power of 1/x, from where it is at 2^200 and 2^260."""
    for bits in _LIMIT_BITS:
        with ctx.workprec(bits):
            near, far = (series.coefficients(arb(side) * arb(2) ** k, 2) for k in (200, 260))
            slopes = near[1], far[1]
            offsets = [f[0] - f[1] * arb(side) * arb(2) ** k for f, k in ((near, 200), (far, 260))]
            if all(bool(abs(p - q) < arb("1e-25")) for p, q in (slopes, offsets)):
                return Line(_plain(slopes[1]), _plain(offsets[1]))
    return None


def _plain(value: arb) -> float:
    """A number, without the dust of an exponential far out."""
    number = float(value)
    return 0.0 if abs(number) < 1e-18 else number


def _reach(series: Series, line: Line | None, side: int, centre: float, kinks: list[float], far: float) -> float:
    """How far from the centre f is told from its line."""
    start = max([abs(k - centre) for k in kinks], default=0.0)
    if line is None:
        return start + far
    low, high = 0.0, 1.5 * far
    with ctx.workprec(_BITS):

        def gap(d: float) -> bool:
            point = arb(centre + side * (start + d))
            dust = 2.0**-52 * (abs(line.slope * point) + abs(line.offset))  # the line's numbers are rounded
            away = abs(series.coefficients(point, 1)[0] - line.slope * point - line.offset)
            return bool(away > arb("1e-19") + dust)

        if not gap(1e-6) and not gap(0.37):
            return start
        for _ in range(24):
            middle = (low + high) / 2
            low, high = (middle, high) if gap(middle) else (low, middle)
    return start + high
