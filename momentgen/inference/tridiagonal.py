"""``Tridiagonal``: neighbouring elements of a parameter are correlated (Posch & Pilz, "Correlated Parameters ...").

The covariance of the K elements, in flattened order, is tridiagonal with variances τ²mᵢ² and one correlation ρ.  The
paper's recursion for its Cholesky factor collapses: with λ = (1 + √(1 - 4ρ²))/2 and x = (ρ/λ)² the noise is

    w_k = m_k + τ|m_k| e_k,   e_k = √d_k ξ_k + (ρ/√d_{k-1}) ξ_{k-1},   d_k = λ (1 - x^{k+2})/(1 - x^{k+1}),  d_{-1} = ∞,

ξ standard normal, and the log determinant of the correlation is K log λ + log(1 - x^{K+1}) - log(1 - x).  So sampling,
KL and all gradients take one pass over the elements, where the paper's pseudocode takes K² for gradients; that
recursion is the oracle of the tests.  d is λ to the last bit from some element on, at the latest the 1,450th for the ρ
that are admitted.

The columns of the paper's factor have the sign of m_k m_{k+1}, those here are Cholesky's; the distribution is the same.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from momentgen.errors import InputError
from momentgen.inference.posterior import Posterior

__all__ = ["Tridiagonal"]

#: elements after which d_k is its limit, to the last bit of float64, for |gamma| up to 10: x^1450 < 2^-56
_HEAD = 2048
#: limits of the paper's parameters; it keeps gamma also from 0, where its recursion divides by 0 and this form does not
_LARGEST_GAMMA = 10.0
_LEAST_DELTA = -4.600166
_LEAST_MEAN = 1e-6


class Tridiagonal(Posterior):
    """Normal elements with standard deviations τ|mᵢ| and correlation ρ between neighbours in flattened order.

    Two numbers are learnt besides the means: δ, τ = softplus(δ), and γ, ρ = sigmoid(γ) - 1/2 (equations 22, 23).  As in
    the paper δ counts as at least -4.600166, hence τ as at least 0.01, |γ| as at most 10 and |mᵢ| in the standard
    deviation as at least 1e-6; gradients of δ and γ pass through.

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
        least, largest = math.log1p(math.exp(_LEAST_DELTA)), 1 / (1 + math.exp(-_LARGEST_GAMMA)) - 0.5
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
        return F.softplus(_held(self.delta, _LEAST_DELTA, math.inf))

    @property
    def rho(self) -> Tensor:
        """ρ: correlation of neighbours, a scalar."""
        self._known_mean()
        # tanh does not cancel at 0, as sigmoid(gamma) - 1/2 does.
        return 0.5 * torch.tanh(0.5 * _held(self.gamma, -_LARGEST_GAMMA, _LARGEST_GAMMA))

    def _scale(self) -> Tensor:
        """|m|, at least 1e-6."""
        return self._known_mean().abs().clamp_min(_LEAST_MEAN)

    @property
    def var(self) -> Tensor:
        return (self.tau * self._scale()).square()

    def neighbour(self) -> Tensor:
        scale = self._scale().flatten()
        return self.rho * self.tau.square() * scale[:-1] * scale[1:]

    def log_det(self) -> Tensor:
        count = self._known_mean().numel()
        rho = self.rho.double()
        root, limit, x = _roots(rho)
        # 1 - x = root/limit
        of_correlation = (count + 1) * limit.log() + torch.log1p(-(x ** (count + 1))) - root.log()
        of_scales = cast(Tensor, _LogSum.apply(self.mean))
        return 2 * (of_scales + count * self.tau.log()) + of_correlation.to(self.mean.dtype)

    def trace(self) -> Tensor:
        scale = self._scale().flatten()
        return self.tau.square() * torch.linalg.vecdot(scale, scale)

    def rsample(self, n: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        noise = self._normal(n, generator)
        flat = noise.reshape(*noise.shape[: noise.dim() - self.mean.dim()], -1)
        own, before = _factors(flat.shape[-1], self.rho)
        return cast(Tensor, _Draw.apply(self.mean, self.tau, own, before, flat)).view_as(noise)


def _held(value: Tensor, least: float, largest: float) -> Tensor:
    """``value`` within limits; its gradient passes through."""
    return value + (value.clamp(least, largest) - value).detach()


def _roots(rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """√(1 - 4ρ²), the limit λ of d, and x = (ρ/λ)², in float64."""
    root = ((1 - 2 * rho) * (1 + 2 * rho)).sqrt()
    limit = (1 + root) / 2
    return root, limit, (rho / limit).square()


def _factors(count: int, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Diagonal and subdiagonal of the Cholesky factor of the correlation, shapes ``(count,)``, ``(count - 1,)``.

    Both end after a few thousand elements: the last of each stands for all further ones.  Where there is one element
    the subdiagonal is empty.
    """
    wide = rho.double()
    root, limit, x = _roots(wide)
    power = x ** torch.arange(1, min(count, _HEAD) + 1, dtype=torch.float64, device=rho.device)
    d = limit + power * root / (1 - power)
    own = d.sqrt()
    return own.to(rho.dtype), (wide / own[: count - 1]).to(rho.dtype)


def _correlated(noise: Tensor, own: Tensor, before: Tensor) -> Tensor:
    """Noise whose neighbours along the last dimension are correlated, from independent noise, by the factors."""
    head = len(own)
    found = torch.empty_like(noise)
    torch.mul(noise[..., :head], own, out=found[..., :head])
    found[..., 1:head].addcmul_(noise[..., : head - 1], before[: head - 1])
    if noise.shape[-1] > head:
        torch.mul(noise[..., head:], own[-1], out=found[..., head:])
        found[..., head:].addcmul_(noise[..., head - 1 : -1], before[-1])
    return found


class _Draw(torch.autograd.Function):
    """m + τ|m| e, e the correlated noise; gradients by hand, in a third of the passes that autograd makes."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, tau: Tensor, own: Tensor, before: Tensor, noise: Tensor) -> Tensor:
        flat = mean.reshape(-1)
        correlated = _correlated(noise, own, before)
        ctx.save_for_backward(flat, tau, own, before, noise, correlated)
        ctx.shape = mean.shape
        return torch.addcmul(flat, flat.abs().clamp_min_(_LEAST_MEAN).mul_(tau), correlated)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        flat, tau, own, before, noise, correlated = ctx.saved_tensors
        scale = flat.abs().clamp_min_(_LEAST_MEAN)
        of_noise = grad * scale
        of_tau = (of_noise * correlated).sum()
        head, of_noise = len(own), of_noise.mul_(tau)
        of_own, of_before = torch.zeros_like(own), torch.zeros_like(before)
        over = tuple(range(noise.dim() - 1))
        of_own += _summed(of_noise[..., :head] * noise[..., :head], over)
        of_before[: head - 1] += _summed(of_noise[..., 1:head] * noise[..., : head - 1], over)
        if noise.shape[-1] > head:
            of_own[-1] += (of_noise[..., head:] * noise[..., head:]).sum()
            of_before[-1] += (of_noise[..., head:] * noise[..., head - 1 : -1]).sum()
        slope = torch.sign(flat).mul_(tau).mul_(scale > _LEAST_MEAN)
        of_mean = _summed(torch.addcmul(grad, grad * correlated, slope), over)
        return of_mean.view(ctx.shape), of_tau, of_own, of_before, None


def _summed(value: Tensor, over: tuple[int, ...]) -> Tensor:
    return value.sum(over) if over else value


class _LogSum(torch.autograd.Function):
    """Sum of log |m|, |m| at least 1e-6."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor) -> Tensor:
        ctx.save_for_backward(mean)
        return mean.abs().clamp_min_(_LEAST_MEAN).log_().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (mean,) = ctx.saved_tensors
        return torch.where(mean.abs() > _LEAST_MEAN, grad / mean, 0)
