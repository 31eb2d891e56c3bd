"""Normalisations by statistics: of a batch, a layer, a group, an instance.

Evaluated batch norm is affine and exact.  Every other normalisation divides by
statistics of its own random input.  They are taken at their expectations, as if
certain: an approximation, whose error falls with the number n of values that a
statistic averages.  What is exact in it:

* in training, batch norm's statistics: the mean of the means, and the mean of the
  variances plus the variance of the means;
* for layer, group and instance norm, where n may be small: the expectation
  var(m) + (1 - 1/n) mean(v) of the sample variance, and the variance
  (1 - 2/n) v_i + mean(v)/n of an input minus the sample mean;
* for RMS norm the expectation mean(m² + v) of the mean square.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.nn.layer import Layer, certain, is_certain, known, once_a_batch
from momentgen.runtime import Moments

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "RMSNorm",
    "batch_norm",
    "group_norm",
    "layer_norm",
    "rms_norm",
]


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """One value a channel, broadcast against ``like`` of shape ``(N, C, *)``."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def batch_norm(
    x: Moments,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Moments:
    """:func:`torch.nn.functional.batch_norm` over moments of shape ``(N, C, *)``.

    In training, the statistics of the batch are the expectations named above, and running statistics
    are updated by them (the variance unbiased, as torch does).
    """
    if not training or is_certain(x):
        mean = F.batch_norm(x.mean, running_mean, running_var, weight, bias, training, momentum, eps)
        if is_certain(x):
            return certain(mean)
        if running_var is None:
            raise InputError("batch_norm: evaluation needs running statistics")
        scale = (running_var + eps).reciprocal()
        scale = scale if weight is None else scale * weight.square()
        factor = _channels(scale, x.mean)
        return known(mean, once_a_batch(lambda var: (var * factor).to(mean.dtype), x.var, mean))
    dims = [d for d in range(x.mean.dim()) if d != 1]
    centre, spread, noise = x.mean.mean(dims), x.mean.var(dims, correction=0), x.var.mean(dims)
    n = x.mean.numel() // x.mean.shape[1]
    if n < 2:
        raise InputError(f"batch_norm: training needs more than one value a channel, got shape {tuple(x.mean.shape)}")
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(centre.to(running_mean.dtype), momentum)
            running_var.lerp_((spread * (n / (n - 1)) + noise).to(running_var.dtype), momentum)
    return _normalised(x, _channels(centre, x.mean), x.var, _channels(spread + noise + eps, x.mean), weight, bias, 1)


def _normalised(
    x: Moments,
    centre: Tensor | float,
    var: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    channel: int | None,
) -> Moments:
    """``(x - centre) / sqrt(scale)``, then the affine map; ``var`` is that of the numerator."""
    mean, var = (x.mean - centre) * scale.rsqrt(), var / scale
    if channel is not None:
        weight, bias = (None if part is None else _channels(part, x.mean) for part in (weight, bias))
    if weight is not None:
        mean, var = mean * weight, var * weight.square()
    if bias is not None:
        mean = mean + bias
    return known(mean, var)


class _BatchNorm(Layer):
    """What the batch norms share."""

    momentum: float | None

    def moments(self, x: Moments) -> Moments:
        self._check_input_dim(x.mean)  # type: ignore[operator]
        if x.mean.dim() < 2 or x.mean.shape[1] != self.num_features:
            raise InputError(
                f"{type(self).__name__}: expected {self.num_features} channels, got shape {tuple(x.mean.shape)}"
            )
        batch = self.training or self.running_mean is None
        update = self.training and self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        if update and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)  # type: ignore[operator]
            if self.momentum is None:
                momentum = 1.0 / float(cast(Tensor, self.num_batches_tracked))
        kept = not self.training or update
        own = cast(Any, self)
        running_mean, running_var = (own.running_mean, own.running_var) if kept else (None, None)
        return batch_norm(x, running_mean, running_var, own.weight, own.bias, batch, momentum, own.eps)

    def statistics(self, x: Moments) -> Moments:
        if self.training or self.running_mean is None:
            # The data set's own statistics are those of the batch.
            scale = x.var + self.eps  # type: ignore[operator]
            mean, var = torch.zeros_like(x.mean), x.var / scale
        else:
            scale = self.running_var + self.eps  # type: ignore[operator]
            mean, var = (x.mean - self.running_mean) * scale.rsqrt(), x.var / scale  # type: ignore[operator]
        if self.weight is not None:
            mean, var = mean * self.weight + self.bias, var * self.weight.square()  # type: ignore[operator]
        return known(mean, var)


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """:class:`torch.nn.BatchNorm1d` over moments: affine in evaluation, expected batch statistics in training."""


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """:class:`torch.nn.BatchNorm2d` over moments: affine in evaluation, expected batch statistics in training."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """:class:`torch.nn.BatchNorm3d` over moments: affine in evaluation, expected batch statistics in training."""


def _sample_normalised(
    x: Moments, dims: Sequence[int], eps: float, weight: Tensor | None, bias: Tensor | None, channel: int | None
) -> Moments:
    """Normalise by mean and variance over ``dims`` of each sample, both random; see the module's text."""
    n = torch.Size([x.mean.shape[d] for d in dims]).numel()
    noise = x.var.mean(tuple(dims), keepdim=True)
    spread, centre = torch.var_mean(x.mean, tuple(dims), correction=0, keepdim=True)
    # n = 1 leaves nothing but the bias; 1 - 2/n is negative there and nowhere else.
    residual = x.var * (1 - 2 / n) + noise / n if n > 1 else torch.zeros_like(x.var)
    return _normalised(x, centre, residual, spread + (1 - 1 / n) * noise + eps, weight, bias, channel)


