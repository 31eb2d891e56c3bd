"""A call of a torch function as the rules of ``Correlated`` see it: its laws, and what stands in their place.

:mod:`momentgen.laws.correlated_rules` and :mod:`momentgen.laws.correlated_affine` stand on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.correlated import Correlated
from momentgen.laws.diagonal import Diagonal, diagonal
from momentgen.laws.law import laws_in
from momentgen.laws.numerics.magnification import magnification, magnified, overall, reduced
from momentgen.laws.point import Point
from momentgen.laws.rules import diagonal_rule
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported

__all__ = [
    "Call", "Given", "alone_of", "arguments", "by_rule", "channel_of", "marginals", "random_in", "remainder", "split",
    "stacked",
]  # fmt: skip

#: the law of independent values that stands for a correlated one
Given = Callable[[Correlated], Any]


# ------------------------------------------------------------------ arguments


def _with(value: Any, given: Given) -> Any:
    if isinstance(value, Correlated):
        return given(value)
    if isinstance(value, Point):
        return value._form()
    if type(value) in (tuple, list):
        return type(value)([_with(item, given) for item in value])
    return value


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any], given: Given) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with what ``given`` makes of each correlated law, and the tensor of each certain one."""
    return tuple([_with(value, given) for value in args]), {key: _with(v, given) for key, v in kwargs.items()}


def random_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Correlated]:
    """The correlated laws among the arguments, each once."""
    found = {id(law): law for law in laws_in((*args, *kwargs.values())) if isinstance(law, Correlated)}
    return list(found.values())


def by_rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], given: Given) -> Any:
    """The rule of independent values, on laws that ``given`` makes of the correlated ones."""
    own = diagonal_rule(entry.name, entry.kind)
    if own is None:
        raise unsupported(entry.call, laws_in((*args, *kwargs.values()))[0], None, entry)
    rest, named = arguments(args, kwargs, given)
    return own(entry, rest, named)


def alone_of(law: Correlated) -> Diagonal:
    """Mean and variance, with the history that tells functions of one value."""
    return law._joint.alone


def marginals(law: Correlated) -> Diagonal:
    """Mean and variance, without a history."""
    return diagonal(law._mean, law._var)


def remainder(law: Correlated) -> Diagonal:
    """The mean with D, the variance that the directions do not explain."""
    return diagonal(law._mean, (law._var - law._joint.explained).clamp_min(0))


# ----------------------------------------------------------------------- rows


class Call:
    """A call as a function of the tensors that stand for its correlated laws."""

    def __init__(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.call, self.args, self.kwargs = entry.call, args, kwargs
        self.laws = random_in(args, kwargs)

    def __call__(self, *values: Any) -> Any:
        own, named = arguments(self.args, self.kwargs, self.in_place_of(values))
        return self.call(*own, **named)

    def in_place_of(self, values: Any) -> Given:
        """What gives each law its value."""
        place = {id(law): value for law, value in zip(self.laws, values, strict=True)}
        return lambda law: place[id(law)]

    def deviations(self, mean: Tensor, var: Tensor, place: int | None = None) -> Tensor:
        """Of each sample of the result, or of that at ``place``, from its ``mean``; ``var`` is about its variance."""
        at = self(*[law._mean for law in self.laws])
        at = at if place is None else at[place]
        factor = magnification([overall(law._mean, law._var) for law in self.laws], overall(at, var))
        rows = [magnified(law._mean, law._joint.deviations, factor) for law in self.laws]
        samples = torch.vmap(self, randomness="different")(*rows)
        return reduced(samples if place is None else samples[place], at, mean, factor)

    def along(self, rows: list[Tensor], function: Callable[..., Any] | None = None) -> Any:
        """Directional derivatives at the means, of the call or of another function of the same values."""
        at = tuple(law._mean.contiguous() for law in self.laws)  # forward mode writes beside it
        chosen = self if function is None else function
        return torch.vmap(lambda *t: torch.func.jvp(chosen, at, t)[1], randomness="different")(*rows)

    def tangents(self) -> list[Tensor]:
        """Of each law."""
        return [law._joint.tangents for law in self.laws]


def stacked(law: Correlated, skewed: bool = False) -> Tensor:
    """Tangents and deviations, which linear maps treat alike; where values only move, third cumulants behind them."""
    joint = law._joint
    third = [] if not skewed else [(torch.zeros_like(law._mean) if joint.third is None else joint.third)[None]]
    return torch.cat([joint.tangents, joint.deviations, *third])


def split(rows: Tensor, like: Correlated) -> tuple[Tensor, Tensor]:
    """Tangents and deviations of stacked rows."""
    count = len(like._joint.tangents)
    return rows[:count], rows[count : count + len(like._joint.deviations)]


def channel_of(entry: Entry, mean: Tensor) -> int:
    """The dimension along which units are alike: channels of a convolution, features of all else."""
    of_space = entry.name.startswith(("conv", "avg_pool", "max_pool", "adaptive")) or mean.dim() == 4
    return 1 if of_space and mean.dim() > 2 else -1
