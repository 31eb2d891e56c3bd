"""Compiling on a user's machine: the cache, its damage, many processes at once, and machines without a compiler."""

import logging
import re
import sys
from pathlib import Path

import pytest
import torch
from other_processes import printed, script

from momentgen.errors import MomentgenError
from momentgen.native import c_compiler
from momentgen.runtime import cache_directory, kernel_cache, native, toolchain
from momentgen.runtime.native import NativeKernels

REPORT = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    from momentgen.generated import leaky_relu, relu, square
    m, v = torch.tensor([3.0]), torch.tensor([0.25])
    step = {"variant": "identity_delta"}
    out = [*square(m, v), *leaky_relu(-m, v, negative_slope=0.5, **step), *relu(m, v, **step)]
    print([t.item() for t in out])
from momentgen.runtime import FallbackWarning
for warning in caught:
    if issubclass(warning.category, FallbackWarning):
        print("WARNING", warning.message)
"""
RIGHT = "[9.25, 9.125, -1.5, 0.0625, 3.0, 0.25]"


def report(**changes: str | Path | None) -> tuple[str, list[str]]:
    values, *warned = printed(REPORT, **changes).strip().splitlines()
    return values, warned


def built(body: str = "return 7;") -> int:
    """What a compiled function returns, by way of the cache."""
    return int(kernel_cache.compile_and_load("seven", f"int seven(void) {{ {body} }}")["seven"]())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path / "new" / "cache"))
    return tmp_path / "new" / "cache"


@pytest.mark.parametrize("damage", ["empty", "cut off", "altered"])
def test_damaged_cache_file_is_built_again(damage: str, cache: Path) -> None:
    built(f"return {len(damage)};")
    (file,) = cache.iterdir()
    content = file.read_bytes()
    middle = len(content) // 2
    spoilt = {
        "empty": b"",
        "cut off": content[:middle],
        "altered": content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :],
    }
    # A new file, as a copy from elsewhere would be: the loaded one stays mapped.
    file.unlink()
    file.write_bytes(spoilt[damage])
    assert built(f"return {len(damage)};") == len(damage)
    assert [found.read_bytes() for found in cache.iterdir()] == [content]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("no compiler", "no C compiler is found"),
        pytest.param("no such compiler", "$CC is '/nowhere/cc', and no such compiler is found", marks=pytest.mark.slow),
        pytest.param("unreadable command", "which is not a command", marks=pytest.mark.slow),
        pytest.param("does not start", "failed (exit status 3): fatal: no licence", marks=pytest.mark.slow),
        ("fails", "failed (exit status 1): error: internal compiler error"),
        ("writes rubbish", "what the compiler wrote can be loaded from no directory"),
    ],
)
def test_without_a_working_compiler_the_pytorch_code_serves_with_one_warning(
    case: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    version = 'if [ "$1" = --version ]; then echo cc 1; exit 0; fi'
    rubbish = 'while [ "$1" != -o ]; do shift; done; echo rubbish > "$2"'
    changes: dict[str, dict[str, str | Path | None]] = {
        "no compiler": {"CC": None, "PATH": tmp_path / "bin"},
        "no such compiler": {"CC": "/nowhere/cc"},
        "unreadable command": {"CC": "cc '"},
        "does not start": {"CC": script(tmp_path / "cc1", "echo fatal: no licence >&2; exit 3")},
        "fails": {"CC": script(tmp_path / "cc2", f"{version}; echo error: internal compiler error >&2; exit 1")},
        "writes rubbish": {"CC": script(tmp_path / "cc3", f"{version}; {rubbish}")},
    }
    values, warned = report(MOMENTGEN_CACHE=tmp_path / "cache", **changes[case])
    assert values == RIGHT
    served = [line for line in warned if "the slower PyTorch code serves cpu tensors" in line]
    assert len(served) == 1
    assert reason in served[0]
    assert re.search("tens of times slower .*/compiled-kernels/", served[0])
    assert ("install gcc or clang" in served[0]) == (case in ("no compiler", "no such compiler"))
    assert case == "writes rubbish" or len(warned) == 1


def test_flags_that_a_compiler_lacks_are_tried_once_a_process(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = f'echo "$@" >> {tmp_path}/calls\ncase " $* " in *" -fopenmp "*) exit 1;; esac; exec cc "$@"'
    monkeypatch.setenv("CC", str(script(tmp_path / "mycc", refuse)))
    everything = [*c_compiler.PROMISE, *(flag for group in c_compiler.WANTED for flag in group)]

    def compiled(value: int) -> list[list[str]]:
        """The flags of each compilation that a new value costs."""
        (tmp_path / "calls").write_text("")
        assert built(f"return {value};") == value
        calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
        return [[flag for flag in call if flag in everything] for call in calls if "-c" in call]

    *probes, last = compiled(1)
    assert last == [flag for flag in everything if flag != "-fopenmp"]
    assert len(probes) == 2 + len(c_compiler.WANTED)  # all flags, those of the promise, and each group
    assert compiled(2) == [last]
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert built("return 2;") == 2  # what was made without OpenMP serves where nothing can be made


@pytest.mark.parametrize("flag", c_compiler.PROMISE)
def test_a_compiler_that_rejects_a_flag_which_bits_depend_on_is_not_used(
    flag: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = f'case " $* " in *" {flag} "*) echo "error: unknown {flag}"; exit 1;; esac; exec cc "$@"'
    monkeypatch.setenv("CC", str(script(tmp_path / "mycc", refuse)))
    with pytest.raises(toolchain.Unavailable, match=f"unknown {flag}"):
        built()


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("MOMENTGEN_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_directory() == tmp_path / "momentgen"
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: Path("~/.cache/momentgen"))
    with pytest.raises(RuntimeError, match="no home directory"):
        cache_directory()


def test_a_library_for_another_processor_openmp_or_abi_is_another_library(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built()
    monkeypatch.setenv("CC", "/nowhere/cc")
    for name, other in (("_processor", lambda: ["flags : less"]), ("torch_openmp", lambda: "/elsewhere/libgomp.so.1")):
        with monkeypatch.context() as patch:
            patch.setattr(toolchain, name, other)
            patch.setattr(kernel_cache, "machine", toolchain.machine.__wrapped__)
            with pytest.raises(toolchain.Unavailable):
                built()
    assert built() == 7


@pytest.mark.parametrize(("seconds", "lines"), [(0, 0), (0.5, 1)])
def test_compiling_for_longer_than_a_moment_is_said_once(
    seconds: float,
    lines: int,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(c_compiler, "_MOMENT", 0.3 if seconds else 60)
    monkeypatch.setattr(c_compiler, "_spent", 0)
    monkeypatch.setattr(kernel_cache, "_told", False)
    monkeypatch.setenv("CC", str(script(tmp_path / "mycc", f'sleep {seconds}; exec cc "$@"')))
    with caplog.at_level(logging.WARNING, "momentgen"):
        assert [built(f"return {value};") for value in (1, 2)] == [1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        f"momentgen: compiling seven; done once for this machine, kept in {cache}"
    ][:lines]


def test_a_compiler_that_does_not_end_is_given_up(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_compiler, "TIMEOUT", 0.2)
    monkeypatch.setattr(c_compiler, "_MOMENT", 0.1)
    monkeypatch.setenv("CC", str(script(tmp_path / "mycc", "exec sleep 60")))
    with pytest.raises(toolchain.Unavailable, match=r"mycc` did not end within 0\.2 s"):
        built()
    assert not list(cache.iterdir())


@pytest.fixture
def counting_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kernels that write how many elements beyond 2**31 they were asked for."""
    folder = tmp_path / "counting_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "exact.c").write_text(
        "#include <stdint.h>\n"
        "void count_exact_forward(int64_t n, const float *m, const float *v, const float *p, float *a, float *b)\n"
        "{ a[0] = (float)(n - INT64_C(2147483648)); }\n"
        "void count_exact_backward(int64_t n, const float *m, const float *v, const float *g, const float *h,\n"
        "                          const float *p, float *a, float *b)\n"
        "{ a[0] = (float)(n - INT64_C(2147483648)); }\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path / "cache"))
    sys.modules.pop("counting_package", None)
    return "counting_package"


