"""Turning C source into a loadable shared object, once for each machine.

The system's compiler does the work; its output is kept in a user cache.  A
shared object is named ``STEM-KEY-DIGEST.so``.  ``KEY`` hashes all that went
into it (source, flags, compiler, CPU), ``DIGEST`` its own bytes: a damaged file
is seen before it is loaded, and one rename publishes a good one, so any number
of processes may share the cache.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["FallbackWarning", "Unavailable", "cache_directory", "compile_and_load", "torch_openmp", "warn_once"]

# Never -ffast-math: it flushes denormals in the whole process and reorders what the certificate rests on.
# gcc 12's PRE pass turns selects into branches, 13 times slower, hence -fno-tree-pre.
_FLAGS = (
    "-O3",
    "-std=c11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-tree-pre",
    "-fno-thread-jumps",
    "-fPIC",
)
#: optional flags, most wanted first; where a compiler rejects one set the next is tried.
_OPTIONAL: tuple[tuple[str, ...], ...] = (("-march=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())
_TIMEOUT = 300  # seconds; a compiler that hangs must not hang training


class FallbackWarning(RuntimeWarning):
    """A slower path serves than the one meant for this device; the message says why."""


class Unavailable(Exception):  # noqa: N818 - a state of the machine, handled inside the runtime
    """No native kernel can be had here; the message says why."""


class _CompilerError(Exception):
    """The compiler ran and failed, or did not run."""


_warned: set[str] = set()


def warn_once(key: str, message: str) -> None:
    """Issue a :class:`FallbackWarning`, once a process for each ``key``."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(f"momentgen: {message}", FallbackWarning, stacklevel=2)


def cache_directory() -> Path:
    """Where compiled kernels are kept: ``$MOMENTGEN_CACHE``, else the platform's cache directory."""
    if chosen := os.environ.get("MOMENTGEN_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "momentgen"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "momentgen"


def compile_and_load(stem: str, source: str) -> ctypes.CDLL:
    """Compile ``source``, or take it from the cache, and load it.

    Args:
        stem: beginning of the file's name, for people who look into the cache.
        source: text of a C file.

    Raises:
        Unavailable: if there is no compiler, or it fails, or no directory can hold its output.
    """
    compiler = _compiler()
    try:
        machine = (_version(compiler), _cpu(), torch_openmp() or "")
    except _CompilerError as error:
        raise Unavailable(str(error)) from error
    names = {optional: f"{stem}-{_digest(source, *_FLAGS, *optional, *machine)}" for optional in _OPTIONAL}
    failure = ""
    for directory in _directories():
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in names.values():
                if library := _cached(directory, name):
                    return library
            return _build(directory, names, source, compiler)
        except _CompilerError as error:
            raise Unavailable(str(error)) from error
        except OSError as error:
            failure = f"{directory} cannot hold compiled kernels ({error})"
            warn_once(f"directory {directory}", failure)
    raise Unavailable(failure)


def _directories() -> Iterator[Path]:
    # RuntimeError: this user has no home directory.
    with contextlib.suppress(RuntimeError):
        yield cache_directory()
    yield _private_directory()


@functools.cache
def _private_directory() -> Path:
    # Of this process alone (mode 0700): a fixed name in a shared /tmp could be planted by someone else.
    path = Path(tempfile.mkdtemp(prefix="momentgen-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _cached(directory: Path, name: str) -> ctypes.CDLL | None:
    for path in sorted(directory.glob(f"{name}-*.so")):
        if path.name == f"{name}-{_digest(path.read_bytes())}.so":
            return ctypes.CDLL(str(path))
        # Cut off or altered: loading it could kill the process.
        path.unlink(missing_ok=True)
    return None


def _build(directory: Path, names: dict[tuple[str, ...], str], source: str, compiler: Sequence[str]) -> ctypes.CDLL:
    first: _CompilerError | None = None
    # Everything is written beside its destination, so that the last rename is atomic.
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch:
        text, out = Path(scratch, "kernel.c"), Path(scratch, "kernel.so")
        text.write_text(source, encoding="utf-8")
        for optional, name in names.items():
            try:
                _compile(compiler, (*_FLAGS, *optional), text, out)
            except _CompilerError as error:
                first = first or error
                continue
            path = directory / f"{name}-{_digest(out.read_bytes())}.so"
            os.replace(out, path)
            return ctypes.CDLL(str(path))
    raise first or _CompilerError("nothing to compile")


def _compile(compiler: Sequence[str], flags: Sequence[str], text: Path, out: Path) -> None:
    obj = text.with_suffix(".o")
    _run([*compiler, *flags, "-c", str(text), "-o", str(obj)])
    openmp = [flag for flag in flags if flag == "-fopenmp"]
    if openmp and (shared := torch_openmp()):
        # Linked to torch's own OpenMP runtime, kernels share its threads and heed torch.set_num_threads.
        with contextlib.suppress(_CompilerError):
            _run([*compiler, "-shared", "-Wl,--no-undefined", str(obj), "-o", str(out), shared, "-lm"])
            return
    _run([*compiler, "-shared", *openmp, str(obj), "-o", str(out), "-lm"])


def _run(command: Sequence[str]) -> str:
    shown = shlex.join(command[:1])
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise _CompilerError(f"the C compiler `{shown}` did not end within {_TIMEOUT} s") from None
    except OSError as error:
        raise _CompilerError(f"the C compiler `{shown}` does not run: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        line = next((text for text in said if "error" in text.lower()), said[-1])
        raise _CompilerError(f"the C compiler `{shown}` failed (exit status {done.returncode}): {line.strip()}")
    return done.stdout


def _compiler() -> tuple[str, ...]:
    """The command of the C compiler: ``$CC`` if set, else the first of cc, gcc and clang."""
    if chosen := os.environ.get("CC"):
        try:
            command = tuple(shlex.split(chosen))
        except ValueError as error:
            raise Unavailable(f"$CC is {chosen!r}, which is not a command: {error}") from error
        if not command or shutil.which(command[0]) is None:
            raise Unavailable(f"$CC is {chosen!r}, and no such compiler is found")
        return command
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (found,)
    raise Unavailable("no C compiler is found ($CC is not set, and none of cc, gcc, clang is on the PATH)")


@functools.cache
def _version(compiler: tuple[str, ...]) -> str:
    return shlex.join(compiler) + _run([*compiler, "--version"])


@functools.cache
def _cpu() -> str:
    """What -march=native depends on: a home directory may be shared by unlike machines."""
    described = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):  # Linux only
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
        described += re.findall(r"^(?:model name|flags|Features|CPU part)\s*:.*$", info, re.MULTILINE)
    return "\n".join(described)


@functools.cache
def torch_openmp() -> str | None:
    """Path of the OpenMP runtime that torch has loaded into this process, where it can be found (Linux)."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            columns = line.split(None, 5)
            if len(columns) == 6 and re.search(r"/lib(?:gomp|iomp5|omp)\b[^/]*\.so[^/]*$", columns[5]):
                found.append(columns[5])
    return next((path for path in found if "/torch" in path), found[0] if found else None)


def _digest(*parts: str | bytes) -> str:
    sha = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        sha.update(len(content).to_bytes(8, "little") + content)
    return sha.hexdigest()[:20]
