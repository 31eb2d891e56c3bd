"""Running a network example by example, for laws that keep what the units of one example have in common.

A law that knows covariances has one matrix, or one set of directions, per example.  Networks reshape and merge the
batch as they like, so a network is run on a batch of one, under ``torch.vmap`` over the examples, or one after another
where vmap cannot run it.  The result for one example does not depend on the others; that this is so in the plain
network too is looked at first.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from momentgen.errors import InputError, MomentgenError
from momentgen.laws.border import certain, check, entered, readable
from momentgen.laws.law import Law
from momentgen.laws.notes import note
from momentgen.laws.point import point
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.inputs import autocast_in_force

__all__ = ["is_moments", "is_real", "leaves_of", "per_example", "with_moments"]

#: a network on laws of one example: (arguments, keyword arguments) -> a nest of tuples, lists, dicts and tensors
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def is_moments(value: object) -> bool:
    """Whether a value is moments, which are one leaf of the arguments."""
    return isinstance(value, Moments)


def is_real(value: object) -> bool:
    """Whether a value is a tensor of floating point."""
    return isinstance(value, Tensor) and value.is_floating_point()


def leaves_of(nest: Any) -> list[Any]:
    """Tensors, moments and all else in a nest of arguments."""
    return pytree.tree_leaves(nest, is_leaf=is_moments)


def with_moments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of which one at least is moments: the first tensor, if none is."""
    leaves, form = pytree.tree_flatten((args, kwargs), is_leaf=is_moments)
    if not any(map(is_moments, leaves)):
        for place, leaf in enumerate(leaves):
            if is_real(leaf) and leaf.dim():
                leaves[place] = certain(leaf)
                break
    found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, form)
    return found


