"""``Point``: a value that is certain.  The rule of every function is the function itself, bit for bit.

A point also says what becomes of it where the network itself is random (dropout in training, injected noise):
a :class:`~momentgen.laws.diagonal.Diagonal` under AP2; under AP1 noise is taken at its mean, so that a point stays one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws import composite, noise
from momentgen.laws.law import OVERWRITTEN, Law, Rule, laws_in, new_law, register_pytree, tensor_of, tensors_of
from momentgen.laws.movement import moved
from momentgen.laws.precision import HALVES
from momentgen.laws.table import KINDS, Entry

__all__ = ["Point", "point"]


@register_pytree
class Point(Law):
    """A certain value.

    >>> x = point(torch.tensor([-1.0, 2.0]))
    >>> torch.relu(x).value
    tensor([0., 2.])
    """

    __slots__ = ()
    RANK = 0

    @property
    def value(self) -> Tensor:
        """The value itself."""
        return self._form().to(self.dtype)

    def _stop_gradients(self) -> None:
        if self._view is None:
            self._mean = self._mean.detach()


def point(value: Tensor, noise: type[Law] | None = None) -> Point:
    """A certain value.

    Args:
        value: any tensor.
        noise: the class of laws that noise of the network's own makes of it; None takes noise at its mean.
    """
    law: Point = new_law(Point, value)
    law._noise = noise
    return law


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
        if kept and found.dtype in HALVES and like._noise is not None:
            law = like._like(found.float())
            law._dtype = found.dtype
            return law
        return like._like(found) if kept else found
    if isinstance(found, tuple | list):
        parts = [_wrapped(part, like) for part in found]
        return (
            type(found)(parts) if type(found) in (tuple, list) or not hasattr(found, "_fields") else type(found)(*parts)
        )
    return found


def _run(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values, named = tensors_of(args, kwargs)
    return _wrapped(entry.call(*values, **named), _first(args, kwargs))


def _moved(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = args[0] if args else None
    if isinstance(first, Law) and entry.name != "where":
        return moved(entry, args, kwargs)
    return _run(entry, args, kwargs)


def _noise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = _first(args, kwargs)
    if first._noise is None:
        value = noise.expectation(entry, *tensors_of(args, kwargs))
        return _run(entry, args, kwargs) if value is None else _wrapped(value, first)
    if not noise.active(entry, args, kwargs):
        return _run(entry, args, kwargs)
    rules = first._noise.RULES
    rule = rules.get(entry.name) or cast(Rule, rules.get("noise"))
    return rule(entry, args, kwargs)


def _composite(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if noise.active(entry, args, kwargs):
        if entry.name == "scaled_dot_product_attention":
            if _first(args, kwargs)._noise is not None:
                return composite.attention_by_parts(entry, args, kwargs)  # exact: its weights are certain
            given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
            return _run(entry, (), {**given, **kwargs, "dropout_p": 0.0})
        return composite.RULES[entry.name](entry, args, kwargs)
    return _run(entry, args, kwargs)


def _write(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return written(entry, args, kwargs)


def written(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The rule of every law for functions that overwrite their first argument with values of the same law."""
    from momentgen.laws.unsupported import unsupported

    target, rest = args[0], args[1:]
    if not isinstance(target, Law):
        law = _first(args, kwargs)
        raise unsupported(
            entry.call,
            law,
            OVERWRITTEN,
            entry,
        )
    parts = []
    if entry.name in ("setitem", "index_put_") and any(law.RANK for law in laws_in((rest[0],))):
        raise unsupported(entry.call, laws_in((rest[0],))[0], "indices cannot be random", entry)
    source = next((value for value in rest if isinstance(value, Law) and value is not rest[0]), None)
    if entry.name not in ("setitem", "index_put_") and rest and isinstance(rest[0], Law):
        source = rest[0]
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


def _refused(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return False


def _rules() -> dict[str, Rule]:
    rules: dict[str, Callable[..., Any]] = dict.fromkeys(KINDS, _run)
    rules.update(movement=_moved, noise=_noise, composite=_composite, write=_write, refusal=_refused)
    return rules


Point.RULES = _rules()
