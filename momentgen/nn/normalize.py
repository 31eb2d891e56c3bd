"""Analytic normalisation: a data set's statistics, one pixel's mean and variance, propagated through the network.

``Normalize`` divides each pre-activation by its standard deviation over the data set, after taking the mean away.  Both
come from the network's own weights and the data's per-channel statistics, by one pass without batch and space: cheap,
differentiable, and no batch statistics.

Source: Shekhovtsov & Flach 2018, section 4 and table 4; the same, Normalization of Neural Networks using Analytic
Variance Propagation, CVWW 2018.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.channels import Channels, channels
from momentgen.laws.values import as_moments, check
from momentgen.nn.layers import Layer, Module, check_strided
from momentgen.runtime import Moments

if TYPE_CHECKING:
    from jaxtyping import Float


class Normalize(Layer, torch.nn.Module):
    """``(x - mean) / std · weight + bias`` by the data set's propagated statistics, one per channel.

    Within :class:`AnalyticNormalization` the statistics are propagated anew in every training step, and gradients pass
    through them.  In evaluation the statistics of the last step are used; they are buffers.

    Args:
        num_features: C, of inputs ``(N, C, *)`` or ``(C,)``.
        affine: whether to learn ``weight`` and ``bias``, which start at 1 and 0.
        eps: added to the variance, as in batch norm; 0 does no harm where the data vary.

    Raises:
        InputError: if the number of channels is no positive whole number, or ``eps`` is negative.
    """

    def __init__(self, num_features: int, affine: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        if isinstance(num_features, bool) or not isinstance(num_features, int) or not 0 < num_features < 2**63:
            raise InputError(f"Normalize: expected a positive whole number of channels, got {num_features!r:.40}")
        if not isinstance(eps, int | float) or not 0 <= eps < math.inf:
            raise InputError(f"Normalize: expected a number of at least 0 for eps, got {eps!r:.40}")
        self.num_features, self.eps = num_features, eps
        self.weight = torch.nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = torch.nn.Parameter(torch.zeros(num_features)) if affine else None
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self._live: tuple[Tensor, Tensor] | None = None

    def _of(self, data: Moments) -> tuple[Tensor, Tensor]:
        """Factor and summand of each channel, shape ``(C,)``."""
        factor = (data.var + self.eps).rsqrt()
        if self.weight is None or self.bias is None:
            return factor, -data.mean * factor
        factor = factor * self.weight
        return factor, torch.addcmul(self.bias, data.mean, factor, value=-1)

    def _check(self, x: Tensor) -> None:
        if x.shape[0 if x.dim() == 1 else 1] != self.num_features:
            raise InputError(f"Normalize: expected {self.num_features} channels, got shape {tuple(x.shape)}")

    def _forward_inside(self, x: Any) -> Any:
        """Of a law or a tensor; statistics of the data set become this layer's own."""
        if not isinstance(x, Channels):
            check_strided(self, x)
            self._check(x)
            # this training step's, or by the kept statistics
            return _scaled(x, *(self._live or self._of(Moments(self.running_mean, self.running_var))))  # type: ignore[arg-type]
        mean, var = x.moments()
        self._check(mean)
        factor, summand = self._live = self._of(x.moments())
        with torch.no_grad():
            self.running_mean.copy_(mean)  # type: ignore[operator]
            self.running_var.copy_(var)  # type: ignore[operator]
        return x.by_moments(lambda mean, var: (torch.addcmul(summand, mean, factor), factor.square() * var))

    def extra_repr(self) -> str:
        return f"{self.num_features}, affine={self.weight is not None}, eps={self.eps}"


def _scaled(x: Any, factor: Tensor, summand: Tensor) -> Any:
    """``x · factor + summand`` by channel; over space, batch norm's kernel takes the fewest passes."""
    if x.ndim <= 2:
        return torch.addcmul(summand, x, factor) if isinstance(x, Tensor) else x * factor + summand
    zero, one = torch.zeros_like(factor), torch.ones_like(factor)
    return F.batch_norm(x, zero, one, factor, summand, training=False, eps=0.0)


