"""Compiled kernels, cached between processes: look up, else compile and store.

A library is a file ``STEM-KEY-DIGEST.so``.  ``KEY`` hashes what its bits and
its speed depend on: source, wanted flags and machine.  It does not hash the
compiler or the flags that it took, so that it serves a machine without one.
``DIGEST`` hashes the file's own bytes: a damaged one is seen before it is loaded.

Three things are separate, and each holds without the others:

- *trust*: loading a library runs its code, so others must not be able to
  write to it or to its directory (:mod:`momentgen.cache`);
- *publication*: a library appears whole or not at all, and never in place of
  another that some process may have mapped;
- *economy*: processes that need the same kernel wait for the one that compiles.

``docs/compiled-kernels.md`` tells users the same.  Used by
:mod:`momentgen.runtime.native`; the compiler is called by
:mod:`momentgen.runtime.toolchain`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import itertools
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from momentgen.cache import UntrustedError, cache_directory, check_trusted, locked
from momentgen.extras import SITE
from momentgen.native.c_compiler import (
    PROMISE,
    TIMEOUT,
    WANTED,
    CompilerError,
    accepted_flags,
    chosen_compiler,
    compile_library,
)
from momentgen.runtime.shipped import load_shipped
from momentgen.runtime.toolchain import Unavailable, machine, torch_openmp, warn_once

__all__ = ["cache_directory", "compile_and_load"]

_log = logging.getLogger(__name__)
#: begins the names of files that are no libraries: locks, and libraries on their way.
_PASSING = ".build-"
_STALE = 3600  # seconds; probes, compiling and linking take an hour at most
_PATIENCE = TIMEOUT  # seconds; who holds a lock for longer is stopped, or on a machine that is gone
_MOMENT = 2.0  # seconds of waiting that nobody is told of


def compile_and_load(stem: str, source: str) -> ctypes.CDLL:
    """Take ``source`` from this wheel's kernels or the cache, or compile it and keep it there, and load it.

    Args:
        stem: beginning of the file's name, for people who look into the cache.
        source: text of a C file.

    Raises:
        Unavailable: if there is no library of it, and no compiler or one that fails, or no directory can
            hold its output.  The message says what that costs and what to do.
    """
    if library := load_shipped(stem, source):
        return library
    name = f"{stem}-{_digest(source, *PROMISE, *itertools.chain(*WANTED), machine())}"
    if library := _find(name):
        return library
    try:
        return _compile(stem, source, name)
    except CompilerError as error:
        cost = f"The PyTorch code is tens of times slower and takes more memory ({SITE}/compiled-kernels/)"
        raise Unavailable(f"{error}. {cost}") from error


def _compile(stem: str, source: str, name: str) -> ctypes.CDLL:
    kept = _shared_directory(create=True)
    waiting = f"waiting for another process that compiles {stem}"
    alone = (
        contextlib.nullcontext()
        if kept is None
        else locked(kept / f"{_PASSING}{name}.lock", lambda: _tell(waiting, kept), _MOMENT, _PATIENCE)
    )
    with alone, _scratch() as scratch:
        if library := _find(name):  # another process was first
            return library
        started = time.monotonic()
        # Linked to torch's own OpenMP runtime, kernels share its threads and heed torch.set_num_threads.
        compiler, openmp = chosen_compiler(), torch_openmp()
        flags, slow = accepted_flags(compiler, openmp), lambda: _tell(f"compiling {stem}", kept)
        built = compile_library(compiler, source, flags, scratch, openmp=openmp, slow=slow)
        _log.info("compiled %s in %.1f s", stem, time.monotonic() - started)
        return _publish(built.read_bytes(), name)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    # Not in the cache: the compiler's many small files do not belong on a network, nor what a kill leaves of them.
    try:
        with tempfile.TemporaryDirectory(prefix="momentgen-", ignore_cleanup_errors=True) as path:
            yield Path(path)
    except OSError as error:
        raise CompilerError(f"a kernel cannot be compiled in the directory for temporary files: {error}") from error


_told = False


def _tell(what: str, kept: Path | None) -> None:
    """Say what takes so long: once a process to all, and then to those who have asked for it."""
    global _told
    level = logging.INFO if _told else logging.WARNING  # a warning is shown where nobody has set up logging
    _told = True
    place = kept or "a directory of this process"
    _log.log(level, "momentgen: %s; done once for this machine, kept in %s", what, place)


# ---------------------------------------------------------------- trust


class _DamagedError(OSError):
    """A file is not what was written under its name."""


def _load(path: Path) -> ctypes.CDLL:
    """Load a library of the cache.

    Raises:
        UntrustedError: if others may have written it.
        _DamagedError: if its bytes are not those that its name promises: to load them could kill the process.
        OSError: if it cannot be read or does not load.
    """
    check_trusted(path, "file")
    if not path.name.endswith(f"-{_digest(path.read_bytes())}.so"):
        raise _DamagedError(f"{path} is damaged")
    return ctypes.CDLL(str(path))


# ---------------------------------------------------------------- directories


def _shared_directory(*, create: bool) -> Path | None:
    """The user's cache directory, links followed; None, with a warning, where it is not to be used."""
    try:
        path = Path(os.path.realpath(cache_directory()))
    except RuntimeError as error:
        _refuse(None, error)
        return None
    try:
        if create:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_trusted(path, "directory")
    except OSError as error:
        if create or not isinstance(error, FileNotFoundError):
            _refuse(path, error)
        return None
    return path


