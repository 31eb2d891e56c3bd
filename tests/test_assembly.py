"""Machine code of every generated Triton kernel, compiled ahead of time for GPUs that need not be there."""

import importlib.util

import pytest
from machine_code import TARGETS, Findings, compile_triton, inspect
from real_rules import ALL, op_of, source_of

import momentgen.generated
from momentgen.runtime import Op
from momentgen.runtime.gpu import launch_shape

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton")

EVERY = [(n, v) for n in momentgen.generated.__all__ if isinstance(op := op_of(n), Op) for v in op.variants]
#: of every kind: single words, double-floats with a parameter, a fit; the rest is compiled by `make slow`
KINDS = (("relu", "exact"), ("leaky_relu", "tight"), ("logistic_transform", "exact"))
FAST = [(n, v, target) for n, v in KINDS for target in ("sm_90", "gfx942")]
REST = [(n, v, target) for n, v in ALL for target in TARGETS] + [(n, v, "sm_90") for n, v in EVERY if (n, v) not in ALL]


def findings(name: str, variant: str, direction: str, target: str) -> Findings:
    source = source_of(name, variant, "_triton.py")
    _, warps = launch_shape(1 << 22, 1)  # as the runtime launches it
    kernel = f"{name}_{variant}_{direction}_kernel"
    return inspect(compile_triton(source, kernel, target, num_warps=warps))


@pytest.mark.parametrize(
    ("name", "variant", "target"),
    [*FAST, *(pytest.param(*one, marks=pytest.mark.slow) for one in REST if one not in FAST)],
)
def test_kernels_are_exact_and_stay_in_registers(name: str, variant: str, target: str) -> None:
    """Neither spills nor anything approximate, contracted, flushed or not rounded to nearest."""
    for direction in ("forward", "backward"):
        found = findings(name, variant, direction, target)
        assert found.problems == (), (direction, found.problems)
        assert found.spilled == 0, direction
        assert found.per_element > 5, direction
        if target.startswith("sm"):
            divisions = [m for m in found.instructions if m.startswith(("div.", "sqrt.", "rcp."))]
            assert all(".rn" in m for m in divisions), divisions


def test_small_launches_give_a_thread_as_many_elements_as_large_ones() -> None:
    for elements in (1, 2):
        shapes = [launch_shape(n, elements) for n in (1, 1 << 10, 1 << 18, (1 << 18) + 1, 1 << 40)]
        assert {block / warps / 32 for block, warps in shapes} == {elements}
