"""The graph of real operations that strategies write and ``lower`` reads.

A node stands for a real number; how it is carried (one float32, a double-float, or any torch dtype) is decided later.
Strategies handle it as a :class:`Real`, which has Python's operators: each writes one node, and numbers become
constants.  Sharing is by construction: equal nodes are one node.  A power of two that comes out of an exponential is
kept apart from its mantissa, ``exp(x) = exp_mantissa(x) * exp_factor(x, 0, k) * ... * exp_factor(x, k-1, k)``, so that
no intermediate value under- or overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import mpmath
import numpy as np

LEAVES = frozenset({"input", "param", "const", "exp_factor"})


def reached(wanted: Iterable[int], operands: Callable[[int], Iterable[int]]) -> list[int]:
    """What some values are computed from, and themselves, in order."""
    found, stack = set[int](), list(wanted)
    while stack:
        index = stack.pop()
        if index not in found:
            found.add(index)
            stack.extend(operands(index))
    return sorted(found)


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


@dataclass(frozen=True)
class Loop:
    """Sums of a function over rows of nodes and over a table of numbers.

    A node ``sum`` is one of them.  Its operands are the nodes of ``shared``, then those of each row in turn.

    Attributes:
        body: the function: a graph whose outputs are the terms, by name.
        shared: names of those inputs of the body that are the same in all terms.
        row: names of those inputs of which each row has its own; a row whose first is 0 has terms of 0.
        columns: names of those inputs that are numbers.
        table: these numbers, for each term of a row.
    """

    body: Graph
    shared: tuple[str, ...]
    row: tuple[str, ...]
    columns: tuple[str, ...]
    table: tuple[tuple[float, ...], ...]

    def split(self, operands: Sequence[Any]) -> tuple[Sequence[Any], list[Sequence[Any]]]:
        """What of a node's operands is shared, and what is of each row."""
        first, width = len(self.shared), len(self.row)
        return operands[:first], [operands[k : k + width] for k in range(first, len(operands), width)]


