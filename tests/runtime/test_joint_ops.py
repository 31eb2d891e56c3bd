"""Ops of two inputs, with and without a covariance, under torch's transforms and in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from real_rules import op_of
from torch import Tensor
from torch.func import grad, jvp, vmap

import momentgen
from momentgen.errors import InputError
from momentgen.runtime import Op

COVARIANCES = ("relu_covariance", "gelu_covariance", "heaviside_covariance", "normal_cdf_covariance")
NAMES = ("product", "maximum", "maximum_correlated", *COVARIANCES)
each = pytest.mark.parametrize("name", NAMES)


def inputs(op: Op, n: int = 6, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(n)
    mean1, mean2 = torch.randn(2, n, generator=generator, dtype=torch.float64) * 1.5
    var1, var2 = torch.rand(2, n, generator=generator, dtype=torch.float64) * 2 + 0.3
    correlation = torch.rand(n, generator=generator, dtype=torch.float64) * 1.6 - 0.8
    five = (mean1, var1, mean2, var2, correlation * (var1 * var2).sqrt())
    return tuple(t.to(dtype) for t in five[: len(op.input_names)])


def outputs(found: Any) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else tuple(found)


@each
def test_gradcheck_of_first_and_second_derivatives(name: str) -> None:
    op = op_of(name)
    leaves = tuple(t.requires_grad_() for t in inputs(op, 3, torch.float64))
    for variant in op.variants:
        call = lambda *ts, v=variant: outputs(op(*ts, variant=v))  # noqa: E731
        assert torch.autograd.gradcheck(call, leaves)
        assert torch.autograd.gradgradcheck(call, leaves)


@each
def test_operators_pass_opcheck(name: str) -> None:
    kernel, tensors = op_of(name)._kernels["exact"], inputs(op_of(name))
    seeds = (torch.ones_like(tensors[0]), tensors[1])[: len(op_of(name).outputs)]
    torch.library.opcheck(kernel.forward, (*tensors, []))
    torch.library.opcheck(kernel.backward, (*tensors, *seeds, []))


@each
def test_transforms_agree_with_autograd(name: str) -> None:
    op = op_of(name)
    tensors = inputs(op)

    def total(*ts: Tensor) -> Tensor:
        return sum((k * out for k, out in enumerate(outputs(op(*ts)), 1)), start=torch.zeros(())).sum()

    leaves = tuple(t.clone().requires_grad_() for t in tensors)
    want = torch.autograd.grad(total(*leaves), leaves)
    got = grad(total, argnums=tuple(range(len(tensors))))(*tensors)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    for i in range(len(tensors)):
        tangents = tuple(torch.ones_like(t) if i == k else torch.zeros_like(t) for k, t in enumerate(tensors))
        _, tangent = jvp(total, tensors, tangents)
        torch.testing.assert_close(tangent, want[i].sum())


@each
def test_vmap_gives_each_row_the_bits_of_its_own_call(name: str) -> None:
    op = op_of(name)
    tensors = tuple(t.view(3, 4) for t in inputs(op, 12))
    rows = vmap(op)(*tensors)
    for row in range(3):
        for batch, single in zip(outputs(rows), outputs(op(*(t[row] for t in tensors))), strict=True):
            assert torch.equal(batch[row], single)


@each
def test_compiles_into_one_graph_with_the_same_bits(name: str) -> None:
    torch._dynamo.reset()
    op = op_of(name)
    compiled = torch.compile(lambda *ts: outputs(op(*ts)), fullgraph=True, backend="aot_eager")
    tensors = inputs(op)
    assert all(torch.equal(a, b) for a, b in zip(outputs(op(*tensors)), compiled(*tensors), strict=True))


@each
def test_float64_and_half_go_their_ways(name: str) -> None:
    op = op_of(name)
    wide, single = inputs(op, 50, torch.float64), inputs(op, 50)
    for got, want in zip(outputs(op(*single)), outputs(op(*wide)), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-6)
    assert outputs(op(*(t.bfloat16() for t in single)))[0].dtype is torch.bfloat16


def test_arguments_have_names_and_errors_say_which() -> None:
    op = op_of("maximum_correlated")
    one = torch.ones(2)
    assert str(op.__signature__).startswith("(mean1: torch.Tensor, var1: torch.Tensor, mean2")  # type: ignore[attr-defined]
    assert torch.equal(op(one, one, mean2=one, var2=one, cov=one).mean, one)
    with pytest.raises(InputError, match="expected tensors mean1, var1, mean2, var2, cov, got 4"):
        op(one, one, one, one)


CHECK = """
import torch
import momentgen.generated as g
covariances = (g.relu_covariance, g.gelu_covariance, g.heaviside_covariance, g.normal_cdf_covariance)
for op in (g.product, g.maximum, g.maximum_correlated, *covariances):
    n = len(op.input_names)
    torch.manual_seed(1)
    five = (torch.randn(500), torch.rand(500), torch.randn(500), torch.rand(500), torch.zeros(500))[:n]
    for variant in op.variants:
        for which, extra in (("forward", ()), ("backward", [torch.randn(500) for _ in op.outputs])):
            got = op.kernel(which, variant=variant, backend="triton")(*five, *extra)
            want = op.kernel(which, variant=variant, backend="c")(*five, *extra)
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)), (op, variant, which)
print("the same bits")
"""


def test_triton_s_interpreter_gives_the_bits_of_c() -> None:
    pytest.importorskip("triton", minversion="3.9", reason="the interpreter of triton 3.8 rounds fma twice")
    root = str(Path(momentgen.__file__).parents[1])
    environment = dict(os.environ, PYTHONPATH=root, TRITON_INTERPRET="1")
    done = subprocess.run(
        [sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "the same bits", done.stderr
