"""An f with kinks in float64: below v* the local form, above polynomials of two variables.

The local form is that of :mod:`momentgen.compiler.strategies.kinks.piecewise_graph`, the polynomials are those of
:mod:`momentgen.compiler.strategies.surfaces.fine_surface` from v* on.
"""

from __future__ import annotations

import numpy as np

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.strategies.kinks.piecewise_graph import Branches, PiecewiseWriter
from momentgen.compiler.strategies.smooth.surrogate_graph import FLOAT64, AtomSum
from momentgen.compiler.strategies.surfaces.fine_output import PARTIALS_OF
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces
from momentgen.compiler.strategies.surfaces.fine_surface_graph import FineWriter
from momentgen.errors import BuildError

__all__ = ["build_fine_piecewise", "no_atoms"]


class _Writer(PiecewiseWriter):
    """Above v* polynomials of two variables."""

    def __init__(self, graph: Graph, f: Activation, surfaces: FineSurfaces, branches: Branches, switch: float) -> None:
        super().__init__(graph, no_atoms(f, switch), branches, FLOAT64)
        self.surfaces, self.fine = surfaces, FineWriter(graph, f, surfaces, self.wide)

    def mean(self) -> int:
        return self.fine.mean()

    def global_variance(self) -> int:
        return self.fine.variance()

    def global_partials(self) -> dict[str, int]:
        return {
            partial: value
            for name in self.surfaces.outputs
            for partial, value in zip(PARTIALS_OF[name], self.fine.partials(name), strict=True)
        }

    def turned(self, name: str, value: int) -> int:
        return value


def build_fine_piecewise(
    f: Activation, surfaces: FineSurfaces, branches: Branches, switch: float, outputs: tuple[str, ...]
) -> Graph:
    """The graph of ``OUTPUTS`` or ``PARTIALS``; the polynomials serve from ``switch``, v*, on."""
    graph = Graph(("mean", "var"))
    _Writer(graph, f, surfaces, branches, switch).write(outputs)
    return graph


def no_atoms(f: Activation, switch: float) -> AtomSum:
    """What is known of f without a surrogate.

    Raises:
        BuildError: if f follows no lines.
    """
    if f.left is None or f.right is None:
        raise BuildError(f.name, "stabilise", "expected f to follow a line on either side", f.pieces)
    none = np.zeros((0, 0))
    return AtomSum(f.centre, f.left, f.right, (), none, (none, none), (0, 0), switch, 0)
