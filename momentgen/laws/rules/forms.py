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
    indexed = entry.name in ("setitem", "index_put_")
    if indexed and any(law.RANK for law in laws_in((rest[0],))):
        raise unsupported(entry, laws_in((rest[0],))[0], "indices cannot be random")
    before, value, after = rest[:indexed], rest[indexed : indexed + 1], rest[indexed + 1 :]
    laws = [target, *(law for law in value if isinstance(law, Law))]
    if laws[-1] is not target and laws[-1].RANK and _replaces_all(entry, target, laws[-1], rest):
        target._overwrite(laws[-1].clone())  # it is the function of its source that the value is
        return None if entry.name == "setitem" else target
    parts = []
    for place in range(max(len(law._parts()) for law in laws)):
        whole = _part(target, place).clone(memory_format=torch.contiguous_format)
        values = (*map(tensor_of, before), *(_part(one, place) for one in value), *map(tensor_of, after))
        if entry.name == "setitem":
            whole[values[0]] = values[1]
        else:
            getattr(whole, entry.name)(*values, **kwargs)
        parts.append(whole)
    made: Law = new_law(type(max(laws, key=lambda law: law.RANK)), *parts)
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


def _part(value: Any, place: int) -> Any:
    """The part of that place, mean or variance, of a law; of certain values the value, or the variance 0."""
    if isinstance(value, Law):
        parts = value._parts()
        return parts[place] if place < len(parts) else torch.zeros_like(parts[0])
    return value if not place else torch.zeros_like(value) if isinstance(value, Tensor) else 0.0
