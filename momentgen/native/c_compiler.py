"""The C compiler of the machine: which one it is, which flags it takes, and how it is called.

The build of rules and the runtime of ops share it; only the standard library is imported here.  What the runtime
adds, torch's threads and a cache between processes, is in :mod:`momentgen.runtime.toolchain` and
:mod:`momentgen.runtime.kernel_cache`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from momentgen.errors import MomentgenError

__all__ = [
    "PROMISE",
    "TIMEOUT",
    "WANTED",
    "CompilerError",
    "accepted_flags",
    "chosen_compiler",
    "compile_library",
    "find_compiler",
]

#: Flags without which there is no library, or one of other bits: every compiler must take them.  Never -ffast-math: it
#: flushes subnormals in the whole process and reorders what the certificate rests on.
PROMISE = ("-O3", "-std=c11", "-ffp-contract=off", "-fPIC")
#: Flags for speed alone, in groups that a compiler takes as a whole or not at all.
WANTED: tuple[tuple[str, ...], ...] = (
    ("-march=native",),
    # By themselves compilers leave vectors of 512 bits unused, by which kernels take up to a third less time; unknown
    # on other processors than x86.
    ("-mprefer-vector-width=512",),
    ("-fno-math-errno", "-fno-trapping-math"),
    # gcc 12 makes branches of selects in its PRE and jump threading passes, and then cannot vectorise the loop.
    ("-fno-tree-pre", "-fno-thread-jumps"),
    # gcc orders instructions before it gives them registers, with an eye on how many these are, only when told to.
    ("-fschedule-insns", "-fsched-pressure"),
    # Vector lanes need no threads, and Apple's clang has none.
    ("-fopenmp-simd",),
    ("-fopenmp",),
)
TIMEOUT = 300  # seconds; a compiler that hangs must not hang training

_INSTALL = (
    "install gcc or clang (Debian, Ubuntu: `apt install gcc`; Fedora: `dnf install gcc`; "
    "conda: `conda install c-compiler`; macOS: `xcode-select --install`)"
)
_MOMENT = 2.0  # seconds; who waits longer wants to know what for
_spent = 0.0  # seconds that compilers have run for this process


class CompilerError(MomentgenError):
    """There is no compiler, or it failed; the message says which, and what to do."""


class _RejectedError(CompilerError):
    """The compiler ran, and ended with an error."""


def find_compiler() -> tuple[str, ...] | None:
    """The command of the C compiler: ``$CC`` if set, else the first of cc, gcc and clang, or None.

    Raises:
        CompilerError: if ``$CC`` names no compiler.
    """
    return _find_compiler(os.environ.get("CC"), os.environ.get("PATH"))


@functools.lru_cache(maxsize=8)
def _find_compiler(chosen: str | None, path: str | None) -> tuple[str, ...] | None:
    if chosen:
        try:
            command = tuple(shlex.split(chosen))
        except ValueError as error:
            raise CompilerError(f"$CC is {chosen!r}, which is not a command: {error}; set it right") from error
        if not command or shutil.which(command[0], path=path) is None:
            raise CompilerError(f"$CC is {chosen!r}, and no such compiler is found; unset $CC or {_INSTALL}")
        return command
    return next(((found,) for name in ("cc", "gcc", "clang") if (found := shutil.which(name, path=path))), None)


def chosen_compiler() -> tuple[str, ...]:
    """:func:`find_compiler`, for callers that need a compiler.

    Raises:
        CompilerError: if no compiler is found.
    """
    if (compiler := find_compiler()) is None:
        raise CompilerError(
            f"no C compiler is found ($CC is not set, and none of cc, gcc, clang is on the PATH); {_INSTALL}"
        )
    return compiler


def compile_library(
    compiler: Sequence[str],
    source: str,
    flags: Sequence[str],
    folder: Path,
    *,
    openmp: str | None = None,
    slow: Callable[[], None] = lambda: None,
) -> Path:
    """Compile and link ``source`` in ``folder``.

    Args:
        compiler: its command.
        source: text of a C file.
        flags: all flags but those that name files.
        folder: where to work, a directory of this process alone.
        openmp: path of the OpenMP runtime to link with in place of the compiler's own, where it fits.
        slow: called when the compilers of this process have taken longer than a moment, all together.

    Returns:
        Path of the shared library.

    Raises:
        CompilerError: if the compiler does not run, fails, or takes longer than :data:`TIMEOUT`.
    """
    text, obj, out = folder / "kernel.c", folder / "kernel.o", folder / "kernel.so"
    text.write_text(source, encoding="utf-8")
    _run([*compiler, *flags, "-c", str(text), "-o", str(obj)], slow)
    threads = [flag for flag in flags if flag == "-fopenmp"]
    if threads and openmp:
        with contextlib.suppress(_RejectedError):
            _run([*compiler, "-shared", "-Wl,--no-undefined", str(obj), "-o", str(out), openmp, "-lm"], slow)
            return out
    _run([*compiler, "-shared", *threads, str(obj), "-o", str(out), "-lm"], slow)
    return out


#: needs the OpenMP runtime, where there are threads
_PROBE = """\
void probe(long n, const float *x, float *y)
{
#pragma omp parallel for simd if(n > 8192)
    for (long i = 0; i < n; ++i) y[i] = 2.0f * x[i];
}
"""


@functools.cache
def accepted_flags(compiler: tuple[str, ...], openmp: str | None = None) -> tuple[str, ...]:
    """:data:`PROMISE`, and of :data:`WANTED` what the compiler takes; it is asked once a process.

    Args:
        compiler: its command.
        openmp: see :func:`compile_library`.

    Raises:
        CompilerError: if the compiler does not work, or rejects a flag of :data:`PROMISE`.
    """
    with tempfile.TemporaryDirectory(prefix="momentgen-probe-", ignore_cleanup_errors=True) as folder:

        def takes(*flags: str) -> bool:
            try:
                compile_library(compiler, _PROBE, flags, Path(folder), openmp=openmp)
            except _RejectedError:
                return False
            return True

        everything = (*PROMISE, *(flag for group in WANTED for flag in group))
        if takes(*everything):
            return everything
        compile_library(compiler, _PROBE, PROMISE, Path(folder), openmp=openmp)
        flags: tuple[str, ...] = PROMISE
        for group in WANTED:
            flags = (*flags, *group) if takes(*flags, *group) else flags
        return flags


def _run(command: Sequence[str], slow: Callable[[], None]) -> None:
    global _spent
    shown, started = shlex.join(command[:1]), time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CompilerError(f"the C compiler `{shown}` does not run: {error}") from error
    with process:
        try:
            try:
                out, err = process.communicate(timeout=max(0.0, _MOMENT - _spent))
            except subprocess.TimeoutExpired:
                slow()
                out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise CompilerError(f"the C compiler `{shown}` did not end within {TIMEOUT} s") from None
        except BaseException:  # interrupted: nobody waits for it any more
            process.kill()
            raise
    _spent += time.monotonic() - started
    if process.returncode != 0:
        said = (err or out).strip().splitlines() or ["no message"]
        line = next((text for text in said if "error" in text.lower()), said[-1])
        raise _RejectedError(f"the C compiler `{shown}` failed (exit status {process.returncode}): {line.strip()}")
