"""C in float64: forward and backward of a variant, from the same real graphs as the PyTorch form.

Arrays are taken in blocks of ``LANES`` elements.  A form without loops is one loop over the lanes of a block; where
a form has loops over tables, what is shared between its parts stands in small arrays, which stay in the first cache.
A polynomial of two values is a call for a block (``_c_float64_functions``).  Inputs that end in the middle of a block
are copied into one.

Bits are the same under every compiler and instruction set: sums of products are fused multiply-adds, the exponential is
made of them, and nothing is contracted or reassociated (:data:`momentgen.compiler.emit.c.C_FLAGS`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from momentgen.compiler.emit._c_float64_functions import (
    EXP,
    EXP_COEFFICIENTS,
    LANES,
    PRELUDE,
    SURFACE,
    SURFACE_SLOPES,
)
from momentgen.compiler.emit._form import SURFACES, Form, Item, Loop, Section, Surfaces, Tables
from momentgen.compiler.emit._loops import form_of
from momentgen.compiler.emit._text import (
    LINE_LENGTH,
    plain_decimal,
    table_lines,
    whole_numbers,
    with_arguments,
    with_comment,
)
from momentgen.compiler.emit.header import Header
from momentgen.compiler.stabilise.stable import Stable
from momentgen.rule_inputs import partial_names

__all__ = ["LANES", "c_double", "render_c_float64"]

_LONGEST = 92  # characters of an expression; beyond, its operands have names

_FORMAT = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "madd": "FMA({}, {}, {})",
    "recip": "1.0 / {}",
    "over": "{} / {}",
    "over_one_plus": "{} / (1.0 + {})",
    "half_square": "-0.5 * {0} * {0}",
    "sqrt": "SQRT({})",
    "neg": "-{}",
    "abs": "ABS({})",
    "round": "({} + 0x1.8p52) - 0x1.8p52",
    "exp_mantissa": "exp64({})",
    "times_exp_mantissa": "{} * exp64({})",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "eq": "{} == {}",
    "and": "{} & {}",
    "or": "{} | {}",
    "not": "!{}",
    "select": "{} ? {} : {}",
    "same": "{}",
}
_Rows = tuple[tuple[float, ...], ...]
_COMPARISONS = frozenset({"lt", "le", "eq"})


def c_double(value: float) -> str:
    """A C literal that is ``value`` once rounded: decimal or hexadecimal, which is shorter.

    >>> c_double(0.5), c_double(1e-9), c_double(2.0**-40), c_double(float("-inf"))
    ('0.5', '1e-09', '0x1p-40', '-__builtin_inf()')
    """
    if math.isnan(value):
        return '__builtin_nan("")'
    if math.isinf(value):
        return "__builtin_inf()" if value > 0 else "-__builtin_inf()"
    mantissa, exponent = value.hex().split("p")
    exact = f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}p{int(exponent)}"
    return min(repr(value), exact, key=len) if plain_decimal(value) is None else repr(value)


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
    surfaces: dict[_Rows, int] = {}
    tables = Tables()
    forward = _Kernel(form_of(stable.forward64, tables), f"{name}_forward", polynomials, surfaces)
    backward = _Kernel(form_of(stable.partials64, tables), f"{name}_backward", polynomials, surfaces)
    outputs = {f"out_{output}": forward.result(output) for output in stable.forward64.outputs}
    text = [forward.text(stable.forward64.inputs, outputs)]
    seeds = tuple(f"grad_{output}" for output in stable.forward64.outputs)
    gradients = {
        f"out_grad_{of}": _gradient(seeds, [backward.result(partial) for partial in partials])
        for of, partials in partial_names(stable.partials64.inputs, tuple(stable.forward64.outputs)).items()
    }
    text.append(backward.text((*stable.partials64.inputs, *seeds), gradients))
    shared = [PRELUDE]
    if forward.exponential or backward.exponential:
        shared.append(_polynomial("exp_rest", EXP_COEFFICIENTS[1:]))
        shared.append(EXP % c_double(EXP_COEFFICIENTS[0]))
    shared += [_polynomial(name, coefficients) for coefficients, name in polynomials.items()]
    if surfaces:
        shared.append(SURFACE)
        shared += [SURFACE_SLOPES] if any(kernel.sloping for kernel in (forward, backward)) else []
        shared += ["\n".join(_surface_table(number, rows)) for rows, number in surfaces.items()]
    shared += ["\n".join(_table(turns, rows)) for turns, rows in tables.rows().items()]
    return "\n\n".join([header.c(), *shared, *text]) + "\n"


def _parameter(name: str) -> str:
    """A parameter's name in the block, where a loop's k and other short names have a meaning."""
    return f"p_{name}"


def _gradient(seeds: Sequence[str], partials: Sequence[str]) -> str:
    """The gradient of one input: the sum of the outputs' gradients times its partials."""
    text = f"{seeds[-1]}[i] * {partials[-1]}"
    for seed, partial in zip(seeds[-2::-1], partials[-2::-1], strict=True):
        text = f"FMA({seed}[i], {partial},\n            {text})"
    return text


