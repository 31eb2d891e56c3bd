"""Rendering to C: one file a variant, with an inline function and a kernel for each program.

The inline functions take floats, so that other C code can fuse them; the
kernels loop over arrays with OpenMP threads and vector lanes.  Bits are the
same under every compiler and instruction set, as long as the compiler neither
contracts nor reassociates: see :data:`C_FLAGS`.  Values stand in the order of
:func:`momentgen.compiler.schedule.interleave`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from momentgen.compiler.emit._statements import is_constant, statements
from momentgen.compiler.emit._text import short_decimal, with_arguments, with_comment
from momentgen.compiler.emit.header import Header
from momentgen.compiler.program import Instruction, Op, Program, Type
from momentgen.compiler.schedule import interleave, vectors

__all__ = ["C_FLAGS", "PARALLEL_THRESHOLD", "c_float", "element_name", "render_c"]

#: Compiler flags of the generated C.  -ffast-math must never be among them: it flushes subnormals in the whole process.
#: gcc 12 makes branches of selects in its PRE and jump threading passes, and then cannot vectorise the loop.
C_FLAGS: tuple[str, ...] = (
    "-O3",
    "-march=native",
    "-std=c11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-tree-pre",
    "-fno-thread-jumps",
    "-fopenmp",
    "-shared",
    "-fPIC",
)
#: Elements below which a kernel stays on one thread.
PARALLEL_THRESHOLD = 8192

_PRELUDE = """\
#include <float.h>
#include <stdint.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "momentgen: float arithmetic must be IEEE binary32, without -ffast-math and without excess precision"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define FMA __builtin_fmaf
#define SQRT __builtin_sqrtf
#define ABS __builtin_fabsf

#ifndef MOMENTGEN_BITS
#define MOMENTGEN_BITS
static inline uint32_t as_bits(float x)
{
    const union { float f; uint32_t u; } both = {.f = x};
    return both.u;
}

static inline float as_float(uint32_t u)
{
    const union { uint32_t u; float f; } both = {.u = u};
    return both.f;
}
#endif"""

#: gcc takes as many vectors at a time as one of the narrowest type has lanes: with 16 bits two, with 8 four, whose
#: operations stand side by side and do not wait for each other
_NARROW = {4: "uint8_t", 2: "uint16_t"}

#: gcc leaves a long function called once outside of the loop, which then stays scalar: 30 times slower for ELU
_ELEMENT = "static inline __attribute__((always_inline)) void"

_TYPE = {Type.F32: "float", Type.I32: "uint32_t", Type.BOOL: "_Bool"}
_FORMAT = {
    Op.ADD: "{} + {}",
    Op.SUB: "{} - {}",
    Op.MUL: "{} * {}",
    Op.DIV: "{} / {}",
    Op.SQRT: "SQRT({})",
    Op.FMA: "FMA({}, {}, {})",
    Op.NEG: "-{}",
    Op.ABS: "ABS({})",
    Op.LT: "{} < {}",
    Op.LE: "{} <= {}",
    Op.EQ: "{} == {}",
    Op.AND: "{} & {}",
    Op.OR: "{} | {}",
    Op.NOT: "!{}",
    Op.SELECT: "{} ? {} : {}",
    Op.F32_AS_I32: "as_bits({})",
    Op.I32_AS_F32: "as_float({})",
    # Integers are uint32_t, whose arithmetic wraps; only the right shift looks at the sign.
    Op.IADD: "{} + {}",
    Op.ISUB: "{} - {}",
    Op.ISHL: "{} << {}",
    Op.ISHR: "(uint32_t)((int32_t){} >> {})",
    Op.IAND: "{} & {}",
    Op.IOR: "{} | {}",
}


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


def element_name(program: Program) -> str:
    """Name of the inline function for one element."""
    return f"{program.name}_element"


def render_c(programs: Sequence[Program], header: Header) -> str:
    """One C file with the inline function and the kernel of each program.

    Args:
        programs: verified programs of one variant, usually forward and backward.
        header: the comment that opens the file.

    Returns:
        C11 source that exports, for each program, ``void NAME(int64_t n, const float *INPUT..., const float *params,
        float *out_OUTPUT...)`` over arrays of ``n`` floats that do not overlap.

    Raises:
        ProgramError: if a program is not well formed.
    """
    parts = [header.c(), _PRELUDE]
    for program in map(interleave, programs):
        parts += [_element(program), _kernel(program, _NARROW.get(vectors(program)))]
    return "\n\n".join(parts) + "\n"


def _literal(ins: Instruction) -> str:
    if ins.bits is not None and ins.op is Op.CONST_I32:
        return f"{ins.bits}u" if ins.bits < 1024 else f"0x{ins.bits:08x}u"
    return c_float(float(ins.value))


def _element(program: Program) -> str:
    instructions, comments = program.instructions, program.comments
    literals = {i: _literal(ins) for i, ins in enumerate(instructions) if is_constant(ins) and i not in comments}
    arguments = [f"float {name}" for name in (*program.inputs, *program.params)]
    arguments += [f"float *restrict out_{name}" for name, _ in program.outputs]
    lines = with_arguments(f"{_ELEMENT} {element_name(program)}", arguments)
    lines.append("{")
    values, results = statements(program, _FORMAT, literals)
    for value in values:
        ins = instructions[value.index]
        expression = value.expression or _literal(ins)
        code = f"const {_TYPE[ins.type]} {value.name} = {expression};"
        lines += with_comment(code, comments.get(value.index), "//")
    lines += [f"    *out_{name} = {text};" for (name, _), text in zip(program.outputs, results, strict=True)]
    lines.append("}")
    return "\n".join(lines)


def _kernel(program: Program, narrow: str | None) -> str:
    arguments = ["int64_t n", *(f"const float *restrict {name}" for name in program.inputs)]
    arguments += ["const float *restrict params", *(f"float *restrict out_{name}" for name, _ in program.outputs)]
    lines = with_arguments(f"void {program.name}", arguments)
    lines.append("{")
    for number, name in enumerate(program.params):
        lines.append(f"    const float {name} = params[{number}];")
    if not program.params:
        lines.append("    (void)params;")
    actual = [*(f"{name}[i]" for name in program.inputs), *program.params]
    actual += [f"&out_{name}[i]" for name, _ in program.outputs]
    reduction = " reduction(^ : narrow)" if narrow else ""
    lines += [f"    {narrow} narrow = 0;  // so that gcc takes several vectors at a time"] if narrow else []
    lines += [
        f"#pragma omp parallel for simd if(parallel : n > {PARALLEL_THRESHOLD}){reduction}",
        "    for (int64_t i = 0; i < n; ++i) {",
        *with_arguments(f"        {element_name(program)}", actual, end=");"),
    ]
    lines += [f"        narrow ^= ({narrow})as_bits(out_{program.outputs[0][0]}[i]);"] if narrow else []
    lines += ["    }", *(["    (void)narrow;"] if narrow else []), "}"]
    return "\n".join(lines)
