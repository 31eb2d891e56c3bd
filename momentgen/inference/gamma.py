"""The Gamma distribution of a precision: the noise of :class:`momentgen.inference.likelihood.Gaussian`, and priors'.

Here too is what modules of distributions ask of numbers they are made with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from momentgen.errors import InputError
from momentgen.laws.values import readable

__all__ = ["Gamma", "positive"]


class Gamma(nn.Module):
    """A Gamma distribution of a precision: density proportional to x^(shape - 1) exp(-rate x).

    Args:
        shape: positive; a number, or a tensor that broadcasts with outputs.
        rate: positive, in units of the variance.
        learn: whether shape and rate are parameters, learnt by gradients through their logarithms; else they stay until
            :meth:`set`.

    What it is made with is also the prior that :meth:`kl` refers to.

    Raises:
        InputError: if shape or rate is not positive and finite.

    >>> Gamma(6.0, 6.0).mean
    tensor(1., dtype=torch.float64)
    """

    prior_shape: Tensor
    prior_rate: Tensor
    log_shape: Tensor
    log_rate: Tensor

    def __init__(self, shape: float | Tensor, rate: float | Tensor, learn: bool = False) -> None:
        super().__init__()
        for name, value in (("shape", shape), ("rate", rate)):
            prior = positive("Gamma", name, value)
            self.register_buffer(f"prior_{name}", prior)
            if learn:
                setattr(self, f"log_{name}", nn.Parameter(prior.log().to(torch.get_default_dtype())))
            else:
                self.register_buffer(f"log_{name}", prior.log())

    @property
    def shape(self) -> Tensor:
        return self.log_shape.exp()

    @property
    def rate(self) -> Tensor:
        return self.log_rate.exp()

    @property
    def mean(self) -> Tensor:
        """E of the precision."""
        return (self.log_shape - self.log_rate).exp()

    @property
    def mean_log(self) -> Tensor:
        """E of the precision's logarithm."""
        return torch.digamma(self.shape) - self.log_rate

    @property
    def mean_inverse(self) -> Tensor:
        """E of the variance, 1 / precision.

        Raises:
            InputError: where the shape is at most 1, and the expectation infinite.
        """
        shape = self.shape
        if readable(shape) and not bool((shape > 1).all()):
            least = shape.detach().min()
            raise InputError(
                f"Gamma: the variance of the noise has an expectation for shapes beyond 1 only, got {least:g}"
            )
        return self.rate / (shape - 1)

    def set(self, shape: float | Tensor, rate: float | Tensor) -> None:
        """Replace shape and rate, as an update by moment matching does; the prior stays.

        Raises:
            InputError: if they are not positive and finite.
        """
        with torch.no_grad():
            self.log_shape.copy_(positive("Gamma.set", "shape", shape).log())
            self.log_rate.copy_(positive("Gamma.set", "rate", rate).log())

    def kl(self) -> Tensor:
        """Divergence of this distribution from what it was made with, summed."""
        now = torch.distributions.Gamma(self.shape, self.rate, validate_args=False)
        prior = torch.distributions.Gamma(self.prior_shape.to(now.rate), self.prior_rate.to(now.rate))
        return torch.distributions.kl_divergence(now, prior).sum()


def positive(where: str, name: str, value: Any) -> Tensor:
    """``value`` as a float64 tensor of its own, all of it positive and finite.

    Raises:
        InputError: otherwise, with ``where`` and the ``name`` of the value.
    """
    found = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    if not found.numel() or not bool(((found > 0) & found.isfinite()).all()):
        raise InputError(f"{where}: expected a positive, finite {name}, got {value!r}")
    return found
