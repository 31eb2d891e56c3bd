"""Notes on what a pass took approximately: collected while somebody listens, such as :func:`momentgen.summary`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch

from momentgen.laws.context import within
from momentgen.laws.unsupported import place

__all__ = ["AccuracyWarning", "are_heard", "listening", "note", "note_and_warn", "note_fast_path", "overheard"]


class AccuracyWarning(UserWarning):
    """An answer is less accurate than asked for, or NaN; ``.notes`` says why.  Given once per process and reason."""


#: the reasons for which this process has had a warning
_warned: set[str] = set()

_listener: ContextVar[dict[str, int] | None] = ContextVar("momentgen_notes", default=None)


def are_heard() -> bool:
    """Whether anybody listens to notes."""
    return not torch.compiler.is_compiling() and _listener.get() is not None


def note(text: str, where: bool = False) -> None:
    """Say that something was taken approximately, and in which line; heard by :func:`listening`, in eager mode."""
    if are_heard():
        found: Any = _listener.get()
        text += place() if where else ""
        found[text] = found.get(text, 0) + 1


def note_and_warn(reason: str, text: str) -> None:
    """A note that is a warning too, the first time for this reason."""
    note(text)
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(text, AccuracyWarning, stacklevel=2)


@contextlib.contextmanager
def overheard() -> Iterator[dict[str, int]]:
    """Collects the notes of what runs within, as :func:`listening`; who listens outside hears them too."""
    own: dict[str, int] = {}
    try:
        with within(_listener, own):
            yield own
    finally:
        outer = _listener.get()
        if outer is not None:
            for text, count in own.items():
                outer[text] = outer.get(text, 0) + count


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
