"""The PyTorch renderer: programs of float64 as plain tensor operations.

Autograd runs through the code; the runtime uses it under transforms, for second derivatives, on other devices, and
where there is no compiler.  Polynomials of two values it calls by their numbers in the C file, which has the tables.
It holds few tensors at a time: a name is given to another value as soon as its own is read for the last time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from momentgen.compiler.emit._body import Body, Polynomial, body_of, statements
from momentgen.compiler.emit._text import LINE_LENGTH, Header, with_arguments, with_comment
from momentgen.compiler.ir.graph import Patch, reached
from momentgen.compiler.ir.op import CONSTANTS, Op
from momentgen.compiler.ir.program import Instruction, Program, ProgramError
from momentgen.compiler.ir.schedule import schedule
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.lower.float64 import Kernel, Summation, parameter

#: stands for a space at which no line may end
_SPACE = "\0"
#: results, from where on a function does not say how many it has
_MANY = 6
_NAME = re.compile(r"\b[ct]\d+\b")
#: functions that are said often, and so imported by their names
_IMPORTED = re.compile(r"torch\.(exp|sqrt|where)\(")
#: what has a tensor, not a number, for its first operand
_OF_TENSORS = (Op.SQRT, Op.EXP, Op.ROUND, Op.ABS, Op.LT, Op.LE, Op.EQ)


def render_torch(stable: Stable, kernels: tuple[Kernel, Kernel], header: Header, summary: str) -> str:
    """A Python module with ``forward`` and ``backward``, and ``kernel_scalars`` where the float32 kernels need any.

    ``kernels`` are the variant's programs for float64; ``summary`` is one line on what the module computes.

    Raises:
        ProgramError: if a program is not well formed.
    """
    cells = kernels[0].cells
    every = [(k, program) for k, kernel in enumerate(kernels) for program in kernel.programs[k and cells > 1 :]]
    params = stable.forward64.params
    several = "each input" if len(stable.forward64.inputs) > 2 else "the input"
    docs = (
        f"Mean and variance of the output, from mean and variance of {several}.",
        f"Gradients in mean and variance of {several}, from those in mean and variance of the output.",
    )
    texts = []
    for k, program in every:
        name = _private(kernels[k], program)
        texts.append(_function(name, body_of(schedule(program)), "" if name.startswith("_") else docs[k]))
    surfaces: dict[tuple[Patch, ...], int] = {}
    sheets = [sheet for kernel in kernels for sheet in kernel.sheets]
    for sheet in sheets:
        surfaces.setdefault(sheet.patches, len(surfaces))
    lines = [header.python(), f'"""{summary}"""', ""]
    functions_of_torch = sorted({name for text in texts for name in re.findall(r"\b(exp|sqrt|where)\(", text)})
    lines += ["import torch", f"from torch import {', '.join(['Tensor', *functions_of_torch])}", ""]
    called = {*(sheet.function for sheet in sheets), *(["surfaces_beside"] if sheets else [])}
    called |= {"summed"} if any(kernel.sums for kernel in kernels) else set()
    called |= {name for name in ("choice", "polynomial") if any(f"{name}(" in text for text in texts)}
    if called:
        lines += [f"from momentgen.runtime.surfaces import {', '.join(sorted(called))}", ""]
    if cells > 1:
        lines += ["#: how many cells there are, with polynomials of their own each", f"CELLS = {cells}", ""]
    if sheets:
        lines += ["_SURFACES = surfaces_beside(__file__)", ""]
    tables = {_table_name(kernel.sums): _table(kernel.sums) for kernel in kernels if kernel.sums}
    lines += [line for table in tables.values() for line in (table, "")]
    if cells > 1:
        texts.append(_cell_of(kernels[0], params))
    texts += [
        _public(which, kernel, params, surfaces, doc)
        for which, kernel, doc in zip(("forward", "backward"), kernels, docs, strict=True)
        if not _is_public(kernel)
    ]
    if stable.scalars_source:
        texts.append(_kernel_scalars(stable, params))
    return "\n\n\n".join(["\n".join(lines).rstrip(), *texts]) + "\n"


def _private(kernel: Kernel, program: Program) -> str:
    """The function of a program."""
    direction = kernel.name.rpartition("_")[2]
    if kernel.number is program:
        return "_cell_number"
    if kernel.sums and kernel.sums.term is program:
        return f"_{direction}_term"
    return f"_{direction}_points" if kernel.points is program else direction if _is_public(kernel) else f"_{direction}"


def _is_public(kernel: Kernel) -> bool:
    """Whether a kernel is its program, and so needs no function around that of the program."""
    program = kernel.program
    if program.inputs != kernel.inputs or program.params or kernel.number or len(program.outputs) == 1:
        return False
    return all(_whole(kernel, name, name) == name for name, _ in program.outputs)


def _literal(step: Instruction) -> str:
    value = float(step.value)
    return repr(value) if abs(value) < float("inf") else f'float("{value}")'


def _function(name: str, body: Body, doc: str) -> str:
    """The function of a body."""
    lines, results = _statements(body)
    returned = "Tensor" if len(results) == 1 else f"tuple[{', '.join(['Tensor'] * len(results))}]"
    end = f") -> {returned if len(results) < _MANY else 'tuple[Tensor, ...]'}:"
    arguments = [f"{text}: Tensor" for text in body.inputs]
    head = [*with_arguments(f"def {name}", arguments, end), *([f'    """{doc}"""'] if doc else [])]
    return "\n".join([*head, *lines, *_assignment("return", ", ".join(results), None, " ")])


def _statements(body: Body) -> tuple[list[str], list[str]]:
    """The lines of a body, and what stands for its outputs."""
    body.settle()
    steps = body.steps
    number = {i for i, step in steps.items() if step.op in CONSTANTS}
    for index, step in steps.items():
        if step.args and not isinstance(step, Polynomial) and number.issuperset(step.args):
            number.add(index)

    def form(step: Instruction) -> str:
        if isinstance(step, Polynomial):
            return f"polynomial({{}}, {{}}, ({', '.join(['{}'] * step.degree)}))"
        if step.op is Op.SELECT and number.issuperset(step.args[1:]):
            return "choice({}, {}, {})"
        text = _IMPORTED.sub(r"\1(", step.op.torch)
        if step.op in _OF_TENSORS and number.issuperset(step.args):
            return text.replace("{", "torch.as_tensor({", 1).replace("}", "}, dtype=torch.float64)", 1)
        return text

    def apart(step: Instruction) -> list[int]:
        """Operands that a text has twice."""
        return [step.args[0]] if step.op in (Op.ABS, Op.SELECT) else []

    literals = {i: _literal(step) for i, step in steps.items() if step.op in CONSTANTS}
    values, results = statements(body, form, literals, apart)
    written, results = _reusing([(v.name, v.expression or literals[v.index]) for v in values], results)
    lines: list[str] = []
    for (name, expression), value in zip(written, values, strict=True):
        lines += _assignment(name, expression, body.comments.get(value.index))
    return lines, results


def _assignment(names: str, expression: str, comment: str | None, between: str = " = ") -> list[str]:
    """The lines of a statement, which go on within brackets only."""
    code = f"{names}{between}{expression}"
    if len(code) + 4 > LINE_LENGTH:
        names = f"({names})" if "," in names else names
        code = f"{names}{between.replace(' ', _SPACE)}({expression})"
    return [line.replace(_SPACE, " ") for line in with_comment(code, comment, "#")]


def _reusing(written: Sequence[tuple[str, str]], results: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The same with names given again to other values, once what they were is not read any more."""
    last = {name: k for k, (_, text) in enumerate(written) for name in _NAME.findall(text)}
    last |= {name: len(written) for text in results for name in _NAME.findall(text)}
    names: dict[str, str] = {}
    free: list[str] = []
    count = 0
    found: list[tuple[str, str]] = []

    def renamed(text: str) -> str:
        return _NAME.sub(lambda match: names[match[0]], text)

    for k, (name, text) in enumerate(written):
        expression = renamed(text)
        free += [names[read] for read in dict.fromkeys(_NAME.findall(text)) if last[read] == k]
        if not free:
            free.append(f"t{count}")
            count += 1
        names[name] = free.pop()
        found.append((names[name], expression))
    return found, [renamed(text) for text in results]


