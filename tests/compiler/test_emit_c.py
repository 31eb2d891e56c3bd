"""Generated C: the bits of the NumPy evaluation under every compiler setting, in vector code, readable."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from c_vectors import gcc_flags, scalar_kernels
from compiler.program_strategies import CORNERS, adversarial_inputs, different_bits, for_backends
from hypothesis import given
from hypothesis import strategies as st
from same_bits import builds
from threadpoolctl import threadpool_limits

from momentgen.build.native_kernel import NativeKernel
from momentgen.compiler.emit._text import Header
from momentgen.compiler.emit.c import c_double, c_float, render_c
from momentgen.compiler.emit.triton import render_triton
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.op import fma
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Builder, Program
from momentgen.compiler.toolchain.c_libraries import compiled
from momentgen.errors import BuildError, InputError
from momentgen.native.c_compiler import CompilerError, find_compiler
from momentgen.native.includes import FLOAT64, whole

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")

BUILDS = {name: list(build.flags) for name, build in builds().items() if name != "clang"}
AVX2 = BUILDS.get("avx2", gcc_flags())

PROGRAMS = for_backends()
HEADER = Header("random", "test")
INPUTS = adversarial_inputs(20000)  # enough for several threads


def native_program(program: Program, flags: Sequence[str] | None = None) -> NativeKernel:
    """The kernel of ``program``, rendered to C and compiled."""
    header = Header(program.name, "native")
    source = render_c([program], header)
    counts = len(program.inputs), len(program.params), len(program.outputs)
    return NativeKernel(source, program.name, *counts, flags=flags)


@functools.cache
def evaluated() -> list[dict[str, np.ndarray]]:
    return [dict(evaluate(program, INPUTS, {"p": 0.3})) for program in PROGRAMS]


@needs_compiler
@pytest.mark.parametrize("build", BUILDS)
def test_c_has_the_bits_of_the_evaluation(build: str) -> None:
    source = render_c(PROGRAMS, HEADER)
    for program, want in zip(PROGRAMS, evaluated(), strict=True):
        kernel = NativeKernel(source, program.name, 2, 1, 3, flags=BUILDS[build])
        with threadpool_limits(2, "openmp"):
            got = kernel(INPUTS["x"], INPUTS["y"], params=[0.3])
        for array, (name, expected) in zip(got, want.items(), strict=True):
            assert different_bits(array, expected).size == 0, (program.name, name)


@needs_compiler
@pytest.mark.parametrize("build", ["default", "O0"])
def test_the_negative_of_a_multiply_add_has_the_sign_of_its_zero(build: str) -> None:
    b = Builder("negated", inputs=("x",))
    b.output("r", b.neg(b.fma(b.input("x"), b.f32(-2.0), b.f32(1.0))))
    kernel = native_program(b.build(), flags=BUILDS[build])
    (got,) = kernel(np.full(100, 0.5, np.float32))
    assert (got == 0).all()
    assert np.signbit(got).all()


#: a product just above or below half a unit of the addend, which rounding to float64 first makes a tie of; the same
#: where the result is subnormal or the largest number; and zeros of either sign
NEAR_TIES = (
    (8392705 * 2.0**-23, 8384513 * 2.0**-47, 1.0),
    (8388607 * 2.0**-23, 8388609 * 2.0**-47, 1.0 + 2.0**-23),
    (-8388607 * 2.0**-23, 8388609 * 2.0**-47, 1.0 + 2.0**-23),
    (8392705 * 2.0**-98, 8384513 * 2.0**-98, 2.0**-127),
    (8388607 * 2.0**-98, 8388609 * 2.0**-98, 2.0**-127 + 2.0**-149),
    (8392705 * 2.0**-98, 8384513 * 2.0**-98, 0.0),
    (2.0**104, 2.0**-1, (2.0 - 2.0**-23) * 2.0**127),
    (8388607 * 2.0**57, 8388609.0, (2.0 - 2.0**-23) * 2.0**127),
    (2.0**100, 2.0**100, -np.inf),
    (-0.0, 1.0, -0.0),
    (2.0**-149, -(2.0**-149), 0.0),
)


@needs_compiler
def test_numpy_fma_is_the_fma_of_the_machine() -> None:
    b = Builder("fused", inputs=("x", "y", "z"))
    b.output("r", b.fma(b.input("x"), b.input("y"), b.input("z")))
    kernel = native_program(b.build())
    rng = np.random.default_rng(5)
    size = 300_000

    def spread(low: int, high: int) -> np.ndarray:
        mantissa = rng.integers(2**23, 2**24, size) >> rng.integers(0, 23, size)
        return (np.ldexp(mantissa.astype(float), rng.integers(low, high, size)) * rng.choice([-1, 1], size)).astype(
            "f4"
        )

    x, y = spread(-20, 4), spread(-20, 4)
    tiny_x, tiny_y = spread(-85, -70), spread(-85, -70)
    bits = rng.integers(0, 2**32, (3, size), dtype=np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        triples = [tuple(bits), (x, y, -(x * y)), (x, y, spread(-60, 20)), (tiny_x, tiny_y, spread(-149, -125))]
        triples += [(spread(30, 50), spread(40, 60), spread(90, 105)), (tiny_x, tiny_y, np.zeros(size, np.float32))]
    for a, b_, c in (*triples, np.float32(NEAR_TIES).T):
        (want,) = kernel(a.copy(), b_.copy(), c.copy())
        assert different_bits(fma(a, b_, c), want).size == 0


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_gcc_vectorises_every_kernel() -> None:
    programs = [p for p in PROGRAMS if optimise(p).operations > 10]
    assert scalar_kernels(render_c(programs, HEADER), AVX2) == []


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_gcc_vectorises_long_kernels() -> None:
    b = Builder("longest", inputs=("x", "y"))
    total, y = b.input("x"), b.input("y")
    for k in range(550):
        total = b.select(b.lt(total, y), b.fma(total, y, b.f32(1.0 + k)), b.sub(total, b.mul(y, y)))
    b.output("z", total)
    source = render_c([b.build()], HEADER)
    assert scalar_kernels(source, AVX2) == []
    # gcc leaves a function of this length outside of its only caller's loop, unless told.
    untold = whole(source).replace(" inline __attribute__((always_inline))", "")
    assert scalar_kernels(untold, AVX2) == ["longest"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_source_compiles_without_warnings(tmp_path: Path) -> None:
    (tmp_path / "kernels.c").write_text(whole(render_c(PROGRAMS, HEADER)))
    flags = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-unused-variable", *gcc_flags()]
    done = subprocess.run(
        ["gcc", *flags, "-shared", "-o", "k.so", "kernels.c"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_fast_math_is_refused() -> None:
    flags = [*gcc_flags(), "-ffast-math"]
    with pytest.raises(CompilerError, match="IEEE binary32"):
        native_program(PROGRAMS[0], flags=flags)
    with pytest.raises(CompilerError, match="IEEE binary64"):
        compiled(whole(FLOAT64), flags)
    assert not any("fast-math" in flag for flag in BUILDS["default"])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_values_of_parameters_leave_the_loop(tmp_path: Path) -> None:
    b = Builder("scaled", inputs=("x",), params=("p",))
    p = b.param("p")
    scale = b.sqrt(b.as_f32(b.iadd(b.as_i32(b.div(p, b.add(p, b.f32(1.0)))), b.i32(1 << 23))))
    b.output("y", b.mul(b.input("x"), scale))
    (tmp_path / "scaled.c").write_text(whole(render_c([b.build()], HEADER)))
    subprocess.run(["gcc", *AVX2, "-S", "-o", "scaled.s", "scaled.c"], cwd=tmp_path, check=True)
    blocks = re.split(r"^\.L\w+:$", (tmp_path / "scaled.s").read_text(), flags=re.MULTILINE)
    loops = [block for block in blocks if re.search(r"\bvmulps\b", block)]
    assert loops
    assert not [block for block in loops if re.search(r"\bv(?:div|sqrt)[ps]s\b", block)]


@given(st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from(CORNERS[:-1])))
def test_literal_rounds_to_the_number(value: float) -> None:
    text = c_float(value)
    assert text.endswith("f")
    digits = text.removesuffix("f")
    back = float.fromhex(digits) if "0x" in digits else float(digits)
    assert np.float32(back).view(np.int32) == np.float32(value).view(np.int32)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_literal_of_float64_is_the_number_exactly(value: float) -> None:
    text = c_double(value)
    back = float.fromhex(text) if "0x" in text else float(text)
    assert np.float64(back).view(np.int64) == np.float64(value).view(np.int64)


@needs_compiler
@pytest.mark.parametrize("text", ["ends in a backslash \\", "two\nlines", "*/ and /*", "long " * 60, "trigraph ??/"])
def test_comments_cannot_break_the_code(text: str) -> None:
    b = Builder("noted", inputs=("x",))
    b.output("y", b.comment(b.mul(b.input("x"), b.f32(3.0)), text))
    program = b.build()
    header = Header("rule", text, (text,))
    source = render_c([program], header)
    assert max(map(len, source.splitlines())) < 120
    assert NativeKernel(source, "noted", 1, 0, 1)(np.float32([2.0]))[0] == [6.0]


@needs_compiler
def test_names_of_inputs_and_parameters_are_not_taken_twice() -> None:
    b = Builder("named", inputs=("t0", "c0"), params=("t1",))
    b.output("y", b.fma(b.add(b.input("t0"), b.input("c0")), b.param("t1"), b.f32(2.0**-40)))
    (got,) = native_program(b.build())(np.float32([1.0]), np.float32([2.0]), params=[2.0])
    assert got == np.float32(6.0)


@pytest.mark.parametrize("render", [render_c, render_triton])
def test_lines_are_short(render: Callable[..., str]) -> None:
    assert max(map(len, render(PROGRAMS, HEADER).splitlines())) < 120


@needs_compiler
def test_kernel_of_a_broken_file_says_what_the_compiler_said() -> None:
    with pytest.raises(CompilerError, match=r"kernel\.c:1:1: error"):
        NativeKernel("int nonsense(", "nonsense", 1, 0, 1)
    with pytest.raises(BuildError, match="export absent"):
        NativeKernel("int present;\n", "absent", 1, 0, 1)


@needs_compiler
@pytest.mark.parametrize(
    ("inputs", "params"),
    [
        ([np.ones(3, np.float32)], [0.1]),
        ([np.ones(3, np.float32), np.ones(4, np.float32)], [0.1]),
        ([np.ones(3, np.float32), np.ones(3, np.float64)], [0.1]),
        ([np.ones(6, np.float32)[::2], np.ones(3, np.float32)], [0.1]),
        ([np.ones(3, np.float32), np.ones(3, np.float32)], []),
    ],
)
def test_kernel_refuses_wrong_arrays(inputs: Sequence[np.ndarray], params: Sequence[float]) -> None:
    with pytest.raises(InputError, match="program0: expected"):
        native_program(PROGRAMS[0])(*inputs, params=params)
