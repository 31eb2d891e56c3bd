"""Functions that compute nothing: they move values, put some together, ask for a form, make tensors, or overwrite.

So do all functions of a ``Point``: their rule is the function itself, and what noise of the network's own makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws.diagonal import (
    Diagonal,
    Point,
    is_random,
    made,
    mean_of,
    moved,
    point,
    rebuilt,
    tensor_of,
    tensors_of,
    var_of,
)
from momentgen.laws.dispatch import OVERWRITTEN
from momentgen.laws.law import Law, Rule, laws_in, new_law, remember, rule, rule_of
from momentgen.laws.notes import cannot_become, note_fast_path, unsupported
from momentgen.laws.programs import CHOICES, alike
from momentgen.laws.rules import noise
from momentgen.laws.table import TABLE, Entry

#: functions that put values of several arguments together: the places of those that are values
_VALUES: dict[str, tuple[int, ...]] = {
    "cat": (0,), "stack": (0,), "hstack": (0,), "vstack": (0,), "dstack": (0,), "column_stack": (0,),
    "where": (1, 2), "masked_fill": (0, 2), "scatter": (0, 3), "select_scatter": (0, 1), "slice_scatter": (0, 1),
    "index_fill": (0, 3), "index_copy": (0, 3), "index_add": (0, 3), "scatter_add": (0, 3), "embedding": (1,),
    "broadcast_tensors": tuple(range(64)),
}  # fmt: skip
_VALUE_NAMES = ("tensors", "input", "other", "value", "src", "source", "weight")
#: functions that take a tensor for its form
_LIKE_ANOTHER = frozenset(("view_as", "reshape_as", "expand_as", "type_as", "to"))


def _where(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Condition and both values of ``torch.where``, of which the method has another order."""
    names = ("condition", "input", "other") if entry.call is torch.where else ("input", "condition", "other")
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    bound.setdefault("input", bound.pop("self", None))
    if len(bound) != 3 or is_random(bound["condition"]):
        raise unsupported(entry, laws_in(bound.values())[0], "where a random value is not 0 is a decision")
    return bound["condition"], bound["input"], bound["other"]


def _of_index_shape(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of ``scatter`` whose source has the shape of its index: torch differentiates no other."""
    if len(args) < 4 or not isinstance(args[3], Law | Tensor):
        return args
    return *args[:3], cast(Any, args[3])[tuple(map(slice, args[2].shape))], *args[4:]


def _together(
    entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Entry, tuple[Any, ...], dict[str, Any], tuple[int, ...]]:
    """A call that puts values of several arguments together, in one form, and the places of those that are values.

    Raises:
        UnsupportedError: if another argument is random, or values meet by other reductions than sums.
    """
    places = _VALUES[entry.name]
    if entry.name == "where":
        args, kwargs, entry = _where(entry, args, kwargs), {}, TABLE[torch.where]
    elif entry.name in ("scatter", "scatter_add"):
        args = _of_index_shape(args)
    elif entry.call is torch.embedding:
        places = (0,)
    elif entry.name == "embedding" and kwargs.get("max_norm", args[3] if len(args) > 3 else None) is not None:
        raise unsupported(entry, laws_in((*args, *kwargs.values()))[0], "max_norm writes into its rows by their size")
    law = laws_in((*args, *kwargs.values()))[0]
    if any(place not in places and is_random(value) for place, value in enumerate(args)):
        raise unsupported(entry, law, "indices and masks cannot be random")
    if kwargs.get("reduce", "add") not in ("add", "sum"):
        raise unsupported(entry, law, "of reductions sums have a rule")
    return entry, args, kwargs, places


@rule(Diagonal, "conj", "conj_physical", "resolve_conj", "resolve_neg", "requires_grad_")
def _as_it_is(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What leaves real values as they are, and what a network asks of its plain value, for derivatives of its own."""
    return args[0]


@rule(Diagonal, "movement")
def _movement(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if entry.name not in _VALUES:
        if not isinstance(args[0], Law):
            raise unsupported(entry, laws_in(args)[0], "only its first argument may be random")
        if entry.name not in _LIKE_ANOTHER and any(map(is_random, (*args[1:], *kwargs.values()))):
            raise unsupported(entry, args[0], "indices cannot be random")
        found = moved(entry, args, kwargs)
        if isinstance(found, Law) and not found.dtype.is_floating_point:
            raise unsupported(entry, args[0], cannot_become(found.dtype))
        return found
    if entry.name == "cat" and isinstance(args[0], Law):
        return args[0]  # code that asks isinstance(x, Tensor) takes a law for the list that it did not make of it
    entry, args, kwargs, places = _together(entry, args, kwargs)
    variances = [var_of(value) if place in places else tensor_of(value) for place, value in enumerate(args)]
    of_named = {name: var_of(v) if name in _VALUE_NAMES else tensor_of(v) for name, v in kwargs.items()}
    means = [mean_of(value) for value in args]
    named = {name: mean_of(value) for name, value in kwargs.items()}
    if "alpha" in of_named:
        of_named["alpha"] = of_named["alpha"] ** 2
    out, var = entry.call(*means, **named), entry.call(*variances, **of_named)
    if not isinstance(out, Tensor):
        return tuple(made(m, v) for m, v in zip(out, var, strict=True))
    law, laws = made(out, var), laws_in(args)
    # A choice by a mask among pointwise functions of one value is one of them.
    is_one = entry.name in CHOICES and laws and alike(*laws)
    return remember(law, entry, args, kwargs, laws[0]) if is_one else law


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


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Point:
    laws = laws_in(args) or laws_in(kwargs.values())
    return laws[0]  # type: ignore[return-value]


def _wrapped(found: Any, like: Point) -> Any:
    """Tensors in a result as points; masks and numbers as they are."""
    if isinstance(found, Tensor):
        kept = (
            found.is_floating_point()
            or found.is_complex()
            or (found.dtype is not torch.bool and not like._mean.is_floating_point())
        )
        return point(found, like._noise) if kept else found
    if isinstance(found, tuple | list):
        return rebuilt(found, [_wrapped(part, like) for part in found])
    return found


@rule(Point, "*")
def _run(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values, named = tensors_of(args, kwargs)
    return _wrapped(entry.call(*values, **named), _first(args, kwargs))


@rule(Point, "multinomial")
def _draw(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise unsupported(entry, _first(args, kwargs), "its numbers are drawn, and their moments have no rule")


@rule(Point, "movement")
def _moved(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = args[0] if args else None
    if isinstance(first, Law) and entry.name != "where":
        return moved(entry, args, kwargs)
    return _run(entry, args, kwargs)


@rule(Point, "noise")
def _noise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = _first(args, kwargs)
    if first._noise is None:
        value = noise.expectation(entry, *tensors_of(args, kwargs))
        return _run(entry, args, kwargs) if value is None else _wrapped(value, first)
    if not noise.active(entry, args, kwargs):
        return _run(entry, args, kwargs)
    return cast(Rule, rule_of(first._noise, entry.name, "noise"))(entry, args, kwargs)


@rule(Point, "composite", "sampled")
def _composite(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not noise.active(entry, args, kwargs):
        return _run(entry, args, kwargs)
    if entry.name == "scaled_dot_product_attention" and _first(args, kwargs)._noise is None:
        given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
        return _run(entry, (), {**given, **kwargs, "dropout_p": 0.0})
    found = rule_of(Diagonal, entry.name, entry.kind)
    if found is None:
        raise unsupported(entry, _first(args, kwargs))
    return found(entry, args, kwargs)
