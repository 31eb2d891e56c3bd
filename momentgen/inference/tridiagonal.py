"""``Tridiagonal``: neighbouring elements of a parameter are correlated (Posch & Pilz, "Correlated Parameters ...").

The covariance of the K elements, in flattened order, is tridiagonal with variances τ²mᵢ² and one correlation ρ.  The
paper draws by a recursion for its Cholesky factor.  Here the noise is a moving average, which has the same covariance:
with ρ = t/(1 + t²), x = t² and K + 1 standard normal numbers ξ,

    w_k = m_k + τ|m_k| (ξ_k + t ξ_{k-1})/√(1 + x),

and the log determinant of the correlation is log(1 - x^{K+1}) - log(1 - x) - K log(1 + x).  So sampling, KL and all
gradients take one pass over the elements.  The paper's pseudocode takes K² for gradients.  Of the paper's parameter γ,
with ρ = sigmoid(γ) - 1/2, t is tanh(γ/4).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.posterior import Posterior

#: limits of the paper's parameters; it keeps gamma also from 0, where its recursion divides by 0 and this form does not
_LARGEST_GAMMA = 10.0
_LEAST_DELTA = -4.600166
_LEAST_MEAN = 1e-6


class Tridiagonal(Posterior):
    """Normal elements with standard deviations τ|mᵢ| and correlation ρ between neighbours in flattened order.

    Two numbers are learnt besides the means: δ, τ = softplus(δ), and γ, ρ = sigmoid(γ) - 1/2 (equations 22, 23).  They
    are bounded as in the paper.  δ counts as at least -4.600166, hence τ as at least 0.01.  |γ| counts as at most 10,
    and |mᵢ| in the standard deviation as at least 1e-6.  Gradients of δ and γ pass through.

    Args:
        tau: initial τ, from 0.01.
        rho: initial ρ, of at most 0.49995 in absolute value.
        rate: factor on γ's learning rate, the paper's κ; with 0, ρ stays as given.

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
        if not 0 <= rate < math.inf:
            raise InputError(f"Tridiagonal: expected a rate of at least 0, got {rate!r}")
        self._tau, self._rho = tau, rho
        self.LEARNING_RATES = {"gamma": rate}

    def _begin(self) -> None:
        delta = math.log(math.expm1(self._tau)) if self._tau < 30 else self._tau
        gamma = math.log((0.5 + self._rho) / (0.5 - self._rho))
        for name, value in (("delta", delta), ("gamma", gamma)):
            setattr(self, name, torch.nn.Parameter(self.mean.new_tensor(value), self.LEARNING_RATES.get(name, 1.0) > 0))

    def extra_repr(self) -> str:
        return "" if "mean" in self._parameters else f"tau={self._tau}, rho={self._rho}"

    @property
    def tau(self) -> Tensor:
        """τ: standard deviation of an element over its mean's absolute value, a scalar."""
        self._known_mean()
        return F.softplus(_passing(self.delta, _LEAST_DELTA, math.inf))

    @property
    def rho(self) -> Tensor:
        """ρ: correlation of neighbours, a scalar."""
        t = self._t(torch.float64)
        return (t / (1 + t.square())).to(self._known_mean().dtype)

    def _t(self, dtype: torch.dtype) -> Tensor:
        """t, in float64 where the determinant is asked for: near ρ = ±1/2 its gradient depends on the last bits."""
        return torch.tanh(0.25 * _passing(self.gamma.to(dtype), -_LARGEST_GAMMA, _LARGEST_GAMMA))

    def _scale(self) -> Tensor:
        """|m|, at least 1e-6."""
        # Its backward pass takes one tensor, that of clamp_min two.
        return F.threshold(self._known_mean().abs(), _LEAST_MEAN, _LEAST_MEAN)

    def _squares(self) -> Tensor:
        """m², at least 1e-12."""
        return F.threshold(self._known_mean().square(), _LEAST_MEAN**2, _LEAST_MEAN**2)

    @property
    def var(self) -> Tensor:
        return self.tau.square() * self._squares()

    def neighbour(self) -> Tensor:
        scale = self._scale().flatten()
        return self.rho * self.tau.square() * scale[:-1] * scale[1:]

    def log_det(self) -> Tensor:
        scale, x = self._scale(), self._t(torch.float64).square()
        count = scale.numel()
        of_correlation = torch.log1p(-(x ** (count + 1))) - torch.log1p(-x) - count * torch.log1p(x)
        return (2 * (scale.log().sum() + count * self.tau.log()) + of_correlation).to(scale.dtype)

    def trace(self) -> Tensor:
        return self._squares().sum() * self.tau.square()

    def rsample(self, n: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        noise = self._noise(n, generator)
        t = self._t(torch.promote_types(noise.dtype, torch.float32))
        own = self.tau * (1 + t.square()).rsqrt()
        own, below = own.to(noise.dtype), (t * own).to(noise.dtype)
        correlated = (own * noise[..., 1:]).addcmul_(below, noise[..., :-1])  # one array less is a tenth of the time
        return torch.addcmul(self.mean, self._scale(), correlated.view(*noise.shape[:-1], *self.mean.shape))

    def _noise(self, n: int | None, generator: torch.Generator | None) -> Tensor:
        """Standard normal numbers, ``(n, K + 1)`` or ``(K + 1,)``."""
        mean = self._known_mean()
        shape = (mean.numel() + 1,) if n is None else (n, mean.numel() + 1)
        return torch.randn(shape, dtype=mean.dtype, device=mean.device, generator=generator)


def _passing(value: Tensor, least: float, largest: float) -> Tensor:
    """A value within limits, through which gradients pass."""
    fixed = value.detach()
    return value + (fixed.clamp(least, largest) - fixed)
