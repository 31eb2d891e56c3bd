"""Rules of ``Correlated`` for affine functions and movement, which map tangents and deviations alike, in one call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws import affine
from momentgen.laws.correlated import Correlated, correlated, mixed, squared_length
from momentgen.laws.correlated_calls import (
    Call,
    alone_of,
    arguments,
    by_rule,
    channel_of,
    marginals,
    remainder,
    split,
    stacked,
)
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.law import Law, tensor_of
from momentgen.laws.movement import ONCE, shares_memory
from momentgen.laws.table import Entry

__all__ = ["affine_rule", "linear_part", "movement_rule"]

# --------------------------------------------------------------------- affine

#: affine functions whose first dimension is the batch
_BATCHED = frozenset(
    ["linear", "batch_norm"]
    + [f"{name}{d}d" for name in ("conv", "conv_transpose", "avg_pool", "adaptive_avg_pool") for d in (1, 2, 3)]
)


def linear_part(
    entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], mean: Tensor
) -> Callable[[Tensor], Tensor]:
    """An affine function without its constant, of rows of values; ``mean`` is that of the first argument."""
    own, named = arguments(args[1:], kwargs, tensor_of)
    shape = mean.shape
    if entry.name == "linear" or entry.name.startswith("conv"):
        bound = {**affine.bind(entry.name, own, named), "bias": None}

        def linear(x: Tensor) -> Tensor:
            return cast(Tensor, entry.call(x, **bound))

    else:
        zero = entry.call(torch.zeros_like(mean), *own, **named)

        def linear(x: Tensor) -> Tensor:
            return cast(Tensor, entry.call(x, *own, **named) - zero)

    if entry.name in _BATCHED and len(shape) > 1 and shape[0] == 1:
        # An example is a batch of one, and rows may take the batch's place.
        return lambda rows: linear(rows.squeeze(1)).unsqueeze(1)
    return torch.vmap(linear)


def affine_rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An affine function of one law: the first after noise is exact, since its values are independent."""
    x = args[0]
    each = entry.name == "batch_norm"  # a function of each value by itself
    independent = x._joint.independent
    mean, var = by_rule(entry, args, kwargs, alone_of if independent or each else remainder)._parts()
    tangents, deviations = split(linear_part(entry, args, kwargs, x._mean)(stacked(x)), x)
    third = _third_of_affine(entry, args, kwargs)
    if not independent and not each:
        return mixed(mean, var, tangents, deviations, channel_of(entry, mean), third)
    h = squared_length(tangents)
    independent = each and independent
    return correlated(mean, torch.maximum(var, h), tangents, deviations, h, independent=independent, third=third)


def _third_of_affine(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Third cumulants of an affine function of values that are skewed each by noise of its own."""
    third = args[0]._joint.third
    if third is None:
        return None
    own, named = arguments(args[1:], kwargs, tensor_of)
    if entry.name == "linear" or entry.name.startswith("conv"):
        bound = affine.bind(entry.name, own, named)
        return cast(Tensor, entry.call(third, **{**bound, "weight": bound["weight"] ** 3, "bias": None}))
    if entry.name == "batch_norm":
        ones = torch.ones_like(third)
        return third * linear_part(entry, args, kwargs, args[0]._mean)(ones[None])[0] ** 3
    return None


# ------------------------------------------------------------------- movement


def movement_rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Values that move, all that is known of them with them."""
    if entry.name == "cat" and isinstance(args[0], Law):
        return args[0]
    moved = by_rule(entry, args, kwargs, marginals)
    call = Call(entry, args, kwargs)
    first = call.laws[0]
    only_moves = entry.name in ONCE  # and puts nothing beside the values
    zero = None if only_moves else call(*[torch.zeros_like(law._mean) for law in call.laws])

    def part(*values: Tensor) -> Any:
        out = call(*values)
        if zero is None:
            return out
        if isinstance(out, Tensor):
            return _less(out, zero)
        return tuple(_less(a, b) for a, b in zip(out, zero, strict=True))

    skewed = any(law._joint.third is not None for law in call.laws)
    rows = torch.vmap(part)(*[stacked(law, skewed) for law in call.laws])
    independent = first._joint.independent and only_moves

    def law(alone: Diagonal, own: Tensor) -> Correlated:
        mean, var = alone._parts()
        third = own[-1] if skewed else None
        made = correlated(mean, var, *split(own, first), independent=independent, third=third)
        if args[0] is first and shares_memory(entry, first._mean, mean, list(args[1:])):
            _share(first, made)
        return made

    if isinstance(moved, tuple | list):
        return type(moved)([law(one, own) for one, own in zip(moved, rows, strict=True)])
    if not isinstance(moved, Law):
        return moved
    return law(cast(Diagonal, moved), rows)


def _share(whole: Correlated, part: Correlated) -> None:
    """Let both know that they are in one memory."""
    sharing = whole._joint.sharing
    if not sharing:
        sharing.append(weakref.ref(whole))
    sharing.append(weakref.ref(part))
    part._joint = replace(part._joint, sharing=sharing)


def _less(value: Tensor, constant: Tensor) -> Tensor:
    """A moved value without what is put beside it, which may be infinite."""
    return torch.where(constant.isfinite(), value - constant, 0)
