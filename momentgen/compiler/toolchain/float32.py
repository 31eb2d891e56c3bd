"""Numbers as float32 holds them: rounded once, or as two words."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mpmath

__all__ = ["LARGEST", "round_float32", "split_float32"]

LARGEST = (2 - 2.0**-23) * 2.0**127


@lru_cache(maxsize=4096)
def round_float32(value: Any) -> float:
    """``value`` (float, mpf or Fraction) rounded once to the nearest float32.

    >>> round_float32(0.1)
    0.10000000149011612
    """
    with mpmath.workdps(60):
        x = mpmath.mpf(value)
        if x == 0 or not mpmath.isfinite(x):
            return float(x)
        exponent = max(int(mpmath.floor(mpmath.log(abs(x), 2))), -126)
        unit = mpmath.ldexp(1, exponent - 23)
        return float(mpmath.nint(x / unit) * unit)


@lru_cache(maxsize=4096)
def split_float32(value: Any) -> tuple[float, float]:
    """``value`` as hi + lo, two float32 numbers, to about 48 bits."""
    hi = round_float32(value)
    with mpmath.workdps(60):
        return hi, round_float32(mpmath.mpf(value) - mpmath.mpf(hi))
