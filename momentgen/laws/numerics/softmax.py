"""Mean and variance of the softmax and log-softmax of independent normal logits, as values.

A probability is a sigmoid of one normal variable, the log-odds of its class:

    p_i = sigmoid(t_i),  t_i = x_i - LSE_{j != i} x_j,  t_i ~ N(D_i, w_i) approximately,

where LSE is the logarithm of the sum of exponentials.  The moments of the sigmoid of a normal variable are exact (the
generated ``logistic_transform``), so all that is approximated is the law of the log-odds.  Two ways find its mean and
variance, and the number of classes, known before any computation, chooses between them:

*Few classes: a tree of pairwise merges* (:func:`merge`).  The LSE of two normal variables has exact moments, and is
taken as normal again.  One sweep up the tree and one down give the LSE of all others for each class.  Exact for two
classes, and good at any variance.  Sorting the classes by their variance first was measured to change the typical σ of
ten classes by 0.2 %, and is left out.

*Many classes: self-consistency* (:func:`log_odds`).  Here E log p_i = μ_i - M with one unknown for each row, M = E LSE.
It also has to make the probabilities sum to 1, and a few Newton steps find it.  This costs O(K) with no levels.  From
about a hundred classes on it is more accurate than the tree, which overestimates the variance of the LSE.  Three facts
make it cheap:

* For every probability vector a, E LSE is at most log Σ exp(μ_j + α_j/2), with α_j the variance of x_j - Σ a_k x_k.
  This is the tilted bound of Knowles and Minka; tempering keeps it near for large variances.
* E log sigmoid(N(D, w)) = l is solved by D = -log(exp(-l) - 1) + w exp(l)/2, exactly for w → 0 and in both tails.
* Var LSE = Σ v_j q_j² + Σ v_j² (E p_j (1 - p_j))²/2 + ..., a series of positive terms.
  It has the *expected* derivatives (Hermite), where the delta method has derivatives at the mean.

All variances are variances, not standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from momentgen.generated import logistic_transform, logsigmoid, sigmoid, softplus
from momentgen.laws.numerics.root import at_least

#: up to so many classes the tree is used: below it is the more accurate, above the self-consistent way
_TREE = 32
#: log-odds of rare classes, and of such that never come; a variance from which on sums of order 1 know a difference
_RARE, _NEVER, _LITTLE = -2.0, -40.0, 1e-3
#: evaluations of the sigmoid in the self-consistent way; a third one matters from a logit σ of about 2 on
_PASSES = 3
#: logit of a masked class: far below all others, and its products with variances are still finite in float32
_MASKED = -1e9
#: how fast the tilted bound is tempered with the largest variance v, as 1/√(1 + v/10); from a scan at σ = 0.3 to 30
_TEMPER = 0.1


def softmax(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``softmax(X)``, each probability as a random value.

    Args:
        mean: means of the logits, any shape; ``-inf`` is a masked class, of probability 0 for certain.
        var: their variances, of the same shape.
        dim: the dimension of the classes.

    Returns:
        Mean and variance, of the shape of ``mean``.  The means sum to 1.  Rows whose variances are all 0, or of which
        one class is not masked, give exactly ``torch.softmax`` and variance 0; rows with every class masked give NaN,
        as in torch.

    >>> q, v = softmax(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), 0)
    >>> q, round(v[0].item(), 4)
    (tensor([0.5000, 0.5000]), 0.0684)
    """
    return _moments(mean, var, dim, torch.softmax)


