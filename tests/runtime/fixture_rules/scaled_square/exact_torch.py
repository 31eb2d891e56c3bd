# scaled_square, variant exact: written by hand for the tests.

from __future__ import annotations

import torch


def kernel_scalars(*, scale: float) -> tuple[float, ...]:
    return (scale * scale,)


def forward(mean, var, *, scale):
    nan = torch.where((var < 0), float("nan"), 0.0)
    return scale * (mean * mean + var) + nan, scale * scale * (2.0 * var * var + 4.0 * mean * mean * var) + nan


def backward(mean, var, grad_mean, grad_var, *, scale):
    nan = torch.where((var < 0), float("nan"), 0.0)
    return (
        scale * 2.0 * mean * grad_mean + scale * scale * 8.0 * mean * var * grad_var + nan,
        scale * grad_mean + scale * scale * (4.0 * var + 4.0 * mean * mean) * grad_var + nan,
    )