def test_sizes_beyond_31_bits_reach_the_kernels_whole(counting_package: str) -> None:
    kernels = NativeKernels(counting_package, "count", "exact", 2)
    cell = torch.zeros(1)
    kernels.forward(2**31 + 5, None, None, None, cell.data_ptr(), None)
    assert cell.item() == 5
    kernels.backward(2**31 + 7, None, None, None, None, None, cell.data_ptr(), None)
    assert cell.item() == 7


def test_damaged_package_is_an_error_not_a_fallback(counting_package: str) -> None:
    with pytest.raises(MomentgenError, match="defines no function other_exact_forward"):
        NativeKernels(counting_package, "other", "exact", 2)
    with pytest.raises(MomentgenError, match="C source of variant tight does not read"):
        NativeKernels(counting_package, "count", "tight", 2)


@pytest.mark.skipif(toolchain.torch_openmp() is None, reason="torch's OpenMP runtime is not found")
def test_kernels_heed_torch_set_num_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path))
    library = kernel_cache.compile_and_load(
        "threads", "#include <omp.h>\nint threads(void) { return omp_get_max_threads(); }"
    )
    assert native._thread_setter(library) is None  # torch's own runtime: nothing to set
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert library["threads"]() == count
    finally:
        torch.set_num_threads(before)


def test_another_openmp_runtime_is_told_the_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    calls: list[tuple[object, ...]] = []
    call = native._threaded(lambda *args: calls.append(args), told.append)
    call(8192, None)
    call(8193, None)
    assert told == [torch.get_num_threads()]
    assert calls == [(8192, None), (8193, None)]
