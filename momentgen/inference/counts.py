"""Likelihoods of counts and of ordered classes, whose evidence is a quadrature over the output's law or a closed form.

A likelihood of one's own needs no more than its law given the output: derive from :class:`ByQuadrature`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import momentgen.generated
from momentgen.errors import InputError
from momentgen.inference.gamma import positive
from momentgen.inference.likelihood import Likelihood
from momentgen.inference.normal_expectations import log_mean_exp, mean_at_nodes
from momentgen.runtime import Moments
from momentgen.runtime.inputs import readable

#: the largest logarithm of a mean of which counts are drawn
_MOST = 36.0


class ByQuadrature(Likelihood):
    """Targets y_k whose law given f_k is one of torch's distributions; subclasses define :meth:`law`.

    Expectations are quadratures over each f_k by itself, in float64.  ``log_z`` needs log p(y | f) to be concave in f.
    Estimators take such targets as they are, not in standard units.

    >>> class Exponential(ByQuadrature):
    ...     def law(self, f):
    ...         return torch.distributions.Exponential(f.exp())
    >>> Exponential().log_z(Moments(torch.zeros(1, 1), torch.zeros(1, 1)), torch.ones(1, 1))
    tensor([-1.])
    """

    def law(self, f: Tensor) -> Any:
        """The distribution of y given f, elementwise for any shape."""
        raise NotImplementedError

    def _log_p(self, f: Tensor, y: Tensor) -> Tensor:
        found: Tensor = self.law(f).log_prob(y)
        return found

    def _numbers(self, y: Any, like: Tensor) -> Tensor:
        return self._fitting(y, like.shape, like.device).to(like)

    def expected_log_prob(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        mean, var = self._moments("expected_log_prob", output)
        y = self._numbers(y, mean)[..., None]
        return mean_at_nodes(lambda f: self._log_p(f, y), mean, var).sum(-1)

    def log_z(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        """Log E p(y | F) by nodes about the integrand's mode, to 1e-8 of max(1, |value|) for variances up to 25."""
        mean, var = self._moments("log_z", self._independent(output))
        y = self._numbers(y, mean)[..., None]
        return log_mean_exp(lambda f: self._log_p(f, y), mean, var).sum(-1)

    def expected(self, output: Moments | Tensor) -> Moments:
        mean, var = self._moments("expected", output)
        found = mean_at_nodes(lambda f: self.law(f).mean, mean, var)
        return Moments(found, mean_at_nodes(lambda f: (self.law(f).mean - found[..., None]).square(), mean, var))

    def predictive(self, output: Moments | Tensor) -> Moments:
        """Mean and *variance* of y."""
        found, (mean, var) = self.expected(output), self._moments("predictive", output)
        return Moments(found.mean, found.var + mean_at_nodes(lambda f: self.law(f).variance, mean, var))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        f = self._moments("log_prob", f).mean
        return self._log_p(f, self._numbers(y, f)).sum(-1)

    def sample(self, f: Tensor) -> Tensor:
        """A draw of y for each drawn output."""
        found: Tensor = self.law(self._moments("sample", f).mean).sample()
        return found


