"""Likelihoods: what is observed, given the random output of a network; shared by variational inference and filtering.

A network on laws returns :class:`~momentgen.Moments`: each output F_k is taken as normal, with a mean and a *variance*.
A likelihood p(y | f) has the terms that the methods need, one number per example, differentiable in mean and variance:

* ``expected_log_prob``, E log p(y | F): the data term of the evidence lower bound;
* ``log_z``, log E p(y | F): the evidence of one observation, which density filtering differentiates;
* ``predictive``, the distribution of a new y; ``log_prob``, log p(y | f) of outputs that were drawn.

Shapes: outputs ``(..., k)``, results ``(...)``, summed over the k values of an example.  Observations have the outputs'
shape, for :class:`Categorical` without the last dimension; outputs may have further dimensions in front, as samples do.
Outputs are float32 or float64, and real-valued observations of the same dtype.  Values of observations are
looked at in eager mode only: compiled code and ``torch.func`` have no values to look at.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import momentgen.generated
from momentgen.errors import InputError
from momentgen.inference.gamma import Gamma, positive
from momentgen.inference.normal_expectations import log_mean_sigmoid, log_ndtr, mean_at_nodes
from momentgen.laws.numerics.quadrature import normal_points
from momentgen.laws.values import as_moments
from momentgen.nn.functional import Posterior, class_posterior, log_class_posterior
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.inputs import readable

if TYPE_CHECKING:
    from jaxtyping import Float


class Likelihood(nn.Module):
    """What all likelihoods have; parameters of their own, such as a noise, are those of the module."""

    def expected_log_prob(self, output: Moments | Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        """E log p(y | F) over the random output F: one number per example."""
        raise NotImplementedError

    def log_z(self, output: Moments | Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        """Log E p(y | F) over the random output F: one number per example."""
        raise NotImplementedError

    def predictive(self, output: Moments | Tensor) -> Any:
        """The distribution of a new y: :class:`~momentgen.Moments` of a number, probabilities of classes."""
        raise NotImplementedError

    def expected(self, output: Moments | Tensor) -> Moments:
        """Mean and *variance* of E(y | F): what of a number's predictive distribution is the output's."""
        return self._moments("expected", output)

    def begin(self, y: Tensor) -> None:
        """Set what follows from all targets ``(n, k)`` before training, such as the unit of counts."""

    def log_prob(self, f: Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        """Log p(y | f) of drawn outputs: one number per example."""
        f = self._moments("log_prob", f).mean
        return self.log_z(Moments(f, torch.zeros_like(f)), y)

    def _moments(self, method: str, output: Any) -> Moments:
        where = f"{type(self).__name__}.{method}"
        moments = as_moments(where, output)
        if moments.mean.dtype not in (torch.float32, torch.float64) or moments.mean.dim() < 1:
            raise InputError(
                f"{where}: expected outputs of shape (..., k), float32 or float64, got {tuple(moments.mean.shape)} "
                f"of {moments.mean.dtype}"
            )
        return moments

    def _fitting(self, y: Any, shape: torch.Size, device: torch.device, own: int = 1) -> Tensor:
        """``y``, if its shape is this one, or its last dimensions: examples, and the ``own`` ones of an example."""
        if not isinstance(y, Tensor):
            raise InputError(f"{type(self).__name__}: expected observations as a tensor, got {type(y).__name__}")
        if y.device != device:
            raise InputError(f"{type(self).__name__}: expected observations on the outputs' {device}, got {y.device}")
        dims, most = y.dim(), len(shape)
        if not min(most, own + 1) <= dims <= most or y.shape != shape[most - dims :]:
            raise InputError(
                f"{type(self).__name__}: expected observations of shape {tuple(shape)}, got {tuple(y.shape)}"
            )
        return y

    def _of_class(self, values: Tensor, y: Any) -> Tensor:
        """``values[..., y]``, shape ``(...)``."""
        y, name = self._fitting(y, values.shape[:-1], values.device, own=0), type(self).__name__
        if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype is torch.bool:
            raise InputError(f"{name}: expected class indices of integers, such as torch.int64, got {y.dtype}")
        y = y.long()
        classes = values.shape[-1]
        if readable(y) and not bool(((y >= 0) & (y < classes)).all()):
            raise InputError(f"{name}: expected class indices from 0 to {classes - 1}, got {y.min()} to {y.max()}")
        return values.gather(-1, y.expand(values.shape[:-1])[..., None])[..., 0]

    def _independent(self, moments: Any) -> Any:
        """Moments, or drawn outputs, whose values may be taken one by one."""
        if isinstance(moments, JointMoments) and moments.mean.shape[-1] > 1:
            raise InputError(
                f"{type(self).__name__}.log_z: several labels need independent outputs, got JointMoments of shape "
                f"{tuple(moments.mean.shape)}; Moments(output.mean, output.var) takes them as independent"
            )
        return moments


class Gaussian(Likelihood):
    """Numbers with normal noise: y_k = f_k + noise.

    Args:
        var: *variance* of the noise, positive; a number, or a tensor that broadcasts with outputs, such as one for each
            of them, shape ``(k,)``.
        learn: whether the variance is a parameter, learnt by gradients through its logarithm, ``log_var``.
        precision: in place of ``var``, a :class:`Gamma` law of the noise's precision 1 / var, which
            :class:`~momentgen.inference.DensityFilter` learns.  ``log_z`` and ``predictive`` have the noise's expected
            variance; the bound takes a ``var``.

    Of :class:`~momentgen.runtime.JointMoments`, shape ``(batch, k)``, ``log_z`` is that of all k values together.

    Raises:
        InputError: for a variance that is not positive and finite, or both a variance and a precision.

    >>> output = Moments(torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    >>> Gaussian(var=1.0).expected_log_prob(output, torch.tensor([[0.0]]))
    tensor([-2.4189])
    """

    def __init__(self, var: float | Tensor | None = None, learn: bool = False, precision: Gamma | None = None) -> None:
        super().__init__()
        if (var is None) == (precision is None):
            raise InputError("Gaussian: expected either var, the variance of the noise, or precision, a Gamma")
        self.precision = precision
        if precision is None:
            noise = positive("Gaussian", "variance", var)
            if learn:
                self.log_var = nn.Parameter(noise.log().to(torch.get_default_dtype()))
            else:
                self.register_buffer("_var", noise)
        elif learn:
            raise InputError("Gaussian: a precision is learnt by DensityFilter; expected var beside learn=True")

    @property
    def var(self) -> Tensor:
        """Variance of the noise; of a Gamma noise its expectation."""
        if self.precision is not None:
            return self.precision.mean_inverse
        return self.log_var.exp() if hasattr(self, "log_var") else cast(Tensor, self._var)

    @property
    def _known_var(self) -> Tensor:
        if self.precision is not None:
            raise InputError("Gaussian: expected var; a Gamma precision is for DensityFilter, and has log_z alone")
        return self.var

    def _noise(self, value: Tensor, like: Tensor) -> Tensor:
        fits = value.dim() <= like.dim() and all(
            own in (1, size) for own, size in zip(reversed(value.shape), reversed(like.shape), strict=False)
        )
        if not fits:
            raise InputError(
                f"Gaussian: expected a noise that broadcasts with outputs {tuple(like.shape)}, got {tuple(value.shape)}"
            )
        return value.to(like).expand(like.shape)

    def _numbers(self, y: Any, like: Tensor) -> Tensor:
        y = self._fitting(y, like.shape, like.device)
        if y.dtype is not like.dtype:
            raise InputError(f"Gaussian: expected observations of the outputs' {like.dtype}, got {y.dtype}")
        if readable(y) and not bool(y.isfinite().all()):
            raise InputError("Gaussian: expected finite observations, got NaN or infinity")
        return y

    def expected_log_prob(self, output: Moments | Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        """E log N(y; F, noise), exact."""
        mean, var = self._moments("expected_log_prob", output)
        square = (self._numbers(y, mean) - mean).square() + var
        precision, log_precision = 1 / self._known_var, -self._known_var.log()
        term = self._noise(log_precision, mean) - math.log(2 * math.pi) - self._noise(precision, mean) * square
        return term.sum(-1) / 2

    def log_z(self, output: Moments | Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        """Log N(y; mean, var + noise)."""
        moments = self._moments("log_z", output)
        mean, var = moments
        y, noise = self._numbers(y, mean), self._noise(self.var, mean)
        if isinstance(moments, JointMoments) and mean.shape[-1] > 1:
            if mean.dim() != 2:
                raise InputError(f"Gaussian.log_z: expected JointMoments of shape (batch, k), got {tuple(mean.shape)}")
            joint: Any = torch.distributions.LowRankMultivariateNormal
            return cast(Tensor, joint(mean, moments.factor.mT, noise, validate_args=False).log_prob(y))
        total = var + noise
        return -0.5 * ((y - mean).square() / total + total.log() + math.log(2 * math.pi)).sum(-1)

    def predictive(self, output: Moments | Tensor) -> Moments:
        """Mean and *variance* of y, noise included."""
        mean, var = self._moments("predictive", output)
        return Moments(mean, var + self._noise(self.var, mean))

    def log_prob(self, f: Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        f = self._moments("log_prob", f).mean
        y, noise = self._numbers(y, f), self._noise(self._known_var, f)
        return -0.5 * ((y - f).square() / noise + noise.log() + math.log(2 * math.pi)).sum(-1)


Expectation = Literal["exact", "mean_predictor"]
ExpectationOfClasses = Literal["quadrature", "bound", "mean_predictor"]


def _one_of(where: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise InputError(f"{where}: expected one of {', '.join(map(str, known))}, got {value!r}")


class _Binary(Likelihood):
    """Labels 0 and 1, k of them for each example, independent given the outputs."""

    def __init__(self, expectation: Expectation = "exact") -> None:
        super().__init__()
        _one_of(f"{type(self).__name__}: expectation", expectation, get_args(Expectation))
        self.expectation = expectation

    def _signed(self, y: Any, mean: Tensor) -> Tensor:
        """The means, with the sign of those changed whose label is 0."""
        y = self._fitting(y, mean.shape, mean.device)
        if y.is_complex():
            raise InputError(f"{type(self).__name__}: expected labels 0 and 1, got {y.dtype}")
        if readable(y) and not bool(((y == 0) | (y == 1)).all()):
            raise InputError(f"{type(self).__name__}: expected labels 0 and 1, got others, or NaN")
        return torch.where(y == 1, mean, -mean)

    def expected_log_prob(self, output: Moments | Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        mean, var = self._moments("expected_log_prob", output)
        signed = self._signed(y, mean)
        if self.expectation == "mean_predictor":
            return (self._log_prob(signed) - var / 2).sum(-1)
        return self._expected(signed, var).sum(-1)

    def log_z(self, output: Moments | Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        mean, var = self._independent(self._moments("log_z", output))
        return self._log_mean(self._signed(y, mean), var).sum(-1)

    def log_predictive(self, output: Moments | Tensor) -> Tensor:
        """Log probabilities of the labels 0 and 1, both accurate in the tails: ``(..., k, 2)``."""
        mean, var = self._moments("log_predictive", output)
        return self._log_mean(torch.stack([-mean, mean], -1), var[..., None])

    def log_prob(self, f: Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        f = self._moments("log_prob", f).mean
        return self._log_prob(self._signed(y, f)).sum(-1)

    def _log_prob(self, signed: Tensor) -> Tensor:
        raise NotImplementedError

    def _expected(self, signed: Tensor, var: Tensor) -> Tensor:
        raise NotImplementedError

    def _log_mean(self, signed: Tensor, var: Tensor) -> Tensor:
        raise NotImplementedError


class Probit(_Binary):
    """Labels with p(y = 1 | f) = Phi(f), the normal distribution function.

    Args:
        expectation: of ``expected_log_prob``.  ``exact`` is a quadrature in float64, whose error over max(1, |value|)
            is at most 1e-12 for variances up to 100, and 3e-5 beyond.  ``mean_predictor`` is the paper's form for
            variance back-propagation: the log probability at the mean output, less half the output's variance.  It is a
            lower bound of ``exact``, since the second derivative of log p(y | f) is above -1.

    ``log_z`` and ``predictive``, P(y = 1) of shape ``(..., k)``, are closed forms.

    Source: the paper on variance back-propagation, its bound for classification, after Hensman et al. 2013.

    Raises:
        InputError: for another expectation; by the methods for labels other than 0 and 1.

    >>> output = Moments(torch.tensor([[1.0]]), torch.tensor([[3.0]]))
    >>> Probit().log_z(output, torch.tensor([[1]])).exp(), Probit().predictive(output)
    (tensor([0.6915]), tensor([[0.6915]]))
    """

    def predictive(self, output: Moments | Tensor) -> Tensor:
        return momentgen.generated.probit(*self._moments("predictive", output)).mean

    def _log_prob(self, signed: Tensor) -> Tensor:
        return torch.special.log_ndtr(signed)

    def _expected(self, signed: Tensor, var: Tensor) -> Tensor:
        return mean_at_nodes(log_ndtr, signed, var)

    def _log_mean(self, signed: Tensor, var: Tensor) -> Tensor:
        return torch.special.log_ndtr(signed * (1 + var).rsqrt())


class Bernoulli(_Binary):
    """Labels with p(y = 1 | f) = sigmoid(f), f the logit.

    Args:
        expectation: of ``expected_log_prob``.  ``exact`` is the mean of the op ``logsigmoid``, with its certificate.
            ``mean_predictor`` is as for :class:`Probit`, and a looser bound here: the logistic function's logarithm
            bends by 1/4 at most, less than the paper's 1.

    ``log_z`` is good to 12 digits of its float64 form, in the tails too.  ``predictive`` is the mean of the op
    ``logistic_bernoulli``, P(y = 1) of shape ``(..., k)``.

    Raises:
        InputError: for another expectation; by the methods for labels other than 0 and 1.

    >>> output = Moments(torch.tensor([[-50.0]]), torch.tensor([[2.0]]))
    >>> Bernoulli().log_z(output, torch.tensor([[1]]))
    tensor([-49.])
    """

    def predictive(self, output: Moments | Tensor) -> Tensor:
        return momentgen.generated.logistic_bernoulli(*self._moments("predictive", output)).mean

    def _log_prob(self, signed: Tensor) -> Tensor:
        return F.logsigmoid(signed)

    def _expected(self, signed: Tensor, var: Tensor) -> Tensor:
        return momentgen.generated.logsigmoid(signed, var).mean

    def _log_mean(self, signed: Tensor, var: Tensor) -> Tensor:
        return log_mean_sigmoid(signed, var)


# An operator of its own, which compiled code calls: torch's generator of such points cannot be traced.
@torch.library.custom_op(
    "momentgen::unit_points",
    mutates_args=(),
    schema="(int dimensions, int count, ScalarType dtype, Device device) -> Tensor",
)
def _unit_points(dimensions: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _made_points(dimensions, count).to(device, dtype, copy=True)


@_unit_points.register_fake
def _(dimensions: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(count, dimensions, dtype=dtype, device=device)


@functools.lru_cache(maxsize=8)
def _made_points(dimensions: int, count: int) -> Tensor:
    """Fixed normal points, shape ``(count, dimensions)``, of variance 1 and, where they are many, uncorrelated."""
    points = normal_points(dimensions, count)
    if count < 8 * dimensions:
        return points / points.square().mean(0).sqrt()
    root = torch.linalg.cholesky(points.mT @ points / count)
    return torch.linalg.solve_triangular(root, points.mT, upper=False).mT  # parabolas come out exact


class Categorical(Likelihood):
    """One class of k, p(y | f) = softmax(f)_y; y are class indices, integers of the outputs' shape without the last.

    Args:
        expectation: of ``expected_log_prob``.  ``quadrature`` averages log softmax over fixed quasi-random points, in
            the memory of ``points`` outputs; :class:`~momentgen.runtime.JointMoments`, shape ``(batch, k)``, with their
            covariance.  Of 2 to 100 classes and logits of σ up to 1 its error is about 0.002, up to 3 about 0.04.
            ``bound`` is mean_y - log sum_k exp(mean_k + var_k / 2), below the expectation by Jensen's inequality,
            whatever the covariance.  ``mean_predictor``, the paper's form for variance back-propagation, is log softmax
            at the means, less half the sum of variances; also a lower bound.
        points: how many, even.
        posterior: the approximation of :func:`momentgen.class_posterior` that ``log_z`` and ``predictive`` take.

    Raises:
        InputError: for another expectation or posterior, or an odd number of points; by the methods for labels out of
            range or not integers.

    >>> output = Moments(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    >>> for expectation in ("quadrature", "bound", "mean_predictor"):
    ...     print(Categorical(expectation).expected_log_prob(output, torch.tensor([0])))
    tensor([-0.2411])
    tensor([-0.6269])
    tensor([-1.1269])
    """

    def __init__(
        self, expectation: ExpectationOfClasses = "quadrature", points: int = 128, posterior: Posterior | None = None
    ) -> None:
        super().__init__()
        _one_of("Categorical: expectation", expectation, get_args(ExpectationOfClasses))
        _one_of("Categorical: posterior", posterior, (None, *get_args(Posterior)))
        if not isinstance(points, int) or points < 2 or points % 2:
            raise InputError(f"Categorical: expected an even number of points, got {points!r}")
        self.expectation, self.points, self.posterior = expectation, points, posterior

    def expected_log_prob(self, output: Moments | Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        moments = self._moments("expected_log_prob", output)
        mean, var = moments
        if self.expectation == "mean_predictor":
            return self._of_class(torch.log_softmax(mean, -1), y) - var.sum(-1) / 2
        # Means count from that of y, so that nothing cancels where y is almost certain.
        mean = mean - self._of_class(mean, y)[..., None]
        if self.expectation == "bound":
            return -(mean + var / 2).logsumexp(-1)
        # The points are symmetric: the mean of an output over them is its mean, for y 0.
        return -self._drawn(mean, moments).logsumexp(0).mean(0)

    def _drawn(self, mean: Tensor, moments: Moments) -> Tensor:
        """Outputs of this mean at the fixed points, shape ``(k, points, ...)``: sums over classes are fastest so."""
        if isinstance(moments, JointMoments):
            if mean.dim() != 2:
                raise InputError(f"Categorical: expected JointMoments of shape (batch, k), got {tuple(mean.shape)}")
            off = self._unit_points(moments.factor.shape[1], mean) @ moments.factor
            return mean.mT[:, None] + off.permute(2, 1, 0)
        # Points come in pairs x, -x, so that this much variance gives the derivative at variance 0 too, to half of the
        # digits; it changes values by less than the dtype's resolution.
        std = (moments.var + torch.finfo(mean.dtype).eps).sqrt().movedim(-1, 0)
        points = self._unit_points(mean.shape[-1], mean).mT
        return mean.movedim(-1, 0)[:, None] + std[:, None] * points.view(*points.shape, *(1,) * (mean.dim() - 1))

    def _unit_points(self, dimensions: int, like: Tensor) -> Tensor:
        return _unit_points(dimensions, self.points, like.dtype, like.device)

    def log_z(self, output: Moments | Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        return self._of_class(log_class_posterior(self._moments("log_z", output), -1, self.posterior), y)

    def predictive(self, output: Moments | Tensor) -> Tensor:
        return class_posterior(self._moments("predictive", output), -1, self.posterior)

    def log_predictive(self, output: Moments | Tensor) -> Tensor:
        """Log probabilities of the classes, accurate where one is almost certain: ``(..., k)``."""
        return log_class_posterior(self._moments("log_predictive", output), -1, self.posterior)

    def log_prob(self, f: Float[Tensor, "*example k"], y: Tensor) -> Float[Tensor, "*example"]:
        return self._of_class(torch.log_softmax(self._moments("log_prob", f).mean, -1), y)
