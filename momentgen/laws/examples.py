"""Running a network example by example, for laws that keep what the units of one example have in common.

A law that knows covariances has one matrix, or one set of directions, per example.  Networks reshape and merge the
batch as they like.  So a network is run on a batch of one, under ``torch.vmap`` over the examples.  Where vmap cannot
run it, examples run one after another.  The result for one example does not depend on the others; a first check makes
sure that this holds in the plain network too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import InputError, MomentgenError
from momentgen.laws.context import within
from momentgen.laws.covariance_graph import Narrower
from momentgen.laws.example_arguments import Examples, Run, first_tensor, is_moments, is_real, parts_of
from momentgen.laws.example_check import check_alone, check_norms, fails_alone
from momentgen.laws.law import Law
from momentgen.laws.nests import Nest, flattened, mapped
from momentgen.laws.parameters import LIFT, Lift
from momentgen.laws.point import point
from momentgen.laws.propagations import FailsAlone
from momentgen.laws.values import certain, check
from momentgen.runtime import JointMoments, Moments

__all__ = [
    "batch_of",
    "has_batch",
    "lifted",
    "per_example",
    "stacked",
    "with_moments",
    "without_batch",
]


def with_moments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of which one at least is moments: the first tensor, if none is."""
    leaves, form = flattened((args, kwargs))
    if not any(map(is_moments, leaves)):
        for place, leaf in enumerate(leaves):
            if is_real(leaf) and leaf.dim():
                leaves[place] = certain(leaf)
                break
    found: tuple[tuple[Any, ...], dict[str, Any]] = form.of(leaves)
    return found


def lifted(nest: Any, law: Callable[[Moments], Any], noise: type[Law], indices: bool = False) -> Any:
    """Arguments with laws in the place of moments and of floating-point tensors.

    Args:
        nest: of arguments.
        law: makes a law of moments; called once for moments that are there twice.
        noise: what noise of the network's own makes of a certain value.
        indices: whether whole numbers are lifted too: what they pick may meet dropout before it meets any law.
    """
    known: dict[int, Any] = {}

    def lift(value: Any) -> Any:
        if isinstance(value, Moments):
            if id(value) not in known:
                known[id(value)] = law(value)
            return known[id(value)]
        is_index = indices and isinstance(value, Tensor) and value.dtype is not torch.bool
        return point(value, noise) if is_real(value) or is_index else value

    return mapped(lift, nest)


def stacked(parts: Any, form: Nest) -> Any:
    """What a network returned, of the tensors of each output: mean, *variance* and a factor of the covariance.

    Args:
        parts: of each output; mean and variance of one without a covariance, one tensor of a certain one.
        form: of what was returned.
    """
    found: list[Any] = []
    for tensors in parts:
        if len(tensors) == 1:
            found.append(certain(tensors[0]) if is_real(tensors[0]) else tensors[0])
        else:
            found.append(JointMoments.of(*tensors) if len(tensors) == 3 else Moments(*tensors))
    return form.of(found)


def per_example(
    where: object,
    forward: Callable[..., Any],
    run: Callable[[int, tuple[Any, ...], dict[str, Any]], Any],
    lift: Callable[[int], Lift],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rows: Callable[[int], int] | None = None,
) -> Any:
    """Call ``run`` for each example of a batch, and stack what it returns.

    As many examples are computed at a time as :class:`momentgen.laws.covariance.options` allows memory for.

    Args:
        where: the network, for errors.
        forward: what runs on laws; called on certain values, to see whether examples are independent of each other.
        run: called with how many examples are computed at a time, and the arguments of one, a batch of one.  It
            returns a nest of tensors without the batch.  Moments that were given twice are one object.
        lift: makes random parameters, of so many examples at a time.
        args: tensors and moments; those whose first dimension is that of the first moments are split, others shared.
        kwargs: likewise.
        rows: how many numbers ``run`` keeps for each value of the network, by how many values an example's outputs
            have.  On a CPU as many examples are computed at once as keep a layer's rows within 16 MiB; None for all.

    Returns:
        What ``run`` returned, each tensor with the batch in front.

    Raises:
        InputError: if moments are bad, the batch is empty, or examples interact.  They do in a batch norm that takes
            its statistics from the batch.
    """
    width, chunk = batch_of(args, kwargs), None
    while True:
        try:
            with within(LIFT, lift(width)):
                return _at_a_time(chunk, where, forward, functools.partial(run, width), args, kwargs, rows)
        except Narrower as fewer:
            width = chunk = fewer.batch


