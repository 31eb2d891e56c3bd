"""Every committed C kernel runs in vector lanes: one that gcc leaves scalar is right, but 30 times slower."""

import shutil
from collections.abc import Iterable

import pytest
from c_vectors import gcc_flags, scalar_kernels, scalar_loops
from real_rules import ROOT

from momentgen.native.includes import whole

ALL = {f"{path.parent.name}-{path.stem}": path for path in sorted((ROOT / "generated").glob("*/*.c"))}
SOURCES = {name: path for name, path in ALL.items() if not name.endswith("_float64")}
#: of these some run in blocks, with one loop over the lanes for each part
FLOAT64 = {name: path for name, path in ALL.items() if name not in SOURCES}
#: a kernel of polynomials of two values, and a program of middle length, by the size of its C; the rest is slow
FAST = ("tanh-exact_float64", sorted(SOURCES, key=lambda name: SOURCES[name].stat().st_size)[len(SOURCES) // 2])
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: other compilers have no such report")


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]
    )


@each(SOURCES)
def test_gcc_vectorises_every_committed_kernel(name: str) -> None:
    assert scalar_kernels(SOURCES[name].read_text(), gcc_flags()) == []


@each(FLOAT64)
def test_gcc_vectorises_every_committed_float64_loop(name: str) -> None:
    text = FLOAT64[name].read_text()
    if "over_cells(" not in text:
        assert scalar_kernels(text, gcc_flags()) == []
        return
    lines, unused = whole(text).splitlines(), "surface(" not in text
    scalar = [lines[number - 1].strip() for number in scalar_loops("\n".join(lines), gcc_flags())]
    assert [line for line in scalar if not (unused and line.startswith("EACH"))] == []
