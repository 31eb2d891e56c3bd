"""Learned parameters by the Triton kernels, in Triton's interpreter, which wants a process of its own."""

from __future__ import annotations

import pytest
from runtime.test_triton import run

pytest.importorskip("triton")
CHECK = """
import torch
import momentgen.generated as ops
from momentgen.runtime import learned, rescaled
from momentgen.runtime.kernel import Kernel

swish = rescaled(ops.silu, width=lambda beta: 1 / beta, scale=lambda beta: 1 / beta)
swish.__name__ = "swish"
generator = torch.Generator().manual_seed(3)
mean = 1.5 * torch.randn(9, generator=generator)
var = torch.rand(9, generator=generator) + 0.05
runs = []

def by_triton(kernel, which, tensors, params):
    runs.append((kernel.name, which, tensors[0].dtype))
    return kernel.run_triton(which, tensors, params)

cases = [(ops.celu, {"alpha": 0.7}), (ops.leaky_relu, {"negative_slope": 0.3}), (ops.softplus, {"beta": 1.7}),
         (ops.hardtanh, {"min_val": -0.8, "max_val": 1.3}), (swish, {"beta": 1.6})]
for op, params in cases:
    for name, value in params.items():
        step = 2e-4
        at = [op(mean.double(), var.double(), **{**params, name: torch.full((9,), value + k * step).double()})
              for k in (-2, -1, 1, 2)]
        wants = [(a - 8 * b + 8 * c - d) / (12 * step) for a, b, c, d in zip(*at)]
        plain, plain_dtype, runs[:] = Kernel.run, learned.kernel_dtype, []
        Kernel.run, learned.kernel_dtype = by_triton, lambda inputs: torch.float32
        try:
            parameter = torch.full((9,), value, requires_grad=True)
            found = op(mean, var, **{**params, name: parameter})
            slopes = [torch.autograd.grad(one.sum(), parameter, retain_graph=True)[0] for one in found]
        finally:
            Kernel.run, learned.kernel_dtype = plain, plain_dtype
        assert {dtype for _, _, dtype in runs} == {torch.float32}
        assert {which for _, which, _ in runs} >= {"forward"}
        for slope, want, at_value in zip(slopes, wants, op(mean.double(), var.double(), **params)):
            size = max(float(want.abs().max()), float(at_value.abs().max()))
            # the chain rule sums the value and two partials, each within 1e-4 of its largest, and they cancel
            assert ((slope - want).abs() <= 3e-4 * size).all(), (op, name, (slope - want) / size)
        for one, want in zip(found, op(mean.double(), var.double(), **{**params, name: torch.tensor(value)})):
            assert ((one - want).abs() <= 1e-5 * want.abs().clamp(min=1)).all(), (op, name, one - want)
print("all agree")
"""


def test_gradients_in_parameters_by_triton_are_finite_differences_in_float64() -> None:
    done = run(CHECK, TRITON_INTERPRET="1")
    assert done.stdout.strip() == "all agree", done.stderr
