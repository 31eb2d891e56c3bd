"""How fast f grows far out on either side: up to where it is a number in float64, and like exp(rate |x|) before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from momentgen.compiler.toolchain.arrays import F64

FARTHEST = 1e6  # |x| looked at
_LARGEST = 1e290  # |f| up to which products with weights are in range
FOLDS = 9.0  # powers of e that an f like exp(b x) may grow by for what is relative to its size
_GRID = np.geomspace(1e-3, FARTHEST, 2001)
_HALVINGS, _BESIDE = 60, np.linspace(0.95, 1.0, 33)


@dataclass(frozen=True)
class Growth:
    """On the left and on the right.

    Attributes:
        ends: where f leaves the range, or the farthest x looked at.
        rates: b with f about exp(b |x|) before that; 0 where f stays in range.
    """

    ends: tuple[float, float]
    rates: tuple[float, float]


def growth(f: Callable[[F64], F64]) -> Growth:
    """The growth of a function on arrays.

    >>> growth(np.exp).rates
    (0.0, 1.0)
    """
    (left, down), (right, up) = (_side(f, sign) for sign in (-1.0, 1.0))
    return Growth((-left, right), (down, up))


def _side(f: Callable[[F64], F64], sign: float) -> tuple[float, float]:
    """How far f stays in range on a side, and its rate."""
    with np.errstate(all="ignore"):
        outside = np.flatnonzero(np.abs(f(sign * _GRID)) > _LARGEST)
        if not outside.size:
            return FARTHEST, 0.0
        far = float(_GRID[outside[0]])
        near = float(_GRID[outside[0] - 1]) if outside[0] else 0.0
        for _ in range(_HALVINGS):
            middle = (near + far) / 2
            inside = np.abs(f(np.array([sign * middle]))).item() <= _LARGEST
            near, far = (middle, far) if inside else (near, middle)
        last, half = (np.log(np.abs(f(sign * end * _BESIDE)).max()) for end in (near, near / 2))
    return near, float(f"{max(0.0, (last - half) / (near / 2)):.3g}")
