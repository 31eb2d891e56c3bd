"""What would silently lose gradients: a function of ``torch.autograd.Function`` that is handed laws.

torch looks for tensors among the arguments of ``apply``, finds none in a law, and records nothing.  A law can only see
that ``forward`` is called without gradients, where the network was called with them.  ``apply`` itself is a Python
function in some versions of torch and none in others, so it is not looked for.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any

import torch

from momentgen.errors import InputError, UnsupportedError
from momentgen.laws.law import Law

__all__ = ["RECORDING", "explained", "refuse"]

#: whether the network that runs was called with gradients enabled
RECORDING: ContextVar[bool] = ContextVar("momentgen_recording", default=False)

_BORDER = f"{__name__.rpartition('.')[0]}.border"


def _subclasses(base: Any) -> Iterator[Any]:
    for function in base.__subclasses__():
        yield function
        yield from _subclasses(function)


@functools.cache  # 0.5 ms; a class exists before its forward first runs
def _function_of(code: CodeType) -> str | None:
    """The full name of the ``torch.autograd.Function`` whose ``forward``, without decorators, has this code."""
    for function in _subclasses(torch.autograd.Function):
        forward = inspect.unwrap(function.forward)
        if getattr(forward, "__code__", None) is code:
            return f"{function.__module__}.{function.__qualname__}"
    return None


def refuse(name: str) -> None:
    """Raise if the function ``name`` of a law, which runs without gradients, loses some that were asked for.

    Raises:
        UnsupportedError: if it is called by a reentrant checkpoint or another ``torch.autograd.Function``.
    """
    if not RECORDING.get():
        return
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not (frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == _BORDER):
        function = _function_of(frame.f_code)
        if function is not None:
            if function.endswith(".CheckpointFunction"):
                raise UnsupportedError(
                    f"{name} of a random value in a reentrant checkpoint, which would lose its gradients; pass "
                    "use_reentrant=False to torch.utils.checkpoint.checkpoint"
                )
            raise UnsupportedError(
                f"{name} of a random value in {function}.apply, whose backward "
                "torch would not call. Write it with functions of torch, or build a rule and register it with "
                "momentgen.laws.register_activation"
            )
        frame = frame.f_back


#: in what torch says of a float64 value that meets a float32 one
_MIXED = ("same dtype", "should be the same", "expected scalar type")


def explained(error: Exception) -> UnsupportedError | InputError | None:
    """The error of a function that was given a law or two precisions, as one that says what to write; else None."""
    first = str(error).partition("\n")[0]
    if "ouble" in first and any(words in first for words in _MIXED):
        return InputError(
            f"{first}. momentgen.noisy makes float64 of numbers and lists: write momentgen.noisy(torch.tensor(x), ...) "
            "for a network in float32, or convert network.double()"
        )
    if not any(words in first for words in ("found type '", ", not ", "cannot convert", " is not an instance of ")):
        return None
    for law in (kind.__name__ for kind in _subclasses(Law)):
        if f"'{law}'" in first or f"not {law}" in first or first.startswith(f"{law}("):
            return UnsupportedError(
                f"{first}: it takes tensors only, as a function by torch.jit.script does, or functional_call; a random "
                f"value, {law}, needs the Python function of which it was made"
            )
    return None
