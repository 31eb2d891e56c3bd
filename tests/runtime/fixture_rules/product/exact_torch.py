# product, variant exact: written by hand for the tests.

from __future__ import annotations

import torch


def forward(mean1, var1, mean2, var2):
    nan = torch.where((var1 < 0) | (var2 < 0), float("nan"), 0.0)
    return mean1 * mean2 + nan, mean1 * mean1 * var2 + mean2 * mean2 * var1 + var1 * var2 + nan


def backward(mean1, var1, mean2, var2, grad_mean, grad_var):
    nan = torch.where((var1 < 0) | (var2 < 0), float("nan"), 0.0)
    return (
        mean2 * grad_mean + 2.0 * mean1 * var2 * grad_var + nan,
        (mean2 * mean2 + var2) * grad_var + nan,
        mean1 * grad_mean + 2.0 * mean2 * var1 * grad_var + nan,
        (mean1 * mean1 + var1) * grad_var + nan,
    )
