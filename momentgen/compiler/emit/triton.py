"""Rendering to Triton: one Python module a variant, with a device function and a kernel for each program.

The device functions take and return float32 values, so that other kernels can
inline them; the kernels load any float dtype, compute in float32 and round
once on storing.  What all modules share is in ``momentgen/runtime/triton_parts.py``.
Only correctly rounded operations are written (``tl.fma``,
``tl.div_rn``, ``tl.sqrt_rn``); launch with ``enable_fp_fusion=False``, so that
none is contracted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from momentgen.compiler.emit._body import Polynomial, body_of, statements
from momentgen.compiler.emit._text import LINE_LENGTH, Header, short_decimal, with_arguments, with_comment
from momentgen.compiler.ir.op import CONSTANTS, Op, Type
from momentgen.compiler.ir.program import Instruction, Program, ProgramError
from momentgen.compiler.ir.schedule import two_fit
from momentgen.compiler.lower.float64 import Kernel

#: stands for an equals sign between brackets, where no line may end
_EQUALS = "\0=\0"
#: Triton 3.6 makes +0 of a literal -0.0.
_MINUS_ZERO = 0x80000000
#: primitives whose text is another in float64, where / and sqrt are rounded correctly
_DOUBLE = {
    Op.DIV: "{} / {}",
    Op.SQRT: "tl.sqrt({})",
    Op.EXP: "exp64({})",
    Op.LOG: "log64({})",
    Op.ROUND: "({} + 6755399441055744.0) - 6755399441055744.0",
}


def kernel_name(program: Program) -> str:
    """Name of the elementwise kernel around the device function."""
    return f"{program.name}_kernel"


def render_triton(programs: Sequence[Program], header: Header) -> str:
    """One Python module with the device function and the kernel of each program, usually forward and backward.

    Returns:
        Source that defines, for each program, ``NAME(INPUT..., PARAM...)`` returning a value or a tuple of them, and
        ``NAME_kernel(INPUT_ptr..., out_OUTPUT_ptr..., n, PARAM..., BLOCK: tl.constexpr)``; one program of the grid
        does ``BLOCK`` of the ``n`` elements, ``LANE_ELEMENTS`` of them in each lane of a warp.

    Raises:
        ProgramError: if a program is not well formed.
    """
    devices = list(map(_device, programs))
    head = _head(header, devices, ["load", "places", "store"], 2 if all(map(two_fit, programs)) else 1)
    parts = [text for pair in zip(devices, map(_kernel, programs), strict=True) for text in pair]
    return "\n\n\n".join([head, *parts]) + "\n"


def _head(header: Header, devices: Iterable[str], shared: Sequence[str], lanes: int) -> str:
    """What a module begins with; ``shared`` are the functions that it takes beside that for polynomials."""
    names = sorted([*shared, *(["polynomial"] if any("polynomial(" in text for text in devices) else [])])
    return (
        f"{header.python()}\n\nimport triton\nimport triton.language as tl\n\n"
        f"from momentgen.runtime.triton_parts import {', '.join(names)}\n\nLANE_ELEMENTS = {lanes}"
    )


def render_triton_sums(kernels: Sequence[Kernel], header: Header) -> str:
    """As :func:`render_triton`, of kernels with sums in float64 that are rounded once.

    The module has also ``TABLE``, the nodes and weights one after the other, which kernels take in an array before
    ``n``; parameters are pairs of floats, whose sums they are.
    """
    devices = [_device(program) for kernel in kernels for program in kernel.programs]
    head = _head(header, devices, ["double", "exp64", "load_double", "log64", "places", "store_rounded"], 1)
    return "\n\n\n".join([f"{head}\n{_table(kernels)}", *devices, *map(_kernel_of_sums, kernels)]) + "\n"


def _table(kernels: Sequence[Kernel]) -> str:
    numbers = [repr(number) for kernel in kernels[:1] if kernel.sums for row in kernel.sums.table for number in row]
    return "\n".join(["TABLE = (", *(f"    {number}," for number in numbers), ")"])


def _kernel_of_sums(kernel: Kernel) -> str:
    sums, points = kernel.sums, kernel.points
    if sums is None or points is None:
        raise ProgramError(f"{kernel.name}: expected a kernel with sums")
    outputs = [name for name, _ in kernel.program.outputs]
    params = kernel.program.params
    arguments = [f"{name}_ptr" for name in kernel.inputs] + [f"out_{name}_ptr" for name in outputs]
    arguments += ["TABLE_ptr", "n", *(f"{name}_{word}" for name in params for word in ("hi", "lo"))]
    made = ", ".join(name for name, _ in points.outputs)
    lines = [
        "@triton.jit",
        *with_arguments(f"def {kernel.name}_kernel", [*arguments, "BLOCK: tl.constexpr"], end="):"),
        "    offsets = places(BLOCK)",
        *(f"    {name} = load_double({name}_ptr, offsets, n)" for name in kernel.inputs),
        *(f"    {name} = tl.full((BLOCK,), {name}_hi, tl.float64) + {name}_lo" for name in params),
        *with_arguments(f"    {made} = {points.name}", [*points.inputs, *params]),
        *(f"    {result} = tl.zeros((BLOCK,), tl.float64)" for result in sums.results),
        f"    for k in range({len(sums.table)}):",
    ]
    columns = len(sums.table[0])
    first = len(sums.shared)
    numbers = sums.term.inputs[first + len(sums.rows[0]) :]
    lines += [f"        {name} = tl.load(TABLE_ptr + {columns} * k + {j})" for j, name in enumerate(numbers)]
    terms = ", ".join(f"term_{result}" for result in sums.results)
    for row in sums.rows:
        given = [*sums.shared, *row, *numbers]
        lines += with_arguments(f"        {terms} = {sums.term.name}", given)
        lines += [f"        {result} += term_{result}" for result in sums.results]
    call = f"{kernel.program.name}({', '.join([*kernel.program.inputs, *params])})"
    pointers = ", ".join(f"out_{name}_ptr" for name in outputs)
    return "\n".join([*lines, *with_arguments("    store_rounded", [f"({pointers})", "offsets", "n", call])])


def _literal(step: Instruction) -> str | None:
    """A constant that Triton keeps in 32 bits where it stands in an expression."""
    if step.op is Op.CONST_I32:
        value = int(step.value)
        return str(value) if abs(value) < 1024 else hex(value)
    if step.type is Type.F64:
        return None
    return None if step.bits == _MINUS_ZERO else short_decimal(float(step.value))


def _full(step: Instruction) -> str:
    """A constant as a scalar tensor: Triton makes a float64 of a literal below the normal range."""
    if step.op is Op.CONST_I32:
        return f"tl.full((), {_literal(step)}, tl.int32)"
    if step.bits == _MINUS_ZERO:
        return f"tl.full((), {_MINUS_ZERO - 2**32}, tl.int32).to(tl.float32, bitcast=True)"
    value = float(step.value)
    if step.type is Type.F64:
        return f"double({value!r})" if math.isfinite(value) else f'double(float("{value}"))'
    text = short_decimal(value) or (repr(value) if math.isfinite(value) else f'float("{value}")')
    return f"tl.full((), {text}, tl.float32)"


def _form(step: Instruction) -> str:
    if isinstance(step, Polynomial):
        return f"polynomial({{}}, {{}}, ({', '.join(['{}'] * step.degree)}))"
    return _DOUBLE.get(step.op, step.op.triton) if step.type is Type.F64 else step.op.triton


def _device(program: Program) -> str:
    body = body_of(program)
    body.settle()
    steps, comments = body.steps, body.comments
    # Between literals alone Python itself would compute, in float64; and a literal has no methods.
    named = {a for step in steps.values() if all(steps[a].op in CONSTANTS for a in step.args) for a in step.args}
    found = {i: _literal(step) for i, step in steps.items() if step.op in CONSTANTS and i not in named}
    literals = {index: text for index, text in found.items() if text is not None and index not in comments}
    lines = ["@triton.jit", *with_arguments(f"def {program.name}", body.inputs, end="):")]
    values, results = statements(body, _form, literals)
    for value in values:
        code = f"{value.name} = {value.expression or _full(steps[value.index])}"
        if len(code) + 4 > LINE_LENGTH:  # a line of Python goes on within brackets only
            code = f"{value.name}{_EQUALS}({value.expression})"
        written = with_comment(code, comments.get(value.index), "#")
        lines += [line.replace(_EQUALS, " = ") for line in written]
    lines += with_arguments("    return ", results, end=")") if len(results) > 1 else [f"    return {results[0]}"]
    return "\n".join(lines)


def _kernel(program: Program) -> str:
    outputs = [name for name, _ in program.outputs]
    arguments = [f"{name}_ptr" for name in program.inputs] + [f"out_{name}_ptr" for name in outputs]
    arguments += ["n", *program.params, "BLOCK: tl.constexpr"]
    lines = [
        "@triton.jit",
        *with_arguments(f"def {kernel_name(program)}", arguments, end="):"),
        "    offsets = places(BLOCK)",
    ]
    lines += [f"    {name} = load({name}_ptr, offsets, n)" for name in program.inputs]
    # The interpreter passes Python floats, with which Python would compute in float64, and it mistypes comparisons of
    # scalars: hence blocks.  Their arithmetic is done once a thread, since its elements are one expression.
    lines += [f"    {name} = tl.full((BLOCK,), {name}, tl.float32)" for name in program.params]
    call = f"{program.name}({', '.join([*program.inputs, *program.params])})"
    pointers = ", ".join(f"out_{name}_ptr" for name in outputs)
    stored = [f"({pointers})", call] if len(outputs) > 1 else [f"({pointers},)", f"({call},)"]
    return "\n".join([*lines, *with_arguments("    store", [stored[0], "offsets", "n", stored[1]])])
