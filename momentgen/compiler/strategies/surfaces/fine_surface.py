r"""Moments of a smooth activation in float64: polynomials of two variables whose derivatives are the partials.

The variables, and what is divided out and subtracted, are those of
:mod:`momentgen.compiler.strategies.surfaces.surface`, as :mod:`momentgen.compiler.strategies.surfaces.fine_output` has
them for float64.  Other than in float32 there is no polynomial for each partial: a partial is the derivative of its
output's, so that gradients are those of what is computed.  Of each output there is one for each cell of the plane of
the variables (:mod:`momentgen.compiler.strategies.surfaces.fine_output`): the cells are the same for all, so that
elements can be put in order by cell once.

Polynomials are Chebyshev series through exact values, without the terms that the accuracy of neither output nor
partials (``ALLOWED``) needs, measured at other points than those; of an f that bends so sharply that this would take
too many, they are ten times less accurate, or a hundred.  The frame and the cells are those of a few in which an
element costs least, by the size of the terms of a series over the whole plane.

An f that nears its lines as a power of 1/x has moments that are no smooth functions of q = sqrt(c)/w about 0:
E sqrt(1 + X²) has a q² log q.  They are smooth in a row that reaches from some q to a few times that q.  Beyond some
abs(x) f's lines are all that counts; where sigma is as large as that, q counts no more.  Rows are the wider, in
logarithms, the lower, because there is the less to follow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial import chebyshev

from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.fit.bivariate import Grid, coefficients_of, degrees_above, nodes, powers_of, values_over
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import Patch
from momentgen.compiler.strategies.surfaces.fine_output import (
    ALLOWED,
    OF_SLOW,
    OF_TAILS,
    Cells,
    Exact,
    Output,
    Points,
    Shape,
    Span,
    to_unit,
)
from momentgen.compiler.strategies.surfaces.surface import Frame, end_of, last_apart, steps, turning_of
from momentgen.compiler.toolchain.arrays import F64
from momentgen.errors import BuildError

Rows = tuple[tuple[float, ...], ...]
_SHARE, _END = 0.9, 0.1  # of what is allowed: for the series, for what lies beyond the reach
#: |t| at which what is left of a normal distribution is less than that of all, and of its first moment
_NORMAL = {False: 7.0, True: 7.5}
_WIDTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0)  # c in units of length²
_BEND, _BENDS_SMOOTHED = 3.5, (3.5, 4.0, 5.0, 7.0)  # kappa; that of an f smoothed by the least v
_CUTS_Q: tuple[tuple[float, ...], ...] = ((), (0.65,), (0.5, 0.8), (0.4, 0.65, 0.85))
_CUTS_X: tuple[tuple[float, ...], ...] = ((), (0.45,), (0.35, 0.65), (0.25, 0.5, 0.75))
_OVER_PLANE, _IN_CELL = (64, 96, 256), (40, 56)  # nodes: in z, in y of x², in x; in a cell's
#: of an f that nears its lines slowly: how many rows, from v = 0 and from another; cuts in x, nodes in a cell, and c
_SLOW_ROWS, _SLOW_X = {True: 8, False: 12}, ((0.45, 0.75), (0.35, 0.6, 0.8))
_IN_SLOW_CELL, _SLOW_WIDTHS = (18, 24), (1.0, 3.0, 9.0)
_SPARE, _CLOSER = (1.5, 6), (1.4, 3)  # nodes in a cell for each term in a direction; for each to look at errors
#: what it costs, in terms: to put an element in order, to begin a row of a table, to keep a term
_ORDER, _ROW, _KEPT = 100, 5, 0.05
_TRIED, _DEARER = 3, 2  # frames and cells; frames after the best one, which is looked for from narrow to wide
_LOOSER, _LARGEST = (1.0, 10.0, 100.0, 1000.0), 1000  # times what is allowed; terms in a cell
_LIKELY = 0.1  # of what is allowed: about how large the terms are that count
_STEEP = 8.0  # the order from which on a term's derivatives weigh more than itself
_BISECTIONS, _MORE_DECIMALS = 8, 4


@dataclass(frozen=True)
class FineSurface:
    """The polynomials of one output.

    Attributes:
        shape: what they are of.
        patches: by cell.
        error: the largest error of output and partials over what is allowed.
    """

    shape: Shape
    patches: tuple[Patch, ...]
    error: float

    @property
    def terms(self) -> int:
        """How many coefficients there are."""
        return sum(len(row) for patch in dict.fromkeys(self.patches) for row in patch.table)


@dataclass(frozen=True)
class FineSurfaces:
    """Outputs in one frame, with the same cells; ``goals`` is what an error of 1 is."""

    frame: Frame
    cells: Cells
    outputs: Mapping[str, FineSurface]
    goals: Mapping[str, float]

    @property
    def error(self) -> float:
        """The largest error over what is allowed."""
        return max(surface.error for surface in self.outputs.values())


def find_fine_surfaces(
    f: Activation,
    truth: QuadratureTruth | GeneralTruth,
    outputs: Sequence[str],
    start: float = 0.0,
    most: int = 100,
    goals: Mapping[str, float] | None = None,
) -> FineSurfaces:
    """The polynomials of ``outputs``, mean or variance.

    Args:
        start: the least v that they serve.
        most: the most cells, but where these are not enough.
        goals: the errors allowed; None: ``ALLOWED``, ``OF_SLOW`` where f nears its lines slowly, or ``OF_TAILS`` where
            that is what f is made of.

    Raises:
        BuildError: if no frame comes near what is allowed.
    """
    if goals is None:
        goals = OF_SLOW if f.algebraic else OF_TAILS if f.smoothings and not start else ALLOWED
    exact = Exact(truth)
    plans: list[_Plan] = []
    finest: list[_Plan] = []
    least, dearer = math.inf, 0
    for frame in _frames(f, start, goals):
        every = _plans(frame, [Output(f, frame, name, exact, goals) for name in outputs])
        finest.append(every[-1])
        every = [plan for plan in every if plan.cells.count <= most]
        plans += every
        cost = min(plan.cost for plan in every)
        least, dearer = min(cost, least), dearer + 1 if cost > least else 0
        if dearer == _DEARER:
            break
    best: FineSurfaces | None = None
    # Of an f for which few cells are not enough: its polynomials would have coefficients that float64 does not hold.
    for plan in [*sorted(plans, key=lambda plan: plan.cost)[:_TRIED], min(finest, key=lambda plan: plan.cost)]:
        found = plan.fitted()
        if found and (best is None or found.error < best.error):
            best = found
        if best and best.error <= 1:
            return best
    if best is None:
        cause = f"no polynomial in two variables for {', '.join(outputs)} in float64"
        raise BuildError(f.name, "strategies", cause, f.length)
    return best


def _frames(f: Activation, start: float, goals: Mapping[str, float]) -> list[Frame]:
    """Those that are tried."""
    if f.algebraic:
        # The variance nears that of the lines as length/sigma.
        end = max(far_out(f, _END * goals["mean"], _END * goals["var"]), f.length / (_END * goals["var"]))
        widths = [0.0] if start else [float(np.float32(width * turning_of(f) ** 2)) for width in _SLOW_WIDTHS]
        return [Frame(c, _BEND, float(np.float32(end / math.sqrt(c + start))), start, both=True) for c in widths]
    end = end_of(f, _END * goals["mean"], _END * goals["var"])
    normal = math.sqrt(_NORMAL[steps(f)] ** 2 + 2 * max(math.log(ALLOWED["mean"] / goals["mean"]), 0.0))
    if start:  # smoothed, f ends so much farther out
        reach = float(np.float32(normal + end / math.sqrt(start)))
        return [Frame(0.0, bend, reach, start) for bend in _BENDS_SMOOTHED]
    widths = sorted({float(np.float32(c)) for c in (*(width * f.length**2 for width in _WIDTHS), *f.smoothings)})
    reaches = [float(np.float32(max(normal, end / math.sqrt(c)))) for c in widths]
    return [Frame(c, _BEND, reach) for c, reach in zip(widths, reaches, strict=True)]


def _plans(frame: Frame, outputs: Sequence[Output]) -> list[_Plan]:
    """Ways to cut the plane of a frame, the finest last."""
    folded = all(output.shape.parity is not None for output in outputs)
    if outputs[0].f.algebraic:
        rows, by_cell = slow_rows(_SLOW_ROWS[frame.start == 0], frame.slowest), [_ByCell(one) for one in outputs]
        return [_Plan(frame, Cells(rows, x, folded, frame.slowest), by_cell) for x in _SLOW_X]
    kept = [_OverPlane(one) for one in outputs]
    return [_Plan(frame, Cells(q, x, folded), kept) for q, x in itertools.product(_CUTS_Q, _CUTS_X)]


class _ByCell:
    """An output, and the series that a cell will take: each its own, where no one series is of the whole plane."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.known: dict[tuple[Span, Span], tuple[int, ...]] = {}

    def terms(self, y: Span, z: Span) -> tuple[int, ...]:
        """About how many a cell takes, by power of z."""
        if (y, z) not in self.known:
            sizes = _sizes(*self.series(y, z), self.output.shape, y, z)
            self.known[y, z] = degrees_above(sizes, _LIKELY)
        return self.known[y, z]

    def series(self, y: Span, z: Span) -> tuple[F64, float]:
        """That of a cell, and the largest value over what is allowed of a P of 1."""
        output, grid = self.output, Grid(*_IN_SLOW_CELL, self.output.shape.parity is None)
        at = _points(output, grid, y, z)
        return _series(output, grid, at, output.allowed(at))


