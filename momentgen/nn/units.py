"""Units that are random by themselves: injected noise, Bernoulli units (sigmoid belief networks), bow tie units.

Their noise belongs to the model: it is there in training and in evaluation.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, Literal

import torch
from torch import Tensor

import momentgen.generated
from momentgen.errors import InputError
from momentgen.laws.dispatch import dispatch
from momentgen.laws.law import Law
from momentgen.laws.rules import noise
from momentgen.nn.layers import Layer, check_strided

__all__ = ["BowTie", "InjectedNoise", "LogisticBernoulli", "ProbitBernoulli"]

_LARGEST = torch.finfo(torch.float32).max


def _number(unit: str, name: str, value: Any, low: float, high: float, expected: str) -> float:
    """A number within its range, or the error that says which is expected."""
    if not issubclass(type(value), numbers.Real):
        raise InputError(f"{unit}: expected a number for {name}, got {type(value).__name__}")
    if not low <= value <= high:
        # whole numbers may have thousands of digits
        shown = repr(value) if isinstance(value, float) or abs(value) <= _LARGEST else f"a number beyond {_LARGEST:g}"
        raise InputError(f"{unit}: {expected}, got {shown}")
    return float(value)


class _Unit(Layer, noise.Unit, torch.nn.Module):
    """A unit with a noise of its own, whose moments are those of an op."""

    op: str
    #: attributes that the op takes
    SETTINGS: tuple[str, ...] = ("variant",)

    def _forward_inside(self, x: Any) -> Any:
        """A law's noise by its rule; a tensor's is drawn, unless a network runs on laws."""
        check_strided(self, x)
        if isinstance(x, Law):
            return dispatch(noise.UNIT, None, (x, self), {})
        if torch.overrides.has_torch_function_unary(x):
            return torch.overrides.handle_torch_function(noise.UNIT.call, (x,), x, self)
        return self.drawn(x)

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        op = getattr(momentgen.generated, self.op)
        settings = {name: getattr(self, name) for name in self.SETTINGS if getattr(self, name) is not None}
        return tuple(op(mean, torch.zeros_like(mean) if var is None else var, **settings))


class InjectedNoise(_Unit):
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

    def __init__(
        self, var: float = 1.0, mean: float = 0.0, distribution: Literal["normal", "logistic"] = "normal"
    ) -> None:
        super().__init__()
        wide = "the variance must be finite and not negative"
        self.var = _number("InjectedNoise", "the variance", var, 0, _LARGEST, wide)
        self.mean = _number("InjectedNoise", "the mean", mean, -_LARGEST, _LARGEST, "the mean must be finite")
        if distribution not in ("normal", "logistic"):
            raise InputError(f"InjectedNoise: expected a normal or logistic distribution, got {distribution!r}")
        self.distribution = distribution

    def plain(self, x: Tensor) -> Tensor:
        return x + self.mean if self.mean else x

    def drawn(self, x: Tensor) -> Tensor:
        if self.distribution == "normal":
            return self.plain(x) + math.sqrt(self.var) * torch.randn_like(x)
        uniform = torch.rand_like(x).clamp(torch.finfo(x.dtype).tiny, 1 - torch.finfo(x.dtype).eps)
        return self.plain(x) + math.sqrt(3 * self.var) / math.pi * torch.logit(uniform)

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        # One number, expanded where the input's is: a linear layer then multiplies it once.
        own = torch.full((), self.var, dtype=mean.dtype, device=mean.device)
        if var is None:
            return self.plain(mean), own.expand(mean.shape)
        if var.numel() and all(stride == 0 for stride in var.stride()):
            return self.plain(mean), (var[(0,) * var.dim()] + own).expand(mean.shape)
        return self.plain(mean), var + own

    def extra_repr(self) -> str:
        return f"var={self.var}, mean={self.mean}, distribution={self.distribution!r}"


class _Bernoulli(_Unit):
    """Y in {0, 1} with P(Y = 1 | X) = F(X): mean p = E F(X), variance p (1 - p), whatever F's own variance."""

    def __init__(self, variant: str | None = None) -> None:
        super().__init__()
        self.variant = variant

    def drawn(self, x: Tensor) -> Tensor:
        return torch.bernoulli(self.plain(x))

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


class ProbitBernoulli(_Bernoulli):
    """A binary unit with P(Y = 1 | X) = Φ(X) (Shekhovtsov & Flach 2018, C.8).

    Args:
        variant: variant of the op; None for the default.
    """

    op = "probit"

    def plain(self, x: Tensor) -> Tensor:
        return torch.special.ndtr(x)


class BowTie(_Unit):
    """A unit of a bow tie network: ``Z X + eta E``, Z in {0, 1} with P(Z = 1 | X) = S(X/tau), E standard normal.

    Source: Smith, Lawson & Linderman 2019, (4)-(6).  Its mean given X is X S(X/tau), which ``ap1`` computes.
    ``sample`` draws gate and noise; a gradient passes through the X of a draw, not through its gate.  For tau -> 0
    and eta = 0 it is ReLU.

    Args:
        tau: temperature of the gate, from 2^-10 to 16.
        eta: *standard deviation* of the noise, from 0 to 16.

    Raises:
        InputError: if one is not a number in its range.

    >>> layer = BowTie(tau=0.5, eta=0.1)
    >>> layer(torch.zeros(2)).std
    tensor([0.1000, 0.1000])
    """

    op, SETTINGS = "bow_tie", ("tau", "eta")
    tau: float
    eta: float

    def __init__(self, tau: float = 0.1, eta: float = 0.0) -> None:
        super().__init__()
        given: dict[str, Any] = {"tau": tau, "eta": eta}
        for p in momentgen.generated.bow_tie.parameters:
            expected = f"expected {p.name} in [{p.low:g}, {p.high:g}]"
            setattr(self, p.name, _number("BowTie", p.name, given[p.name], p.low, p.high, expected))

    def plain(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x / self.tau)

    def drawn(self, x: Tensor) -> Tensor:
        open_ = x * torch.bernoulli(torch.sigmoid(x.detach() / self.tau))
        return open_ + self.eta * torch.randn_like(x) if self.eta else open_

    def extra_repr(self) -> str:
        return f"tau={self.tau}, eta={self.eta}"
