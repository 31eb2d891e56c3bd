"""What the build's own loops in C have in common: an exponential made of vectors, no subnormal numbers.

Where a density underflows, each operation on a subnormal number takes twenty times as long; loops that ask for it take
it for 0, and leave the processor as they found it.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache

from momentgen.compiler.toolchain.c_libraries import compiled
from momentgen.native.c_compiler import accepted_flags, chosen_compiler

__all__ = ["library"]

#: (exp(r) - 1 - r)/r² for |r| <= ln(2)/2, from high to low
_EXPONENTIAL = [1 / math.factorial(k) for k in range(13, 1, -1)]
_PRELUDE = """\
#include <stdint.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

static inline unsigned int subnormal_numbers_are_0(void)
{
#if defined(__SSE2__)
    const unsigned int before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
#else
    return 0;
#endif
}

static inline void as_before(unsigned int before)
{
#if defined(__SSE2__)
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

static inline __attribute__((always_inline)) double power_of_two(double magic_and_n)
{
    const union { double f; uint64_t u; } in = {.f = magic_and_n}, out = {.u = (in.u << 52) + 0x3ff0000000000000u};
    return out.f;
}

static inline __attribute__((always_inline)) double exponential(double x)
{
    const double magic = 0x1.8p52;
    x = x < -746.0 ? -746.0 : x;
    x = x > 710.0 ? 710.0 : x;
    const double n = (x * 0x1.71547652b82fep0 + magic) - magic;
    const double r = (x - n * 0x1.62e42fefap-1) - n * 0x1.cf79abc9e3b39p-40;
    double p = @FIRST@;
@STEPS@
    p = r * r * p + r + 1.0;
    const double half = n * 0.5 + magic;
    return p * power_of_two(half) * power_of_two(n - (half - magic) + magic);
}

"""


@cache
def library(source: str, *flags: str) -> ctypes.CDLL:
    """C source compiled after the prelude, with more flags if there are any, once a process.

    Raises:
        CompilerError: if there is no compiler, or it fails.
    """
    first, *others = (c.hex() for c in _EXPONENTIAL)
    steps = "\n".join(f"    p = p * r + {c};" for c in others)
    compiler = chosen_compiler()
    text = _PRELUDE.replace("@FIRST@", first).replace("@STEPS@", steps) + source
    return compiled(text, (*accepted_flags(compiler), *flags), compiler)
