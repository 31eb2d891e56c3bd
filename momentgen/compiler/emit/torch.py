"""The PyTorch renderer: a real graph, accurate to float64, as plain tensor operations.

The form works in any floating dtype and on any device, and autograd runs through
it; the runtime uses it under transforms, for second derivatives, on other
devices, and where there is no compiler.  Polynomials of two values it calls by
their numbers in the C file, which has the tables.  It holds few tensors at a time:
what is read once stands where it is read, and a name is given to another value
as soon as its own is read for the last time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from momentgen.compiler.emit._form import (
    SURFACES,
    Form,
    Item,
    Loop,
    Surfaces,
    Tables,
    cells_of,
    numbered,
    offset_in,
)
from momentgen.compiler.emit._loops import form_of
from momentgen.compiler.emit._text import LINE_LENGTH, comment_text, with_arguments
from momentgen.compiler.emit._torch_functions import BOUNDS, POLYNOMIAL
from momentgen.compiler.emit.header import Header
from momentgen.compiler.ir.graph import Graph, Patch
from momentgen.compiler.ir.kinds import CONDITIONS, KINDS
from momentgen.compiler.ir.stable import Stable
from momentgen.rule.inputs import COVARIANCE, partial_names

__all__ = ["render_torch"]

_CALLS = frozenset({"polynomial", "round", "sqrt", "exp_mantissa", "at_most", "at_least"})
_LONGEST = 92  # characters of an expression; beyond, its operands have names


def render_torch(stable: Stable, header: Header, summary: str) -> str:
    """A Python module with ``forward`` and ``backward``, and ``kernel_scalars`` where the float32 kernels need any.

    Args:
        stable: the variant.
        header: the comment that opens the file.
        summary: one line on what the module computes.
    """
    cells = math.prod(cells_of(stable.forward64).values())
    names = ["cell_of"] * (cells > 1) + ["backward", "forward"] + ["kernel_scalars"] * bool(stable.scalars_source)
    tables, polynomials = Tables(), _Polynomials()
    forward, backward = (_Function(graph, tables, polynomials) for graph in (stable.forward64, stable.partials64))
    first, results = forward.body(list(stable.forward64.outputs))
    number, (cell,) = _Function(numbered(stable.forward64), tables, polynomials).body(["number"])
    outputs = tuple(stable.forward64.outputs)
    of_input = partial_names(stable.partials64.inputs, outputs)
    second, partials = backward.body([partial for of_outputs in of_input.values() for partial in of_outputs])
    lines = [header.python(), f'"""{summary}"""', "", "from __future__ import annotations", ""]
    if forward.needs_math or backward.needs_math:
        lines += ["import math", ""]
    exported = ", ".join(f'"{name}"' for name in sorted(["CELLS"] * (cells > 1) + names))
    lines += ["import torch", "from torch import Tensor", ""]
    if called := sorted({"surface_slopes" if sloping else "surface" for sloping in polynomials.sloping}):
        lines += [f"from momentgen.runtime.surfaces import {', '.join([*called, 'surfaces_beside'])}", ""]
    lines += [f"__all__ = [{exported}]", ""]
    if cells > 1:
        lines += ["#: how many cells there are, with polynomials of their own each", f"CELLS = {cells}"]
    lines += [*polynomials.lines(), *_tables(tables)]
    if polynomials.names:
        lines += ["", "", *POLYNOMIAL.splitlines()]
    for kind in sorted(polynomials.bounds):
        lines += ["", "", *BOUNDS[kind].splitlines()]
    lines += ["", ""]
    params = stable.forward64.params
    keywords = of_scalars = ["*", *(f"{p}: float" for p in params)] if params else []
    inputs = stable.forward64.inputs
    if cells > 1:
        head = with_arguments("def cell_of", [*(f"{i}: Tensor" for i in inputs), *keywords], ") -> tuple[Tensor]:")
        lines += [*head, '    """The number of the cell of each element."""', *number, f"    return ({cell},)", "", ""]
        named = ", ".join([*inputs, *(f"{p}={p}" for p in params)])
        call = f"    _number = cell_of({named})[0] if _cell is None else _cell"
        first, second = [call, *first], [call, *second]
        keywords = [*(keywords or ["*"]), "_cell: int | None = None"]
    returns = f") -> tuple[{', '.join(['Tensor'] * len(outputs))}]:"
    lines += with_arguments("def forward", [*(f"{i}: Tensor" for i in inputs), *keywords], returns)
    several = "each input" if len(inputs) > 2 else "the input"
    covariance = outputs == COVARIANCE
    what, of = ("Covariance", "the outputs") if covariance else ("Mean and variance", "the output")
    lines += [f'    """{what} of {of}, from mean and variance of {several}."""', *first]
    lines += [f"    return {', '.join(results)}{',' if len(results) == 1 else ''}", "", ""]
    gradients = [f"grad_{output}: Tensor" for output in outputs]
    lines += with_arguments(
        "def backward",
        [*(f"{i}: Tensor" for i in inputs), *gradients, *keywords],
        f") -> tuple[{', '.join(['Tensor'] * len(inputs))}]:",
    )
    lines += [
        f'    """Gradients in mean and variance of {several}, from those in {what.lower()} of {of}."""',
        *second,
    ]
    by_input = zip(*(partials[place :: len(outputs)] for place in range(len(outputs))), strict=True)
    returned = [" + ".join(f"grad_{o} * {p}" for o, p in zip(outputs, of, strict=True)) for of in by_input]
    one_line = f"    return {', '.join(returned)}"
    lines += (
        [one_line] if len(one_line) <= LINE_LENGTH else ["    return (", *(f"        {r}," for r in returned), "    )"]
    )
    lines.append("")
    if stable.scalars_source:
        lines += ["", *with_arguments("def kernel_scalars", of_scalars, ") -> tuple[float, ...]:")]
        lines.append(
            '    """Numbers that the float32 kernels take after the parameters, as pairs of hi and lo words."""'
        )
        lines += [f"    {line}".rstrip() for line in stable.scalars_source.splitlines()]
        lines.append("")
    return "\n".join(lines)


def _with_bounds(form: Form) -> Form:
    """The form with one operation for the smaller or larger of a value and a constant, where there were two."""
    items = {index: _as_bound(form, item) for index, item in form.items.items()}
    found = replace(form, items=items)
    uses = found.uses()
    return found.without({index for index, item in items.items() if item.kind == "lt" and not uses[index]})


def _as_bound(form: Form, item: Item) -> Item:
    if item.kind != "select" or form.items[item.args[0]].kind != "lt":
        return item
    condition, bound, value = item.args
    for kind, order in (("at_most", (bound, value)), ("at_least", (value, bound))):
        if form.items[condition].args == order and form.items[bound].kind == "const":
            return Item(kind, (value,), form.items[bound].payload)
    return item


class _Polynomials:
    """The coefficients of polynomials of one value and of two, as constants of the module."""

    def __init__(self) -> None:
        self.names: dict[tuple[float, ...], str] = {}
        self.surfaces: dict[tuple[Patch, ...], int] = {}  # numbers in the C file, which has them
        self.bounds: set[str] = set()  # which functions of values and bounds are wanted
        self.sloping: set[bool] = set()  # whether slopes are wanted of those of two values

    def surface(self, patches: tuple[Patch, ...], sloping: bool) -> str:
        """The call for a polynomial of two values but for its arguments."""
        self.sloping.add(sloping)
        number = self.surfaces.setdefault(patches, len(self.surfaces))
        return f"{'surface_slopes' if sloping else 'surface'}(_SURFACES[{number}]"

    def name(self, coefficients: tuple[float, ...]) -> str:
        return self.names.setdefault(coefficients, f"_POLYNOMIAL{len(self.names)}")

    def lines(self) -> list[str]:
        found: list[str] = []
        for coefficients, name in self.names.items():
            found += ["", *_wrapped(f"{name} = (", coefficients, ")", "    ")]
        if self.surfaces:
            found += ["", "_SURFACES = surfaces_beside(__file__)"]
        return found


def _tables(tables: Tables) -> list[str]:
    found: list[str] = []
    for turns, rows in tables.rows().items():
        found += ["", f"_TABLE{turns} = ("]
        for row in rows:
            found += _wrapped("    (", row, "),", "     ")
        found.append(")")
    return found


def _wrapped(head: str, values: Sequence[float], end: str, indent: str) -> list[str]:
    """``head``, the numbers with commas, ``end``; lines begin with ``indent`` from the second on."""
    lines, line = [], head
    for place, value in enumerate(values):
        last = place == len(values) - 1
        piece = repr(value) + ("," if not last or len(values) == 1 else "")
        if len(line) + len(piece) + (len(end) if last else 0) > LINE_LENGTH:
            lines.append(line.rstrip())
            line = indent
        line += piece + ("" if last else " ")
    return [*lines, line + end]


class _Function:
    """The statements of one direction."""

    def __init__(self, graph: Graph, tables: Tables, polynomials: _Polynomials) -> None:
        self.cells = cells_of(graph)
        self.form = form = _with_bounds(form_of(graph, tables, self.cells))
        self.polynomials = polynomials
        self.needs_math = False
        self.lines: list[str] = []
        self.uses = form.uses()
        #: values that are tensors; the others depend on parameters alone
        self.tensors = {index for index, item in form.items.items() if item.kind == "input"}
        self.crossing = set(form.crossing())
        #: expressions that stand where they are read, with the named values in them
        self.inline: dict[int, tuple[str, list[int]]] = {}
        self.names: dict[int, str] = {}
        self.left = dict(self.uses)  # how often each value is still to be read
        self.free: list[str] = []
        self.read: list[int] = []  # named values in the statement being written
        self.count = 0
        self.indent = "    "
        self.outside: set[int] = set()  # values from before the loop being written, needed until its end

    def body(self, outputs: Sequence[str]) -> tuple[list[str], list[str]]:
        """The statements, and what stands for the outputs, which are tensors."""
        for part in self.form.parts:
            if isinstance(part, Loop):
                self._loop(part)
            elif isinstance(part, Surfaces):
                self._surfaces(part)
            else:
                for index in part.items:
                    self._item(index)
        for index in (self.form.outputs[output] for output in outputs):
            if index in self.inline and len(self.inline[index][0]) > _LONGEST // 3:
                self._give_name(index)
        return self.lines, [self._output(self.form.outputs[output]) for output in outputs]

    def _output(self, index: int) -> str:
        text = self._atom(index)
        if self.form.items[index].kind == "input":  # an output must not be the input's own tensor
            return f"{text} * 1.0"
        if index not in self.tensors:  # an output that does not depend on the input still has its shape
            return f"torch.full_like({self.form.inputs[0]}, {text})"
        return text

    def _surfaces(self, part: Surfaces) -> None:
        made = {self.form.items[index].kind: index for index in part.items}
        first = self.form.items[part.items[0]]
        sloping = any(kind != "surface" for kind in made)
        call = self.polynomials.surface(first.payload, sloping)
        y, z = (self._atom(a, bare=True) for a in first.args[:2])
        cell = "0"
        if len(first.payload) > 1:
            cell = f"_number{offset_in(self.cells, self.form.items[first.args[2]].payload).replace('/', '//')}"
        text = f"{call}, {cell}, {y}, {z})"
        self.tensors |= set(part.items)
        wanted = SURFACES if sloping else SURFACES[:1]
        names = [self._take_name(made[kind]) if kind in made else "_" for kind in wanted]
        self.lines.append(f"{self.indent}{', '.join(names)} = {text}")

    def _loop(self, loop: Loop) -> None:
        self._zeros([accumulator for accumulator in loop.sums if accumulator not in self.names])
        self.lines.append(f"    for c in _TABLE{loop.turns}:")
        self.indent, self.outside = "        ", set(self.names)
        before = {index: self.left[index] for index in self.outside}
        for index in loop.items:
            self._item(index)
        for accumulator, pairs in loop.sums.items():
            text = name = self.names[accumulator]
            for place, (value, weight) in enumerate(pairs):
                text = f"{text} + {self._atom(weight)} * {self._atom(value)}"
                if len(text) > _LONGEST or place == len(pairs) - 1:
                    self.lines.append(f"{self.indent}{name} = {text}")
                    text = name
                    self._release()
        self.free += [self.names[index] for index in sorted(self.outside) if before[index] and not self.left[index]]
        self.indent, self.outside = "    ", set()

    def _zeros(self, accumulators: Sequence[int]) -> None:
        """Statements that begin sums, several in a line."""
        line = "0.0"
        for index in accumulators:
            self.tensors.add(index)
            longer = f"{self._take_name(index)} = {line}"
            if len(self.indent + longer) > LINE_LENGTH:
                self.lines.append(self.indent + line)
                longer = f"{self.names[index]} = 0.0"
            line = longer
        self.lines += [self.indent + line] if accumulators else []

    def _release(self) -> None:
        """Let go of names that the statement now written is the last to read."""
        for index in self.read:
            self.left[index] -= 1
            if self.left[index] == 0 and index not in self.outside:
                self.free.append(self.names[index])
        self.read = []

    def _take_name(self, index: int) -> str:
        """A name for a value: one that is free, perhaps by the statement now written."""
        self._release()
        if not self.free:
            self.free.append(f"t{self.count}")
            self.count += 1
        self.names[index] = self.free.pop()
        return self.names[index]

    def _name(self, index: int, text: str) -> None:
        """A statement that gives a value a name."""
        line = f"{self.indent}{self._take_name(index)} = {text}"
        comment = self.form.comments.get(index)
        noted = f"{line}  # {comment_text(comment)}" if comment else line
        self.lines.append(noted if len(noted) <= LINE_LENGTH else line)

    def _item(self, index: int) -> None:
        item = self.form.items[index]
        if any(a in self.tensors for a in item.args):
            self.tensors.add(index)
        if item.kind in ("half_square", "abs") and item.args[0] in self.inline:  # read more than once
            self._give_name(item.args[0])
        self._shorten(item.args)
        text = self._expression(item, index in self.tensors)
        if self.uses[index] == 1 and index not in self.crossing and len(text) <= _LONGEST:
            self.inline[index], self.read = (text, self.read), []
        else:
            self._name(index, text)

    def _shorten(self, args: Sequence[int]) -> None:
        """Give names to expressions that would make a line too long together, the longest first."""
        waiting = sorted((a for a in args if a in self.inline), key=lambda a: -len(self.inline[a][0]))
        while waiting and sum(len(self.inline[a][0]) if a in self.inline else 8 for a in args) > _LONGEST - 22:
            self._give_name(waiting.pop(0))

    def _give_name(self, index: int) -> None:
        text, self.read = self.inline.pop(index)
        self._name(index, text)

    def _atom(self, index: int, bare: bool = False) -> str:
        """What stands for a value as an operand, or, ``bare``, between commas."""
        if index in self.inline:
            text, read = self.inline.pop(index)
            self.read += read
            return text if bare or self.form.items[index].kind in _CALLS else f"({text})"
        item = self.form.items[index]
        if item.kind == "const":
            return repr(item.payload) if bare or item.payload >= 0 else f"({item.payload!r})"
        if item.kind == "column":
            return f"c[{item.payload}]"
        if item.kind in ("input", "param"):
            return str(item.payload)
        self.read.append(index)
        return self.names[index]

    def _polynomial(self, item: Item) -> str:
        coefficients = item.payload
        x = self._atom(item.args[0], bare=True)
        if len(item.args) == 1:
            value, coefficients = repr(coefficients[0]), coefficients[1:]
        else:
            value = self._atom(item.args[1], bare=True)
        return f"_polynomial({self.polynomials.name(coefficients)}, {x}, {value})"

    def _select(self, item: Item) -> str:
        condition, first, second = item.args
        if condition not in self.tensors:
            return f"{self._atom(first)} if {self._atom(condition)} else {self._atom(second)}"
        args = [self._atom(a, bare=True) for a in item.args]
        if first not in self.tensors and second not in self.tensors:
            # Of two numbers torch.where makes the default dtype, float32.
            args[1] = f"torch.full_like({self.form.inputs[0]}, {args[1]})"
        return f"torch.where({', '.join(args)})"

    def _expression(self, item: Item, tensor: bool) -> str:
        kind = item.kind
        if kind == "polynomial":
            return self._polynomial(item)
        if kind == "select":
            return self._select(item)
        if kind == "same":
            return self._atom(item.args[0], bare=True)
        if kind in ("at_most", "at_least"):
            least = kind == "at_least"
            if tensor:
                self.polynomials.bounds.add(kind)
            name = f"_{kind}" if tensor else "max" if least else "min"
            return f"{name}({self._atom(item.args[0], bare=True)}, {item.payload!r})"
        exponent = item.args[-1] in self.tensors
        args = [self._atom(a, bare=kind in ("round", "sqrt", "exp_mantissa")) for a in item.args]
        if text := KINDS[kind].text:
            return text.format(*args)
        if kind == "times_exp_mantissa":
            self.needs_math |= not exponent
            return f"{args[0]} * {'torch' if exponent else 'math'}.exp({args[1]})"
        if kind in CONDITIONS:
            words = {"and": "&", "or": "|", "not": "~"} if tensor else {"and": "and", "or": "or", "not": "not "}
            return f"{words[kind]}{args[0]}" if kind == "not" else f"{args[0]} {words[kind]} {args[1]}"
        if kind == "abs":
            # Not torch.abs, whose derivative at 0 is 0: at a mean of 0 all selects are on this side.
            return f"torch.where({args[0]} < 0.0, -{args[0]}, {args[0]})" if tensor else f"abs({args[0]})"
        function = {"round": "round", "sqrt": "sqrt", "exp_mantissa": "exp"}[kind]
        if tensor:
            return f"torch.{function}({args[0]})"
        self.needs_math |= kind != "round"
        return f"{'' if kind == 'round' else 'math.'}{function}({args[0]})"
