"""What generated Triton modules are made of beside their own functions.

They import it, and it imports Triton: so it is imported when a GPU's tensor comes.
"""
# mypy: ignore-errors
# The functions are written in Triton's language, not in Python's.

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["load", "places", "polynomial", "store"]


@triton.jit
def places(BLOCK: tl.constexpr):
    """The places in arrays of the elements that one program of the grid computes."""
    return tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def load(pointer, at, n):
    """The elements of an array of ``n`` in float32."""
    return tl.load(pointer + at, mask=at < n).to(tl.float32)


@triton.jit
def store(pointers, at, n, values):
    """Write elements of arrays of ``n``, rounded once to their types."""
    for k in tl.static_range(len(pointers)):
        tl.store(pointers[k] + at, values[k].to(pointers[k].dtype.element_ty), mask=at < n)


@triton.jit
def polynomial(x, y, coefficients):
    """Multiply-adds by x, from y on."""
    for k in tl.static_range(len(coefficients)):
        y = tl.fma(x, y, coefficients[k])
    return y
