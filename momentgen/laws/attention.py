"""Attention: ``F.scaled_dot_product_attention``, and weights from a softmax that meet values in a product.

The weights of a softmax sum to one.  As independent values they would take what all values have in common for noise.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from momentgen.laws.diagonal import made, pair
from momentgen.laws.history import IDENTITIES
from momentgen.laws.law import Law
from momentgen.laws.movement import CASTS
from momentgen.laws.notes import note
from momentgen.laws.numerics.attention import attention as moments
from momentgen.laws.numerics.attention import average

__all__ = ["attended", "averaged", "softmax_of"]


#: a summand of the logits below this is a mask
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


def averaged(weights: Any, value: Any) -> Any:
    """``softmax(logits, -1) @ value`` with random weights; None where ``weights`` are no such softmax.

    Args:
        weights: shape ``(..., L, S)``.
        value: a law or tensor of shape ``(..., S, Ev)``.
    """
    found, drop = softmax_of(weights)
    if found is None or value.ndim < 2 or found.ndim < 2 or found._made[1][1] % found.ndim != found.ndim - 1:
        return None
    note("a softmax times values: its logits are taken as independent, and of the values")
    (p, u), (v, spread) = pair(found), pair(value)
    (mean, var), second = average(p.to(v.dtype), u.to(v.dtype), v), (u + p * p).to(v.dtype)
    if spread is not None:
        var = var + second @ spread
    if drop:
        var = var + drop / (1 - drop) * (second @ (v * v if spread is None else v * v + spread))
    return made(mean, var)


def softmax_of(value: Any) -> tuple[Any, float]:
    """The softmax that a value is, whatever its dtype, or None; and the probability of dropout upon it."""
    drop = 0.0
    while isinstance(value, Law) and value._made is not None:
        (entry, args, _) = value._made
        if entry.name == "softmax":
            return value, drop
        if entry.name not in CASTS | IDENTITIES and (entry.name != "dropout" or drop):
            break
        value, drop = args[0], args[1] if entry.name == "dropout" else drop
    return None, 0.0
