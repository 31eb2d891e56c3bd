"""Attention, by torch's function or written by hand: ``softmax(scale · q kᵀ + bias) @ v``.

What is written by hand is found where the logits are affine in the product.  The scale may come before or after, and
masks may be added or filled in.  Weights may have dropout, and another shape.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.diagonal import RESHAPES, Diagonal, made, pair
from momentgen.laws.law import Law, rule
from momentgen.laws.notes import note, unsupported
from momentgen.laws.numerics.root import at_least
from momentgen.laws.numerics.softmax import log_odds, probabilities
from momentgen.laws.patterns import made_by, scaled
from momentgen.laws.programs import CHOICES, Program, programs_of
from momentgen.laws.table import Entry

Pair = tuple[Tensor, Tensor | None]

#: logit of a masked key, as in the softmax
_MASKED = -1e9
#: smallest denominator of h: beyond, with one weight above about 0.997, (V - o)² keeps no digits in float32
_SMALLEST = 1e-5


def attention(
    query: Pair,
    key: Pair,
    value: Pair,
    scale: Any,
    bias: Tensor | None = None,
    drop: float = 0.0,
    *,
    nothing: float = math.nan,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``softmax(scale Q Kᵀ + bias) V``, all entries of Q, K and V independent and normal.

    The logits of one query share that query, so they are correlated; with Q, K their means and v_Q, v_K the variances,

        Cov(x_j, x_k) = scale² (δ_jk own_j + Σ_e v_Q,e K_je K_ke),  own_j = Σ_e (Q_e² + v_Q,e) v_K,je.

    One probability needs only the variance of x_j - Σ_k q_k x_k, for which two products with the keys suffice.  The law
    of its log-odds then comes from self-consistency (:func:`momentgen.laws.numerics.softmax.log_odds`).  With q_j and
    u_j the means and variances of the probabilities, V and v_V those of the values, and o = Σ q_j V_j,

        Var = Σ_j h_j (V_j - o)² + Σ_j (u_j + q_j²) v_V,j,    h_j = u_j / (1 - 2 q_j + Σ_k q_k²).

    The denominator makes the first term exact for two keys.  For more keys it is exact if the noise of the logits is
    independent and alike, and the probabilities change linearly.  It is also right on average for the correlated part
    where keys and values are unrelated.  (Without it, as in Σ u_j (V_j - o)², σ is 30 % too small for two keys.)

    Args:
        query: mean and variance (None: certain) of the queries, shape ``(..., L, E)``.
        key: of the keys, shape ``(..., S, E)``.
        value: of the values, shape ``(..., S, Ev)``.
        scale: factor of the logits, usually ``E**-0.5``; a number, or a tensor of one for each matrix.
        bias: certain, added to the logits, broadcastable to ``(..., L, S)``; ``-inf`` masks a key.
        drop: probability with which a dropout sets each weight to 0 (the others are scaled up), as a random variable.
        nothing: the mean of an output whose query has all of its keys masked.  A softmax of such logits is NaN in
            torch, as is attention written by hand; ``F.scaled_dot_product_attention`` gives 0 for certain.

    Returns:
        Mean and variance, shape ``(..., L, Ev)``.  If all is certain these are torch's mean and variance 0.

    >>> x, half = torch.eye(2), torch.full((2, 2), 0.5)
    >>> mean, var = attention((x, half), (x, half), (x, None), scale=1.0)
    >>> mean.sum(-1), bool((var > 0).all())
    (tensor([1., 1.]), True)
    """
    (q, vq), (k, vk), (v, vv) = query, key, value
    logits = scale * (q @ k.mT)
    masked, whole = None, None
    if bias is not None:
        logits = logits + bias
        masked = logits == -math.inf
        whole = masked.all(-1, keepdim=True)  # all is masked: computed as of equal logits, so that no NaN arises
        logits = torch.where(masked, torch.where(whole, 0.0, -math.inf), logits)
    if vq is None and vk is None:
        weights = torch.softmax(logits, -1)
        second = weights * weights if vv is not None or drop else None
        mean = weights @ v
        var = torch.zeros_like(mean)
    else:
        second, mean, var = _random_weights(logits, q, vq, k, vk, v, scale, masked)
    if vv is not None and second is not None:
        var = var + second @ vv
    if drop and second is not None:
        # E p² E V² times the variance of a kept and scaled weight; this is not a matter of V - o.
        square = v * v if vv is None else v * v + vv
        var = var + drop / (1 - drop) * (second @ square)
    if whole is not None:
        spread = nothing if math.isnan(nothing) else 0.0
        mean, var = mean.masked_fill(whole, nothing), var.masked_fill(whole, spread)
    return mean, var