def propagate_statistics(
    network: torch.nn.Module, mean: Float[Tensor, " channels"], var: Float[Tensor, " channels"]
) -> Moments:
    """Statistics of the network's output over a data set, one mean and variance a channel.

    Args:
        network: of layers over moments; those without a rule for statistics raise.
        mean: the data's mean, a channel each, shape ``(C,)``.
        var: the data's variance, shape ``(C,)``.

    Every :class:`Normalize` in it keeps these statistics.

    Raises:
        InputError: if the shapes differ, a variance is negative, or a layer has no such rule.
    """
    try:
        return _propagated(network, mean, var)
    finally:
        _settle(network)


def _propagated(network: torch.nn.Module, mean: Tensor, var: Tensor) -> Moments:
    """The same, and every :class:`Normalize` keeps this pass's graph until it is settled."""
    check("propagate_statistics", Moments(mean, var))
    found = network(channels(mean, var, network))
    return found.moments() if isinstance(found, Channels) else as_moments("propagate_statistics", found)


def _settle(network: torch.nn.Module) -> None:
    for part in network.modules():
        if isinstance(part, Normalize):
            part._live = None


class AnalyticNormalization(Module):
    """A network with :class:`Normalize` layers, and the data's statistics that they are computed from.

    Args:
        network: layers over moments.
        mean: the data's mean a channel, shape ``(C,)`` or a float for one channel.
        var: the data's variance, likewise.

    Both become buffers of the dtype and on the device of the network's parameters.

    >>> from momentgen import nn
    >>> net = nn.Sequential(nn.Conv2d(1, 32, 5, bias=False), nn.Normalize(32), nn.LeakyReLU())
    >>> net = nn.AnalyticNormalization(net, mean=0.1307, var=0.0949)
    """

    def __init__(self, network: torch.nn.Module, mean: Tensor | float, var: Tensor | float) -> None:
        super().__init__()
        self.network = network
        own = next(filter(torch.is_floating_point, network.parameters()), torch.empty(0))
        self.register_buffer("data_mean", torch.as_tensor(mean).to(own).reshape(-1))
        self.register_buffer("data_var", torch.as_tensor(var).to(own).reshape(-1))
        self.refresh()

    def refresh(self) -> None:
        """Bring the kept statistics up to date with the parameters, without gradients."""
        with torch.no_grad():
            propagate_statistics(self.network, self.data_mean, self.data_var)  # type: ignore[arg-type]

    def forward(self, x: Any) -> Any:
        """The network's output; in training, by statistics of its present parameters."""
        if not self.training or isinstance(x, Channels):
            return self.network(x)
        try:
            _propagated(self.network, self.data_mean, self.data_var)  # type: ignore[arg-type]
            return self.network(x)
        finally:
            _settle(self.network)  # the graph of this step ends with it


def initialise_analytically(
    network: torch.nn.Module, mean: Float[Tensor, " channels"], var: Float[Tensor, " channels"]
) -> Moments:
    """Rescale every Linear and convolution so that its output has mean 0 and variance 1 over the data set.

    It works layer by layer, as the statistics pass through.  Weights are divided by the propagated standard deviation,
    and the bias removes the mean.  A layer without a bias keeps its mean.

    Args:
        network: of layers over moments, without :class:`Normalize` layers.
        mean: the data's mean per channel, shape ``(C,)``.
        var: the data's variance, shape ``(C,)``.

    Returns:
        The propagated statistics of the output, after rescaling.

    Raises:
        InputError: as :func:`propagate_statistics`; or if a layer's output does not vary.
    """
    kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    handles = [part.register_forward_hook(_rescale) for part in network.modules() if isinstance(part, kinds)]
    try:
        with torch.no_grad():
            return propagate_statistics(network, mean, var)
    finally:
        for handle in handles:
            handle.remove()


def _rescale(layer: Any, _: Any, out: Any) -> Any:
    mean, var = out.moments() if isinstance(out, Channels) else out
    if not bool((var > 0).all()):
        raise InputError(f"initialise_analytically: an output of {type(layer).__name__} does not vary over the data")
    std = var.sqrt()
    layer.weight.div_(std.view(-1, *[1] * (layer.weight.dim() - 1)))
    if layer.bias is not None:
        layer.bias.sub_(mean).div_(std)
    rescaled = (mean / std if layer.bias is None else torch.zeros_like(std), torch.ones_like(std))
    return out.by_moments(lambda mean, var: rescaled) if isinstance(out, Channels) else Moments(*rescaled)
