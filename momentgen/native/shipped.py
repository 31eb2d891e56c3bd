"""Compiled kernels inside a wheel: for which processors, under which names, and how a wheel's build makes them.

``setup.py`` calls :func:`compile_all`; :mod:`momentgen.runtime.shipped` loads the result.  Only the standard library is
imported.  A library's name has a digest of its source, so that one that is out of date is never found.

The kernels' OpenMP runtime is torch's: libraries leave its symbols open, and loading binds them to what torch has
loaded.  So they share torch's threads, and a wheel carries no runtime of its own.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from momentgen.native.c_compiler import PROMISE, TIMEOUT, WANTED, CompilerError, chosen_compiler

__all__ = ["FOLDER", "LEVELS", "Level", "compile_all", "file_name", "levels_of"]

#: holds one directory per level
FOLDER = Path(__file__).parents[1] / "kernels"


@dataclass(frozen=True)
class Level:
    """A kind of processor.

    Attributes:
        name: of the level, and of its directory.
        machines: what :func:`platform.machine` says of such processors, in lower case.
        march: the compiler's name of it.
        needs: what a processor must have, in the words of ``torch.cpu.get_capabilities``.
    """

    name: str
    machines: tuple[str, ...]
    march: str
    needs: tuple[str, ...] = ()


_X86 = ("x86_64", "amd64")
_V3 = ("avx2", "bmi", "bmi2", "f16c", "fma3", "lzcnt")
#: the best first
LEVELS = (
    Level("x86-64-v4", _X86, "x86-64-v4", (*_V3, "avx512_bw", "avx512_cd", "avx512_dq", "avx512_f", "avx512_vl")),
    Level("x86-64-v3", _X86, "x86-64-v3", _V3),
    Level("arm64", ("aarch64", "arm64"), "armv8-a"),
)


def levels_of(machine: str) -> list[Level]:
    """The levels of a kind of machine, the best first.

    >>> [level.name for level in levels_of("x86_64")]
    ['x86-64-v4', 'x86-64-v3']
    """
    return [level for level in LEVELS if machine.lower() in level.machines]


def file_name(stem: str, source: str) -> str:
    """Of the library of a source."""
    return f"{stem}-{hashlib.sha256(source.encode()).hexdigest()[:20]}.so"


def compile_all(
    sources: Iterable[tuple[str, str]], folder: Path, levels: Collection[Level] | None = None, jobs: int | None = None
) -> list[Path]:
    """Compile sources for each level of this machine, in parallel.

    Args:
        sources: stem and text of each.
        folder: gets one directory per level.
        levels: all of this machine if None.
        jobs: compilers at a time; one per core if None.

    Returns:
        The libraries' paths.

    Raises:
        CompilerError: if there is no compiler, this machine has no level, or a source does not compile.
    """
    levels = levels_of(platform.machine()) if levels is None else levels
    if not levels:
        raise CompilerError(
            f"expected a processor of {', '.join(each.name for each in LEVELS)}, got {platform.machine()}"
        )
    compiler, sources = chosen_compiler(), list(sources)
    work = []
    for level in levels:
        flags = _flags(compiler, level)
        (folder / level.name).mkdir(parents=True, exist_ok=True)
        work += [(source, flags, folder / level.name / file_name(stem, source), stem) for stem, source in sources]
    work.sort(key=lambda each: -len(each[0]))  # the longest first, for they take longest
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        for done in [pool.submit(_compile, compiler, *each) for each in work]:
            done.result()
    return [path for _, _, path, _ in work]


_PROBE = """\
void probe_forward(long n, float *x)
{
#pragma omp parallel for simd if(n > 8192)
    for (long i = 0; i < n; ++i) x[i] *= 2.0f;
}
"""


def _flags(compiler: Sequence[str], level: Level) -> list[str]:
    """The flags of local compilation, with the level in place of this machine's processor."""
    flags = [*PROMISE, f"-march={level.march}"]
    if sys.platform == "win32":
        flags.remove("-fPIC")  # all code is, and clang refuses the flag
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probe.so"
        for group in WANTED:
            if group == ("-march=native",):
                continue
            try:
                _compile(compiler, _PROBE, [*flags, *group], out, "probe")
            except CompilerError:
                continue
            # torch's runtime is called as gcc does; clang's calls would leave a library that does not load.
            if group != ("-fopenmp",) or b"GOMP_parallel" in out.read_bytes():
                flags += group
        _compile(compiler, _PROBE, flags, out, "probe")  # says why, where nothing works
    return flags


def _compile(compiler: Sequence[str], source: str, flags: Sequence[str], out: Path, stem: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text, obj = Path(folder) / "kernel.c", Path(folder) / "kernel.o"
        text.write_text(source, encoding="utf-8")
        _run([*compiler, *flags, "-c", str(text), "-o", str(obj)])
        _run([*compiler, "-shared", str(obj), "-o", str(out), *_link_flags(stem, source)])


def _link_flags(stem: str, source: str) -> list[str]:
    """Of the linker: no OpenMP, since torch's is used."""
    if sys.platform == "win32":
        named = [f"{stem}_forward", f"{stem}_backward", "adf_filter", "collapsed_gates", "draw", "draw_slopes"]
        named += ["maximum_moments", "maximum_gradients", "polya_gamma_float32", "polya_gamma_float64"]
        return [f"-Wl,/EXPORT:{name}" for name in named if f" {name}(" in source]
    if sys.platform == "darwin":
        return []
    return ["-s", "-lm"]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10 * TIMEOUT, check=False)
    if done.returncode:
        raise CompilerError(f"`{' '.join(command)}` failed: {done.stderr.strip()[:400]}")
