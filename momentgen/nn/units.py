"""Units that are random by themselves: injected noise and Bernoulli units (sigmoid belief networks).

Their noise belongs to the model: it is there in training and in evaluation.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

import momentgen.generated
from momentgen.errors import InputError
from momentgen.nn.activation import generated_op
from momentgen.nn.layer import Layer, known
from momentgen.runtime import Moments, Op

__all__ = ["InjectedNoise", "LogisticBernoulli", "ProbitBernoulli"]


class InjectedNoise(Layer):
    """``X + Z`` with independent noise Z, the same for every unit; before f it makes f(WX + Z).

    Source: Shekhovtsov & Flach 2018, (9).

    Args:
        var: *variance* of the noise, at least 0.
        mean: mean of the noise; all that ``ap1`` sees.
        distribution: ``normal`` or ``logistic``: what ``sample`` draws.

    Raises:
        InputError: for a negative variance or another distribution.

    >>> layer = InjectedNoise(var=0.5)
    >>> layer(torch.zeros(2)).var
    tensor([0.5000, 0.5000])
    """

    elementwise = True

    def __init__(
        self, var: float = 1.0, mean: float = 0.0, distribution: Literal["normal", "logistic"] = "normal"
    ) -> None:
        super().__init__()
        if not 0 <= var < math.inf:
            raise InputError(f"InjectedNoise: the variance must be finite and not negative, got {var!r}")
        if distribution not in ("normal", "logistic"):
            raise InputError(f"InjectedNoise: expected a normal or logistic distribution, got {distribution!r}")
        self.mean, self.var, self.distribution = mean, var, distribution

    @property
    def noisy(self) -> bool:
        return self.var > 0

    def plain(self, x: Tensor) -> Tensor:
        return x + self.mean if self.mean else x

    def drawn(self, x: Tensor) -> Tensor:
        if self.distribution == "normal":
            return self.plain(x) + math.sqrt(self.var) * torch.randn_like(x)
        uniform = torch.rand_like(x).clamp(torch.finfo(x.dtype).tiny, 1 - torch.finfo(x.dtype).eps)
        return self.plain(x) + math.sqrt(3 * self.var) / math.pi * torch.logit(uniform)

    def moments(self, x: Moments) -> Moments:
        # One number, expanded where the input is certain: a linear layer then multiplies it once.
        constant = all(stride == 0 for stride in x.var.stride())
        if constant and x.var.numel():
            first = x.var[(0,) * x.var.dim()] + self.var
            return known(self.plain(x.mean), first.expand(x.var.shape))
        return known(self.plain(x.mean), x.var + self.var)

    def extra_repr(self) -> str:
        return f"var={self.var}, mean={self.mean}, distribution={self.distribution!r}"


class _Bernoulli(Layer):
    """Y in {0, 1} with P(Y = 1 | X) = F(X): mean p = E F(X), variance p (1 - p), whatever F's own variance."""

    op: str
    variant: str | None
    elementwise = True

    def __init__(self, variant: str | None = None) -> None:
        super().__init__()
        self.variant = variant

    @property
    def noisy(self) -> bool:
        return True

    def drawn(self, x: Tensor) -> Tensor:
        return torch.bernoulli(self.plain(x))

    def moments(self, x: Moments) -> Moments:
        op = self._op()
        result = op(x.mean, x.var) if self.variant is None else op(x.mean, x.var, variant=self.variant)
        if op.name == self.op:
            return result
        return Moments(result.mean, result.mean * (1 - result.mean))

    def _op(self) -> Op:
        return generated_op(self.op, type(self).__name__)

    def extra_repr(self) -> str:
        return "" if self.variant is None else f"variant={self.variant!r}"


class LogisticBernoulli(_Bernoulli):
    """A binary unit with P(Y = 1 | X) = S(X), as in sigmoid belief networks (Shekhovtsov & Flach 2018, 3.3, C.3).

    Its plain twin, and ``ap1``, is the logistic sigmoid; ``sample`` draws the unit (no gradient passes through a
    draw).

    Args:
        variant: variant of the op, such as ``ap2a``; None for the default.
    """

    op = "logistic_bernoulli"

    def plain(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def _op(self) -> Op:
        # The mean is that of the logistic transform: without the rule of its own, its variance follows.
        found = getattr(momentgen.generated, self.op, None)
        return found if isinstance(found, Op) else generated_op("logistic_transform", type(self).__name__)


class ProbitBernoulli(_Bernoulli):
    """A binary unit with P(Y = 1 | X) = Φ(X) (Shekhovtsov & Flach 2018, C.8).

    Args:
        variant: variant of the op; None for the default.
    """

    op = "probit"

    def plain(self, x: Tensor) -> Tensor:
        return torch.special.ndtr(x)  # type: ignore[no-any-return]
