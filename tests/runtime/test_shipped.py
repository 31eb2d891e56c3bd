"""Kernels inside a wheel: the bits of those compiled here, the right ones for the processor, and no compiler needed."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from other_processes import printed

import momentgen.generated
from momentgen.native import c_sources, shipped
from momentgen.native.c_compiler import CompilerError, find_compiler
from momentgen.runtime import Op, kernel_cache
from momentgen.runtime import shipped as loading
from momentgen.runtime.native import NativeKernels

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "generated"
STEMS = ("gelu_exact", "gelu_exact_float64", "relu_exact")

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
needs_level = pytest.mark.skipif(not shipped.levels_of(platform.machine()), reason="no level for this processor")


def ask_for(compiler: str) -> None:
    """Pass a test by, or on a build server fail it, where a compiler is not there."""
    if shutil.which(compiler) is None:
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say(f"{compiler} is not there: `apt install {compiler}`")


def runnable(level: shipped.Level) -> bool:
    has = torch.cpu.get_capabilities()
    return all(has.get(need) for need in level.needs)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    sources = [(stem, text) for stem, text in c_sources.every_source(GENERATED) if stem in STEMS]
    shipped.compile_all(sources, folder)
    return folder


@pytest.fixture
def fresh() -> Iterator[None]:
    loading.shipped_folder.cache_clear()
    yield
    loading.shipped_folder.cache_clear()


def outputs(rule: str, variant: str, double: bool) -> list[torch.Tensor]:
    kernels = NativeKernels(f"momentgen.generated.{rule}", rule, variant, 2, double=double)
    dtype = torch.float64 if double else torch.float32
    generator = torch.Generator().manual_seed(0)
    n = 20_000  # more than one thread takes
    mean = torch.randn(n, generator=generator, dtype=dtype) * torch.logspace(-3, 3, n, dtype=dtype)
    var = torch.rand(n, generator=generator, dtype=dtype) * torch.logspace(-8, 4, n, dtype=dtype)
    grads = torch.randn(2, n, generator=generator, dtype=dtype)
    found = [torch.empty_like(mean) for _ in range(4)]
    inputs = [mean.data_ptr(), var.data_ptr()]
    kernels.forward(n, *inputs, None, found[0].data_ptr(), found[1].data_ptr())
    kernels.backward(
        n, *inputs, grads[0].data_ptr(), grads[1].data_ptr(), None, found[2].data_ptr(), found[3].data_ptr()
    )
    return found


@needs_compiler
@needs_level
@pytest.mark.parametrize("level", shipped.levels_of(platform.machine()), ids=lambda level: level.name)
def test_shipped_kernels_have_the_bits_of_those_compiled_here(
    level: shipped.Level, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not runnable(level):
        pytest.skip(f"this processor is below {level.name}")
    for rule, double in (("gelu", False), ("gelu", True), ("relu", False)):
        monkeypatch.setattr(loading, "shipped_folder", lambda: None)
        here = outputs(rule, "exact", double)
        monkeypatch.setattr(loading, "shipped_folder", lambda: kernels / level.name)
        monkeypatch.setattr(kernel_cache, "_find", lambda name: pytest.fail(f"{name} is not from the wheel"))
        there = outputs(rule, "exact", double)
        monkeypatch.undo()
        bits = torch.int64 if double else torch.int32
        for one, other in zip(here, there, strict=True):
            assert one.isfinite().all()
            assert torch.equal(one.view(bits), other.view(bits))


@needs_level
def test_the_best_level_is_chosen_of_what_the_processor_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None
) -> None:
    monkeypatch.setattr(loading, "FOLDER", tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    best, second = shipped.levels_of("x86_64")
    for level in (best, second):
        (tmp_path / level.name).mkdir()
    for has, chosen in ((best.needs, best), (second.needs, second), (second.needs[1:], None)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has: dict.fromkeys(has, True))
        loading.shipped_folder.cache_clear()
        assert loading.shipped_folder() == (chosen and tmp_path / chosen.name)


def test_a_changed_source_and_a_damaged_library_are_not_loaded(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "shipped_folder", lambda: tmp_path)
    stem, source = next(each for each in c_sources.every_source(GENERATED) if each[0] == "relu_exact")
    assert loading.load_shipped(stem, source) is None
    (tmp_path / shipped.file_name(stem, source)).write_bytes(b"no library")
    assert loading.load_shipped(stem, source) is None


def test_what_the_runtime_compiles_is_what_a_wheel_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str] = {}

    class AskedError(Exception):
        pass

    def note(stem: str, source: str) -> None:
        asked[stem] = source
        raise AskedError

    from momentgen.inference import compiled
    from momentgen.inference.adf import native as filters
    from momentgen.inference.bowtie import collapsed
    from momentgen.inference.polya_gamma_sampler import function as polya_gamma
    from momentgen.laws.numerics import maximum
    from momentgen.runtime import native

    for module in (compiled, maximum, native):
        monkeypatch.setattr(module, "compile_and_load", note)
    calls = [polya_gamma.sampler.__wrapped__, collapsed._gates.__wrapped__]
    calls += [lambda dtype=dtype: filters.native.__wrapped__(dtype) for dtype in (torch.float32, torch.float64)]
    calls += [lambda dtype=dtype: maximum.NativeMaximum(dtype) for dtype in (torch.float32, torch.float64)]
    for package in sorted(path.parent.name for path in GENERATED.glob("*/exact.c")):
        for double in (False, True):
            calls.append(
                lambda package=package, double=double: NativeKernels(
                    f"momentgen.generated.{package}", package, "exact", 2, double=double
                )
            )
    for call in calls:
        with pytest.raises(AskedError):
            call()
    held = dict(c_sources.every_source(GENERATED))
    assert asked.items() <= held.items()
    others = {"collapsed_gates", "polya_gamma"}
    others |= {f"{name}_{real}" for name in ("adf", "maximum_of_windows") for real in ("float", "double")}
    assert others <= set(asked)


@needs_compiler
@needs_level
def test_an_op_needs_no_compiler_and_under_10_ms_for_its_first_call(kernels: Path, tmp_path: Path) -> None:
    code = f"""
