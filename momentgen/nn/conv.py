"""Convolutions and transposed convolutions: affine in their input, so exact for independent inputs.

Padding that repeats inputs (``reflect``, ``replicate``, ``circular``) is the
exception where one kernel sees an input twice: the two are then taken as
independent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.nn.layer import Layer, certain, is_certain, known
from momentgen.runtime import Moments

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "convolution"]


def convolution(apply: object, x: Moments, weight: Tensor, bias: Tensor | None, **options: object) -> Moments:
    """Moments of ``apply(x, weight, bias, **options)``, a function of torch.nn.functional such as ``conv2d``.

    Mean as ever, variance with squared weights and no bias (Shekhovtsov & Flach 2018, (7a), (7b), D.1).
    """
    run: object = apply
    if not callable(run):
        raise InputError(f"convolution: expected a function, got {type(run).__name__}")
    mean = run(x.mean, weight, bias, **options)
    if is_certain(x):
        return certain(mean)
    return known(mean, _once_a_batch(lambda var: run(var, weight.square(), None, **options), x.var, mean))


def _once_a_batch(run: object, var: Tensor, mean: Tensor) -> Tensor:
    """The variance of the output, computed once where the whole batch has one variance."""
    if var.dim() == mean.dim() and var.stride(0) == 0 and var.shape[0] > 1:
        var = var[:1]
    return run(var).expand(mean.shape)  # type: ignore[operator, no-any-return]


class _Conv(Layer):
    """What the convolutions share."""

    weight: Tensor
    bias: Tensor | None
    groups: int
    in_channels: int

    def moments(self, x: Moments) -> Moments:
        def run(value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return self._conv_forward(value, weight, bias)  # type: ignore[no-any-return, operator]

        self._check(x)
        return convolution(run, x, self.weight, self.bias)

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
        weight = self.weight.flatten(2).unflatten(0, (self.groups, -1))
        mean = torch.einsum("goik,gi->go", weight, x.mean.unflatten(0, (self.groups, -1))).flatten()
        var = torch.einsum("goik,gi->go", weight.square(), x.var.unflatten(0, (self.groups, -1))).flatten()
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
        size = list(mean.shape[2 - self.weight.dim() :])
        run = _TRANSPOSED[self.weight.dim() - 2]
        padding = self._output_padding(x.mean, size, *self._spatial(), self.weight.dim() - 2, self.dilation)  # type: ignore[operator]

        def apply(var: Tensor) -> Tensor:
            return run(  # type: ignore[no-any-return, operator]
                var, self.weight.square(), None, self.stride, self.padding, padding, self.groups, self.dilation
            )

        return known(mean, _once_a_batch(apply, x.var, mean))

    def _spatial(self) -> tuple[object, object, object]:
        return self.stride, self.padding, self.kernel_size

    def statistics(self, x: Moments) -> Moments:
        raise InputError(f"{type(self).__name__}: no rule for statistics of channels (places differ in their kernels)")


_TRANSPOSED = {
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
