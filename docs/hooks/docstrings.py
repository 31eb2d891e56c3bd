"""Docstrings as Markdown: an extension of griffe, which reads them for the API reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Docstrings", "as_markdown"]


def as_markdown(text: str) -> str:
    """A docstring's text with roles as code, examples as code blocks, and a colon for each double one.

    >>> print(as_markdown("By :class:`~momentgen.Moments`::"))
    By `Moments`:
    """
    text = re.sub(r":\w+:`~[\w.]*?(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([^`<]+)`", r"`\1`", text)
    text = re.sub(r"^( *)(>>> .*?)(?=\n\s*\n|\Z)", r"\1```pycon\n\1\2\n\1```", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<=[\w`)])::$", ":", text, flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Applies :func:`as_markdown` to all docstrings that are shown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object that is read."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
