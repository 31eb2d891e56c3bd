"""What a graph of real operations is at points: in mpmath, which is what it means, and in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np

from momentgen.compiler.ir.graph import LEAVES, Graph, Loop, Node, Patch, Surface
from momentgen.compiler.ir.kinds import KINDS
from momentgen.compiler.ir.surface import surface_of
from momentgen.compiler.toolchain.arrays import F64

_BLOCK = 1 << 15  # points at a time
_ARRAYS = {name: kind.array or kind.exact for name, kind in KINDS.items()}


def evaluate_mpmath(graph: Graph, point: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs at one point, in the current mpmath precision: what the graph means."""

    def leaf(node: Node) -> Any:
        if node.kind == "exp_factor":
            return mpmath.mpf(1)
        return node.payload if node.kind == "const" else mpmath.mpf(point[node.payload])

    values = _every(graph, leaf, {name: kind.exact for name, kind in KINDS.items()})
    return {name: values[index] for name, index in graph.outputs.items()}


def evaluate_float64(graph: Graph, points: Mapping[str, Any]) -> dict[int, np.ndarray]:
    """Every live node over arrays of points, in float64: magnitudes for the lowering, not truth."""
    with np.errstate(all="ignore"):
        return _every(graph, _leaf_at(points), _ARRAYS)


def _every(graph: Graph, leaf: Callable[[Node], Any], operations: Mapping[str, Callable[..., Any]]) -> dict[int, Any]:
    values: dict[int, Any] = {}
    for index in graph.live():
        node = graph.nodes[index]
        if node.kind == "sum":
            raise TypeError("a sum over nodes has values in float64 arrays alone: see outputs_float64")
        values[index] = leaf(node) if node.kind in LEAVES else operations[node.kind](*(values[a] for a in node.args))
    return values


def _leaf_at(points: Mapping[str, Any]) -> Callable[[Node], Any]:
    """What a leaf is at points, in float64."""

    def leaf(node: Node) -> Any:
        if node.kind == "exp_factor":
            return np.float64(1.0)
        return node.float64 if node.kind == "const" else np.asarray(points[node.payload], np.float64)

    return leaf


def outputs_float64(graph: Graph, points: Mapping[str, Any]) -> dict[str, F64]:
    """The outputs over arrays of points, in float64, each of their common shape.

    It takes some points at a time and keeps few of their values; of a polynomial of two values it computes the patch of
    a point's cell alone.

    >>> g = Graph(inputs=("x",))
    >>> g.output("y", 3 * g.input("x"))
    >>> outputs_float64(g, {"x": np.arange(3)})["y"].tolist()
    [0.0, 3.0, 6.0]
    """
    arrays = {name: np.asarray(value, np.float64) for name, value in points.items()}
    shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
    flat = {name: np.broadcast_to(a, shape).reshape(-1) if a.ndim else a for name, a in arrays.items()}
    found = {name: np.empty(shape).reshape(-1) for name in graph.outputs}
    with np.errstate(all="ignore"):
        block = _BLOCK // max((len(loop.table) for loop in graph.loops), default=1)
        for start in range(0, int(np.prod(shape)), block):
            part = slice(start, start + block)
            values = _of_outputs(graph, {name: a[part] if a.ndim else a for name, a in flat.items()})
            for name, index in graph.outputs.items():
                found[name][part] = values[index]
    return {name: values.reshape(shape) for name, values in found.items()}


def _of_outputs(graph: Graph, points: Mapping[str, Any]) -> dict[int, Any]:
    """The outputs by index, in an array or a number each."""
    leaf, values = _leaf_at(points), dict[int, Any]()
    sums: dict[int, Mapping[str, Any]] = {}
    for index, node, ended in graph.steps():
        if node.kind == "sum":
            number, name = node.payload
            if number not in sums:
                sums[number] = _summed(graph.loops[number], [values[a] for a in node.args])
            values[index] = sums[number][name]
        elif index in graph.surfaces:
            values[index] = _on_patches(graph.surfaces[index], values)
        else:
            values[index] = leaf(node) if node.kind in LEAVES else _ARRAYS[node.kind](*(values[a] for a in node.args))
        for a in ended:
            del values[a]
    return values


def _summed(loop: Loop, operands: Sequence[Any]) -> dict[str, Any]:
    """The sums of a loop; a term of the table is a row of arrays."""
    shared, rows = loop.split(operands)
    columns = {name: np.array([[row[k]] for row in loop.table]) for k, name in enumerate(loop.columns)}
    same = dict(zip(loop.shared, shared, strict=True))
    total: dict[str, Any] = dict.fromkeys(loop.body.outputs, 0.0)
    for row in rows:
        given = {**same, **dict(zip(loop.row, row, strict=True)), **columns}
        values = _of_outputs(loop.body, given)
        for name, index in loop.body.outputs.items():
            total[name] = total[name] + np.sum(values[index], axis=0)
    return total


def _on_patches(surface: Surface, values: Mapping[int, Any]) -> Any:
    """A polynomial of two values, or a derivative of it, by the patch of each point's cell."""
    y, z, cell = np.broadcast_arrays(*(values[index] for index in (surface.y, surface.z, surface.cell)))
    result = np.empty(y.shape)
    for number, patch in enumerate(surface.patches):
        here = cell == number if number else ~(cell > 0.5)  # of no number the first
        if here.any():
            result[here] = outputs_float64(_alone(patch, surface.kind), {"y": y[here], "z": z[here]})["value"]
    return result


@lru_cache(maxsize=1024)
def _alone(patch: Patch, kind: str) -> Graph:
    """The graph of a patch."""
    graph = Graph(("y", "z"))
    values = surface_of(graph.input("y"), graph.input("z"), [patch], slopes=kind != "surface")
    graph.output("value", values[("surface", "surface_y", "surface_z").index(kind)])
    graph.surfaces.clear()
    return graph
