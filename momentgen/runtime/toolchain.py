"""What the runtime adds to the machine's C compiler: torch's threads, and what compiled kernels depend on.

The compiler itself is :mod:`momentgen.native.c_compiler`; where its output is kept is the subject of
:mod:`momentgen.runtime.kernel_cache`.  Here are also the two ways to say that native code cannot be had:
:class:`Unavailable`, inside the runtime, and :class:`FallbackWarning`, to users.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import re
import sys
import warnings
from pathlib import Path

__all__ = [
    "FallbackWarning",
    "Unavailable",
    "machine",
    "torch_openmp",
    "warn_once",
]


class FallbackWarning(RuntimeWarning):
    """A slower path serves than the one meant for this device; the message says why."""


class Unavailable(Exception):  # noqa: N818 - a state of the machine, handled inside the runtime
    """No native kernel can be had here; the message says why."""


_warned: set[str] = set()


def warn_once(key: str, message: str) -> None:
    """Issue a :class:`FallbackWarning`, once a process for each ``key``."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(f"momentgen: {message}", FallbackWarning, stacklevel=2)


@functools.cache
def machine() -> str:
    """What a compiled kernel depends on besides its source and flags.

    The version of the compiler is not part of it.  All compilers give kernels of the same bits, and a
    machine without one must find what another one compiled.  A home directory may be shared by unlike
    machines: hence the processor, on which ``-march=native`` depends, and the ABI.
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
