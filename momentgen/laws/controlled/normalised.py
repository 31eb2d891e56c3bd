"""Softmax, attention and layer norm on the shift: Jacobians of closed form, with the means over all rows in them.

A Jacobian in which means of several quantities are multiplied is not the mean of the Jacobians.  It costs one product
in the place of one for each row whose graph is kept, and has all rows in it, not a few.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.laws.controlled.call import Call, Shifted
from momentgen.laws.controlled.pull import pulled
from momentgen.laws.nests import tensors_in

__all__ = ["attention", "layer_norm", "softmax"]

#: attention weights are kept up to so many keys for each channel of a head; of more the fused kernel's graphs
_KEYS: Final = 8


def softmax(call: Call) -> Shifted | None:
    """``softmax`` and ``log_softmax``; that it was one is remembered, for the end of the network."""
    x, dim = call.argument(0, "input"), call.argument(1, "dim")
    logarithm = call.name == "log_softmax"
    if not isinstance(dim, int) or call.name not in ("softmax", "log_softmax"):
        shifted = pulled(call)
    else:
        call.run()
        weights = call.average(lambda: (call.out.exp() if logarithm else call.out).to(x.dtype))

        def shifted() -> Tensor:
            shift = call.shift(x)
            found = shift - (weights() * shift).sum(dim, keepdim=True)
            return (found if logarithm else weights() * found).to(call.out.dtype)

    if call.entry is not None:
        call.mode.softmax(call.out, call.entry, call.function, call.args, call.kwargs)
    return shifted


def attention(call: Call) -> Shifted | None:
    """``scaled_dot_product_attention``."""
    q, k, v, mask = (call.argument(place, name) for place, name in enumerate(("query", "key", "value", "attn_mask")))
    causal, scale = call.argument(5, "is_causal", False), call.argument(6, "scale")
    plain = not call.argument(4, "dropout_p", 0.0) and not call.argument(7, "enable_gqa", False)
    if not plain or call.random(mask) or k.shape[-2] > _KEYS * k.shape[-1]:
        return pulled(call)
    call.run()
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    weights = call.average(lambda: _weights(q, k, mask, causal, scale), every=False)
    means = [call.average(value, every=False) for value in (q, k, v)]

    def shifted() -> Tensor:
        parts, scores = [], []
        if call.random(v):
            parts.append(weights() @ call.shift(v))
        if call.random(q):
            scores.append(call.shift(q) @ means[1]().mT)
        if call.random(k):
            scores.append(means[0]() @ call.shift(k).mT)
        if scores:
            part = weights() * (sum(scores[1:], scores[0]) * scale)
            parts.append((part - weights() * part.sum(-1, keepdim=True)) @ means[2]())
        return sum(parts[1:], parts[0])

    return shifted


def _weights(q: Tensor, k: Tensor, mask: Any, causal: bool, scale: float) -> Tensor:
    scores = q @ k.mT * scale
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1)


def layer_norm(call: Call) -> Shifted | None:
    """Layer norm with certain weights."""
    x, shape = call.argument(0, "input"), call.argument(1, "normalized_shape")
    weight, eps = call.argument(2, "weight"), call.argument(4, "eps", 1e-5)
    if any(call.random(value) and value is not x for value in tensors_in((*call.args, *call.kwargs.values()))):
        return pulled(call)
    dims, bias = tuple(range(-len(shape), 0)), call.argument(3, "bias")
    if torch.is_autocast_enabled(x.device.type):
        return pulled(call)
    # what torch calls itself, with what it finds on the way
    call.out, centre, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
    if call.mode.keeps_graph:  # which torch does not differentiate
        var, centre = torch.var_mean(x, dims, correction=0, keepdim=True)
        scale = (var + eps).rsqrt()
    means = [call.average(part.to(x.dtype)) for part in (x, centre, scale)]

    def shifted() -> Tensor:
        value, middle, slope = (mean() for mean in means)
        shift, own = call.shift(x), (value - middle) * slope
        found = shift - shift.mean(dims, keepdim=True) - own * (own * shift).mean(dims, keepdim=True)
        return found * (slope if weight is None else slope * weight)

    return shifted
