"""Noise of any distribution: what of a ``torch.distributions.Distribution`` the methods need.

Methods that draw take it as it is.  All others take mean, variance, and covariance where it has one.
"""

from __future__ import annotations

import torch
import torch.distributions as td
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.numerics.root import matrix_root
from momentgen.runtime import DistributedMoments, JointMoments, Moments

__all__ = ["Noise", "with_distribution"]

_NORMAL = (td.Normal, td.MultivariateNormal, td.LowRankMultivariateNormal)
#: distributions that are symmetric about their mean
_SYMMETRIC = (*_NORMAL, td.Laplace, td.StudentT, td.Uniform)


class Noise:
    """Draws of the noise of a value.

    Args:
        distribution: whose draws are of the value's shape.
        like: the value.

    Attributes:
        mean: of the noise, of the value's shape.
        var: *variance*, likewise.
        covariance: of the values of an event, in the last two dimensions.  None for independent values, and where torch
            does not know it.
        is_known: whether variance and covariance are all of the covariance of the values.
        is_normal: whether it is a normal distribution.
        is_symmetric: whether it is symmetric about its mean.
    """

    def __init__(self, distribution: td.Distribution, like: Tensor) -> None:
        self._distribution, self._like = distribution, like
        base = distribution
        while isinstance(base, td.Independent):
            base = base.base_dist
        name = self._name = type(base).__name__
        if isinstance(base, td.VonMises):
            raise InputError("noisy: a von Mises distribution is of angles, and torch knows its circular variance only")
        try:
            mean, var = distribution.mean, distribution.variance
        except NotImplementedError:
            raise InputError(f"noisy: torch does not know mean and variance of the distribution {name}") from None
        if not bool((mean.isfinite() & var.isfinite()).all()):
            raise InputError(f"noisy: expected a distribution of finite mean and variance, got {name} without")
        self.mean, self.var = (value.to(like.dtype).expand(like.shape) for value in (mean, var))
        known = base.covariance_matrix if base.event_shape and hasattr(base, "covariance_matrix") else None
        self.covariance: Tensor | None = known
        self.is_known = known is not None or not base.event_shape
        self.is_normal, self.is_symmetric = isinstance(base, _NORMAL), isinstance(base, _SYMMETRIC)

    def __repr__(self) -> str:
        return self._name

    def draw(self) -> Tensor:
        """One draw less its mean, of the value's shape; differentiable in the parameters where the distribution is."""
        given = self._distribution
        found: Tensor = given.rsample() if given.has_rsample else given.sample()
        return found.to(self._like.dtype) - self.mean


def with_distribution(x: Tensor, distribution: td.Distribution) -> Moments:
    """``x`` plus a draw of a distribution, as :func:`momentgen.noisy` says it."""
    noise = Noise(_expanded(x, distribution), x)
    if noise.mean.device != x.device:
        raise InputError(f"noisy: expected a distribution on {x.device} as x is, got one on {noise.mean.device}")
    mean = x + noise.mean
    if noise.covariance is None:
        return DistributedMoments.of(mean, noise.var, noise)
    return JointMoments.of(mean, noise.var, _factor(noise.covariance, x)).with_noise(noise)


def _expanded(x: Tensor, distribution: td.Distribution) -> td.Distribution:
    """The distribution with a draw for each value of ``x``."""
    event, batch = distribution.event_shape, distribution.batch_shape
    size = x.dim() - len(event)
    if size < 0 or x.shape[size:] != event or len(batch) > size:
        raise _unfit(x, distribution)
    try:
        if torch.broadcast_shapes(batch, x.shape[:size]) != x.shape[:size]:
            raise _unfit(x, distribution)
    except RuntimeError:
        raise _unfit(x, distribution) from None
    return distribution if batch == x.shape[:size] else distribution.expand(x.shape[:size])


def _unfit(x: Tensor, distribution: td.Distribution) -> InputError:
    return InputError(
        f"noisy: a draw of the distribution, of batch shape {tuple(distribution.batch_shape)} and event shape "
        f"{tuple(distribution.event_shape)}, does not broadcast to x of shape {tuple(x.shape)}"
    )


def _factor(covariance: Tensor, x: Tensor) -> Tensor:
    """A factor of the covariance of an example's values, flattened, of that of its events."""
    wide = covariance.float() if x.dtype in (torch.float16, torch.bfloat16) else covariance
    root = matrix_root((wide + wide.mT) / 2)[0].to(x.dtype)
    size = root.shape[-1]
    if x.dim() == 1:
        return root
    return _block_diagonal(root.expand(*x.shape[:-1], size, size).reshape(len(x), -1, size, size))


def _block_diagonal(blocks: Tensor) -> Tensor:
    """Matrices, shape ``(batch, count, n, n)``, along the diagonal of one for each of the batch."""
    batch, count, size, _ = blocks.shape
    eye = torch.eye(count, dtype=blocks.dtype, device=blocks.device)
    return torch.einsum("bcij,cd->bcidj", blocks, eye).reshape(batch, count * size, count * size)
