"""Every op of the library as a user calls it: what reaches the C is what the PyTorch form takes.

This is about the call (inputs, parameters, derived scalars, gradients), not about accuracy, which the certificates are
about; hence tolerances that any rounding meets and no mistake does.
"""

from __future__ import annotations

import pytest
import torch

import momentgen.generated
from momentgen.runtime import Op

OPS = [op for name in momentgen.generated.__all__ if isinstance(op := getattr(momentgen.generated, name), Op)]
CASES = [pytest.param(op, variant, id=f"{op.name}-{variant}") for op in OPS for variant in op.variants]


def _inputs(op: Op, n: int = 300) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    of = {
        "mean": lambda: 2 * torch.randn(n, generator=generator),
        "var": lambda: 0.05 + 3 * torch.rand(n, generator=generator),
        "cov": lambda: 0.04 * torch.randn(n, generator=generator).clamp(-1, 1),
    }
    return [of[name.rstrip("12")]() for name in op.input_names]


@pytest.mark.parametrize(("op", "variant"), CASES)
def test_the_kernel_and_the_float64_form_agree_on_moments_and_gradients(op: Op, variant: str) -> None:
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [tensor.to(dtype).requires_grad_() for tensor in _inputs(op)]
        found = op(*leaves, variant=variant)
        outputs = (found,) if isinstance(found, torch.Tensor) else tuple(found)
        gradients = torch.autograd.grad(sum(output.sum() for output in outputs), leaves)
        results.append([tensor.detach().double() for tensor in (*outputs, *gradients)])
    for single, double in zip(*results, strict=True):
        torch.testing.assert_close(single, double, rtol=0, atol=1e-4 * max(1.0, float(double.abs().max())))
