"""Derivatives of the means of norms and softmax, in closed form.

The moments of a layer norm are an integral, and those of a softmax the end of an iteration.  To differentiate either
takes many times its own time, for each direction.  The functions here have nearly the same derivatives by the input's
mean, and cost a line.  A norm uses the expected statistics of the input, its variance included.  A softmax is taken at
the mean probabilities, less steep by their variance.
Laws that carry directions take values from the rules, and slopes from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.affine import bind
from momentgen.laws.arguments import tensors_of
from momentgen.laws.table import Entry

__all__ = ["slope_of"]

#: a function of the input's mean
Function = Callable[[Tensor], Tensor]
#: mean and variance of a function's result
Result = tuple[Tensor, Tensor]


def slope_of(
    entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], var: Tensor, out: Tensor, spread: Tensor
) -> Function | None:
    """A function of the mean of the first argument with nearly the derivative that the rule's mean has.

    Args:
        entry: of the function.
        args: of the call; all but the first are certain.
        kwargs: of the call.
        var: *variance* of the first argument.
        out: mean of the result.
        spread: *variance* of the result.

    Returns:
        The function, but for a constant; None for a function that has none here, or of which more than the first
        argument is random.
    """
    rest, named = tensors_of(args[1:], kwargs)
    make = _MAKERS.get(entry.name)
    return None if make is None else make(rest, named, var, (out, spread))


def _normed(var: Tensor, dims: tuple[int, ...], eps: float, centred: bool) -> Function:
    noise = var.mean(dims, keepdim=True)

    def function(mean: Tensor) -> Tensor:
        away = mean - mean.mean(dims, keepdim=True) if centred else mean
        return away * torch.rsqrt(away.square().mean(dims, keepdim=True) + noise + eps)

    return function


def _scaled(inner: Function, weight: Tensor | None, channels: bool) -> Function:
    if weight is None:
        return inner

    def function(mean: Tensor) -> Tensor:
        shape = [1, -1] + [1] * (mean.dim() - 2)
        return inner(mean) * (weight.view(shape) if channels else weight)

    return function


def _layer_norm(rest: tuple[Any, ...], named: dict[str, Any], var: Tensor, out: Result) -> Function:
    bound = bind("layer_norm", rest, named)
    dims = tuple(range(-len(bound["normalized_shape"]), 0))
    return _scaled(_normed(var, dims, bound.get("eps", 1e-5), True), bound.get("weight"), False)


def _rms_norm(rest: tuple[Any, ...], named: dict[str, Any], var: Tensor, out: Result) -> Function:
    bound = bind("rms_norm", rest, named)
    dims, eps = tuple(range(-len(bound["normalized_shape"]), 0)), bound.get("eps")
    own = torch.finfo(var.dtype).eps if eps is None else eps
    return _scaled(_normed(var, dims, own, False), bound.get("weight"), False)


def _grouped(groups: int, eps: float, weight: Tensor | None, var: Tensor) -> Function:
    def function(mean: Tensor) -> Tensor:
        shape = (mean.shape[0], groups, -1)
        inner = _normed(var.reshape(shape), (-1,), eps, True)
        return inner(mean.reshape(shape)).reshape(mean.shape)

    return _scaled(function, weight, True)


def _group_norm(rest: tuple[Any, ...], named: dict[str, Any], var: Tensor, out: Result) -> Function:
    bound = bind("group_norm", rest, named)
    return _grouped(bound["num_groups"], bound.get("eps", 1e-5), bound.get("weight"), var)


def _softmax(rest: tuple[Any, ...], named: dict[str, Any], var: Tensor, out: Result) -> Function:
    """The Jacobian at the mean probabilities q; E p (1 - p) is q - q² less the variance, hence the share."""
    dim = named.get("dim", rest[0] if rest else -1)
    mean, spread = out
    curvature = (mean - mean * mean).sum(dim, keepdim=True)
    positive = curvature > torch.finfo(mean.dtype).eps
    share = 1 - torch.where(positive, spread.sum(dim, keepdim=True) / torch.where(positive, curvature, 1), 0)
    weight = mean * share.clamp(0, 1)

    def function(given: Tensor) -> Tensor:
        given = given.masked_fill(given == -torch.inf, 0)  # a masked class, of weight 0
        return weight * (given - (mean * given).sum(dim, keepdim=True))

    return function


_MAKERS: dict[str, Callable[[tuple[Any, ...], dict[str, Any], Tensor, Result], Function]] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "softmax": _softmax,
}
