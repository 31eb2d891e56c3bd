"""A softmax at the end of a network: applied to the normal law of the logits, and not sampled."""

from __future__ import annotations

import torch
from torch import Tensor

from momentgen.laws.controlled.estimate import Estimate, Rows, estimated
from momentgen.laws.numerics.points import POINTS, standard_points
from momentgen.laws.numerics.root import matrix_root

__all__ = ["softmaxed"]

#: quasi-random points of each answer of the jackknife, of which differences alone count
_FEW = 128


def softmaxed(logits: Estimate, rows: Rows, logarithm: bool) -> Estimate:
    """Moments of the softmax, or of its logarithm, of normal logits.

    Args:
        logits: moments, of two classes or more in the last dimension.
        rows: what they were estimated from, for the errors.
        logarithm: whether it is a log softmax.
    """
    mean, factor = _moments(logits.mean, logits.factor, logarithm, POINTS)
    pairs = (len(rows.outputs) - rows.fresh) // 2
    with torch.no_grad():
        few = max(_FEW, 4 * logits.mean.shape[-1])
        found = [_moments(*_without(rows, pair), logarithm, few) for pair in range(pairs)] if pairs > 2 else []
        if not found:
            return Estimate(mean, factor, *(torch.full_like(mean, torch.inf) for _ in range(2)))
        stds = torch.stack([part.square().sum(-2).sqrt() for _, part in found])
        means = torch.stack([part for part, _ in found])
    return Estimate(mean, factor, _spread(stds), _spread(means))


def _without(rows: Rows, pair: int) -> tuple[Tensor, Tensor]:
    keep = torch.ones(len(rows.outputs), dtype=torch.bool, device=rows.outputs.device)
    keep[rows.fresh + 2 * pair : rows.fresh + 2 * pair + 2] = False
    left = estimated(Rows(rows.outputs[keep], rows.linear[keep], rows.root, rows.fresh), errors=False)
    return left.mean, left.factor


def _spread(left_out: Tensor) -> Tensor:
    """The jackknife's standard error."""
    count = len(left_out)
    return ((count - 1) * (left_out - left_out.mean(0)).square().mean(0)).sqrt()


def _moments(mean: Tensor, factor: Tensor, logarithm: bool, count: int) -> tuple[Tensor, Tensor]:
    """Means and a factor of the covariance of the softmax of normal logits."""
    covariance = factor.mT @ factor
    root = matrix_root((covariance + covariance.mT) / 2)[0]
    points = standard_points(mean.shape[-1], count).to(mean.device, mean.dtype)
    logits = mean[..., None, :] + points @ root
    values = logits.log_softmax(-1) if logarithm else logits.softmax(-1)
    centre = values.mean(-2)
    away = values - centre[..., None, :]
    found = away.mT @ away / count
    return centre, matrix_root((found + found.mT) / 2)[0]
