"""C in float64: forward and backward of a variant.

Programs are rendered as those of float32 (:mod:`momentgen.compiler.emit.c`).  Where there are polynomials of two values
or many nodes of a quadrature, arrays are taken in blocks of 32 elements: polynomials are calls of a function for a
block, between programs, and nodes a loop over the rows of a table.  Elements are put in order by the cell of the plane
that they are in, 4,096 at a time, so that a block has one table of coefficients.

Bits are the same under every compiler and instruction set: sums of products are fused multiply-adds, the exponential is
made of them, and nothing is contracted or reassociated (:data:`momentgen.native.c_compiler.PROMISE`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from momentgen.compiler.emit._body import Body
from momentgen.compiler.emit._outline import outlined
from momentgen.compiler.emit._rows import Rows, Split, split
from momentgen.compiler.emit._text import table_lines, whole_numbers, with_arguments, with_comment
from momentgen.compiler.emit.c import c_double, element_text, function_text, kernel_text, signature
from momentgen.compiler.emit.header import Header
from momentgen.compiler.ir.graph import Patch
from momentgen.compiler.ir.op import Type
from momentgen.compiler.ir.schedule import interleave
from momentgen.compiler.lower.float64 import SLOPES, Kernel, Sheet
from momentgen.native.includes import FLOAT64

_FEWEST = 2  # coefficients of a row of a table: the functions begin with two


def render_c_float64(kernels: Sequence[Kernel], name: str, header: Header) -> str:
    """A C file that exports ``void NAME_forward`` and ``NAME_backward`` over arrays of doubles.

    Args:
        kernels: forward and backward.
        name: what the functions' names begin with.
        header: the comment that opens the file.

    Returns:
        C11 source of ``void NAME_forward(int64_t n, const double *INPUT..., const double *params, double
        *out_OUTPUT...)`` and of ``NAME_backward``, which takes ``grad_OUTPUT...`` after the inputs and returns a
        gradient for each of these.  Arrays hold ``n`` doubles and do not overlap.

    Raises:
        ProgramError: if a program is not well formed.
    """
    named = {program.name: program for kernel in kernels for program in kernel.programs}
    programs = [interleave(program) for program in named.values()]
    found = outlined(programs)
    functions = {function.name: function for function in found.functions}
    bodies = {program.name: body for program, body in zip(programs, found.bodies, strict=True)}
    splits = {kernel.name: split(bodies[kernel.name], functions, _result) for kernel in kernels}
    surfaces: dict[tuple[Patch, ...], int] = {}
    for sheet in itertools.chain(*(kernel.sheets for kernel in kernels)):
        surfaces.setdefault(sheet.patches, len(surfaces))
    prefix = f"{name}_"
    text = _Text(prefix, functions, surfaces)
    for program in programs:
        body, one = bodies[program.name], splits.get(program.name)
        if one is None:
            text.element(program.name, body, [output for output, _ in program.outputs])
        else:
            if one.given:
                text.element(f"{program.name}_before", one.before, one.given)
            text.element(program.name, one.after, [output for output, _ in program.outputs])
    for kernel in kernels:
        one = splits[kernel.name]
        text.parts += [_exported(kernel)] if text.blocks(kernel, one) else [kernel_text(kernel.program)]
    parts = [header.c(), FLOAT64]
    parts += ["\n".join(_surface_table(number, patches)) for patches, number in surfaces.items()]
    for function in found.functions:
        function.settle()
        parts.append(function_text(function, prefix))
    return "\n\n".join([*parts, *text.parts]) + "\n"


def _result(loop: int, row: int, result: int) -> str:
    """The name of a loop's result."""
    return f"q{loop}_{row}_{result}"


def _is_sloping(sheet: Sheet) -> bool:
    return any(kind != "surface" for kind in sheet.results)


