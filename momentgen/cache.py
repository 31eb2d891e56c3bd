"""The user's cache directory, which of its files and directories are trusted, and locks between processes.

Compiled kernels run as code, and cached results enter generated files.  So both are read from files and directories
that belong to this user or to root, and that nobody else may write to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["UntrustedError", "cache_directory", "check_trusted", "locked"]

_log = logging.getLogger(__name__)
_POLL = 0.02  # seconds


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


@contextlib.contextmanager
def locked(
    path: Path, waiting: Callable[[], None], moment: float = 0.0, patience: float | None = None
) -> Iterator[None]:
    """Keep other processes out while the body runs, where the directory is there and its file system has locks.

    The system releases the lock of a killed process.

    Args:
        path: the lock's file, which is removed at the end.
        waiting: called once, when another process has held the lock for ``moment`` seconds.
        moment: see ``waiting``.
        patience: seconds after which the body runs without the lock; None waits for ever.
    """
    from filelock import FileLock  # loads asyncio; needed only where something is built

    lock = FileLock(path)
    held = path.parent.is_dir() and _acquired(lock, waiting, moment, -1 if patience is None else patience)
    try:
        yield
    finally:
        if held:
            # First the name, then the lock: who waits sees that its file has no name, and begins anew.
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_file)
            with contextlib.suppress(OSError):
                lock.release()


def _acquired(lock: BaseFileLock, waiting: Callable[[], None], moment: float, patience: float) -> bool:
    try:
        try:
            lock.acquire(timeout=moment, poll_interval=_POLL)
        except TimeoutError:
            waiting()
            lock.acquire(timeout=patience, poll_interval=_POLL)
    except TimeoutError:
        _log.warning("momentgen: %s was held for %s s; going on without it", lock.lock_file, patience)
        return False
    except (OSError, NotImplementedError, RuntimeError) as error:
        _log.info("%s cannot be locked: %s", lock.lock_file, error)
        with contextlib.suppress(OSError):
            os.unlink(lock.lock_file)
        return False
    return True
