"""Rules of ``Point``: the function itself, and what noise of the network's own makes of a certain value."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws.diagonal import Diagonal, Point, moved, point, rebuilt, tensors_of
from momentgen.laws.law import Law, Rule, laws_in, rule, rule_of
from momentgen.laws.notes import unsupported
from momentgen.laws.rules import noise
from momentgen.laws.table import Entry

__all__ = []


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
