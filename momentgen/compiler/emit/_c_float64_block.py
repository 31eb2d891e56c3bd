"""The block functions of C in float64: one straight or looping function over the elements of a block.

:mod:`momentgen.compiler.emit.c_float64` makes kernels of them.  What is shared between parts of a form stands in small
arrays; polynomials of two values and the exponential are calls (``_c_float64_functions``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from momentgen.compiler.emit._c_float64_forms import has_long_loops, with_fused_products, with_roots
from momentgen.compiler.emit._form import (
    SURFACES,
    Item,
    Loop,
    Section,
    Surfaces,
    Tables,
    cells_of,
    offset_in,
)
from momentgen.compiler.emit._loops import form_of
from momentgen.compiler.emit._text import plain_decimal, with_comment
from momentgen.compiler.ir.graph import Graph, Patch
from momentgen.compiler.ir.kinds import KINDS

__all__ = ["Block", "c_double", "head_of"]

_LONGEST = 92  # characters of an expression; beyond, its operands have names

_FORMAT = {name: kind.in_c for name, kind in KINDS.items() if kind.in_c} | {
    "msub": "FMA({}, {}, -{})",
    "nmadd": "FMA(-{}, {}, {})",
    "rsqrt": "rsqrt64({})",
}
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


def head_of(name: str, in_cell: bool) -> str:
    """The head of a block function, perhaps of one for the elements of a cell."""
    of = ["const double *const *in", "const double *params", "double *const *out"] + ["int cell"] * in_cell
    return "\n".join(with_comment(f"static void {name}_block({', '.join(of)})", None, "//", ""))


def _parameter(name: str) -> str:
    """A parameter's name in the block, where a loop's k and other short names have a meaning."""
    return f"p_{name}"


class Block:
    """The text of a block function."""

    def __init__(
        self,
        graph: Graph,
        tables: Tables,
        name: str,
        polynomials: dict[tuple[float, ...], str],
        surfaces: dict[tuple[Patch, ...], int],
        quick_roots: bool = False,
    ) -> None:
        self.name, self.polynomials, self.surfaces = name, polynomials, surfaces
        #: node -> how many cells it numbers
        self.cells = cells_of(graph)
        form = with_fused_products(form_of(graph, tables, self.cells))
        if quick_roots and not has_long_loops(form):
            form = with_roots(form)
        self.form = form
        self.sloping = any(item.kind in SURFACES[1:] for item in form.items.values())
        self.rooting = any(item.kind == "rsqrt" for item in form.items.values())
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
        """The function."""
        form = self.form
        lines = [head_of(self.name, bool(self.cells)), "{"]
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
        return "\n".join([*lines, "}", ""])

    def _surfaces(self, part: Surfaces) -> list[str]:
        """The call for a polynomial of two values, whose arguments and results are arrays."""
        made = {self.form.items[index].kind: self.shared[index].removesuffix("[i]") for index in part.items}
        first = self.form.items[part.items[0]]
        number = self.surfaces.setdefault(first.payload, len(self.surfaces))
        arguments = [f"surface{number}", f"terms{number}", f"patches{number}{self._offset(first)}"]
        arguments += [self._array(a) for a in first.args[:2]]
        sloping = any(kind != "surface" for kind in made)
        arguments += [made.get(kind, "unused") for kind in (SURFACES if sloping else SURFACES[:1])]
        call = f"{'surface_slopes' if sloping else 'surface'}({', '.join(arguments)});"
        return with_comment(call, None, "//")

    def _offset(self, item: Item) -> str:
        """What the number of the cell adds to an address."""
        if len(item.payload) == 1:
            return ""
        return f" + cell{offset_in(self.cells, self.form.items[item.args[2]].payload)}"

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


class _Writer:
    """The statements of one part; values that are read once stand where they are read, outputs (``whole``) always."""

    def __init__(self, kernel: Block, whole: Collection[int], held: Sequence[int]) -> None:
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
        if item.kind in ("madd", "sqrt", "rsqrt", "abs", "exp_mantissa"):
            return _FORMAT[item.kind].format(*map(self.argument, item.args))
        if item.kind == "times_exp_mantissa":
            return _FORMAT[item.kind].format(self.atom(item.args[0]), self.argument(item.args[1]))
        if item.kind == "half_square" and item.args[0] in self.inline:
            self._give_name(item.args[0])
        if item.kind == "same":
            return self.argument(item.args[0])
        if item.kind in ("msub", "nmadd"):
            negated = 2 if item.kind == "msub" else 0
            of = [self.atom(a) if place == negated else self.argument(a) for place, a in enumerate(item.args)]
            return _FORMAT[item.kind].format(*of)
        atoms = [self.atom(a) for a in item.args]
        if item.kind in ("and", "or"):  # of another part, a condition is a double
            pairs = zip(item.args, atoms, strict=True)
            atoms = [f"({atom} != 0.0)" if a in self.kernel.shared else atom for a, atom in pairs]
        return _FORMAT[item.kind].format(*atoms)