class Poisson(ByQuadrature):
    """Counts of mean exp(f), in a unit that estimators set to the mean of their targets.

    ``expected_log_prob`` and ``predictive`` are closed forms.

    Raises:
        InputError: by the methods, for observations that are no counts.

    >>> output = Moments(torch.tensor([[1.0]]), torch.tensor([[0.5]]))
    >>> Poisson().log_z(output, torch.tensor([[2]])), Poisson().predictive(output)
    (tensor([-1.7416]), Moments([3.5 ± 3.4], shape (1, 1), float32))
    """

    log_unit: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_unit", torch.zeros((), dtype=torch.float64))

    @property
    def dispersion(self) -> Tensor | float:
        """Variance beyond the mean's, over the mean's square."""
        return 0.0

    def begin(self, y: Tensor) -> None:
        self.log_unit = self._numbers(y, y).double().mean(0).clamp_min(0.5 / len(y)).log()

    def law(self, f: Tensor) -> Any:
        return torch.distributions.Poisson(f.exp(), validate_args=False)

    def sample(self, f: Tensor) -> Tensor:
        return super().sample(f.clamp_max(_MOST - self.log_unit.to(f)))  # beyond int64, torch's draws are negative

    def _numbers(self, y: Any, like: Tensor) -> Tensor:
        y = super()._numbers(y, like)
        if readable(y) and not bool(((y >= 0) & (y == y.round()) & y.isfinite()).all()):
            raise InputError(f"{type(self).__name__}: expected counts 0, 1, ..., got others, or NaN")
        return y

    def _log_p(self, f: Tensor, y: Tensor) -> Tensor:  # torch's has no derivative where the rate underflows
        return y * f - f.exp() - torch.lgamma(y + 1)

    def _moments(self, method: str, output: Any) -> Moments:
        mean, var = super()._moments(method, output)
        return Moments(mean + self.log_unit.to(mean), var)

    def expected_log_prob(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        mean, var = self._moments("expected_log_prob", output)
        y = self._numbers(y, mean)
        return (y * mean - (mean + 0.5 * var).exp() - torch.lgamma(y + 1)).sum(-1)

    def expected(self, output: Moments | Tensor) -> Moments:
        mean, var = self._moments("expected", output)
        rate = (mean + 0.5 * var).exp()
        return Moments(rate, rate.square() * torch.expm1(var))

    def predictive(self, output: Moments | Tensor) -> Moments:
        """Mean and *variance* of the counts."""
        rate, spread = self.expected(output)
        return Moments(rate, spread + rate + self.dispersion * (rate.square() + spread))


class NegativeBinomial(Poisson):
    """Counts of mean μ = exp(f), in a unit as for :class:`Poisson`, and of variance μ + dispersion·μ².

    ``expected_log_prob`` takes the mean of the op ``logsigmoid``, with its certificate.

    Args:
        dispersion: positive; with which training begins, where it is learnt.
        learn: whether it is a parameter, ``log_dispersion``.

    Raises:
        InputError: for a dispersion that is not positive; by the methods, for observations that are no counts.

    >>> NegativeBinomial(0.5, learn=False).predictive(torch.zeros(1, 1))
    Moments([1.0 ± 1.2], shape (1, 1), float32)
    """

    def __init__(self, dispersion: float = 0.5, learn: bool = True) -> None:
        super().__init__()
        log = positive("NegativeBinomial", "dispersion", dispersion).log().to(torch.get_default_dtype())
        self.log_dispersion = nn.Parameter(log, requires_grad=learn)

    @property
    def dispersion(self) -> Tensor:
        return self.log_dispersion.exp()

    def law(self, f: Tensor) -> Any:
        shape = 1 / self.dispersion.to(f)
        return torch.distributions.NegativeBinomial(shape, logits=f - shape.log(), validate_args=False)

    _log_p = ByQuadrature._log_p

    def expected_log_prob(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        mean, var = self._moments("expected_log_prob", output)
        y, shape = self._numbers(y, mean), 1 / self.dispersion.to(mean)
        logit = mean - shape.log()
        ways = torch.lgamma(y + shape) - torch.lgamma(shape) - torch.lgamma(y + 1)
        return (ways + y * logit + (y + shape) * momentgen.generated.logsigmoid(-logit, var).mean).sum(-1)


class Ordinal(Likelihood):
    """Ordered classes 0 to k - 1: p(y ≤ j | f) = Phi(c_j - f), with cut points c_j that are learnt.

    ``log_z`` and ``predictive``, probabilities of shape ``(..., 1, k)``, are closed forms.  ``expected_log_prob`` is a
    quadrature, whose error is below 1e-6 for variances up to 100.

    Args:
        classes: k, at least 2.

    Raises:
        InputError: for less than 2 classes; by the methods, for labels out of range.

    >>> Ordinal(3).predictive(torch.zeros(1, 1)).detach()
    tensor([[[0.3333, 0.3333, 0.3333]]])
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise InputError(f"Ordinal: expected at least 2 classes, got {classes}")
        self.classes = classes
        cuts = torch.special.ndtri(torch.arange(1, classes, dtype=torch.float64) / classes)
        self.first_cut = nn.Parameter(cuts[:1].to(torch.get_default_dtype()))
        self.log_gaps = nn.Parameter(cuts.diff().log().to(torch.get_default_dtype()))

    def begin(self, y: Tensor) -> None:
        """Cut points at which an output of 0 has the shares of the classes."""
        with torch.no_grad():
            counts = y.flatten().long().bincount(minlength=self.classes).to(y.device, torch.float64) + 0.5
            cuts = torch.special.ndtri((counts.cumsum(0) / counts.sum())[:-1])
            self.first_cut.copy_(cuts[:1])
            self.log_gaps.copy_(cuts.diff().log())

    @property
    def cuts(self) -> Tensor:
        """Cut points between the classes, ``(k - 1,)``."""
        return torch.cat([self.first_cut, self.first_cut + self.log_gaps.exp().cumsum(0)])

    def _all_logs(self, f: Tensor, scale: Tensor) -> Tensor:
        """Log probabilities of the classes, (..., k): Phi of each cut point, less f, over scale."""
        cuts, far = self.cuts.to(f), torch.full((1,), _FAR).to(f)
        ends = torch.cat([cuts[:1] - far, cuts, cuts[-1:] + far])
        a = (ends - f[..., None]) / scale[..., None]
        low, high = a[..., :-1], a[..., 1:]
        low, high = torch.where(low > 0, -high, low), torch.where(low > 0, -low, high)  # in the lower tail
        log_low, log_high = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
        return log_high + torch.log(-torch.expm1((log_low - log_high).clamp_max(-torch.finfo(f.dtype).tiny)))

    def expected_log_prob(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        mean, var = self._moments("expected_log_prob", output)

        def log_p(f: Tensor) -> Tensor:
            f = f.movedim(-1, 0)
            return self._of_class(self._all_logs(f, torch.ones_like(f)), y).movedim(0, -1)

        return mean_at_nodes(log_p, mean, var).sum(-1)

    def log_predictive(self, output: Moments | Tensor) -> Tensor:
        """Log probabilities of the classes, accurate in the tails: ``(..., 1, k)``."""
        mean, var = self._moments("log_predictive", output)
        return self._all_logs(mean, (1 + var).sqrt())

    def predictive(self, output: Moments | Tensor) -> Tensor:
        return self.log_predictive(output).exp()

    def log_z(self, output: Moments | Tensor, y: Tensor) -> Tensor:
        return self._of_class(self.log_predictive(self._independent(output)), y).sum(-1)


#: how far beyond the cut points the first and last class end
_FAR = 1e4
