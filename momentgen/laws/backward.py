"""Derivatives of a network's outputs by all its sources of randomness, and the outputs' covariance from them.

A network is run on :class:`~momentgen.laws.adjoint.Adjoint` laws, and one product with the transposed Jacobian is taken
for each output.  :func:`output_covariance` is the user's function; the method ``correlated`` takes its directions here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.adjoint import Adjoint, Sources, adjoint, recording
from momentgen.laws.border import certain, entered
from momentgen.laws.convert import convert
from momentgen.laws.law import Law
from momentgen.laws.numerics.root import matrix_root
from momentgen.laws.parameters_two_passes import planned_per_example
from momentgen.laws.point import point
from momentgen.runtime import JointMoments, Moments

__all__ = ["derivatives", "is_real", "leaves_of", "lifted", "normal_numbers", "output_covariance"]

#: more outputs than this must be chosen: each takes a backward pass
_MOST_OUTPUTS = 100


def is_real(value: object) -> bool:
    """Whether a value is a tensor of floating point."""
    return isinstance(value, Tensor) and value.is_floating_point()


def leaves_of(nest: Any) -> list[Any]:
    """Tensors, moments and all else in a nest of arguments."""
    return pytree.tree_leaves(nest, is_leaf=lambda part: isinstance(part, Moments))


def lifted(nest: Any, law: Callable[[Moments], Any], noise: type[Law]) -> Any:
    """Arguments with laws in the place of moments and of floating-point tensors.

    Args:
        nest: of arguments.
        law: makes a law of moments.
        noise: what noise of the network's own makes of a certain value.
    """

    def lift(value: Any) -> Any:
        if isinstance(value, Moments):
            return law(value)
        return point(value, noise) if is_real(value) else value

    return pytree.tree_map(lift, nest, is_leaf=lambda part: isinstance(part, Moments))


@functools.lru_cache(maxsize=8)
def normal_numbers(rows: int, columns: int, seed: int) -> Tensor:
    """Normal numbers that are the same for every example; drawn by torch under vmap they would differ."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, columns)))


def outputs_of(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], sources: Sources) -> Tensor:
    """Means of all random outputs in one vector; the network runs on ``Adjoint`` laws."""
    with recording(sources):
        own_args, own_kwargs = lifted((args, kwargs), lambda value: adjoint(*value), Adjoint)
        found = forward(*own_args, **own_kwargs)
    means = [
        law._parts()[0].flatten()
        for law in pytree.tree_leaves(found, is_leaf=lambda part: isinstance(part, Law))
        if isinstance(law, Adjoint)
    ]
    return torch.cat(means) if means else torch.zeros(0, dtype=sources.dtype)


def derivatives(
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    residuals: bool,
    combined: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of the outputs by all sources, and these sources' variances.

    Args:
        forward: runs on laws.
        args: of one example.
        kwargs: likewise.
        residuals: whether the remainders of nonlinear functions are sources.
        combined: says of the vector of K outputs which combinations of them are differentiated, shape ``(k, K)``.

    Returns:
        The outputs' means, shape ``(K,)``; derivatives, shape ``(k, n)``, by the n values of all sources; and their
        variances, shape ``(n,)``.
    """
    random = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Moments)]
    length, like = sum(leaf.mean.numel() for leaf in random), random[0].mean
    while True:
        sources: list[Sources] = []

        def run(shifts: Tensor, met: list[Sources] = sources) -> Tensor:
            met.append(Sources(shifts, residuals))
            return outputs_of(forward, args, kwargs, met[-1])

        vjp: Any = torch.func.vjp  # with a varying number of results
        out, pull = vjp(run, torch.zeros(length, dtype=like.dtype, device=like.device))
        if sources[-1].length == length:
            break
        length = sources[-1].length  # sources within the network, of which the first run told
    (found,) = torch.vmap(pull)(combined(out))
    return out, found, torch.cat([var.flatten() for var in sources[-1].variances])


def output_covariance(
    network: torch.nn.Module,
    x: Moments | Tensor,
    *args: Any,
    outputs: Sequence[int] | None = None,
    **kwargs: Any,
) -> JointMoments:
    """Mean and covariance of a network's outputs, by one backward pass for each output.

    Means are those of AP2.  The covariance is Σ a_ki R_i a_li over all sources of randomness i: the inputs, the
    network's own noise, and what each activation, maximum and product of two random values adds to its linear part.
    To first order in each layer, with slopes averaged over the noise; it costs about two plain forward and backward
    passes and one more backward pass for each output, and suits few outputs, as a regression has.

    Args:
        network: a plain network, or a converted one, in evaluation mode; examples of a batch must not interact.
        x: input, :class:`~momentgen.Moments` of shape ``(batch, ...)``, or a tensor where the network makes noise.
        args: further arguments.
        outputs: which values of an example's flattened output are wanted; None for all.
        kwargs: further arguments.

    Returns:
        Moments of shape ``(batch, k)`` of the k outputs, flattened, with their covariance.

    Raises:
        InputError: for more than 100 outputs of which none are chosen.
        UnsupportedError: for a function that has no rule.

    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> net.weight.data = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    >>> found = output_covariance(net, Moments(torch.zeros(1, 2), torch.tensor([[1.0, 4.0]])))
    >>> found.covariance.detach().round(decimals=3)
    tensor([[[ 5., -3.],
             [-3.,  5.]]])
    """
    converted: Any = convert(network)
    given = x if isinstance(x, Moments) else certain(x)

    def one(own_args: tuple[Any, ...], own_kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        with entered():
            mean, found, variances = derivatives(
                converted._forward_inside, own_args, own_kwargs, residuals=True, combined=wanted
            )
        return wanted(mean) @ mean, (found * variances) @ found.mT

    def wanted(out: Tensor) -> Tensor:
        return torch.eye(len(out), dtype=out.dtype, device=out.device)[_chosen(network, outputs, len(out))]

    mean, covariance = planned_per_example(network, one, (given, *args), kwargs)
    covariance = (covariance + covariance.mT) / 2
    return JointMoments.of(mean, covariance.diagonal(dim1=-2, dim2=-1), matrix_root(covariance)[0])


def _chosen(network: torch.nn.Module, outputs: Sequence[int] | None, count: int) -> list[int]:
    """The places of the outputs that are wanted."""
    if outputs is None:
        if count > _MOST_OUTPUTS:
            raise InputError(
                f"output_covariance: {type(network).__name__} has {count} outputs, each of which takes a backward "
                f"pass; choose some by outputs=[...] (at most {_MOST_OUTPUTS} are taken unasked), or use "
                'method="correlated"'
            )
        return list(range(count))
    wrong = [index for index in outputs if not 0 <= index < count]
    if wrong:
        raise InputError(f"output_covariance: expected outputs from 0 to {count - 1}, got {wrong[0]}")
    return list(outputs)
