"""Notes on what a pass took approximately: collected while somebody listens, such as :func:`momentgen.summary`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

__all__ = ["listening", "note"]

_listener: ContextVar[dict[str, int] | None] = ContextVar("momentgen_notes", default=None)


def note(text: str) -> None:
    """Say that something was taken approximately; heard by :func:`listening`, in eager mode."""
    if torch.compiler.is_compiling():
        return
    found = _listener.get()
    if found is not None:
        found[text] = found.get(text, 0) + 1


@contextlib.contextmanager
def listening() -> Iterator[dict[str, int]]:
    """Collect the notes of what runs within: text -> how often."""
    found: dict[str, int] = {}
    token = _listener.set(found)
    try:
        yield found
    finally:
        _listener.reset(token)
