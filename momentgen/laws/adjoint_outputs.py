"""The method ``adjoint``: moments of a network's outputs, with their covariance, from derivatives by all sources.

The network runs on :class:`~momentgen.laws.adjoint.Adjoint` laws, for each example, and
:mod:`momentgen.laws.backward` finds the derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from momentgen.laws.adjoint import Adjoint
from momentgen.laws.backward import Derivatives, Share, covariance_of, derivatives, rows_of
from momentgen.laws.border import entered
from momentgen.laws.draws import Draws
from momentgen.laws.examples import per_example, stacked, with_moments, without_batch
from momentgen.laws.half import in_float32
from momentgen.laws.parameters_adjoint import lift
from momentgen.laws.propagations import PROPAGATIONS
from momentgen.laws.unbatched import of_any_batch

__all__ = ["propagate"]


def propagate(where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Moments of the outputs with their covariance.

    Args:
        where: the network, for errors.
        forward: what runs on laws.
        args: of the network.
        kwargs: likewise.
    """
    plan: dict[str, Any] = {}

    def one(_: int, own_args: tuple[Any, ...], own_kwargs: dict[str, Any]) -> Any:
        with entered(Draws(Adjoint)):
            found = derivatives(forward, own_args, own_kwargs, where)
        return _to_parts(where, found, plan)

    args, kwargs = with_moments(args, kwargs)
    return stacked(per_example(where, forward, one, lift, args, kwargs, rows_of), plan["form"])


def _to_parts(where: Any, found: Derivatives, plan: dict[str, Any]) -> list[tuple[Tensor, ...]]:
    """Tensors of each output without the batch of one; what they are is kept in ``plan``.

    Args:
        where: the network, for errors.
        found: derivatives of its outputs.
        plan: for :func:`~momentgen.laws.examples.stacked`.

    Returns:
        Of a random output mean, *variance* and a factor of the covariance; the tensor of a certain one.
    """
    plan["form"] = found.form
    variances, factors = covariance_of(found)
    parts: list[tuple[Tensor, ...]] = []
    for leaf in found.leaves:
        if isinstance(leaf, Share):
            mean, var = (part[leaf.values].view(leaf.shape).to(leaf.dtype) for part in (found.mean, variances))
            factor = factors[:, leaf.values].to(leaf.dtype)
            parts.append((without_batch(where, mean), without_batch(where, var), factor))
        else:
            parts.append((without_batch(where, leaf),))
    return parts


PROPAGATIONS["adjoint"] = in_float32(of_any_batch(propagate))
