"""Convolutions and transposed convolutions: affine in their input, so exact for independent inputs.

Padding that repeats inputs (``reflect``, ``replicate``, ``circular``) is the
exception where one kernel sees an input twice: the two are then taken as
independent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.nn.layer import Layer, certain, is_certain, known, once_a_batch
from momentgen.nn.linear import one_input
from momentgen.runtime import Moments

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "convolution"]


def convolution(run: Callable[..., Tensor], x: Moments, weight: Tensor, bias: Tensor | None = None) -> Moments:
    """Moments of ``run(x, weight, bias)``, a convolution or its transpose.

    Mean as ever, variance with squared weights and no bias (Shekhovtsov & Flach 2018, (7a), (7b), D.1).
    """
    mean = run(x.mean, weight, bias)
    if is_certain(x):
        return certain(mean)
    return known(mean, once_a_batch(lambda var: run(var, weight.square(), None), x.var, mean))


class _Conv(Layer):
    """What the convolutions share."""

    weight: Tensor
    bias: Tensor | None
    groups: int
    in_channels: int

    def moments(self, x: Moments) -> Moments:
        return self.affine(x, self.weight, self.bias)

    def affine(self, x: Moments, weight: Tensor, bias: Tensor | None) -> Moments:
        """The layer with another weight and bias."""
        self._check(x)
        return convolution(cast(Any, self)._conv_forward, x, weight, bias)

    def _check(self, x: Moments) -> None:
        dims = self.weight.dim()
        channels = x.mean.shape[1 - dims] if x.mean.dim() >= dims - 1 else None
        if channels != self.in_channels or x.mean.dim() > dims:
            raise InputError(
                f"{type(self).__name__}: expected {self.in_channels} channels and {dims - 2} dimensions of space, "
                f"got shape {tuple(x.mean.shape)}"
            )

    def statistics(self, x: Moments) -> Moments:
        # Every place of the kernel sees a pixel of the same statistics.
        if x.mean.shape != (self.in_channels,):
            raise InputError(
                f"{type(self).__name__}: expected {self.in_channels} channels, got shape {tuple(x.mean.shape)}"
            )
        if self.groups == 1:
            flat = self.weight.flatten(1)
            places = flat.shape[1] // self.in_channels
            mean, var = (part[:, None].expand(-1, places).reshape(-1) for part in x)
            return one_input(mean, var, flat, self.bias)
        weight = self.weight.reshape(self.groups, -1, self.weight.shape[1], self.weight[0, 0].numel())
        mean, var = (part.reshape(self.groups, -1) for part in x)
        mean = torch.einsum("goik,gi->go", weight, mean).flatten()
        var = torch.einsum("goik,gi->go", weight.square(), var).flatten()
        return known(mean if self.bias is None else mean + self.bias, var)


class Conv1d(_Conv, torch.nn.Conv1d):
    """:class:`torch.nn.Conv1d` over moments."""


class Conv2d(_Conv, torch.nn.Conv2d):
    """:class:`torch.nn.Conv2d` over moments."""


class Conv3d(_Conv, torch.nn.Conv3d):
    """:class:`torch.nn.Conv3d` over moments."""


class _ConvTranspose(_Conv):
    """What the transposed convolutions share."""

    def moments(self, x: Moments, output_size: list[int] | None = None) -> Moments:
        self._check(x)
        mean = self.plain(x.mean, output_size)
        dims, own = self.weight.dim() - 2, cast(Any, self)
        size = list(mean.shape[-dims:])
        extra = own._output_padding(x.mean, size, own.stride, own.padding, own.kernel_size, dims, own.dilation)

        def apply(var: Tensor) -> Tensor:
            squares = self.weight.square()
            return _TRANSPOSED[dims](var, squares, None, own.stride, own.padding, extra, self.groups, own.dilation)

        return known(mean, once_a_batch(apply, x.var, mean))

    def statistics(self, x: Moments) -> Moments:
        raise InputError(f"{type(self).__name__}: no rule for statistics of channels (places differ in their kernels)")


_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}


class ConvTranspose1d(_ConvTranspose, torch.nn.ConvTranspose1d):
    """:class:`torch.nn.ConvTranspose1d` over moments."""


class ConvTranspose2d(_ConvTranspose, torch.nn.ConvTranspose2d):
    """:class:`torch.nn.ConvTranspose2d` over moments."""


class ConvTranspose3d(_ConvTranspose, torch.nn.ConvTranspose3d):
    """:class:`torch.nn.ConvTranspose3d` over moments."""