def per_example(
    where: object,
    forward: Callable[..., Any],
    run: Run,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chunk_size: int | None = None,
    rows: Callable[[int], int] | None = None,
) -> Any:
    """Call ``run`` for each example of a batch, and stack what it returns.

    Args:
        where: the network, for errors.
        forward: what runs on laws; called on certain values, to see whether examples are independent of each other.
        run: called with the arguments of one example, a batch of one; it returns a nest of tensors without the batch.
            Moments that were given twice are one object.
        args: tensors and moments; those whose first dimension is that of the first moments are split, others shared.
        kwargs: likewise.
        chunk_size: how many examples are computed at once; None for as many as ``rows`` says.
        rows: how many numbers ``run`` keeps for each value of the network, by how many values an example's outputs
            have.  On a CPU as many examples are computed at once as keep a layer's rows within 16 MiB; None for all.

    Returns:
        What ``run`` returned, each tensor with the batch in front.

    Raises:
        InputError: if no argument is moments, these are bad or have no batch, the network is a batch norm that takes
            its statistics from the batch, or gives an example another result within the batch than alone.
    """
    leaves, form = pytree.tree_flatten((args, kwargs), is_leaf=is_moments)
    for leaf in filter(is_moments, leaves):
        check(where, leaf)
    _check_norms(where)
    batch = _batch_of(where, leaves)
    split: list[Tensor] = []
    places: list[tuple[int, slice]] = []
    known: dict[tuple[int, ...], slice] = {}
    for place, leaf in enumerate(leaves):
        parts = _parts(leaf)
        if not all(isinstance(part, Tensor) and part.dim() and part.shape[0] == batch for part in parts):
            continue
        key = tuple(map(id, parts))
        if key not in known:
            known[key] = slice(len(split), len(split) + len(parts))
            split.extend(parts)
        places.append((place, known[key]))

    def with_tensors(tensors: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with these in the place of those that are split."""
        mine = list(leaves)
        made: dict[int, Any] = {}
        for place, own in places:
            if own.start not in made:
                made[own.start] = _whole(tensors[own])
            mine[place] = made[own.start]
        own_args, own_kwargs = pytree.tree_unflatten(mine, form)
        return own_args, own_kwargs

    def mapped(run: Run, split: list[Tensor], chunk_size: int | None) -> Any:
        return _mapped(where, lambda *own: run(*with_tensors([part.unsqueeze(0) for part in own])), split, chunk_size)

    if batch > 1 and all(map(readable, split)):
        # Examples that interact do so in a few of them, too; unless the network was written for this size of batch.
        for count in sorted({min(batch, _ALONE), batch}):
            some = [part[:count] for part in split]
            size = _check_alone(
                where, forward, with_tensors(some), count, functools.partial(mapped, split=some, chunk_size=chunk_size)
            )
            if size is not None:
                if chunk_size is None and rows is not None and split[0].device.type == "cpu":
                    chunk_size = _at_once(batch, size.widest * rows(size.outputs))
                break
    return mapped(run, split, chunk_size)


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


def _parts(leaf: Any) -> tuple[Any, ...]:
    return (*leaf, leaf.factor) if isinstance(leaf, JointMoments) else tuple(leaf) if is_moments(leaf) else (leaf,)


def _whole(parts: list[Tensor]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return Moments(*parts) if len(parts) == 2 else JointMoments.of(*parts)


def _mapped(where: object, one: Callable[..., Any], split: list[Tensor], chunk_size: int | None) -> Any:
    """``one`` of the parts of each example, stacked."""
    batch = len(split[0])
    if batch > 1:
        try:
            with _quiet():
                return torch.vmap(one, randomness="different", chunk_size=chunk_size)(*split)
        except RuntimeError as error:
            if isinstance(error, MomentgenError) or not any(words in str(error) for words in _OF_VMAP):
                raise
            note(f"{type(where).__name__}: run one example after another, since torch.vmap cannot run it")
    found = [one(*[tensor[example] for tensor in split]) for example in range(batch)]
    return pytree.tree_map(lambda *parts: torch.stack(parts), *found)


#: in messages of what torch.vmap cannot run
_OF_VMAP = ("vmap", "Batching rule not implemented")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings of functions that vmap loops over, which change no number.  Private in torch."""
    functorch: Any = getattr(torch._C, "_functorch", None)
    enabled = getattr(functorch, "_is_vmap_fallback_warning_enabled", None)
    if enabled is None or not enabled():
        yield
        return
    functorch._set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_warning_enabled(True)


# --------------------------------------------------------------------- checks


def _check_norms(where: object) -> None:
    for name, module in where.named_modules() if isinstance(where, torch.nn.Module) else ():
        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            continue
        if module.training or module.running_mean is None:
            cause = "in training" if module.training else "without running statistics"
            raise InputError(
                f"{type(where).__name__}: {name or 'it'} is a batch norm {cause}, whose statistics need the whole "
                "batch; call eval() on one that has running statistics, or use ap2"
            )


def _batch_of(where: object, leaves: list[Any]) -> int:
    for leaf in leaves:
        if isinstance(leaf, Moments):
            if not leaf.mean.dim() or not leaf.mean.shape[0]:
                break
            return leaf.mean.shape[0]
    raise InputError(
        f"{type(where).__name__}: expected moments with a batch of at least one in dimension 0 among the arguments"
    )


#: this share of the examples or more must differ, so that a step function's rounding is no difference
_DIFFERING = 0.25


class _Size(NamedTuple):
    """How many bytes an example has in the widest layer, and how many values in the outputs."""

    widest: int
    outputs: int


def _check_alone(
    where: object,
    forward: Callable[..., Any],
    given: tuple[tuple[Any, ...], dict[str, Any]],
    batch: int,
    mapped: Callable[[Run], Any],
) -> _Size | None:
    """Compare the network at the means, on a batch and on each of its examples alone: two plain forward passes.

    Args:
        where: the network, for errors.
        forward: what runs on laws.
        given: arguments of the batch, and keyword arguments.
        batch: its size.
        mapped: calls a function of one example's arguments for each.

    Returns:
        An example's size; None if the network could not be run.

    Raises:
        InputError: if the results differ by more than rounding.
    """

    def plain(own_args: tuple[Any, ...], own_kwargs: dict[str, Any], alone: bool = True) -> list[Tensor]:
        own_args, own_kwargs = pytree.tree_map(_certain, (own_args, own_kwargs), is_leaf=is_moments)
        with entered():
            found = forward(*own_args, **own_kwargs)
        leaves = pytree.tree_leaves(found, is_leaf=lambda part: isinstance(part, Law))
        values = [leaf._form() if isinstance(leaf, Law) else leaf for leaf in leaves]
        real = [value for value in values if is_real(value)]
        if not alone:
            return real
        return [value[0] if value.dim() and len(value) == 1 else value.new_zeros(0) for value in real]

    with torch.no_grad():
        try:
            with _Widest(batch) as widest:
                together = plain(*given, alone=False)
            apart: list[Tensor] = mapped(plain)
        except Exception:
            return None  # the run to come fails in its own words, or the network was written for a batch of one
    for whole, single in zip(together, apart, strict=True):
        if single.shape[1:] == (0,) != whole.shape[1:]:
            continue  # without a batch in front, which the run to come says
        if whole.shape[:1] == (1,):  # the same for all examples
            whole = whole.expand(len(single), *whole.shape[1:])
        differing = 1.0
        if whole.shape == single.shape:
            rounding = max(_rounding(whole), _rounding(single))
            whole, single = (value.to(torch.promote_types(whole.dtype, single.dtype)) for value in (whole, single))
            tolerance = rounding * whole.abs().nan_to_num(0, 0, 0).amax().item() if whole.numel() else 0.0
            away = ~torch.isclose(whole, single, rtol=0, atol=tolerance, equal_nan=True)
            differing = away.flatten(1).any(1).double().mean().item() if away.numel() else 0.0
        if differing >= _DIFFERING:
            raise InputError(
                f"{type(where).__name__}: examples of a batch are computed alone, but {differing:.0%} of them have "
                f"another result within the batch, an output of shape {tuple(whole.shape)}; either examples interact, "
                "or dimension 0 is not the batch in every argument (pass batch_first=True), or the network draws "
                "numbers that momentgen does not see (torch.randn)"
            )

    return _Size(widest.size, sum(whole.numel() // batch for whole in together))


class _Widest(TorchDispatchMode):
    """Within it the bytes that an example has in the widest tensor with the batch in front are found."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch, self.size = batch, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for part in found if isinstance(found, tuple | list) else (found,):
            if isinstance(part, Tensor) and part.dim() and part.shape[0] == self.batch:
                self.size = max(self.size, part.numel() // self.batch * part.element_size())
        return found


def _certain(value: Any) -> Any:
    if isinstance(value, Moments):
        return point(value.mean)
    return point(value) if is_real(value) else value


def _rounding(value: Tensor) -> float:
    """How far rounding may carry two results apart, relative to the largest number."""
    kind = value.device.type
    dtypes = [value.dtype, torch.get_autocast_dtype(kind)] if autocast_in_force(kind) else [value.dtype]
    return max(torch.finfo(dtype).eps for dtype in dtypes) ** 0.5
