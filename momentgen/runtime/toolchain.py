"""The C compiler of the machine: which one it is, how it is called, and what its output depends on.

Where the output is kept is the subject of :mod:`momentgen.runtime.kernel_cache`.
Here are also the two ways to say that native code cannot be had:
:class:`Unavailable`, inside the runtime, and :class:`FallbackWarning`, to users.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = [
    "FLAGS",
    "OPTIONAL_FLAGS",
    "TIMEOUT",
    "CompilerError",
    "FallbackWarning",
    "Unavailable",
    "compile_library",
    "find_compiler",
    "machine",
    "torch_openmp",
    "warn_once",
]

# Never -ffast-math: it flushes denormals in the whole process and reorders what the certificate rests on.
# gcc 12's PRE pass turns selects into branches, 13 times slower, hence -fno-tree-pre.
FLAGS = (
    "-O3",
    "-std=c11",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-tree-pre",
    "-fno-thread-jumps",
    "-fschedule-insns",
    "-fsched-pressure",
    "-fPIC",
)
#: Of vectors of 512 bits, where there are some, compilers make no use by themselves; these kernels take up to a third
#: less time by them.
_WIDE = ("-mprefer-vector-width=512",) if platform.machine().lower() in ("x86_64", "amd64") else ()
#: optional flags, most wanted first; where a compiler rejects one set the next is tried.
OPTIONAL_FLAGS: tuple[tuple[str, ...], ...] = tuple(
    dict.fromkeys(
        [("-march=native", *_WIDE, "-fopenmp"), ("-march=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ()]
    )
)
TIMEOUT = 300  # seconds; a compiler that hangs must not hang training

_INSTALL = (
    "install gcc or clang (Debian, Ubuntu: `apt install gcc`; Fedora: `dnf install gcc`; "
    "conda: `conda install c-compiler`; macOS: `xcode-select --install`)"
)


class FallbackWarning(RuntimeWarning):
    """A slower path serves than the one meant for this device; the message says why."""


class Unavailable(Exception):  # noqa: N818 - a state of the machine, handled inside the runtime
    """No native kernel can be had here; the message says why."""


class CompilerError(Exception):
    """There is no compiler, or it failed; the message says which, and what to do."""


_warned: set[str] = set()


def warn_once(key: str, message: str) -> None:
    """Issue a :class:`FallbackWarning`, once a process for each ``key``."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(f"momentgen: {message}", FallbackWarning, stacklevel=2)


def find_compiler() -> tuple[str, ...]:
    """The command of the C compiler: ``$CC`` if set, else the first of cc, gcc and clang.

    Raises:
        CompilerError: if there is none.
    """
    if chosen := os.environ.get("CC"):
        try:
            command = tuple(shlex.split(chosen))
        except ValueError as error:
            raise CompilerError(f"$CC is {chosen!r}, which is not a command: {error}; set it right") from error
        if not command or shutil.which(command[0]) is None:
            raise CompilerError(f"$CC is {chosen!r}, and no such compiler is found; unset $CC or {_INSTALL}")
        return command
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (found,)
    raise CompilerError(
        f"no C compiler is found ($CC is not set, and none of cc, gcc, clang is on the PATH); {_INSTALL}"
    )


def compile_library(
    compiler: Sequence[str], source: str, optional: Sequence[str], folder: Path, slow: Callable[[], None]
) -> Path:
    """Compile and link ``source`` in ``folder``.

    Args:
        compiler: its command.
        source: text of a C file.
        optional: one of :data:`OPTIONAL_FLAGS`.
        folder: where to work, a directory of this process alone.
        slow: called when the compilers of this process have taken longer than a moment, all together.

    Raises:
        CompilerError: if the compiler does not run, fails, or takes longer than :data:`TIMEOUT`.
    """
    text, obj, out = folder / "kernel.c", folder / "kernel.o", folder / "kernel.so"
    text.write_text(source, encoding="utf-8")
    _run([*compiler, *FLAGS, *optional, "-c", str(text), "-o", str(obj)], slow)
    openmp = [flag for flag in optional if flag == "-fopenmp"]
    if openmp and (shared := torch_openmp()):
        # Linked to torch's own OpenMP runtime, kernels share its threads and heed torch.set_num_threads.
        with contextlib.suppress(CompilerError):
            _run([*compiler, "-shared", "-Wl,--no-undefined", str(obj), "-o", str(out), shared, "-lm"], slow)
            return out
    _run([*compiler, "-shared", *openmp, str(obj), "-o", str(out), "-lm"], slow)
    return out


_MOMENT = 2.0  # seconds; who waits longer wants to know what for
_spent = 0.0  # seconds that compilers have run for this process


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
        raise CompilerError(f"the C compiler `{shown}` failed (exit status {process.returncode}): {line.strip()}")


@functools.cache
def machine() -> str:
    """What a compiled kernel depends on besides its source and flags.

    The version of the compiler does not belong to it: all give kernels of the same bits, and a machine
    without a compiler must find what another one compiled.  A home directory may be shared by unlike
    machines, hence the processor, on which ``-march=native`` depends, and the ABI.
    """
    abi = [platform.system(), platform.machine(), platform.libc_ver()[0], f"{sys.maxsize.bit_length() + 1} bits"]
    return "\n".join([*abi, *_processor(), f"OpenMP: {torch_openmp()}"])


#: what tells processors apart in /proc/cpuinfo: x86, Arm, POWER, RISC-V, s390x, LoongArch
_DESCRIBES = (
    r"^(?:vendor_id|cpu family|model|model name|flags|CPU implementer|CPU variant|CPU part|Features"
    r"|features|cpu|isa|uarch|machine)\s*:.*$"
)


def _processor() -> list[str]:
    described: set[str] = set()
    with contextlib.suppress(OSError):  # Linux only; all cores, which need not be alike
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        described = set(re.findall(_DESCRIBES, text, re.MULTILINE))
    # Where the system does not say what its processor can do, a library serves the machine that made it.
    return sorted(described) or [platform.processor(), platform.node()]


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
