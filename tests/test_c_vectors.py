"""Every committed C kernel runs in vector lanes: one that gcc leaves scalar is right, but 30 times slower."""

from __future__ import annotations

import shutil

import pytest
from c_vectors import gcc_flags, scalar_kernels, scalar_loops
from real_rules import ROOT

from momentgen.native.includes import whole

ALL = {f"{path.parent.name}-{path.stem}": path for path in sorted((ROOT / "generated").glob("*/*.c"))}
SOURCES = {name: path for name, path in ALL.items() if not name.endswith("_float64")}
#: of these some run in blocks, with one loop over the lanes for each part
FLOAT64 = {name: path for name, path in ALL.items() if name not in SOURCES}
#: a kernel of polynomials of two values
POLYNOMIALS = "tanh-exact_float64"
#: a program of middle length, by the size of its C; `make slow` has the rest
TYPICAL = sorted(SOURCES, key=lambda name: SOURCES[name].stat().st_size)[len(SOURCES) // 2]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: other compilers have no such report")
def test_gcc_vectorises_a_typical_committed_kernel() -> None:
    assert scalar_kernels(SOURCES[TYPICAL].read_text(), gcc_flags()) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: other compilers have no such report")
@pytest.mark.parametrize("name", [name for name in SOURCES if name != TYPICAL])
def test_gcc_vectorises_every_committed_kernel(name: str) -> None:
    assert scalar_kernels(SOURCES[name].read_text(), gcc_flags()) == []


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: other compilers have no such report")
def test_gcc_vectorises_float64_polynomials_of_two_values() -> None:
    assert scalar_loops(whole(FLOAT64[POLYNOMIALS].read_text()), gcc_flags()) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: other compilers have no such report")
@pytest.mark.parametrize("name", [name for name in FLOAT64 if name != POLYNOMIALS])
def test_gcc_vectorises_every_committed_float64_loop(name: str) -> None:
    text = FLOAT64[name].read_text()
    if "over_cells(" not in text:
        assert scalar_kernels(text, gcc_flags()) == []
        return
    lines, unused = whole(text).splitlines(), "surface(" not in text
    scalar = [lines[number - 1].strip() for number in scalar_loops("\n".join(lines), gcc_flags())]
    assert [line for line in scalar if not (unused and line.startswith("EACH"))] == []
