"""``debug``: look at what every rule returns.

Off by default: to look at values stops a GPU, and compiled code has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from momentgen.errors import MomentgenError
from momentgen.laws.context import seen_by_compiler, within
from momentgen.laws.unsupported import place

__all__ = ["debug", "inspect", "looking"]

_on: ContextVar[bool] = ContextVar("momentgen_debug")


active: Any = seen_by_compiler(_on)


class debug(within):  # noqa: N801 - a context manager, named as it is used
    """Within the context every rule's result is looked at; NaN, infinity or a negative variance raises where it arises.

    For eager mode: the values of compiled code are not looked at.

    Raises:
        MomentgenError: from the network, naming the function, the module and the line.

    >>> import torch, momentgen
    >>> x = momentgen.Moments(torch.tensor([float("nan")]), torch.ones(1))
    >>> with momentgen.debug():
    ...     momentgen.nn.ReLU()(x)
    Traceback (most recent call last):
    ...
    momentgen.errors.MomentgenError: relu, in ...: 1 of 1 values of the mean are not finite
    """

    def __init__(self) -> None:
        super().__init__(_on, True)


@contextlib.contextmanager
def looking(function: Callable[..., None]) -> Iterator[None]:
    """Within the context a function looks at every rule's result, in place of that of :class:`debug`."""
    with within(_function, function), within(_on, True):
        yield


def inspect(entry: Any, rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any], laws: list[Any]) -> None:
    """Look at the laws in the result of a rule; what looks does not look at what itself computes."""
    with within(_on, False):
        _function.get()(entry, rule, args, kwargs, laws)


def _finite(entry: Any, rule: Any, args: tuple[Any, ...], kwargs: dict[str, Any], laws: list[Any]) -> None:
    """Raise a ``MomentgenError`` for what is not finite, or a negative variance."""
    name = entry.name
    for law in laws:
        for what, part in zip(("mean", "variance"), law._parts(), strict=False):
            wrong = ~part.detach().isfinite() if part.is_floating_point() else None
            if wrong is not None and bool(wrong.any()):
                raise MomentgenError(
                    f"{name}{place()}: {int(wrong.sum())} of {part.numel()} values of the {what} are not finite"
                )
            if what == "variance" and bool((part < 0).any()):
                raise MomentgenError(f"{name}{place()}: a variance is negative, {part.min().item():g}")


#: what looks at results
_function: ContextVar[Callable[..., None]] = ContextVar("momentgen_looks", default=_finite)
