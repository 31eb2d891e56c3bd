r"""One-kink rules of degree 2 (squared ReLU): their outputs from the values that ``kink_graph`` shares.

Such an output is sigma^p·(C0(t) + z·2^n), p <= 4, with C0 a polynomial in t whose powers differ from p by even numbers,
so that C0's part is Σ c_k |mu|^k v^((p-k)/2).  Products of that size overflow; three things keep what float32 holds:

- z meets the powers of the variance taken down by a power of two, and gets that back together with 2^n, last;
- where C0's part may exceed the result, both are taken 2^-4 times as large and the result 2^4 times;
- what overflows even so is the largest number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mpmath
import sympy as sp

from momentgen.compiler.real import Graph
from momentgen.compiler.stabilise.forms import T
from momentgen.errors import BuildError

__all__ = ["Shared", "assemble", "saturated"]

_LARGEST = 3.4028234e38
_SPARE = mpmath.mpf(2) ** 4
_SCALE = 68  # binary places that a variance above 2^40 is taken down by


class Shared(Protocol):
    """What :mod:`momentgen.compiler.stabilise.kink_graph` has written: nodes for |mu|, v, sigma and the sign of mu."""

    g: Graph
    mu: int
    size: int
    t: int
    v: int
    s: int
    sigma: int
    negative: int

    def expression(self, expr: sp.Expr) -> int:
        """A polynomial in t and the parameters."""

    def factors(self) -> list[int]:
        """The factors of 2^n; none in float64."""


def assemble(shared: Shared, power: int, plains: Sequence[sp.Expr], z: int) -> int:
    """sigma^power·(C0 + z·2^n), ``plains`` being C0 right of the kink, and left of it where it differs.

    Raises:
        BuildError: for powers beyond 4.
    """
    if power > 4:
        raise BuildError("", "stabilise", f"expected a degree of at most 2, got sigma to the power {power}")
    g, one = shared.g, shared.g.const(1)
    huge = g.lt(g.const(mpmath.mpf(2) ** 40), shared.v)
    wide = g.both(
        huge, g.lt(shared.t, g.const(4))
    )  # further out 2^n makes the result smaller than 2^-4 leaves room for
    down = g.select(wide, g.const(1 / _SPARE), one)
    leads = [_lead(shared, power, plain, down) for plain in plains]
    lead = leads[0] if len(leads) == 1 else g.select(shared.negative, leads[1], leads[0])
    count = power // 2
    scaled = g.mul(shared.v, g.select(huge, g.const(mpmath.ldexp(1, -_SCALE)), one))
    for step in [scaled] * count + [shared.sigma] * (power % 2):
        z = g.mul(step, z)
    # Evenly, so that z grows or shrinks all the way: what overflows before the end does so in the end.
    factors = shared.factors() or [one]
    back = g.select(huge, g.const(mpmath.ldexp(1, _SCALE * count // len(factors))), one)
    for i, factor in enumerate(factors):
        z = g.mul(z, g.mul(g.mul(factor, back), one if i else down))
    total = g.mul(g.add(lead, z), g.select(wide, g.const(_SPARE), one))
    # Where both terms overflow their sum is no number; the sign is C0's.
    top = g.const(_LARGEST)
    beyond = g.select(g.lt(lead, g.const(0)), g.neg(top), top)
    return g.select(g.le(g.abs(total), top), total, beyond)


def _lead(shared: Shared, power: int, plain: sp.Expr, down: int) -> int:
    """Σ c_k |mu|^k v^((power-k)/2), times ``down``."""
    g, total = shared.g, shared.g.const(0)
    for (k,), coefficient in sp.Poly(plain, T).terms() if plain != 0 else ():
        first, *others = [shared.v] * ((power - k) // 2) + [shared.size] * k
        value = g.mul(shared.expression(coefficient), g.mul(first, down))
        for step in others:
            value = g.mul(value, step)
        total = g.add(total, value)
    return total


def saturated(shared: Shared, value: int, *, output: bool) -> int:
    """``value``, and the largest number of its sign where that overflows; an output is NaN where an input is."""
    g = shared.g
    top = g.const(_LARGEST)
    value = g.select(g.lt(value, g.neg(top)), g.neg(top), value)
    value = g.select(g.lt(top, value), top, value)
    if output:
        value = g.select(g.eq(shared.s, shared.s), value, shared.s)
        value = g.select(g.eq(shared.mu, shared.mu), value, shared.mu)
    return value
