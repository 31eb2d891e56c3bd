"""What generated Triton modules are made of beside their own functions.

They import it, and it imports Triton: so it is imported when a GPU's tensor comes.
"""
# mypy: ignore-errors
# The functions are written in Triton's language, not in Python's.

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["double", "exp64", "load", "load_double", "log64", "places", "polynomial", "store", "store_rounded"]


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


@triton.jit
def double(value: tl.constexpr):
    """A number in float64: a literal beside float64 may be rounded to float32."""
    return tl.full((), value, tl.float64)


@triton.jit
def load_double(pointer, at, n):
    """The elements of an array of ``n`` in float64."""
    return tl.load(pointer + at, mask=at < n).to(tl.float64)


@triton.jit
def store_rounded(pointers, at, n, values):
    """As ``store``, of float64: what is beyond float32 becomes its largest number."""
    most = double(3.4028234663852886e38)
    for k in tl.static_range(len(pointers)):
        held = tl.where(values[k] > most, most, tl.where(values[k] < -most, -most, values[k])).to(tl.float32)
        tl.store(pointers[k] + at, held.to(pointers[k].dtype.element_ty), mask=at < n)


@triton.jit
def exp64(x):
    """exp(x), with the bits of exp64 in momentgen/native/float64.h."""
    held = tl.where(x > 710.0, double(710.0), x)
    whole = tl.fma(held, double(1.4426950408889634), double(6755399441055744.0))
    n = whole - double(6755399441055744.0)
    r = tl.fma(n, double(-2.3190468138462996e-17), tl.fma(n, double(-0.6931471805599453), held))
    p = tl.fma(r, double(2.0914686968086876e-09), double(2.5105217004720745e-08))
    p = tl.fma(p, r, double(2.75572736431103e-07))
    p = tl.fma(p, r, double(2.7557255400206422e-06))
    p = tl.fma(p, r, double(2.4801587325547743e-05))
    p = tl.fma(p, r, double(0.00019841269874820627))
    p = tl.fma(p, r, double(0.0013888888888883748))
    p = tl.fma(p, r, double(0.008333333333326136))
    p = tl.fma(p, r, double(0.04166666666666667))
    p = tl.fma(p, r, double(0.1666666666666667))
    p = tl.fma(p, r, double(0.5))
    p = tl.fma(p * r, r, r)
    bits = (whole.to(tl.int64, bitcast=True) << 52) + 4602678819172646912
    half = bits.to(tl.float64, bitcast=True)
    return tl.where(x < -708.0, double(0.0), tl.fma(p, half, half) * 2.0)


@triton.jit
def log64(x):
    """log(x), with the bits of log64 in momentgen/native/float64.h."""
    shifted = x.to(tl.int64, bitcast=True) - 4604544271217802189
    n = (shifted >> 52).to(tl.float64)
    part = ((shifted & 4503599627370495) + 4604544271217802189).to(tl.float64, bitcast=True)
    f = part - 1.0
    s = f / (part + 1.0)
    w = s * s
    p = tl.fma(w, double(0.047619047619047616), double(0.05263157894736842))
    p = tl.fma(p, w, double(0.058823529411764705))
    p = tl.fma(p, w, double(0.06666666666666667))
    p = tl.fma(p, w, double(0.07692307692307693))
    p = tl.fma(p, w, double(0.09090909090909091))
    p = tl.fma(p, w, double(0.1111111111111111))
    p = tl.fma(p, w, double(0.14285714285714285))
    p = tl.fma(p, w, double(0.2))
    p = tl.fma(p, w, double(0.3333333333333333))
    p = tl.fma(p, w, double(0.0))
    h = f * 0.5 * f
    low = tl.fma(s, h + p * 2.0, n * double(2.3190468138462996e-17))
    value = tl.fma(n, double(0.6931471805599453), f - (h - low))
    finite = tl.where(x > double(1.7976931348623157e308), x, value)
    zero = tl.where(x >= 0.0, double(-745.0), double(float("nan")))
    return tl.where(x >= double(2.2250738585072014e-308), finite, zero)
