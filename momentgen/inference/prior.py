"""Priors of parameters, and the divergence of normal posteriors from them.

A prior here takes the parameters as independent.  So it needs only a posterior's means, variances and covariance
determinant.  With q the posterior and q_i its marginals,

    KL(q || p) = sum_i KL(q_i || p) + (sum_i log var_i - log det) / 2.

The last term, the cost of correlations, is never negative.  Posteriors take their divergence from here
(``posterior.kl(prior)``); the evidence lower bound adds those up.

Divergences are in nats, summed over all parameters: tensors without dimensions, of the posterior's dtype.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import momentgen.generated
from momentgen.errors import InputError
from momentgen.inference.gamma import positive
from momentgen.laws.values import check
from momentgen.runtime import Moments

if TYPE_CHECKING:
    from jaxtyping import Float

    from momentgen.inference.posterior import Posterior


class Prior(nn.Module):
    """What all priors have.

    Attributes:
        exact: whether :meth:`kl_normal` is the divergence; else its class says what it is.
    """

    exact: bool = True

    def kl_normal(
        self, mean: Float[Tensor, "*shape"], var: Float[Tensor, "*shape"], generator: torch.Generator | None = None
    ) -> Float[Tensor, ""]:
        """Divergence of independent normal parameters from this prior, summed.

        Args:
            mean: means, any shape, floating point.
            var: *variances*, of the same shape, dtype and device, not negative; 0 makes the divergence infinite, if
                the class does not say otherwise.
            generator: of random numbers, where the divergence is sampled.

        Raises:
            InputError: if mean and variance do not fit each other or the prior, or a variance is negative.
        """
        where = f"{type(self).__name__}.kl_normal"
        mean, var = check(where, Moments(mean, var))
        return self._kl(mean, var, var.log().sum(), generator)

    def kl(self, posterior: Posterior, generator: torch.Generator | None = None) -> Tensor:
        """Divergence of a normal posterior, correlated or not, from this prior; +inf where its covariance is singular.

        Raises:
            InputError: as :meth:`kl_normal`.
        """
        return self._kl(posterior.mean, posterior.var, posterior.log_det(), generator)

    def _kl(self, mean: Tensor, var: Tensor, log_det: Tensor, generator: torch.Generator | None) -> Tensor:
        """The divergence, given the logarithm of the covariance's determinant: one pass less than from variances."""
        raise NotImplementedError


class Normal(Prior):
    """Independent normal parameters.

    Args:
        mean: a number, or a tensor that broadcasts with the parameters.
        var: *variance*, positive, likewise; 1 if neither it nor ``std`` is given.
        std: standard deviation, in place of ``var``.

    Raises:
        InputError: if the variance is not positive and finite, the mean not finite, or both var and std are given.

    >>> Normal(std=2.0).kl_normal(torch.tensor([2.0]), torch.tensor([4.0]))
    tensor(0.5000)
    """

    mean: Tensor
    var: Tensor

    def __init__(
        self, mean: float | Tensor = 0.0, var: float | Tensor | None = None, std: float | Tensor | None = None
    ) -> None:
        super().__init__()
        if var is not None and std is not None:
            raise InputError("Normal: expected either var or std, got both")
        centre = torch.as_tensor(mean, dtype=torch.float64).detach().clone()
        if not bool(centre.isfinite().all()):
            raise InputError(f"Normal: expected a finite mean, got {mean!r}")
        self.register_buffer("mean", centre)
        if std is not None:
            self.register_buffer("var", positive("Normal", "std", std).square())
        else:
            self.register_buffer("var", positive("Normal", "var", 1.0 if var is None else var))

    def kl(self, posterior: Posterior, generator: torch.Generator | None = None) -> Tensor:
        mean = posterior.mean
        if self.var.numel() > 1:
            return self._kl(mean, posterior.var, posterior.log_det(), generator)
        self._check(mean)
        # Sums first: parameters are many, and each pass over them counts.
        off = (mean - self.mean.to(mean)).flatten()
        prior_var = self.var.to(mean).squeeze()
        square = (posterior.trace() + torch.linalg.vecdot(off, off)) / prior_var
        return (square + mean.numel() * (prior_var.log() - 1) - posterior.log_det()) / 2

    def _kl(self, mean: Tensor, var: Tensor, log_det: Tensor, generator: torch.Generator | None) -> Tensor:
        self._check(mean)
        prior_var = self.var.to(mean)
        of_prior = prior_var.log().sum() * (mean.numel() / prior_var.numel())
        square = (var + (mean - self.mean.to(mean)).square()) / prior_var
        return (square.sum() - mean.numel() + of_prior - log_det) / 2

    def _check(self, mean: Tensor) -> None:
        try:
            fits = torch.broadcast_shapes(self.mean.shape, self.var.shape, mean.shape) == mean.shape
        except RuntimeError:
            fits = False
        if not fits:
            raise InputError(
                f"Normal: expected parameters that the prior's mean {tuple(self.mean.shape)} and variance "
                f"{tuple(self.var.shape)} broadcast with, got {tuple(mean.shape)}"
            )

    def extra_repr(self) -> str:
        return f"mean={self.mean.tolist()}, var={self.var.tolist()}" if self.mean.numel() == 1 else ""


