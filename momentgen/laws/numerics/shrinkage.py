"""What a few samples say of the variance of a linear map, no more than they can know.

A linear map of independent values has a variance B.  Of correlated values it is κ B with an unknown κ, of which each
unit's few samples give a noisy estimate R / B.  One factor for the layer is known well, and one for each unit badly.
So the units' estimates are shrunk towards the layer's, as far as chance explains their spread.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["shrunk"]

#: a factor never leaves this range; beyond, numerator or denominator is rounding
_LIMIT = 30.0
#: logarithms of how far a unit's factor may be from its channel's: less, for its randomness may be in rare events
_LESS, _MORE = math.log(2), math.log(4)
#: ratios beyond are those of rounding
_SOUND = 1e8


def shrunk(prior: Tensor, residuals: Tensor, channel: int | None) -> Tensor:
    """The factors κ of ``prior``, broadcastable to it.

    Args:
        prior: *variances* of independent values, any shape.
        residuals: samples of the values less their mean, whose variance is wanted, shape ``(samples, *prior.shape)``.
        channel: dimension of ``prior`` along which factors may differ; None for one factor.

    Returns:
        Factors of at least 0; 1 where there is nothing to compare.
    """
    samples = residuals.shape[0]
    squares = residuals.square()  # about the mean that the law has, and not about that of the samples
    if channel is None or prior.shape[channel] < 4:
        return _ratio(squares.mean(0).sum(), prior.sum())
    channel %= prior.dim()
    others = [d for d in range(prior.dim()) if d != channel]
    whole = prior.sum(others) if others else prior
    each = squares.sum([d + 1 for d in others]) if others else squares  # (samples, channels)
    layer = _ratio(each.mean(0).sum(), whole.sum())
    average, tiny = each.mean(0), torch.finfo(prior.dtype).tiny
    known = (average > tiny) & (whole > tiny)
    own = _ratio(average, whole) / torch.where(layer > 0, layer, 1)
    log = torch.where(known, torch.where(known, own, 1).log(), 0)
    count = known.sum().clamp_min(1)
    places = prior.numel() // prior.shape[channel]
    if places == 1:
        # Of a normal value the estimate is χ², one degree of freedom less than samples since the draws'
        # mean is 0: bias and variance of its logarithm.
        half = torch.tensor((samples - 1) / 2, dtype=prior.dtype, device=prior.device)
        log = torch.where(known, log - (torch.special.digamma(half) - half.log()), 0)
        noise = torch.special.polygamma(1, half)
    else:
        spread = (torch.where(known, each, 0) / torch.where(known, average, 1)).var(0) / samples
        noise = torch.where(known, spread, 0).sum() / count
    centre = log.sum() / count
    excess = (torch.where(known, (log - centre).square(), 0).sum() / count - noise).clamp_min(0)
    weight = excess / (excess + noise).clamp_min(tiny)
    factor = layer * torch.exp(weight * (log - centre).clamp(-math.log(_LIMIT), math.log(_LIMIT)))
    # The layer's whole variance stays what the samples say.
    factor = factor * _ratio(layer * whole.sum(), (factor * whole).sum())
    factor = factor.view([-1 if d == channel else 1 for d in range(prior.dim())])
    return factor if places == 1 or samples < 8 else factor * _of_units(factor * prior, squares)


def _of_units(prior: Tensor, squares: Tensor) -> Tensor:
    """Factors of single units, whose squares the channel's share of their layer does not explain.

    What two halves of the samples say alike of a unit is true of it, however the samples are distributed.
    """
    half, tiny = len(squares) // 2, torch.finfo(prior.dtype).tiny
    parts = squares[:half].mean(0), squares[half:].mean(0)
    known = (parts[0] > tiny) & (parts[1] > tiny) & (prior > tiny)
    count = known.sum().clamp_min(1)

    def centred(average: Tensor) -> Tensor:
        log = torch.where(known, _ratio(average, prior), 1).log().clamp(-_LESS, _MORE)
        return torch.where(known, log - log.sum() / count, 0)

    first, second, whole = centred(parts[0]), centred(parts[1]), centred(squares.mean(0))
    weight = _ratio((first * second).sum().clamp_min(0), whole.square().sum()).clamp_max(1)
    factor = torch.exp(weight * whole)
    return factor * _ratio(prior.sum(), (factor * prior).sum())


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    usable = denominator > torch.finfo(denominator.dtype).tiny
    # Where the numerator is the samples' rounding, or the denominator next to nothing, a derivative would be beyond
    # range: there the ratio is a constant.
    largest = torch.finfo(denominator.dtype).max
    sound = usable & (numerator < _SOUND * denominator) & (denominator > _SOUND / largest)
    constant = (numerator / torch.where(usable, denominator, 1)).detach()
    return torch.where(
        sound, numerator / torch.where(sound, denominator, 1), torch.where(usable, constant, torch.ones_like(constant))
    )
