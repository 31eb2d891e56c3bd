"""Two forms of one f: a local one below a variance v*, and from there polynomials of two variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import Graph, Real, select
from momentgen.compiler.ir.stable import PARTIALS
from momentgen.compiler.strategies.kit import Precision, checked, deviation, like
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces
from momentgen.compiler.strategies.surfaces.fine_surface_graph import FineWriter
from momentgen.compiler.strategies.surfaces.surface import Surface
from momentgen.compiler.strategies.surfaces.surface_graph import SurfaceWriter

#: (graph, a variance of at least v*, outputs) -> the outputs above v*, and what was fitted
Far = Callable[[Graph, Real, Sequence[str]], tuple[dict[str, Real], Sequence[Polynomial]]]


def by_surfaces(f: Activation, surfaces: Mapping[str, Surface]) -> Far:
    """What writes polynomials above v*."""

    def write(g: Graph, v: Real, outputs: Sequence[str]) -> tuple[dict[str, Real], Sequence[Polynomial]]:
        writer = SurfaceWriter(g, f, surfaces, None, v)
        return writer.values(outputs), writer.fits

    return write


def by_cells(below: Far, cut: float, above: Far) -> Far:
    """What writes one form up to a variance, and another from there."""

    def write(g: Graph, v: Real, outputs: Sequence[str]) -> tuple[dict[str, Real], Sequence[Polynomial]]:
        held, is_below = g.const(cut), v < cut
        low, low_fits = below(g, select(is_below, v, held), outputs)
        high, high_fits = above(g, select(is_below, held, v), outputs)
        return {name: select(is_below, low[name], high[name]) for name in outputs}, (*low_fits, *high_fits)

    return write


def by_fine_surfaces(f: Activation, surfaces: FineSurfaces) -> Far:
    """The same of those for float64."""
    return lambda g, v, outputs: (FineWriter(g, f, surfaces, v).values(outputs), ())


class TwoForms:
    """Writes both; a subclass has the local one.

    Args:
        graph: with inputs ``mean`` and ``var``.
        precision: of the graph.
        switch: v*.
        far: what writes the form above it; None for the local form alone.
    """

    def __init__(self, graph: Graph, precision: Precision, switch: float, far: Far | None) -> None:
        self.g, self.one, self.precision, self.far = graph, graph.const(1), precision, far
        self.fits: list[Polynomial] = []
        self.mu, self.v = graph.input("mean"), checked(graph.input("var"))
        # The form not chosen is evaluated where it is finite.
        held = graph.const(switch)
        self.near = self.v < held
        self.wide = select(self.near, held, self.v)
        self.small = select(self.near, self.v, held)
        self.degenerate, self.sigma, self.inverse = deviation(self.small)

    def local(self, outputs: Sequence[str]) -> Mapping[str, Real]:
        """The outputs below v*."""
        raise NotImplementedError

    def finish(self, partial: Real) -> Real:
        """A partial of both forms, as it is put out."""
        return partial

    def write(self, outputs: tuple[str, ...]) -> None:
        """All outputs named."""
        g, close = self.g, self.local(outputs)
        far: Mapping[str, Real] = close
        if self.far is not None:
            far, fits = self.far(g, self.wide, outputs)
            self.fits += fits
        for name in outputs:
            value = select(self.near, close[name], far[name])
            g.output(name, self.finish(value) if name in PARTIALS else like(value, self.mu))