import time, warnings
warnings.simplefilter("error")
from pathlib import Path
import torch
import momentgen.native.shipped
momentgen.native.shipped.FOLDER = Path({str(kernels)!r})
from momentgen.generated import gelu
x = torch.zeros(3), torch.ones(3)
torch.add(*x)
started = time.process_time()
out = gelu(*x)
print(time.process_time() - started, out.mean[0].item())
"""
    best = 1.0
    for _ in range(2):
        seconds, mean = map(float, printed(code, PATH="", MOMENTGEN_CACHE=tmp_path / "cache", CC=None).split())
        assert abs(mean - 0.28209479) < 1e-6
        best = min(best, seconds)
    assert best < 0.01
    assert not (tmp_path / "cache").exists()


@needs_level
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_only_threads_that_torch_can_run_are_compiled_in(compiler: str) -> None:
    ask_for(compiler)
    flags = shipped._flags([compiler], shipped.levels_of(platform.machine())[-1])
    assert ("-fopenmp" in flags) == (compiler == "gcc" and sys.platform == "linux")
    assert "-ffp-contract=off" in flags
    assert "-march=native" not in flags


def test_a_machine_of_no_level_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(CompilerError, match="riscv64"):
        shipped.compile_all([], tmp_path)


# Ops that clang compiles have the bits of those that gcc compiles, and no slower path serves them.
PROGRAM = """
import hashlib, sys, warnings
import torch
import momentgen.generated
from momentgen.runtime import FallbackWarning

warnings.simplefilter("error", FallbackWarning)
torch.manual_seed(5)
n = 20_000
inputs = {"mean": 4 * torch.randn(n).double(), "var": 3 * torch.rand(n).double(), "cov": 0.1 * torch.randn(n).double()}
inputs["mean"][:100] *= 1e-9
inputs["var"][50:200] *= 1e-12
for name in sys.argv[1:]:
    op = getattr(momentgen.generated, name)
    for variant in op.variants:
        for dtype in (torch.float32, torch.float64):
            leaves = []
            for place, input in enumerate(op.input_names):
                leaves.append(inputs[input.rstrip("12")].roll(1000 * place).to(dtype).requires_grad_())
            outputs = tuple(op(*leaves, variant=variant))
            gradients = torch.autograd.grad(sum((k + 1) * output.sum() for k, output in enumerate(outputs)), leaves)
            digest = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in (*outputs, *gradients)))
            print(name, variant, dtype, digest.hexdigest()[:20])
"""
ALL = [name for name in momentgen.generated.__all__ if isinstance(getattr(momentgen.generated, name), Op)]
#: with kinks, of atoms, of polynomials, with parameters, of two inputs; `make slow` has the rest
TYPICAL = ["relu", "gelu", "tanh", "hardtanh", "maximum_correlated"]


def bits_by(compiler: str, cache: Path | None, names: Sequence[str]) -> list[str]:
    """A line for each op, variant and dtype: what its moments and gradients are, compiled by ``compiler`` alone."""
    given = {"CC": compiler, "OMP_NUM_THREADS": "1"} | ({} if cache is None else {"MOMENTGEN_CACHE": str(cache)})
    lines = printed(PROGRAM, *names, **given).splitlines()
    assert cache is None or len(list(cache.glob("*.so"))) >= len(names)
    return lines


@pytest.fixture(scope="module")
def both() -> tuple[str, str]:
    """The commands of gcc and clang."""
    ask_for("gcc")
    ask_for("clang")
    return "gcc", "clang"


def check(both: tuple[str, str], folder: Path, names: Sequence[str]) -> None:
    # gcc's may lie compiled by other tests, which call it too unless another compiler is asked for.
    caches = (folder / "gcc" if "CC" in os.environ else None, folder / "clang")
    gcc, clang = (bits_by(compiler, cache, names) for compiler, cache in zip(both, caches, strict=True))
    assert len(gcc) >= 2 * len(names)
    assert clang == gcc


def test_ops_that_clang_compiles_have_the_bits_of_gcc(both: tuple[str, str], tmp_path: Path) -> None:
    check(both, tmp_path, TYPICAL)


@pytest.mark.slow
def test_all_ops_that_clang_compiles_have_the_bits_of_gcc(both: tuple[str, str], tmp_path: Path) -> None:
    check(both, tmp_path, ALL)
