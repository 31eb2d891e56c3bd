"""The derivative in a variance of exactly 0 is the limit of those beside it."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from torch import Tensor

import momentgen


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1),
        lambda x: F.layer_norm(x, (8,)),
        lambda x: F.rms_norm(x, (8,)),
        lambda x: F.layer_norm(torch.cat([x] * 40, -1), (320,)),
        F.normalize,
    ],
    ids=["softmax", "layer norm", "rms norm", "wide layer norm", "normalize"],
)
def test_the_derivative_at_variance_0_is_the_limit_of_those_beside_it(function: Callable[[Tensor], Tensor]) -> None:
    mean = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    net = momentgen.convert(Of(function), "ap2")

    def slope(size: float) -> Tensor:
        var = torch.full_like(mean, size).requires_grad_()
        (found,) = torch.autograd.grad(net(momentgen.Moments(mean, var)).var.sum(), var)
        return found

    torch.testing.assert_close(slope(0.0), slope(1e-7), rtol=1e-3, atol=1e-5)