def _polynomial(name: str, coefficients: Sequence[float]) -> str:
    """The inline function of one polynomial: of x, and begun with y."""
    steps = with_comment(" ".join(f"NEXT({c_double(c)})" for c in coefficients), None, "//")
    return "\n".join([f"INLINE double {name}(double y, double x)", "{", *steps, "    return y;", "}"])


class _Kernel:
    """One direction: the text of its block function and of its exported function."""

    def __init__(
        self, form: Form, name: str, polynomials: dict[tuple[float, ...], str], surfaces: dict[_Rows, int]
    ) -> None:
        self.form, self.name, self.polynomials, self.surfaces = form, name, polynomials, surfaces
        self.sloping = any(item.kind in SURFACES[1:] for item in form.items.values())
        self.uses = form.uses()
        self.exponential = any(item.kind in ("exp_mantissa", "times_exp_mantissa") for item in form.items.values())
        self.parts = form.parts or [Section(())]
        self.shared = {index: f"s[{number}]" for number, index in enumerate(form.crossing())}
        self.sums = {
            accumulator: f"a[{place}]"
            for place, accumulator in enumerate(
                dict.fromkeys(a for part in self.parts if isinstance(part, Loop) for a in part.sums)
            )
        }

    def result(self, output: str) -> str:
        """What stands for an output in the last part."""
        return f"@{self.form.outputs[output]}@"

    def text(self, inputs: Sequence[str], results: Mapping[str, str]) -> str:
        form = self.form
        head = f"static void {self.name}_block(const double *const *in, const double *params, double *const *out)"
        lines = [head, "{"]
        taken = ", ".join(f"*restrict {name} = in[{k}]" for k, name in enumerate(inputs))
        written = ", ".join(f"*restrict {name} = out[{k}]" for k, name in enumerate(results))
        lines += with_comment(f"const double {taken};", None, "//")
        lines += [f"    const double {_parameter(name)} = params[{k}];" for k, name in enumerate(form.params)]
        lines += with_comment(f"double {written};", None, "//")
        arrays = [f"s[{len(self.shared)}][LANES]"] if self.shared else []
        arrays += [f"a[{len(self.sums)}][LANES] = {{{{0.0}}}}"] if self.sums else []
        arrays += ["unused[LANES]"] if any(map(self._leaves_out, self.parts)) else []
        lines += [f"    double {', '.join(arrays)};"] if arrays else []
        lines += [] if form.params else ["    (void)params;"]
        for number, part in enumerate(self.parts):
            lines += self._part(number, part, results if number == len(self.parts) - 1 else {})
        lines += ["}", ""]
        return "\n".join(lines + self._exported(inputs, list(results)))

    def _surfaces(self, part: Surfaces) -> list[str]:
        """The call for a polynomial of two values, whose arguments and results are arrays."""
        made = {self.form.items[index].kind: self.shared[index].removesuffix("[i]") for index in part.items}
        first = self.form.items[part.items[0]]
        number = self.surfaces.setdefault(first.payload, len(self.surfaces))
        unit = c_double(whole_numbers(first.payload)[1])
        arguments = [f"surface{number}", f"terms{number}", str((len(first.payload) + 1) // 2), unit]
        arguments += [self._array(a) for a in first.args]
        sloping = any(kind != "surface" for kind in made)
        arguments += [made.get(kind, "unused") for kind in (SURFACES if sloping else SURFACES[:1])]
        call = f"{'surface_slopes' if sloping else 'surface'}({', '.join(arguments)});"
        return with_comment(call, None, "//")

    def _leaves_out(self, part: Section | Loop | Surfaces) -> bool:
        """Whether a polynomial has slopes and not all of them are wanted."""
        return isinstance(part, Surfaces) and self.form.items[part.items[-1]].kind != "surface" and len(part.items) < 3

    def _array(self, index: int) -> str:
        item = self.form.items[index]
        return str(item.payload) if item.kind == "input" else self.shared[index]

    def _part(self, number: int, part: Section | Loop | Surfaces, results: Mapping[str, str]) -> list[str]:
        if isinstance(part, Surfaces):
            return self._surfaces(part)
        lines: list[str] = []
        indent = "    "
        if isinstance(part, Loop):
            indent = "        "
            lines += [
                f"    for (int k = 0; k < {part.turns}; ++k) {{",
                f"{indent}const double *c = table{part.turns}[k];",
            ]
            if held := self._chosen(part):  # a load in an arm of a select is a branch to gcc, and ends vectors
                text = f"const double {', '.join(f'c{k} = c[{k}]' for k in held)};"
                lines += with_comment(text, None, "//", indent)
        lines += [f"{indent}#pragma omp simd".replace(f"{indent}#", "#"), f"{indent}for (int i = 0; i < LANES; ++i) {{"]
        inner = indent + "    "
        whole = {int(text.strip("@")) for text in results.values() if text.strip("@").isdecimal()}
        writer = _Writer(self, whole, self._chosen(part) if isinstance(part, Loop) else ())
        for index in part.items:
            writer.item(index)
        if isinstance(part, Loop):
            for accumulator, pairs in part.sums.items():
                at = f"{self.sums[accumulator]}[i]"
                text = at
                for place, (value, weight) in enumerate(pairs):
                    writer.shorten((value, weight))
                    added = f"FMA({writer.argument(value)}, {writer.argument(weight)}, "
                    if len(added) + len(text) > _LONGEST:
                        writer.lines += [f"{at} = {text};"] if text != at else []
                        text = at
                    text = f"{added}{text})"
                    if place == len(pairs) - 1:
                        writer.lines.append(f"{at} = {text};")
        for name, text in results.items():
            before, *pieces = text.split("@")
            if not before and pieces[1:] == [""]:
                written = writer.argument(int(pieces[0]))
            else:
                writer.shorten([int(piece) for piece in pieces[::2]])
                pieces[::2] = [writer.atom(int(piece)) for piece in pieces[::2]]
                written = "".join([before, *pieces])
            writer.lines.append(f"{name}[i] = {written};")
        lines += [inner + line for line in writer.lines]
        lines.append(indent + "}")
        if isinstance(part, Loop):
            lines.append("    }")
        return lines

    def _chosen(self, loop: Loop) -> list[int]:
        """Columns among which the selects of a loop choose."""
        selects = (self.form.items[index] for index in loop.items)
        arms = (self.form.items[a] for item in selects if item.kind == "select" for a in item.args[1:])
        return sorted({arm.payload for arm in arms if arm.kind == "column"})

    def _exported(self, inputs: Sequence[str], results: Sequence[str]) -> list[str]:
        arguments = [
            "int64_t n",
            *(f"const double *restrict {name}" for name in inputs),
            "const double *restrict params",
            *(f"double *restrict {name}" for name in results),
        ]
        taken, written = f"(const double *const[]){{{', '.join(inputs)}}}", f"(double *const[]){{{', '.join(results)}}}"
        call = f"over_blocks({self.name}_block, n, {taken}, {len(inputs)}, params, {written}, {len(results)});"
        return [*with_arguments(f"void {self.name}", arguments), "{", *with_comment(call, None, "//"), "}"]


def _surface_table(number: int, rows: _Rows) -> list[str]:
    """The coefficients of a polynomial of two values, as the functions for it take them."""
    from_high = [tuple(reversed(row)) for row in reversed(whole_numbers(rows)[0])]
    if len(from_high) % 2:
        from_high.insert(0, ())
    values: list[float] = []
    lengths = []
    for first, second in zip(from_high[::2], from_high[1::2], strict=True):
        lengths.append(max(len(first), len(second)))
        padded = [(*[0] * (lengths[-1] - len(row)), *row) for row in (first, second)]
        values += itertools.chain(*zip(*padded, strict=True))
    lines = [f"static const double surface{number}[{len(values)}] = {{"]
    lines += table_lines([str(v) if isinstance(v, int) else c_double(v) for v in values], "    ")
    counts = f"static const uint8_t terms{number}[{len(lengths)}] = {{{', '.join(map(str, lengths))}}};"
    return [*lines, "};", *with_comment(counts, None, "//", "")]


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


class _Writer:
    """The statements of one part; values that are read once stand where they are read, outputs (``whole``) always."""

    def __init__(self, kernel: _Kernel, whole: Collection[int], held: Sequence[int]) -> None:
        self.kernel, self.whole, self.held = kernel, whole, held
        self.items = kernel.form.items
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.inline: dict[int, str] = {}

    def atom(self, index: int) -> str:
        """What stands for a value as an operand."""
        if index in self.inline:
            return f"({self.inline.pop(index)})"
        return self._name(index)

    def argument(self, index: int) -> str:
        """The same between commas."""
        return self.inline.pop(index) if index in self.inline else self._name(index)

    def _name(self, index: int) -> str:
        item, kernel = self.items[index], self.kernel
        if index in self.names:
            return self.names[index]
        if item.kind == "const":
            text = c_double(item.payload)
            return f"({text})" if text.startswith("-") else text
        if item.kind == "column":
            return f"c{item.payload}" if item.payload in self.held else f"c[{item.payload}]"
        if item.kind == "input":
            return f"{item.payload}[i]"
        if item.kind == "param":
            return _parameter(item.payload)
        if item.kind == "accumulator":
            return f"{kernel.sums[index]}[i]"
        return f"{kernel.shared[index]}[i]"

    def item(self, index: int) -> None:
        """Write an operation, or keep it for where it is read."""
        item, kernel = self.items[index], self.kernel
        for arm in item.args[1:] if item.kind == "select" else ():
            if arm in self.inline:  # an expression in an arm is a branch
                self._give_name(arm)
        self.shorten(item.args)
        text = self._text(item)
        condition = kernel.form.is_condition(index)
        if index in kernel.shared:
            self.lines.append(f"{kernel.shared[index]}[i] = {text};")
            self.names[index] = f"{kernel.shared[index]}[i]"
            return
        # To gcc an operation on a select may become one in each of its arms, and branches end vectors.
        short = len(text) <= _LONGEST and item.kind != "select" and (not condition or item.kind in _COMPARISONS)
        if kernel.uses[index] == 1 and (short or index in self.whole):
            self.inline[index] = text
            return
        self.names[index] = f"t{len(self.names)}"
        self.lines.append(f"{'_Bool' if condition else 'double'} {self.names[index]} = {text};")

    def shorten(self, args: Sequence[int]) -> None:
        """Give names to expressions that would make a line too long together, the longest first."""
        waiting = sorted((a for a in args if a in self.inline), key=lambda a: -len(self.inline[a]))
        while waiting and sum(len(self.inline.get(a) or self._name(a)) for a in args) > _LONGEST - 10:
            self._give_name(waiting.pop(0))

    def _give_name(self, index: int) -> None:
        name = self.names[index] = f"t{len(self.names)}"
        kind = "_Bool" if self.kernel.form.is_condition(index) else "double"
        self.lines.append(f"{kind} {name} = {self.inline.pop(index)};")

    def _text(self, item: Item) -> str:
        if item.kind == "polynomial":
            coefficients = item.payload
            x = self.argument(item.args[0])
            if len(item.args) == 1:
                y, coefficients = c_double(coefficients[0]), coefficients[1:]
            else:
                y = self.argument(item.args[1])
            name = self.kernel.polynomials.setdefault(coefficients, f"polynomial{len(self.kernel.polynomials)}")
            return f"{name}({y}, {x})"
        if item.kind in ("madd", "sqrt", "abs", "exp_mantissa"):
            return _FORMAT[item.kind].format(*map(self.argument, item.args))
        if item.kind == "times_exp_mantissa":
            return _FORMAT[item.kind].format(self.atom(item.args[0]), self.argument(item.args[1]))
        if item.kind == "half_square" and item.args[0] in self.inline:
            self._give_name(item.args[0])
        if item.kind == "same":
            return self.argument(item.args[0])
        atoms = [self.atom(a) for a in item.args]
        if item.kind in ("and", "or"):  # of another part, a condition is a double
            pairs = zip(item.args, atoms, strict=True)
            atoms = [f"({atom} != 0.0)" if a in self.kernel.shared else atom for a, atom in pairs]
        return _FORMAT[item.kind].format(*atoms)
