"""Derivatives of a network's outputs by all its sources of randomness, and the outputs' covariance from them.

A network is run on :class:`~momentgen.laws.adjoint.Adjoint` laws, and one product with the transposed Jacobian is taken
for each output.  The method ``adjoint`` (:mod:`momentgen.laws.adjoint_outputs`) and :func:`output_covariance` stand on
it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.adjoint import Adjoint, adjoint, foreign
from momentgen.laws.border import entered
from momentgen.laws.context import within
from momentgen.laws.convert import convert
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.draws import Draws
from momentgen.laws.example_arguments import is_real
from momentgen.laws.examples import lifted, per_example
from momentgen.laws.half import in_float32
from momentgen.laws.law import Law
from momentgen.laws.nests import Nest, flattened, leaves_of
from momentgen.laws.numerics.dust import without_dust
from momentgen.laws.numerics.root import matrix_root, square_root
from momentgen.laws.parameters_adjoint import lift
from momentgen.laws.precision import HALVES
from momentgen.laws.sources import OF_MANY, SOURCES, Sources, probes_for
from momentgen.laws.unbatched import of_any_batch
from momentgen.laws.values import certain
from momentgen.runtime import JointMoments, Moments

__all__ = [
    "Derivatives",
    "Share",
    "covariance_of",
    "derivatives",
    "like",
    "output_covariance",
    "rows_of",
]

#: more outputs than this must be chosen: each takes a backward pass
_MOST_OUTPUTS = 100


# ----------------------------------------------------------------- derivatives


@dataclass(frozen=True)
class Share:
    """A random output's place among all of them.

    Attributes:
        values: which of the K values are its own.
        shape: of the output.
        dtype: likewise.
    """

    values: slice
    shape: torch.Size
    dtype: torch.dtype


class Derivatives(NamedTuple):
    """What :func:`derivatives` finds of K outputs and each source's n values.

    Attributes:
        leaves: of what the network returned: a :class:`Share` in the place of each random value, tensors in that of
            certain ones.
        form: of what it returned.
        mean: of the outputs, shape ``(K,)``.
        by: derivatives of what was wanted by each source, of shape ``(k, n)``.
        variances: of each source, of shape ``(n,)``.
    """

    leaves: list[Any]
    form: Nest
    mean: Tensor
    by: list[Tensor]
    variances: list[Tensor]


#: network -> how many values each source has, as they were last found
_known_sources: weakref.WeakKeyDictionary[torch.nn.Module, list[int]] = weakref.WeakKeyDictionary()


def derivatives(
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    where: object,
    outputs: Sequence[int] | None = None,
) -> Derivatives:
    """Derivatives of the outputs by all sources, and these sources' variances.

    Args:
        forward: runs on laws.
        args: of one example.
        kwargs: likewise.
        where: the network: what was found out about its sources is tried first at the next call, which saves a run.
        outputs: which of the K values are differentiated; None for all.

    Raises:
        InputError: for more than 100 outputs of which none are chosen, or an output that is not there.
    """
    leaves = leaves_of((args, kwargs))
    random = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, Moments)}.values())
    example = like(where, args, kwargs)
    lengths = [leaf.factor.shape[1] if isinstance(leaf, JointMoments) else leaf.mean.numel() for leaf in random]
    given = [
        leaf.mean if isinstance(leaf, Moments) else leaf
        for leaf in leaves
        if isinstance(leaf, Moments) or is_real(leaf)
    ]
    probes = probes_for(sum(part.numel() for part in given))
    lengths = _known_sources.get(where, lengths) if isinstance(where, torch.nn.Module) else lengths
    lengths = lengths if given else []  # of token ids a run tells the dtype, in which random parameters compute
    while True:
        # A network's first run tells how many sources there are within it.
        sources: list[Sources] = []
        returned: list[Any] = []

        def run(
            shifts: list[Tensor],
            met: list[Sources] = sources,
            found: list[Any] = returned,
            typed: Tensor = example,
        ) -> tuple[Tensor, list[Tensor]]:
            met.append(Sources(shifts, typed.dtype, probes))
            with within(SOURCES, met[-1]):
                own_args, own_kwargs = lifted((args, kwargs), adjoint, Adjoint)
                values, form = flattened(forward(*own_args, **own_kwargs))
                shares, means, certain = _divided(values)  # some are computed here
            found.append((shares, form))
            return torch.cat(means) if means else typed.new_zeros(0), certain

        # A shift of its own for each source: the derivative of a piece of one vector is a whole vector of zeros.
        shifts = [example.new_zeros(length) for length in lengths]
        vjp: Any = torch.func.vjp  # with a varying number of results
        mean, pull, fixed = vjp(run, shifts, has_aux=True)
        met = sources[-1]
        if met.lengths == lengths:
            break
        lengths = met.lengths
        example = example if given else mean
    if isinstance(where, torch.nn.Module):
        _known_sources[where] = lengths
    combined = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)[chosen(where, outputs, len(mean))]
    if not len(combined):
        by = [mean.new_zeros(0, length) for length in lengths]
    elif len(combined) == 1:
        by = [found.unsqueeze(0) for found in pull(combined[0])[0]]
    else:
        by = torch.vmap(pull)(combined)[0]
    variances = [var.flatten() for var in met.variances]
    rest, (shares, form) = iter(fixed), returned[-1]
    return Derivatives([next(rest) if share is None else share for share in shares], form, mean, by, variances)


def like(where: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A tensor of the dtype and device in which a network computes: an argument's, else that of its parameters."""
    leaves = leaves_of((args, kwargs))
    random = [leaf.mean for leaf in leaves if isinstance(leaf, Moments)]
    own = [*where.parameters(), *where.buffers()] if isinstance(where, torch.nn.Module) else []
    found = next((value for value in (*random, *leaves, *own) if is_real(value)), torch.empty(0))
    return found.float() if found.dtype in HALVES else found  # as what is random is computed


