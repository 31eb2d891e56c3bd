"""Who asks a law of half precision: the network, which sees its dtype, or a rule, which computes in float32.

A value of half precision is a law in float32 that knows its dtype (:mod:`momentgen.laws.half`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import torch

from momentgen.laws.context import seen_by_compiler, within

__all__ = ["HALVES", "internally", "is_internal", "running"]

#: dtypes that have too few digits for variances
HALVES: Final = (torch.float16, torch.bfloat16)

_internal: ContextVar[bool] = ContextVar("momentgen_internal")


class _Tracing:
    """Whether a rule runs in code that ``torch.compile`` traces; always False outside."""

    def __init__(self) -> None:
        self.internal = False


_seen: Any = seen_by_compiler(_internal)
_tracing = _Tracing()


def is_internal() -> bool:
    """Whether a rule or a method runs, and not the network."""
    return _tracing.internal or _seen.value is True


def running(internal: bool) -> within:
    """Within the context a rule or a method runs if ``internal``, else the network again."""
    return within(_internal, internal)


def internally(function: Callable[..., Any], *args: Any) -> Any:
    """``function`` of the arguments, as a part of a rule."""
    if torch.compiler.is_dynamo_compiling():
        outer, _tracing.internal = _tracing.internal, True
        found = function(*args)
        _tracing.internal = outer
        return found
    with running(True):
        return function(*args)
