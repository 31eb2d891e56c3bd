"""``Channels``: a data set's statistics, one mean and variance per channel, without batch and space.

:mod:`momentgen.nn.normalize` propagates it (Shekhovtsov & Flach 2018, section 4).  Every place of an image is taken to
have its channel's statistics.  So it is a ``Diagonal`` of a nominal shape: a batch of one, C channels, one place.  A
convolution or a pool sees as many places as its window has, of the same statistics and independent.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.diagonal import Diagonal, diagonal, register_pytree
from momentgen.laws.law import MomentsOf, Rule, laws_in, new_law, rule, rule_of
from momentgen.laws.notes import unsupported
from momentgen.laws.rules.linear import bind, bind_norm, for_each
from momentgen.laws.table import Entry
from momentgen.runtime import Moments


@register_pytree
class Channels(Diagonal):
    """Statistics of channels, of a nominal shape ``(1, C, 1, ...)``."""

    __slots__ = ()
    RANK = 2

    def moments(self) -> Moments:
        """Mean and variance, shape ``(C,)``."""
        return Moments(*(part.reshape(-1) for part in self._parts()))

    def by_moments(self, function: MomentsOf) -> Channels:
        """A function of one value at a time, given by its mean and variance from those of the value, shape ``(C,)``."""
        return _made(*(part.view(self.shape) for part in function(*self.moments())))


def channels(mean: Tensor, var: Tensor, where: object = None) -> Channels:
    """Statistics of a data set.

    Args:
        mean: per channel, shape ``(C,)``.
        var: likewise.
        where: the network that they enter; its first layer says how many dimensions it expects.

    Raises:
        InputError: for other shapes.
    """
    if mean.dim() != 1:
        raise InputError(f"propagate_statistics: expected shape (C,), got {tuple(mean.shape)}")
    space = 0
    if isinstance(where, torch.nn.Module):
        for part in where.modules():
            name = type(part).__name__
            if name.endswith(("1d", "2d", "3d")) and name.startswith(("Conv", "BatchNorm", "MaxPool", "AvgPool")):
                space = int(name[-2])
                break
            if isinstance(part, torch.nn.Linear):
                break
    return _made(*(part.view(1, -1, *[1] * space) for part in (mean, var)))


def _made(mean: Tensor, var: Tensor) -> Channels:
    law: Channels = new_law(Channels, mean, var)
    law._noise = Channels
    return law


def _as_diagonal(entry: Entry, *args: Any, **kwargs: Any) -> Any:
    """What the rule of ``Diagonal`` makes of a call; a law that it returns is one of statistics."""
    found = cast(Rule, rule_of(Diagonal, entry.name, entry.kind))(entry, args, kwargs)
    if type(found) is not Diagonal:
        return found
    law = _made(*found._parts())
    law._history = found._history
    return law


@rule(Channels, "linear")
def _linear(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """After a flatten every channel fills in_features / C inputs."""
    weight: Any = kwargs.get("weight", args[1] if len(args) > 1 else None)
    mean, var = args[0].moments()
    copies, rest = divmod(weight.shape[1], len(mean))
    if rest:
        raise InputError(f"Linear: {weight.shape[1]} input features do not come from {len(mean)} channels")
    inputs = diagonal(*(part[None, :, None].expand(-1, -1, copies).flatten(1) for part in (mean, var)))
    return _as_diagonal(entry, inputs, *args[1:], **kwargs)


@rule(Channels, *(f"{name}{d}d" for name in ("conv", "avg_pool", "max_pool") for d in (1, 2, 3)))
def _over_window(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every place of a window has the same statistics; where windows stand does not count."""
    if entry.name.startswith("conv"):
        bound = bind(entry.name, args[1:], kwargs)
        rest: dict[str, Any] = {name: bound[name] for name in ("weight", "bias", "groups") if name in bound}
        window = rest["weight"].shape[2:]
    else:
        window = for_each(kwargs.get("kernel_size", args[1] if len(args) > 1 else None), int(entry.name[-2]))
        rest = {"kernel_size": window}
    places = (part.view(1, -1, *[1] * len(window)).expand(-1, -1, *window) for part in args[0].moments())
    return _as_diagonal(entry, diagonal(*places), **rest)


@rule(Channels, "movement", "pointwise", "arithmetic", "noise", "query")
def _by_value(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Functions of each value by itself, and movements that leave channels where they are."""
    found = _as_diagonal(entry, *args, **kwargs)
    if entry.kind != "query" and (not isinstance(found, Channels) or found.shape[:2] != (1, found.numel())):
        raise unsupported(entry, laws_in(args)[0], "channels do not stay what they are")
    return found


@rule(Channels, "pad")
def _pad(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("mode", args[2] if len(args) > 2 else "constant") == "constant":
        raise unsupported(entry, args[0], "a constant has other statistics than the channel")
    return args[0]


@rule(Channels, "batch_norm")
def _batch_norm(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = bind_norm(entry.call, args[1:], kwargs)
    if bound.get("training"):  # the data set's own statistics are those of the batch
        mean, var = args[0].moments()
        bound |= {"running_mean": mean, "running_var": var, "training": False}
    return _as_diagonal(entry, args[0], **bound)


@rule(Channels, "softmax")
def _same(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]  # statistics of logits are what a normalisation wants
