"""The system's C compiler, run on text.

It serves what the build runs itself; the runtime has a cached build of its own.  What is compiled stands in a temporary
directory that lives as long as the process.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from momentgen.errors import BuildError

__all__ = ["compiled", "find_compiler"]


@functools.cache
def find_compiler() -> str | None:
    """Path of the system's C compiler, or None."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    # Kept by the cache, removed when the interpreter ends.
    return tempfile.TemporaryDirectory(prefix="momentgen-native-")


@functools.lru_cache(maxsize=256)
def _compile(source: str, flags: tuple[str, ...], compiler: str) -> ctypes.CDLL:
    directory = Path(tempfile.mkdtemp(dir=_directory().name))
    code, library = directory / "kernel.c", directory / "kernel.so"
    code.write_text(source)
    command = [compiler, *flags, "-o", str(library), str(code), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError("C", "emit", f"{compiler} failed with status {done.returncode}: {done.stderr.strip()[:2000]}")
    return ctypes.CDLL(str(library))


def compiled(source: str, flags: Sequence[str], compiler: str | None = None) -> ctypes.CDLL:
    """Compile C ``source`` to a shared library and load it; the same source and flags are compiled once.

    Raises:
        BuildError: if there is no compiler, or it fails.
    """
    compiler = compiler or find_compiler()
    if compiler is None:
        raise BuildError("C", "emit", "expected a C compiler (cc, gcc or clang) on PATH, found none")
    return _compile(source, tuple(flags), compiler)