class _OverPlane(_ByCell):
    """An output whose series over all of the plane tells what a cell will take."""

    def __init__(self, output: Output) -> None:
        super().__init__(output)
        shape, (rows, of_square, of_x) = output.shape, _OVER_PLANE
        grid = Grid(rows, of_x) if shape.parity is None else Grid(rows, of_square, both=False)
        at = output.points(shape.q_of(grid.z), shape.x_of(grid.y))
        weight = output.unit(at) * shape.factor(np.ones(1), at.q) / output.allowed(at)[output.name]
        self.whole, self.z, self.weight = grid.series(output.normal(at), weight[:, 0]), grid.z, weight[:, 0]

    def series(self, y: Span, z: Span) -> tuple[F64, float]:
        of_z, of_y = (_between(*span, nodes(count)) for span, count in zip((z, y), _IN_CELL, strict=True))
        weight = np.interp([*z, *of_z], self.z[::-1], self.weight[::-1]).max()
        return coefficients_of(values_over(self.whole, of_z, of_y)), float(weight)


class _Plan:
    """Outputs in a frame, with cells."""

    def __init__(self, frame: Frame, cells: Cells, outputs: Sequence[_ByCell]) -> None:
        self.frame, self.cells, self.outputs = frame, cells, outputs

    @cached_property
    def cost(self) -> float:
        """About what an element costs, in terms: those of a cell on average, and a little for what is kept of all."""
        places = list(itertools.product(range(len(self.cells.rows)), range(len(self.cells.columns))))
        spent, kept = 0, 0
        for one in self.outputs:
            shape = one.output.shape
            of = {place: one.terms(*shape.spans(self.cells, *place)) for place in places}
            spent += sum(sum(terms) + _ROW * len(terms) for terms in of.values())
            kept += sum(sum(t) for t in {shape.number(self.cells, *place): t for place, t in of.items()}.values())
        return spent / len(places) + _KEPT * kept + (_ORDER if len(places) > 1 else 0)

    def fitted(self) -> FineSurfaces | None:
        """The polynomials; None if one takes too many terms."""
        found = {one.output.name: self._surface(one) for one in self.outputs}
        whole = {name: surface for name, surface in found.items() if surface}
        if len(whole) < len(found):
            return None
        return FineSurfaces(self.frame, self.cells, whole, self.outputs[0].output.goals)

    def _surface(self, one: _ByCell) -> FineSurface | None:
        shape, cells = one.output.shape, self.cells
        made: dict[tuple[int, int], tuple[Patch, float]] = {}
        patches: list[Patch] = []
        for row in range(len(cells.rows)):
            columns = {shape.number(cells, row, j): shape.spans(cells, row, j) for j in range(len(cells.columns))}
            for number, fit in zip(columns, _row_of_fits(one, list(columns.values())), strict=True):
                if (found := fit.patch()) is None:
                    return None
                made[number] = found
            patches += [made[shape.number(cells, row, j)][0] for j in range(len(cells.columns))]
        return FineSurface(shape, tuple(patches), max(error for _, error in made.values()))


