"""What would silently lose gradients: a function of ``torch.autograd.Function`` that is handed laws.

torch looks for tensors among the arguments of ``apply``, finds none in a law, and records nothing.  All that can be
seen of it from a law is that its forward runs without gradients where the network was called with them.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from types import FrameType
from typing import Any

import torch

from momentgen.errors import UnsupportedError

__all__ = ["RECORDING", "explained", "refuse"]

#: whether the network that runs was called with gradients enabled
RECORDING: ContextVar[bool] = ContextVar("momentgen_recording", default=False)

_APPLY: Any = torch.autograd.Function.apply.__code__
_BORDER = f"{__name__.rpartition('.')[0]}.border"


def refuse(name: str) -> None:
    """Raise if the function ``name`` of a law, which runs without gradients, loses some that were asked for.

    Raises:
        UnsupportedError: if it is called by a reentrant checkpoint or another ``torch.autograd.Function``.
    """
    if not RECORDING.get():
        return
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not (frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == _BORDER):
        if frame.f_code is _APPLY:
            function = frame.f_locals["cls"]
            if function.__name__ == "CheckpointFunction":
                raise UnsupportedError(
                    f"{name} of a random value in a reentrant checkpoint, which would lose its gradients; pass "
                    "use_reentrant=False to torch.utils.checkpoint.checkpoint"
                )
            raise UnsupportedError(
                f"{name} of a random value in {function.__module__}.{function.__qualname__}.apply, whose backward "
                "torch would not call; write it with functions of torch, or build a rule and register it with "
                "momentgen.laws.register_activation"
            )
        frame = frame.f_back


def explained(error: Exception) -> UnsupportedError | None:
    """The error of a function in C++ that takes tensors only and was given a law, as one that says so; else None."""
    first = str(error).partition("\n")[0]
    if not any(words in first for words in ("found type '", ", not ", "cannot convert")):
        return None
    for law in ("Point", "Diagonal", "Covariance"):
        if f"'{law}'" in first or f"not {law}" in first:
            return UnsupportedError(
                f"{first}: it takes tensors only, as a function by torch.jit.script does; a random value, {law}, needs "
                "the Python function of which it was made"
            )
    return None
