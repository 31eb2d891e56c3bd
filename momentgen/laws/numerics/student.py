"""Quantiles of Student's t.  torch has neither its distribution function nor the inverse.

The lower tail is half the regularised incomplete beta function I_x(ν/2, 1/2) at x = ν/(ν + t²).  It is computed by its
continued fraction (NIST Digital Library of Mathematical Functions, 8.17.22).  With many degrees of freedom the quantile
is a series in 1/ν about the normal one (the same, 26.7.5 of Abramowitz and Stegun).
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

__all__ = ["student_quantile"]

#: degrees of freedom from which on the series is right to 1e-6 at eight standard deviations
_MANY: Final = 150.0
#: terms of the fraction for few degrees of freedom, and times the root of these
_TERMS, _MORE = 12, 3.0
#: logarithm of the largest quantile looked for, how often the distance to it is halved, and Newton's steps after that
_REACH, _HALVINGS, _STEPS = math.log(1e30), 9, 4


def student_quantile(df: Tensor, probability: Tensor) -> Tensor:
    """Quantiles of the standard distribution, float64; tensors broadcast."""
    df, probability = torch.broadcast_tensors(df.double(), probability.double())
    tail = probability.minimum(1 - probability)
    few = df.clamp_max(_MANY)
    low, high = torch.full_like(tail, -_REACH), torch.full_like(tail, _REACH)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beyond = _tail(few, middle.exp()) < tail
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    place = (low + high) / 2
    density = torch.lgamma((few + 1) / 2) - torch.lgamma(few / 2) - (few * math.pi).log() / 2
    for _ in range(_STEPS):  # for the logarithm of the tail, by that of the quantile
        t = place.exp()
        beyond = _tail(few, t)
        slope = t * (density - (few + 1) / 2 * (t.square() / few).log1p()).exp() / beyond
        place = (place + (beyond / tail).log() / slope).maximum(low).minimum(high)
    size = torch.where(df > _MANY, _series(df, -torch.special.ndtri(tail)), place.exp())
    return torch.where(probability < 0.5, -size, size)


def _series(df: Tensor, z: Tensor) -> Tensor:
    """The quantile with many degrees of freedom, by the normal one."""
    terms = ((1, 1), 4), ((5, 16, 3), 96), ((3, 19, 17, -15), 384), ((79, 776, 1482, -1920, -945), 92160)
    found = z
    for power, (coefficients, divisor) in enumerate(terms, 1):
        value = torch.zeros_like(z)
        for coefficient in coefficients:
            value = value * z.square() + coefficient
        found = found + value * z / (divisor * df**power)
    return found


def _tail(df: Tensor, t: Tensor) -> Tensor:
    """The probability of more than ``t``, which is not negative."""
    a, b = df / 2, torch.full_like(df, 0.5)
    x, rest = df / (df + t.square()), t.square() / (df + t.square())
    far = x < (a + 1) / (a + b + 2)  # there the fraction converges; else that of the complement does
    part = _incomplete(
        torch.where(far, a, b), torch.where(far, b, a), torch.where(far, x, rest), torch.where(far, rest, x)
    )
    return torch.where(far, part, 1 - part) / 2


def _incomplete(a: Tensor, b: Tensor, x: Tensor, rest: Tensor) -> Tensor:
    """I_x(a, b) with ``rest`` = 1 - x."""
    found = torch.ones_like(x)
    count = _TERMS + int(_MORE * float(a.max()) ** 0.5)
    for m in range(count, 0, -1):  # from the last term inwards
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        found = 1 + odd / (1 + even / found)
    scale = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b) + a * x.log() + b * rest.log()
    return (scale - a.log()).exp() / found