class Graph:
    """A shared, append-only graph of real operations with named outputs.

    >>> g = Graph(inputs=("x",))
    >>> x = g.input("x")
    >>> g.output("y", select(x < 0, 0, 2 * sqrt(x) + 1))
    >>> [node.kind for node in g.nodes]
    ['input', 'const', 'lt', 'sqrt', 'const', 'mul', 'const', 'add', 'select']
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
        #: what nodes ``sum`` are sums of, by the number in their payload
        self.loops: list[Loop] = []
        self._seen: dict[Node, int] = {}
        self._steps: tuple[object, list[_Step]] | None = None

    def _add(self, kind: str, *args: int, payload: Any = None) -> int:
        node = Node(kind, args, payload)
        if node not in self._seen:
            self._seen[node] = len(self.nodes)
            self.nodes.append(node)
        return self._seen[node]

    def write(self, kind: str, *args: Real, payload: Any = None) -> Real:
        """A node of any kind."""
        return Real(self, self._add(kind, *(a.index for a in args), payload=payload))

    def sums(self, loop: Loop, shared: Sequence[Real], rows: Iterable[Sequence[Real]]) -> dict[str, Real]:
        """The sum of each term of a loop, by its name."""
        operands = [*shared, *(value for row in rows for value in row)]
        self.loops.append(loop)
        number = len(self.loops) - 1
        return {name: self.write("sum", *operands, payload=(number, name)) for name in loop.body.outputs}

    def real(self, index: int) -> Real:
        """A node by its index."""
        return Real(self, index)

    def input(self, name: str) -> Real:
        return self.write("input", payload=name)

    def param(self, name: str) -> Real:
        return self.write("param", payload=name)

    def const(self, value: Any) -> Real:
        """A constant, kept to 60 digits."""
        with mpmath.workdps(60):
            return self.write("const", payload=mpmath.mpf(value))

    def constant(self, index: int) -> Any | None:
        """The number that a node is, or None."""
        node = self.nodes[index]
        return node.payload if node.kind == "const" else None

    def suspect(self, *nodes: Real) -> None:
        """Say that nodes may be worth a second word, and that all others that nobody says it of are not."""
        self.suspects |= {node.index for node in nodes}

    def output(self, name: str, value: Real) -> None:
        self.outputs[name] = value.index

    def result(self, name: str) -> Real:
        """An output."""
        return Real(self, self.outputs[name])

    def taken(self, other: Graph, instead: Callable[[Node], Real | None] = lambda node: None) -> dict[int, Real]:
        """The live nodes of another graph written here, by their index there; some of them replaced."""
        here: dict[int, Real] = {}
        first = len(self.loops)
        self.loops += other.loops

        def needed(index: int) -> tuple[int, ...]:  # a polynomial of two values may have powers of one alone
            return (*other.nodes[index].args, *other._operands(index))

        for index in reached(other.outputs.values(), needed):
            node = other.nodes[index]
            given, payload = instead(node), node.payload
            if node.kind == "sum":
                payload = (first + payload[0], payload[1])
            new = self.write(node.kind, *(here[a] for a in node.args), payload=payload) if given is None else given
            here[index] = new
            if index in other.comments:
                new.named(other.comments[index])
            if index in other.surfaces:
                surface = other.surfaces[index]
                y, z, cell = (here[i].index for i in (surface.y, surface.z, surface.cell))
                self.surfaces[new.index] = replace(surface, y=y, z=z, cell=cell)
        return here

    def without_outputs(self) -> Graph:
        """The same nodes, to which others can be added, and that nothing is known of."""
        graph = Graph(self.inputs, self.params)
        graph.nodes, graph._seen, graph.loops = list(self.nodes), dict(self._seen), list(self.loops)
        return graph

    def live(self) -> list[int]:
        """Indices of the nodes that an output depends on, in order."""
        return reached(self.outputs.values(), lambda index: self.nodes[index].args)

    def _operands(self, index: int) -> tuple[int, ...]:
        surface = self.surfaces.get(index)
        return self.nodes[index].args if surface is None else (surface.y, surface.z, surface.cell)

    def steps(self) -> list[_Step]:
        """The live nodes in order, each with the values that it is the last to need, outputs left out; kept.

        Of a polynomial of two values there is one step, which needs these and the number of the cell.
        """
        key = len(self.nodes), len(self.surfaces), tuple(self.outputs.items())
        if self._steps is None or self._steps[0] != key:
            live = reached(self.outputs.values(), self._operands)
            last = {a: index for index in live for a in self._operands(index)}
            for index in self.outputs.values():
                last.pop(index, None)
            ends: dict[int, list[int]] = {}
            for a, index in last.items():
                ends.setdefault(index, []).append(a)
            self._steps = key, [(index, self.nodes[index], tuple(ends.get(index, ()))) for index in live]
        return self._steps[1]


#: a node, its index, and the values that nothing after it needs
_Step = tuple[int, Node, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Real:
    """A node of a graph: a real number, written on with operators, and with the functions below.

    Each operator writes one node, unless an identity holds exactly, as x + 0 = x; ``a * b + c`` are two nodes,
    and :func:`madd` is one.  An operand may be a number.  Comparisons are nodes, too, and are combined by ``&``, ``|``
    and ``~``; Python's ``if`` cannot ask for what only inputs decide.

    Raises:
        TypeError: where a comparison is used as a truth value.
    """

    graph: Graph
    index: int
    __array_ufunc__: ClassVar[None] = None  # numpy's numbers leave their operators to this class

    @property
    def node(self) -> Node:
        """What it is in the graph."""
        return self.graph.nodes[self.index]

    @property
    def args(self) -> tuple[Real, ...]:
        """What it is computed from."""
        return tuple(Real(self.graph, index) for index in self.node.args)

    @property
    def constant(self) -> Any | None:
        """The number that it is; None where that depends on inputs."""
        return self.graph.constant(self.index)

    def named(self, text: str) -> Real:
        """Itself; emitted code says ``text`` beside it."""
        self.graph.comments.setdefault(self.index, text)
        return self

    def __bool__(self) -> bool:
        raise TypeError("expected select() or &, | and ~ for what depends on inputs, got a truth value asked of a node")

    def __add__(self, other: Operand) -> Real:
        a, b = self, _lifted(self.graph, other)
        va, vb = a.constant, b.constant
        if va == 0:
            return b
        if vb == 0:
            return a
        if va is not None and vb is not None:
            with mpmath.workdps(60):
                return self.graph.const(va + vb)
        if b.node.kind == "neg":
            return a - b.args[0]
        if a.node.kind == "neg":
            return b - a.args[0]
        return _in_order("add", a, b)

    def __radd__(self, other: Operand) -> Real:
        return _lifted(self.graph, other) + self

    def __sub__(self, other: Operand) -> Real:
        a, b = self, _lifted(self.graph, other)
        if b.constant == 0:
            return a
        if a.constant == 0:
            return -b
        if b.node.kind == "neg":
            return a + b.args[0]
        return self.graph.write("sub", a, b)

    def __rsub__(self, other: Operand) -> Real:
        return _lifted(self.graph, other) - self

    def __mul__(self, other: Operand) -> Real:
        a, b = self, _lifted(self.graph, other)
        va, vb = a.constant, b.constant
        if va is not None and vb is not None:
            with mpmath.workdps(60):
                return self.graph.const(va * vb)
        for x, vx, y in ((a, va, b), (b, vb, a)):
            if vx == 0:
                return x
            if vx == 1:
                return y
            if vx == -1:
                return -y
        return _in_order("mul", a, b)

    def __rmul__(self, other: Operand) -> Real:
        return _lifted(self.graph, other) * self

    def __truediv__(self, other: Operand) -> Real:
        """a/b by way of 1/b, whose rounding costs nothing once the quotient carries its remainder."""
        return self.graph.write("over", self, _lifted(self.graph, other))

    def __rtruediv__(self, other: Operand) -> Real:
        return self.graph.write("recip", self) if other == 1 else _lifted(self.graph, other) / self

    def __neg__(self) -> Real:
        node = self.node
        if node.kind == "const":
            return self.graph.const(-node.payload)
        return self.args[0] if node.kind == "neg" else self.graph.write("neg", self)

    def __abs__(self) -> Real:
        return self.graph.write("abs", self)

    def __round__(self) -> Real:
        """The nearest whole number, ties to even; |a| < 2^22."""
        return self.graph.write("round", self)

    def __lt__(self, other: Operand) -> Real:
        return self.graph.write("lt", self, _lifted(self.graph, other))

    def __le__(self, other: Operand) -> Real:
        return self.graph.write("le", self, _lifted(self.graph, other))

    def __gt__(self, other: Operand) -> Real:
        return _lifted(self.graph, other) < self

    def __ge__(self, other: Operand) -> Real:
        return _lifted(self.graph, other) <= self

    def __and__(self, other: Real) -> Real:
        return _in_order("and", self, other)

    def __or__(self, other: Real) -> Real:
        return _in_order("or", self, other)

    def __invert__(self) -> Real:
        return self.graph.write("not", self)


#: what an operator takes beside a node; numbers of mpmath, too
Operand = Real | float


def _lifted(graph: Graph, value: Operand) -> Real:
    return value if isinstance(value, Real) else graph.const(value)


def _in_order(kind: str, a: Real, b: Real) -> Real:
    """A node that is the same whichever operand is the first."""
    return a.graph.write(kind, *sorted((a, b), key=lambda real: real.index))


def equal(a: Real, b: Operand) -> Real:
    """Whether a = b."""
    return a.graph.write("eq", a, _lifted(a.graph, b))


def select(condition: Real, if_true: Operand, if_false: Operand) -> Real:
    """One of two values."""
    a, b = (_lifted(condition.graph, value) for value in (if_true, if_false))
    return a if a == b else condition.graph.write("select", condition, a, b)


def madd(a: Operand, b: Operand, c: Operand) -> Real:
    """a*b + c, as one operation."""
    graph = next(value.graph for value in (a, b, c) if isinstance(value, Real))
    a, b, c = (_lifted(graph, value) for value in (a, b, c))
    if any(value.constant in (0, 1, -1) for value in (a, b)) or c.constant == 0:
        return a * b + c
    return graph.write("madd", *sorted((a, b), key=lambda real: real.index), c)


def sqrt(a: Real) -> Real:
    """The square root."""
    return a.graph.write("sqrt", a)


def log(a: Real) -> Real:
    """The natural logarithm, in float64 alone."""
    return a.graph.write("log", a)


def half_square(a: Real) -> Real:
    """-a²/2, the exponent of a normal density."""
    return a.graph.write("half_square", a)


def first_word(a: Real) -> Real:
    """a, of which the program takes the first word alone; ``shifted_product`` makes up for the second."""
    return a.graph.write("head", a)


def second_word(a: Real) -> Real:
    """a less its ``first_word``: the program's second word of a, 0 to real numbers."""
    return a.graph.write("tail", a)


