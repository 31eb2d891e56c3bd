"""C in float64: forward and backward of a variant.

Programs are rendered as those of float32 (:mod:`momentgen.compiler.emit.c`).  Where there are polynomials of two
values, arrays are taken in blocks of 32 elements: polynomials are calls of a function for a block, between programs.
Elements are put in order by the cell of the plane that they are in, 4,096 at a time, so that a block has one table of
coefficients.

Bits are the same under every compiler and instruction set: sums of products are fused multiply-adds, the exponential is
made of them, and nothing is contracted or reassociated (:data:`momentgen.native.c_compiler.PROMISE`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from momentgen.compiler.emit._text import Header, table_lines, whole_numbers, with_arguments, with_comment
from momentgen.compiler.emit.c import c_double, element_name, element_text, kernel_text, signature
from momentgen.compiler.ir.graph import Patch
from momentgen.compiler.ir.program import Program
from momentgen.compiler.ir.schedule import interleave
from momentgen.compiler.lower.float64 import Kernel, Sheet, Summation
from momentgen.native.includes import FLOAT64

_FEWEST = 2  # coefficients of a row of a table: the functions begin with two


def render_c_float64(kernels: Sequence[Kernel], header: Header, *, rounded: bool = False) -> str:
    """A C file that exports ``void NAME_forward`` and ``NAME_backward`` over arrays of doubles.

    With ``rounded`` arrays are of floats, and parameters pairs of floats, whose sums they are.

    Returns:
        C11 source of ``void NAME_forward(int64_t n, const double *INPUT..., const double *params, double
        *out_OUTPUT...)`` and of ``NAME_backward``, which takes ``grad_OUTPUT...`` after the inputs and returns a
        gradient for each of these.  Arrays hold ``n`` doubles and do not overlap.

    Raises:
        ProgramError: if a program is not well formed.
    """
    named = {program.name: program for kernel in kernels for program in kernel.programs}
    surfaces: dict[tuple[Patch, ...], int] = {}
    for sheet in itertools.chain(*(kernel.sheets for kernel in kernels)):
        surfaces.setdefault(sheet.patches, len(surfaces))
    text = _Text(surfaces, [element_text(interleave(program)) for program in named.values()])
    exported = _exported_rounded if rounded else _exported
    for kernel in kernels:
        text.parts += [exported(kernel)] if text.blocks(kernel) else [kernel_text(kernel.program)]
    parts = [header.c(), FLOAT64]
    parts += ["\n".join(_surface_table(number, patches)) for patches, number in surfaces.items()]
    return "\n\n".join([*parts, *text.parts]) + "\n"


class _Text:
    """The text of elements and blocks, as they are written."""

    def __init__(self, surfaces: Mapping[tuple[Patch, ...], int], parts: list[str]) -> None:
        self.surfaces, self.parts = surfaces, parts

    def blocks(self, kernel: Kernel) -> bool:
        """The functions of blocks, for the number of the cell and for results; False where there need be none."""
        if not kernel.sheets and not kernel.sums:
            return False
        head = "const double *const *in, const double *params, double *const *out"
        arrays = {name: f"in[{k}][i]" for k, name in enumerate(kernel.inputs)}
        arrays |= {name: f"params[{k}]" for k, name in enumerate(kernel.program.params)}
        unused = [] if kernel.program.params else ["    (void)params;"]
        if kernel.number:
            text = [*with_comment(f"static void {kernel.number.name}_block({head})", None, "//", ""), "{", *unused]
            text = ["\n".join([*text, *_loop(kernel.number, arrays, ["out[0][i]"]), "}"])]
            self.parts += text if text[0] not in self.parts else []
        text = [*with_comment(f"static void {kernel.name}_block({head}, int cell)", None, "//", ""), "{"]
        text += [*unused, *([] if kernel.cells > 1 else ["    (void)cell;"])]
        kept = [name for name, _ in kernel.points.outputs] if kernel.points else []
        kept += [name for sheet in kernel.sheets for name in sheet.results.values()]
        kept += kernel.sums.results if kernel.sums else ()
        missing = any(len(sheet.results) < len(sheet.kinds) for sheet in kernel.sheets)
        arrays |= {name: f"s[{k}][i]" for k, name in enumerate(kept)}
        locals_ = [f"s[{len(kept)}][LANES]"] * bool(kept) + ["unused[LANES]"] * missing
        text += with_comment(f"double {', '.join(locals_)};", None, "//")
        if kernel.points:
            text += _loop(kernel.points, arrays, [arrays[name] for name, _ in kernel.points.outputs])
        for sheet in kernel.sheets:
            text += self._sheet(sheet, arrays)
        if kernel.sums:
            text += _sums(kernel.sums, arrays)
        text += _loop(kernel.program, arrays, [f"out[{k}][i]" for k in range(len(kernel.program.outputs))])
        self.parts.append("\n".join([*text, "}"]))
        return True

    def _sheet(self, sheet: Sheet, arrays: Mapping[str, str]) -> list[str]:
        """The call for a polynomial of two values."""
        number = self.surfaces[sheet.patches]
        of = [f"surface{number}", f"terms{number}", f"patches{number} + {sheet.cell('cell', '/')}"]
        names = (sheet.y, sheet.z, *map(sheet.results.get, sheet.kinds))
        whole = [arrays[name].removesuffix("[i]") if name else "unused" for name in names]
        return with_comment(f"{sheet.function}({', '.join([*of, *whole])});", None, "//")


def _loop(program: Program, arrays: Mapping[str, str], outputs: Sequence[str]) -> list[str]:
    """An element's function over the lanes of a block."""
    actual = [*(arrays[name] for name in (*program.inputs, *program.params)), *(f"&{output}" for output in outputs)]
    return with_arguments(f"    LANEWISE({element_name(program)}", actual, end="))")


