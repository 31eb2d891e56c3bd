r"""The graph of :mod:`momentgen.compiler.strategies.surfaces.fine_surface`: outputs and partials in float64.

Of each polynomial there is the table of its powers; where partials are wanted its two derivatives are computed beside
it.  The number of the cell, by which elements can be put in order, is found without a root.  Beyond the reach an output
does not change with mu, but for what was subtracted from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import Graph, Real, exp_mantissa, horner, madd, select
from momentgen.compiler.ir.kit import CENTRE, core
from momentgen.compiler.ir.surface import surface_of
from momentgen.compiler.strategies.surfaces.fine_output import (
    PARTIALS_OF,
    cut_at,
    cut_below,
    falls,
    growth_of,
    slope_share,
)
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces
from momentgen.compiler.strategies.surfaces.surface import lines_of, steps
from momentgen.compiler.strategies.surfaces.surface_graph import Variables, held

#: of the smoothed kink: its largest |t|, the error of its fit, and the unit of t in it
KINK_REACH, _FIT, KINK_UNIT = 37.5, 1e-16, 4.0
#: what is no larger has a square that is a number; what is has one that is no subnormal once scaled
_LARGE, _SMALLER = 2.0**500, 2.0**-600


def fine_core(order: int) -> Polynomial:
    """What the smoothed kink is computed by, or of order 0 its slope's tail."""
    return core(order, KINK_REACH, _FIT, KINK_UNIT)