def log_softmax(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``log_softmax(X)``; arguments and results as of :func:`softmax`.

    A masked class gives ``-inf`` and variance 0.

    >>> m, v = log_softmax(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), 0)
    >>> round(m[0].item(), 4), round(v[0].item(), 4)
    (-0.9027, 0.5671)
    """
    return _moments(mean, var, dim, torch.log_softmax)


def _moments(mean: Tensor, var: Tensor, dim: int, plain: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    x, v, z, masked = _prepare(mean, var, dim)
    if z.shape[-1] > _TREE:
        odds = log_odds(z, v)
    else:
        others_mean, others_var = _others(z, v)
        odds = z - others_mean, v + others_var
    q, w = probabilities(*odds) if plain is torch.softmax else logsigmoid(*odds)
    # Rows of which nothing is random, or one class is not masked, are torch's own; the difference carries the gradient
    # of q and is otherwise exactly 0.
    sure, exact = (v == 0).all(-1, keepdim=True) | ((~masked).sum(-1, keepdim=True) == 1), plain(x, -1).detach()
    nothing = masked.all(-1, keepdim=True)
    q = torch.where(sure, exact + (q - q.detach()), q)
    q = torch.where(masked & ~nothing if plain is torch.softmax else masked, exact, q)
    w = torch.where(sure, w - w.detach(), at_least(w, 0)).masked_fill(nothing, math.nan)
    w = w.masked_fill(masked & ~nothing, 0.0)
    return q.movedim(-1, dim), w.movedim(-1, dim)


def merge(mean_a: Tensor, var_a: Tensor, mean_b: Tensor, var_b: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``logaddexp(A, B)`` for independent normal A and B, exact.

    With A the lower one, logaddexp is B + softplus(A - B).  By Stein's lemma the covariance of B with the softplus is
    -Var B times the expected sigmoid of A - B.
    """
    high = torch.maximum(mean_a, mean_b)
    gap, total = torch.minimum(mean_a, mean_b) - high, var_a + var_b
    rise, slope = softplus(gap, total), sigmoid(gap, total).mean
    upper = torch.where(mean_a > mean_b, var_a, var_b)
    return high + rise.mean, at_least(upper * (1 - 2 * slope) + rise.var, 0)


