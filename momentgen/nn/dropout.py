"""Dropout: multiplicative Bernoulli noise, taken analytically (Shekhovtsov & Flach 2018, section 3.2).

With q = 1 - p kept and torch's scaling by 1/q, Y = X B / q has mean m and
variance (v + p m²) / q: both terms are non-negative.  As in torch, the noise is
there in training mode and absent in evaluation.  ``ap1`` takes the mean, which
is the input itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from momentgen.nn.layer import Layer, certain, is_certain, known
from momentgen.runtime import Moments

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]

#: the value that AlphaDropout sets units to, -scale·alpha of SELU.
_ALPHA = -1.7580993408473766


class _Dropout(Layer):
    """What the dropouts share; those of whole channels have the same moments, elementwise, as ``Dropout``."""

    p: float
    elementwise = True

    def __init__(self, p: float = 0.5, inplace: bool = False, **options: Any) -> None:
        super().__init__(p, False, **options)  # the input is never overwritten

    @property
    def noisy(self) -> bool:
        return self.training and self.p > 0

    def mean_only(self, x: Tensor) -> Tensor:
        return x if not self.noisy or self.p < 1 else torch.zeros_like(x)

    def moments(self, x: Moments) -> Moments:
        if not self.noisy:
            return x
        if self.p == 1:
            return certain(torch.zeros_like(x.mean))
        kept = 1 - self.p
        noise = x.mean.square() * (self.p / kept)
        return known(x.mean, noise if is_certain(x) else x.var / kept + noise)


class Dropout(_Dropout, torch.nn.Dropout):
    """:class:`torch.nn.Dropout`, its noise analytic.

    >>> layer = Dropout(0.2)
    >>> layer(torch.tensor([1.0])).var
    tensor([0.2500])
    """


class Dropout1d(_Dropout, torch.nn.Dropout1d):
    """:class:`torch.nn.Dropout1d`: moments of each unit; that a channel's units fall together is not carried on."""


class Dropout2d(_Dropout, torch.nn.Dropout2d):
    """:class:`torch.nn.Dropout2d`: moments of each unit; that a channel's units fall together is not carried on."""


class Dropout3d(_Dropout, torch.nn.Dropout3d):
    """:class:`torch.nn.Dropout3d`: moments of each unit; that a channel's units fall together is not carried on."""


class _AlphaDropout(_Dropout):
    """``Y = a (X B + α (1 - B)) + b`` with torch's a and b: mean a q m, variance a² q (v + p (m - α)²)."""

    def mean_only(self, x: Tensor) -> Tensor:
        return self.moments(certain(x)).mean if self.noisy else x

    def moments(self, x: Moments) -> Moments:
        if not self.noisy:
            return x
        if self.p == 1:
            return certain(torch.zeros_like(x.mean))
        kept = 1 - self.p
        scale = (kept * (1 + self.p * _ALPHA**2)) ** -0.5
        noise = (x.mean - _ALPHA).square() * self.p
        return known(x.mean * (scale * kept), (x.var + noise) * (scale**2 * kept))


class AlphaDropout(_AlphaDropout, torch.nn.AlphaDropout):
    """:class:`torch.nn.AlphaDropout`, its noise analytic."""


class FeatureAlphaDropout(_AlphaDropout, torch.nn.FeatureAlphaDropout):
    """:class:`torch.nn.FeatureAlphaDropout`, its noise analytic, for each unit by itself."""
