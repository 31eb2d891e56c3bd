"""C in float64: forward and backward of a variant, from the same real graphs as the PyTorch form.

Arrays are taken in blocks of ``LANES`` elements.  A form without loops is one loop over the lanes of a block; where
a form has loops over tables, what is shared between its parts stands in small arrays, which stay in the first cache.
A polynomial of two values is a call for a block (``_c_float64_functions``); where there is one for each cell of their
plane, elements are put in order by cell, so that a block is of one.  Inputs that end in the middle of a block are
copied into one.

Bits are the same under every compiler and instruction set: sums of products are fused multiply-adds, the exponential is
made of them, and nothing is contracted or reassociated (:data:`momentgen.native.c_compiler.PROMISE`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from momentgen.compiler.emit._c_float64_block import Block, c_double, head_of
from momentgen.compiler.emit._c_float64_functions import (
    EXP,
    EXP_COEFFICIENTS,
    LANES,
    OVER_BLOCKS,
    OVER_CELLS,
    PRELUDE,
    RSQRT,
    SURFACE,
    SURFACE_SLOPES,
)
from momentgen.compiler.emit._form import Tables, cells_of, numbered
from momentgen.compiler.emit._text import LINE_LENGTH, table_lines, whole_numbers, with_arguments, with_comment
from momentgen.compiler.emit.header import Header
from momentgen.compiler.ir.graph import Graph, Patch
from momentgen.compiler.ir.stable import Stable
from momentgen.rule.inputs import partial_names

__all__ = ["LANES", "c_double", "render_c_float64"]

_LONG = 8  # coefficients of a polynomial that is computed as two, which take half as long one after the other
_FEWEST = 2  # coefficients of a row of a table: the functions begin with two


def render_c_float64(stable: Stable, name: str, header: Header) -> str:
    """A C file that exports ``void NAME_forward`` and ``NAME_backward`` over arrays of doubles.

    Args:
        stable: the variant.
        name: what the functions' names begin with.
        header: the comment that opens the file.

    Returns:
        C11 source of ``void NAME_forward(int64_t n, const double *INPUT..., const double *params, double
        *out_OUTPUT...)`` and of ``NAME_backward``, which takes ``grad_OUTPUT...`` after the inputs and returns a
        gradient for each of these.  Arrays hold ``n`` doubles and do not overlap.
    """
    polynomials: dict[tuple[float, ...], str] = {}
    surfaces: dict[tuple[Patch, ...], int] = {}
    tables = Tables()
    forward, backward = (
        _Kernel(graph, tables, f"{name}_{direction}", polynomials, surfaces)
        for graph, direction in ((stable.forward64, "forward"), (stable.partials64, "backward"))
    )
    seeds = tuple(f"grad_{output}" for output in stable.forward64.outputs)
    of_input = partial_names(stable.partials64.inputs, tuple(stable.forward64.outputs))

    def outputs(block: Block) -> dict[str, str]:
        return {f"out_{output}": block.result(output) for output in stable.forward64.outputs}

    def gradients(block: Block) -> dict[str, str]:
        return {
            f"out_grad_{of}": _gradient(seeds, [block.result(partial) for partial in partials])
            for of, partials in of_input.items()
        }

    if backward.number and forward.number and forward.numbering() != backward.numbering():
        backward.number.name += "_of_partials"
    text = [
        *dict.fromkeys(kernel.numbering() for kernel in (forward, backward) if kernel.number),
        forward.text(stable.forward64.inputs, outputs),
        backward.text((*stable.partials64.inputs, *seeds), gradients),
    ]
    shared = [PRELUDE]
    shared += [over for over in (OVER_BLOCKS, OVER_CELLS) if over in (forward.over, backward.over)]
    blocks = [*forward.blocks, *backward.blocks]
    if any(block.exponential for block in blocks):
        shared.append(_polynomial("exp_rest", EXP_COEFFICIENTS[1:]))
        shared.append(EXP % c_double(EXP_COEFFICIENTS[0]))
    shared += [RSQRT] * any(block.rooting for block in blocks)
    # As two a polynomial rounds a little worse: only in kernels that wait for it, which are less accurate than that.
    least = _LONG if forward.number or backward.number else math.inf
    shared += [_polynomial(name, coefficients, least) for coefficients, name in polynomials.items()]
    if surfaces:
        shared.append(SURFACE)
        shared += [SURFACE_SLOPES] * any(block.sloping for block in blocks)
        shared += ["\n".join(_surface_table(number, patches)) for patches, number in surfaces.items()]
    shared += ["\n".join(_table(turns, rows)) for turns, rows in tables.rows().items()]
    return "\n\n".join([header.c(), *shared, *text]) + "\n"


def _gradient(seeds: Sequence[str], partials: Sequence[str]) -> str:
    """The gradient of one input: the sum of the outputs' gradients times its partials."""
    text = f"{seeds[-1]}[i] * {partials[-1]}"
    for seed, partial in zip(seeds[-2::-1], partials[-2::-1], strict=True):
        text = f"FMA({seed}[i], {partial},\n            {text})"
    return text