def _row_of_fits(one: _ByCell, spans: Sequence[tuple[Span, Span]]) -> list[_Fit]:
    """The cells of a row, in which the largest value of a partial at a variance may lie in any."""
    terms = [one.terms(*each) for each in spans]
    factor, more = _SPARE
    rows = math.ceil(factor * max(map(len, terms), default=0)) + more
    columns = math.ceil(factor * max((max(each, default=0) for each in terms), default=0)) + more
    grids = [
        Grid(int(n * rows) + k, int(n * columns) + k, one.output.shape.parity is None) for n, k in ((1, 0), _CLOSER)
    ]
    points = [[_points(one.output, grid, *each) for each in spans] for grid in grids]
    allowed = []
    for parts in points:
        each = [one.output.allowed(at) for at in parts]
        allowed.append({name: np.max([part[name] for part in each], axis=0) for name in each[0]})
    return [
        _Fit(one.output, span, grids, (points[0][k], points[1][k]), (allowed[0], allowed[1]))
        for k, span in enumerate(spans)
    ]


def _points(output: Output, grid: Grid, y: Span, z: Span) -> Points:
    shape = output.shape
    return output.points(shape.q_of(_between(*z, grid.z)), shape.x_of(_between(*y, grid.y)))


class _Fit:
    """One output in one cell: its series through exact values, and exact values elsewhere."""

    def __init__(
        self,
        output: Output,
        spans: tuple[Span, Span],
        grids: Sequence[Grid],
        points: tuple[Points, Points],
        allowed: tuple[Mapping[str, F64], Mapping[str, F64]],
    ) -> None:
        self.output, self.spans, self.grid = output, spans, grids[1]
        self.at, self.allowed = points[1], allowed[1]
        self.series, self.weight = _series(output, grids[0], points[0], allowed[0])
        self.sizes = _sizes(self.series, self.weight, output.shape, *spans)

    def patch(self) -> tuple[Patch, float] | None:
        """The polynomial with the fewest of the largest terms that is within what is allowed, or near; its error."""
        for looser in _LOOSER:
            low, high = math.log10(looser) - 4.0, math.log10(looser) + 1.0  # of the least size
            best: F64 | None = None
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                kept = self._kept(10.0**middle)
                if self._error(kept) <= _SHARE * looser:
                    best, low = kept, middle
                else:
                    high = middle
            if best is not None and (found := self._rounded(best, looser)):
                return found
        return None

    def _kept(self, least: float) -> F64:
        """The series without terms that are smaller."""
        degrees = degrees_above(self.sizes, least)
        series = np.zeros((max(len(degrees), 1), max((*degrees, 1))))
        for j, n in enumerate(degrees):
            series[j, :n] = self.series[j, :n]
        return series

    def _rounded(self, kept: F64, looser: float) -> tuple[Patch, float] | None:
        """The powers of a series, with as few decimals as are enough; None where float64 does not hold them."""
        exact = powers_of(kept)
        lengths = [int(np.flatnonzero(row)[-1]) + 1 if row.any() else 1 for row in kept]
        if sum(lengths) > _LARGEST:
            return None
        fewest = math.ceil(math.log10(math.sqrt(sum(lengths)) * self.weight / looser))
        for decimals in range(fewest, fewest + _MORE_DECIMALS):
            table = tuple(
                tuple(round(float(c), decimals) for c in row[:n]) for row, n in zip(exact, lengths, strict=True)
            )
            error = self._error(_series_of(table))
            if error <= looser:
                y, z = map(to_unit, self.spans)
                return Patch(table, y, z), error
        return None

    def _error(self, series: F64) -> float:
        """The largest error of output and partials, over what is allowed."""
        at, shape, output = self.at, self.output.shape, self.output
        (y_scale, _), (z_scale, _) = map(to_unit, self.spans)
        plain, by_y, by_z = (
            values_over(each, self.grid.z, self.grid.y)
            for each in (series, chebyshev.chebder(series, axis=1), chebyshev.chebder(series, axis=0))
        )
        factor = shape.factor(at.x, at.q)
        of_x, of_q = shape.factor(at.x, np.ones_like(at.q)), shape.factor(np.ones_like(at.x), at.q)
        by_x = by_y * y_scale * shape.y_by_x(at.x) * factor + (plain * of_q if shape.parity else 0.0)
        by_q = by_z * z_scale * shape.z_by_q(at.q) * factor + (plain * of_x if shape.by_q else 0.0)
        found = output.outputs(at, plain * factor, by_x * output.x_by_t(at), by_q)
        return max(float((np.abs(found[n] - at.exact[n]) / self.allowed[n]).max()) for n in found)


