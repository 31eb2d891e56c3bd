"""What is asked of a tensor's form, new tensors like another, and functions that overwrite their first argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.arguments import tensor_of, tensors_of
from momentgen.laws.diagonal import Diagonal, is_random
from momentgen.laws.dispatch import OVERWRITTEN
from momentgen.laws.law import Law, laws_in, new_law, rule
from momentgen.laws.notes import note_fast_path
from momentgen.laws.point import Point, point
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported

__all__ = []


@rule(Diagonal, "query")
def _query(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values, named = tensors_of(args, kwargs)
    return entry.call(*values, **named)


@rule(Point, Diagonal, "refusal")
def _refused(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    note_fast_path(entry.name)
    return False


@rule(Diagonal, "creation")
def _creation(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A value like another: certain, and of floating dtypes ready to be overwritten by random values."""
    x = args[0] if isinstance(args[0], Law) else laws_in(args)[0]
    if any(map(is_random, (*args[1:], *kwargs.values()))):
        raise unsupported(entry, x, "a random value cannot be copied so; use clone()")
    values, named = tensors_of(args, kwargs)
    out = entry.call(*values, **named)
    return point(out, x._noise or Diagonal) if out.is_floating_point() else out


# ---------------------------------------------------------------- writes


@rule(Point, Diagonal, "write")
def _written(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Functions that overwrite their first argument with values of the same law."""
    target, rest = args[0], args[1:]
    if not isinstance(target, Law):
        law = laws_in((*args, *kwargs.values()))[0]
        raise unsupported(entry, law, OVERWRITTEN)
    parts = []
    if entry.name in ("setitem", "index_put_") and any(law.RANK for law in laws_in((rest[0],))):
        raise unsupported(entry, laws_in((rest[0],))[0], "indices cannot be random")
    source = next((value for value in rest if isinstance(value, Law) and value is not rest[0]), None)
    if entry.name not in ("setitem", "index_put_") and rest and isinstance(rest[0], Law):
        source = rest[0]
    if source is not None and source.RANK and _replaces_all(entry, target, source, rest):
        target._overwrite(source.clone())  # it is the function of its source that the value is
        return None if entry.name == "setitem" else target
    count = max(len(target._parts()), 0 if source is None else len(source._parts()))
    kind = type(target) if source is None or source.RANK <= target.RANK else type(source)
    own = (*target._parts(), *[torch.zeros_like(target._mean)] * (count - len(target._parts())))
    for place, part in enumerate(own):
        whole = part.clone(memory_format=torch.contiguous_format)
        values = [_part(value, place, entry, index) for index, value in enumerate(rest)]
        _overwrite(entry, whole, values, kwargs)
        parts.append(whole)
    made: Law = new_law(kind, *parts)
    made._noise = target._noise
    target._assign(made)
    return None if entry.name == "setitem" else target


def _replaces_all(entry: Entry, target: Law, source: Law, rest: Sequence[Any]) -> bool:
    """Whether a write replaces all of ``target`` by a law of its shape and dtype."""
    form, own = target._form(), source._form()
    if (form.shape, form.dtype) != (own.shape, own.dtype):
        return False
    index = rest[0] if entry.name == "setitem" else None
    return entry.name == "copy_" or index is ... or (isinstance(index, slice) and index == slice(None))


def _part(value: Any, place: int, entry: Entry, index: int) -> Any:
    """What is written into the part of that place: a law's own part; of certain values, 0 to a variance."""
    is_value = index == 1 if entry.name in ("setitem", "index_put_") else index == 0
    if not is_value:
        return tensor_of(value)
    if isinstance(value, Law):
        parts = value._parts()
        return parts[place] if place < len(parts) else torch.zeros_like(parts[0])
    if place and is_value:
        return torch.zeros_like(value) if isinstance(value, Tensor) else 0.0
    return value


def _overwrite(entry: Entry, whole: Tensor, values: list[Any], kwargs: dict[str, Any]) -> None:
    if entry.name == "setitem":
        index, value = values
        whole[tensor_of(index)] = value
    elif entry.name == "zero_":
        whole.zero_()
    else:
        getattr(whole, entry.name)(*values, **kwargs)