def _polynomial(name: str, coefficients: Sequence[float], least: float = math.inf) -> str:
    """The inline function of one polynomial: of x, and begun with y; of that many coefficients as two of x²."""
    numbers = [c_double(c) for c in coefficients]
    if len(numbers) < least:
        lines = [*with_comment(" ".join(f"NEXT({c})" for c in numbers), None, "//"), "    return y;"]
    else:
        first, *rest = numbers
        odd = len(numbers) % 2
        pairs = [f"PAIR({c}, {d})" for c, d in zip(rest[::2], rest[1::2], strict=False)]
        lines = [
            f"    const double square = x * x;\n    double w = {first};",
            *with_comment(" ".join(pairs), None, "//"),
            "    return FMA(y, x, w);" if odd else f"    return FMA(w, x, FMA(y, square, {numbers[-1]}));",
        ]
    return "\n".join([f"INLINE double {name}(double y, double x)", "{", *lines, "}"])


class _Kernel:
    """One direction: the text of its exported function and of its block functions.

    These are one for all elements; one for those of a cell at a time; or one for either side of a branch.
    """

    def __init__(
        self,
        graph: Graph,
        tables: Tables,
        name: str,
        polynomials: dict[tuple[float, ...], str],
        surfaces: dict[tuple[Patch, ...], int],
    ) -> None:
        self.name, self.number, self.cells = name, None, cells_of(graph)
        graphs = {name: graph}
        if graph.branch is not None and not self.cells:
            graphs = {f"{name}_side{value}": graph.side(graph.branch, value == 1) for value in (0, 1)}
        if self.cells or len(graphs) > 1:
            self.number = Block(numbered(graph), Tables(), name.rpartition("_")[0] + "_cell", {}, {})
        self.inputs = graph.inputs
        self.over = OVER_CELLS if self.number else OVER_BLOCKS
        quick = self.number is not None
        self.blocks = [Block(one, tables, its, polynomials, surfaces, quick) for its, one in graphs.items()]

    def text(self, inputs: Sequence[str], results: Callable[[Block], Mapping[str, str]]) -> str:
        """All functions but that for the cells."""
        found = [block.text(inputs, results(block)) for block in self.blocks]
        if len(self.blocks) > 1:
            sides = " : ".join(f"{block.name}_block" for block in reversed(self.blocks))
            found += [f"{head_of(self.name, True)}\n{{\n    (cell ? {sides})(in, params, out);\n}}\n"]
        return "\n".join([*found, *self._exported(inputs, list(results(self.blocks[0])))])

    def numbering(self) -> str:
        """The function that finds the cells of elements; empty where there are none."""
        if self.number is None:
            return ""
        return self.number.text(self.inputs, {"number": self.number.result("number")})

    def _exported(self, inputs: Sequence[str], results: Sequence[str]) -> list[str]:
        arguments = [
            "int64_t n",
            *(f"const double *restrict {name}" for name in inputs),
            "const double *restrict params",
            *(f"double *restrict {name}" for name in results),
        ]
        taken, written = f"(const double *const[]){{{', '.join(inputs)}}}", f"(double *const[]){{{', '.join(results)}}}"
        arrays = f"n, {taken}, {len(inputs)}, params, {written}, {len(results)}"
        call = f"over_blocks({self.name}_block, {arrays});"
        if self.number:
            cells = math.prod(self.cells.values()) if self.cells else len(self.blocks)
            call = f"over_cells({self.name}_block, {self.number.name}_block, {cells}, {arrays});"
        return [*with_arguments(f"void {self.name}", arguments), "{", *with_comment(call, None, "//"), "}"]


def _surface_table(number: int, patches: Sequence[Patch]) -> list[str]:
    """The coefficients of a polynomial of two values, as the functions for it take them; those of each cell once."""
    values: list[str] = []
    counts: list[int] = []
    texts: dict[Patch, str] = {}
    for patch in dict.fromkeys(patches):
        rows, unit = whole_numbers(patch.table)
        from_high = [tuple(reversed(row)) for row in reversed(rows)]
        if len(from_high) % 2:
            from_high.insert(0, ())
        numbers = [len(values), len(counts), len(from_high) // 2]
        texts[patch] = ", ".join([*map(str, numbers), *map(c_double, (unit, *patch.y, *patch.z))])
        for first, second in zip(from_high[::2], from_high[1::2], strict=True):
            counts.append(max(len(first), len(second), _FEWEST))
            padded = [(*[0] * (counts[-1] - len(row)), *row) for row in (first, second)]
            values += [
                str(v) if isinstance(v, int) else c_double(v) for v in itertools.chain(*zip(*padded, strict=True))
            ]
    return [
        f"static const double surface{number}[{len(values)}] = {{",
        *table_lines(values, "    "),
        "};",
        f"static const uint8_t terms{number}[{len(counts)}] = {{",
        *table_lines(list(map(str, counts)), "    "),
        "};",
        f"static const Patch patches{number}[{len(patches)}] = {{",
        *(f"    {{{texts[patch]}}}," for patch in patches),
        "};",
    ]


def _table(turns: int, rows: Sequence[Sequence[float]]) -> list[str]:
    lines = [f"static const double table{turns}[{turns}][{len(rows[0])}] = {{"]
    for row in rows:
        line = "    {"
        for place, value in enumerate(row):
            piece = c_double(value) + ("," if place < len(row) - 1 else "},")
            if len(line) + len(piece) + 1 > LINE_LENGTH:
                lines.append(line.rstrip())
                line = "     "
            line += piece + " "
        lines.append(line.rstrip())
    return [*lines, "};"]
