"""Layers that move, repeat or pad values: Flatten, Upsample, padding and their like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.nn.layer import Layer, certain, is_certain, known
from momentgen.runtime import Moments

__all__ = [
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Flatten",
    "Fold",
    "Identity",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Unflatten",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "both",
    "interpolate",
    "pad",
]


def both(function: Callable[[Tensor], Tensor], x: Moments) -> Moments:
    """``function``, which moves values and computes none, on mean and variance."""
    if is_certain(x):
        return certain(function(x.mean))
    return known(function(x.mean), function(x.var))


class _Moving(Layer):
    """A layer that moves values and computes none."""

    def moments(self, x: Moments) -> Moments:
        return both(self.plain, x)

    def statistics(self, x: Moments) -> Moments:
        return x


class Identity(_Moving, torch.nn.Identity):
    """:class:`torch.nn.Identity` over moments."""


class Flatten(_Moving, torch.nn.Flatten):
    """:class:`torch.nn.Flatten` over moments."""


class Unflatten(_Moving, torch.nn.Unflatten):
    """:class:`torch.nn.Unflatten` over moments."""


class ChannelShuffle(_Moving, torch.nn.ChannelShuffle):
    """:class:`torch.nn.ChannelShuffle` over moments."""


class PixelShuffle(_Moving, torch.nn.PixelShuffle):
    """:class:`torch.nn.PixelShuffle` over moments."""


class PixelUnshuffle(_Moving, torch.nn.PixelUnshuffle):
    """:class:`torch.nn.PixelUnshuffle` over moments."""


class Unfold(_Moving, torch.nn.Unfold):
    """:class:`torch.nn.Unfold` over moments; a value and its copies are taken as independent later."""

    def statistics(self, x: Moments) -> Moments:
        return Layer.statistics(self, x)


class Fold(_Moving, torch.nn.Fold):
    """:class:`torch.nn.Fold` over moments: sums of independent values."""

    def statistics(self, x: Moments) -> Moments:
        return Layer.statistics(self, x)


# --------------------------------------------------------------------- padding


def pad(x: Moments, pad: list[int], mode: str = "constant", value: float | None = None) -> Moments:
    """:func:`torch.nn.functional.pad` over moments; a constant is certain."""
    if is_certain(x):
        return certain(F.pad(x.mean, pad, mode, value))
    return known(F.pad(x.mean, pad, mode, value), F.pad(x.var, pad, mode, 0.0 if mode == "constant" else None))


class _ConstantPad(Layer):
    """What the paddings by a constant share."""

    def moments(self, x: Moments) -> Moments:
        return pad(x, list(self.padding), "constant", self.value)  # type: ignore[arg-type]


class ConstantPad1d(_ConstantPad, torch.nn.ConstantPad1d):
    """:class:`torch.nn.ConstantPad1d` over moments; the constant is certain."""


class ConstantPad2d(_ConstantPad, torch.nn.ConstantPad2d):
    """:class:`torch.nn.ConstantPad2d` over moments; the constant is certain."""


class ConstantPad3d(_ConstantPad, torch.nn.ConstantPad3d):
    """:class:`torch.nn.ConstantPad3d` over moments; the constant is certain."""


class ZeroPad1d(_ConstantPad, torch.nn.ZeroPad1d):
    """:class:`torch.nn.ZeroPad1d` over moments."""


class ZeroPad2d(_ConstantPad, torch.nn.ZeroPad2d):
    """:class:`torch.nn.ZeroPad2d` over moments."""


class ZeroPad3d(_ConstantPad, torch.nn.ZeroPad3d):
    """:class:`torch.nn.ZeroPad3d` over moments."""


class ReflectionPad1d(_Moving, torch.nn.ReflectionPad1d):
    """:class:`torch.nn.ReflectionPad1d` over moments; a value and its copy are taken as independent later."""


class ReflectionPad2d(_Moving, torch.nn.ReflectionPad2d):
    """:class:`torch.nn.ReflectionPad2d` over moments; a value and its copy are taken as independent later."""


class ReflectionPad3d(_Moving, torch.nn.ReflectionPad3d):
    """:class:`torch.nn.ReflectionPad3d` over moments; a value and its copy are taken as independent later."""


class ReplicationPad1d(_Moving, torch.nn.ReplicationPad1d):
    """:class:`torch.nn.ReplicationPad1d` over moments; a value and its copy are taken as independent later."""


class ReplicationPad2d(_Moving, torch.nn.ReplicationPad2d):
    """:class:`torch.nn.ReplicationPad2d` over moments; a value and its copy are taken as independent later."""


class ReplicationPad3d(_Moving, torch.nn.ReplicationPad3d):
    """:class:`torch.nn.ReplicationPad3d` over moments; a value and its copy are taken as independent later."""


class CircularPad1d(_Moving, torch.nn.CircularPad1d):
    """:class:`torch.nn.CircularPad1d` over moments; a value and its copy are taken as independent later."""


class CircularPad2d(_Moving, torch.nn.CircularPad2d):
    """:class:`torch.nn.CircularPad2d` over moments; a value and its copy are taken as independent later."""


class CircularPad3d(_Moving, torch.nn.CircularPad3d):
    """:class:`torch.nn.CircularPad3d` over moments; a value and its copy are taken as independent later."""


# ------------------------------------------------------------------ upsampling


def interpolate(
    input: Moments,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Moments:
    """:func:`torch.nn.functional.interpolate` over moments; shape ``(N, C, *)``.

    Nearest copies.  The linear and cubic modes weigh each dimension's values by a matrix, whose squares weigh the
    variances; exact for independent inputs.

    Raises:
        InputError: for mode ``area``.
    """
    options: dict[str, Any] = {"recompute_scale_factor": recompute_scale_factor, "antialias": antialias}
    mean = F.interpolate(input.mean, size, scale_factor, mode, align_corners, **options)
    if is_certain(input):
        return certain(mean)
    if mode in ("nearest", "nearest-exact"):
        return known(mean, F.interpolate(input.var, size, scale_factor, mode, align_corners, **options))
    if mode not in ("linear", "bilinear", "trilinear", "bicubic"):
        raise InputError(f"interpolate: no rule for moments in mode {mode!r}; an adaptive average pool may be meant")
    var, dims = input.var, input.mean.dim() - 2
    kernel = "bicubic" if mode == "bicubic" else "bilinear"
    for d in range(dims):
        n, wanted = var.shape[2 + d], mean.shape[2 + d]
        unit = torch.eye(n, dtype=var.dtype, device=var.device)[None, None]
        if scale_factor is None:
            weights = F.interpolate(unit, (wanted, n), None, kernel, align_corners, antialias=antialias)
        else:
            factor = scale_factor[d] if isinstance(scale_factor, tuple | list) else scale_factor
            weights = F.interpolate(unit, None, (factor, 1.0), kernel, align_corners, **options)
        var = (var.movedim(2 + d, -1) @ weights[0, 0].square().T).movedim(-1, 2 + d)
    return known(mean, var)


class _Upsample(Layer):
    """What the upsamplings share."""

    def moments(self, x: Moments) -> Moments:
        own = cast(Any, self)
        return interpolate(x, own.size, own.scale_factor, own.mode, own.align_corners, own.recompute_scale_factor)


class Upsample(_Upsample, torch.nn.Upsample):
    """:class:`torch.nn.Upsample` over moments; every mode exact for independent inputs."""


class UpsamplingNearest2d(_Upsample, torch.nn.UpsamplingNearest2d):
    """:class:`torch.nn.UpsamplingNearest2d` over moments."""


class UpsamplingBilinear2d(_Upsample, torch.nn.UpsamplingBilinear2d):
    """:class:`torch.nn.UpsamplingBilinear2d` over moments."""
