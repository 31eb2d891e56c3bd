"""The method ``covariance``: a network runs on laws of :mod:`~momentgen.laws.covariance`, example by example."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.border import entered
from momentgen.laws.covariance import Covariance, source
from momentgen.laws.covariance_graph import CURRENT, Narrower, Run
from momentgen.laws.draws import Draws
from momentgen.laws.examples import batch_of, per_example, with_moments, without_batch
from momentgen.laws.half import in_float32
from momentgen.laws.law import Law
from momentgen.laws.nests import Nest, flattened
from momentgen.laws.numerics.root import matrix_root
from momentgen.laws.parameters import LIFT, Plan
from momentgen.laws.parameters_covariance import random_parameter
from momentgen.laws.point import point
from momentgen.laws.propagations import PROPAGATIONS
from momentgen.laws.unbatched import of_any_batch
from momentgen.laws.values import certain
from momentgen.runtime import JointMoments, Moments

__all__ = ["propagate"]


def propagate(where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Moments of the outputs with their covariance; the arguments are those of every method."""
    args, kwargs = with_moments(args, kwargs)
    batch = batch_of(args, kwargs)
    training = bool(getattr(where, "training", False))
    layout: list[Nest] = []

    def lifted(leaves: list[Any]) -> list[Any]:
        laws: dict[int, Covariance] = {}
        found: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Moments):
                if id(leaf) not in laws:
                    factor = leaf.factor[0] if isinstance(leaf, JointMoments) else None
                    laws[id(leaf)] = source(leaf.mean, leaf.var, factor, type(where).__name__)
                found.append(laws[id(leaf)])
            elif isinstance(leaf, Tensor) and (leaf.is_floating_point() or (training and leaf.dtype is not torch.bool)):
                found.append(point(leaf, Covariance))
            else:
                found.append(leaf)
        return found

    def one(own: tuple[Any, ...], named: dict[str, Any]) -> Any:
        leaves, form = flattened((own, named))
        token = CURRENT.set(Run(width))
        try:
            with entered(Draws(Covariance)):
                own, named = form.of(lifted(leaves))
                return _lowered(where, forward(*own, **named), layout)
        finally:
            CURRENT.reset(token)

    width, chunk, plan = batch, None, Plan()
    while True:
        lift_token = LIFT.set(functools.partial(random_parameter, plan))
        try:
            parts = per_example(where, forward, one, args, kwargs, chunk)
        except Narrower as fewer:
            width = chunk = fewer.batch
            continue
        finally:
            LIFT.reset(lift_token)
        return _raised(parts, layout)


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


def _raised(parts: list[tuple[Tensor, ...]], layout: list[Nest]) -> Any:
    """Moments of the whole batch, as the network returned them."""
    leaves: list[Any] = []
    for tensors in parts:
        if len(tensors) == 3:
            mean, var, cov = tensors
            leaves.append(JointMoments.of(mean, var, _root(cov)))
        elif len(tensors) == 2:
            leaves.append(Moments(*tensors))
        else:
            leaves.append(certain(tensors[0]) if tensors[0].is_floating_point() else tensors[0])
    return layout[0].of(leaves)


def _root(cov: Tensor) -> Tensor:
    root, below = matrix_root(cov)
    if not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active() and below.numel():
        worst = float(below.max())
        if worst > 1:
            warnings.warn(
                f"covariance: an eigenvalue was negative by {worst:.1f} times what rounding explains, and counts as 0",
                RuntimeWarning,
                stacklevel=4,
            )
    return root
