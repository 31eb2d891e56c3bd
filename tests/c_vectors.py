"""What gcc says of the loops in generated C: which of them it did not vectorise."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from momentgen.native.c_compiler import accepted_flags
from momentgen.native.includes import whole

__all__ = ["gcc_flags", "scalar_kernels", "scalar_loops"]


def gcc_flags() -> list[str]:
    """The flags by which the runtime and the build call gcc; none where there is no gcc."""
    return list(accepted_flags(("gcc",))) if shutil.which("gcc") else []


def scalar_kernels(source: str, flags: Sequence[str]) -> list[str]:
    """Names of the kernels in C ``source`` whose loop gcc leaves scalar under ``flags``.

    Raises:
        AssertionError: if no kernel is found.
    """
    vectorised, apart = _compiled(source := whole(source), flags)
    lines = source.splitlines()
    scalar, found = [], False
    for number, text in enumerate(lines, 1):
        if not text.startswith("    EVERY"):
            continue
        found = True
        # The report names the line of the loop or of its body, which may be broken over several.
        end = next(i for i in range(number, len(lines) + 1) if lines[i - 1] == "}")
        name = re.findall(r"^void (\w+)\(", "\n".join(lines[:number]), re.MULTILINE)[-1]
        # Of a loop that calls a function for each element gcc makes vectors too: of what stands beside the call.
        if not vectorised & set(range(number, end + 1)) or f"{name}_element" in apart:
            scalar.append(name)
    assert found, "no kernel in the source"
    return scalar


def scalar_loops(source: str, flags: Sequence[str]) -> list[int]:
    """Lines of the loops over a block's lanes in float64 C that gcc leaves scalar under ``flags``.

    Raises:
        AssertionError: if there is no such loop.
    """
    (vectorised, _), lines = _compiled(source, flags), source.splitlines()
    heads = ("#pragma omp simd", "EACH", "LANEWISE")  # macros, of the same pragma
    loops = [number for number, text in enumerate(lines, 1) if text.strip().startswith(heads)]
    assert loops, "no loop over lanes in the source"
    # The report names the line of the loop or of one of its first statements.
    return [number for number in loops if not vectorised & set(range(number, number + 8))]


def _compiled(source: str, flags: Sequence[str]) -> tuple[set[int], set[str]]:
    """Numbers of lines whose loops gcc made vectors of, and names of the functions that it left as such."""
    with tempfile.TemporaryDirectory(prefix="momentgen-vectors-") as directory:
        (Path(directory) / "kernels.c").write_text(source)
        command = ["gcc", *flags, "-shared", "-fopt-info-vec-optimized", "-o", "kernels.so", "kernels.c"]
        report = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stderr
        symbols = subprocess.run(["nm", "kernels.so"], cwd=directory, capture_output=True, text=True, check=True).stdout
    loops = {int(line) for line in re.findall(r"kernels\.c:(\d+):\d+: optimized: loop vectorized", report)}
    return loops, set(re.findall(r" [tT] (\w+)", symbols))  # of parts of a function, as in f.isra.0, the function's
