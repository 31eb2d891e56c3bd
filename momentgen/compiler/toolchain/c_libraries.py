"""C that the build itself runs, compiled and loaded.

The runtime has a cached build of its own.  What is compiled here stands in a temporary directory that lives as long as
the process.
"""

from __future__ import annotations

import ctypes
import functools
import math
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from momentgen.native.c_compiler import accepted_flags, chosen_compiler, compile_library
from momentgen.native.includes import whole


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    # Kept by the cache, removed when the interpreter ends.
    return tempfile.TemporaryDirectory(prefix="momentgen-native-")


@functools.lru_cache(maxsize=256)
def _compile(source: str, flags: tuple[str, ...], compiler: tuple[str, ...]) -> ctypes.CDLL:
    return ctypes.CDLL(str(compile_library(compiler, source, flags, Path(tempfile.mkdtemp(dir=_directory().name)))))


def compiled(source: str, flags: Sequence[str] | None = None, compiler: tuple[str, ...] | None = None) -> ctypes.CDLL:
    """Compile C ``source`` to a shared library and load it; the same source and flags are compiled once.

    Args:
        source: text of a C file.
        flags: compiler flags; by default :func:`momentgen.native.c_compiler.accepted_flags`.
        compiler: its command; by default that of the machine.

    Raises:
        CompilerError: if there is no compiler, or it fails.
    """
    compiler = compiler or chosen_compiler()
    return _compile(whole(source), tuple(accepted_flags(compiler) if flags is None else flags), compiler)


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


def called(function: Any, *arguments: Any) -> Any:
    """What a C function gives of whole numbers (``int64_t``), floats (``double``) and arrays (pointers to their data).

    Arrays must be contiguous, and of the type that the function takes; arguments of ``ctypes`` are passed as they are.
    """
    return function(*map(_passed, arguments))


def _passed(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    return ctypes.c_double(argument) if isinstance(argument, float) else argument
