"""Noise of a network's own that meets a random value: dropout, random slopes, draws."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from momentgen.laws import noise
from momentgen.laws.arguments import tensor_of
from momentgen.laws.diagonal import Diagonal, made, pair
from momentgen.laws.law import remember, rule
from momentgen.laws.point import point
from momentgen.laws.rules.elementwise import random_slope
from momentgen.laws.table import Entry, names

__all__ = []


#: dropout of whole channels
_CHANNELS = frozenset(names("dropout1d dropout2d dropout3d"))


@rule(Diagonal, "noise")
def _noise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not noise.active(entry, args, kwargs):
        if entry.name == "rrelu":
            return torch.nn.functional.leaky_relu(x, sum(noise.slopes(entry, args, kwargs)) / 2)
        return x
    if entry.name in _CHANNELS:
        return _by_channel(entry, args, kwargs)
    mean, var = pair(x)
    if entry.name == "rrelu":
        lower, upper = noise.slopes(entry, args, kwargs)
        return made(*random_slope(mean, torch.zeros_like(mean) if var is None else var, lower, upper))
    law = made(*noise.moments(entry, mean, var, [tensor_of(value) for value in args], kwargs))
    if entry.name == "dropout" and type(x) is Diagonal:  # that attention knows its weights; noise is a source elsewhere
        return remember(law, entry, (x, noise.probability(entry, args, kwargs)), {}, x)
    return law


def _by_channel(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout of whole channels: a product with noise that all values of a channel have in common."""
    x, p = args[0], noise.probability(entry, args, kwargs)
    if p >= 1:
        return torch.zeros_like(x)
    batch = noise.channels(entry.name, x.ndim)
    ones = torch.ones((*x.shape[:batch], *[1] * (x.ndim - batch)), dtype=x.dtype, device=x.device)
    scale: Any = point(ones, x._noise)
    return x * F.dropout(scale, p)
