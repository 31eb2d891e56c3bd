"""Sums of noisy values at the border: a network is called with their sources, and adds them up inside.

So every method draws, or propagates, each source once, whichever arguments it is in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from momentgen.laws.nests import leaves_of, mapped
from momentgen.runtime import Moments, Term, terms_of

__all__ = ["drawn", "with_sources"]


@dataclasses.dataclass
class _Sum:
    """A sum among the arguments of a network, with its sources where the border finds them.

    Attributes:
        offset: the certain part.
        terms: of the sum, without their sources.
        noises: the sources, one for each term; inside the network what stands for them.
    """

    offset: Tensor
    scales: list[Tensor | float]
    places: list[tuple[int | None, tuple[int, ...]]]
    noises: list[Any]

    def value(self) -> Any:
        """The sum of what stands for the sources."""
        total: Any = self.offset
        for noise, scale, (start, shape) in zip(self.noises, self.scales, self.places, strict=True):
            total = total + Term(noise, scale, start, shape).of(noise)
        return total


def _sum(value: Any) -> Any:
    """A sum in the place of moments that are one; anything else as it is."""
    if not isinstance(value, Moments):
        return value
    offset, terms = terms_of(value)
    if offset is None:
        return value
    places = [(term.start, term.shape) for term in terms]
    return _Sum(offset, [term.scale for term in terms], places, [term.source for term in terms])


def _value(value: Any) -> Any:
    return value.value() if isinstance(value, _Sum) else value


def with_sources(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The code of a network and arguments without sums: their sources are there, and the code adds them up.

    Args:
        forward: the network's code.
        args: of its call, with sums in any containers.
        kwargs: likewise.
    """
    if all(not isinstance(leaf, Moments) or terms_of(leaf)[0] is None for leaf in leaves_of((args, kwargs))):
        return forward, args, kwargs

    def summed(*args: Any, **kwargs: Any) -> Any:
        return forward(*mapped(_value, args, (_Sum,)), **mapped(_value, kwargs, (_Sum,)))

    return summed, mapped(_sum, args), mapped(_sum, kwargs)


def drawn(value: Moments, draw: Callable[[Moments], Tensor]) -> Tensor:
    """One sample of a sum, each of its sources drawn once."""
    draws: dict[int, Tensor] = {}

    def once(source: Any) -> Any:
        if not isinstance(source, Moments):
            return source
        if id(source) not in draws:
            draws[id(source)] = draw(source)
        return draws[id(source)]

    found: Tensor = mapped(once, _sum(value)).value()
    return found
