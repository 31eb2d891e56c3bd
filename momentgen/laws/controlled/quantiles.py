"""Quantiles of draws: between ordered ones, and where the shortest interval begins."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["at", "below", "lower_tail"]

#: lower tails that are tried for the shortest interval, and those on each side that tell where it is
_TAILS, _NEAR = 35, 4


def below(place: Tensor, values: Tensor) -> Tensor:
    """1 for each value that is at a place or below, else 0."""
    return (values <= place).double()


def at(ordered: Tensor, probability: Tensor) -> Tensor:
    """Quantiles of ordered draws, between which they are interpolated."""
    place = (probability.expand(ordered.shape[1:]) * len(ordered) - 0.5).nan_to_num().clamp(0, len(ordered) - 1)
    first = place.long()
    lower = ordered.gather(0, first[None])[0]
    upper = ordered.gather(0, (first + 1).clamp_max(len(ordered) - 1)[None])[0]
    return lower + (place - first) * (upper - lower)


def lower_tail(
    sets: Sequence[Tensor], drawn: Tensor, others: list[Tensor], level: float, factor: float
) -> tuple[Tensor, Tensor]:
    """The probability below the shortest interval of each output, and its error; widths are a parabola nearby."""
    near = torch.arange(-_NEAR, _NEAR + 1, dtype=torch.float64)[:, None, None]
    square = near.square() - near.square().mean()

    def smooth(part: Tensor) -> Tensor:  # tails are denser near the ends, where widths are steep
        return (1 - level) * part.square() * (3 - 2 * part)

    def found(values: Tensor) -> Tensor:
        ordered, tails = values.sort(0).values, smooth(torch.linspace(0, 1, _TAILS, dtype=torch.float64))
        every = torch.stack([at(ordered, tail + level) - at(ordered, tail) for tail in tails])
        middle = every.argmin(0).clamp(_NEAR, _TAILS - 1 - _NEAR)
        some = every.gather(0, middle + near.long())
        bend, slope = (some * square).sum(0) / square.square().sum(), (some * near).sum(0) / near.square().sum()
        lowest = torch.where(bend > 0, -slope / (2 * bend), 0).clamp(-_NEAR, _NEAR)
        return smooth((middle + lowest) / (_TAILS - 1))

    own = torch.stack([found(part) for part in sets]).var(0) / len(sets)
    apart = torch.stack([found(one) for one in others]).var(0, correction=0) if others else own
    return found(drawn), (own + factor * apart).sqrt()