class _Text:
    """The text of elements, tables of loops and blocks, as they are written."""

    def __init__(self, prefix: str, functions: Mapping[str, Body], surfaces: Mapping[tuple[Patch, ...], int]) -> None:
        self.prefix, self.functions, self.surfaces = prefix, functions, surfaces
        self.parts: list[str] = []
        self.tables: dict[tuple[tuple[float, ...], ...], str] = {}
        self.inputs: dict[str, tuple[str, ...]] = {}  # of each element

    def element(self, name: str, body: Body, outputs: Sequence[str]) -> None:
        """The inline function of a body."""
        body.settle()
        self.inputs[name] = body.inputs
        self.parts.append(element_text(name, Type.F64, outputs, body, self.prefix))

    def blocks(self, kernel: Kernel, one: Split | None) -> bool:
        """The functions of blocks, for the number of the cell and for results; False where there need be none."""
        if not kernel.sheets and one is None:
            return False
        head = "const double *const *in, const double *params, double *const *out"
        arrays = {name: f"in[{k}][i]" for k, name in enumerate(kernel.inputs)}
        arrays |= {name: f"params[{k}]" for k, name in enumerate(kernel.program.params)}
        unused = [] if kernel.program.params else ["    (void)params;"]
        if kernel.number:
            text = [*with_comment(f"static void {kernel.number.name}_block({head})", None, "//", ""), "{", *unused]
            text = ["\n".join([*text, *self._loop(kernel.number.name, arrays, ["out[0][i]"]), "}"])]
            self.parts += text if text[0] not in self.parts else []
        text = [*with_comment(f"static void {kernel.name}_block({head}, int cell)", None, "//", ""), "{"]
        text += [*unused, *([] if kernel.cells > 1 else ["    (void)cell;"])]
        kept = [name for name, _ in kernel.points.outputs] if kernel.points else []
        kept += [name for sheet in kernel.sheets for name in sheet.results.values()]
        kept += one.given if one else []
        missing = any(_is_sloping(sheet) and len(sheet.results) < len(SLOPES) for sheet in kernel.sheets)
        arrays |= {name: f"s[{k}][i]" for k, name in enumerate(kept)}
        locals_ = [f"s[{len(kept)}][LANES]"] * bool(kept) + ["unused[LANES]"] * missing
        sums = [name for rows in (one.rows if one else ()) for name in rows.sums]
        arrays |= {name: f"a[{k}][i]" for k, name in enumerate(sums)}
        locals_ += [f"a[{len(sums)}][LANES] = {{{{0.0}}}}"] * bool(sums)
        locals_ += [f"r[{max(rows.results for rows in one.rows)}][LANES]"] if one else []
        for number, rows in enumerate(one.rows if one else ()):
            kept_of = sorted(rows.kept)
            locals_ += [f"q{number}[{len(rows.table)}][{len(kept_of)}][LANES]"] * bool(kept_of)
            for row, (k, result) in itertools.product(range(len(rows.table)), enumerate(kept_of)):
                arrays[_result(number, row, result)] = f"q{number}[{row}][{k}][i]"
        text += with_comment(f"double {', '.join(locals_)};", None, "//")
        if kernel.points:
            text += self._loop(kernel.points.name, arrays, [arrays[name] for name, _ in kernel.points.outputs])
        for sheet in kernel.sheets:
            text += self._sheet(sheet, arrays)
        if one:
            if one.given:
                text += self._loop(f"{kernel.name}_before", arrays, [arrays[name] for name in one.given])
            for number, rows in enumerate(one.rows):
                text += self._rows(number, rows, arrays)
        text += self._loop(kernel.name, arrays, [f"out[{k}][i]" for k in range(len(kernel.program.outputs))])
        self.parts.append("\n".join([*text, "}"]))
        return True

    def _loop(self, element: str, arrays: Mapping[str, str], outputs: Sequence[str]) -> list[str]:
        """An element's function over the lanes of a block."""
        actual = [*(arrays[name] for name in self.inputs[element]), *(f"&{output}" for output in outputs)]
        return with_arguments(f"    LANEWISE({element}_element", actual, end="))")

    def _sheet(self, sheet: Sheet, arrays: Mapping[str, str]) -> list[str]:
        """The call for a polynomial of two values."""
        number, sloping = self.surfaces[sheet.patches], _is_sloping(sheet)
        of = [f"surface{number}", f"terms{number}", f"patches{number} + {sheet.cell('cell', '/')}"]
        wanted = [sheet.results.get(kind) for kind in (SLOPES if sloping else SLOPES[:1])]
        whole = [arrays[name].removesuffix("[i]") if name else "unused" for name in (sheet.y, sheet.z, *wanted)]
        call = f"{'surface_slopes' if sloping else 'surface'}({', '.join([*of, *whole])});"
        return with_comment(call, None, "//")

    def _rows(self, number: int, rows: Rows, arrays: Mapping[str, str]) -> list[str]:
        """A loop over the rows of a table, which stands before the blocks."""
        table = tuple(map(tuple, rows.table))
        if table not in self.tables:
            name = self.tables[table] = f"rows{len(self.tables)}"
            head = f"static const double {name}[{len(table)}][{len(table[0])}] = {{"
            self.parts.append("\n".join([head, *itertools.chain(*map(_table_row, table)), "};"]))
        columns = itertools.count()
        actual = [f"c{next(columns)}" if name is None else arrays[name] for name in rows.args]
        # A load in an arm of a select is a branch to gcc, and ends vectors.
        held = ", ".join([f"c{k} = c[{k}]" for k in range(rows.args.count(None))])
        kept = {result: f"q{number}[k][{k}][i]" for k, result in enumerate(sorted(rows.kept))}
        results = [kept.get(k, f"r[{k}][i]") for k in range(rows.results)]
        call = f"{self.prefix}{rows.function}"
        if rows.results == 1:
            call = f"{results[0]} = {call}"
        else:
            actual += [f"&{result}" for result in results]
        lines = [
            f"    for (int k = 0; k < {len(table)}; ++k) {{",
            *with_comment(f"const double *c = {self.tables[table]}[k], {held};", None, "//", "        "),
            *with_arguments(f"        LANEWISE({call}", actual, end="))"),
        ]
        if rows.sums:  # by themselves: what a function chooses would become branches of a sum
            lines += ["#pragma omp simd", "        for (int i = 0; i < LANES; ++i) {"]
            for name, terms in rows.sums.items():
                text = arrays[name]
                for result, other, column in reversed(terms):
                    text = f"FMA({results[result]}, {f'c[{column}]' if other is None else results[other]}, {text})"
                lines += with_comment(f"{arrays[name]} = {text};", None, "//", "            ")
            lines.append("        }")
        return [*lines, "    }"]


def _table_row(row: Sequence[float]) -> list[str]:
    lines = table_lines(list(map(c_double, row)), "     ", "},")
    return ["    {" + lines[0].lstrip(), *lines[1:]]


def _exported(kernel: Kernel) -> str:
    results = [f"out_{name}" for name, _ in kernel.program.outputs]
    taken = f"(const double *const[]){{{', '.join(kernel.inputs)}}}"
    written = f"(double *const[]){{{', '.join(results)}}}"
    number = f"{kernel.number.name}_block" if kernel.number else "0"
    arrays = f"n, {taken}, {len(kernel.inputs)}, params, {written}, {len(results)}"
    call = f"over_cells({kernel.name}_block, {number}, {kernel.cells}, {arrays});"
    return "\n".join([*signature(kernel.name, kernel.inputs, results), "{", *with_comment(call, None, "//"), "}"])


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