class _Sampled(Prior):
    """A prior of a log density, whose expectation is an average over reparameterised draws, without bias."""

    exact = False

    def __init__(self, samples: int) -> None:
        super().__init__()
        if not isinstance(samples, int) or samples < 1:
            raise InputError(f"{type(self).__name__}: expected at least one sample, got {samples!r}")
        self.samples = samples

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density of each value."""
        raise NotImplementedError

    def _kl(self, mean: Tensor, var: Tensor, log_det: Tensor, generator: torch.Generator | None) -> Tensor:
        entropy = (log_det + mean.numel() * (1 + math.log(2 * math.pi))) / 2
        std, expected = var.sqrt(), torch.zeros_like(entropy)
        for _ in range(self.samples):
            noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
            expected = expected + self.log_prob(mean + std * noise).sum()
        return -entropy - expected / self.samples


class SampledPrior(_Sampled):
    """Any distribution of each parameter; Student's t of few degrees of freedom is a proper :class:`LogUniform`.

    The divergence is *sampled*: ``exact`` is False.

    Args:
        law: a ``torch.distributions.Distribution`` of single values over all numbers.
        samples: how many draws.

    >>> SampledPrior(torch.distributions.StudentT(1.0)).log_prob(torch.tensor(0.0)).exp()  # 1/π
    tensor(0.3183)
    """

    def __init__(self, law: Distribution, samples: int = 1) -> None:
        super().__init__(samples)
        self.law = law

    def log_prob(self, x: Tensor) -> Tensor:
        return self.law.log_prob(x)


class NormalMixture(_Sampled):
    """A mixture of two normal distributions of mean 0, one wide and one narrow: the scale mixture of Bayes by Backprop.

    The divergence is *sampled*: ``exact`` is False.

    Args:
        pi: probability of the first component, between 0 and 1.
        var1: *variance* of the first component, positive.
        var2: *variance* of the second component, positive.
        samples: how many draws.

    Source: Blundell et al. 2015, Weight uncertainty in neural networks, (7); they sample the entropy too.

    Raises:
        InputError: for arguments out of their range.

    >>> prior = NormalMixture(0.5, 1.0, 0.0025)
    >>> prior.exact, prior.kl_normal(torch.zeros(2), torch.ones(2)).shape
    (False, torch.Size([]))
    """

    def __init__(self, pi: float = 0.5, var1: float = 1.0, var2: float = math.exp(-12), samples: int = 1) -> None:
        super().__init__(samples)
        if not 0 < pi < 1:
            raise InputError(f"NormalMixture: expected pi between 0 and 1, got {pi!r}")
        self.pi = float(pi)
        self.var1, self.var2 = (positive("NormalMixture", *each).item() for each in (("var1", var1), ("var2", var2)))

    def log_prob(self, x: Tensor) -> Tensor:
        parts = [
            -x.square() / (2 * var) + math.log(weight) - 0.5 * math.log(2 * math.pi * var)
            for weight, var in ((self.pi, self.var1), (1 - self.pi, self.var2))
        ]
        return torch.logaddexp(*parts)

    def extra_repr(self) -> str:
        return f"pi={self.pi:g}, var1={self.var1:g}, var2={self.var2:g}, samples={self.samples}"


class LogUniform(Prior):
    """Density proportional to 1/|w|: the improper prior of variational dropout, which makes parameters sparse.

    The divergence depends on alpha = var / mean² alone, up to a constant.  The constant makes it go to 0 as alpha goes
    to infinity.  It is *approximate*: ``exact`` is False.  The formula of Molchanov et al. is off by at most 0.0095 for
    each parameter.  :meth:`kl_normal` gives 0 for a parameter of mean 0, also for a pruned one of variance 0.

    Source: Molchanov et al. 2017, Variational dropout sparsifies deep neural networks, (14).

    >>> LogUniform().kl_normal(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]))
    tensor(0.4312)
    """

    exact = False
    _K = (0.63576, 1.87320, 1.48695)

    def kl(self, posterior: Posterior, generator: torch.Generator | None = None) -> Tensor:
        independent = super().kl(posterior, generator)
        if posterior.independent:
            return independent
        log_det = posterior.log_det()
        singular = log_det == -math.inf
        correlation = (posterior.var.log().sum() - log_det) / 2
        return torch.where(singular, math.inf, independent + torch.where(singular, 0.0, correlation))

    def _kl(self, mean: Tensor, var: Tensor, log_det: Tensor, generator: torch.Generator | None) -> Tensor:
        k1, k2, k3 = self._K
        zero = mean == 0
        t = 2 * torch.where(zero, 1.0, mean).abs().log() - torch.where(zero, 1.0, var).log()  # -log alpha
        # softplus(t) is t from 20 on
        each = k1 * torch.sigmoid(k3 * t - k2) + torch.logaddexp(t, torch.zeros_like(t)) / 2
        return torch.where(zero, 0.0, each).sum()


class Horseshoe(Prior):
    """Normal parameters whose standard deviation is a scale of all times one of their group, both half-Cauchy.

    Rows or columns of a weight share a scale, so that whole units are shrunk to 0 or left alone.  The scales are random
    too: their squares have independent log-normal posteriors.  Their parameters belong to this module and are learnt
    with the others; :meth:`kl_normal` contains their divergence.  All of it is in closed form except E log(1 + u) of a
    log-normal u, which is the mean of the op ``softplus``.  One object belongs to one tensor of parameters.

    The parameters' posterior is independent of the scales (the centred form), so that it stays a plain mean field;
    Louizos et al. multiply parameters by their scales.

    Args:
        groups: how many there are.
        dim: the dimension of the parameters along which they lie: 0 of a weight ``(outputs, inputs)`` for outputs, 1
            for inputs.
        scale: scale of the half-Cauchy distribution of the scale of all; that of the groups' is 1.

    Attributes:
        log_var: means of the logarithms of the groups' squared scales, shape ``(groups,)``: low for groups to prune.

    Source: Louizos et al. 2017, Bayesian compression for deep learning; Ghosh & Doshi-Velez 2017, Model selection in
    Bayesian neural networks via horseshoe priors.

    Raises:
        InputError: for a number of groups below 1 or a scale that is not positive.

    >>> prior = Horseshoe(groups=3, dim=1)
    >>> prior.kl_normal(torch.zeros(2, 3), torch.ones(2, 3)).shape, prior.log_var.shape
    (torch.Size([]), torch.Size([3]))
    """

    def __init__(self, groups: int, dim: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        if not isinstance(groups, int) or groups < 1:
            raise InputError(f"Horseshoe: expected at least one group, got {groups!r}")
        self.groups, self.dim, self.scale = groups, dim, positive("Horseshoe", "scale", scale).item()
        self.log_var = nn.Parameter(torch.zeros(groups))
        self.log_var_spread = nn.Parameter(torch.full((groups,), math.log(0.1)))  # log of the variance of the logarithm
        self.global_log_var = nn.Parameter(torch.full((1,), 2 * math.log(self.scale)))
        self.global_log_var_spread = nn.Parameter(torch.full((1,), math.log(0.1)))

    def _kl(self, mean: Tensor, var: Tensor, log_det: Tensor, generator: torch.Generator | None) -> Tensor:
        if not -mean.dim() <= self.dim < mean.dim() or mean.shape[self.dim] != self.groups:
            raise InputError(
                f"Horseshoe: expected parameters with {self.groups} groups along dimension {self.dim}, got "
                f"{tuple(mean.shape)}"
            )
        local, whole = (
            (at.to(mean), spread.to(mean).exp())
            for at, spread in (
                (self.log_var, self.log_var_spread),
                (self.global_log_var, self.global_log_var_spread),
            )
        )
        log_var = local[0] + whole[0]  # of the groups' normal prior, in the mean
        precision = ((local[1] + whole[1]) / 2 - log_var).exp()
        others = [d for d in range(mean.dim()) if d != self.dim % mean.dim()]
        square = (var + mean.square()).sum(others) if others else var + mean.square()
        count = mean.numel() // self.groups
        parameters = (square * precision + count * (log_var - 1)).sum() - log_det
        return parameters / 2 + _of_half_cauchy(*local, 1.0) + _of_half_cauchy(*whole, self.scale)

    def extra_repr(self) -> str:
        return f"groups={self.groups}, dim={self.dim}, scale={self.scale:g}"


def _of_half_cauchy(mean: Tensor, var: Tensor, scale: float) -> Tensor:
    """Divergence of exp(N(mean, var)), summed, from the square of a half-Cauchy variable of this scale."""
    beyond = momentgen.generated.softplus(mean - 2 * math.log(scale), var).mean  # E log(1 + u / scale²)
    return (math.log(math.pi * scale) - mean / 2 - (2 * math.pi * math.e * var).log() / 2 + beyond).sum()
