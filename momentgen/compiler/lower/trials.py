"""Trials of ablation: programs of one graph that differ in which nodes are double-floats.

Two trials have most of their values in common.  All are written by one builder, so that equal values are one
instruction; of the next trial only the nodes that change are lowered; and an output whose instruction was measured
before is not run again.  What runs, runs in :mod:`momentgen.compiler.ir.interpreter`.

Measured magnitudes tell which term of a sum is larger, so that a shorter exact sum suffices.  Knuth's sum of two
floats with its error takes six operations, Dekker's three, but Dekker's wants the larger term first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.interpreter import Interpreter
from momentgen.compiler.ir.kinds import CONDITIONS
from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.program import Builder
from momentgen.compiler.lower.words import Lowering, words
from momentgen.compiler.toolchain.arrays import F32, F64


def orders_of(graph: Graph, values: Mapping[int, np.ndarray]) -> dict[int, int]:
    """For each sum, which operand is never the smaller: 1 the first, 2 the second, 0 neither.

    The first operand of ``madd(a, b, c)`` is the product, the second is ``c``.
    ``values`` are magnitudes measured over calibration points.
    """
    orders: dict[int, int] = {}
    for index in graph.live():
        node = graph.nodes[index]
        if node.kind not in ("add", "sub", "madd"):
            continue
        with np.errstate(all="ignore"):
            if node.kind == "madd":
                first = np.abs(values[node.args[0]] * values[node.args[1]])
                second = np.abs(values[node.args[2]])
            else:
                first, second = (np.abs(values[a]) for a in node.args)
            first, second = np.broadcast_arrays(first, second)
            usable = np.isfinite(first) & np.isfinite(second)
            terms = ([], [node.args[2]]) if node.kind == "madd" else ([node.args[0]], [node.args[1]])
        orders[index] = next(
            (
                order
                for order, leading, large, small in ((1, terms[0], first, second), (2, terms[1], second, first))
                if np.all((large >= small) | ~usable) or any(_is_anchor(graph, i, small[usable]) for i in leading)
            ),
            0,
        )
    return orders


def _is_anchor(graph: Graph, index: int, other: np.ndarray) -> bool:
    """Whether a node is 0 or a power of two that Dekker's sum may begin with, however it compares to the other term.

    With p = 2^k and |x| <= 2^(k+23), p is a multiple of the last place of fl(p + x), so that fl(p + x) - p is exact.
    """
    node = graph.nodes[index]
    if node.kind == "select":
        return all(_is_anchor(graph, a, other) for a in node.args[1:])
    if node.kind != "const":
        return False
    mantissa, exponent = mpmath.frexp(node.payload)
    return node.payload == 0 or (abs(mantissa) == 0.5 and bool(np.all(other <= 2.0 ** (int(exponent) - 1 + 22))))


@dataclass(frozen=True)
class Calibration:
    """Points at one setting of the parameters, and a measure of error there.

    Attributes:
        inputs: name -> float32 array.
        params: what the program's parameters are set to (hi and lo words).
        real: what the graph's parameters are set to.
        errors: output name, computed float32 array -> error of each element, in the unit of the goal.
    """

    inputs: Mapping[str, F32]
    params: Mapping[str, float]
    real: Mapping[str, float]
    errors: Callable[[str, F32], F64]


@dataclass(frozen=True)
class Trial:
    """One choice of double-floats, its error per output, and its operations."""

    double: frozenset[int]
    error: Mapping[str, float]
    operations: int

    @property
    def worst(self) -> float:
        return max(self.error.values())


class _Recorder(Builder):
    """A builder that says which operations were asked of it since ``asked`` was last emptied."""

    asked: list[int]

    def emit(self, op: Op, *args: int, bits: int | None = None, name: str | None = None) -> int:
        index = super().emit(op, *args, bits=bits, name=name)
        if args:
            self.asked.append(index)
        return index


@dataclass(frozen=True)
class _Written:
    """What a node became: which of the things it can become, the thing itself, and the operations for it."""

    version: int
    value: Any
    operations: tuple[int, ...]


class Trials:
    """The programs of ``graph``, one choice of double-floats after the other; :func:`orders_of` gives ``orders``."""

    def __init__(self, graph: Graph, name: str, orders: Mapping[int, int], calibrations: Sequence[Calibration]) -> None:
        self.graph, self.calibrations = graph, calibrations
        self._builder = _Recorder(name, graph.inputs, words(graph))
        self._double: frozenset[int] = frozenset()
        self._lowering = Lowering(graph, self._builder, self._double, orders)
        self._interpreter = Interpreter(self._builder)
        self._points = [self._interpreter.points(c.inputs, c.params) for c in calibrations]
        self._live = graph.live()
        self._users: dict[int, list[int]] = {index: [] for index in self._live}
        for index in self._live:
            for a in set(graph.nodes[index].args):
                self._users[a].append(index)
        self._known: dict[int, dict[tuple[object, ...], _Written]] = {index: {} for index in self._live}
        self._versions: dict[int, dict[Any, int]] = {index: {} for index in self._live}
        self._now: dict[int, _Written] = {}
        self._uses: dict[int, int] = {}  # operation -> how many nodes ask for it
        self._errors: dict[tuple[str, int], float] = {}
        self.tried = 0

    def measure(self, double: frozenset[int]) -> Trial:
        """Lower, run and measure the program that carries the nodes in ``double`` as double-floats."""
        self.tried += 1
        self._lower(double)
        self._builder.asked = []
        outputs = {name: self._lowering.single(index) for name, index in self.graph.outputs.items()}
        operations = len(self._uses) + sum(i not in self._uses for i in set(self._builder.asked))
        new = {name: index for name, index in outputs.items() if (name, index) not in self._errors}
        if new:
            worst = dict.fromkeys(new, 0.0)
            for calibration, points in zip(self.calibrations, self._points, strict=True):
                for name, computed in self._interpreter.values(points, new).items():
                    worst[name] = max(worst[name], float(calibration.errors(name, computed).max(initial=0.0)))
            self._errors |= {(name, index): worst[name] for name, index in new.items()}
        return Trial(double, {name: self._errors[name, index] for name, index in outputs.items()}, operations)

    def _lower(self, double: frozenset[int]) -> None:
        """Bring what is written up to date: the nodes whose words change, and those whose operands do."""
        waiting = sorted(self._known.keys() & (double ^ self._double) if self._now else self._live)
        queued = set(waiting)
        self._double = self._lowering.double = double
        while waiting:
            index = heapq.heappop(waiting)
            queued.remove(index)
            key = (index in double, *(self._now[a].version for a in self.graph.nodes[index].args))
            written = self._known[index].get(key)
            if written is None:
                written = self._known[index][key] = self._write(index)
            before = self._now.get(index)
            if before is written:
                continue
            self._replace(index, before, written)
            if before is None or before.version != written.version:
                for user in self._users[index]:
                    if user not in queued:
                        queued.add(user)
                        heapq.heappush(waiting, user)

    def _write(self, index: int) -> _Written:
        self._builder.asked = []
        self._lowering.node(index)
        value = self._values(index)[index]
        versions = self._versions[index]
        return _Written(versions.setdefault(value, len(versions)), value, tuple(set(self._builder.asked)))

    def _replace(self, index: int, before: _Written | None, written: _Written) -> None:
        self._values(index)[index] = written.value
        self._now[index] = written
        uses = self._uses
        for operation in written.operations:
            uses[operation] = uses.get(operation, 0) + 1
        for operation in before.operations if before is not None else ():
            uses[operation] -= 1
            if not uses[operation]:
                del uses[operation]

    def _values(self, index: int) -> dict[int, Any]:
        """Where the lowering keeps what a node became."""
        condition = self.graph.nodes[index].kind in CONDITIONS
        return self._lowering.conditions if condition else self._lowering.carried
