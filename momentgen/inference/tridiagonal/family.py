"""The posterior ``Tridiagonal``: its parameters and their limits."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.posterior import Posterior
from momentgen.inference.tridiagonal.correlation import (
    LARGEST_GAMMA,
    LEAST_DELTA,
    LEAST_MEAN,
    limited_delta,
    limited_gamma,
    rho_of,
)
from momentgen.inference.tridiagonal.gradients import Draw, LogDet, Trace

__all__ = ["Tridiagonal"]


class Tridiagonal(Posterior):
    """Normal elements with standard deviations τ|mᵢ| and correlation ρ between neighbours in flattened order.

    Two numbers are learnt besides the means: δ, τ = softplus(δ), and γ, ρ = sigmoid(γ) - 1/2 (equations 22, 23).  They
    are bounded as in the paper.  δ counts as at least -4.600166, hence τ as at least 0.01.  |γ| counts as at most 10,
    and |mᵢ| in the standard deviation as at least 1e-6.  Gradients of δ and γ pass through.

    Args:
        tau: initial τ, from 0.01.
        rho: initial ρ, of at most 0.49995 in absolute value.
        rate: factor on γ's learning rate, the paper's κ.

    Raises:
        InputError: for τ or ρ outside these ranges.

    >>> posterior = Tridiagonal(tau=0.5, rho=-0.25).of(torch.nn.Parameter(torch.tensor([1.0, 2.0, -4.0])))
    >>> posterior.var.detach()
    tensor([0.2500, 1.0000, 4.0000])
    >>> posterior.neighbour().detach()
    tensor([-0.1250, -0.5000])
    """

    independent = False
    delta: torch.nn.Parameter
    gamma: torch.nn.Parameter

    def __init__(self, tau: float = 0.05, rho: float = 0.01, rate: float = 1.0) -> None:
        super().__init__()
        least, largest = math.log1p(math.exp(LEAST_DELTA)), 1 / (1 + math.exp(-LARGEST_GAMMA)) - 0.5
        if not least * (1 - 1e-6) <= tau < math.inf:
            raise InputError(f"Tridiagonal: expected tau of at least {least:.4g} and finite, got {tau!r}")
        if not abs(rho) <= largest:
            raise InputError(f"Tridiagonal: expected rho of at most {largest:.6g} in absolute value, got {rho!r}")
        if not 0 < rate < math.inf:
            raise InputError(f"Tridiagonal: expected a positive rate, got {rate!r}")
        self._tau, self._rho = tau, rho
        self.LEARNING_RATES = {"gamma": rate}

    def _begin(self) -> None:
        delta = math.log(math.expm1(self._tau)) if self._tau < 30 else self._tau
        gamma = math.log((0.5 + self._rho) / (0.5 - self._rho))
        for name, value in (("delta", delta), ("gamma", gamma)):
            setattr(self, name, torch.nn.Parameter(self.mean.new_tensor(value)))

    def extra_repr(self) -> str:
        return "" if "mean" in self._parameters else f"tau={self._tau}, rho={self._rho}"

    @property
    def tau(self) -> Tensor:
        """τ: standard deviation of an element over its mean's absolute value, a scalar."""
        self._known_mean()
        # The gradient passes through the limit.
        return F.softplus(self.delta + (limited_delta(self.delta) - self.delta).detach())

    @property
    def rho(self) -> Tensor:
        """ρ: correlation of neighbours, a scalar."""
        self._known_mean()
        return rho_of(self.gamma + (limited_gamma(self.gamma) - self.gamma).detach())

    def _scale(self) -> Tensor:
        """|m|, at least 1e-6."""
        return self._known_mean().abs().clamp_min(LEAST_MEAN)

    @property
    def var(self) -> Tensor:
        return (self.tau * self._scale()).square()

    def neighbour(self) -> Tensor:
        scale = self._scale().flatten()
        return self.rho * self.tau.square() * scale[:-1] * scale[1:]

    def log_det(self) -> Tensor:
        return cast(Tensor, LogDet.apply(self._known_mean(), self.delta, self.gamma))

    def trace(self) -> Tensor:
        return cast(Tensor, Trace.apply(self._known_mean(), self.delta))

    def rsample(self, n: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        noise = self._normal(n, generator)
        flat = noise.reshape(*noise.shape[: noise.dim() - self.mean.dim()], -1)
        return cast(Tensor, Draw.apply(self.mean, self.delta, self.gamma, flat)).view_as(noise)
