"""Attention, by torch's function or written by hand: ``softmax(scale · q kᵀ + bias) @ v``.

What is written by hand is found from the laws that each step remembers.  The scale may come before or after, masks may
be added or filled in, and weights may have dropout.  Shape and dtype may change in between.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.diagonal import Diagonal, made, pair
from momentgen.laws.law import Law, rule
from momentgen.laws.movement import RESHAPES
from momentgen.laws.notes import note
from momentgen.laws.numerics.attention import attention as moments
from momentgen.laws.patterns import CASTS, made_by, operation, scaled
from momentgen.laws.programs import number_of
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported

__all__ = ["attention", "attention_by_parts", "gram"]


#: a summand of the logits that is this low is a mask
_MASKED = -1e3


def attended(
    query: Any, key: Any, value: Any, scale: float, bias: Any, drop: float = 0.0, nothing: float = math.nan
) -> Any:
    """Attention by its rule for moments.

    Args:
        query: shape ``(..., L, E)``; it, key and value are laws or tensors.
        key: shape ``(..., S, E)``.
        value: shape ``(..., S, Ev)``.
        scale: of the products.
        bias: a certain summand of the logits, broadcast to ``(..., L, S)``, or None.
        drop: probability with which dropout drops a weight.
        nothing: the mean of an output whose query has all of its keys masked.
    """
    note("attention: queries, keys and values taken as independent of each other")
    if isinstance(bias, torch.Tensor):
        # A mask by very low numbers is one by minus infinity, but for rows that are all masked, which it leaves finite.
        low = bias < _MASKED
        low = low & ~low.all(-1, keepdim=True)
        bias = torch.where(low | (bias == -torch.inf), -torch.inf, bias.clamp_min(-1e9))
    return made(*moments(pair(query), pair(key), pair(value), scale, bias, drop, nothing=nothing))


class _Weights(NamedTuple):
    """Weights ``softmax(scale · q kᵀ + bias)``, with dropout or not.

    Args:
        query: shape ``(..., L, E)``.
        key: shape ``(..., S, E)``.
        scale: of the products.
        bias: a certain summand, or None.
        drop: probability with which a weight is dropped.
        batch: leading dimensions of the product.
    """

    query: Any
    key: Any
    scale: Any
    bias: Any
    drop: float
    batch: tuple[int, ...]


def _bare(law: Law) -> Law:
    """``law`` without what leaves its values, but for their dtype."""
    law = scaled(law)
    while made_by(law) in CASTS and isinstance(law._made[1][0], Law):  # type: ignore[index]
        law = scaled(law._made[1][0])  # type: ignore[index]
    return law


def _is_batched_alike(law: Law, inner: Law) -> bool:
    return law.ndim > 1 and inner.ndim > 1 and law.shape[-2:] == inner.shape[-2:]


def _weights(law: Any) -> _Weights | None:
    """The weights that ``law`` is, if they are of attention."""
    if not isinstance(law, Law):
        return None
    law, drop = _bare(law), 0.0
    while made_by(law) == "dropout" or made_by(law) in RESHAPES:
        inner = _bare(law._made[1][0])
        if not _is_batched_alike(law, inner) or (made_by(law) == "dropout" and drop):
            return None
        drop = law._made[1][1] if made_by(law) == "dropout" else drop
        law = inner
    if made_by(law) != "softmax":
        return None
    logits, dim = law._made[1]
    if not isinstance(logits, Law) or logits.ndim < 2 or dim % logits.ndim != logits.ndim - 1:
        return None
    scale: Any = 1.0
    bias: Any = None
    logits = _bare(logits)
    while made_by(logits) not in ("matmul", "rmatmul", "mm", "bmm"):
        if made_by(logits) in RESHAPES:
            inner = _bare(logits._made[1][0])  # type: ignore[index]
            if not _is_batched_alike(logits, inner):
                return None
            if bias is not None and bias.dim() > 2:
                bias = bias.expand(logits.shape).reshape(inner.shape)
            logits = inner
            continue
        step = _step(logits)
        if step is None:
            return None
        inner, term, factor = step
        if term is not None:
            term = term if isinstance(scale, float) and scale == 1.0 else term * scale
            bias = term if bias is None else bias + term
        scale = scale * factor
        logits = _bare(inner)
    _, args, kwargs = logits._made  # type: ignore[misc]
    batch = tuple(logits.shape[:-2])
    query, key = args[0], args[1]
    if kwargs or query.ndim < 2 or key.ndim < 2:
        return None
    return _Weights(query, key.transpose(-2, -1), scale, bias, drop, batch)


def _step(law: Law) -> tuple[Law, Any, Any] | None:
    """One function between a product and its softmax: the law below, what is added, by what it is multiplied."""
    name = made_by(law)
    if name in ("masked_fill", "where"):
        args = law._made[1]  # type: ignore[index]
        if name == "masked_fill":
            inner, mask, fill = args
        elif isinstance(args[1], Law) and args[1].RANK:
            inner, mask, fill = args[1], args[0].logical_not(), args[2]
        else:
            inner, mask, fill = args[2], args[0], args[1]
        lowest = fill.flatten()[0] if isinstance(fill, Tensor) and _is_constant(fill) else fill
        number = number_of(lowest)
        if not isinstance(inner, Law) or inner.shape != law.shape or number is None or number > _MASKED:
            return None
        zero = torch.zeros((), dtype=law.dtype, device=law.device)
        return inner, torch.where(mask, zero + max(number, -1e9 if number > -math.inf else -math.inf), zero), 1.0
    if (found := operation(law)) is None:
        return None
    _, inner, other = found
    if name in ("mul", "div"):
        if isinstance(other, Tensor) and other.dim() and other.numel() > 1 and other.shape[-2:] != (1, 1):
            return None
        return inner, None, other if name == "mul" else 1 / other
    if not isinstance(other, Tensor):
        return inner, None, 1.0  # the same for all keys
    return inner, other if name == "add" else -other, 1.0


def _is_constant(fill: Tensor) -> bool:
    return fill.numel() == 1 or all(step == 0 for step in fill.stride())


def attention(weights: Any, value: Any) -> Any:
    """``softmax(scale · q kᵀ + bias) @ v`` written by hand, by the rule of attention; None if it is not that.

    Args:
        weights: a law that may be the softmax of such logits, or a value where the other has them, transposed.
        value: a law or a tensor.
    """
    found = _weights(weights)
    if found is None:
        other = _transposed(value)
        if other is None or _weights(other) is None or not isinstance(weights, Law | Tensor) or weights.ndim < 2:
            return None
        out = attention(other, weights.transpose(-2, -1))
        return None if out is None else out.transpose(-2, -1)
    if value.ndim < 2:
        return None
    return _attended(found, tuple(weights.shape[:-2]), value)


def _attended(found: _Weights, batch: tuple[int, ...], value: Any) -> Any:
    if batch == found.batch:
        return attended(found.query, found.key, value, found.scale, found.bias, found.drop)
    value = value.expand(*batch, *value.shape[-2:]).reshape(*found.batch, *value.shape[-2:])
    out = attended(found.query, found.key, value, found.scale, found.bias, found.drop)
    return out.reshape(*batch, *out.shape[-2:])


def _transposed(law: Any) -> Law | None:
    """What ``law`` is the transpose of, in its last two dimensions."""
    if not isinstance(law, Law) or law.ndim < 2 or (law := scaled(law))._made is None:
        return None
    entry, (inner, *rest), kwargs = law._made
    if not isinstance(inner, Law) or entry.name not in _TRANSPOSITIONS:
        return None
    form = torch.empty(inner.shape, device="meta")
    return inner if entry.call(form, *rest[:-1], **kwargs).stride() == form.mT.stride() else None


_TRANSPOSITIONS = ("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "adjoint")


def gram(x: Any, y: Any) -> Tensor | None:
    """The variances of x, if the product is ``x xᵀ``; else None."""
    if not isinstance(x, Law) or not isinstance(y, Law):
        return None
    if not any(a is not None and a is b for a, b in ((_transposed(y), x), (_transposed(x), y))):
        return None
    return x._parts()[1]


# ------------------------------------------------------------- torch's function


_SDPA = ("key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@rule(Diagonal, "scaled_dot_product_attention")
def _scaled_dot_product(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    query, key, value, scale, bias, drop = _attention_arguments(entry, args, kwargs)
    return attended(query, key, value, scale, bias, drop, nothing=0.0)


def _attention_arguments(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Query, key, value, scale, bias and probability of dropout."""
    bound = {**dict(zip(("query", *_SDPA), args, strict=False)), **kwargs}
    query, key, value, mask = bound["query"], bound["key"], bound["value"], bound.get("attn_mask")
    if bound.get("enable_gqa"):
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale = bound.get("scale")
    dtype, device = query.dtype, query.device
    if isinstance(mask, Law):
        if mask.RANK:
            raise unsupported(entry, mask, "a mask or bias that is random has no rule")
        mask = mask._form()
    if bound.get("is_causal"):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=device).tril()
    bias = mask
    if mask is not None and mask.dtype is torch.bool:
        bias = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill(mask.logical_not(), -torch.inf)
    own = query.shape[-1] ** -0.5 if scale is None else scale
    return query, key, value, own, bias, bound.get("dropout_p", 0.0)


def attention_by_parts(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``scaled_dot_product_attention`` as two products and a softmax."""
    query, key, value, scale, bias, drop = _attention_arguments(entry, args, kwargs)
    logits = (query * scale) @ key.transpose(-2, -1)
    weights = torch.softmax(logits if bias is None else logits + bias, -1)
    return (F.dropout(weights, drop, True) if drop else weights) @ value
