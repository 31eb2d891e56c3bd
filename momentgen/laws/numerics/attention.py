"""Mean and variance of scaled dot-product attention with random queries, keys and values.

The logits of one query share that query, so they are correlated; with Q, K their means and v_Q, v_K the variances,

    Cov(x_j, x_k) = scale² (δ_jk own_j + Σ_e v_Q,e K_je K_ke),  own_j = Σ_e (Q_e² + v_Q,e) v_K,je.

One probability needs only the variance of x_j - Σ_k q_k x_k, for which two products with the keys suffice.  The law of
its log-odds then comes from self-consistency (:func:`momentgen.laws.numerics.softmax.log_odds`).  With q_j and
u_j the means and variances of the probabilities, V and v_V those of the values, and o = Σ q_j V_j,

    Var = Σ_j h_j (V_j - o)² + Σ_j (u_j + q_j²) v_V,j,    h_j = u_j / (1 - 2 q_j + Σ_k q_k²).

The denominator makes the first term exact for two keys.  For more keys it is exact if the noise of the logits is
independent and alike, and the probabilities change linearly.  It is also right on average for the correlated part
where keys and values are unrelated.  (Without it, as in Σ u_j (V_j - o)², σ is 30 % too small for two keys.)

All variances are variances, not standard deviations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.numerics.softmax import log_odds, probabilities

__all__ = ["attention"]

Pair = tuple[Tensor, Tensor | None]

#: logit of a masked key, as in the softmax
_MASKED = -1e9
#: smallest denominator of h: beyond, with one weight above about 0.997, (V - o)² keeps no digits in float32
_SMALLEST = 1e-5


def attention(
    query: Pair,
    key: Pair,
    value: Pair,
    scale: float,
    bias: Tensor | None = None,
    drop: float = 0.0,
    *,
    nothing: float = math.nan,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``softmax(scale Q Kᵀ + bias) V``, all entries of Q, K and V independent and normal.

    Args:
        query: mean and variance (None: certain) of the queries, shape ``(..., L, E)``.
        key: of the keys, shape ``(..., S, E)``.
        value: of the values, shape ``(..., S, Ev)``.
        scale: factor of the logits, usually ``E**-0.5``.
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
    scale: float,
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