def _random_weights(
    logits: Tensor,
    q: Tensor,
    vq: Tensor | None,
    k: Tensor,
    vk: Tensor | None,
    v: Tensor,
    scale: Any,
    masked: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Second moments of the weights; mean of the output, and its variance for certain values."""
    square = scale * scale
    own = logits.new_zeros(()) if vk is None else square * ((q * q if vq is None else q * q + vq) @ vk.mT)
    if masked is not None:
        logits, own = logits.masked_fill(masked, _MASKED), own.masked_fill(masked, 0.0)
    z = logits - logits.amax(-1, keepdim=True).detach()
    # A shift of all keys or values leaves all as it is, but for the digits that differences lose; nor has it gradients.
    centred_key = k - k.detach().mean(-2, keepdim=True)
    shared = None
    if vq is not None:
        transposed = centred_key.mT
        noise = square * vq
        alone = noise @ (transposed * transposed)

        def shared(p: Tensor) -> Tensor:
            """Variance of the shared part of x_j - Σ p_k x_k: Σ_e v_Q,e (K_je - Σ p_k K_ke)²."""
            centre = (p if masked is None else p.masked_fill(masked, 0.0)) @ centred_key  # p is 0 but for its error
            weighted = noise * centre
            found = at_least(alone - 2 * (weighted @ transposed) + (weighted * centre).sum(-1, keepdim=True), 0)
            return found if masked is None else found.masked_fill(masked, 0.0)

    odds, spread = log_odds(z, own, shared, careful=False)
    p, u = probabilities(odds, spread, None if masked is None else masked & ~masked.all(-1, keepdim=True))
    if masked is not None:
        p, u = p.masked_fill(masked, 0.0), u.masked_fill(masked, 0.0)
    middle = v.detach().mean(-2, keepdim=True)
    values = v - middle
    mean = p @ values
    h = u / (1 - 2 * p + (p * p).sum(-1, keepdim=True)).clamp_min(_SMALLEST)
    var = h @ (values * values) + mean * (mean * h.sum(-1, keepdim=True) - 2 * (h @ values))
    return u + p * p, mean + middle, at_least(var, 0)


#: a summand of the logits that is this low is a mask
_MASK = -1e3


def attended(
    query: Any, key: Any, value: Any, scale: Any, bias: Any, drop: float = 0.0, nothing: float = math.nan
) -> Any:
    """Attention by its rule for moments, see :func:`attention`; of laws or tensors, with a certain summand ``bias``."""
    if any(pair(part)[1] is not None for part in (query, key)):
        note("attention: queries, keys and values taken as independent of each other")
    if isinstance(bias, torch.Tensor):
        # A mask by very low numbers is one by minus infinity, but for rows that are all masked, which it leaves finite.
        low = bias < _MASK
        low = low & ~low.all(-1, keepdim=True)
        bias = torch.where(low | (bias == -torch.inf), -torch.inf, bias.clamp_min(-1e9))
    return made(*attention(pair(query), pair(key), pair(value), scale, bias, drop, nothing=nothing))


def _logits(program: Program, shape: torch.Size) -> tuple[Any, Any, Any, Any] | None:
    """Query, key, scale and summand of logits that are affine in a product, alike for all of a matrix or masked."""
    known = None if program.source.history is None else program.source.history.known()
    if known is None or known[0].name not in ("matmul", "rmatmul", "mm", "bmm") or known[2] or not program.is_affine:
        return None
    code, (query, key) = program.code, known[1][:2]
    if (
        query.ndim < 2
        or key.ndim < 2
        or not program.only_reshapes()
        or shape[-2:] != program.source.parts[0].shape[-2:]
    ):
        return None
    for name, args, _ in code.steps:
        numbers = [arg for arg in args if isinstance(arg, int | float)]
        factors = [code.tensors[arg[1]] for arg in args if type(arg) is tuple and arg[0] == "tensor"]
        if name in CHOICES and not (numbers and numbers[0] <= _MASK):
            return None
        if name in ("mul", "div") and any(one.numel() > 1 and one.shape[-2:] != (1, 1) for one in factors):
            return None
    zero = torch.zeros((1,) * len(shape), dtype=torch.float64, device=query.device)
    bias, above = code.value(zero), code.value(zero + 1)
    kept = bias > _MASK
    slope = torch.where(kept, above - bias, 0).sum((-2, -1), keepdim=True) / kept.sum((-2, -1), keepdim=True)
    return query, key.transpose(-2, -1), slope.to(query.dtype), bias.to(query.dtype) if code.tensors else None


def by_hand(weights: Any, value: Any) -> Any:
    """``softmax(scale · q kᵀ + bias) @ v`` written by hand, by the rule of attention; None if it is not that.

    Args:
        weights: a law that may be the softmax of such logits.
        value: a law or a tensor.
    """
    if not isinstance(weights, Law):
        return None
    law, drop, own = scaled(weights), 0.0, weights.shape[:-2]
    while made_by(law) == "dropout" or made_by(law) in RESHAPES:
        inner = scaled(law._made[1][0])  # type: ignore[index]
        if inner.shape[-2:] != weights.shape[-2:] or (made_by(law) == "dropout" and drop):
            return None
        drop, law = law._made[1][1] if made_by(law) == "dropout" else drop, inner  # type: ignore[index]
    if made_by(law) != "softmax" or value.ndim < 2:
        return None
    logits, dim = law._made[1]  # type: ignore[index]
    found = None
    if isinstance(logits, Law) and logits.ndim > 1 and dim % logits.ndim == logits.ndim - 1:
        found = next(filter(None, (_logits(one, logits.shape) for one in programs_of(logits))), None)
    if found is None:
        note("a softmax times values: not recognised as attention, so its weights count as independent", True)
        return None
    query, key, scale, bias = found
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    if bias is not None and bias.shape[:-2].numel() > 1 and batch != logits.shape[:-2]:
        bias = bias.expand(logits.shape).reshape(*batch, *logits.shape[-2:])
    if scale.numel() > 1 and batch != logits.shape[:-2]:
        scale = scale.expand(*logits.shape[:-2], 1, 1).reshape(*batch, 1, 1)
    if own == batch:
        return attended(query, key, value, scale, bias, drop)
    value = value.expand(*own, *value.shape[-2:]).reshape(*batch, *value.shape[-2:])
    out = attended(query, key, value, scale, bias, drop)
    return out.reshape(*own, *out.shape[-2:])


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


_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@rule(Diagonal, "scaled_dot_product_attention")
def _scaled_dot_product(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = {**dict(zip(_SDPA, args, strict=False)), **kwargs}
    query, key, value, mask = bound["query"], bound["key"], bound["value"], bound.get("attn_mask")
    if bound.get("enable_gqa"):
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scale, dtype, device = bound.get("scale"), query.dtype, query.device
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
    return attended(query, key, value, own, bias, bound.get("dropout_p", 0.0), nothing=0.0)
