"""Machine code of the generated Triton kernels, compiled ahead of time for GPUs that are not there."""

from __future__ import annotations

import dataclasses
import importlib.util
import random

import pytest
from compiler.program_strategies import random_program
from machine_code import TARGETS, Assembly, compile_triton, inspect, lint_amdgcn, lint_ptx

from momentgen.compiler.emit._text import Header
from momentgen.compiler.emit.triton import render_triton
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Builder, Program
from momentgen.errors import BuildError

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton")


def everything() -> Program:
    """Every kind of arithmetic, none of which the compiler can fold away."""
    b = Builder("everything", inputs=("x", "y"), params=("p",))
    x, y, p = b.input("x"), b.input("y"), b.param("p")
    quotient = b.div(x, b.add(b.abs(y), p))
    root = b.sqrt(b.fma(x, x, b.mul(y, y)))
    scale = b.as_f32(b.iand(b.iadd(b.as_i32(b.abs(x)), b.i32(0x00800000)), b.i32(0x7F800000)))
    separate = b.add(b.mul(quotient, root), y)  # a product and a sum that must not be contracted
    b.output("a", b.select(b.both(b.lt(x, y), b.le(p, x)), separate, b.neg(scale)))
    b.output("b", b.fma(quotient, scale, b.f32(2.0**-140)))
    return b.build()


PROGRAMS = [everything(), optimise(random_program(random.Random(0), "random0", 80))]
SOURCE = render_triton(PROGRAMS, Header("test", "test"))


@needs_triton
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_kernel_is_exact_and_stays_in_registers(program: Program, target: str) -> None:
    assembly = compile_triton(SOURCE, f"{program.name}_kernel", target)
    findings = inspect(assembly, program)
    assert findings.problems == ()
    assert findings.spilled == 0
    assert findings.registers is not None
    assert 0 < findings.registers < 128
    assert findings.per_element > 5
    if target.startswith("sm"):
        assert findings.sass_per_element is not None
        assert findings.sass_per_element > findings.per_element / 2


@needs_triton
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_fused_multiply_adds_are_those_of_the_program(target: str) -> None:
    program = everything()
    assembly = compile_triton(SOURCE, "everything_kernel", target)
    assert inspect(assembly).fma == program.count()["fma"] * assembly.elements


@needs_triton
@pytest.mark.parametrize(("dtype", "narrowing"), [("bf16", "cvt.rn.bf16"), ("fp16", "cvt.rn.f16")])
def test_narrow_types_are_computed_in_float32_and_rounded_to_nearest(dtype: str, narrowing: str) -> None:
    assembly = compile_triton(SOURCE, "everything_kernel", "sm_90", dtype=dtype)
    findings = inspect(assembly, everything())
    assert findings.problems == ()
    assert any(name.startswith(narrowing) for name in findings.instructions)
    assert not any(".rz." in name or name.startswith(("mul.rn.bf16", "mul.f16")) for name in findings.instructions)


@needs_triton
def test_approximate_code_is_found() -> None:
    source = """
import triton
import triton.language as tl

LANE_ELEMENTS = 2

@triton.jit
def sloppy_kernel(x_ptr, out_y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_y_ptr + offsets, tl.exp(x) / (1.0 + tl.sqrt(x)), mask=offsets < n)
"""
    nvidia = " ".join(inspect(compile_triton(source, "sloppy_kernel", "sm_90")).problems)
    assert "ex2.approx" in nvidia
    assert "div.full" in nvidia
    assert "sqrt.approx" in nvidia
    amd = " ".join(inspect(compile_triton(source, "sloppy_kernel", "gfx942")).problems)
    assert "v_exp_f32" in amd


def _assembly(text: str, target: str = "sm_90", **changes: object) -> Assembly:
    fields = {"kernel": "k", "target": target, "text": text, "llvm": "", "sass": None}
    return Assembly(**{**fields, "registers": 32, "spilled": 0, "elements": 1, **changes})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("div.full.f32 %f1, %f2, %f3;", "approximate"),
        ("sqrt.approx.ftz.f32 %f1, %f2;", "flushes"),
        ("add.ftz.f32 %f1, %f2, %f3;", "flushes"),
        ("mul.f32 %f1, %f2, %f3;", "contracted"),
        ("fma.rz.f32 %f1, %f2, %f3, %f4;", "nearest"),
        ("@%p1 st.local.f32 [%rd1], %f2;", "local memory"),
        (".local .align 4 .b8 __local_depot0[16];", "local memory"),
        ("mul.rn.f64 %fd1, %fd2, %fd3;", "float64"),
        ("ex2.approx.f32 %f1, %f2;", "approximate"),
    ],
)
def test_ptx_lint_finds(line: str, reason: str) -> None:
    assert lint_ptx("\tadd.rn.f32 %f1, %f2, %f3;\n") == []
    assert any(reason in problem for problem in lint_ptx(f"\t{line}\n"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("v_rcp_f32_e32 v1, v2", "v_rcp_f32"),
        ("v_sqrt_f32_e32 v1, v2", "residuals"),
        ("v_mac_f32_e32 v1, v2, v3", "contracts"),
        ("v_exp_f32_e32 v1, v2", "approximate"),
        ("scratch_store_dword off, v1, s0", "scratch"),
    ],
)
def test_amd_lint_finds(line: str, reason: str) -> None:
    good = "\tv_add_f32_e32 v1, v2, v3\n.amdhsa_float_denorm_mode_32 3\n"
    assert lint_amdgcn(good) == []
    assert any(reason in problem for problem in lint_amdgcn(f"\t{line}\n{good}"))
    assert any("denormal" in problem for problem in lint_amdgcn(good.replace("32 3", "32 0")))


def test_contraction_spills_and_fast_flags_are_problems() -> None:
    program = everything()
    contracted = _assembly("\tfma.rn.f32 %f1, %f2, %f3, %f4;\n" * 3)
    assert any("contracted" in problem for problem in inspect(contracted, program).problems)
    packed = _assembly("\tfma.rn.f32x2 %rd1, %rd2, %rd3, %rd4;\n")
    assert inspect(packed).fma == 2
    assert inspect(dataclasses.replace(packed, spilled=8)).problems == ("spills: 8",)
    fast = _assembly("", llvm="  %3 = fadd nsz contract float %1, %2\n  %4 = fmul float %3, %3, !fpmath !0\n")
    assert [p.split(" (")[0] for p in inspect(fast).problems] == ["LLVM !fpmath", "LLVM contract"]


@needs_triton
def test_wrong_requests_are_named() -> None:
    with pytest.raises(BuildError, match="expected a target among"):
        compile_triton(SOURCE, "everything_kernel", "sm_10")
    with pytest.raises(BuildError, match="got nothing"):
        compile_triton(SOURCE, "absent_kernel", "sm_90")