def _refuse(path: Path | None, why: Exception) -> None:
    place = path or "the cache directory"
    warn_once(
        f"directory {path}",
        f"{place} cannot hold compiled kernels: {why}. Until then each process compiles its own, "
        "in a private directory",
    )


#: by process, since a child must not lose the one it uses when its parent ends.
_private: dict[int, Path] = {}


def _private_directory() -> Path:
    """A directory of this process alone (mode 0700): a fixed name in a shared /tmp could be planted by someone else."""
    process = os.getpid()
    if process not in _private:
        _private[process] = path = Path(tempfile.mkdtemp(prefix="momentgen-"))
        atexit.register(_remove_private, process, path)
    return _private[process]


def _remove_private(process: int, path: Path) -> None:
    if os.getpid() == process:  # and not a child that has inherited the registration
        shutil.rmtree(path, ignore_errors=True)


def _find(name: str) -> ctypes.CDLL | None:
    """A library of this name that may be loaded and can be; removes damaged ones on its way."""
    shared = _shared_directory(create=False)
    for directory in [*([shared] if shared else []), *_private.values()]:
        try:
            entries = sorted(os.listdir(directory))
        except OSError:
            continue
        for entry in entries:
            if entry.startswith(f"{name}-") and entry.endswith(".so"):
                path = directory / entry
                try:
                    return _load(path)
                except UntrustedError as error:
                    warn_once(f"file {path}", f"a compiled kernel is not loaded: {error}")
                except _DamagedError:
                    with contextlib.suppress(OSError):
                        path.unlink()
                except OSError as error:  # made on a machine that differs in what no key can say
                    _log.info("%s does not load: %s", path, error)
    return None


# ---------------------------------------------------------------- publication


def _publish(content: bytes, name: str) -> ctypes.CDLL:
    """Put a library into the first directory that can hold it, and load it from there."""
    entry = f"{name}-{_digest(content)}.so"
    shared = _shared_directory(create=True)
    if shared is not None:
        try:
            return _put(shared / entry, content)
        except OSError as error:
            _refuse(shared, error)
    try:
        return _put(_private_directory() / entry, content)
    except OSError as error:
        raise CompilerError(f"what the compiler wrote can be loaded from no directory: {error}") from error


def _put(path: Path, content: bytes) -> ctypes.CDLL:
    """Make ``path`` appear whole, unless it is there already: a file that exists may be mapped by any process."""
    mine = not path.exists()
    if mine:
        handle, name = tempfile.mkstemp(prefix=_PASSING, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                _sweep(path.parent, os.fstat(handle).st_mtime)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    try:
        return _load(path)
    except OSError:
        if mine:  # of no use to others either
            path.unlink(missing_ok=True)
        raise


def _sweep(directory: Path, now: float) -> None:
    """Remove what killed processes have left; ``now`` is by the clock of the file system."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PASSING) and now - entry.stat(follow_symlinks=False).st_mtime > _STALE:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def _digest(*parts: str | bytes) -> str:
    sha = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        sha.update(len(content).to_bytes(8, "little") + content)
    return sha.hexdigest()[:20]
