"""``HeteroscedasticGaussian``: a network with two heads, of which the second says how noisy a target is.

``KnownNoise`` is for targets that were measured with errors of known size, ``Censored`` for those of which some are
bounds.

Outputs f and g of shape ``(..., 2k)``: the first k are means of targets, the others logarithms of the noise's variance,
log σ² = g.  Both are random where weights are.  With f and g normal, E exp(±g) is known, so that the data term of the
bound is in closed form.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.likelihood import Gaussian, Likelihood
from momentgen.inference.normal_expectations import at_nodes, log_ndtr, mean_at_nodes
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.inputs import readable

_LOG_2_PI = math.log(2 * math.pi)


class HeteroscedasticGaussian(Likelihood):
    """Numbers with normal noise that depends on the input: y_k = f_k + noise of variance exp(g_k).

    A network for k targets has 2k outputs: f, then g.  ``expected_log_prob`` and ``predictive`` are exact for normal f
    and g.  They are independent of each other, as ``ap2`` takes them, or have the covariance of ``JointMoments``.
    ``log_z`` is a quadrature over g, and takes the targets as independent of each other.

    Raises:
        InputError: by the methods, for an odd number of outputs.

    >>> output = Moments(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]]))
    >>> HeteroscedasticGaussian().expected_log_prob(output, torch.tensor([[0.0]]))
    tensor([-2.4189])
    >>> HeteroscedasticGaussian().predictive(output).var
    tensor([[3.]])
    """

    def _heads(self, method: str, output: Moments | Tensor) -> tuple[Moments, Moments, Tensor]:
        """Moments of f and of g, and the covariance of each f with its g."""
        moments = self._moments(method, output)
        if moments.mean.shape[-1] % 2:
            raise InputError(
                f"HeteroscedasticGaussian.{method}: expected outputs of shape (..., 2k), means and log variances, got "
                f"{tuple(moments.mean.shape)}"
            )
        (m, g), (v, w) = moments.mean.chunk(2, -1), moments.var.chunk(2, -1)
        covariance = torch.zeros_like(v)
        if isinstance(moments, JointMoments):
            batch = moments.factor.dim() - 2
            first, second = moments.factor.unflatten(-1, moments.mean.shape[batch:]).chunk(2, -1)
            covariance = (first * second).sum(batch)
        return Moments(m, v), Moments(g, w), covariance

    def expected_log_prob(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        """E log N(y; F, exp(G)), exact for normal F and G: exp(-G) moves F's mean by their covariance."""
        (mean, var), (g, spread), covariance = self._heads("expected_log_prob", output)
        square = (self._fitting(y, mean.shape, mean.device) - mean + covariance).square() + var
        return -0.5 * (_LOG_2_PI + g + square * (0.5 * spread - g).exp()).sum(-1)

    def log_z(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        """Log E N(y; F, exp(G)), by quadrature over G."""
        (mean, var), (g, spread), covariance = self._heads("log_z", output)
        y = self._fitting(y, mean.shape, mean.device)
        heads, weights = at_nodes(g, spread)
        slope = torch.where(spread > 0, covariance / torch.where(spread > 0, spread, 1), 0)
        means = mean[..., None] + slope[..., None] * (heads - g[..., None])
        total = (var - slope * covariance).clamp_min(0)[..., None] + heads.exp()
        logs = -0.5 * (_LOG_2_PI + total.log() + (y[..., None] - means).square() / total)
        return (logs + weights.log()).logsumexp(-1).sum(-1).to(mean.dtype)

    def expected(self, output: Moments | Tensor) -> Moments:
        return self._heads("expected", output)[0]

    def predictive(self, output: Moments | Tensor) -> Moments:
        """Mean and *variance* of y, noise included: Var F + E exp(G)."""
        (mean, var), (g, spread), _ = self._heads("predictive", output)
        return Moments(mean, var + (g + 0.5 * spread).exp())

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        (mean, _), (g, _), _ = self._heads("log_prob", f)
        y = self._fitting(y, mean.shape, mean.device)
        return -0.5 * (_LOG_2_PI + g + (y - mean).square() * (-g).exp()).sum(-1)


class Told(Gaussian):
    """Normal noise, with observations ``(..., 2k)``: k values, then a number of each that tells more of it."""

    def _pair(self, y: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        values, told = self._fitting(y, torch.Size((*shape[:-1], 2 * shape[-1])), y.device).chunk(2, -1)
        return values, told

    log_prob = Likelihood.log_prob


class Censored(Told):
    """Numbers with normal noise, of which some are known as bounds only; logarithms of survival times, for example.

    Observations are of shape ``(..., 2k)``: k values, then a number for each.  It is 0 where the value was seen, 1
    where the true one is larger, and -1 where it is smaller.

    Arguments are those of :class:`Gaussian`; the noise is no Gamma.

    >>> output = Moments(torch.tensor([[1.0]]), torch.tensor([[3.0]]))
    >>> Censored(var=1.0).log_z(output, torch.tensor([[0.0, 1.0]])).exp()  # Phi(1/2)
    tensor([0.6915])
    """

    def _split(self, y: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        values, side = self._pair(y, shape)
        if readable(y) and not bool((values.isfinite() & ((side == 0) | (side.abs() == 1))).all()):
            raise InputError("Censored: expected finite values, then 0 for seen, 1 for larger and -1 for smaller")
        return values, side

    def expected_log_prob(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        mean, var = self._moments("expected_log_prob", output)
        (y, side), noise = self._split(y, mean.shape), self._noise(self.var, mean)
        seen = -0.5 * (_LOG_2_PI + noise.log() + ((y - mean).square() + var) / noise)
        beyond = mean_at_nodes(log_ndtr, side * (mean - y) / noise.sqrt(), var / noise)
        return torch.where(side == 0, seen, beyond).sum(-1)

    def log_z(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        mean, var = self._moments("log_z", self._independent(output))
        (y, side), total = self._split(y, mean.shape), var + self._noise(self.var, mean)
        seen = -0.5 * (_LOG_2_PI + total.log() + (y - mean).square() / total)
        return torch.where(side == 0, seen, torch.special.log_ndtr(side * (mean - y) / total.sqrt())).sum(-1)


class KnownNoise(Told):
    """Numbers with normal noise, of which each datum tells a part: y_k = f_k + noise + its own noise.

    Observations are of shape ``(..., 2k)``: k values, then the *variances* of their own noise.  ``var`` is that of the
    noise which all have besides.  Predictions are of values without noise of their own.

    >>> output = Moments(torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    >>> KnownNoise(var=0.25).expected_log_prob(output, torch.tensor([[0.0, 0.75]]))
    tensor([-2.4189])
    """

    def _split(self, y: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        values, own = self._pair(y, shape)
        return values, own + self._noise(self.var, values)

    def expected_log_prob(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        mean, var = self._moments("expected_log_prob", output)
        y, noise = self._split(y, mean.shape)
        return -0.5 * (_LOG_2_PI + noise.log() + ((y - mean).square() + var) / noise).sum(-1)

    def log_z(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        mean, var = self._moments("log_z", output)
        y, noise = self._split(y, mean.shape)
        return -0.5 * (_LOG_2_PI + (noise + var).log() + (y - mean).square() / (noise + var)).sum(-1)
