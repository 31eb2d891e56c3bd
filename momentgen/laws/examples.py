"""Running a network example by example, for laws that keep what the units of one example have in common.

A law that knows covariances has one matrix, or one set of directions, per example.  Networks reshape and merge the
batch as they like, so a network is run on a batch of one, under ``torch.vmap`` over the examples, or one after another
where vmap cannot run it.  The result for one example does not depend on the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from momentgen.errors import InputError, MomentgenError
from momentgen.laws.notes import note
from momentgen.runtime import Moments

__all__ = ["per_example"]

#: a network on laws of one example: (arguments, keyword arguments) -> a nest of tuples, lists, dicts and tensors
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def per_example(
    where: object,
    run: Run,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    extra: tuple[Tensor, ...] = (),
    chunk_size: int | None = None,
) -> Any:
    """Call ``run`` for each example of a batch, and stack what it returns.

    Args:
        where: the network, for errors.
        run: called with the arguments of one example, a batch of one, and with ``extra`` as the keyword ``_extra``
            if there are any; it returns a nest of tensors without the batch.
        args: tensors and moments; those whose first dimension is that of the first moments are split, others shared.
        kwargs: likewise.
        extra: tensors that are split as well, and given without the batch.
        chunk_size: how many examples are computed at once; None for all.

    Returns:
        What ``run`` returned, each tensor with the batch in front.

    Raises:
        InputError: if no argument is moments, or these have no batch, or the network is a batch norm in training.
    """
    _check(where)
    leaves, form = pytree.tree_flatten((args, kwargs), is_leaf=lambda part: isinstance(part, Moments))
    batch = _batch_of(where, leaves)
    given: list[Tensor] = []
    places: list[tuple[int, int]] = []
    for place, leaf in enumerate(leaves):
        parts = tuple(leaf) if isinstance(leaf, Moments) else (leaf,)
        if all(isinstance(part, Tensor) and part.dim() and part.shape[0] == batch for part in parts):
            given.extend(parts)
            places.append((place, len(parts)))

    def one(*tensors: Tensor) -> Any:
        mine, at = list(leaves), 0
        for place, count in places:
            parts = [tensor.unsqueeze(0) for tensor in tensors[at : at + count]]
            mine[place] = Moments(*parts) if count == 2 else parts[0]
            at += count
        own_args, own_kwargs = pytree.tree_unflatten(mine, form)
        if extra:
            own_kwargs = {**own_kwargs, "_extra": tensors[at:]}
        return run(own_args, own_kwargs)

    split = (*given, *extra)
    if batch > 1:
        try:
            with _quiet():
                return torch.vmap(one, randomness="different", chunk_size=chunk_size)(*split)
        except RuntimeError as error:
            if isinstance(error, MomentgenError) or "vmap" not in str(error):
                raise
            note(f"{type(where).__name__}: run one example after another, since torch.vmap cannot run it")
    found = [one(*[tensor[example] for tensor in split]) for example in range(batch)]
    return pytree.tree_map(lambda *parts: torch.stack(parts), *found)


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


def _check(where: object) -> None:
    for name, module in where.named_modules() if isinstance(where, torch.nn.Module) else ():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training:
            raise InputError(
                f"{type(where).__name__}: {name or 'it'} is a batch norm in training, whose statistics need the whole "
                "batch; call eval(), or use ap2"
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
