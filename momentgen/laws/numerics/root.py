"""The root of a sum of squares of normal values, which is taken as gamma distributed."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["root_of", "square_root"]


def square_root(var: Tensor) -> Tensor:
    """Standard deviations, with derivative 0 (and not infinity) at a variance of 0."""
    positive = var > 0
    return torch.where(positive, torch.where(positive, var, 1).sqrt(), var)


def root_of(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of √S of a sum S of squares of normal values, S taken as gamma distributed.

    With S of mean m and variance V, and a = m²/V, the mean is √m · Γ(a + ½) / (Γ(a) √a) and the variance m minus its
    square.  Exact where S is a certain number, or a multiple of a chi-squared variable (inputs of mean 0 and one
    variance); in between the two-moment approximation of Patnaik (1949, The non-central χ²- and F-distributions and
    their applications, Biometrika 36).

    Args:
        mean: of S, any shape, in float64; NaN is returned where it is negative.
        var: *variance* of S, of the same shape.
    """
    some = mean > 0
    u = torch.where(some, var, 0) / torch.where(some, mean * mean, 1)  # 1/a
    # log of Γ(a + ½)² / (Γ(a)² a): its asymptotic series for large a, where the gamma functions cancel.
    small = u < 1 / 16
    a = 1 / torch.where(small, 1, u)
    few = 2 * (torch.lgamma(a + 0.5) - torch.lgamma(a)) - a.log()
    w = torch.where(small, u, 0)
    many = w * (-1 / 4 + w * w * (1 / 96 + w * w * (-1 / 320 + w * w * 17 / 7168)))
    log_share = torch.where(small, many, few)
    root = torch.where(mean >= 0, square_root(mean), torch.nan)
    return root * (log_share / 2).exp(), torch.where(mean >= 0, -mean * torch.expm1(log_share), torch.nan)