def shifted_product(x: Real, y: Real, slope: Real, a: Real) -> Real:
    """x·y, both computed from ``first_word(a)``: the program adds ``slope``, d(xy)/da, times the second word of a."""
    return x.graph.write("shifted_product", x, y, slope, a)


def over_one_plus(a: Real, h: Real) -> Real:
    """a/(1 + h), h >= 0; its remainder is found without rounding 1 + h."""
    return a.graph.write("over_one_plus", a, h)


def square_difference(x: Real, w: Real, square: Real, rest: Real) -> Real:
    """x² - (square + rest)·w, right to its last place also where it nearly cancels."""
    return x.graph.write("square_difference", x, w, square, rest)


def exp_mantissa(x: Real) -> Real:
    """e^x over the power of two next to it."""
    return x.graph.write("exp_mantissa", x)


def times_exp_mantissa(a: Real, x: Real) -> Real:
    """a·exp_mantissa(x), without rounding the mantissa near 1."""
    return a.graph.write("times_exp_mantissa", a, x)


def exp_factor(x: Real, i: int, k: int) -> Real:
    """Of the power of two next to e^x, factor i of k."""
    return x.graph.write("exp_factor", x, payload=(i, k))


def horner(x: Real, coefficients: Sequence[Any]) -> Real:
    """Σ c_i x^i, coefficients from low to high."""
    result = x.graph.const(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = madd(result, x, c)
    return result
