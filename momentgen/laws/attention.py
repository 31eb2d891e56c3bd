"""Attention written by hand: ``softmax(scale · q kᵀ + bias) @ v``, found from the laws that each step remembers.

Products may be ``matmul`` and its like, or ``einsum``.  The scale may come before or after, masks may be added or
filled in, and weights may have dropout.  Shape and dtype may change in between.  The rule of attention computes what
is recognised.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.closed_forms import number_of
from momentgen.laws.diagonal import made, pair
from momentgen.laws.law import Law
from momentgen.laws.movement import RESHAPES
from momentgen.laws.notes import note
from momentgen.laws.numerics.attention import attention as moments
from momentgen.laws.patterns import CASTS, made_by, scaled

__all__ = ["attended", "attention", "einsum_attention", "gram"]


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
    while made_by(logits) not in ("matmul", "rmatmul", "mm", "bmm", "einsum"):
        if made_by(logits) in RESHAPES:
            inner = _bare(logits._made[1][0])  # type: ignore[index]
            if not _is_batched_alike(logits, inner):
                return None
            if bias is not None and bias.dim() > 2:
                bias = bias.expand(logits.shape).reshape(inner.shape)
            logits = inner
            continue
        if made_by(logits) not in ("add", "sub", "mul", "div", "masked_fill", "where"):
            return None
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
    if made_by(logits) == "einsum":
        found = _of_einsum(*args)
        return None if found is None else _Weights(*found, scale, bias, drop, batch)
    query, key = args[0], args[1]
    if kwargs or query.ndim < 2 or key.ndim < 2:
        return None
    return _Weights(query, key.transpose(-2, -1), scale, bias, drop, batch)


def _step(law: Law) -> tuple[Law, Any, Any] | None:
    """One function between a product and its softmax: the law below, what is added, by what it is multiplied."""
    name, args, kwargs = law._made[0].name, law._made[1], law._made[2]  # type: ignore[index]
    if name in ("masked_fill", "where"):
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
    if kwargs.get("alpha", 1) != 1:
        return None
    first, second = args[0], args[1]
    inner, other = (first, second) if isinstance(first, Law) else (second, first)
    if not isinstance(inner, Law) or isinstance(other, Law) or inner.shape != law.shape:
        return None
    if inner is second and name in ("sub", "div"):
        return None
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
    name, (inner, *rest), kwargs = law._made[0].name, law._made[1], law._made[2]
    last = {law.ndim - 1, law.ndim - 2}
    if kwargs or not isinstance(inner, Law):
        return None
    if name in ("transpose", "swapaxes", "swapdims"):
        return inner if {d % law.ndim for d in rest[:2]} == last else None
    if name == "permute":
        dims = rest[0] if isinstance(rest[0], tuple | list) else rest[:-1]
        order = [*range(law.ndim - 2), law.ndim - 1, law.ndim - 2]
        return inner if [d % law.ndim for d in dims] == order else None
    return inner if name in ("t", "adjoint") else None


def gram(x: Any, y: Any) -> Tensor | None:
    """The variances of x, if the product is ``x xᵀ``; else None."""
    if not isinstance(x, Law) or not isinstance(y, Law):
        return None
    if not any(a is not None and a is b for a, b in ((_transposed(y), x), (_transposed(x), y))):
        return None
    return x._parts()[1]


# -------------------------------------------------------------------- einsum


def arranged(value: Any, letters: str, wanted: str) -> Any:
    """``value``, whose dimensions have these letters, with those wanted; what it has not is of size 1."""
    order = [letters.index(letter) for letter in wanted if letter in letters]
    value = value.permute(*order)
    for place, letter in enumerate(wanted):
        if letter not in letters:
            value = value.unsqueeze(place)
    return value


def _of_einsum(equation: str, x: Any, y: Any) -> tuple[Any, Any] | None:
    """Query and key, arranged as for matrices, of an einsum whose last dimensions are queries and keys."""
    (a, b), out = equation.split("->")[0].split(","), equation.split("->")[1]
    if len(out) < 2 or any(len(set(part)) != len(part) for part in (a, b, out)):
        return None
    batch, i, j = out[:-2], out[-2], out[-1]
    if i in b and j in a:
        x, y, a, b = y, x, b, a
    summed = set(a) & set(b) - set(out)
    if i not in a or i in b or j not in b or j in a or len(summed) != 1 or set(a + b) - summed - set(out):
        return None
    e = summed.pop()
    return arranged(x, a, batch + i + e), arranged(y, b, batch + j + e)


def einsum_attention(weights: Any, value: Any, equation: str) -> Any:
    """Attention whose second product is an einsum; None if it is not that."""
    found = _weights(weights)
    (a, b), out = equation.split("->")[0].split(","), equation.split("->")[1]
    if found is None:
        return einsum_attention(value, weights, f"{b},{a}->{out}") if _weights(value) is not None else None
    batch, i, j = a[:-2], a[-2], a[-1]
    own = set(b) - set(a)
    if j not in b or i in b or j in out or len(own) != 1 or set(out) != set(batch) | {i} | own:
        return None
    d = own.pop()
    result = _attended(found, tuple(weights.shape[:-2]), arranged(value, b, batch + j + d))
    return arranged(result, batch + i + d, out)
