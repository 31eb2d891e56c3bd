"""Functions over moments: those of torch behind the border, class posteriors and losses.

Every function of torch or torch.nn.functional is here under its own name, taking tensors and
:class:`~momentgen.Moments` and returning moments: ``functional.add(x, y)``, ``functional.softmax(x, -1)``.  A value
given twice is one value: ``functional.mul(x, x)`` is its square.

Losses need no floor on variances: every denominator here has one of its own.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.border import inside, run
from momentgen.laws.law import laws_in
from momentgen.laws.numerics.quadrature import normal_points
from momentgen.laws.numerics.root import matrix_root
from momentgen.laws.table import TABLE
from momentgen.laws.values import as_moments, certain, draw
from momentgen.nn.class_scores import log_probabilities
from momentgen.runtime import JointMoments, Moments

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
        flat, rank = matrix_root(flat.mT @ flat)[0], classes
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