def _table_name(sums: Summation) -> str:
    return f"_TABLE_{len(sums.table)}"


def _table(sums: Summation) -> str:
    rows = [f"({', '.join(map(repr, row))})," for row in sums.table]
    return "\n".join(
        ["#: of sums: numbers of each term", f"{_table_name(sums)} = (", *(f"    {row}" for row in rows), ")"]
    )


def _heads(which: str, arguments: Sequence[str], params: Sequence[str], returns: int, more: str = "") -> list[str]:
    keywords = [*(f"{p}: float" for p in params), *([more] if more else [])]
    every = [*(f"{name}: Tensor" for name in arguments), *(["*"] if keywords else []), *keywords]
    return with_arguments(f"def {which}", every, f") -> tuple[{', '.join(['Tensor'] * returns)}]:")


def _parameters(kernel: Kernel, params: Sequence[str]) -> list[str]:
    like = f"dtype=torch.float64, device={kernel.inputs[0]}.device"
    return [f"    {parameter(p)} = torch.as_tensor({p}, {like})" for p in params]


def _call(kernel: Kernel, program: Program) -> str:
    return f"{_private(kernel, program)}({', '.join([*program.inputs, *program.params])})"


def _cell_of(kernel: Kernel, params: Sequence[str]) -> str:
    if kernel.number is None:
        raise ProgramError(f"{kernel.name}: there is no number of a cell")
    lines = [*_heads("cell_of", kernel.program_inputs, params, 1), '    """The number of the cell of each element."""']
    lines += [*_parameters(kernel, params), *_assignment("return", f"({_call(kernel, kernel.number)},)", None, " ")]
    return "\n".join(lines)


