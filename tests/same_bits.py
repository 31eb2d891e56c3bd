"""The promise of equal bits, put to the test: one kernel built in several ways, and in Triton's interpreter.

Used by the tests and by ``benchmarks/bits.py``.  A NaN's payload is not specified and does not count.
"""

import importlib.util
import json
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from other_processes import printed

from momentgen.build.native_kernel import NativeKernel
from momentgen.compiler.certify.points import edge_points, wide_points
from momentgen.native.c_compiler import accepted_flags, find_compiler

__all__ = ["CBuild", "Job", "builds", "different", "interpret", "interpreter_fuses", "kernel_inputs", "run_c"]

F32 = npt.NDArray[np.float32]

#: name -> (what the CPU must have, flags in place of -O3 -march=native)
_BUILDS: Mapping[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "O0": (frozenset(), ("-O0",)),
    "scalar": (frozenset(), ("-O3", "-fno-tree-vectorize")),
    "avx2": (frozenset({"avx2", "fma"}), ("-O3", "-mavx2", "-mfma")),
    "avx512": (
        frozenset({"avx512f", "avx512dq", "avx512vl", "fma"}),
        ("-O3", "-mavx512f", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"),
    ),
}

_INTERPRETER = """
import importlib.util, json, sys
import numpy as np, torch, triton

folder = sys.argv[1]
modules = {}
for number, job in enumerate(json.load(open(folder + "/jobs.json"))):
    if (source := job["source"]) not in modules:
        spec = importlib.util.spec_from_file_location(f"kernels{source}", f"{folder}/{source}.py")
        modules[source] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(modules[source])
    module = modules[source]
    with np.load(f"{folder}/{number}.npz") as archive:
        inputs = [torch.from_numpy(archive[f"arr_{i}"]) for i in range(len(archive.files))]
    outputs = [torch.full_like(inputs[0], 7.0) for _ in range(job["outputs"])]
    n, block = inputs[0].numel(), 32768
    with np.errstate(all="ignore"):
        getattr(module, job["kernel"])[(triton.cdiv(n, block),)](*inputs, *outputs, n, *job["params"], BLOCK=block)
    np.savez(f"{folder}/result{number}.npz", *[output.numpy() for output in outputs])
"""


@dataclass(frozen=True)
class Job:
    """One kernel to interpret: the Triton source, the kernel's name, its tensors, its scalars, how many outputs."""

    source: str
    kernel: str
    inputs: tuple[F32, ...]
    params: tuple[float, ...]
    outputs: int = 2


@dataclass(frozen=True)
class CBuild:
    """One way to compile C: the compiler's command and its flags."""

    compiler: tuple[str, ...]
    flags: tuple[str, ...]


def builds() -> dict[str, CBuild]:
    """Ways to compile C by name, of those that this machine compiles and its processor runs; clang is one of them."""
    compiler = find_compiler()
    if compiler is None:
        return {}
    features: set[str] = set()
    listing = Path("/proc/cpuinfo")
    if platform.machine() in ("x86_64", "AMD64") and listing.exists():
        lines = [line for line in listing.read_text().splitlines() if line.startswith("flags")]
        features = set(lines[0].split()) if lines else set()
    accepted = accepted_flags(compiler)
    rest = tuple(flag for flag in accepted if flag not in ("-O3", "-march=native"))
    found = {"default": CBuild(compiler, accepted)}
    found |= {
        name: CBuild(compiler, (*flags, *rest)) for name, (needed, flags) in _BUILDS.items() if needed <= features
    }
    if clang := shutil.which("clang"):
        found["clang"] = CBuild((clang,), accepted_flags((clang,)))
    return found


def kernel_inputs(n: int, direction: str, seed: int) -> tuple[F32, ...]:
    """``n`` inputs of a kernel: all of float32 by its edges and ratios, random bits of any kind, moderate numbers.

    Args:
        n: how many.
        direction: ``forward`` (mean, var) or ``backward`` (then grad_mean, grad_var).
        seed: of the random ones.
    """
    rng = np.random.default_rng(seed)
    edges, third = edge_points(), n // 3
    wide = wide_points(third, seed)
    bits = rng.integers(0, 2**32, (2, third), dtype=np.uint32).view(np.float32)
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, -1.0, 1.0, 2.0**-149, -(2.0**-149)], np.float32)
    corners = [grid.ravel() for grid in np.meshgrid(odd, odd)]
    rest = max(n - edges[0].size - corners[0].size - 2 * third, 0)
    moderate = (rng.standard_normal(rest) * 4).astype(np.float32), rng.chisquare(2, rest).astype(np.float32)
    groups = (edges, corners, wide, bits, moderate)
    moments = [np.concatenate([np.asarray(group[i], np.float32) for group in groups])[:n] for i in (0, 1)]
    if direction == "forward":
        return tuple(moments)
    size = moments[0].size
    gradients = rng.standard_normal((2, size)).astype(np.float32)
    gradients[rng.random((2, size)) < 0.2] = 0.0
    anything = rng.integers(0, 2**32, (2, size), dtype=np.uint32).view(np.float32)
    gradients = np.where(rng.random((2, size)) < 0.2, anything, gradients)
    return (*moments, gradients[0].copy(), gradients[1].copy())


def different(a: Sequence[F32], b: Sequence[F32]) -> int:
    """How many outputs differ in bits, NaN payloads exempt."""
    return sum(
        int(np.count_nonzero((x.view(np.int32) != y.view(np.int32)) & ~(np.isnan(x) & np.isnan(y))))
        for x, y in zip(a, b, strict=True)
    )


def run_c(
    source: str, kernel: str, inputs: tuple[F32, ...], params: tuple[float, ...], build: CBuild
) -> tuple[F32, ...]:
    """Both outputs of a kernel of a generated C file, compiled as ``build`` says.

    Raises:
        CompilerError: if the file does not compile.
    """
    counts = len(inputs), len(params), 2
    return NativeKernel(source, kernel, *counts, flags=build.flags, compiler=build.compiler)(*inputs, params=params)


def interpreter_fuses() -> bool:
    """Whether Triton is there and its interpreter rounds ``tl.fma`` once; 3.6 rounds twice (its compiler is right)."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None or importlib.util.find_spec("torch") is None:
        return False
    source = Path(spec.origin).parent / "runtime" / "interpreter.py"
    return "x.data * y.data + z.data" not in source.read_text()


def interpret(jobs: Sequence[Job]) -> list[tuple[F32, ...]]:
    """The outputs of each kernel in Triton's interpreter, which is chosen on import and so wants its own process."""
    with tempfile.TemporaryDirectory(prefix="momentgen-interpreter-") as folder:
        where = Path(folder)
        sources = {source: number for number, source in enumerate(dict.fromkeys(job.source for job in jobs))}
        for source, number in sources.items():
            (where / f"{number}.py").write_text(source)
        fields = ("kernel", "params", "outputs")
        listed = [{"source": sources[job.source]} | {name: getattr(job, name) for name in fields} for job in jobs]
        (where / "jobs.json").write_text(json.dumps(listed))
        for number, job in enumerate(jobs):
            np.savez(where / f"{number}.npz", *job.inputs)
        printed(_INTERPRETER, folder, TRITON_INTERPRET="1")
        results: list[tuple[F32, ...]] = []
        for number, job in enumerate(jobs):
            with np.load(where / f"result{number}.npz") as archive:
                results.append(tuple(archive[f"arr_{i}"] for i in range(job.outputs)))
        return results