def _divided(leaves: list[Any]) -> tuple[list[Share | None], list[Tensor], list[Tensor]]:
    """Of the leaves of what a network returned the random ones' shares, and their means; and the certain ones."""
    shares: list[Share | None] = []
    means: list[Tensor] = []
    certain: list[Tensor] = []
    taken = 0
    for leaf in leaves:
        if isinstance(leaf, Adjoint):
            mean = leaf._parts()[0]
            means.append(mean.flatten())
            shares.append(Share(slice(taken, taken + mean.numel()), mean.shape, mean.dtype))
            taken += mean.numel()
        elif isinstance(leaf, Diagonal):
            raise foreign(None, leaf)
        else:
            shares.append(None)
            certain.append(leaf._parts()[0] if isinstance(leaf, Law) else leaf)
    return shares, means, certain


# ------------------------------------------------------------------ covariance


def covariance_of(found: Derivatives) -> tuple[Tensor, Tensor]:
    """*Variance* of the outputs that were asked for, shape ``(k,)``, and a factor of their covariance, ``(k, k)``."""
    # A source that no output depends on adds nothing, whatever its variance: that of a standard deviation of one value,
    # which is not looked at, is NaN.
    used = [torch.where(by.any(0), var, 0) for by, var in zip(found.by, found.variances, strict=True)]
    # A network may go on in another dtype than that of its input, which the shifts have.
    pairs = [(by.to(found.mean.dtype), var.to(found.mean.dtype)) for by, var in zip(found.by, used, strict=True)]
    parts = [without_dust(by * var) @ by.mT for by, var in pairs]
    # Where nothing is random there are neither sources nor outputs.
    covariance = functools.reduce(torch.add, parts) if parts else torch.outer(found.mean, found.mean)
    if len(covariance) == 1:
        return covariance[0], square_root(covariance)
    covariance = (covariance + covariance.mT) / 2
    return covariance.diagonal(), matrix_root(covariance)[0]


def output_covariance(
    network: torch.nn.Module,
    x: Moments | Tensor,
    *args: Any,
    outputs: Sequence[int] | None = None,
    **kwargs: Any,
) -> JointMoments:
    """Mean and covariance of a network's outputs, by one backward pass for each output.

    The covariance is Σ a_ki R_i a_li over all sources of randomness i.  These are the inputs, the network's own noise,
    and the remainders of activations, maxima and products beyond their linear part.  It is right to first order in each
    layer.  Means and slopes are averaged over the noise of hidden units, whose size a few probes estimate.  It takes
    one forward pass of moments and probes, and one backward pass for each output.  So it suits few outputs, as in a
    regression.  The site's page on networks has its cost.

    ``convert(network, method="adjoint")(x)`` is the same in the outputs' own shape, and for several outputs.

    Args:
        network: a plain network, or a converted one, in evaluation mode; examples of a batch must not interact.
        x: input, :class:`~momentgen.Moments` of shape ``(batch, ...)``, or a tensor where the network makes noise.
        args: further arguments.
        outputs: which values of an example's flattened output are wanted; None for all.
        kwargs: further arguments.

    Returns:
        Moments of shape ``(batch, k)`` of the k outputs, flattened, with their covariance; ``(k,)`` of an input without
        a batch.

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

    def rows(count: int) -> int:
        return rows_of(count if outputs is None else len(outputs))

    def propagate(where: Any, forward: Any, own_args: tuple[Any, ...], own_kwargs: dict[str, Any]) -> JointMoments:
        def one(_: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
            with entered(Draws(Adjoint)):
                found = derivatives(forward, args, kwargs, network, outputs)
            return found.mean[chosen(network, outputs, len(found.mean))], *covariance_of(found)

        return JointMoments.of(*per_example(where, forward, one, lift, own_args, own_kwargs, rows))

    return cast(
        JointMoments, in_float32(of_any_batch(propagate))(network, converted._forward_inside, (given, *args), kwargs)
    )


def rows_of(outputs: int) -> int:
    """How many numbers derivatives of so many outputs keep for each value of a network, roughly, with its probes."""
    return 2 * outputs + 1 + OF_MANY


def chosen(where: object, outputs: Sequence[int] | None, count: int) -> list[int]:
    """The places of the outputs that are wanted."""
    if outputs is None:
        if count > _MOST_OUTPUTS:
            name = type(where).__name__ if isinstance(where, torch.nn.Module) else str(where)
            raise InputError(
                f"adjoint: {name} has {count} outputs, each of which takes a backward pass; unasked it takes at most "
                f"{_MOST_OUTPUTS}. Choose some by momentgen.output_covariance(..., outputs=[...]), or use the default "
                "of evaluation, method='controlled'"
            )
        return list(range(count))
    wrong = [index for index in outputs if not 0 <= index < count]
    if wrong:
        raise InputError(f"output_covariance: expected outputs from 0 to {count - 1}, got {wrong[0]}")
    return list(outputs)
