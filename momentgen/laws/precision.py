"""Who asks a law of half precision: the network, which sees its dtype, or a rule, which computes in float32.

A value of half precision is a law in float32 that knows its dtype (:mod:`momentgen.laws.half`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final

import torch

__all__ = ["HALVES", "internally", "is_internal", "running"]

#: dtypes that have too few digits for variances
HALVES: Final = (torch.float16, torch.bfloat16)

_internal: ContextVar[bool] = ContextVar("momentgen_internal")


class _Active:
    """A property in C, which ``torch.compile`` reads and guards; this object where nothing is set."""

    internal = property(_internal.get)


class _Tracing:
    """The same in code that ``torch.compile`` traces; always False outside."""

    def __init__(self) -> None:
        self.internal = False


_active: Any = _Active()
_tracing = _Tracing()


def is_internal() -> bool:
    """Whether a rule or a method runs, and not the network."""
    return _tracing.internal or _active.internal is True


class running:  # noqa: N801 - a context manager, named as it is used
    """Within the context a rule or a method runs, or the network again.

    Args:
        internal: whether it is not the network.
    """

    def __init__(self, internal: bool) -> None:
        self._is = internal

    def __enter__(self) -> None:
        self._token: Token[bool] = _internal.set(self._is)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _internal.reset(self._token)


def internally(function: Callable[..., Any], *args: Any) -> Any:
    """``function`` of the arguments, as a part of a rule."""
    if torch.compiler.is_dynamo_compiling():
        outer, _tracing.internal = _tracing.internal, True
        found = function(*args)
        _tracing.internal = outer
        return found
    with running(True):
        return function(*args)