def _at_a_time(
    chunk_size: int | None,
    where: object,
    forward: Callable[..., Any],
    run: Run,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rows: Callable[[int], int] | None,
) -> Any:
    """:func:`per_example`, so many at a time; None for as many as ``rows`` says."""
    examples = Examples(where, args, kwargs)
    for leaf in filter(is_moments, examples.leaves):
        check(where, leaf)
    check_norms(where)
    batch, squeezed = examples.batch, False
    if not batch:
        raise InputError(f"{type(where).__name__}: expected a batch of at least one example in dimension 0")
    if batch > 1 and examples.readable:
        # Examples that interact do so in a few of them, too; unless the network was written for this size of batch.
        for count in sorted({min(batch, _ALONE), batch}):
            seen = check_alone(where, forward, examples.first(count), chunk_size, examples.first(batch))
            if seen is not None:
                if seen.unbatched is not None:
                    raise _without_front(where, seen.unbatched)
                squeezed = seen.squeezed
                if chunk_size is None and rows is not None and examples.device == "cpu":
                    chunk_size = _at_once(batch, seen.widest * rows(seen.outputs))
                break
    try:
        with within(_SQUEEZED, squeezed):
            return examples.alone(run, chunk_size)
    except (MomentgenError, Narrower):
        raise
    except Exception as error:
        if batch > 1 and examples.readable and fails_alone(where, forward, examples):
            raise FailsAlone from error
        raise


def has_batch(where: object, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether dimension 0 of the arguments is a batch: the network computes each example independently of the others.

    Moments of two or more dimensions are assumed to have a batch. For a vector, two plain forward passes decide.
    Where values cannot be read, a vector counts as one example, which is right for any network.
    """
    examples = Examples(where, args, kwargs)
    place = first_tensor(examples.leaves)
    if place is None:
        return False
    leaf = examples.leaves[place]
    dimensions = parts_of(leaf)[0].dim()
    if dimensions != 1 or not examples.batch:
        return bool(dimensions)
    if (isinstance(leaf, JointMoments) and leaf.factor.dim() == 2) or not examples.readable:
        return False
    try:
        seen = check_alone(where, forward, examples.first(min(examples.batch, _ALONE)))
    except InputError:
        return False
    return seen is not None and seen.unbatched is None


def batch_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The number of examples in the arguments."""
    return Examples(None, args, kwargs).batch


#: whether the network drops the dimension of a batch of one, but not of a larger batch, as ``squeeze()`` does
_SQUEEZED: ContextVar[bool] = ContextVar("momentgen_squeezed", default=False)


def without_batch(where: object, value: Tensor) -> Tensor:
    """An output of a network on a batch of one, without that dimension.

    Raises:
        InputError: if it has no batch in front.
    """
    if value.dim() and value.shape[0] == 1:
        return value[0]
    if _SQUEEZED.get():
        return value
    raise _without_front(where, value.shape)


def _without_front(where: object, shape: torch.Size) -> InputError:
    return InputError(
        f"{type(where).__name__}: expected outputs with the batch in dimension 0, got shape {tuple(shape)} for a "
        "batch of one; a network that squeezes names the dimension, squeeze(-1)"
    )


#: examples that are computed together and alone, to see whether they interact
_ALONE = 8
#: bytes of a layer's rows: temporaries of more are returned to the system and mapped anew, a page fault for every 4 KiB
_ROWS = 2**24
#: examples below which a call's overhead counts for more
_FEWEST = 8


def _at_once(batch: int, size: int) -> int:
    """How many examples to compute at once, whose widest layer takes ``size`` bytes each, in parts of like length."""
    most = max(_ROWS // max(size, 1), _FEWEST)
    return -(-batch // -(-batch // most))
