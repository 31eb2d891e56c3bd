"""Whether chains agree: the potential scale reduction R̂ of split chains, and the effective sample size.

Source: Gelman et al., Bayesian Data Analysis, third edition, sections 11.4 and 11.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["effective_size", "split_r_hat"]


def _halves(draws: Tensor) -> Tensor:
    """Both halves of each chain as chains, ``(2 chains, draws // 2, ...)``."""
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, draws.shape[1] - half :]])


def split_r_hat(draws: Tensor) -> Tensor:
    """√(total variance over variance within chains), 1 where chains agree; NaN for less than four draws, and of NaN.

    Args:
        draws: ``(chains, draws, ...)``.
    """
    parts = _halves(draws)
    if parts.shape[1] < 2:
        return draws.new_full(draws.shape[2:], float("nan"))
    within = parts.var(1).mean(0)
    between = parts.mean(1).var(0)
    length = parts.shape[1]
    # A quantity that never moves agrees with itself.
    return torch.where(within + between == 0, 1.0, ((length - 1) / length + between / within).sqrt())


def effective_size(draws: Tensor) -> Tensor:
    """How many independent draws say as much about the mean; NaN for less than four draws, and of NaN.

    Args:
        draws: ``(chains, draws, ...)``.
    """
    parts = _halves(draws)
    chains, length = parts.shape[:2]
    if length < 2:
        return draws.new_full(draws.shape[2:], float("nan"))
    off = parts - parts.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(off, n=2 * length, dim=1)
    covariance = torch.fft.irfft(spectrum.abs().square(), n=2 * length, dim=1)[:, :length] / length
    within = parts.var(1).mean(0)
    total = within * (length - 1) / length + parts.mean(1).var(0)
    correlation = 1 - (within - covariance.mean(0)) / total
    # Sums of neighbouring pairs are positive and fall; noise is what comes after the first that is not.
    pairs = correlation[: length // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    positive = (pairs > 0).cumprod(0)
    falling = torch.where(positive.bool(), pairs, 0.0).cummin(0).values.clamp(min=0)
    time = (2 * falling.sum(0) - 1).clamp(min=1 / max(1.0, torch.log10(torch.tensor(chains * length)).item()))
    return torch.where(total == 0, float(chains * length), chains * length / time + 0 * total)
