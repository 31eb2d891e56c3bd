"""f for sums over nodes: its pieces as nodes of a graph, as float64 arrays and as balls; its bends and its growth.

Where f bends, and on which lengths, is found by halving intervals until a polynomial follows f on each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import mpmath
import numpy as np
import sympy as sp
from flint import arb, ctx

from momentgen.compiler.function.activation import Series, elementary
from momentgen.compiler.function.expressions import Expressions
from momentgen.compiler.function.pieces import Piece, Pieces
from momentgen.compiler.ir.graph import Graph, Real, horner, select
from momentgen.compiler.ir.kit import number
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.toolchain.arrays import F64, Bools
from momentgen.errors import BuildError
from momentgen.rule.symbols import x

_BITS = 256
FARTHEST = 1e6  # |x| looked at
FOLDS = 9.0  # powers of e that an f like exp(b x) may grow by for what is relative to its size
_IN_RANGE = 1e290  # |f| up to which products with weights are in range
_SIDE, _BESIDE = np.geomspace(1e-3, FARTHEST, 2001), np.linspace(0.95, 1.0, 33)
_DEGREE, _CHECKS = 20, 9
_LARGEST, _HALVINGS = 2.0, 14  # half-width of what a polynomial stands for, and how often it is halved
_CLOSE = 4e-15
_GRID = np.sinh(np.linspace(-12, 12, 1601)) / np.sinh(12) * 1e3
_TINY = 1e-300
_FAR = 1e5
_FOLLOWED, _CLOSELY, _FLOOR, _ROUNDING = 12, 1e-9, 1e-11, 2e-14
NEAREST, _MOST, _SHRINK, _SPREAD = 1e-8, 3000, 8.0, 40  # the shortest interval, and how many there may be
#: distances from a centre, and points, at which f is looked at for peaks
_WIDENING, _EVEN = np.sinh(np.linspace(-36, 36, 1601)) * 1e-9, np.linspace(-50, 50, 10001)
_NODES = np.cos(np.pi * (np.arange(_FOLLOWED + 1) + 0.5) / (_FOLLOWED + 1))
_TESTS = np.cos(np.pi * np.arange(1, _FOLLOWED + 1) / (_FOLLOWED + 1))
_COEFFICIENTS = np.linalg.inv(np.polynomial.chebyshev.chebvander(_NODES, _FOLLOWED))
_PREDICT = np.polynomial.chebyshev.chebvander(_TESTS, _FOLLOWED) @ _COEFFICIENTS


@dataclass(frozen=True)
class Growth:
    """How fast f grows far out, on the left and on the right.

    Attributes:
        ends: where f leaves the range, or the farthest x looked at.
        rates: b with f about exp(b |x|) before that; 0 where f stays in range.
    """

    ends: tuple[float, float]
    rates: tuple[float, float]


@dataclass(frozen=True)
class Resolution:
    """Intervals that resolve f: on each, a polynomial follows f to nine digits of its change nearby.

    Attributes:
        low, high: their ends, from left to right.
        reach: |x| up to which they were looked for.
    """

    low: F64
    high: F64
    reach: float

    @property
    def edges(self) -> F64:
        """All ends."""
        return np.unique(np.concatenate([self.low, self.high]))


@dataclass(frozen=True)
class Limit:
    """A polynomial in the place of an expression that is written as 0/0 at a point.

    Attributes:
        at: the point.
        width: how far from it the polynomial stands for the expression.
        coefficients: in powers of (x - at)/width, from low to high.
    """

    at: float
    width: float
    coefficients: tuple[float, ...]


class Branches:
    """The pieces of f, parameters among their symbols.

    Args:
        name: of the rule, for messages.
        pieces: f, resolved.
        parameters: their symbols.
        setting: of an f without parameters, the values that these were given, by name.
    """

    def __init__(
        self,
        name: str,
        pieces: Pieces,
        parameters: Sequence[sp.Symbol] = (),
        setting: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.name, self.pieces, self.parameters, self.setting = name, pieces, tuple(parameters), setting

    def at(self, setting: Mapping[str, float]) -> Branches:
        """The same with its parameters set."""
        values = {p: sp.Rational(float(setting[p.name])) for p in self.parameters}
        cut = [Piece(p.low.subs(values), p.high.subs(values), p.expr.subs(values)) for p in self.pieces]
        return Branches(self.name, Pieces(tuple(p for p in cut if p.low < p.high)), (), setting)

    @cached_property
    def kinks(self) -> F64:
        """The breakpoints, of an f without parameters."""
        return np.array([float(sp.N(k, 30)) for k in self.pieces.kinks])

    @cached_property
    def roots(self) -> F64:
        """The breakpoints, where pieces have roots or logarithms, which no polynomial follows up to there."""
        powers = [part for piece in self.pieces for part in piece.expr.atoms(sp.Pow, sp.log) if part.has(x)]
        rooted = any(isinstance(part, sp.log) or (part.exp.is_number and not part.exp.is_Integer) for part in powers)
        return self.kinks if rooted else np.array([])

    @cached_property
    def centres(self) -> tuple[float, ...]:
        """Points about which f may bend: the numbers in it, of either sign, and real parts of poles of fractions."""
        found: set[float] = set()
        for piece in self.pieces:
            for part in piece.expr.atoms(sp.Rational, sp.Float, sp.NumberSymbol):
                found |= {float(part), -float(part)}
            for part in piece.expr.atoms(sp.Pow):
                if part.base.is_polynomial(x) and part.base.has(x) and part.base.free_symbols == {x}:
                    found |= {float(sp.re(root)) for root in sp.Poly(part.base, x).nroots(n=15, maxsteps=200)}
        return tuple(at for at in found if abs(at) < _FAR)

    @cached_property
    def limits(self) -> tuple[tuple[Limit, ...], ...]:
        """By piece, where it is written as 0/0."""
        return tuple(tuple(self._limits(piece)) for piece in self.pieces)

    # --- as nodes ----------------------------------------------------------------
    def edge(self, graph: Graph, expr: sp.Expr, symbols: Mapping[sp.Symbol, Real]) -> Real:
        """A breakpoint."""
        if expr.is_number:
            return number(graph, expr)
        return Expressions(graph, symbols, self.name).node(expr)

    def node(self, graph: Graph, point: Real, home: Real, symbols: Mapping[sp.Symbol, Real]) -> Real:
        """f at ``point`` by the piece that holds ``home``; each piece sees points of its own interval alone."""
        result: Real | None = None
        for piece, limits in zip(self.pieces, self.limits, strict=True):
            held, low = point, None
            if piece.low.is_finite:
                low = self.edge(graph, piece.low, symbols)
                least = low + _TINY if low.constant == 0 else low
                held = select(held < least, least, held)
            if piece.high.is_finite:
                high = self.edge(graph, piece.high, symbols)
                most = high - _TINY if high.constant == 0 else high
                held = select(held > most, most, held)
            value = self._branch(graph, piece.expr, limits, held, symbols)
            result = value if result is None or low is None else select(home < low, result, value)
        if result is None:
            raise BuildError(self.name, "strategies", "expected an f of at least one piece")
        return result

    def _branch(
        self, graph: Graph, expr: sp.Expr, limits: Sequence[Limit], point: Real, symbols: Mapping[sp.Symbol, Real]
    ) -> Real:
        near = [abs(point - limit.at) <= limit.width for limit in limits]
        away = point
        for limit, close in zip(limits, near, strict=True):
            away = select(close, limit.at + limit.width, away)
        value = Expressions(graph, {**symbols, x: away}, self.name).node(expr)
        for limit, close in zip(limits, near, strict=True):
            value = select(close, horner((point - limit.at) * (1 / limit.width), limit.coefficients), value)
        return value

    # --- as numbers --------------------------------------------------------------
    @cached_property
    def _graph(self) -> Graph:
        graph = Graph(("x", "home"))
        graph.output("f", self.node(graph, graph.input("x"), graph.input("home"), {}))
        return graph

    def values(self, points: F64, homes: F64 | None = None) -> F64:
        """f in float64, of an f without parameters, by the pieces that hold ``homes``: by default the points' own."""
        return outputs_float64(self._graph, {"x": points, "home": points if homes is None else homes})["f"]

    @cached_property
    def growth(self) -> Growth:
        """How fast f grows, of an f without parameters."""
        (left, down), (right, up) = (self._side(sign) for sign in (-1.0, 1.0))
        return Growth((-left, right), (down, up))

    def _side(self, sign: float) -> tuple[float, float]:
        """How far f stays in range on a side, and its rate."""
        with np.errstate(all="ignore"):
            outside = np.flatnonzero(np.abs(self.values(sign * _SIDE)) > _IN_RANGE)
            if not outside.size:
                return FARTHEST, 0.0
            far, near = float(_SIDE[outside[0]]), float(_SIDE[outside[0] - 1]) if outside[0] else 0.0
            for _ in range(60):
                middle = (near + far) / 2
                inside = np.abs(self.values(np.array([sign * middle]))).item() <= _IN_RANGE
                near, far = (middle, far) if inside else (near, middle)
            last, half = (np.log(np.abs(self.values(sign * end * _BESIDE)).max()) for end in (near, near / 2))
        return near, float(f"{max(0.0, (last - half) / (near / 2)):.3g}")

    @cached_property
    def resolution(self) -> Resolution:
        """The intervals of an f without parameters; fewer decades of x where they were too many (a sine)."""
        reach = FARTHEST
        while (found := self._resolved(reach)) is None and reach >= 1:
            reach /= _SHRINK
        low, high = found or (np.array([-reach, 0.0]), np.array([0.0, reach]))
        return Resolution(low, high, reach)

    def _resolved(self, reach: float) -> tuple[F64, F64] | None:
        inner = self.kinks[np.abs(self.kinks) < reach]
        # Where f grows, an interval across many scales would be followed as closely as its largest values ask.
        scales = 4.0 ** np.arange(math.log(reach, 4))
        ends = np.clip(self.growth.ends, -reach, reach)
        edges = np.unique(np.concatenate([ends, [0.0], -scales, scales, inner]).clip(*ends))
        grid = np.unique(np.concatenate([edges, _EVEN, *(k + _WIDENING for k in {0.0, *inner, *self.centres})]))
        grid = grid[(ends[0] <= grid) & (grid <= ends[1])]
        values = self.values(grid)
        known = np.where(np.isfinite(values), values, 0.0)
        left, right = (min(_EVEN[-1], FOLDS / rate) if rate else _EVEN[-1] for rate in self.growth.rates)
        near = (-left <= grid) & (grid <= right)
        size = float(known[near].max() - known[near].min())
        low, high = edges[:-1], edges[1:]
        kept: list[tuple[F64, F64]] = []
        count = 0
        while low.size:
            followed = self._is_followed(low, high, grid, known, size)
            followed |= high - low <= NEAREST
            kept.append((low[followed], high[followed]))
            count += int(followed.sum())
            low, high = low[~followed], high[~followed]
            if count + low.size > _MOST:
                return None
            middle = (low + high) / 2
            low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        lows, highs = (np.concatenate(ends) for ends in zip(*kept, strict=True))
        order = np.argsort(lows)
        return lows[order], highs[order]

    def _is_followed(self, low: F64, high: F64, grid: F64, values: F64, size: float) -> Bools:
        middle, half = ((low + high) / 2)[:, None], ((high - low) / 2)[:, None]
        home = np.broadcast_to(middle, (low.size, _FOLLOWED + 1)).ravel()
        at_nodes = self.values((middle + half * _NODES).ravel(), home).reshape(low.size, -1)
        home = np.broadcast_to(middle, (low.size, _FOLLOWED)).ravel()
        at_tests = self.values((middle + half * _TESTS).ravel(), home).reshape(low.size, -1)
        error = np.abs(at_tests - at_nodes @ _PREDICT.T).max(1)
        change = at_nodes.max(1) - at_nodes.min(1)
        rows = at_nodes @ _COEFFICIENTS.T
        wide = np.zeros(low.size)
        for k, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            beside = values[np.searchsorted(grid, a - 1.5 * (b - a)) : np.searchsorted(grid, b + 1.5 * (b - a))]
            wide[k] = beside.max() - beside.min() if beside.size else 0.0
            inside = np.arange(np.searchsorted(grid, a, "right"), np.searchsorted(grid, b))
            if inside.size:  # a peak between the nodes
                inside = inside[:: max(1, inside.size // _SPREAD)]
                at = (grid[inside] - middle[k]) / half[k]
                error[k] = max(error[k], np.abs(np.polynomial.chebyshev.chebval(at, rows[k]) - values[inside]).max())
        allowed = _CLOSELY * np.maximum(change, wide) + _FLOOR * size + _ROUNDING * np.abs(at_nodes).max(1)
        with np.errstate(invalid="ignore"):
            return (error <= allowed) | ~np.isfinite(error)

    @cached_property
    def series(self) -> tuple[Series, ...]:
        """The pieces over balls."""
        try:
            return tuple(Series(piece.expr) for piece in self.pieces)
        except ValueError as error:
            raise BuildError(self.name, "strategies", str(error), self.pieces) from error

    def ball(self, point: arb, home: float) -> arb:
        """f at a ball, by the piece that holds ``home``; where that is written as 0/0, by its polynomial."""
        piece = int(np.searchsorted(self.kinks, home, side="right"))
        return self.series[piece].call(point)

    # --- limits ------------------------------------------------------------------
    def _limits(self, piece: Piece) -> Iterator[Limit]:
        expr = elementary(piece.expr)
        bases = {part.base for part in expr.atoms(sp.Pow) if part.exp.is_number and part.exp.is_negative}
        zeros = {zero for base in bases if base.has(x) for zero in _zeros(base, piece)}
        for zero in sorted(zeros):
            if (limit := self._limit(piece, zero)) is not None:
                yield limit

    def _limit(self, piece: Piece, at: float) -> Limit | None:
        if piece.expr.free_symbols - {x}:
            cause = f"f is written as 0/0 near x = {at:g}, where that depends on parameters"
            raise BuildError(self.name, "strategies", cause, piece.expr)
        low, high = (float(sp.N(end, 30)) for end in (piece.low, piece.high))
        series = Series(piece.expr)
        width = _LARGEST
        for _ in range(_HALVINGS):
            a, b = max(low, at - width), min(high, at + width)
            if (found := _fit(series, at, width, a, b)) is not None:
                return Limit(at, width, found)
            width /= 2
        return None


def _fit(series: Series, at: float, width: float, a: float, b: float) -> tuple[float, ...] | None:
    """The polynomial on [a, b] that is an expression, None where there is none so close."""
    angles = np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1)
    nodes = (a + b) / 2 + (b - a) / 2 * np.cos(angles)
    checks = np.linspace(a, b, _CHECKS + 2)[1:-1] + (b - a) * 1e-3
    with ctx.workprec(_BITS), mpmath.workdps(60):
        try:
            want, more = ([float(series.call(arb(p))) for p in points.tolist()] for points in (nodes, checks))
        except (ValueError, ZeroDivisionError):
            return None
    if not np.isfinite([*want, *more]).all():
        return None
    matrix = np.vander((nodes - at) / width, _DEGREE + 1, increasing=True)
    with mpmath.workdps(40):
        solved = mpmath.lu_solve(mpmath.matrix(matrix.tolist()), mpmath.matrix(want))
        coefficients = tuple(float(c) for c in solved)
    got = np.polynomial.polynomial.polyval((checks - at) / width, coefficients)
    close = np.abs(got - more).max() <= _CLOSE * max(np.abs(want).max(), _TINY)
    return coefficients if close else None


def _zeros(base: sp.Expr, piece: Piece) -> list[float]:
    """Where an expression in x alone is 0 within a piece, its ends included."""
    if base.free_symbols - {x}:
        usual = {s: sp.Rational(7, 5) for s in base.free_symbols - {x}}
        return _zeros(base.subs(usual), Piece(piece.low.subs(usual), piece.high.subs(usual), piece.expr))
    call = sp.lambdify(x, base, "mpmath")
    low, high = (float(sp.N(end, 30)) for end in (piece.low, piece.high))
    grid = np.unique([*_GRID, 0.0, *(end for end in (low, high) if np.isfinite(end))])
    grid = grid[(grid >= low) & (grid <= high)]
    found: list[float] = []
    with mpmath.workdps(40):
        signs = [(float(at), _sign(call, at)) for at in grid]
        found += [at for at, sign in signs if sign == 0]
        for (a, p), (b, q) in itertools.pairwise(signs):
            if p * q < 0:
                found.append(float(mpmath.findroot(call, (a, b), solver="anderson", verify=False)))
    return found


def _sign(call: object, at: float) -> int:
    try:
        value = call(mpmath.mpf(float(at)))  # type: ignore[operator]
    except (ValueError, ZeroDivisionError, OverflowError):
        return 2
    return int(mpmath.sign(mpmath.re(value)))
