"""C that the build itself runs, compiled and loaded.

The runtime has a cached build of its own.  What is compiled here stands in a temporary directory that lives as long as
the process.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from momentgen.native.c_compiler import accepted_flags, chosen_compiler, compile_library

__all__ = ["compiled"]


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
    return _compile(source, tuple(accepted_flags(compiler) if flags is None else flags), compiler)
