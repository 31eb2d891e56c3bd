"""The method ``covariance``: a network runs on laws of :mod:`~momentgen.laws.covariance`, example by example."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.border import entered
from momentgen.laws.context import within
from momentgen.laws.covariance import Covariance, source
from momentgen.laws.covariance_graph import CURRENT, Run
from momentgen.laws.draws import Draws
from momentgen.laws.examples import lifted, per_example, stacked, with_moments, without_batch
from momentgen.laws.half import in_float32
from momentgen.laws.law import Law
from momentgen.laws.nests import Nest, flattened
from momentgen.laws.numerics.root import matrix_root
from momentgen.laws.parameters import Plan
from momentgen.laws.parameters_covariance import random_parameter
from momentgen.laws.propagations import PROPAGATIONS
from momentgen.laws.unbatched import of_any_batch
from momentgen.laws.values import readable
from momentgen.runtime import JointMoments, Moments

__all__ = ["propagate"]


def propagate(where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Moments of the outputs with their covariance; the arguments are those of every method."""
    args, kwargs = with_moments(args, kwargs)
    training = bool(getattr(where, "training", False))
    layout: list[Nest] = []

    def law(moments: Moments) -> Covariance:
        factor = moments.factor[0] if isinstance(moments, JointMoments) else None
        return source(moments.mean, moments.var, factor, type(where).__name__)

    def one(width: int, own: tuple[Any, ...], named: dict[str, Any]) -> Any:
        with within(CURRENT, Run(width)), entered(Draws(Covariance)):
            own, named = lifted((own, named), law, Covariance, training)
            return _lowered(where, forward(*own, **named), layout)

    lift = functools.partial(random_parameter, Plan())
    parts = per_example(where, forward, one, lambda _: lift, args, kwargs)
    return stacked([(*own[:2], _root(own[2])) if len(own) == 3 else own for own in parts], layout[0])


PROPAGATIONS["covariance"] = in_float32(of_any_batch(propagate))


def _lowered(where: Any, out: Any, layout: list[Nest]) -> list[tuple[Tensor, ...]]:
    """The tensors of what a network returned for one example; ``layout`` says where they were."""
    leaves, form = flattened(out)
    layout[:] = [form]
    parts: list[tuple[Tensor, ...]] = []
    for leaf in leaves:
        tensors = (leaf,) if isinstance(leaf, Tensor) else leaf._parts() if isinstance(leaf, Law) else tuple(leaf)
        tensors = tuple(without_batch(where, part) for part in tensors)
        parts.append((*tensors, leaf.cov) if isinstance(leaf, Covariance) else tensors)
    return parts


def _root(cov: Tensor) -> Tensor:
    varies = ~(cov.diagonal(dim1=-2, dim2=-1) <= 0)  # what does not, as x - x, has covariances of rounding alone
    cov = torch.where(varies[..., :, None] & varies[..., None, :], cov, 0)
    root, below = matrix_root(cov)
    if readable(below) and below.numel():
        worst = float(below.max())
        if worst > 1:
            warnings.warn(
                f"covariance: an eigenvalue was negative by {worst:.1f} times what rounding explains, and counts as 0",
                RuntimeWarning,
                stacklevel=4,
            )
    return root
