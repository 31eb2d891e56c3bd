"""Softmax, attention, layer and group norm: derivatives of closed form, with the means over all rows in them.

A Jacobian in which means of several quantities are multiplied is not the mean of the Jacobians.  It costs one product
in the place of one for each row, and has all rows in it, not a few.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.laws.controlled.call import Call, Rule, Tangent
from momentgen.laws.controlled.state import tangent
from momentgen.laws.nests import tensors_in

__all__ = ["attention", "norm", "softmax"]

#: attention weights are recorded up to so many keys for each channel of a head
_KEYS: Final = 8


def softmax(call: Call) -> Rule | None:
    """``softmax`` and ``log_softmax``."""
    return _probabilities if isinstance(call.argument(1, "dim"), int) else None


def _probabilities(call: Call) -> Tangent:
    x, dim, logarithm = call.args[0], call.argument(1, "dim"), call.name == "log_softmax"
    call.run()
    weights = call.average(lambda: (call.out.exp() if logarithm else call.out).to(x.dtype))

    def found() -> Tensor:
        shift = tangent(x)
        shift = shift - (weights() * shift).sum(dim, keepdim=True)
        return (shift if logarithm else weights() * shift).to(call.out.dtype)

    return found


def attention(call: Call) -> Rule | None:
    """``scaled_dot_product_attention`` of queries, keys and values that may be random."""
    k, mask = call.argument(1, "key"), call.argument(3, "attn_mask")
    plain = not call.argument(4, "dropout_p", 0.0) and not call.argument(7, "enable_gqa", False)
    few = k.shape[-2] <= _KEYS * k.shape[-1]
    return _attended if plain and few and not call.random(mask) else None


def _attended(call: Call) -> Tangent:
    q, k, v, mask = (call.argument(place, name) for place, name in enumerate(("query", "key", "value", "attn_mask")))
    causal, scale = call.argument(5, "is_causal", False), call.argument(6, "scale")
    call.run()
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    weights = call.average(lambda: _weights(q, k, mask, causal, scale), every=False)
    means = [call.average(value, every=False) for value in (q, k, v)]

    def found() -> Tensor:
        parts, scores = [], []
        if call.random(v):
            parts.append(weights() @ tangent(v))
        if call.random(q):
            scores.append(tangent(q) @ means[1]().mT)
        if call.random(k):
            scores.append(means[0]() @ tangent(k).mT)
        if scores:
            part = weights() * (sum(scores[1:], scores[0]) * scale)
            parts.append((part - weights() * part.sum(-1, keepdim=True)) @ means[2]())
        return sum(parts[1:], parts[0])

    return found


def _weights(q: Tensor, k: Tensor, mask: Any, causal: bool, scale: float) -> Tensor:
    scores = q @ k.mT * scale
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1)


def norm(call: Call) -> Rule | None:
    """Layer norm and group norm with certain weights."""
    rest = tensors_in((*call.args[1:], *call.kwargs.values()))
    exact = not torch.is_autocast_enabled(call.args[0].device.type)
    return _norm if exact and not any(map(call.random, rest)) else None


def _norm(call: Call) -> Tangent:
    x, layers, weight, eps = (
        call.args[0],
        call.name == "layer_norm",
        call.argument(2, "weight"),
        call.argument(4, "eps", 1e-5),
    )
    call.run()
    if layers:
        parts = (*x.shape[: x.dim() - len(call.argument(1, "normalized_shape"))], -1)
    else:
        parts = (x.shape[0], call.argument(1, "num_groups"), -1)
        weight = None if weight is None else weight.view(-1, *[1] * (x.dim() - 2))
    var, centre = torch.var_mean(x.reshape(parts), -1, correction=0, keepdim=True)
    means = [call.average(part.to(x.dtype)) for part in (x, centre, (var + eps).rsqrt())]

    def found() -> Tensor:
        value, middle, slope = (mean() for mean in means)
        shift, own = tangent(x).reshape(parts), (value.reshape(parts) - middle) * slope
        shift = shift - shift.mean(-1, keepdim=True) - own * (own * shift).mean(-1, keepdim=True)
        shift = (shift * slope).reshape(x.shape)
        return shift if weight is None else shift * weight

    return found
