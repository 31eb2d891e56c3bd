"""The C of filters and samplers, which no PyTorch code replaces: datum by datum it would be tens of times slower."""

from __future__ import annotations

import ctypes

from momentgen.errors import MomentgenError
from momentgen.runtime.kernel_cache import compile_and_load
from momentgen.runtime.toolchain import Unavailable


class MissingCompilerError(MomentgenError, RuntimeError):
    """This machine has neither a C compiler nor a wheel's kernels; the message says what was tried."""


def library(what: str, stem: str, source: str) -> ctypes.CDLL:
    """``source`` as a library: from this wheel's kernels or the cache, else compiled.

    Args:
        what: needs it; begins the message.
        stem: beginning of the library's name.
        source: text of a C file.

    Raises:
        MissingCompilerError: if it cannot be had.
    """
    try:
        return compile_and_load(stem, source)
    except Unavailable as reason:
        raise MissingCompilerError(
            f"{what}: expected a C compiler, or a wheel of momentgen for this machine: {reason.__cause__ or reason}"
        ) from reason
