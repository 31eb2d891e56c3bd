"""Machine code of every generated Triton kernel, compiled ahead of time for GPUs that need not be there."""

from __future__ import annotations

import importlib.util

import pytest
from real_rules import ALL, each, source_of

from momentgen.compiler.machine_code import TARGETS, Findings, compile_triton, inspect

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton")

#: the machine at hand in most tests; the other targets are compiled by `make slow`
FAST = ("sm_90", "gfx942")


def findings(name: str, variant: str, direction: str, target: str, dtype: str = "fp32") -> Findings:
    source = source_of(name, variant, "_triton.py")
    return inspect(compile_triton(source, f"{name}_{variant}_{direction}_kernel", target, dtype=dtype))


def check(name: str, variant: str, target: str) -> None:
    """Neither spills nor anything approximate, contracted, flushed or not rounded to nearest."""
    for direction in ("forward", "backward"):
        found = findings(name, variant, direction, target)
        assert found.problems == (), (direction, found.problems)
        assert found.spilled == 0, direction
        assert found.per_element > 5, direction
        if target.startswith("sm"):
            divisions = [m for m in found.instructions if m.startswith(("div.", "sqrt.", "rcp."))]
            assert all(".rn" in m for m in divisions), divisions


@pytest.mark.parametrize("target", FAST)
@each(ALL)
def test_kernels_are_exact_and_stay_in_registers(name: str, variant: str, target: str) -> None:
    check(name, variant, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", [target for target in TARGETS if target not in FAST])
@each(ALL)
def test_kernels_are_exact_and_stay_in_registers_on_other_targets(name: str, variant: str, target: str) -> None:
    check(name, variant, target)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@each([pair for pair in ALL if pair == ALL[0]])
def test_narrow_types_are_loaded_widened_and_stored_rounded(name: str, variant: str, dtype: str) -> None:
    found = findings(name, variant, "forward", "sm_90", dtype)
    assert found.problems == ()
    narrowing = {"bf16": "cvt.rn.bf16", "fp16": "cvt.rn.f16"}[dtype]
    assert any(name.startswith(narrowing) for name in found.instructions)
