"""Rendering to C: one file a variant, with an inline function and a kernel for each program.

The inline functions take numbers, so that other C code can fuse them; the
kernels loop over arrays with OpenMP threads and vector lanes.  Programs of
float64 are rendered the same way; what their kernels do otherwise is in
:mod:`momentgen.compiler.emit.c_float64`.  Bits are the
same under every compiler and instruction set, as long as the compiler neither
contracts nor reassociates: see :data:`momentgen.native.c_compiler.PROMISE`.  Values stand in the order of
:func:`momentgen.compiler.ir.schedule.interleave`, but what is read once right
before what reads it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from momentgen.compiler.emit._body import Body, Polynomial, body_of, statements
from momentgen.compiler.emit._text import (
    LINE_LENGTH,
    Header,
    plain_decimal,
    short_decimal,
    with_arguments,
    with_comment,
)
from momentgen.compiler.ir.op import CONSTANTS, Op, Type
from momentgen.compiler.ir.program import Instruction, Program
from momentgen.compiler.ir.schedule import interleave, vectors
from momentgen.native.includes import FLOAT32

#: gcc takes as many vectors at a time as one of the narrowest type has lanes: with 16 bits two, with 8 four, whose
#: operations stand side by side and do not wait for each other
_NARROW = {4: "uint8_t", 2: "uint16_t"}

_TYPE = {Type.F32: "float", Type.F64: "double", Type.I32: "uint32_t", Type.BOOL: "_Bool"}


def c_float(value: float) -> str:
    """A C literal that is ``value`` exactly: the shortest decimal that a compiler rounds to it.

    Below the normal range, where compilers warn, it is hexadecimal.

    >>> c_float(0.5), c_float(1.0000001192092896), c_float(2.0**-149), c_float(float("-inf"))
    ('0.5f', '1.0000001f', '0x1p-149f', '-__builtin_inff()')
    """
    if math.isnan(value):
        return '__builtin_nanf("")'
    if math.isinf(value):
        return "__builtin_inff()" if value > 0 else "-__builtin_inff()"
    short = short_decimal(value)
    if short is not None:
        return f"{short}f"
    mantissa, exponent = value.hex().split("p")
    head, _, digits = mantissa.partition(".")
    digits = digits.rstrip("0")
    return f"{head}.{digits}p{int(exponent)}f" if digits else f"{head}p{int(exponent)}f"


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


def element_name(program: Program) -> str:
    """Name of the inline function for one element."""
    return f"{program.name}_element"


def render_c(programs: Sequence[Program], header: Header) -> str:
    """One C file with the inline function and the kernel of each program, usually forward and backward.

    Returns:
        C11 source that exports, for each program, ``void NAME(int64_t n, const float *INPUT..., const float *params,
        float *out_OUTPUT...)`` over arrays of ``n`` floats that do not overlap.

    Raises:
        ProgramError: if a program is not well formed.
    """
    parts = [f"{header.c()}\n\n{FLOAT32}"]
    for program in map(interleave, programs):
        parts += [element_text(program), kernel_text(program, _NARROW.get(vectors(program)))]
    return "\n\n".join(parts) + "\n"


def _literal(step: Instruction) -> str:
    if step.bits is not None and step.op is Op.CONST_I32:
        return f"{step.bits}u" if step.bits < 1024 else f"0x{step.bits:08x}u"
    return (c_double if step.type is Type.F64 else c_float)(float(step.value))


def element_text(program: Program) -> str:
    """The inline function of a program for one element, called ``NAME_element``."""
    body = body_of(program)
    body.settle()
    arguments = [f"{_TYPE[program.real]} {argument}" for argument in body.inputs]
    arguments += [f"out_ptr out_{output}" for output, _ in program.outputs]
    lines, results = _statements(body)
    written = [f"    *out_{output} = {text};" for (output, _), text in zip(program.outputs, results, strict=True)]
    return "\n".join([*with_arguments(f"INLINE void {element_name(program)}", arguments), "{", *lines, *written, "}"])


def _statements(body: Body) -> tuple[list[str], list[str]]:
    """The lines of a body, and what stands for its outputs."""

    def form(step: Instruction) -> str:
        if isinstance(step, Polynomial):
            return f"POLY{step.degree}({', '.join(['{}'] * len(step.args))})"
        if step.op is Op.NEG and step.type is Type.F32 and body.steps[step.args[0]].op is Op.FMA:
            return "FLIP({})"
        return step.op.c

    def apart(step: Instruction) -> list[int]:
        """Operands with a line of their own: what a macro repeats, selects, and what is an arm of one.

        To gcc an expression in an arm is a branch, and an operation on a select may become one in each of its arms; a
        loop with branches within each other stays scalar.
        """
        found = [a for a in step.args if body.steps[a].op is Op.SELECT]
        if isinstance(step, Polynomial):
            found.append(step.args[0])
        return [*found, *step.args[1:]] if step.op is Op.SELECT else found

    literals = {i: _literal(step) for i, step in body.steps.items() if step.op in CONSTANTS and i not in body.comments}
    lines: list[str] = []
    values, results = statements(body, form, literals, apart)
    for value in values:
        step = body.steps[value.index]
        text, comment = f"{value.name} = {value.expression or _literal(step)};", body.comments.get(value.index)
        head, last = f"    {_TYPE[step.type]} ", lines[-1] if lines and not comment else ""
        joined = f"{last[:-1]}, {text}"
        if last.startswith(head) and last.endswith(";") and "//" not in last and len(joined) <= LINE_LENGTH:
            lines[-1] = joined
        else:
            lines += with_comment(head.lstrip() + text, comment, "//")
    return lines, results


def signature(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """The head of a kernel."""
    read, written = (f"in_ptr {text}" for text in (*inputs, "params")), (f"out_ptr {text}" for text in outputs)
    return with_arguments(f"void {name}", ["int64_t n", *read, *written])


def kernel_text(program: Program, narrow: str | None = None) -> str:
    """The kernel of a program; ``narrow`` is a type of few bits, for several vectors at a time."""
    results = [f"out_{name}" for name, _ in program.outputs]
    lines = [*signature(program.name, program.inputs, results), "{"]
    for number, name in enumerate(program.params):
        lines.append(f"    const {_TYPE[program.real]} {name} = params[{number}];")
    actual = [*(f"{name}[i]" for name in program.inputs), *program.params, *(f"&{name}[i]" for name in results)]
    head = f"    EVERY_NARROW({narrow}, {results[0]}, " if narrow else "    EVERY("
    return "\n".join([*lines, *with_arguments(f"{head}{element_name(program)}", actual, end="))"), "}"])
