"""Two directories change places in one step, where the system can do that.

Used by :mod:`momentgen.build.output`: between two renames a kill would leave nothing
under the name.  Only the standard library is imported.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

_AT_FDCWD = -100  # of fcntl.h
_RENAME_EXCHANGE = 2  # of Linux' renameat2
_RENAME_SWAP = 2  # of macOS' renamex_np


def exchange(one: Path, other: Path) -> bool:
    """Let two existing directories of one file system change places, at once or not at all.

    Returns:
        Whether they did.  If not, nothing has changed: this system or file system has no such step, or a
        sandbox forbids it, or one of the two cannot be moved.  Two renames then do it, or tell the reason.
    """
    call = _system_call()
    return call is not None and call(os.fsencode(one), os.fsencode(other)) == 0


@functools.cache
def _system_call() -> Callable[[bytes, bytes], int] | None:
    """The C library's function, on two paths; None where there is none."""
    if os.name != "posix":
        return None
    library = ctypes.CDLL(None)
    if sys.platform == "darwin":
        swap = getattr(library, "renamex_np", None)
        if swap is None:
            return None
        swap.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
        return lambda one, other: int(swap(one, other, _RENAME_SWAP))
    rename = getattr(library, "renameat2", None)  # glibc 2.28, musl 1.2.5
    if rename is None:
        return None
    rename.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return lambda one, other: int(rename(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE))
