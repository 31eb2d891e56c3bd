"""Notes on what a pass took approximately: collected while somebody listens, such as :func:`momentgen.summary`."""

from __future__ import annotations

from contextvars import ContextVar

import torch

from momentgen.laws.context import within
from momentgen.laws.unsupported import place

__all__ = ["listening", "note", "note_fast_path"]

_listener: ContextVar[dict[str, int] | None] = ContextVar("momentgen_notes", default=None)


def note(text: str, where: bool = False) -> None:
    """Say that something was taken approximately, and in which line; heard by :func:`listening`, in eager mode."""
    if torch.compiler.is_compiling():
        return
    found = _listener.get()
    if found is not None:
        text += place() if where else ""
        found[text] = found.get(text, 0) + 1


def listening() -> within:
    """Collect the notes of what runs within: text -> how often."""
    return within(_listener, {})


def note_fast_path(name: str) -> None:
    """Note how torch's fast path differs, where this is the function by which an encoder asks whether to take it."""
    if name == "_nested_tensor_from_mask_left_aligned":
        note(
            "nn.TransformerEncoder: padded tokens are computed, as torch does with gradients; without gradients its "
            "fast path may make them 0"
        )
