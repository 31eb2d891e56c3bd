"""Affine functions: linear maps, convolutions, averages, sums, padding; exact unless coefficients are random too."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws import affine
from momentgen.laws.affine import VARIANCE
from momentgen.laws.coefficients import is_linear_map, noise_of_weight
from momentgen.laws.diagonal import Diagonal, made, mean_of, pair, var_of
from momentgen.laws.law import laws_in, remember, rule
from momentgen.laws.patterns import variance
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported

__all__ = []


@rule(Diagonal, "affine")
def _affine(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, rest = args[0], args[1:]
    if entry.name == "diff":
        return _difference(entry, args, kwargs)
    if laws_in(rest) or laws_in(kwargs.values()):
        return _random_coefficients(entry, args, kwargs)
    mean, var = pair(x)
    if var is None:
        raise unsupported(entry, laws_in(args)[0], "only its first argument may be random")
    if kwargs and "dtype" in kwargs:
        mean, var = mean.to(kwargs["dtype"]), var.to(kwargs["dtype"])
        kwargs = {name: value for name, value in kwargs.items() if name != "dtype"}
    bound = affine.bind(entry.name, rest, kwargs)
    affine.check(entry.name, mean, bound)
    out = entry.call(mean, *rest, **kwargs)
    if entry.name in ("mean", "sum"):
        if (found := variance(entry, x, rest, kwargs)) is not None:
            return found
        law = made(out, VARIANCE[entry.name](entry.call, var, *rest, **kwargs))
        return remember(law, entry, args, kwargs, x)
    return made(out, _second(entry, VARIANCE[entry.name], var, bound))


def _second(entry: Entry, function: Any, var: Tensor, bound: dict[str, Any]) -> Tensor:
    """A product of second moments, outside float16 autocast, where squares of weights underflow."""
    kind = var.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.float16:
        with torch.autocast(kind, enabled=False):
            return cast(Tensor, function(entry.call, var, **bound))
    return cast(Tensor, function(entry.call, var, **bound))


def _random_coefficients(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear map or convolution whose weight or bias is random: W_m² v + W_v (v + m²), two products."""
    if not is_linear_map(entry.name):
        raise unsupported(entry, laws_in(args)[0], "only its first argument may be random")
    bound = affine.bind(entry.name, args[1:], kwargs)
    weight, bias = bound.pop("weight"), bound.pop("bias", None)
    (m, v), (w, w_var), (b, b_var) = pair(args[0]), pair(weight), pair(bias)
    affine.check(entry.name, m, {"weight": w, **bound})
    out = entry.call(m, w, b, **bound)
    var = None if v is None else _second(entry, VARIANCE[entry.name], v, {"weight": w, **bound})
    if w_var is not None:
        own = noise_of_weight(entry.call, entry.name, m, v, w_var, getattr(weight, "neighbour", None), bound)
        var = own if var is None else var + own
    if b_var is not None:
        shape = [-1] if entry.name == "linear" else [-1] + [1] * int(entry.name[-2])
        of_bias = b_var.view(shape)
        var = of_bias.expand(out.shape) if var is None else var + of_bias
    return made(out, cast(Tensor, var))


def _difference(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.diff``: binomial coefficients, squared."""
    bound = {**dict(zip(("input", "n", "dim", "prepend", "append"), args, strict=False)), **kwargs}
    x, n, dim = bound["input"], bound.get("n", 1), bound.get("dim", -1)
    ends = (bound.get("prepend"), x, bound.get("append"))
    mean = torch.cat([mean_of(part) for part in ends if part is not None], dim)
    var = torch.cat([var_of(part) for part in ends if part is not None], dim)
    size = max(mean.shape[dim] - n, 0)
    total = torch.zeros_like(var.narrow(dim, 0, size))
    for k in range(n + 1):
        total = total + math.comb(n, k) ** 2 * var.narrow(dim, min(k, var.shape[dim] - size), size)
    return made(torch.diff(mean, n, dim), total)
