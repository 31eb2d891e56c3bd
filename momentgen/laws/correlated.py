"""``Correlated``: mean and variance of each value, and what values have in common, by a few directions and samples.

A law has tangents S_j, the derivatives of its mean along r directions of the joint noise (chosen so that the outputs
depend on them most), and k samples.  h = Σ_j S_j² is the variance that the directions explain, D = V - h the rest.

* A function of each value by itself takes mean and variance from the generated op, exact for a normal value; tangents
  are multiplied by E f', samples go through f.
* A function of several values maps tangents linearly and samples as it is.  Its variance is h, plus what the rule of
  independent values makes of D, multiplied by a factor that the samples' remainder X_s - Σ_j S_j c_sj tells, and its
  mean is shifted by what that remainder's mean tells (:mod:`momentgen.laws.numerics.shrinkage`).

So variances stay right where values share noise, and functions without a rule of their own need none.  How a network is
run on such laws is in :mod:`momentgen.laws.two_passes`, the rules are in :mod:`momentgen.laws.correlated_rules`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.diagonal import Diagonal, diagonal
from momentgen.laws.law import Law, new_law, register_pytree, tensor_of
from momentgen.laws.numerics.root import square_root
from momentgen.laws.numerics.shrinkage import shift_of, shrunk
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported

__all__ = [
    "RUN", "Correlated", "Joint", "Rows", "Run", "correlated", "deflated", "exact", "law_of", "mixed", "squared_length",
    "with_history",
]  # fmt: skip


@dataclass
class Run:
    """What the laws of one run share: the directions, and the samples' coordinates in them.

    Attributes:
        directions: q, of all values of all sources of noise, shape (r, n).
        draws: z, samples of a normal variable of variance 1 for each, whose mean is 0, shape (k, n).
        coordinates: c = z qᵀ, shape (k, r).
        met: of how many values sources have been met.
    """

    directions: Tensor
    draws: Tensor
    coordinates: Tensor
    met: int = 0

    def _next(self, count: int) -> tuple[Tensor, Tensor]:
        start, self.met = self.met, self.met + count
        return self.directions[:, start : self.met], self.draws[:, start : self.met]

    def source(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Tangents and deviations of the samples of the next source, of that *variance*."""
        tangents, draws = self._next(mean.numel())
        root = square_root(var)
        return tangents.view(-1, *mean.shape) * root, draws.view(-1, *mean.shape) * root

    def combined(self, mean: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        """The same of a source of covariance ``factor.mT @ factor``, the factor of shape (r, n)."""
        tangents, draws = (part @ factor for part in self._next(len(factor)))
        return tangents.view(-1, *mean.shape), draws.view(-1, *mean.shape)


#: the run that is under way in this thread and task
RUN: ContextVar[Run] = ContextVar("momentgen_run")


class Rows:
    """Tangents and deviations that are computed when somebody asks for them: a max pool of them does not."""

    def __init__(self, compute: Callable[[], tuple[Tensor, Tensor]]) -> None:
        self._compute: Callable[[], tuple[Tensor, Tensor]] | None = compute
        self._with_gradients = torch.is_grad_enabled()

    @functools.cached_property
    def both(self) -> tuple[Tensor, Tensor]:
        """Computed once, and what it takes is freed."""
        compute, self._compute = self._compute, None
        with torch.set_grad_enabled(self._with_gradients):
            return compute()  # type: ignore[misc]


@dataclass(frozen=True)
class Joint:
    """What a law knows besides mean and variance.

    Attributes:
        rows: tangents and deviations, or what computes them.
        explained: h = Σ_j S_j², of the law's shape.
        alone: the same mean and variance as of independent values, with the history that tells functions of one value.
        independent: whether the values are independent, so that a linear map's variance is exact without samples.
        monotone: (entry, other arguments, law) of the monotone function and its argument that made this.
        third: third cumulant of each value, of the law's shape, as far as it comes from dropout; None where that is 0.
        sharing: the laws that are in one memory with this, itself among them where there are others.
    """

    rows: tuple[Tensor, Tensor] | Rows
    explained: Tensor
    alone: Diagonal
    independent: bool = False
    monotone: tuple[Entry, tuple[Any, ...], dict[str, Any], Any] | None = None
    third: Tensor | None = None
    sharing: list[weakref.ref[Law]] = field(default_factory=list)

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """Tangents and deviations."""
        return self.rows.both if isinstance(self.rows, Rows) else self.rows

    @property
    def tangents(self) -> Tensor:
        """S, shape ``(r, *shape)``."""
        return self.both[0]

    @property
    def deviations(self) -> Tensor:
        """Samples minus mean, shape ``(k, *shape)``."""
        return self.both[1]


@register_pytree
class Correlated(Law):
    """Mean and variance of values that share noise; see the module."""

    __slots__ = ()
    RANK = 4

    _joint: Joint

    def moments(self) -> Any:
        """Mean and variance."""
        return self._joint.alone.moments()

    def _assign(self, new: Any) -> None:
        """Become ``new``; a write that other names of the memory would have to see is refused."""
        others = [law() for law in self._joint.sharing]
        if any(law is not None and law is not self for law in others):
            raise unsupported(
                Tensor.copy_, self, "a view, or what it was taken from, cannot be written to; write x = f(x)"
            )
        if not isinstance(new, Correlated):
            zero = torch.zeros_like(self._mean)
            new = correlated(
                tensor_of(new).expand(zero.shape), zero, self._joint.tangents * 0, self._joint.deviations * 0
            )
        self._become(new)

    def _overwrite(self, new: Any) -> None:
        self._assign(new)

    def _reshape(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], new: Law) -> None:
        self._become(new)  # in the same memory, as before

    def _become(self, new: Any) -> None:
        self._mean, self._var, self._joint = new._mean, new._var, new._joint
        self._version += 1

    def _like(self, *parts: Tensor) -> Law:
        raise unsupported(Tensor.copy_, self, "a correlated value is more than its mean and variance")


