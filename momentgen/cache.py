"""The user's cache directory, and which of its files and directories are trusted.

Compiled kernels run as code, and cached results enter generated files.  So both are read from files and directories
that belong to this user or to root, and that nobody else may write to.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

import platformdirs

__all__ = ["UntrustedError", "cache_directory", "check_trusted"]


class UntrustedError(OSError):
    """Others could have written this file or directory; the message says what to do."""


def cache_directory() -> Path:
    """The directory of compiled kernels and cached results: ``$MOMENTGEN_CACHE``, else the platform's.

    Raises:
        RuntimeError: if this user has no home directory and no other was chosen.
    """
    if chosen := os.environ.get("MOMENTGEN_CACHE"):
        return Path(chosen).expanduser().absolute()
    path = platformdirs.user_cache_path("momentgen", appauthor=False)
    if not path.is_absolute():
        raise RuntimeError("this user has no home directory")
    return path


def check_trusted(path: Path, kind: str) -> None:
    """Check that ``path``, a ``file`` or ``directory``, is this user's own, or the system's.

    Raises:
        UntrustedError: if anyone else may have put it there.
        OSError: if it does not exist.
    """
    found = os.lstat(path)
    if not (stat.S_ISDIR if kind == "directory" else stat.S_ISREG)(found.st_mode):
        raise UntrustedError(f"{path} is no {kind}: remove it")
    if not hasattr(os, "geteuid"):  # pragma: no cover - not POSIX: owner and mode mean nothing there
        return
    user = os.geteuid()
    if found.st_uid not in (user, 0):
        raise UntrustedError(
            f"{path} belongs to user {found.st_uid}, and this process runs as user {user}: "
            "set $MOMENTGEN_CACHE to a directory of your own"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise UntrustedError(
            f"others may write to {path}, of mode {mode:03o}: run `chmod go-w {shlex.quote(str(path))}`"
        )