def _public(
    which: str, kernel: Kernel, params: Sequence[str], surfaces: Mapping[tuple[Patch, ...], int], doc: str
) -> str:
    """``forward`` or ``backward``."""
    outputs = [name for name, _ in kernel.program.outputs]
    lines = _heads(which, kernel.inputs, params, len(outputs), "_cell: int | None = None" if kernel.cells > 1 else "")
    lines += [f'    """{doc}"""']
    lines += _parameters(kernel, params)  # first: a parameter may have the name of what comes
    if kernel.cells > 1:
        given = ", ".join([*kernel.program_inputs, *(f"{p}={p}" for p in params)])
        lines.append(f"    number = cell_of({given})[0] if _cell is None else _cell")
    if kernel.points is not None:
        lines += _assignment(", ".join(name for name, _ in kernel.points.outputs), _call(kernel, kernel.points), None)
    for sheet in kernel.sheets:
        names = ", ".join(sheet.results.get(kind, "_") for kind in sheet.kinds)
        of = f"_SURFACES[{surfaces[sheet.patches]}], {sheet.cell('number', '//')}, {sheet.y}, {sheet.z}"
        lines += _assignment(names, f"{sheet.function}({of})", None)
    if kernel.sums is not None:
        sums = kernel.sums
        rows = ", ".join(f"({', '.join(row)})" for row in sums.rows)
        call = f"summed({_private(kernel, sums.term)}, ({', '.join(sums.shared)},), ({rows},), {_table_name(sums)})"
        lines += _assignment(", ".join(sums.results), call, None)
    results = [f"out_{name}" for name in outputs]
    returned = [_whole(kernel, name, text) for name, text in zip(outputs, results, strict=True)]
    lines += _assignment(", ".join(results), _call(kernel, kernel.program), None)
    text = f"({returned[0]},)" if len(returned) == 1 else ", ".join(returned)
    return "\n".join([*lines, *_assignment("return", text, None, " ")])


def _whole(kernel: Kernel, output: str, text: str) -> str:
    """An output: of the inputs' shape, and not an input's own tensor."""
    steps, index = kernel.program.instructions, dict(kernel.program.outputs)[output]
    if all(steps[i].op is not Op.INPUT for i in reached([index], lambda i: steps[i].args)):
        return f"torch.zeros_like({kernel.inputs[0]}) + {text}"
    return f"{text} * 1.0" if steps[index].op is Op.INPUT else text


def _kernel_scalars(stable: Stable, params: Sequence[str]) -> str:
    keywords = ["*", *(f"{p}: float" for p in params)] if params else []
    lines = with_arguments("def kernel_scalars", keywords, ") -> tuple[float, ...]:")
    lines.append('    """Numbers that the float32 kernels take after the parameters, as pairs of hi and lo words."""')
    lines += [f"    {line}".rstrip() for line in stable.scalars_source.splitlines()]
    return "\n".join(lines)
