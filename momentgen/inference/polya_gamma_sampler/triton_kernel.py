"""The sampler for GPUs as a Triton kernel, in float64; it imports Triton, so it is imported when a GPU's tensor comes.

Each lane works through its element's draws by itself.  A program ends with its slowest lane, so programs are one warp
wide and their lanes need no barrier.
"""
# mypy: ignore-errors
# The kernels are written in Triton's language, not in Python's.

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from momentgen.inference.polya_gamma_sampler.envelope import ENVELOPE, Envelope

__all__ = ["BLOCK", "WARPS", "constants", "polya_gamma_kernel", "triton_draws"]

BLOCK, WARPS = 64, 1
_PI_SQUARED = tl.constexpr(math.pi**2)
_HALF_PI = tl.constexpr(math.pi / 2)
_UNIT = tl.constexpr(2.0**-52)
_HALF_UNIT = tl.constexpr(2.0**-53)


@triton.jit
def _uniform(low, high):
    """Uniform on {2^-52, 2 * 2^-52, ..., 1}, by two words."""
    bits = (high.to(tl.uint64) << 20) | (low >> 12).to(tl.uint64)
    return 1.0 - bits.to(tl.int64).to(tl.float64) * _UNIT


@triton.jit
def _bracket(r):
    cube = r * r * r
    return 1.0 - (3.0 * r - cube * (5.0 - 7.0 * cube))


@triton.jit
def _sine(x):
    """sin(x) for x in [0, pi/2], by its series; the library's would reduce any argument, in local memory."""
    q = x * x
    p = q * -(1.0 / 25852016738884976640000.0) + 1.0 / 51090942171709440000.0
    p = p * q - 1.0 / 121645100408832000.0
    p = p * q + 1.0 / 355687428096000.0
    p = p * q - 1.0 / 1307674368000.0
    p = p * q + 1.0 / 6227020800.0
    p = p * q - 1.0 / 39916800.0
    p = p * q + 1.0 / 362880.0
    p = p * q - 1.0 / 5040.0
    p = p * q + 1.0 / 120.0
    p = p * q - 1.0 / 6.0
    return x + x * (q * p)


@triton.jit
def _two_pieces(h, first, second, SPLIT, EDGE, RATE, LEFT_MASS, RIGHT_MASS):
    """A proposal for h < SWITCH, and by how much it is accepted (negative: it is not)."""
    e = -tl.log(first)
    tilt = h * h * 0.5
    k = tilt + _PI_SQUARED * 0.125
    right = RIGHT_MASS / k * tl.exp(k * -SPLIT)
    u = second * (right + LEFT_MASS)
    n = e / RATE + EDGE
    off = n - RATE
    beyond = e / k + SPLIT
    within = 1.0 / (n * n)
    is_right = u <= right
    u = tl.where(is_right, u / right, (u - right) / LEFT_MASS)
    lost = tl.where(is_right, e * 0.0, off * off * 0.5 + tilt * within)
    r = tl.exp(tl.where(is_right, beyond * -_PI_SQUARED, n * n * -4.0))
    return tl.where(is_right, beyond, within), tl.exp(-lost) * _bracket(r) - u


@triton.jit
def _one_piece(h, first, angle, root, u, SPLIT, BEYOND):
    """A proposal for h >= SWITCH, and by how much it is accepted (negative: it is not)."""
    sine = _sine((angle - _HALF_UNIT) * _HALF_PI)
    c = tl.log(first) * -2.0 * (sine * sine) / h
    t = 1.0 + (c * 0.5 + tl.sqrt(c * (c * 0.25 + 1.0)))
    x = tl.where(root * (t + 1.0) <= t, 1.0 / t, t) / h
    is_right = x > SPLIT
    # Where the other form holds the numbers of this one are kept small.
    y = tl.where(is_right, x, SPLIT)
    r = tl.exp(tl.where(is_right, y * -_PI_SQUARED, -4.0 / x))
    other = y * tl.sqrt(y) * BEYOND * tl.exp(0.5 / y - y * (_PI_SQUARED * 0.125))
    return x, tl.where(is_right, other, c * 0.0 + 1.0) * _bracket(r) - u


@triton.jit
def polya_gamma_kernel(
    z_ptr,
    counts_ptr,
    key_ptr,
    out_ptr,
    n,
    draws,
    HAS_COUNTS: tl.constexpr,
    SPLIT: tl.constexpr,
    EDGE: tl.constexpr,
    RATE: tl.constexpr,
    LEFT_MASS: tl.constexpr,
    RIGHT_MASS: tl.constexpr,
    SWITCH: tl.constexpr,
    BEYOND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """PG(b, z) for BLOCK elements: b from ``counts_ptr`` if HAS_COUNTS, else ``draws``."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    h = tl.abs(tl.load(z_ptr + index, mask=inside, other=0.0).to(tl.float64)) * 0.5
    if HAS_COUNTS:
        wanted = tl.load(counts_ptr + index, mask=inside, other=0).to(tl.int32)
    else:
        wanted = tl.where(inside, draws, 0).to(tl.int32)
    key = tl.load(key_ptr)
    low = index.to(tl.uint32)
    high = (index >> 32).to(tl.uint32)
    is_large = h >= SWITCH
    # Each form is given an h that it can take, whichever is chosen.
    small = tl.where(is_large, SWITCH, h)
    large = tl.where(is_large, h, SWITCH)
    total = h * 0.0
    draw = wanted * 0
    attempt = wanted * 0
    while tl.max((draw < wanted).to(tl.int32), 0) > 0:
        a0, a1, a2, a3 = tl.philox(key, low, high, draw, attempt * 2)
        b0, b1, b2, b3 = tl.philox(key, low, high, draw, attempt * 2 + 1)
        first = _uniform(a0, a1)
        second = _uniform(a2, a3)
        x, accept = _two_pieces(small, first, second, SPLIT, EDGE, RATE, LEFT_MASS, RIGHT_MASS)
        y, accept_y = _one_piece(large, first, second, _uniform(b0, b1), _uniform(b2, b3), SPLIT, BEYOND)
        accepted = (tl.where(is_large, accept_y, accept) >= 0.0) & (draw < wanted)
        total += tl.where(accepted, tl.where(is_large, y, x), 0.0)
        draw += accepted.to(tl.int32)
        attempt = tl.where(accepted, 0, attempt + 1)
    tl.store(out_ptr + index, (total * 0.25).to(out_ptr.dtype.element_ty), mask=inside)


def constants(envelope: Envelope = ENVELOPE) -> dict[str, float]:
    """The kernel's constants, by name."""
    return {name.upper(): value for name, value in vars(envelope).items()}


def triton_draws(z: Tensor, counts: Tensor | None, draws: int, key: Tensor) -> Tensor:
    """Draws for a contiguous tensor ``z``; ``counts``, if any, is b as int64, of its shape and contiguous."""
    out = torch.empty_like(z)
    n = z.numel()
    polya_gamma_kernel[(triton.cdiv(n, BLOCK),)](
        z,
        key if counts is None else counts,
        key,
        out,
        n,
        draws,
        HAS_COUNTS=counts is not None,
        **constants(),
        BLOCK=BLOCK,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )
    return out
