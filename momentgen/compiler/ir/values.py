"""What a graph of real operations is at points: in mpmath, which is what it means, and in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mpmath
import numpy as np

from momentgen.compiler.ir.graph import LEAVES, Graph, Node
from momentgen.compiler.ir.kinds import KINDS


def _evaluate(
    graph: Graph, leaf: Callable[[Node], Any], ops: Mapping[str, Callable[..., Any]], *, outputs_only: bool = False
) -> dict[int, Any]:
    values: dict[int, Any] = {}
    for index, node, ended in graph.steps():
        if node.kind in LEAVES:
            values[index] = leaf(node)
        else:
            values[index] = ops[node.kind](*[values[a] for a in node.args])
        if outputs_only:
            for a in ended:
                del values[a]
    return values


def evaluate_mpmath(graph: Graph, point: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs at one point, in the current mpmath precision: what the graph means."""

    def leaf(node: Node) -> Any:
        if node.kind == "exp_factor":
            return mpmath.mpf(1)
        return node.payload if node.kind == "const" else mpmath.mpf(point[node.payload])

    values = _evaluate(graph, leaf, {name: kind.exact for name, kind in KINDS.items()})
    return {name: values[index] for name, index in graph.outputs.items()}


def outputs_float64(graph: Graph, points: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The outputs over arrays of points, in float64; a graph of thousands of nodes keeps few of their values at a time.

    >>> g = Graph(inputs=("x",))
    >>> g.output("y", 3 * g.input("x"))
    >>> outputs_float64(g, {"x": np.arange(3)})["y"].tolist()
    [0.0, 3.0, 6.0]
    """
    values = _float64(graph, points, outputs_only=True)
    return {name: values[index] for name, index in graph.outputs.items()}


def evaluate_float64(graph: Graph, points: Mapping[str, Any]) -> dict[int, np.ndarray]:
    """Every live node over arrays of points, in float64: magnitudes for the lowering, not truth."""
    return _float64(graph, points, outputs_only=False)


def float64_operations(points: Mapping[str, Any]) -> tuple[Callable[[Node], Any], Mapping[str, Callable[..., Any]]]:
    """What a leaf is at points, and what each kind of node does, in float64."""

    def leaf(node: Node) -> Any:
        if node.kind == "exp_factor":
            return np.float64(1.0)
        return node.float64 if node.kind == "const" else np.asarray(points[node.payload], np.float64)

    return leaf, {name: kind.array or kind.exact for name, kind in KINDS.items()}


def _float64(graph: Graph, points: Mapping[str, Any], *, outputs_only: bool) -> dict[int, np.ndarray]:
    leaf, ops = float64_operations(points)
    with np.errstate(all="ignore"):
        return _evaluate(graph, leaf, ops, outputs_only=outputs_only)
