"""What one datum says of the network's output: log Z, its derivatives, and the update of the noise.

For an output f ~ N(m, v), elementwise independent, and a likelihood p(y | f), Z = E p(y | f).  Probabilistic
backpropagation moves weights by the derivatives of log Z in m and v.  Expectation backpropagation uses the first and
second derivative in m.  Where Z is exact, d²log Z/dm² = 2 dlog Z/dv − (dlog Z/dm)².

The likelihoods are those of :mod:`momentgen.inference.likelihood`, whose ``log_z`` is this one where it is exact.
Here are its derivatives without autograd, and what only filtering has: Z of classes by sampling, its bound, and the
update of the noise.  ``momentgen/inference/adf/filter.c`` has the same formulas for the CPU.

Sources:

- Hernández-Lobato & Adams 2015, Probabilistic Backpropagation, sections 2 and 3 (regression);
- Ghosh, Delle Fave & Yedidia 2016, Assumed Density Filtering Methods for Learning Bayesian Neural Networks (classes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from momentgen.errors import InputError
from momentgen.inference.adf.gamma import match_gamma
from momentgen.inference.likelihood import Categorical, Gaussian, Likelihood, Probit

__all__ = [
    "Evidence",
    "GammaNoise",
    "KnownNoise",
    "OutputModel",
    "ProbitLabels",
    "SampledSoftmax",
    "SoftmaxBound",
    "output_model",
]


class Evidence(NamedTuple):
    """log Z, shape ``(replicates,)``, its derivatives by the output's mean and variance and twice by the mean."""

    log_z: Tensor
    by_mean: Tensor
    by_var: Tensor
    curvature: Tensor
    #: shape and rate of the noise's gamma law afterwards, ``(replicates, 2)``
    noise: Tensor
    #: updates of the noise that were skipped
    skipped: Tensor | int = 0