def correlated(
    mean: Tensor, var: Tensor, tangents: Tensor, deviations: Tensor, explained: Tensor | None = None, **more: Any
) -> Correlated:
    """A law; ``more`` are fields of :class:`Joint`."""
    if explained is None:
        explained = squared_length(tangents)
    return law_of(mean, var, Joint((tangents, deviations), explained, diagonal(mean, var), **more))


def law_of(mean: Tensor, var: Tensor, joint: Joint) -> Correlated:
    """A law of its parts."""
    law: Correlated = new_law(Correlated, mean, var)
    law._noise, law._joint = Correlated, joint
    return law


def squared_length(rows: Tensor) -> Tensor:
    """Σ_j S_j²."""
    return rows.square().sum(0)


def deflated(deviations: Tensor, tangents: Tensor) -> Tensor:
    """The first samples, or all, without what the directions explain, shape ``(k, ...)``."""
    coordinates = RUN.get().coordinates[: len(deviations)]
    return deviations - (coordinates @ tangents.flatten(1)).view(deviations.shape)


def mixed(
    mean: Tensor, prior: Tensor, tangents: Tensor, deviations: Tensor, channel: int, third: Tensor | None = None
) -> Correlated:
    """The law of a function of several values.

    Args:
        mean: of the result, if its inputs are normal.
        prior: its *variance* by a remainder of independent values.
        tangents: of the result.
        deviations: likewise.
        channel: the dimension along which factors of the prior may differ.
        third: see :class:`Joint`.
    """
    h, prior = squared_length(tangents), prior.expand(mean.shape)
    rest = deflated(deviations, tangents)
    shift = shift_of(rest)
    factor = shrunk(prior, rest - shift, channel)
    return correlated(mean + shift, h + factor * prior, tangents, deviations - shift, h, third=third)


def exact(alone: Diagonal, rows: tuple[Tensor, Tensor] | Rows, explained: Tensor, **more: Any) -> Correlated:
    """The law of a function of each value by itself, whose marginals are those of ``alone``.

    The variance is at least what the directions explain.
    """
    mean, var = alone._parts()
    companion = with_history(diagonal(mean, torch.maximum(var, explained)), alone)
    return law_of(mean, companion._var, Joint(rows, explained, companion, **more))


def with_history(law: Diagonal, of: Diagonal) -> Diagonal:
    """``law``, as if it came from the call that ``of`` comes from."""
    law._call, law._of, law._depth = of._call, of._of, of._depth
    if of._call is not None:
        law._seen = of._seen
    return law
