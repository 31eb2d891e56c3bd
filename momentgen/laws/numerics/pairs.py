"""Exact covariances of a function of jointly normal values, pair by pair, by an op of two inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from momentgen.laws.numerics.root import square_root

__all__ = ["PairOp", "pairwise_covariance"]

#: means, variances and covariance of two values -> the covariance of the function of the one and of the other
PairOp = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def pairwise_covariance(op: PairOp, mean: Tensor, var: Tensor, cov: Tensor, own: Tensor) -> Tensor:
    """The covariance matrix of a function of all values: that of each pair is computed once.

    Args:
        op: for one pair.
        mean: of the values, shape ``(N,)``.
        var: their *variances*, shape ``(N,)``.
        cov: their covariance, shape ``(N, N)``.
        own: *variances* of the function, shape ``(N,)``, for the diagonal.

    Returns:
        Shape ``(N, N)``, symmetric to the last bit.

    >>> one = torch.ones(2)
    >>> pairwise_covariance(lambda m1, v1, m2, v2, c: 2 * c, one, one, torch.eye(2) + 1, one)
    tensor([[1., 2.],
            [2., 1.]])
    """
    count = len(mean)
    if count < 2:
        return torch.diag_embed(own)
    first, second = torch.triu_indices(count, count, 1, device=mean.device)
    sd = square_root(var)
    # Rounding on the way to here may have made more of a covariance than the variances allow.
    bound = sd[first] * sd[second]
    within = torch.minimum(torch.maximum(cov.reshape(-1)[first * count + second], -bound), bound)
    found = op(mean[first], var[first], mean[second], var[second], within)
    above = found.new_zeros(count * count).index_copy(0, first * count + second, found).view(count, count)
    return above + above.mT + torch.diag_embed(own)
