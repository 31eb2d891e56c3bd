"""What follows from the numbers that a tridiagonal posterior learns besides its means: τ, ρ, the Cholesky factor.

The first stage of :mod:`momentgen.inference.tridiagonal`, which has the formulas.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.values import readable

__all__ = [
    "LARGEST_GAMMA",
    "LEAST_DELTA",
    "LEAST_MEAN",
    "Correlation",
    "Factor",
    "limited_delta",
    "limited_gamma",
    "log",
    "log1p",
    "rho_of",
    "scalar",
    "tau_and_slope",
]

#: log 2^-56: where a power of x is less, d_k is its limit to the last bit of float64
LAST_BIT = -56 * math.log(2)
#: elements after which that is so for |gamma| up to 10
HEAD = 1450
#: limits of the paper's parameters; it keeps gamma also from 0, where its recursion divides by 0 and this form does not
LARGEST_GAMMA = 10.0
LEAST_DELTA = -4.600166
LEAST_MEAN = 1e-6

# Python numbers on the CPU, where torch takes longer for an operation on a scalar than for one on a hundred elements;
# tensors on other devices, where to read them would wait for the device, and under torch.compile.


def scalar(value: Tensor) -> Any:
    """A tensor of one element as a number, where that costs nothing."""
    return value.item() if value.is_cpu and readable(value) else value


def limited_delta(delta: Tensor) -> Tensor:
    """δ, at least what it counts as."""
    return delta.clamp_min(LEAST_DELTA)


def limited_gamma(gamma: Tensor) -> Tensor:
    """γ within what it counts as."""
    return gamma.clamp(-LARGEST_GAMMA, LARGEST_GAMMA)


def rho_of(gamma: Tensor) -> Tensor:
    """ρ, of γ within its limits."""
    # tanh does not cancel at 0, as sigmoid(gamma) - 1/2 does.
    return 0.5 * torch.tanh(0.5 * gamma)


def sqrt(value: Any) -> Any:
    """Of a number or tensor."""
    return value.sqrt() if isinstance(value, Tensor) else math.sqrt(value)


def log(value: Any) -> Any:
    """Of a number or tensor."""
    return value.log() if isinstance(value, Tensor) else math.log(value)


def log1p(value: Any) -> Any:
    """Of a number or tensor."""
    return value.log1p() if isinstance(value, Tensor) else math.log1p(value)


def tau_and_slope(delta: Tensor) -> tuple[Any, Any]:
    """τ and its derivative in δ."""
    limited = limited_delta(delta)
    return scalar(F.softplus(limited)), scalar(limited.sigmoid())


class Correlation:
    """What follows from ρ, in float64.  Derivatives are in ρ, except that of ρ itself.

    Attributes:
        rho: ρ.
        slope: its derivative in γ.
        root: √(1 - 4ρ²).
        limit: λ, the limit of d.
        x: (ρ/λ)².
        root_slope: derivative of ``root``.
        x_slope: derivative of ``x``.
    """

    def __init__(self, gamma: Tensor) -> None:
        rho = self.rho = scalar(rho_of(limited_gamma(gamma).double()))
        square = rho * rho
        self.slope = 0.25 - square
        self.root = 2 * sqrt((0.5 - rho) * (0.5 + rho))
        self.limit = (1 + self.root) / 2
        self.x = square / (self.limit * self.limit)
        self.root_slope = -4 * rho / self.root
        # x = 1/λ - 1
        self.x_slope = -0.5 * self.root_slope / (self.limit * self.limit)

    def head(self, count: int) -> int:
        """After how many of ``count`` elements d is λ to the last bit, at most."""
        if isinstance(self.x, Tensor):
            return min(count, HEAD)
        return min(count, 2 + int(LAST_BIT / math.log(self.x)) if self.x > 0 else 2)


class Factor:
    """The Cholesky factor of the correlation of ``count`` elements, in float64.

    The last element of each tensor stands for all further ones of the diagonal.

    Attributes:
        correlation: of which it is.
        own: √d, the diagonal.
        below: ρ/√d, the subdiagonal.
    """

    def __init__(self, count: int, correlation: Correlation, device: torch.device) -> None:
        self.correlation = correlation
        self._k = torch.arange(1, correlation.head(count) + 1, dtype=torch.float64, device=device)
        self._power = correlation.x**self._k
        d = (self._power / (1 - self._power)).mul_(correlation.root).add_(correlation.limit)
        self.own = d.sqrt_()
        self.below = correlation.rho / self.own

    def slopes(self) -> tuple[Tensor, Tensor]:
        """Derivatives of ``own`` and ``below`` in ρ."""
        of, rest = self.correlation, 1 - self._power
        power_slope = self._k * of.x ** (self._k - 1) * of.x_slope
        d_slope = (of.root_slope * self._power + of.root * power_slope / rest) / rest + 0.5 * of.root_slope
        own_slope = d_slope / (2 * self.own)
        return own_slope, (1 - own_slope * self.below) / self.own
