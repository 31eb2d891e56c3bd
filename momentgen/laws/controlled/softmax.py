"""A softmax at the end of a network: applied to the normal law of the logits, or sampled where that is further off.

Normal logits have what sampling knows least, the tails.  Logits that are linear in the noise are normal.  Others need
not be: by how much the answers of the two ways differ beyond chance is an error of the first.  A logarithm has no such
tails, and is sampled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from momentgen.laws.controlled.estimate import Estimate, Rows, away, estimated, left_out
from momentgen.laws.numerics.quadrature import standard_points
from momentgen.laws.numerics.root import balanced_root, matrix_root

__all__ = ["Softmax", "mean_jacobian", "rows_of_softmax", "softmaxed"]

#: quasi-random points of each answer of the jackknife, of which differences alone count
_FEW = 128
#: groups of pairs that the jackknife leaves out, at most
_GROUPS = 16
#: logits that are looked at together
_TOGETHER = 2**20
#: logits of which the linear part explains all but this part of the variance count as normal
_LINEAR = 0.001
#: outputs whose standard deviation is below this part of the average do not tell how far normal logits are off
_SMALL = 0.01


class Softmax(NamedTuple):
    """A softmax that may be the end of a network.

    Attributes:
        out: its result.
        logits: what it is taken of.
        dim: the dimension of the classes.
        logarithm: whether it is a log softmax.
        again: computes the result once more.
    """

    out: Tensor
    logits: Tensor
    dim: int
    logarithm: bool
    again: Callable[[], Tensor]

    def is_unchanged(self) -> bool:
        """Whether neither the result nor the logits have been written into since."""
        again = self.again()
        return bool(((again == self.out) | (again.isnan() & self.out.isnan())).all())


def softmaxed(logits: Estimate, rows: Rows, logarithm: bool) -> Estimate:
    """Moments of the softmax, or of its logarithm, of normal logits.

    Args:
        logits: moments, of two classes or more in the last dimension.
        rows: what they were estimated from, for the errors.
        logarithm: whether it is a log softmax.
    """
    pairs = (len(rows.outputs) - rows.fresh) // 2
    if pairs < 3:
        return estimated(rows_of_softmax(rows, logarithm))
    classes = logits.mean.shape[-1]
    halves = standard_points(classes), standard_points(classes) @ _turn(classes)
    points = torch.cat(halves)
    values = _values(logits.mean, _covariance(logits), logarithm, points)
    info = torch.finfo(values.dtype)
    # squares of some class's probabilities, or of their errors, may be below the range
    small = values.detach().amax(-1) < (info.tiny / info.eps) ** 0.5
    if values.dtype is torch.float32 and not logarithm and bool(small.any()):
        double = Rows(rows.outputs.double(), rows.linear.double(), rows.root.double(), rows.fresh)
        return softmaxed(Estimate(*map(Tensor.double, logits)), double, logarithm)
    normal = _with_covariance(values)
    with torch.no_grad():
        few = standard_points(classes, max(_FEW, 4 * classes))
        first, second = (_std_and_mean(part) for part in values.split(len(halves[0]), -1))
        groups = min(pairs, _GROUPS)
        by_law = _left_out(left_out(rows, groups), logarithm, few)
        # of few points the rare events are too few, which the two halves tell, and what a single point counts for
        errors = [
            _spread(all_but) + away(one, other).square() / 4 + unseen
            for all_but, one, other, unseen in zip(by_law, first, second, _unseen(values, points), strict=True)
        ]
        remainder = _remainder(logits, rows)
        if remainder.mean() < _LINEAR:
            unlike = remainder.square() * normal.var / 4  # as if σ changed by half of what is not normal
            return normal._replace(std_error=(errors[0] + unlike).sqrt(), mean_error=(errors[1] + unlike).sqrt())
    own = rows_of_softmax(rows, logarithm)
    sampled = estimated(own)
    if logarithm:  # it is nearly linear in the logits, and its linear part leaves as little to the rows
        return sampled
    with torch.no_grad():
        by_draws = left_out(own, groups)
        off, chances = [], []
        for of, all_but in zip((attrgetter("std"), attrgetter("mean")), by_law, strict=True):
            chances.append(_spread(away(all_but, torch.stack(list(map(of, by_draws))))) / sampled.var)
            off.append(away(of(normal), of(sampled)).square() / sampled.var - chances[-1])
        std = sampled.std
        counted = (std > _SMALL * std.nanmean()) & off[0].isfinite() & off[1].isfinite()
        if not counted.any():
            return sampled
        best = errors[0] + _off(off[0], counted) * normal.var
        if (best / sampled.var)[counted].mean() > (sampled.std_error.square() / sampled.var)[counted].mean():
            return sampled
        # What is stated counts that of few outputs the difference is hardly known.
        free = counted.sum() * (1 - 1 / counted.shape[-1])  # an example's probabilities are 1 in all
        std_square, mean_square = (
            error + _off(part + chance[counted].mean() * (2 / free).sqrt(), counted) * normal.var
            for error, part, chance in zip(errors, off, chances, strict=True)
        )
    return normal._replace(std_error=std_square.sqrt(), mean_error=mean_square.sqrt())


def _unseen(values: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Squares of the errors of standard deviation and mean from events that no point meets.

    They are taken to count for as much as the point that is furthest off.  Values that are linear in the points have no
    such error: there a point has the share of the variance that it has of the points' own.
    """
    square = away(values, values.mean(-1, keepdim=True)).square()
    largest, total, count = square.amax(-1), square.sum(-1), len(points)
    share = torch.where(total > 0, largest / torch.where(total > 0, total, 1), 0)
    beyond = (share - float(points.square().amax()) / count).clamp_min(0)
    return beyond.square() / 4 * total / count, largest / count**2


