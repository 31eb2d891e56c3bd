"""A polynomial of two values, written into a graph; in float64 it is a table of coefficients."""

from __future__ import annotations

from collections.abc import Sequence

from momentgen.compiler.ir.graph import LEAVES, Patch, Real, Surface, madd, select


def surface_of(
    y: Real, z: Real, patches: Sequence[Patch], slopes: bool, cell: Real | None = None
) -> tuple[Real, Real, Real]:
    """A polynomial and, where ``slopes`` are asked for, its derivatives in y and z; else 0 for these.

    Args:
        y, z: what it is of.
        patches: one for each cell.
        slopes: whether derivatives are wanted.
        cell: the number of the cell; none needed of a single one.

    >>> from momentgen.compiler.ir.graph import Graph
    >>> from momentgen.compiler.ir.values import evaluate_mpmath
    >>> g = Graph(inputs=("y", "z"))
    >>> patch = Patch(((1, 2, 3), (4, 5)))
    >>> for name, value in zip("abc", surface_of(g.input("y"), g.input("z"), [patch], slopes=True)):
    ...     g.output(name, value)
    >>> {name: float(value) for name, value in evaluate_mpmath(g, {"y": 2, "z": 10}).items()}
    {'a': 157.0, 'b': 64.0, 'c': 14.0}
    """
    graph = y.graph
    cell = graph.const(0) if cell is None else cell
    made = {patch: _patch(y, z, patch, slopes) for patch in dict.fromkeys(patches)}
    total, by_y, by_z = made[patches[0]]
    for number, patch in enumerate(patches[1:], 1):
        there, (value, slope_y, slope_z) = number - 0.5 < cell, made[patch]
        total = select(there, value, total)
        by_y, by_z = select(there, slope_y, by_y), select(there, slope_z, by_z)
    for kind, real in (("surface", total), ("surface_y", by_y), ("surface_z", by_z)):
        if real.node.kind not in LEAVES:
            graph.surfaces[real.index] = Surface(kind, y.index, z.index, cell.index, tuple(patches))
    return total, by_y, by_z


def _patch(y: Real, z: Real, patch: Patch, slopes: bool) -> tuple[Real, Real, Real]:
    """The polynomial of a patch and its derivatives."""
    (y_scale, y_shift), (z_scale, z_shift) = patch.y, patch.z
    y, z = (
        real if (scale, shift) == (1.0, 0.0) else madd(real, scale, shift)
        for real, scale, shift in ((y, y_scale, y_shift), (z, z_scale, z_shift))
    )
    total = by_y = by_z = y.graph.const(0)
    for row in reversed(patch.table):
        value, slope = y.graph.const(row[-1]), y.graph.const(0)
        for c in reversed(row[:-1]):
            if slopes:
                slope = madd(slope, y, value)
            value = madd(value, y, c)
        if slopes:
            by_z, by_y = madd(by_z, z, total), madd(by_y, z, slope)
        total = madd(total, z, value)
    return total, by_y * y_scale, by_z * z_scale
