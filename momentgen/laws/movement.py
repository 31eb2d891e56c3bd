"""Movement: the rule of every law for functions that move, copy or convert values, and what is a view of what."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.diagonal import tensors_of
from momentgen.laws.law import Law, Rule, remember
from momentgen.laws.table import Entry, names

__all__ = ["RESHAPES", "moved", "moved_part", "of_numbers", "shares_memory"]

#: functions that change a shape and leave the order of the values
RESHAPES = frozenset(names("view reshape view_as reshape_as unsqueeze squeeze flatten unflatten"))

#: functions whose result shares memory with their input, where torch does not copy
_VIEWS = frozenset(
    names(
        "view reshape view_as reshape_as flatten ravel unflatten permute transpose t swapaxes swapdims movedim "
        "moveaxis squeeze unsqueeze expand expand_as broadcast_to narrow select chunk split split_with_sizes "
        "tensor_split hsplit vsplit dsplit unbind diagonal detach getitem unfold positive data atleast_1d atleast_2d "
        "atleast_3d real adjoint"
    )
)


def of_numbers(own: Rule) -> Rule:
    """A rule along dimensions that takes numbers too: torch lets a number have one dimension there, of one value."""

    @functools.wraps(own)
    def with_numbers(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args or not isinstance(args[0], Law) or args[0].ndim:
            return own(entry, args, kwargs)
        found = own(entry, (args[0].reshape(1), *args[1:]), kwargs)
        return tuple(part.reshape(()) for part in found) if isinstance(found, tuple) else found.reshape(())

    return with_numbers


def moved(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The rule of every law for functions that move values of their first argument: the same on each part."""
    law = args[0]
    if not isinstance(law, Law):
        return NotImplemented
    rest, named = tensors_of(args[1:], kwargs)
    results = [moved_part(entry, part, rest, named) for part in law._parts()]
    first = results[0]
    if isinstance(first, Tensor):
        if first is law._mean:
            return law
        made = law._like(*results)
        _remember_view(made, law, entry, rest, named, None, first)
        return made
    outputs = []
    for place, parts in enumerate(zip(*results, strict=True)):
        made = law._like(*parts)
        _remember_view(made, law, entry, rest, named, place, parts[0])
        outputs.append(made)
    return type(first)(outputs) if type(first) in (tuple, list) else tuple(outputs)


def moved_part(entry: Entry, part: Tensor, rest: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What a movement makes of one tensor."""
    if entry.name in ("view", "view_as") and not part.is_contiguous():
        if torch.compiler.is_compiling():  # it can catch no error; reshape copies where view raises one
            return (part.reshape_as if entry.name == "view_as" else part.reshape)(*rest, **named)
        try:
            return entry.call(part, *rest, **named)
        except (RuntimeError, ValueError):  # a fake tensor's is the latter
            part = part.contiguous()  # its strides are this package's doing, as those of an expanded variance
    return entry.call(part, *rest, **named)


def _remember_view(
    made: Law, law: Law, entry: Entry, rest: tuple[Any, ...], named: dict[str, Any], place: int | None, part: Tensor
) -> None:
    remember(made, entry, (law, *rest, place), named, law)
    if shares_memory(entry, law._mean, part, rest):
        made._view = (law, entry, tuple(rest), named, place, law._version)


def shares_memory(entry: Entry, whole: Tensor, part: Tensor, rest: tuple[Any, ...]) -> bool:
    """Whether ``part``, a result of the function of ``whole`` and the arguments ``rest``, is a view of it."""
    if entry.name not in _VIEWS or entry.call is torch.nn.functional.unfold:
        return False
    if entry.name in ("reshape", "flatten", "ravel", "reshape_as") and not whole.is_contiguous():
        if torch.compiler.is_compiling():
            return False  # it can catch no error: most are copies
        try:
            whole.view(part.shape)
        except (RuntimeError, ValueError):  # a fake tensor's is the latter
            return False  # torch copies
    return entry.name != "getitem" or _basic(rest[0])


def _basic(index: Any) -> bool:
    """Whether an index makes a view, as numbers and slices do, and not a copy, as tensors and lists do."""
    if type(index) is tuple:
        return all(_basic(item) for item in index)
    return index is None or index is Ellipsis or isinstance(index, int | slice)
