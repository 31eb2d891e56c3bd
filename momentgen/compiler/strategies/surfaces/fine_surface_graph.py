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
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.strategies.homogeneous.kink_fits import CENTRE, core
from momentgen.compiler.strategies.surfaces.fine_cells import cut_at, cut_below
from momentgen.compiler.strategies.surfaces.fine_output import PARTIALS_OF, falls, growth_of, slope_share
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces
from momentgen.compiler.strategies.surfaces.fine_tails import fades
from momentgen.compiler.strategies.surfaces.surface import lines_of, steps
from momentgen.compiler.strategies.surfaces.surface_graph import Variables, held

__all__ = ["KINK_REACH", "KINK_UNIT", "FineWriter", "build_fine_graph", "fine_core"]

#: of the smoothed kink: its largest |t|, the error of its fit, and the unit of t in it
KINK_REACH, _FIT, KINK_UNIT = 37.5, 1e-16, 4.0
#: what is no larger has a square that is a number; what is has one that is no subnormal once scaled
_LARGE, _SMALLER = 2.0**500, 2.0**-600


def fine_core(order: int) -> Polynomial:
    """What the smoothed kink is computed by, or of order 0 its slope's tail."""
    return core(order, KINK_REACH, _FIT, KINK_UNIT)


class FineWriter:
    """Writes outputs or partials.

    Args:
        graph: with inputs ``mean`` and ``var``.
        f: the activation.
        surfaces: its polynomials.
        v: the variance; of polynomials that serve from a variance on, no less than that.
    """

    def __init__(self, graph: Graph, f: Activation, surfaces: FineSurfaces, v: int) -> None:
        self.g, self.f, self.surfaces, self.v = graph, f, surfaces, v
        self.u = graph.sub(graph.input("mean"), graph.const(f.centre))
        self.at = Variables(graph, surfaces.frame, f.centre, v)
        #: q, 1 at the least variance
        self.q = graph.mul(self.at.r, graph.const(mpmath.sqrt(mpmath.mpf(surfaces.frame.least))))
        self.wide: int | None = None
        if surfaces.cells.least:
            least = graph.const(surfaces.cells.least)
            self.wide = graph.lt(self.q, least)
            self.q = graph.select(self.wide, least, self.q)
        self.cell = self._cell()

    # --- polynomials -------------------------------------------------------------
    def _cell(self) -> int:
        """The number of the cell: rows from low q to high, and in each columns from low x to high."""
        g, frame, cells = self.g, self.surfaces.frame, self.surfaces.cells
        cell, one, zero = g.const(0), g.const(1), g.const(0)
        if cells.count == 1:
            return cell
        across = g.const(len(cells.columns))
        for q in cells.q:
            cell = g.add(cell, g.select(g.lt(self.v, g.const(cut_below(frame, q))), across, zero))
        # t² against a cut, with its sign where that counts, without a root or a quotient: what overflows is scaled down
        scale = g.select(g.lt(g.abs(self.u), g.const(_LARGE)), one, g.const(_SMALLER))
        u, w2 = g.mul(self.u, scale), g.mul(g.mul(g.add(self.v, g.const(frame.c)), scale), scale)
        square = g.mul(u, u if cells.folded else g.abs(u))
        for low, _ in cells.columns[1:]:
            cut = math.copysign(cut_at(frame, low), low)
            cell = g.add(cell, g.select(g.lt(g.mul(w2, g.const(cut)), square), one, zero))
        return g.comment(cell, "the cell")

    def polynomial(self, name: str) -> int:
        """P of an output."""
        return self.with_slopes(name, derived=False)[0]

    def with_slopes(self, name: str, derived: bool = True) -> tuple[int, int, int]:
        """P of an output, and its derivatives in mu and in v, or 0 for these."""
        g, at, q, surface = self.g, self.at, self.q, self.surfaces.outputs[name]
        shape = surface.shape
        two_q, one = g.mul(q, g.const(2)), g.const(1)
        y = at.x if shape.parity is None else at.y
        z = g.madd(q, two_q if shape.squared else g.const(2), g.const(-1))
        plain, by_y, by_z = g.surface(y, z, surface.patches, derived, self.cell)
        of_x, of_q = at.x if shape.parity else one, q if shape.by_q else one
        factor = g.mul(of_x, of_q)
        value = g.mul(plain, factor)
        fades_too, fading = fades(self.f, name), one
        if fades_too:
            fading = g.mul(at.share, g.const(mpmath.mpf(at.frame.bend) * mpmath.mpf(at.frame.largest)))
        faded = g.comment(g.mul(value, fading) if fades_too else value, f"{name}, normalised")
        if not derived:
            return faded, g.const(0), g.const(0)
        by_x = g.mul(g.mul(by_y, factor), one if shape.parity is None else g.mul(at.x, g.const(4)))
        by_q = g.mul(g.mul(by_z, factor), g.mul(two_q, g.const(2)) if shape.squared else g.const(2))
        if self.wide is not None:
            by_q = g.select(self.wide, g.const(0), by_q)
        if shape.parity:
            by_x = g.madd(plain, of_q, by_x)
        if shape.by_q:
            by_q = g.madd(plain, of_x, by_q)
        # dx/dt = kappa² largest² share³, and 0 beyond the reach
        scale = g.const(mpmath.mpf(at.frame.bend) ** 2 * mpmath.mpf(at.frame.largest) ** 2)
        x_by_t = g.mul(g.mul(at.share, at.share), g.mul(at.share, scale))
        by_t = g.mul(by_x, g.select(at.beyond, g.const(0), x_by_t))
        if fades_too:
            steeper = g.mul(g.mul(at.share, at.share), g.mul(at.t, g.const(mpmath.mpf(at.frame.largest) ** 2)))
            by_t = g.sub(by_t, g.mul(value, g.select(at.beyond, g.const(0), steeper)))
            by_t, by_q = g.mul(by_t, fading), g.mul(by_q, fading)
        half = g.mul(g.mul(at.r, at.r), g.const(-0.5))
        return faded, g.mul(by_t, at.r), g.mul(half, g.madd(at.t, by_t, g.mul(q, by_q)))

    # --- what polynomials are multiples of, and what is added --------------------
    def power(self, name: str) -> int:
        """The power of r that P is multiplied by."""
        g, at = self.g, self.at
        value = g.const(1)
        for _ in range(falls(self.f, name)):
            value = g.mul(value, at.r)
        return value

    def grown(self, name: str) -> tuple[int, int]:
        """What else P is multiplied by, a variance or 1, and its derivative in v."""
        g, at, growth = self.g, self.at, growth_of(self.f, name, self.at.frame)
        if growth == "bounded":
            share = g.mul(g.mul(at.r, at.r), g.const(at.frame.c))
            return g.mul(g.mul(self.v, at.r), g.mul(at.r, g.const(at.frame.c))), g.mul(share, share)
        return (self.v, g.const(1)) if growth == "v" else (g.const(1), g.const(0))

    def unit(self, name: str) -> int:
        """What P is multiplied by."""
        return self.g.mul(self.grown(name)[0], self.power(name))

    def unit_by_v(self, name: str) -> int:
        """Its derivative in v."""
        g, at = self.g, self.at
        half = g.const(mpmath.mpf(-falls(self.f, name)) / 2)
        value = g.mul(self.unit(name), g.mul(g.mul(at.r, at.r), half))
        return g.madd(self.grown(name)[1], self.power(name), value)

    def kink(self, order: int) -> tuple[int, int]:
        """exp(-t²/2), and that times J_order(|t|)/sqrt(2 pi): of 1 the mean of a kink, of 0 its slope's tail."""
        g, at = self.g, self.at
        t = g.abs(g.mul(self.u, at.r))
        t = g.select(g.lt(g.const(KINK_REACH), t), g.const(KINK_REACH), t)
        density = g.exp_mantissa(g.mul(g.mul(t, t), g.const(-0.5)))
        inverse = g.recip(g.madd(t, g.const(1 / KINK_UNIT), g.const(1)))
        value = g.horner(g.sub(inverse, g.const(CENTRE)), fine_core(order).coefficients)
        for _ in range(order + 1):
            value = g.mul(value, inverse)
        return density, g.mul(density, value)

    # --- outputs -----------------------------------------------------------------
    def mean(self) -> int:
        """Its lines, the kink between them smoothed, and the rest."""
        g, at = self.g, self.at
        a, b, a2, b2 = lines_of(self.f)
        rest = g.mul(self.polynomial("mean"), self.unit("mean"))
        if b == b2:
            rest = g.select(at.beyond, g.const(0), rest)
        rest = g.add(rest, g.const((mpmath.mpf(b) + b2) / 2))
        if steps(self.f):
            rest = g.madd(at.w, g.mul(self.kink(1)[1], g.const(mpmath.mpf(a2) - a)), rest)
        slope = g.select(g.lt(self.u, g.const(0)), g.const(a), g.const(a2))
        return held(g, self.f, g.madd(slope, self.u, rest))

    def variance(self) -> int:
        """At least 0."""
        g, zero = self.g, self.g.const(0)
        rest = g.mul(self.unit("var"), self.polynomial("var"))
        value = g.madd(self.v, g.const(slope_share(self.f, "var")), rest)
        return g.select(g.lt(value, zero), zero, value)

    def partials(self, name: str) -> tuple[int, int]:
        """An output's partials in mu and in v."""
        g, at = self.g, self.at
        (value, p_mu, p_v), unit = self.with_slopes(name), self.unit(name)
        by_mu, by_v = g.mul(unit, p_mu), g.madd(unit, p_v, g.mul(self.unit_by_v(name), value))
        if name != "mean":
            return by_mu, g.add(by_v, g.const(slope_share(self.f, name)))
        a, b, a2, b2 = lines_of(self.f)
        if b == b2:
            by_v = g.select(at.beyond, g.const(0), by_v)
        negative = g.lt(self.u, g.const(0))
        slope = g.select(negative, g.const(a), g.const(a2))
        if steps(self.f):
            rise = mpmath.mpf(a2) - a
            density, tail = self.kink(0)
            slope = g.madd(tail, g.select(negative, g.const(rise), g.const(-rise)), slope)
            half = g.const(rise / (2 * mpmath.sqrt(2 * mpmath.pi)))
            by_v = g.madd(g.mul(density, half), at.r, by_v)
        return g.add(by_mu, slope), by_v

    def values(self, outputs: Sequence[str]) -> dict[str, int]:
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