def _series(output: Output, grid: Grid, at: Points, allowed: Mapping[str, F64]) -> tuple[F64, float]:
    """An output's series in a cell, and the largest value over what is allowed of a P of 1."""
    size = output.shape.factor(np.abs(at.x), at.q).max(axis=1, keepdims=True)
    weight = (output.unit(at) * size / allowed[output.name])[:, 0]
    return grid.series(output.normal(at), weight), float(weight.max())


def _sizes(series: F64, weight: float, shape: Shape, y: Span, z: Span) -> F64:
    """How much terms count, their derivatives included, over what is allowed."""
    j, i = np.indices(series.shape)
    slopes = (1 if shape.parity is None else 2) * to_unit(y)[0] * i + to_unit(z)[0] * j
    return np.asarray(np.abs(series) * weight * (1 + slopes / _STEEP))


def _series_of(table: Rows) -> F64:
    """Powers of y and z as a Chebyshev series."""
    width = max(map(len, table))
    powers = np.array([[*row, *[0.0] * (width - len(row))] for row in table])
    return _of_powers(_of_powers(powers).T).T


def _of_powers(rows: F64) -> F64:
    """Each row's powers as a Chebyshev series: NumPy's ``poly2cheb``, of all rows at once."""
    series = np.zeros_like(rows)
    for column in rows.T[::-1]:
        times_x = np.zeros_like(rows)
        times_x[:, 1:2] = series[:, :1]
        half = series[:, 1:] / 2
        times_x[:, 2:] = half[:, :-1]
        times_x[:, : half.shape[1]] += half
        series = times_x
        series[:, 0] += column
    return series


def _between(low: float, high: float, share: F64) -> F64:
    """Points from -1 to 1 in a span."""
    return (low + high) / 2 + (high - low) / 2 * share


_WIDENING = 1.8  # power of what is left of the row's number


def far_out(f: Activation, mean: float, var: float) -> float:
    """abs(x - centre) beyond which f is its lines but for so much of max(1, |f|), and f'² but for that of L²."""
    away = f.length * np.geomspace(1.0, 1e12, 241)
    return last_apart(f, away, lambda line: mean * np.maximum(1.0, np.abs(line)), var)


def slow_rows(count: int, least: float) -> tuple[float, ...]:
    """Cuts in q, from low to high, between as many rows from ``least`` to 1.

    >>> [round(q, 3) for q in slow_rows(3, 1e-3)]
    [0.036, 0.384]
    """
    return tuple(float(least ** ((k / count) ** _WIDENING)) for k in range(count - 1, 0, -1))