def layer_norm(
    x: Moments,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Moments:
    """:func:`torch.nn.functional.layer_norm` over moments; approximate, see the module's text."""
    if is_certain(x):
        return certain(F.layer_norm(x.mean, normalized_shape, weight, bias, eps))
    if tuple(x.mean.shape[-len(normalized_shape) :]) != tuple(normalized_shape):
        raise InputError(f"layer_norm: expected (..., {tuple(normalized_shape)}), got shape {tuple(x.mean.shape)}")
    dims = range(x.mean.dim() - len(normalized_shape), x.mean.dim())
    return _sample_normalised(x, dims, eps, weight, bias, None)


def group_norm(
    x: Moments, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Moments:
    """:func:`torch.nn.functional.group_norm` over moments; approximate, see the module's text."""
    if is_certain(x):
        return certain(F.group_norm(x.mean, num_groups, weight, bias, eps))
    if x.mean.dim() < 2 or x.mean.shape[1] % num_groups:
        raise InputError(f"group_norm: expected channels in {num_groups} groups, got shape {tuple(x.mean.shape)}")
    shape = x.mean.shape
    grouped = Moments(*[part.reshape(shape[0], num_groups, -1) for part in x])
    plain = _sample_normalised(grouped, (2,), eps, None, None, None)
    mean, var = (part.reshape(shape) for part in plain)
    if weight is not None:
        mean, var = mean * _channels(weight, mean), var * _channels(weight, var).square()
    return known(mean if bias is None else mean + _channels(bias, mean), var)


def rms_norm(
    x: Moments, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Moments:
    """:func:`torch.nn.functional.rms_norm` over moments; approximate, see the module's text."""
    if is_certain(x):
        return certain(F.rms_norm(x.mean, normalized_shape, weight, eps))
    dims = tuple(range(x.mean.dim() - len(normalized_shape), x.mean.dim()))
    least = torch.finfo(x.mean.dtype).eps if eps is None else eps
    square = (x.mean.square() + x.var).mean(dims, keepdim=True) + least
    return _normalised(x, 0.0, x.var, square, weight, None, None)


class LayerNorm(Layer, torch.nn.LayerNorm):
    """:class:`torch.nn.LayerNorm` over moments; approximate, see :mod:`momentgen.nn.norm`."""

    def moments(self, x: Moments) -> Moments:
        return layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class GroupNorm(Layer, torch.nn.GroupNorm):
    """:class:`torch.nn.GroupNorm` over moments; approximate, see :mod:`momentgen.nn.norm`."""

    def moments(self, x: Moments) -> Moments:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class RMSNorm(Layer, torch.nn.RMSNorm):
    """:class:`torch.nn.RMSNorm` over moments; approximate, see :mod:`momentgen.nn.norm`."""

    def moments(self, x: Moments) -> Moments:
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)


class _InstanceNorm(Layer):
    """What the instance norms share; inputs need their batch dimension."""

    def moments(self, x: Moments) -> Moments:
        self._check_input_dim(x.mean)  # type: ignore[operator]
        if self.track_running_stats:
            raise InputError(f"{type(self).__name__}: running statistics are not kept over moments")
        if x.mean.dim() == self._get_no_batch_dim():  # type: ignore[operator]
            raise InputError(f"{type(self).__name__}: expected a batch dimension, got shape {tuple(x.mean.shape)}")
        return group_norm(x, x.mean.shape[1], self.weight, self.bias, self.eps)  # type: ignore[arg-type]


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """:class:`torch.nn.InstanceNorm1d` over moments; approximate, see :mod:`momentgen.nn.norm`."""


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """:class:`torch.nn.InstanceNorm2d` over moments; approximate, see :mod:`momentgen.nn.norm`."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """:class:`torch.nn.InstanceNorm3d` over moments; approximate, see :mod:`momentgen.nn.norm`."""
