"""The methods ``adjoint`` and ``correlated``, and the default of a network in evaluation, which takes one of the two.

A network is run on two kinds of laws, for each example:

1. On :class:`~momentgen.laws.adjoint.Adjoint` laws, for the derivatives of the outputs by every source of noise.  The
   method ``adjoint`` has the outputs' covariance from them.  ``correlated`` has the directions: an orthonormal basis of
   what the outputs depend on, in units of the noise's standard deviation.
2. For ``correlated``, on :class:`~momentgen.laws.correlated.Correlated` laws, with these directions for tangents and a
   few fixed samples.

Directions are constants to autograd: gradients of ``correlated`` are those of the second pass.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws import correlated_rules as correlated_rules
from momentgen.laws.adjoint import Adjoint
from momentgen.laws.backward import (
    Derivatives,
    Share,
    Wanted,
    covariance_of,
    derivatives,
    every_output,
    lifted,
    like,
    normal_numbers,
    rows_of,
)
from momentgen.laws.border import entered
from momentgen.laws.correlated import RUN, Correlated, Run, correlated
from momentgen.laws.draws import Draws
from momentgen.laws.examples import is_real, with_moments, without_batch
from momentgen.laws.half import in_float32
from momentgen.laws.nests import flattened, leaves_of, mapped
from momentgen.laws.numerics.root import eigh, square_root
from momentgen.laws.parameters_two_passes import planned_per_example
from momentgen.laws.point import Point
from momentgen.laws.propagations import DEFAULT, PROPAGATIONS
from momentgen.laws.unbatched import of_any_batch
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.inputs import autocast_in_force

__all__ = ["FEW_OUTPUTS", "Effort", "effort", "propagate"]

#: The default is ``adjoint`` up to so many random values that an example has at the output: one of a regression, or its
#: mean and variance.  There it takes 0.21 to 0.37 of the time of ``correlated``, and with ten outputs 0.35 to 0.37 (an
#: MLP and LeNet, benchmarks/results/correlation.json, "few outputs"), while ``correlated`` errs less at larger noise in
#: deeper networks.
FEW_OUTPUTS: Final = 2


class Effort(NamedTuple):
    """How much is spent; time grows with their sum.

    Attributes:
        directions: at most so many; outputs of a smaller number are covered by one each.
        samples: of the network.
        seed: of the samples.
        examples: at most so many are computed at a time; None for all on a GPU, and as many as are fast on a CPU.
    """

    directions: int = 10
    samples: int = 24
    seed: int = 0
    examples: int | None = None


_effort: ContextVar[Effort] = ContextVar("momentgen_effort")
_DEFAULT = Effort()


@contextmanager
def effort(directions: int = 10, samples: int = 24, seed: int = 0, examples: int | None = None) -> Iterator[None]:
    """Within the context the method ``correlated`` uses so many directions and samples.

    With ``examples`` at most so many are computed at a time, by ``correlated`` and ``adjoint``, for less memory and the
    same results up to rounding.  Each part costs the overhead of a call.  By default it is the whole batch on a GPU,
    and on a CPU as many as keep what a layer holds within 16 MiB, but at least 8.

    Raises:
        InputError: for fewer than 1 direction, 2 samples or 1 example.
    """
    if directions < 1 or samples < 2 or (examples is not None and examples < 1):
        raise InputError(
            "effort: expected at least 1 direction, 2 samples and 1 example at a time, got "
            f"{directions}, {samples} and {examples}"
        )
    token = _effort.set(Effort(directions, samples, seed, examples))
    try:
        yield
    finally:
        _effort.reset(token)


def propagate(
    where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], few: float
) -> Any:
    """Moments of the outputs with their covariance.

    Under autocast all is computed in float32: what samples and directions leave over is a small difference.

    Args:
        where: the network, for errors.
        forward: what runs on laws.
        args: of the network.
        kwargs: likewise.
        few: up to how many outputs of an example ``adjoint`` is used, beyond it ``correlated``.
    """
    spent = _effort.get(_DEFAULT)
    plan: dict[str, Any] = {}

    def directions(mean: Tensor) -> Wanted:
        return Wanted(_combined(mean, spent), residuals=False)

    def wanted(mean: Tensor) -> Wanted:
        return every_output(where, mean) if len(mean) <= few else directions(mean)

    def one(own_args: tuple[Any, ...], own_kwargs: dict[str, Any]) -> Any:
        # Directions are constants; where `adjoint` is among the choices its gradients are wanted.
        with entered(Draws(Adjoint)), torch.set_grad_enabled(torch.is_grad_enabled() and few >= 0):
            found = derivatives(forward, own_args, own_kwargs, wanted, where, few)
        with entered(Draws(Correlated)):
            if len(found.mean) <= few:
                if few == math.inf or not _ends_in_softmax(found.outputs):
                    return _to_parts(where, found.outputs, plan, _adjoint_parts(found))
                with torch.no_grad(), Draws(Adjoint):
                    found = derivatives(forward, own_args, own_kwargs, directions, where, "softmax")
            outputs = _second_pass(forward, own_args, own_kwargs, found, spent)
        return _to_parts(where, outputs, plan, _correlated_parts)

    args, kwargs = with_moments(args, kwargs)
    device = like(where, args, kwargs).device.type

    def rows(outputs: int) -> int:
        return rows_of(outputs) if outputs <= few else spent.directions + spent.samples

    def found() -> Any:
        return _from_parts(planned_per_example(where, forward, one, args, kwargs, spent.examples, rows), plan)

    if not autocast_in_force(device):
        return found()
    args, kwargs = mapped(_in_float32, (args, kwargs))
    with torch.autocast(device, enabled=False):
        return found()


def _in_float32(value: Any) -> Any:
    if isinstance(value, JointMoments):
        return JointMoments.of(value.mean.float(), value.var.float(), value.factor.float())
    if isinstance(value, Moments):
        return Moments(value.mean.float(), value.var.float())
    return value.float() if is_real(value) else value


def _ends_in_softmax(outputs: Any) -> bool:
    """Whether an output is one of probabilities, or of their logarithms, of which slopes alone say too little."""
    return any(isinstance(leaf, Share) and leaf.softmax for leaf in leaves_of(outputs, (Share,)))


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
    dtype = found.dtype
    if dtype in (torch.float16, torch.bfloat16):  # torch has no eigenvectors of these
        found, variances = found.float(), variances.float()
    scaled = found * variances.clamp_min(0).sqrt()
    size = scaled.square().sum(1).clamp_min(torch.finfo(scaled.dtype).tiny).rsqrt()
    scaled = scaled * size[:, None]  # each output matters alike
    values, vectors = eigh(scaled @ scaled.mT)
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
    usable = values > 1e-5 * values[0].clamp_min(torch.finfo(values.dtype).tiny)
    weight = torch.where(usable, torch.where(usable, values, 1).rsqrt(), 0)
    weight = torch.where(values.isnan(), values, weight)
    return ((vectors * weight).mT @ scaled).to(dtype)


# ---------------------------------------------------------------- second pass


def _combined(mean: Tensor, spent: Effort) -> Tensor:
    """The combinations of the outputs from which directions are made."""
    if len(mean) <= spent.directions + _SPARE:
        return torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    return normal_numbers(spent.directions + _SPARE, len(mean), 0, mean)


def _second_pass(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], found: Derivatives, spent: Effort
) -> Any:
    basis = directions_of(torch.cat(found.by, 1), torch.cat(found.variances), spent.directions).detach()
    # Draws whose mean is 0 leave the mean of whatever is linear as it is.
    draws = normal_numbers(spent.samples, basis.shape[1], spent.seed, basis, centred=True)
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
    if isinstance(value, JointMoments):
        return correlated(mean, var, *RUN.get().combined(mean, value.factor[0]))
    return correlated(mean, var, *RUN.get().source(mean, var), independent=True)


# -------------------------------------------------------------------- outputs

#: mean, variance and a factor of the covariance of an output, without the batch
_Parts = tuple[Tensor, Tensor, Tensor]


def _to_parts(
    where: Any, found: Any, plan: dict[str, Any], joint: Callable[[Any], _Parts | None]
) -> list[tuple[Tensor, ...]]:
    """Tensors of each output without the batch of one; what they are is kept in ``plan``.

    Args:
        where: the network, for errors.
        found: what it returned.
        plan: for :func:`_from_parts`.
        joint: the parts of a random output, with the batch of one; None for what is not random.
    """
    leaves, plan["form"] = flattened(found, (Share,))
    parts: list[tuple[Tensor, ...]] = []
    for leaf in leaves:
        random = joint(leaf)
        if random is not None:
            mean, var, factor = random
            parts.append((without_batch(where, mean), without_batch(where, var), factor))
        else:
            parts.append((without_batch(where, leaf._form() if isinstance(leaf, Point) else leaf),))
    return parts


def _correlated_parts(leaf: Any) -> _Parts | None:
    if not isinstance(leaf, Correlated):
        return None
    tangents, explained = leaf._joint.tangents, leaf._joint.explained
    # Directions that explain less than rounding say nothing of the covariance, and would be scaled up beyond range.
    usable = explained > torch.finfo(explained.dtype).eps * leaf._var
    scale = square_root(torch.where(usable, leaf._var / torch.where(usable, explained, 1), 0))
    return leaf._mean, leaf._var, (tangents * scale).reshape(len(tangents), -1)


def _adjoint_parts(found: Derivatives) -> Callable[[Any], _Parts | None]:
    variances, factors = covariance_of(found)

    def parts(leaf: Any) -> _Parts | None:
        if not isinstance(leaf, Share):
            return None
        mean, var = (part[leaf.values].view(leaf.shape).to(leaf.dtype) for part in (found.mean, variances))
        return mean, var, factors[:, leaf.values].to(leaf.dtype)

    return parts


def _from_parts(parts: Any, plan: dict[str, Any]) -> Any:
    found: list[Any] = []
    for tensors in parts:
        if len(tensors) == 3:
            found.append(JointMoments.of(*tensors))
        else:
            value = tensors[0]
            found.append(Moments(value, torch.zeros_like(value)) if value.is_floating_point() else value)
    return plan["form"].of(found)


PROPAGATIONS["adjoint"] = in_float32(of_any_batch(functools.partial(propagate, few=math.inf)))
PROPAGATIONS["correlated"] = in_float32(of_any_batch(functools.partial(propagate, few=-1)))
PROPAGATIONS[DEFAULT] = in_float32(of_any_batch(functools.partial(propagate, few=FEW_OUTPUTS)))
