# square, variant exact: written by hand for the tests.

from __future__ import annotations

import torch


def forward(mean, var):
    nan = torch.where(var < 0, float("nan"), 0.0)
    size = torch.where(mean < 0.0, -mean, mean)  # as emitted code does: torch.abs has derivative 0 at 0
    return size * size + var + nan, 2.0 * var * var + 4.0 * size * size * var + nan


def backward(mean, var, grad_mean, grad_var):
    nan = torch.where(var < 0, float("nan"), 0.0)
    size = torch.where(mean < 0.0, -mean, mean)
    sign = torch.where(mean < 0, -1.0, 1.0)
    grad_mean_in = sign * (2.0 * size * grad_mean + 8.0 * size * var * grad_var) + nan
    return grad_mean_in, grad_mean + (4.0 * var + 4.0 * size * size) * grad_var + nan
