"""The graph of real operations that ``stabilise`` writes and ``lower`` reads.

A node stands for a real number; how it is carried (one float32, a double-float,
or any torch dtype) is decided later.  Sharing is by construction: equal nodes
are one node.  A power of two that comes out of an exponential is kept apart
from its mantissa, ``exp(x) = exp_mantissa(x) * exp_factor(x, 0, k) * ... *
exp_factor(x, k-1, k)``, so that no intermediate value under- or overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mpmath
import numpy as np

from momentgen.compiler.ir.kinds import KINDS

__all__ = [
    "LEAVES",
    "Graph",
    "Node",
    "Patch",
    "Surface",
    "evaluate_float64",
    "evaluate_mpmath",
    "float64_operations",
    "outputs_float64",
]

LEAVES = frozenset({"input", "param", "const", "exp_factor"})


@dataclass(frozen=True)
class Node:
    """One real operation.  ``payload`` is a name, a constant (mpf) or, for ``exp_factor``, (i, k)."""

    kind: str
    args: tuple[int, ...] = ()
    payload: Any = None

    @cached_property
    def float64(self) -> np.float64:
        """A constant, rounded."""
        return np.float64(self.payload)


@dataclass(frozen=True)
class Patch:
    """A polynomial of two values, Σ_j z^j Σ_i c_ji y^i, of which each is that scaled and shifted.

    Attributes:
        table: c, by j and by i.
        y, z: scale and shift.
    """

    table: tuple[tuple[float, ...], ...]
    y: tuple[float, float] = (1.0, 0.0)
    z: tuple[float, float] = (1.0, 0.0)


@dataclass(frozen=True)
class Surface:
    """What a node is of two other nodes: a polynomial of these, of which there is one for each cell of their plane.

    Attributes:
        kind: ``surface``, the value, ``surface_y`` or ``surface_z``, a derivative.
        y, z: the nodes.
        cell: the node that is the number of the cell, from 0 on.
        patches: by cell.
    """

    kind: str
    y: int
    z: int
    cell: int
    patches: tuple[Patch, ...]


class Graph:
    """A shared, append-only graph of real operations with named outputs.

    >>> g = Graph(inputs=("x",))
    >>> g.output("y", g.madd(g.input("x"), g.input("x"), g.const(1)))
    >>> evaluate_mpmath(g, {"x": 3})["y"]
    mpf('10.0')
    """

    def __init__(self, inputs: Iterable[str], params: Iterable[str] = ()) -> None:
        self.inputs, self.params = tuple(inputs), tuple(params)
        self.nodes: list[Node] = []
        self.outputs: dict[str, int] = {}
        self.comments: dict[int, str] = {}
        #: nodes that may be worth a second word; empty: any of them (a hint that shortens ablation)
        self.suspects: set[int] = set()
        #: nodes that are polynomials of two others, which in float64 are tables
        self.surfaces: dict[int, Surface] = {}
        self._seen: dict[Node, int] = {}
        self._steps: tuple[object, list[_Step]] | None = None

    def _add(self, kind: str, *args: int, payload: Any = None) -> int:
        node = Node(kind, args, payload)
        if node not in self._seen:
            self._seen[node] = len(self.nodes)
            self.nodes.append(node)
        return self._seen[node]

    # leaves
    def input(self, name: str) -> int:
        return self._add("input", payload=name)

    def param(self, name: str) -> int:
        return self._add("param", payload=name)

    def const(self, value: Any) -> int:
        """A constant, kept to 60 digits."""
        with mpmath.workdps(60):
            return self._add("const", payload=mpmath.mpf(value))

    def value(self, index: int) -> Any | None:
        """The constant a node stands for, or None."""
        node = self.nodes[index]
        return node.payload if node.kind == "const" else None

    # arithmetic; identities that hold exactly are taken on the way
    def add(self, a: int, b: int) -> int:
        if self.value(a) == 0:
            return b
        if self.value(b) == 0:
            return a
        va, vb = self.value(a), self.value(b)
        if va is not None and vb is not None:
            with mpmath.workdps(60):
                return self.const(va + vb)
        if self.nodes[b].kind == "neg":
            return self.sub(a, self.nodes[b].args[0])
        if self.nodes[a].kind == "neg":
            return self.sub(b, self.nodes[a].args[0])
        return self._add("add", *sorted((a, b)))

    def sub(self, a: int, b: int) -> int:
        if self.value(b) == 0:
            return a
        if self.value(a) == 0:
            return self.neg(b)
        if self.nodes[b].kind == "neg":
            return self.add(a, self.nodes[b].args[0])
        return self._add("sub", a, b)

    def mul(self, a: int, b: int) -> int:
        va, vb = self.value(a), self.value(b)
        if va is not None and vb is not None:
            with mpmath.workdps(60):
                return self.const(va * vb)
        for x, vx, y in ((a, va, b), (b, vb, a)):
            if vx == 0:
                return x
            if vx == 1:
                return y
            if vx == -1:
                return self.neg(y)
        return self._add("mul", *sorted((a, b)))

    def madd(self, a: int, b: int, c: int) -> int:
        """a*b + c."""
        product_is_trivial = any(self.value(i) in (0, 1, -1) for i in (a, b))
        if product_is_trivial or self.value(c) == 0:
            return self.add(self.mul(a, b), c)
        return self._add("madd", *sorted((a, b)), c)

    def recip(self, a: int) -> int:
        return self._add("recip", a)

    def over(self, a: int, b: int) -> int:
        """a/b by way of 1/b, whose rounding costs nothing once the quotient carries its remainder."""
        return self._add("over", a, b)

    def half_square(self, a: int) -> int:
        """-a²/2, the exponent of a normal density."""
        return self._add("half_square", a)

    def head(self, a: int) -> int:
        """a, of which the program takes the first word alone; ``shifted_product`` makes up for the second."""
        return self._add("head", a)

    def tail(self, a: int) -> int:
        """a less its ``head``: the program's second word of a, 0 to real numbers."""
        return self._add("tail", a)

    def shifted_product(self, x: int, y: int, slope: int, a: int) -> int:
        """x·y, both computed from ``head(a)``: the program adds ``slope``, d(xy)/da, times the second word of a."""
        return self._add("shifted_product", x, y, slope, a)

    def over_one_plus(self, a: int, h: int) -> int:
        """a/(1 + h), h >= 0; its remainder is found without rounding 1 + h."""
        return self._add("over_one_plus", a, h)

    def sqrt(self, a: int) -> int:
        return self._add("sqrt", a)

    def neg(self, a: int) -> int:
        node = self.nodes[a]
        if node.kind == "const":
            return self.const(-node.payload)
        if node.kind == "neg":
            return node.args[0]
        return self._add("neg", a)

    def abs(self, a: int) -> int:
        return self._add("abs", a)

    def round(self, a: int) -> int:
        """The nearest whole number, ties to even; |a| < 2^22."""
        return self._add("round", a)

    def square_difference(self, x: int, w: int, square: int, rest: int) -> int:
        """x² - (square + rest)·w, right to its last place also where it nearly cancels."""
        return self._add("square_difference", x, w, square, rest)

    def exp_mantissa(self, x: int) -> int:
        return self._add("exp_mantissa", x)

    def times_exp_mantissa(self, a: int, x: int) -> int:
        """a·exp_mantissa(x), without rounding the mantissa near 1."""
        return self._add("times_exp_mantissa", a, x)

    def exp_factor(self, x: int, i: int, k: int) -> int:
        return self._add("exp_factor", x, payload=(i, k))

    def horner(self, x: int, coefficients: Sequence[Any]) -> int:
        """sum c_i x^i, coefficients from low to high."""
        result = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = self.madd(result, x, self.const(c))
        return result

    def surface(
        self, y: int, z: int, patches: Sequence[Patch], slopes: bool, cell: int | None = None
    ) -> tuple[int, int, int]:
        """A polynomial and, where ``slopes`` are asked for, its derivatives in y and z; else 0 for these.

        Args:
            y, z: the nodes it is of.
            patches: one for each cell.
            slopes: whether derivatives are wanted.
            cell: the node that is the number of the cell; none needed of a single one.

        >>> g = Graph(inputs=("y", "z"))
        >>> patch = Patch(((1, 2, 3), (4, 5)))
        >>> for name, node in zip("abc", g.surface(g.input("y"), g.input("z"), [patch], slopes=True)):
        ...     g.output(name, node)
        >>> {name: float(value) for name, value in evaluate_mpmath(g, {"y": 2, "z": 10}).items()}
        {'a': 157.0, 'b': 64.0, 'c': 14.0}
        """
        cell = self.const(0) if cell is None else cell
        made = {patch: self._patch(y, z, patch, slopes) for patch in dict.fromkeys(patches)}
        total, by_y, by_z = made[patches[0]]
        for number, patch in enumerate(patches[1:], 1):
            there, (value, slope_y, slope_z) = self.lt(self.const(number - 0.5), cell), made[patch]
            total = self.select(there, value, total)
            by_y, by_z = self.select(there, slope_y, by_y), self.select(there, slope_z, by_z)
        for kind, node in (("surface", total), ("surface_y", by_y), ("surface_z", by_z)):
            if self.nodes[node].kind not in LEAVES:
                self.surfaces[node] = Surface(kind, y, z, cell, tuple(patches))
        return total, by_y, by_z

    def _patch(self, y: int, z: int, patch: Patch, slopes: bool) -> tuple[int, int, int]:
        """The polynomial of a patch and its derivatives."""
        (y_scale, y_shift), (z_scale, z_shift) = patch.y, patch.z
        y, z = (
            node if (scale, shift) == (1.0, 0.0) else self.madd(node, self.const(scale), self.const(shift))
            for node, scale, shift in ((y, y_scale, y_shift), (z, z_scale, z_shift))
        )
        total = by_y = by_z = self.const(0)
        for row in reversed(patch.table):
            value, slope = self.const(row[-1]), self.const(0)
            for c in reversed(row[:-1]):
                if slopes:
                    slope = self.madd(slope, y, value)
                value = self.madd(value, y, self.const(c))
            if slopes:
                by_z, by_y = self.madd(by_z, z, total), self.madd(by_y, z, slope)
            total = self.madd(total, z, value)
        return total, self.mul(by_y, self.const(y_scale)), self.mul(by_z, self.const(z_scale))

    # choice
    def lt(self, a: int, b: int) -> int:
        return self._add("lt", a, b)

    def le(self, a: int, b: int) -> int:
        return self._add("le", a, b)

    def eq(self, a: int, b: int) -> int:
        return self._add("eq", a, b)

    def both(self, a: int, b: int) -> int:
        return self._add("and", *sorted((a, b)))

    def either(self, a: int, b: int) -> int:
        return self._add("or", *sorted((a, b)))

    def invert(self, a: int) -> int:
        return self._add("not", a)

    def select(self, condition: int, if_true: int, if_false: int) -> int:
        return if_true if if_true == if_false else self._add("select", condition, if_true, if_false)

    def comment(self, index: int, text: str) -> int:
        """Say what a node is; shown beside it in emitted code."""
        self.comments.setdefault(index, text)
        return index

    def output(self, name: str, index: int) -> None:
        self.outputs[name] = index

    def without_outputs(self) -> Graph:
        """The same nodes, to which others can be added, and that nothing is known of."""
        graph = Graph(self.inputs, self.params)
        graph.nodes, graph._seen = list(self.nodes), dict(self._seen)
        return graph

    def live(self) -> list[int]:
        """Indices of the nodes that an output depends on, in order."""
        needed: set[int] = set()
        stack = list(self.outputs.values())
        while stack:
            index = stack.pop()
            if index not in needed:
                needed.add(index)
                stack.extend(self.nodes[index].args)
        return sorted(needed)

    def steps(self) -> list[_Step]:
        """The live nodes in order, each with the values that it is the last to need, outputs left out; kept."""
        key = len(self.nodes), tuple(self.outputs.items())
        if self._steps is None or self._steps[0] != key:
            live = self.live()
            last = {a: index for index in live for a in self.nodes[index].args}
            for index in self.outputs.values():
                last.pop(index, None)
            ends: dict[int, list[int]] = {}
            for a, index in last.items():
                ends.setdefault(index, []).append(a)
            self._steps = key, [(index, self.nodes[index], tuple(ends.get(index, ()))) for index in live]
        return self._steps[1]


#: a node, its index, and the values that nothing after it needs
_Step = tuple[int, Node, tuple[int, ...]]


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
    >>> g.output("y", g.mul(g.input("x"), g.const(3)))
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
