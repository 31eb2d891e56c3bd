"""Arguments of a function with other values in the place of laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from momentgen.laws.law import Law

__all__ = ["all_replaced", "rebuilt", "replaced", "tensor_of", "tensors_of"]


def replaced(value: Any, change: Callable[[Law], Any]) -> Any:
    """``change`` of a law, tuples and lists item by item; anything else as it is."""
    if isinstance(value, Law):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)([replaced(item, change) for item in value])
    return value


def all_replaced(
    args: Any, kwargs: dict[str, Any], change: Callable[[Law], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with what ``change`` makes of each law in its place."""
    own = tuple([replaced(value, change) for value in args])
    return own, {name: replaced(value, change) for name, value in kwargs.items()}


def rebuilt(found: Any, parts: list[Any]) -> Any:
    """A tuple or list as ``found`` is one, also of a class of its own, of these items."""
    return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)


def _form(law: Law) -> Tensor:
    return law._form()


def tensor_of(value: Any) -> Any:
    """The first part (mean, or value) of a law; anything else as it is, tuples and lists item by item."""
    return replaced(value, _form)


def tensors_of(args: Any, kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with the first part of each law in its place."""
    return all_replaced(args, kwargs, _form)
