"""Noise of a network's own that meets a random value: dropout, random slopes, draws."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from momentgen.laws import noise
from momentgen.laws.arguments import tensor_of, tensors_of
from momentgen.laws.covariance import source
from momentgen.laws.covariance_functions import joint, of_diagonal
from momentgen.laws.diagonal import Diagonal, diagonal, made, pair
from momentgen.laws.law import remember, rule
from momentgen.laws.point import Point, point
from momentgen.laws.rules.elementwise import pointwise_jointly, random_slope
from momentgen.laws.table import Entry, names
from momentgen.laws.unsupported import unsupported

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


# ------------------------------------------------------------ Covariance


#: noise that does not depend on the value that it is given
_NEW = frozenset(names("randn_like rand_like randint_like normal_ uniform_ bernoulli_"))


@joint("noise")
def _noise_jointly(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not noise.active(entry, args, kwargs):
        if entry.name == "rrelu":
            return F.leaky_relu(x, sum(noise.slopes(entry, args, kwargs)) / 2)
        return x
    if entry.name in _CHANNELS:
        return _by_channel(entry, args, kwargs)
    if isinstance(x, Point) or entry.name in _NEW:
        plain, named = tensors_of(args, kwargs)
        mean, var = of_diagonal(entry)(
            entry, (diagonal(plain[0], torch.zeros_like(plain[0])), *plain[1:]), named
        )._parts()
        return source(mean, var, name=entry.name)
    if entry.name == "feature_alpha_dropout":
        raise unsupported(entry, x, "what the values of a dropped channel have in common has no rule")
    return pointwise_jointly(entry, args, kwargs, terms=1 if "dropout" in entry.name else None)


def _by_channel(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout of whole channels: a product with noise that all values of a channel have in common."""
    x, p = args[0], noise.probability(entry, args, kwargs)
    if p >= 1:
        return torch.zeros_like(x)
    batch = noise.channels(entry.name, x.ndim)
    ones = torch.ones((*x.shape[:batch], *[1] * (x.ndim - batch)), dtype=x.dtype, device=x.device)
    scale: Any = point(ones, x._noise)
    return x * F.dropout(scale, p)
