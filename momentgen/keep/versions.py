"""Versions of what has a part in the bytes of generated files, and is named in them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata

from momentgen import __version__

#: besides momentgen itself
LIBRARIES = ("sympy", "mpmath", "python-flint", "numpy")


@lru_cache
def library_versions() -> Mapping[str, str]:
    """Version of momentgen and of each of :data:`LIBRARIES`."""
    return {"momentgen": __version__} | {name: metadata.version(name) for name in LIBRARIES}
