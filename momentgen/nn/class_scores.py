r"""Log-probabilities of the classes of independent normal logits, in three approximations of the literature.

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
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from momentgen.errors import InputError
from momentgen.runtime.autograd import transformed

__all__ = ["log_probabilities"]

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
