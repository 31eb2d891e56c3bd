"""Large graphs in float64 over many points: by a small machine in C where there is a compiler, else by NumPy.

NumPy takes an operation at a time over arrays that do not stay in the first cache, and where a density underflows each
operation on a subnormal number takes twenty times as long.  The machine takes a block of :data:`LANES` points at a
time, runs the graph as a list of instructions over it, and takes subnormal numbers for 0.  It is compiled once a
process, whatever the graphs.  Its arithmetic is NumPy's to the bit, but for the exponential, which is within two units
in the last place, and for subnormal numbers: good for what screens and measures, which is all that it is for.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from momentgen.compiler.ir.graph import LEAVES, Graph, Node
from momentgen.compiler.ir.kinds import KINDS
from momentgen.compiler.ir.values import float64_operations, outputs_float64
from momentgen.compiler.toolchain.arrays import F64
from momentgen.compiler.toolchain.c_libraries import library
from momentgen.native.c_compiler import find_compiler

LANES = 128
_FEW_NODES, _FEW_POINTS = 300, 1024  # below either NumPy is as good

#: instruction -> what it does to a lane; x, y, z and w are its operands, s is a number
_CODE = {
    "set": "s",
    "add_s": "x + s",
    "sub_s": "x - s",
    "from_s": "s - x",
    "mul_s": "x * s",
    "madd_s": "x * y + s",
    "mul_s_add": "x * s + y",
    "over_s": "x / s",
    **{name: kind.lane.format(*"xyzw") for name, kind in KINDS.items()},
}
_NUMBER = {kind: number for number, kind in enumerate(_CODE)}
#: (kind, which argument is a number) -> the instruction for that; of commutative kinds the number comes last
_WITH_NUMBER = {
    ("add", 1): "add_s",
    ("sub", 1): "sub_s",
    ("sub", 0): "from_s",
    ("mul", 1): "mul_s",
    ("madd", 2): "madd_s",
    ("madd", 1): "mul_s_add",
    ("over", 1): "over_s",
}
_WIDTH = 7  # of an instruction: what, where to, up to four operands, and the number

_SOURCE = """\
#include <string.h>
#define LANES %d
void run(int64_t n, const int32_t *code, int64_t length, const double *numbers, int64_t many_inputs,
         const double *const *inputs, int64_t many_outputs, const int32_t *places, double *const *outputs,
         double (*slots)[LANES])
{
    const unsigned int before = subnormal_numbers_are_0();
    for (int64_t at = 0; at < n; at += LANES) {
        const int64_t count = n - at < LANES ? n - at : LANES;
        for (int64_t k = 0; k < many_inputs; ++k) {
            memcpy(slots[k], inputs[k] + at, count * sizeof(double));
            for (int64_t i = count; i < LANES; ++i) slots[k][i] = inputs[k][n - 1];
        }
        for (const int32_t *c = code; c < code + %d * length; c += %d) {
            double *o = slots[c[1]];
            switch (c[0]) {
%s
            }
        }
        for (int64_t k = 0; k < many_outputs; ++k) memcpy(outputs[k] + at, slots[places[k]], count * sizeof(double));
    }
    as_before(before);
}
"""


def _case(number: int, text: str) -> str:
    """The loop of an instruction over the lanes; the result may take the place of an operand."""
    operands = [name for name in "xyzw" if re.search(rf"\b{name}\b", text)]
    lines = [f"const double *{name}s = slots[c[{2 + place}]];" for place, name in enumerate(operands)]
    lines += ["const double s = numbers[c[6]];"] if re.search(r"\bs\b", text) else []
    lanes = "".join(f"const double {name} = {name}s[i]; " for name in operands)
    lines += ["#pragma GCC ivdep", f"for (int i = 0; i < LANES; ++i) {{ {lanes}o[i] = {text}; }}", "break;"]
    inner = "\n".join(line if line.startswith("#") else f"                {line}" for line in lines)
    return f"            case {number}: {{\n{inner}\n            }}"


@cache
def _machine() -> Any:
    """The machine, compiled."""
    cases = "\n".join(_case(_NUMBER[kind], text) for kind, text in _CODE.items())
    run = library(_SOURCE % (LANES, _WIDTH, _WIDTH, cases)).run
    size, place = ctypes.c_int64, ctypes.c_void_p
    run.argtypes = [size, place, size, place, size, place, size, place, place, place]
    run.restype = None
    return run


@dataclass(frozen=True)
class _Listing:
    """A graph as instructions.

    Attributes:
        arrays: names of the inputs and parameters that are arrays, in the order of the first slots.
        plain: nodes that are the same at every point, in order.
        numbers: those of them that instructions read.
        code: instructions, shape (n, 7).
        outputs: name -> slot.
        slots: how many there are.
    """

    arrays: tuple[str, ...]
    plain: tuple[int, ...]
    numbers: tuple[int, ...]
    code: npt.NDArray[np.int32]
    outputs: Mapping[str, int]
    slots: int


_listings: WeakKeyDictionary[Graph, dict[Any, _Listing]] = WeakKeyDictionary()


def _listing(graph: Graph, arrays: tuple[str, ...]) -> _Listing:
    """The listing of a graph, kept as long as it is."""
    known = _listings.setdefault(graph, {})
    key = arrays, len(graph.nodes), tuple(graph.outputs.items())
    if key not in known:
        known[key] = _Lister(graph, arrays).listing()
    return known[key]


class _Lister:
    """Writes a listing: a slot is free again once nothing needs its value."""

    def __init__(self, graph: Graph, arrays: tuple[str, ...]) -> None:
        self.graph, self.arrays = graph, arrays
        self.slot: dict[int, int] = {}
        self.free: list[int] = []
        self.count = len(arrays)
        self.plain: dict[int, None] = {}
        self.numbers: dict[int, int] = {}
        self.code: list[tuple[int, ...]] = []

    def listing(self) -> _Listing:
        steps = self.graph.steps()
        for index, node, ended in steps:
            if self._is_plain(index, node):
                self.plain[index] = None
            elif node.kind in ("input", "param"):
                self.slot[index] = self.arrays.index(node.payload)
            else:
                self._write(index, node)
            for a in ended:
                if a in self.slot and self.slot[a] >= len(self.arrays):
                    self.free.append(self.slot.pop(a))
        outputs: dict[str, int] = {}
        for name, index in self.graph.outputs.items():
            outputs[name] = self.slot[index] if index in self.slot else self._number(index)
        code = np.array(self.code, np.int32).reshape(-1, _WIDTH)
        return _Listing(self.arrays, tuple(self.plain), tuple(self.numbers), code, outputs, self.count)

    def _is_plain(self, index: int, node: Node) -> bool:
        if node.kind in ("input", "param"):
            return node.payload not in self.arrays
        return node.kind in LEAVES or all(a in self.plain for a in node.args)

    def _write(self, index: int, node: Node) -> None:
        args = list(node.args)
        if KINDS[node.kind].commutes:
            args[:2] = sorted(args[:2], key=self.plain.__contains__)
        kind, number = node.kind, 0
        for place in reversed(range(len(args))):
            if args[place] in self.plain and (node.kind, place) in _WITH_NUMBER:
                kind, number = _WITH_NUMBER[node.kind, place], self._place(args.pop(place))
                break
        made = {a: self._number(a) for a in dict.fromkeys(args) if a in self.plain}
        operands = [made[a] if a in made else self.slot[a] for a in args]
        self.free += made.values()
        self.slot[index] = self._fresh()
        self.code.append((_NUMBER[kind], self.slot[index], *operands, *[0] * (4 - len(operands)), number))

    def _place(self, index: int) -> int:
        """Where a number stands among those that instructions read."""
        return self.numbers.setdefault(index, len(self.numbers))

    def _number(self, index: int) -> int:
        """A slot that holds a number in every lane."""
        slot = self._fresh()
        self.code.append((_NUMBER["set"], slot, 0, 0, 0, 0, self._place(index)))
        return slot

    def _fresh(self) -> int:
        if self.free:
            return self.free.pop()
        self.count += 1
        return self.count - 1


def outputs_over(graph: Graph, points: Mapping[str, Any]) -> dict[str, F64]:
    """The outputs of a graph over arrays of points, as :func:`momentgen.compiler.ir.values.outputs_float64`.

    >>> g = Graph(inputs=("x",))
    >>> g.output("y", 3 * g.input("x"))
    >>> outputs_over(g, {"x": np.arange(3)})["y"].tolist()
    [0.0, 3.0, 6.0]
    """
    arrays = {name: np.asarray(value, np.float64) for name, value in points.items() if np.ndim(value)}
    shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
    size = int(np.prod(shape))
    if len(graph.steps()) < _FEW_NODES or size < _FEW_POINTS or find_compiler() is None:
        return outputs_float64(graph, points)
    listing = _listing(graph, tuple(arrays))
    inputs = [np.ascontiguousarray(np.broadcast_to(array, shape)) for array in arrays.values()]
    plain = _plain_values(graph, listing.plain, points)
    numbers = np.array([plain[index] for index in listing.numbers], np.float64)
    outputs = {name: np.empty(shape) for name in listing.outputs}
    slots, places = np.zeros((listing.slots, LANES)), np.array(list(listing.outputs.values()), np.int32)
    to_inputs, to_outputs = _addresses(inputs), _addresses(list(outputs.values()))
    _machine()(
        size,
        listing.code.ctypes.data,
        len(listing.code),
        numbers.ctypes.data,
        len(inputs),
        to_inputs.ctypes.data,
        len(outputs),
        places.ctypes.data,
        to_outputs.ctypes.data,
        slots.ctypes.data,
    )
    return outputs


def _addresses(arrays: Sequence[F64]) -> npt.NDArray[np.uintp]:
    return np.array([array.ctypes.data for array in arrays], np.uintp)


def _plain_values(graph: Graph, nodes: Sequence[int], points: Mapping[str, Any]) -> dict[int, Any]:
    """The nodes that are the same at every point."""
    leaf, operations = float64_operations(points)
    values: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for index in nodes:
            node = graph.nodes[index]
            values[index] = leaf(node) if node.kind in LEAVES else operations[node.kind](*map(values.get, node.args))
    return values
