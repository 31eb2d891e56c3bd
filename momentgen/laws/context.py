"""Context variables: a value within a ``with``, and what ``torch.compile`` may read of it."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any

__all__ = ["seen_by_compiler", "within"]


class within:  # noqa: N801 - a context manager, named as it is used
    """Within the context the variable has the value; a class, which takes a third of a generator's time.

    >>> depth = ContextVar("depth", default=0)
    >>> with within(depth, 1):
    ...     depth.get()
    1
    """

    def __init__(self, variable: ContextVar[Any], value: Any) -> None:
        self._variable, self._value = variable, value
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> Any:
        self._tokens.append(self._variable.set(self._value))
        return self._value

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._tokens.pop())


def seen_by_compiler(variable: ContextVar[Any]) -> Any:
    """An object whose attribute ``value`` is the variable's; the object itself where nothing is set.

    A property written in C: ``torch.compile`` reads it while it traces, and guards the compiled code on what it says.
    It can do neither with :meth:`ContextVar.get`.
    """
    return type("Seen", (), {"value": property(variable.get)})()
