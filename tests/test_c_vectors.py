"""Every committed C kernel runs in vector lanes: one that gcc leaves scalar is right, but 30 times slower."""

from __future__ import annotations

import shutil

import pytest
from c_vectors import scalar_kernels
from real_rules import ROOT

from momentgen.compiler.emit.c import C_FLAGS

#: of float32; those of float64 run in blocks, whose inner loops this report does not tell apart
SOURCES = {
    f"{path.parent.name}-{path.stem}": path
    for path in sorted((ROOT / "generated").glob("*/*.c"))
    if not path.stem.endswith("_float64")
}
#: a program of middle length, by the size of its C; `make slow` has the rest
TYPICAL = sorted(SOURCES, key=lambda name: SOURCES[name].stat().st_size)[len(SOURCES) // 2]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: other compilers have no such report")
def test_gcc_vectorises_a_typical_committed_kernel() -> None:
    assert scalar_kernels(SOURCES[TYPICAL].read_text(), C_FLAGS) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: other compilers have no such report")
@pytest.mark.parametrize("name", [name for name in SOURCES if name != TYPICAL])
def test_gcc_vectorises_every_committed_kernel(name: str) -> None:
    assert scalar_kernels(SOURCES[name].read_text(), C_FLAGS) == []
