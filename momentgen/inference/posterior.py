"""Posteriors of a network's parameters: what :func:`~momentgen.inference.randomise` puts in a parameter's place.

A posterior is made in two steps.  ``MeanField(std=0.01)`` says of what kind it is; :meth:`Posterior.of` makes it the
posterior of one parameter, whose value is its mean.  :class:`MeanField` is here, ``Tridiagonal`` in
:mod:`~momentgen.inference.tridiagonal`.  A new family derives from :class:`Posterior`.
"""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.prior import Prior
from momentgen.runtime.inputs import has_elements, kind


class Posterior(torch.nn.Module):
    """A normal distribution of one parameter.

    Attributes:
        mean: of the parameter's shape: the parameter itself, so that training the posterior trains the network.
        LEARNING_RATES: factors on the learning rates of the family's own parameters, see
            :meth:`~momentgen.inference.BayesianNetwork.parameter_groups`.
    """

    mean: torch.nn.Parameter
    LEARNING_RATES: dict[str, float]

    def __init__(self) -> None:
        super().__init__()
        self.LEARNING_RATES = {}

    def of(self, parameter: torch.nn.Parameter) -> Self:
        """The posterior of ``parameter``, with its value for the mean.

        Raises:
            InputError: for a parameter that is not of floating point or has no elements.
        """
        if not isinstance(parameter, torch.nn.Parameter) or not parameter.is_floating_point():
            raise InputError(
                f"{type(self).__name__}.of: expected a parameter of floating point, got {type(parameter).__name__} of "
                f"{getattr(parameter, 'dtype', 'no dtype')}"
            )
        if not has_elements(parameter):
            raise InputError(f"{type(self).__name__}.of: expected a strided parameter, got {kind(parameter)}")
        if parameter.numel() == 0:
            raise InputError(f"{type(self).__name__}.of: expected a parameter with elements, got {parameter.shape}")
        made = copy.deepcopy(self)
        made.mean = parameter
        made._begin()
        return made

    def _begin(self) -> None:
        """Make the family's own parameters, now that the mean is known."""
        raise NotImplementedError

    def _known_mean(self) -> Tensor:
        if "mean" not in self._parameters:
            raise InputError(
                f"{type(self).__name__}: a family without a parameter has no moments; randomise(net, ...) or .of(...) "
                "give it one"
            )
        return self.mean

    @property
    def var(self) -> Tensor:
        """*Variance* of each element, of the parameter's shape."""
        raise NotImplementedError

    def neighbour(self) -> Tensor | None:
        """Covariance of each element with the next one in flattened order, shape ``(K - 1,)``; None without any."""
        return None

    @property
    def independent(self) -> bool:
        """Whether the elements are independent."""
        raise NotImplementedError

    def log_det(self) -> Tensor:
        """Log determinant of the covariance of all K elements, a scalar."""
        raise NotImplementedError

    def trace(self) -> Tensor:
        """Trace of the covariance, the sum of all variances, a scalar."""
        return self.var.sum()

    def rsample(self, n: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Draws, differentiable in the posterior's parameters: shape ``(n, *shape)``, or the shape alone."""
        raise NotImplementedError

    @torch.no_grad()
    def sample(self, n: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Draws as by :meth:`rsample`, without gradients."""
        return self.rsample(n, generator)

    def kl(self, prior: Prior) -> Tensor:
        """Kullback-Leibler divergence from ``prior``, of all elements together; differentiable."""
        return prior.kl(self)

    def _normal(self, n: int | None, generator: torch.Generator | None) -> Tensor:
        mean = self._known_mean()
        shape = mean.shape if n is None else (n, *mean.shape)
        return torch.randn(shape, dtype=mean.dtype, device=mean.device, generator=generator)


class MeanField(Posterior):
    """Independent normal elements, each with a variance of its own (Haussmann et al. 2019, section 2.3).

    Args:
        std: initial standard deviation, a positive number, or a tensor that broadcasts to the parameter's shape.
        learnt: whether variances are parameters; otherwise they stay what ``std`` says.

    Raises:
        InputError: for a standard deviation that is not positive and finite.

    >>> posterior = MeanField(std=0.1).of(torch.nn.Parameter(torch.zeros(2, 3)))
    >>> posterior.var.shape, round(float(posterior.var[0, 0]), 4)
    (torch.Size([2, 3]), 0.01)
    >>> posterior.sample(5).shape
    torch.Size([5, 2, 3])
    """

    independent = True
    #: log of the variance, of the parameter's shape
    log_var: Tensor

    def __init__(self, std: float | Tensor = 0.01, *, learnt: bool = True) -> None:
        super().__init__()
        given = torch.as_tensor(std)
        if not bool(((given > 0) & given.isfinite()).all()):
            raise InputError(f"MeanField: expected a positive standard deviation, got {std!r}")
        self._std, self.learnt = std, learnt

    def _begin(self) -> None:
        std = torch.as_tensor(self._std, dtype=self.mean.dtype, device=self.mean.device)
        try:
            log_var = (2 * std.log()).expand(self.mean.shape).clone()
        except RuntimeError as error:
            raise InputError(
                f"MeanField: std of shape {tuple(std.shape)} does not broadcast to the parameter's {self.mean.shape}"
            ) from error
        if self.learnt:
            self.log_var = torch.nn.Parameter(log_var)
        else:
            self.register_buffer("log_var", log_var)

    def extra_repr(self) -> str:
        return "" if "mean" in self._parameters else f"std={self._std}"

    @property
    def var(self) -> Tensor:
        self._known_mean()
        return self.log_var.exp()

    def log_det(self) -> Tensor:
        self._known_mean()
        return self.log_var.sum()

    def rsample(self, n: int | None = None, generator: torch.Generator | None = None) -> Tensor:
        noise = self._normal(n, generator)
        return torch.addcmul(self.mean, (0.5 * self.log_var).exp(), noise)

    def log_alpha(self) -> Tensor:
        """log(variance/mean²) of each element, by which weights are pruned (Molchanov et al. 2017)."""
        return self.log_var - 2 * self._known_mean().abs().log()