class FineWriter:
    """Writes outputs or partials on a graph with inputs ``mean`` and ``var``.

    ``v`` is the variance.  Below the range of the polynomials it is the lower end of that range.
    """

    def __init__(self, graph: Graph, f: Activation, surfaces: FineSurfaces, v: Real) -> None:
        self.g, self.f, self.surfaces, self.v = graph, f, surfaces, v
        self.u = graph.input("mean") - f.centre
        self.at = Variables(graph, surfaces.frame, f.centre, v)
        #: q, 1 at the least variance
        self.q = self.at.r * mpmath.sqrt(mpmath.mpf(surfaces.frame.least))
        self.wide: Real | None = None
        if surfaces.cells.least:
            least = graph.const(surfaces.cells.least)
            self.wide = self.q < least
            self.q = select(self.wide, least, self.q)
        self.cell = self._cell()

    # --- polynomials -------------------------------------------------------------
    def _cell(self) -> Real:
        """The number of the cell: rows from low q to high, and in each columns from low x to high."""
        g, frame, cells = self.g, self.surfaces.frame, self.surfaces.cells
        cell = g.const(0)
        if cells.count == 1:
            return cell
        across = g.const(len(cells.columns))
        for q in cells.q:
            cell = cell + select(self.v < cut_below(frame, q), across, 0)
        # t² against a cut, with its sign where that counts, without a root or a quotient: what overflows is scaled down
        scale = select(abs(self.u) < _LARGE, 1, _SMALLER)
        u, w2 = self.u * scale, (self.v + frame.c) * scale * scale
        square = u * (u if cells.folded else abs(u))
        for low, _ in cells.columns[1:]:
            cut = math.copysign(cut_at(frame, low), low)
            cell = cell + select(w2 * cut < square, 1, 0)
        return cell.named("the cell")

    def with_slopes(self, name: str, derived: bool = True) -> tuple[Real, Real, Real]:
        """P of an output, and its derivatives in mu and in v, or 0 for these."""
        g, at, q, surface = self.g, self.at, self.q, self.surfaces.outputs[name]
        shape = surface.shape
        two_q, one = q * 2, g.const(1)
        y = at.x if shape.parity is None else at.y
        z = madd(q, two_q if shape.squared else g.const(2), -1)
        plain, by_y, by_z = surface_of(y, z, surface.patches, derived, self.cell)
        of_x, of_q = at.x if shape.parity else one, q if shape.by_q else one
        factor = of_x * of_q
        value = plain * factor
        value = value.named(f"{name}, normalised")
        if not derived:
            return value, g.const(0), g.const(0)
        by_x = by_y * factor * (one if shape.parity is None else at.x * 4)
        by_q = by_z * factor * (two_q * 2 if shape.squared else g.const(2))
        if self.wide is not None:
            by_q = select(self.wide, 0, by_q)
        if shape.parity:
            by_x = madd(plain, of_q, by_x)
        if shape.by_q:
            by_q = madd(plain, of_x, by_q)
        by_t = by_x * select(at.beyond, 0, at.x_by_t())
        half = at.r * at.r * -0.5
        return value, by_t * at.r, half * madd(at.t, by_t, q * by_q)

    # --- what polynomials are multiples of, and what is added --------------------
    def power(self, name: str) -> Real:
        """The power of r that P is multiplied by."""
        return math.prod([self.at.r] * falls(self.f, name), start=self.g.const(1))

    def grown(self, name: str) -> tuple[Real, Real]:
        """What else P is multiplied by, a variance or 1, and its derivative in v."""
        g, at, growth = self.g, self.at, growth_of(self.f, name, self.at.frame)
        if growth == "bounded":
            share = at.r * at.r * at.frame.c
            return self.v * at.r * (at.r * at.frame.c), share * share
        return (self.v, g.const(1)) if growth == "v" else (g.const(1), g.const(0))

    def unit(self, name: str) -> Real:
        """What P is multiplied by."""
        return self.grown(name)[0] * self.power(name)

    def unit_by_v(self, name: str) -> Real:
        """Its derivative in v."""
        g, at = self.g, self.at
        half = g.const(mpmath.mpf(-falls(self.f, name)) / 2)
        value = self.unit(name) * (at.r * at.r * half)
        return madd(self.grown(name)[1], self.power(name), value)

    def kink(self, order: int) -> tuple[Real, Real]:
        """exp(-t²/2), and that times J_order(|t|)/sqrt(2 pi): of 1 the mean of a kink, of 0 its slope's tail."""
        at = self.at
        t = abs(self.u * at.r)
        t = select(t > KINK_REACH, KINK_REACH, t)
        density = exp_mantissa(t * t * -0.5)
        inverse = 1 / madd(t, 1 / KINK_UNIT, 1)
        value = horner(inverse - CENTRE, fine_core(order).coefficients)
        return density, density * math.prod([inverse] * (order + 1), start=value)

    # --- outputs -----------------------------------------------------------------
    def mean(self) -> Real:
        """Its lines, the kink between them smoothed, and the rest."""
        at = self.at
        a, b, a2, b2 = lines_of(self.f)
        rest = self.with_slopes("mean", derived=False)[0] * self.unit("mean")
        if b == b2:
            rest = select(at.beyond, 0, rest)
        if self.f.algebraic and b != b2:
            height, left = mpmath.mpf(b2) - b, self.u < 0
            rest = madd(self.kink(0)[1], select(left, height, -height), rest) + select(left, b, b2)
        else:
            rest = rest + (mpmath.mpf(b) + b2) / 2
        if steps(self.f):
            rest = madd(at.w, self.kink(1)[1] * (mpmath.mpf(a2) - a), rest)
        slope = select(self.u < 0, a, a2)
        return held(self.f, madd(slope, self.u, rest))

    def variance(self) -> Real:
        """At least 0."""
        rest = self.unit("var") * self.with_slopes("var", derived=False)[0]
        value = madd(self.v, slope_share(self.f, "var"), rest)
        return select(value < 0, 0, value)

    def partials(self, name: str) -> tuple[Real, Real]:
        """An output's partials in mu and in v."""
        g, at = self.g, self.at
        (value, p_mu, p_v), unit = self.with_slopes(name), self.unit(name)
        by_mu, by_v = unit * p_mu, madd(unit, p_v, self.unit_by_v(name) * value)
        if name != "mean":
            return by_mu, by_v + slope_share(self.f, name)
        a, b, a2, b2 = lines_of(self.f)
        if b == b2:
            by_v = select(at.beyond, 0, by_v)
        negative = self.u < 0
        slope = select(negative, a, a2)
        if steps(self.f):
            rise = mpmath.mpf(a2) - a
            density, tail = self.kink(0)
            slope = madd(tail, select(negative, rise, -rise), slope)
            half = g.const(rise / (2 * mpmath.sqrt(2 * mpmath.pi)))
            by_v = madd(density * half, at.r, by_v)
        if self.f.algebraic and b != b2:
            step = self.kink(0)[0] * at.r * ((mpmath.mpf(b2) - b) / mpmath.sqrt(2 * mpmath.pi))
            slope, by_v = slope + step, madd(step * at.r * -0.5, at.t, by_v)
        return by_mu + slope, by_v

    def values(self, outputs: Sequence[str]) -> dict[str, Real]:
        """Those of ``outputs`` that there are polynomials of, and of partials of these."""
        found = {}
        for name in self.surfaces.outputs:
            if name in outputs:
                found[name] = self.mean() if name == "mean" else self.variance()
            if PARTIALS_OF[name][0] in outputs:
                found |= dict(zip(PARTIALS_OF[name], self.partials(name), strict=True))
        return found


def build_fine_graph(f: Activation, surfaces: FineSurfaces, outputs: Sequence[str]) -> Graph:
    """The graph of ``outputs``, of those that there are polynomials of and their partials."""
    graph = Graph(("mean", "var"))
    for name, value in FineWriter(graph, f, surfaces, graph.input("var")).values(outputs).items():
        graph.output(name, value)
    return graph
