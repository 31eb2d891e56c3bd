"""The method ``correlated``: a network is run twice for each example, on two kinds of laws.

1. On :class:`~momentgen.laws.adjoint.Adjoint` laws, for the derivatives of the outputs by every source of noise.  From
   them come the directions: an orthonormal basis of what the outputs depend on, in units of the noise's standard
   deviation.
2. On :class:`~momentgen.laws.correlated.Correlated` laws, with these directions for tangents and a few fixed samples.

Directions are constants to autograd: gradients are those of the second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws import correlated_rules as correlated_rules
from momentgen.laws.backward import derivatives, is_real, leaves_of, lifted, normal_numbers
from momentgen.laws.border import PROPAGATIONS, certain, entered
from momentgen.laws.correlated import RUN, Correlated, Run, correlated
from momentgen.laws.law import Law
from momentgen.laws.numerics.root import square_root
from momentgen.laws.parameters_two_passes import planned_per_example
from momentgen.laws.point import Point
from momentgen.runtime import JointMoments, Moments

__all__ = ["Effort", "effort", "propagate"]


class Effort(NamedTuple):
    """How much is spent; time grows with their sum.

    Attributes:
        directions: at most so many; outputs of a smaller number are covered by one each.
        samples: of the network.
        seed: of the samples.
    """

    directions: int = 10
    samples: int = 8
    seed: int = 0


_effort: ContextVar[Effort] = ContextVar("momentgen_effort")
_DEFAULT = Effort()


@contextmanager
def effort(directions: int = 10, samples: int = 8, seed: int = 0) -> Iterator[None]:
    """Within the context the method ``correlated`` uses so many directions and samples.

    Raises:
        InputError: for fewer than 1 direction or 2 samples.
    """
    if directions < 1 or samples < 2:
        raise InputError(f"effort: expected at least 1 direction and 2 samples, got {directions} and {samples}")
    token = _effort.set(Effort(directions, samples, seed))
    try:
        yield
    finally:
        _effort.reset(token)


def propagate(where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Moments of the outputs, with the covariance that the directions explain."""
    spent = _effort.get(_DEFAULT)
    plan: dict[str, Any] = {}

    def one(own_args: tuple[Any, ...], own_kwargs: dict[str, Any]) -> Any:
        with entered():
            found = _two_passes(forward, own_args, own_kwargs, spent)
        return _to_parts(where, found, plan)

    if not any(isinstance(leaf, Moments) for leaf in leaves_of((args, kwargs))):
        args = tuple(certain(value) if is_real(value) else value for value in args)
    return _from_parts(planned_per_example(where, one, args, kwargs), plan)


# ----------------------------------------------------------------- first pass


def directions_of(found: Tensor, variances: Tensor, count: int) -> Tensor:
    """An orthonormal basis of what outputs depend on, in units of each source's standard deviation.

    Args:
        found: derivatives of the outputs, shape ``(outputs, n)``.
        variances: of the sources, shape ``(n,)``.
        count: at most so many directions, those of the largest variance.

    Returns:
        Shape ``(count, n)``, or fewer rows of fewer outputs; rows of 0 where there is no more to explain.
    """
    if not len(found):  # nothing random comes out
        return found.new_zeros(1, len(variances))
    scaled = found * variances.clamp_min(0).sqrt()
    size = scaled.square().sum(1).clamp_min(torch.finfo(scaled.dtype).tiny).rsqrt()
    scaled = scaled * size[:, None]  # each output matters alike
    values, vectors = torch.linalg.eigh(scaled @ scaled.mT)
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
    usable = values > 1e-5 * values[0].clamp_min(torch.finfo(values.dtype).tiny)
    weight = torch.where(usable, torch.where(usable, values, 1).rsqrt(), 0)
    return (vectors * weight).mT @ scaled


# ---------------------------------------------------------------- second pass


def _two_passes(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], spent: Effort) -> Any:
    def combined(out: Tensor) -> Tensor:
        if len(out) <= spent.directions + _SPARE:
            return torch.eye(len(out), dtype=out.dtype, device=out.device)
        return normal_numbers(spent.directions + _SPARE, len(out), 0).to(out)

    _, found, variances = derivatives(forward, args, kwargs, residuals=False, combined=combined)
    basis = directions_of(found, variances, spent.directions).detach()
    draws = normal_numbers(spent.samples, basis.shape[1], spent.seed).to(basis)
    run = Run(basis, draws, draws @ basis.mT)
    token = RUN.set(run)
    try:
        own_args, own_kwargs = lifted((args, kwargs), _input, Correlated)
        return forward(*own_args, **own_kwargs)
    finally:
        RUN.reset(token)


#: random combinations of outputs beyond the number of directions
_SPARE = 6


def _input(value: Moments) -> Correlated:
    mean, var = value
    return correlated(mean, var, *RUN.get().source(mean, var), independent=True)


# -------------------------------------------------------------------- outputs


def _to_parts(where: Any, found: Any, plan: dict[str, Any]) -> list[tuple[Tensor, ...]]:
    """Tensors of each output without the batch of one; what they are is kept in ``plan``."""
    leaves, form = pytree.tree_flatten(found, is_leaf=lambda part: isinstance(part, Law))
    plan.update(form=form, leaves=[None if isinstance(leaf, Law | Tensor) else leaf for leaf in leaves])
    parts: list[tuple[Tensor, ...]] = []
    for leaf in leaves:
        if isinstance(leaf, Correlated):
            tangents = leaf._joint.tangents
            explained = leaf._joint.explained
            usable = explained > 0
            scale = square_root(torch.where(usable, leaf._var / torch.where(usable, explained, 1), 0))
            mean, var = _one(where, leaf._mean), _one(where, leaf._var)
            parts.append((mean, var, (tangents * scale).reshape(len(tangents), -1)))
        elif isinstance(leaf, Point | Tensor):
            parts.append((_one(where, leaf._form() if isinstance(leaf, Point) else leaf),))
        else:
            parts.append(())
    return parts


def _one(where: Any, value: Tensor) -> Tensor:
    if value.dim() == 0 or value.shape[0] != 1:
        raise InputError(
            f"{type(where).__name__}: expected outputs with the batch in dimension 0, got shape {tuple(value.shape)} "
            "for a batch of one"
        )
    return value[0]


def _from_parts(parts: Any, plan: dict[str, Any]) -> Any:
    found: list[Any] = []
    for tensors, leaf in zip(parts, plan["leaves"], strict=True):
        if len(tensors) == 3:
            found.append(JointMoments.of(*tensors))
        elif len(tensors) == 1:
            value = tensors[0]
            found.append(Moments(value, torch.zeros_like(value)) if value.is_floating_point() else value)
        else:
            found.append(leaf)
    return pytree.tree_unflatten(found, plan["form"])


PROPAGATIONS["correlated"] = propagate
