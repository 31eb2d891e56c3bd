"""``Channels``: a data set's statistics, one mean and variance per channel, without batch and space.

:mod:`momentgen.nn.normalize` propagates it (Shekhovtsov & Flach 2018, section 4).  Every place of an image is taken to
have its channel's statistics, so that a convolution is a sum over the places of its kernel.  The network's code sees a
nominal shape: a batch of one, C channels, one place.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.arguments import tensor_of
from momentgen.laws.diagonal import Diagonal, diagonal, pair
from momentgen.laws.law import Law, MomentsOf, Rule, laws_in, new_law, rule, rule_of
from momentgen.laws.numerics.maximum import maximum_of
from momentgen.laws.numerics.rank_two import one_input
from momentgen.laws.pytrees import register_pytree
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported
from momentgen.runtime import Moments

__all__ = ["Channels", "channels"]


@register_pytree
class Channels(Law):
    """Statistics of channels, shape ``(C,)``, of a nominal shape ``(1, C, 1, ...)``."""

    __slots__ = ("_dims", "_values")
    RANK = 2

    _dims: int
    #: the same as independent values, which remember what they are functions of
    _values: Diagonal

    def moments(self) -> Moments:
        """Mean and variance, shape ``(C,)``."""
        return Moments(self._mean, self._var)

    def by_moments(self, function: MomentsOf) -> Channels:
        """A function of one value at a time, given by its mean and variance from those of the value."""
        return _made(*function(self._mean, self._var), self._dims)

    def _form(self) -> Tensor:
        return self._mean.detach().view(1, -1, *[1] * (self._dims - 2))

    def _parts(self) -> tuple[Tensor, ...]:
        return (self._mean, self._var)


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
    dims = 2
    if isinstance(where, torch.nn.Module):
        for part in where.modules():
            name = type(part).__name__
            if name.endswith(("1d", "2d", "3d")) and name.startswith(("Conv", "BatchNorm", "MaxPool", "AvgPool")):
                dims = int(name[-2]) + 2
                break
            if isinstance(part, torch.nn.Linear):
                break
    return _made(mean, var, dims)


def _made(mean: Tensor, var: Tensor, dims: int, values: Diagonal | None = None) -> Channels:
    law: Channels = new_law(Channels, mean, var)
    law._dims = dims
    law._values = diagonal(mean, var) if values is None else values
    law._noise = Channels
    return law


@rule(Channels, "linear")
def _linear(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Channels:
    x = args[0]
    bound = {**dict(zip(("weight", "bias"), args[1:], strict=False)), **kwargs}
    weight, bias = bound["weight"], bound.get("bias")
    # After a flatten every channel fills in_features / C inputs.
    copies, rest = divmod(weight.shape[1], x._mean.shape[0])
    if rest:
        raise InputError(f"Linear: {weight.shape[1]} input features do not come from {x._mean.shape[0]} channels")
    if copies == 1:
        return _made(*one_input(x._mean, x._var, weight, bias), 2)
    parts = weight.reshape(weight.shape[0], -1, copies)  # torch.compile cannot trace unflatten here
    return _made(F.linear(x._mean, parts.sum(2), bias), F.linear(x._var, parts.square().sum(2)), 2)


@rule(Channels, *(f"conv{d}d" for d in (1, 2, 3)))
def _conv(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Channels:
    """Every place of the kernel sees a place of the same statistics."""
    x = args[0]
    bound = {
        **dict(zip(("weight", "bias", "stride", "padding", "dilation", "groups"), args[1:], strict=False)),
        **kwargs,
    }
    weight, bias, groups = bound["weight"], bound.get("bias"), bound.get("groups", 1)
    if x._mean.shape != (weight.shape[1] * groups,):
        raise InputError(f"{entry.name}: expected {weight.shape[1] * groups} channels, got {tuple(x._mean.shape)}")
    if groups == 1:
        flat = weight.flatten(1)
        places = flat.shape[1] // weight.shape[1]
        mean, var = (part[:, None].expand(-1, places).reshape(-1) for part in x._parts())
        return _made(*one_input(mean, var, flat, bias), weight.dim())
    parts = weight.reshape(groups, -1, weight.shape[1], weight[0, 0].numel())
    mean, var = (part.reshape(groups, -1) for part in x._parts())
    mean = torch.einsum("goik,gi->go", parts, mean).flatten()
    var = torch.einsum("goik,gi->go", parts.square(), var).flatten()
    return _made(mean if bias is None else mean + bias, var, weight.dim())


@rule(Channels, "movement")
def _movement(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if entry.name == "cat":
        parts = args[0]
        if not all(isinstance(part, Channels) for part in parts):
            raise unsupported(entry, laws_in(args)[0], "statistics join with statistics only")
        return _made(torch.cat([p._mean for p in parts]), torch.cat([p._var for p in parts]), parts[0]._dims)
    x = args[0]
    out = entry.call(x._form(), *[tensor_of(value) for value in args[1:]], **kwargs)
    if not isinstance(out, Tensor) or out.dim() < 2 or tuple(out.shape[:2]) != (1, x._mean.shape[0]):
        raise unsupported(entry, x, "channels do not stay what they are")
    return _made(x._mean.to(out.dtype), x._var.to(out.dtype), out.dim())


@rule(Channels, "pad")
def _pad(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("mode", args[2] if len(args) > 2 else "constant") == "constant":
        raise unsupported(entry, args[0], "a constant has other statistics than the channel")
    return args[0]


@rule(Channels, *(f"avg_pool{d}d" for d in (1, 2, 3)))
def _avg_pool(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, n = args[0], _window(entry, args, kwargs)
    return _made(x._mean, x._var / n, x._dims)


@rule(Channels, *(f"max_pool{d}d" for d in (1, 2, 3)))
def _max_pool(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, n = args[0], _window(entry, args, kwargs)
    mean, var = maximum_of(x._mean.expand(n, -1), x._var.expand(n, -1), 0)
    return _made(mean, var, x._dims)


def _window(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    kernel = kwargs.get("kernel_size", args[1] if len(args) > 1 else None)
    dims = int(entry.name[-2])
    return math.prod(kernel) if isinstance(kernel, tuple | list) else int(kernel**dims)  # type: ignore[operator]


@rule(Channels, "pointwise", "arithmetic", "noise")
def _as_diagonal(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Functions of each value by itself: as of independent values."""
    first = laws_in(args)[0]
    for value in args:
        if isinstance(value, Tensor) and value.dim():
            raise unsupported(entry, first, "a tensor of several numbers has places, and channels have none")
    inner = tuple(value._values if isinstance(value, Channels) else value for value in args)
    out = cast(Rule, rule_of(Diagonal, entry.name, entry.kind))(entry, inner, kwargs)
    if not isinstance(out, Diagonal):
        return out
    return _made(*pair(out), cast(Channels, first)._dims, out)


@rule(Channels, "batch_norm")
def _batch_norm(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    bound = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    x, eps = args[0], bound.get("eps", 1e-5)
    if bound.get("training"):
        # The data set's own statistics are those of the batch.
        mean, var = torch.zeros_like(x._mean), x._var / (x._var + eps)
    else:
        scale = bound["running_var"] + eps
        mean, var = (x._mean - bound["running_mean"]) * scale.rsqrt(), x._var / scale
    if bound.get("weight") is not None:
        mean, var = mean * bound["weight"], var * bound["weight"].square()
    return _made(mean if bound.get("bias") is None else mean + bound["bias"], var, x._dims)


@rule(Channels, "softmax")
def _same(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]  # statistics of logits are what a normalisation wants


@rule(Channels, "query")
def _query(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return entry.call(*[tensor_of(value) for value in args], **kwargs)