def probabilities(odds: Tensor, spread: Tensor, masked: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Means (summing to 1 over the last dimension) and variances of the sigmoids of N(odds, spread); 0 where masked."""
    q, w = logistic_transform(odds, spread)
    q, w = _sharp(odds, spread, q, w)
    if masked is not None:
        q, w = q.masked_fill(masked, 0.0), w.masked_fill(masked, 0.0)
    # At most one class has mean 1, and no row is all 0, so that the sum is positive.
    q = q / q.sum(-1, keepdim=True)
    return q, at_least(torch.minimum(w, q * (1 - q)), 0)


def _sharp(odds: Tensor, spread: Tensor, q: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of the sigmoid ``q`` and ``w``, of rare and of likely classes to a relative error.

    The rule's own error is absolute, and as large as a rare class's moments.  As s(t) = e^t s(-t), these are moments of
    1 - s about D + w and D + 2 w, times an exponential.  Where they cancel at little noise, the slope is enough.
    """
    low = -odds.abs()
    known = (low < _RARE) & (low > _NEVER) & (low + 2 * spread < 3)
    d, v = torch.where(known, low, _RARE), torch.where(known, spread, 1)
    first, (second, around) = 1 - logistic_transform(d + v, v).mean, logistic_transform(d + 2 * v, v)
    mean = (d + v / 2).exp() * first
    square = v.exp() * ((1 - second).square() + around) - first.square()
    var = torch.where(v < _LITTLE, v * (mean * (1 - mean)).square(), (2 * d + v).exp() * square)
    return torch.where(known, torch.where(odds < 0, mean, 1 - mean), q), torch.where(known, at_least(var, 0), w)


def log_odds(
    z: Tensor, var: Tensor, shared: Callable[[Tensor], Tensor] | None = None, careful: bool = True
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the log-odds of each class, by self-consistency (see the module).

    Args:
        z: means of the logits, less the largest of their row, shape ``(..., K)``.
        var: variances of the part that is independent of the other logits, broadcastable to ``z``.
        shared: a function of probabilities q, shape ``(..., K)``; None without a correlated part.  It returns the
            variances of that part of x_k - Σ q_j x_j, and is called for the first and the last estimate of q.
        careful: whether sums over all other classes keep their digits where one class has almost all of the
            probability (more than about 0.999 in float32).

    Returns:
        Their means and variances.
    """
    eps = torch.finfo(z.dtype).eps
    # No exponential here overflows: z is at most 0, and the tempered tilt at most 20.
    q = torch.exp(z)
    mass = q.sum(-1, keepdim=True)
    q, lowest = q / mass, mass.log()  # by Jensen, E LSE is at least the LSE of the means
    common = None if shared is None else shared(q)
    whole = var if common is None else var + common
    most = whole.amax(-1, keepdim=True)
    temper = torch.rsqrt(1 + _TEMPER * most)
    tilt = (q * q * var).sum(-1, keepdim=True) - 2 * q * var + whole
    q = torch.exp(temper * z + (0.5 * temper * temper) * tilt)
    mass = q.sum(-1, keepdim=True)
    q, m = q / mass, mass.log() / temper
    bend = temper * q * (1 - q)  # E p (1 - p)
    reach = 2 + 2 * most.detach().sqrt()  # of one step of M, so that none is thrown far off
    odds = spread = z
    for step in range(_PASSES):
        if step and step == _PASSES - 1 and shared is not None:
            common = shared(q)
        curvature = bend * whole
        others, rest = _others_of(q, q * q * var + 0.5 * (curvature * curvature), careful)
        inverse = (rest * rest).clamp_min(eps * eps).reciprocal()
        if common is not None:
            # The correlated part is a difference of products, and has digits only as long as rest² is not small.
            others = others + common * (rest * rest > 64 * eps)
        # An LSE varies no more than its terms do together; the correlated parts of two terms may be opposed, hence 3.
        spread = var + torch.minimum(others * inverse, 3 * most)
        level = (z - m).clamp_max(-eps)  # E log p
        lost = torch.expm1(level)
        half = 0.5 * spread * (1 + lost)
        odds = level - torch.log(-lost) + half
        if step == _PASSES - 1:
            break
        # Of a masked class exactly 0; the sigmoid op leaves some 1e-7 so far out, the transform none.
        p, p_var = logistic_transform(odds, spread)
        bend = p - p * p - p_var
        # Newton's step of log Σ p: d odds/dM = -1/(1 - exp(level)) - spread exp(level)/2.  At the solution the slope
        # has no part in the derivative.
        slope = (bend * (half - lost.reciprocal())).sum(-1, keepdim=True).detach()
        mass = p.sum(-1, keepdim=True).clamp_min(eps)
        move = mass.log() * mass / slope.clamp_min(eps)
        m = torch.maximum(m + torch.minimum(torch.maximum(move, -reach), reach), lowest)
        q = p / mass
    return odds, spread


def _others_of(q: Tensor, terms: Tensor, careful: bool) -> tuple[Tensor, Tensor]:
    """Sums of ``terms`` and of the probabilities over all other classes."""
    total = terms.sum(-1, keepdim=True)
    if not careful:
        return at_least(total - terms, 0), 1 - q
    # Of a class that has most of the probability a difference would lose all digits, but there can be only one such
    # class, and so the sum over those that have not is the one wanted.
    large = q > 0.5
    small_terms, small = terms.masked_fill(large, 0.0), q.masked_fill(large, 0.0)
    others = torch.where(large, small_terms.sum(-1, keepdim=True), total - terms)
    return others, torch.where(large, small.sum(-1, keepdim=True), 1 - q)


def _others(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the LSE of all other classes, for each class of the last dimension, by the tree."""
    classes = mean.shape[-1]
    if classes == 1:
        return torch.full_like(mean, _MASKED), torch.zeros_like(var)
    siblings: list[tuple[Tensor, Tensor]] = []
    while True:
        if mean.shape[-1] % 2:
            mean = torch.nn.functional.pad(mean, (0, 1), value=_MASKED)
            var = torch.nn.functional.pad(var, (0, 1))
        pairs, pair_vars = mean.reshape(*mean.shape[:-1], -1, 2), var.reshape(*var.shape[:-1], -1, 2)
        siblings.append((pairs.flip(-1), pair_vars.flip(-1)))
        if mean.shape[-1] == 2:
            break
        mean, var = merge(pairs[..., 0], pair_vars[..., 0], pairs[..., 1], pair_vars[..., 1])
    out_mean, out_var = (tensor.flatten(-2) for tensor in siblings.pop())
    for below_mean, below_var in reversed(siblings):
        count = below_mean.shape[-2]
        out_mean, out_var = merge(
            out_mean[..., :count, None].expand_as(below_mean),
            out_var[..., :count, None].expand_as(below_var),
            below_mean,
            below_var,
        )
        out_mean, out_var = out_mean.flatten(-2), out_var.flatten(-2)
    return out_mean[..., :classes], out_var[..., :classes]


def _prepare(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits and variances with the classes last, the logits less their largest, and which are masked."""
    x, v = mean.movedim(dim, -1), var.movedim(dim, -1)
    masked = x == -math.inf
    finite = x.masked_fill(masked, _MASKED)
    # Softmax does not change with the shift, nor does its gradient.  Rows with all masked are 0, and no NaN arises.
    z = finite - finite.amax(-1, keepdim=True).detach()
    return x, v.masked_fill(masked, 0.0), z, masked
