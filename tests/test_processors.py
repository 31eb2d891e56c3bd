"""Workers of a build compute what they would on another processor, and nothing that another task left behind."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from momentgen.build.processors import same_bits_environment
from momentgen.build.workers import Lost, run_all

NUMPY = importlib.import_module("numpy._core._multiarray_umath")
WIDE = [name for name in NUMPY.__cpu_dispatch__ if name == "X86_V4" or name.startswith("AVX512")]
needs_avx2 = pytest.mark.skipif(not NUMPY.__cpu_features__.get("AVX2"), reason="of x86 processors with AVX2")


def features_and_core(name: str, report: Callable[[str], None]) -> tuple[list[str], str | None, str | None]:
    """What NumPy uses in a worker, how OpenBLAS is told, and a variable; NumPy is imported before this is called."""
    features = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
    return [key for key, used in features.items() if used], os.environ.get("OPENBLAS_CORETYPE"), os.environ.get(name)


@needs_avx2
def test_numpy_has_code_for_wide_vectors_that_can_be_left_out() -> None:
    assert WIDE  # else its names have changed, and nothing is left out


@needs_avx2
def test_a_worker_uses_no_vectors_of_512_bits_and_one_core_of_openblas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPY_ENABLE_CPU_FEATURES", raising=False)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    before = dict(os.environ)
    environment = {**same_bits_environment(), "MOMENTGEN_TESTED": "yes"}
    ((_, found),) = run_all(["MOMENTGEN_TESTED"], 1, features_and_core, environment=environment)
    assert not isinstance(found, Lost)
    features, core, variable = found
    assert not {*features} & {*WIDE}
    assert "AVX2" in features
    assert (core, variable) == ("Haswell", "yes")
    assert dict(os.environ) == before


@needs_avx2
def test_what_the_user_has_set_stays() -> None:
    assert "OPENBLAS_CORETYPE" not in same_bits_environment({"OPENBLAS_CORETYPE": "Prescott"})
    assert "NPY_DISABLE_CPU_FEATURES" not in same_bits_environment({"NPY_ENABLE_CPU_FEATURES": "AVX2"})
    disabled = same_bits_environment({"NPY_DISABLE_CPU_FEATURES": "SOMETHING"})["NPY_DISABLE_CPU_FEATURES"].split()
    assert disabled == ["SOMETHING", *WIDE]


@needs_avx2
def test_numpy_accepts_the_environment_without_a_word() -> None:
    environment = {**os.environ, **same_bits_environment()}
    command = [sys.executable, "-W", "error", "-c", "import numpy"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def traces(task: int, report: Callable[[str], None]) -> tuple[int, str]:
    """This process, and what earlier tasks left in it."""
    before = getattr(os, "trace", "")
    os.trace = f"of {task}"  # type: ignore[attr-defined]
    return os.getpid(), before


def test_each_task_has_a_fresh_interpreter() -> None:
    found = [result for _, result in run_all(range(3), 1, traces)]
    assert all(not isinstance(result, Lost) and result[1] == "" for result in found)
    assert len({result[0] for result in found if not isinstance(result, Lost)}) == 3
