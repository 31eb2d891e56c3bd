# square, variant exact: written by hand for the tests.

from __future__ import annotations

import torch


def forward(mean, var):
    nan = torch.where((var < 0), float("nan"), 0.0)
    return mean * mean + var + nan, 2.0 * var * var + 4.0 * mean * mean * var + nan


def backward(mean, var, grad_mean, grad_var):
    nan = torch.where((var < 0), float("nan"), 0.0)
    return 2.0 * mean * grad_mean + 8.0 * mean * var * grad_var + nan, grad_mean + (
        4.0 * var + 4.0 * mean * mean
    ) * grad_var + nan
