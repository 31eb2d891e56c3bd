"""Analytic normalisation: a data set's statistics, one pixel's mean and variance, propagated through the network.

``Normalize`` divides each pre-activation by its standard deviation over the
data set, after taking the mean away.  Both come from the network's own weights
and the data's per-channel statistics, by one pass without batch and space:
cheap, differentiable, and no batch statistics.

Source: Shekhovtsov & Flach 2018, section 4 and table 4; the same, Normalization of
Neural Networks using Analytic Variance Propagation, CVWW 2018.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.nn.conv import _Conv
from momentgen.nn.layer import Layer, Module, as_moments, known, once_a_batch
from momentgen.nn.linear import Linear
from momentgen.nn.method import current_method, statistics
from momentgen.runtime import Moments

__all__ = ["AnalyticNormalization", "Normalize", "initialise_analytically", "propagate_statistics"]


class Normalize(Layer):
    """``(x - mean) / std · weight + bias`` by the data set's propagated statistics, one a channel.

    Within :class:`AnalyticNormalization` the statistics are propagated anew in every training step, and gradients pass
    through them; in evaluation those of the last step, kept as buffers, hold.

    Args:
        num_features: C, of inputs ``(N, C, *)`` or ``(C,)``.
        affine: whether to learn ``weight`` and ``bias``, which start at 1 and 0.
        eps: added to the variance, as in batch norm; 0 does no harm where the data vary.
    """

    elementwise = True

    def __init__(self, num_features: int, affine: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features, self.eps = num_features, eps
        self.weight = torch.nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = torch.nn.Parameter(torch.zeros(num_features)) if affine else None
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self._live: Moments | None = None

    def _affine(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Factor and summand of each channel, shape ``(C,)``."""
        if like.shape[0 if like.dim() == 1 else 1] != self.num_features:
            raise InputError(f"Normalize: expected {self.num_features} channels, got shape {tuple(like.shape)}")
        present = self._live if self._live is not None else Moments(self.running_mean, self.running_var)  # type: ignore[arg-type]
        factor = (present.var + self.eps).rsqrt()
        if self.weight is not None:
            factor = factor * self.weight
        summand = -present.mean * factor
        return factor, summand if self.bias is None else summand + self.bias

    def plain(self, x: Tensor) -> Tensor:
        return _scaled(x, *self._affine(x))

    def moments(self, x: Moments) -> Moments:
        factor, summand = self._affine(x.mean)
        squares, nothing = factor.square(), torch.zeros_like(summand)
        mean = _scaled(x.mean, factor, summand)
        return known(mean, once_a_batch(lambda var: _scaled(var, squares, nothing), x.var, mean))

    def statistics(self, x: Moments) -> Moments:
        if x.mean.shape != (self.num_features,):
            raise InputError(f"Normalize: expected {self.num_features} channels, got {tuple(x.mean.shape)}")
        self._live = x
        with torch.no_grad():
            self.running_mean.copy_(x.mean)  # type: ignore[operator]
            self.running_var.copy_(x.var)  # type: ignore[operator]
        return self.moments(x)

    def extra_repr(self) -> str:
        return f"{self.num_features}, affine={self.weight is not None}, eps={self.eps}"


def _scaled(x: Tensor, factor: Tensor, summand: Tensor) -> Tensor:
    """``x · factor + summand`` by channel; over space, batch norm's kernel takes the fewest passes."""
    if x.dim() <= 2:
        return torch.addcmul(summand, x, factor)
    zero, one = torch.zeros_like(factor), torch.ones_like(factor)
    return F.batch_norm(x, zero, one, factor, summand, training=False, eps=0.0)


def propagate_statistics(network: torch.nn.Module, mean: Tensor, var: Tensor) -> Moments:
    """Statistics of the network's output over a data set, one mean and variance a channel.

    Args:
        network: of layers over moments; those without a rule for statistics raise.
        mean: the data's mean, a channel each, shape ``(C,)``.
        var: the data's variance, shape ``(C,)``.

    Every :class:`Normalize` in it is brought up to date on the way.

    Raises:
        InputError: if the shapes differ, a variance is negative, or a layer has no such rule.
    """
    x = as_moments("propagate_statistics", Moments(mean, var))
    if mean.dim() != 1:
        raise InputError(f"propagate_statistics: expected shape (C,), got {tuple(mean.shape)}")
    with statistics():
        return as_moments("propagate_statistics", network(x))


class AnalyticNormalization(Module):
    """A network with :class:`Normalize` layers, and the data's statistics that they are computed from.

    Args:
        network: layers over moments.
        mean: the data's mean a channel, shape ``(C,)`` or a float for one channel.
        var: the data's variance, likewise.
    """

    def __init__(self, network: torch.nn.Module, mean: Tensor | float, var: Tensor | float) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("data_mean", torch.as_tensor(mean, dtype=torch.get_default_dtype()).reshape(-1))
        self.register_buffer("data_var", torch.as_tensor(var, dtype=torch.get_default_dtype()).reshape(-1))
        self.refresh()

    def refresh(self) -> None:
        """Bring the kept statistics up to date with the parameters, without gradients."""
        with torch.no_grad():
            propagate_statistics(self.network, self.data_mean, self.data_var)  # type: ignore[arg-type]
        self._settle()

    def _settle(self) -> None:
        for part in self.network.modules():
            if isinstance(part, Normalize):
                part._live = None

    def forward(self, x: Any) -> Any:
        """The network's output; in training, by statistics of its present parameters."""
        if not self.training or current_method(self.propagation) == "statistics":
            return self.network(x)
        propagate_statistics(self.network, self.data_mean, self.data_var)  # type: ignore[arg-type]
        try:
            return self.network(x)
        finally:
            self._settle()  # the graph of this step ends with it


def initialise_analytically(network: torch.nn.Module, mean: Tensor, var: Tensor) -> Moments:
    """Rescale every Linear and convolution so that its output has mean 0 and variance 1 over the data set.

    Layer by layer, as the statistics pass through: weights are divided by the propagated standard deviation and
    the bias takes the mean away (a layer without a bias keeps its mean).

    Args:
        network: of layers over moments, without :class:`Normalize` layers.
        mean: the data's mean a channel, shape ``(C,)``.
        var: the data's variance, shape ``(C,)``.

    Returns:
        The propagated statistics of the output, after rescaling.

    Raises:
        InputError: as :func:`propagate_statistics`; or if a layer's output does not vary.
    """
    handles = [part.register_forward_hook(_rescale) for part in network.modules() if isinstance(part, Linear | _Conv)]
    try:
        with torch.no_grad():
            return propagate_statistics(network, mean, var)
    finally:
        for handle in handles:
            handle.remove()


def _rescale(layer: Any, _: Any, out: Moments) -> Moments:
    if not bool((out.var > 0).all()):
        raise InputError(f"initialise_analytically: an output of {type(layer).__name__} does not vary over the data")
    std = out.var.sqrt()
    layer.weight.div_(std.view(-1, *[1] * (layer.weight.dim() - 1)))
    if layer.bias is None:
        return known(out.mean / std, torch.ones_like(std))
    layer.bias.sub_(out.mean).div_(std)
    return known(torch.zeros_like(std), torch.ones_like(std))
