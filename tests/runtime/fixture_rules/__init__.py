"""Ops written by hand in the form the compiler emits, so that the runtime is tested without it."""

from __future__ import annotations

from .product import product
from .scaled_square import scaled_square
from .square import square

__all__ = ["product", "scaled_square", "square"]
