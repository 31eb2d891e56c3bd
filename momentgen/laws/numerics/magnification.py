"""Samples of functions of values whose noise is below their rounding.

In float32 all samples of 1 ± 1e-8 are 1, and a function of them is rounding.  Where noise is that small beside its
value, or beside 1, a function is linear over many times its width: samples are taken further out, by a power of two,
and their deviations brought back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from momentgen.laws.numerics.root import square_root

__all__ = ["magnification", "magnified", "overall", "reduced"]

#: what deviations are magnified to, beside means: so many units of rounding, and at most so large a part
_ROUNDINGS, _LINEAR = 1024.0, 2.0**-12
_MOST_MAGNIFIED = 2.0**100


def magnification(inputs: Sequence[tuple[Tensor, Tensor]], output: tuple[Tensor, Tensor]) -> Tensor:
    """The power of two by which deviations are made larger, so that they are a thousand roundings; mostly 1.

    It is one for each value, or one for all, as the sizes given are.

    Args:
        inputs: sizes of the values and their standard deviations, for each law.
        output: likewise of the function's result.
    """
    limits = torch.finfo(output[0].dtype)
    part = min(_ROUNDINGS * limits.eps, _LINEAR)
    wanted = functools.reduce(torch.minimum, [_over(part * size, noise) for size, noise in inputs])
    wanted = torch.maximum(wanted, _over(part * output[0], output[1]))
    most = functools.reduce(torch.minimum, [_over(part * size.clamp_min(1), noise) for size, noise in inputs])
    factor = torch.minimum(wanted, most).clamp(1, min(_MOST_MAGNIFIED, limits.max / 4))
    return torch.exp2(factor.log2().ceil()).detach()


def _over(size: Tensor, noise: Tensor) -> Tensor:
    return torch.where(noise > 0, size / torch.where(noise > 0, noise, 1), 0)


def overall(value: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Size and standard deviation of all values together that have noise, a number each."""
    dtype, noisy = torch.promote_types(value.dtype, torch.float32), var > 0
    count = noisy.sum().clamp_min(1)
    size = torch.where(noisy, value.abs(), 0).sum(dtype=dtype) / count
    noise = square_root(var).sum(dtype=dtype) / count
    return size.to(value.dtype).detach(), noise.to(value.dtype).detach()


def magnified(mean: Tensor, deviations: Tensor, factor: Tensor) -> Tensor:
    """Samples, their deviations ``factor`` times what they are."""
    return torch.addcmul(mean, deviations, factor)


def reduced(samples: Tensor, at: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """Deviations of a function's samples, which were magnified.

    Args:
        samples: of the function, shape ``(k, *shape)``.
        at: the function of the means, from which magnified samples deviate.
        mean: of the function, from which samples as they are deviate.
        factor: the magnification, a power of two, so that nothing is rounded here.
    """
    inverse = 1 / factor
    return torch.addcmul(-torch.where(factor > 1, at, mean) * inverse, samples, inverse)