def _sums(sums: Summation, arrays: Mapping[str, str]) -> list[str]:
    """The loops over rows and the table, whose terms are added up."""
    names, columns, width = sums.term.inputs, len(sums.table[0]), len(sums.rows[0])
    shared = len(sums.shared)
    actual = {name: arrays[of] for name, of in zip(names[:shared], sums.shared, strict=True)}
    actual |= {name: f"row{k}[i]" for k, name in enumerate(names[shared : shared + width])}
    actual |= {name: f"table[k][{k}]" for k, name in enumerate(names[shared + width :])}
    places = [[arrays[of].removeprefix("s[").removesuffix("][i]") for of in row] for row in sums.rows]
    terms = [f"term{k}" for k in range(len(sums.results))]
    called = [*(actual[name] for name in sums.term.inputs), *(f"&{term}" for term in terms)]
    zero = " = ".join(arrays[of] for of in sums.results)
    added = " ".join(f"{arrays[of]} += {term};" for of, term in zip(sums.results, terms, strict=True))
    rows = [f"{{{', '.join(map(c_double, row))}}}" for row in sums.table]
    head = with_arguments(f"                {element_name(sums.term)}", called, end=");")
    return [
        f"    static const double table[{len(rows)}][{columns}] = {{",
        *table_lines(rows),
        "    };",
        f"    static const uint16_t rows[{len(places)}][{width}] = {{",
        *table_lines([f"{{{', '.join(row)}}}" for row in places]),
        "    };",
        f"    for (int i = 0; i < LANES; ++i) {zero} = 0.0;",
        f"    for (int r = 0; r < {len(places)}; ++r) {{",
        *(f"        const double *const row{k} = s[rows[r][{k}]];" for k in range(width)),
        "        if (all_zero(row0)) continue;",
        f"        for (int k = 0; k < {len(rows)}; ++k) {{",
        '            _Pragma("omp simd") for (int i = 0; i < LANES; ++i) {',
        f"                double {', '.join(terms)};",
        *head,
        *with_comment(added, None, "//", " " * 16),
        "            }",
        "        }",
        "    }",
    ]


def _exported(kernel: Kernel) -> str:
    results = [f"out_{name}" for name, _ in kernel.program.outputs]
    taken = f"(const double *const[]){{{', '.join(kernel.inputs)}}}"
    written = f"(double *const[]){{{', '.join(results)}}}"
    number = f"{kernel.number.name}_block" if kernel.number else "0"
    arrays = f"n, {taken}, {len(kernel.inputs)}, params, {written}, {len(results)}"
    call = f"over_cells({kernel.name}_block, {number}, {kernel.cells}, {arrays});"
    return "\n".join([*signature(kernel.name, kernel.inputs, results), "{", *with_comment(call, None, "//"), "}"])


def _exported_rounded(kernel: Kernel) -> str:
    results = [f"out_{name}" for name, _ in kernel.program.outputs]
    arguments = [f"const float *restrict {name}" for name in (*kernel.inputs, "params")]
    arguments += [f"float *restrict {name}" for name in results]
    params = [f"(double)params[{2 * k}] + params[{2 * k + 1}]" for k in range(len(kernel.program.params))]
    taken = f"(const float *const[]){{{', '.join(kernel.inputs)}}}, {len(kernel.inputs)}"
    written = f"(float *const[]){{{', '.join(results)}}}, {len(results)}"
    given = f"(const double[]){{{', '.join(params) or '0.0'}}}"
    call = f"over_floats({kernel.name}_block, n, {taken}, {given}, {written});"
    unused = [] if params else ["    (void)params;"]
    lines = with_arguments(f"void {kernel.name}", ["int64_t n", *arguments])
    return "\n".join([*lines, "{", *unused, *with_comment(call, None, "//"), "}"])


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
        *table_lines(values),
        "};",
        f"static const uint8_t terms{number}[{len(counts)}] = {{",
        *table_lines(list(map(str, counts))),
        "};",
        f"static const Patch patches{number}[{len(patches)}] = {{",
        *(f"    {{{texts[patch]}}}," for patch in patches),
        "};",
    ]