class OutputModel:
    """A likelihood as the filter needs it: log Z of one datum per replicate, with derivatives by hand.

    Attributes:
        code: number of the model in ``filter.c``.
        samples: normal numbers per output that a datum takes.
        labels: whether a target is one number whatever the number of outputs.
        start: shape and rate of the noise precision's gamma law before any data.
    """

    code = 0
    samples = 0
    labels = True
    start = (6.0, 6.0)

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        """The targets as the filter takes them, checked: ``(replicates, n, outputs)``, or ``(replicates, n, 1)``."""
        raise NotImplementedError

    def __call__(self, mean: Tensor, var: Tensor, y: Tensor, noise: Tensor, draws: Tensor | None) -> Evidence:
        """Evidence of one datum a replicate.

        Args:
            mean: outputs' means ``(replicates, outputs)``.
            var: their *variances*.
            y: ``(replicates, outputs)`` or ``(replicates, 1)``.
            noise: shape and rate ``(replicates, 2)``, float64.
            draws: standard normal ``(replicates, samples, outputs)``.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class GammaNoise(OutputModel):
    """Real targets y ~ N(f, 1/γ), the noise precision γ with a gamma law that the filter updates too.

    Args:
        shape: of the gamma law before any data, above 1.
        rate: of the same; the expected noise *variance* is ``rate / (shape - 1)``.

    Raises:
        InputError: for a shape that is not above 1, or a rate that is not above 0.
    """

    shape: float = 6.0
    rate: float = 6.0
    code = 0
    labels = False

    def __post_init__(self) -> None:
        if not (1 < self.shape < math.inf and 0 < self.rate < math.inf):
            raise InputError(
                f"{type(self).__name__}: expected a shape above 1 and a rate above 0, got {self.shape}, {self.rate}"
            )

    @property
    def start(self) -> tuple[float, float]:  # type: ignore[override]
        return self.shape, self.rate

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        if y.dim() == 2:
            y = y.unsqueeze(2)
        if y.dim() != 3 or y.shape[2] != outputs:
            raise InputError(f"expected targets of shape (replicates, n, {outputs}), got {tuple(y.shape)}")
        return y

    def __call__(self, mean: Tensor, var: Tensor, y: Tensor, noise: Tensor, draws: Tensor | None) -> Evidence:
        shape, rate = noise.unbind(1)
        found = _gaussian(mean, var, y, rate / (shape - 1))
        others = (_gaussian(mean, var, y, rate / (shape + more)).log_z for more in (0, 1))
        matched, good = match_gamma(noise, found.log_z, *others)
        return found._replace(noise=matched, skipped=(~good).to(torch.int64))


@dataclass(frozen=True)
class KnownNoise(OutputModel):
    """Real targets y ~ N(f, var), of known noise.

    Args:
        var: *variance* of the noise.
    """

    var: float = 1.0
    code = 1
    labels = False

    @property
    def start(self) -> tuple[float, float]:  # type: ignore[override]
        return 2.0, self.var

    targets = GammaNoise.targets

    def __call__(self, mean: Tensor, var: Tensor, y: Tensor, noise: Tensor, draws: Tensor | None) -> Evidence:
        return _gaussian(mean, var, y, noise[:, 1] / (noise[:, 0] - 1))._replace(noise=noise)


def _gaussian(mean: Tensor, var: Tensor, y: Tensor, noise: Tensor) -> Evidence:
    total = var.double() + noise[:, None]
    off = (y.double() - mean) / total
    log_z = -0.5 * (total.log() + off.square() * total + math.log(2 * math.pi)).sum(1)
    by_mean, by_var, curvature = off, 0.5 * (off.square() - 1 / total), -1 / total
    return Evidence(log_z, by_mean.to(mean), by_var.to(mean), curvature.to(mean), noise)


@dataclass(frozen=True)
class ProbitLabels(OutputModel):
    """Labels 0 and 1 with p(1) = Φ(f)."""

    code = 2

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        y = _labels(y, outputs, 2 if outputs == 1 else 0)
        return 2 * y - 1

    def __call__(self, mean: Tensor, var: Tensor, y: Tensor, noise: Tensor, draws: Tensor | None) -> Evidence:
        mean, var, y = mean.double(), var.double(), y.double()
        total = 1 + var
        h = y * mean / total.sqrt()
        log_z = torch.special.log_ndtr(h)
        # phi/Phi: by erfcx where Phi underflows
        tail = math.sqrt(2 / math.pi) / torch.special.erfcx(-h.clamp(max=0) / math.sqrt(2))
        body = torch.exp(-0.5 * h.square() - 0.5 * math.log(2 * math.pi) - log_z)
        ratio = torch.where(h < 0, tail, body)
        by_mean, by_var = y * ratio / total.sqrt(), -0.5 * h * ratio / total
        return Evidence(log_z[:, 0], by_mean, by_var, -ratio * (ratio + h) / total, noise)


@dataclass(frozen=True)
class SampledSoftmax(OutputModel):
    """Labels 0, 1, ..., one output each, p(k) = softmax_k(f), and Z by sampling the outputs.

    With samples f_s, log Z ≈ L = log mean_s p(y | f_s), and weights w_s = p(y | f_s) / Σ_t p(y | f_t).  The derivative
    in m is that of L.  By Price's theorem the derivative in v is ½ Σ_s ∂²L/∂f_s² = ½ Σ_s (w_s p''/p − w_s² (p'/p)²).
    Its expectation is the derivative of E L.  The last term vanishes with many samples, and stops few samples from
    widening the weights.

    Args:
        samples: draws of the outputs a datum.
    """

    samples: int = 100
    code = 3

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InputError(f"SampledSoftmax: expected at least one sample, got {self.samples}")

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        return _labels(y, outputs, outputs)

    def __call__(self, mean: Tensor, var: Tensor, y: Tensor, noise: Tensor, draws: Tensor | None) -> Evidence:
        assert draws is not None
        mean, var = mean.double(), var.double()
        logs = torch.log_softmax(mean[:, None] + var[:, None].sqrt() * draws, 2)
        own = logs.gather(2, y.long()[:, None].expand(-1, draws.shape[1], 1))[..., 0]
        weight = torch.softmax(own, 1)[..., None]
        probabilities = logs.exp()
        off = _one_hot(y, mean)[:, None] - probabilities
        first = (weight * off).sum(1)
        second = (weight * (off.square() - probabilities * (1 - probabilities))).sum(1)
        squares = (weight.square() * off.square()).sum(1)
        log_z = own.logsumexp(1) - math.log(draws.shape[1])
        return Evidence(log_z, first, 0.5 * (second - squares), second - first.square(), noise)


@dataclass(frozen=True)
class SoftmaxBound(OutputModel):
    """Labels 0, 1, ..., one output each, with the bound log Z ≥ m_y − log Σ_k exp(m_k + v_k/2)."""

    code = 4

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        return _labels(y, outputs, outputs)

    def __call__(self, mean: Tensor, var: Tensor, y: Tensor, noise: Tensor, draws: Tensor | None) -> Evidence:
        mean, var = mean.double(), var.double()
        exponents = mean + 0.5 * var
        probabilities = torch.softmax(exponents, 1)
        log_z = mean.gather(1, y.long())[:, 0] - exponents.logsumexp(1)
        by_mean = _one_hot(y, mean) - probabilities
        return Evidence(log_z, by_mean, -0.5 * probabilities, -probabilities * (1 - probabilities), noise)


def output_model(likelihood: Likelihood, samples: int) -> OutputModel:
    """What the filter computes with, for a likelihood.

    Args:
        likelihood: ``Gaussian`` with one Gamma precision or one known variance, ``Probit``, or ``Categorical``.  The
            last uses ``samples`` of the outputs, or the log bound if its ``expectation`` is ``bound``.
        samples: draws of the outputs a datum.

    Raises:
        InputError: for other likelihoods, and for a noise that is learnt by gradients or differs between outputs.
    """
    if isinstance(likelihood, Gaussian):
        gamma = likelihood.precision
        noise = [likelihood.var] if gamma is None else [gamma.shape, gamma.rate]
        if any(isinstance(p, nn.Parameter) for p in likelihood.parameters()) or any(t.numel() != 1 for t in noise):
            raise InputError("DensityFilter: expected one noise for all outputs, not learnt by gradients")
        return KnownNoise(noise[0].item()) if gamma is None else GammaNoise(*(part.item() for part in noise))
    if isinstance(likelihood, Probit):
        return ProbitLabels()
    if isinstance(likelihood, Categorical) and likelihood.expectation != "mean_predictor":
        return SoftmaxBound() if likelihood.expectation == "bound" else SampledSoftmax(samples)
    raise InputError(
        "DensityFilter: expected a Gaussian, Probit or Categorical likelihood (not by the mean predictor), got "
        f"{likelihood!r}"
    )


def _one_hot(y: Tensor, like: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(y[:, 0].long(), like.shape[1]).to(like)


def _labels(y: Tensor, outputs: int, classes: int) -> Tensor:
    if classes < 2:
        raise InputError(f"expected a network of {'one output' if not classes else 'several outputs'}, got {outputs}")
    if y.dim() != 2:
        raise InputError(f"expected labels of shape (replicates, n), got {tuple(y.shape)}")
    wrong = (y != y.round()) | (y < 0) | (y >= classes)
    if bool(wrong.any()):
        raise InputError(f"expected labels 0 to {classes - 1}, got {y[wrong][0].item()}")
    return y.unsqueeze(2)