def _remainder(logits: Estimate, rows: Rows) -> Tensor:
    """The part of the logits' variance that the linear part does not explain, of each example, shape ``(batch, 1)``."""
    linear = logits.factor[:, : rows.root.shape[-2]].square().sum(-2).sum(-1, keepdim=True)
    total = logits.var.sum(-1, keepdim=True)
    usable = (total > 0) & total.isfinite()
    return torch.where(usable, 1 - linear / torch.where(usable, total, 1), 0)


def _off(square: Tensor, counted: Tensor) -> Tensor:
    """By how much normal logits are off, as a part of the variance: of an example, and no less than of all."""
    count = counted.sum(-1, keepdim=True).clamp_min(1)
    own = torch.where(counted, square, 0).sum(-1, keepdim=True) / count
    return own.maximum(square[counted].mean()).clamp_min(0)


def _spread(left_out: Tensor) -> Tensor:
    """The jackknife's *variance*."""
    return (len(left_out) - 1) * away(left_out, left_out.mean(0)).square().mean(0)


def rows_of_softmax(rows: Rows, logarithm: bool) -> Rows:
    """The rows of the probabilities or their logarithms, with the linear part by the rows' mean Jacobian."""
    outputs = rows.outputs.log_softmax(-1) if logarithm else rows.outputs.softmax(-1)
    jacobian = mean_jacobian(rows.outputs, logarithm)
    linear = (rows.linear.movedim(0, 1) @ jacobian.mT).movedim(1, 0)
    return Rows(outputs, linear, rows.root @ jacobian.mT, rows.fresh)


def mean_jacobian(logits: Tensor, logarithm: bool) -> Tensor:
    """Derivatives of the probabilities or their logarithms on average over rows of logits, shape ``(batch, K, K)``."""
    probabilities = logits.softmax(-1)
    if logarithm:
        mean = probabilities.mean(0)[:, None]
        return torch.eye(mean.shape[-1]).to(mean) - mean
    products = torch.einsum("rbk,rbl->bkl", probabilities, probabilities) / len(probabilities)
    return probabilities.mean(0).diag_embed() - products


@functools.lru_cache(maxsize=16)
def _turn(dimensions: int) -> Tensor:
    """A rotation, which makes other points of the quasi-random ones."""
    drawn = torch.randn(dimensions, dimensions, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.linalg.qr(drawn).Q


def _covariance(given: Estimate) -> Tensor:
    covariance = given.factor.mT @ given.factor
    return (covariance + covariance.mT) / 2


def _values(mean: Tensor, covariance: Tensor, logarithm: bool, points: Tensor) -> Tensor:
    """The softmax of normal logits at standard normal points, shape ``(..., K, points)``."""
    # Along a last dimension of few classes torch's softmax takes sixteen times as long.
    logits = mean[..., None] + matrix_root(covariance)[0].mT @ points.to(mean.device, mean.dtype).T
    return logits.log_softmax(-2) if logarithm else logits.softmax(-2)


def _with_covariance(values: Tensor) -> Estimate:
    """Moments over points, without errors."""
    centre = values.mean(-1)
    apart = away(values, centre[..., None])
    found = apart @ apart.mT / values.shape[-1]
    nothing = torch.zeros_like(centre)
    return Estimate(centre, balanced_root((found + found.mT) / 2), nothing, nothing)


def _std_and_mean(values: Tensor) -> tuple[Tensor, Tensor]:
    centre = values.mean(-1)
    return away(values, centre[..., None]).square().mean(-1).sqrt(), centre


def _left_out(logits: list[Estimate], logarithm: bool, points: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviations and means of the softmax with each group left out, shape ``(groups, batch, K)``.

    Roots of many small matrices cost a GPU as much as one, and so do a CPU's calls.
    """
    mean, covariance = torch.stack([one.mean for one in logits]), torch.stack(list(map(_covariance, logits)))
    together = max(1, _TOGETHER // (len(points) * mean[0].numel()))
    pairs = zip(mean.split(together), covariance.split(together), strict=True)
    stds, means = zip(*(_std_and_mean(_values(*pair, logarithm, points)) for pair in pairs), strict=True)
    return torch.cat(stds), torch.cat(means)
