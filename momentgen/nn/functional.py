"""Functions over moments: those of torch behind the border, class posteriors and losses.

Every function of torch or torch.nn.functional is here under its own name, taking tensors and
:class:`~momentgen.Moments` and returning moments: ``functional.add(x, y)``, ``functional.softmax(x, -1)``.  A value
given twice is one value: ``functional.mul(x, x)`` is its square.

Losses need no floor on variances: every denominator here has one of its own.

Log-probabilities of the classes of independent normal logits, in three approximations of the literature.

Each class has a score, and the probabilities are the softmax of the scores.  With X_k ~ N(m_k, v_k) and s = π²/3:

- ``logistic``: -log Σ_j exp((m_j - m_k)/sqrt((v_k + v_j)/s + 1)), a multivariate logistic distribution function;
- ``normal``: Σ_j log Phi((m_k - m_j)/sqrt(v_k + v_j + s)), a product of normal distribution functions;
- ``simplified``: m_k/sqrt(v_k/s + 1), a softmax of scaled means.

Scores are computed in float64 and the result is rounded once: a score may be a sum of a thousand logarithms of tails.
Pairs of classes are taken in slices, so that memory does not grow with the square of their number.  The backward pass
computes again what autograd would save of a slice.  Slices of a few MiB stay in caches.  Checkpoints, for second
derivatives and transforms, take larger ones, whose memory goes back to the system.

Source: Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, (58)-(64).
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from momentgen.errors import InputError
from momentgen.laws.border import inside, run
from momentgen.laws.law import laws_in
from momentgen.laws.numerics.quadrature import normal_points
from momentgen.laws.numerics.root import matrix_root
from momentgen.laws.table import TABLE
from momentgen.laws.values import as_moments, certain, draw
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.autograd import transformed

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["certain", "class_posterior", "draw", "gaussian_nll_loss", "log_class_posterior", "nll_loss"]


Posterior = Literal["logistic", "normal", "simplified", "quadrature"]


def __getattr__(name: str) -> Any:
    """A function of torch behind the border."""
    for space in () if name.startswith("__") else (torch, F):  # what Python asks of a module, as __path__, is none
        function = getattr(space, name, None)
        if callable(function) and function in TABLE:
            return functools.partial(_bordered, function)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and laws no rule for a function of that name")


def _bordered(function: Any, *args: Any, **kwargs: Any) -> Any:
    if inside() or laws_in(args):
        return function(*args, **kwargs)
    return run(getattr(function, "__name__", str(function)), function, "ap2", args, kwargs)


def log_class_posterior(
    logits: Moments | Float[Tensor, "*shape"], dim: int = -1, approximation: Posterior | None = None
) -> Float[Tensor, "*shape"]:
    """Logarithm of the expected softmax of random logits, normalised.

    Args:
        logits: moments, or a tensor (variance 0).  For a tensor, all approximations except ``normal`` are log_softmax
            itself.  :class:`~momentgen.runtime.JointMoments`, as the default of evaluation returns them, are averaged
            with their covariance.
        dim: the dimension of classes.
        approximation: for independent logits, ``logistic`` and ``normal`` compare every two classes, by the logistic
            and the normal distribution function.  They take classes² memory.  ``simplified`` scales each logit by
            itself; the paper trains with it.  ``quadrature`` averages the softmax over 512 fixed quasi-random points
            of correlated logits, of any shape; ``dim`` is not the batch.  None is ``quadrature`` with a covariance,
            else ``logistic``.

    Source: Shekhovtsov & Flach 2018, (61), (59) and (64), renormalised, in the log domain.

    Raises:
        InputError: for another approximation, bad moments, no such axis, or ``quadrature`` without a covariance.

    >>> import torch
    >>> x = Moments(torch.tensor([2.0, 0.0]), torch.tensor([4.0, 4.0]))
    >>> log_class_posterior(x).exp()
    tensor([0.7464, 0.2536])
    """
    x = as_moments("log_class_posterior", logits)
    if approximation is None:
        approximation = "quadrature" if isinstance(x, JointMoments) else "logistic"
    if approximation not in get_args(Posterior):
        raise InputError(
            f"log_class_posterior: expected one of {', '.join(get_args(Posterior))}, got {approximation!r}"
        )
    if approximation == "quadrature":
        if not isinstance(x, JointMoments):
            raise InputError("log_class_posterior: quadrature takes JointMoments, which have a covariance, got Moments")
        return _averaged(x, dim)
    return log_probabilities(x.mean, x.var, dim, approximation)


#: numbers that points of quadrature take at a time
_AT_ONCE = 2**23


def _averaged(x: JointMoments, dim: int) -> Tensor:
    """Logarithm of the softmax along ``dim``, averaged over points of the joint distribution of its logits."""
    mean, factor = x.mean, x.factor
    if factor.dim() == 3 and dim % mean.dim() == 0:
        raise InputError(
            f"log_class_posterior: expected another dimension of classes than the batch, got {dim} for shape "
            f"{tuple(mean.shape)}"
        )
    rank = factor.shape[-2]
    if factor.dim() == 3:
        rows = factor.unflatten(-1, mean.shape[1:]) if mean.dim() > 1 else factor.squeeze(-1)
        rows = rows.movedim(1, -1)  # (batch, ..., rank)
    else:
        rows = factor.unflatten(-1, mean.shape).movedim(0, -1)
    means = mean.movedim(dim, -1)
    classes = means.shape[-1]
    rows = rows.movedim(dim % mean.dim(), -1)  # (batch, ..., rank, classes)
    means, flat = means.reshape(-1, classes), rows.reshape(-1, rank, classes)
    if rank > classes:  # of as few dimensions as there are classes: the points fill these better
        flat, rank = matrix_root(flat.mT @ flat), classes
    points = normal_points(rank).to(mean)
    count = max(_AT_ONCE // (len(points) * max(classes, 1)), 1)
    parts = [
        torch.log_softmax(some[:, None] + points @ rows_of, -1).logsumexp(1) - math.log(len(points))
        for some, rows_of in zip(means.split(count), flat.split(count), strict=True)
    ]
    return torch.cat(parts).reshape(mean.movedim(dim, -1).shape).movedim(-1, dim)


def class_posterior(
    logits: Moments | Float[Tensor, "*shape"], dim: int = -1, approximation: Posterior | None = None
) -> Float[Tensor, "*shape"]:
    """Expected softmax of random logits; see :func:`log_class_posterior`."""
    return log_class_posterior(logits, dim, approximation).exp()


def nll_loss(
    logits: Moments | Float[Tensor, "*batch_and_classes"],
    target: Int[Tensor, "*batch"],
    weight: Float[Tensor, " classes"] | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    approximation: Posterior = "simplified",
) -> Float[Tensor, "*reduced"]:
    """Negative log-likelihood of the propagated class posterior (Shekhovtsov & Flach 2018, (12)).

    Args:
        logits: shape ``(N, C, *)`` or ``(C,)``, before any softmax.
        target: class indices, shape ``(N, *)`` or ``()``.
        weight: a weight for each class, shape ``(C,)``.
        ignore_index: a target that does not count.
        reduction: ``mean``, ``sum`` or ``none``, as in torch.
        approximation: of :func:`log_class_posterior`.
    """
    x = as_moments("nll_loss", logits)
    log_q = log_class_posterior(x, 0 if x.mean.dim() == 1 else 1, approximation)
    return F.nll_loss(log_q, target, weight, ignore_index=ignore_index, reduction=reduction)


def gaussian_nll_loss(
    output: Moments | Float[Tensor, "*shape"],
    target: Float[Tensor, "*shape"],
    noise_var: Float[Tensor, "*#shape"] | float,
    reduction: str = "mean",
) -> Float[Tensor, "*reduced"]:
    """Negative log-likelihood of targets under N(mean, var + noise_var), constants included.

    Args:
        output: the network's output, any shape.
        target: of the same shape.
        noise_var: *variance* of the observation noise, positive; a number or a tensor that broadcasts.
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        InputError: if shapes differ, a number ``noise_var`` is not positive, or another reduction is asked for.
    """
    x = as_moments("gaussian_nll_loss", output)
    if x.mean.shape != target.shape:
        raise InputError(f"gaussian_nll_loss: output {tuple(x.mean.shape)} and target {tuple(target.shape)} differ")
    if not isinstance(noise_var, Tensor) and not noise_var > 0:
        raise InputError(f"gaussian_nll_loss: the noise's variance must be positive, got {noise_var!r}")
    var = x.var + noise_var
    loss = 0.5 * ((target - x.mean).square() / var + var.log() + math.log(2 * math.pi))
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f"gaussian_nll_loss: expected mean, sum or none, got {reduction!r} as reduction")
    return loss if reduction == "none" else getattr(loss, reduction)()


#: variance of the standard logistic distribution, and 1 over it
_LOGISTIC, _INVERSE = math.pi**2 / 3, 3 / math.pi**2
#: pairs of classes taken at a time: on the CPU 2 MiB in float64; else, and in a checkpoint, 64
_SLICE, _LARGE_SLICE = 1 << 18, 1 << 23
#: the scores of some classes (mean, variance) against others
_Scores = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def log_probabilities(mean: Tensor, var: Tensor, dim: Any, approximation: str) -> Tensor:
    """Log-probabilities along ``dim``; NaN where a variance of the same row is negative.

    Args:
        mean, var: moments of the logits, of one shape; ``var`` is a *variance*.
        dim: the axis of the classes.
        approximation: ``logistic``, ``normal`` or ``simplified``.

    Raises:
        InputError: if there is no such axis.
    """
    if isinstance(dim, bool) or not isinstance(dim, numbers.Integral):
        raise InputError(f"log_class_posterior: expected a whole number for dim, got {type(dim).__name__}")
    axis = int(dim)
    if not -mean.dim() <= axis < mean.dim():
        raise InputError(
            f"log_class_posterior: expected an axis of a tensor of {mean.dim()} dimensions, got dim = {axis}"
        )
    m, v = (t.to(torch.float64).movedim(axis, -1) for t in (mean, var))
    v = torch.where(v >= 0, v, torch.full_like(v, torch.nan))
    scores = m / torch.sqrt(1 + _INVERSE * v) if approximation == "simplified" else _scored(_OF[approximation], m, v)
    return torch.log_softmax(scores, -1).movedim(-1, axis).to(mean.dtype)


def _logistic(own_mean: Tensor, own_var: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return -torch.logsumexp((mean - own_mean) / torch.sqrt(1 + _INVERSE * (own_var + var)), -1)


def _normal(own_mean: Tensor, own_var: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return torch.special.log_ndtr((own_mean - mean) / torch.sqrt(_LOGISTIC + own_var + var)).sum(-1)


_OF: dict[str, _Scores] = {"logistic": _logistic, "normal": _normal}


def _scored(scores: _Scores, mean: Tensor, var: Tensor) -> Tensor:
    """The score of every class, over the last axis."""
    if torch.compiler.is_compiling() or transformed():
        return _checkpointed(scores, mean, var)
    if mean.numel() * mean.shape[-1] <= _slice_on(mean):
        return _of_pairs(scores, mean, var, mean, var)
    return _InSlices.apply(scores, mean, var)


def _slice_on(tensor: Tensor) -> int:
    return _SLICE if tensor.device.type == "cpu" else _LARGE_SLICE


def _of_pairs(scores: _Scores, own_mean: Tensor, own_var: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """The scores of some classes against all."""
    return scores(own_mean.unsqueeze(-1), own_var.unsqueeze(-1), mean.unsqueeze(-2), var.unsqueeze(-2))


def _checkpointed(scores: _Scores, mean: Tensor, var: Tensor) -> Tensor:
    """The scores in a form that torch can differentiate again and transform."""
    classes = mean.shape[-1]
    step = max(1, _LARGE_SLICE // max(mean.numel(), 1))
    if step >= classes:
        return _of_pairs(scores, mean, var, mean, var)
    again: Callable[..., Any] = functools.partial(checkpoint, _of_pairs, scores, use_reentrant=False)
    slices = [slice(start, start + step) for start in range(0, classes, step)]
    return torch.cat([again(mean[..., s], var[..., s], mean, var) for s in slices], -1)


class _InSlices(torch.autograd.Function):
    """The scores, slice by slice: of rows, and of classes of them."""

    @staticmethod
    def forward(ctx: Any, scores: _Scores, mean: Tensor, var: Tensor) -> Tensor:
        ctx.scores = scores
        ctx.save_for_backward(mean, var)
        m, v = _rows(mean), _rows(var)
        found = torch.empty_like(m)
        for rows, some in _slices(m):
            found[rows, some] = _of_pairs(scores, m[rows, some], v[rows, some], m[rows], v[rows])
        return found.view(mean.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        mean, var = ctx.saved_tensors
        if torch.is_grad_enabled():  # of a derivative that is differentiated again
            leaves = [t if t.requires_grad else t.detach().requires_grad_() for t in (mean, var)]
            again = torch.autograd.grad(_checkpointed(ctx.scores, *leaves), leaves, grad, create_graph=True)
            return None, *again
        m, v, g = _rows(mean), _rows(var), _rows(grad)
        of_mean, of_var = torch.zeros_like(m), torch.zeros_like(v)
        for rows, some in _slices(m):
            with torch.enable_grad():
                parts = m[rows, some], v[rows, some], m[rows], v[rows]
                leaves = [part.detach().requires_grad_() for part in parts]
                found = torch.autograd.grad(_of_pairs(ctx.scores, *leaves), leaves, g[rows, some])
            for total, own, other in ((of_mean, found[0], found[2]), (of_var, found[1], found[3])):
                total[rows] += other
                total[rows, some] += own
        return None, of_mean.view(mean.shape), of_var.view(var.shape)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _slices(m: Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows, and classes of them, with no more pairs than a slice has, or one row's class against all."""
    most, (rows, classes) = _slice_on(m), m.shape
    many = max(1, most // classes)
    step = max(1, most // (min(many, rows) * classes))
    for first in range(0, rows, many):
        for start in range(0, classes, step):
            yield slice(first, first + many), slice(start, start + step)
