r"""One-kink rules of degree 2 and higher (squared ReLU): their outputs from the values that ``kink_graph`` shares.

Such an output is sigma^p·(C0(t) + z·2^n), p <= 2 degree, with C0 a polynomial in t whose powers differ from p by even
numbers, so that C0's part is Σ c_k |mu|^k v^((p-k)/2).  Products of that size overflow; three things keep what float32
holds:

- z meets the powers of the variance taken down by a power of two, which it gets back together with its share of 2^n;
- where C0's part may exceed the result, both are taken 2^-10 times as large and the result 2^10 times;
- what overflows even so is the largest number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import mpmath
import sympy as sp

from momentgen.compiler.ir.graph import Real, equal, select
from momentgen.compiler.strategies.homogeneous.forms import T
from momentgen.compiler.strategies.kit import largest

if TYPE_CHECKING:
    from momentgen.compiler.strategies.homogeneous.kink_graph import Writer

_SPARE = mpmath.mpf(2) ** 10
_SCALE = 72  # binary places that a variance above 2^40 is taken down by; a multiple of the factors over v's power


def assemble(shared: Writer, power: int, plains: Sequence[sp.Expr], z: Real) -> Real:
    """sigma^power·(C0 + z·2^n), ``plains`` being C0 right of the kink, and left of it where it differs."""
    one = shared.g.const(1)
    huge = mpmath.mpf(2) ** 40 < shared.v
    wide = huge & (shared.t < 4)  # further out 2^n makes the result smaller than 2^-4 leaves room for
    down = select(wide, 1 / _SPARE, one)
    leads = [_lead(shared, power, plain, down) for plain in plains]
    lead = leads[0] if len(leads) == 1 else select(shared.negative, leads[1], leads[0])
    count = power // 2
    scaled = shared.v * select(huge, mpmath.ldexp(1, -_SCALE), one)
    steps = [scaled] * count + [shared.sigma] * (power % 2)
    factors = shared.factors() or [one]
    back = select(huge, mpmath.ldexp(1, _SCALE * count // len(factors)), one)
    # Evenly, so that z grows or shrinks all the way: what overflows before the end does so in the end.
    for i, step in enumerate(steps):
        for k in range(i * len(factors) // len(steps), (i + 1) * len(factors) // len(steps)):
            step = step * (factors[k] * back * (one if k else down))
        z = step * z
    total = (lead + z) * select(wide, _SPARE, one)
    # Where both terms overflow their sum is no number; the sign is C0's.
    top = largest(shared.precision.scaled)
    beyond = select(lead < 0, -top, top)
    return select(abs(total) <= top, total, beyond)


def _lead(shared: Writer, power: int, plain: sp.Expr, down: Real) -> Real:
    """Σ c_k |mu|^k v^((power-k)/2), times ``down``."""
    total = shared.g.const(0)
    large = shared.v > 1
    for (k,), coefficient in sp.Poly(plain, T).terms() if plain != 0 else ():
        steps = [shared.v] * ((power - k) // 2) + [shared.size] * k
        # A share below 1 goes to |mu|: where that has no room for it the result has none, or C0's part is negligible.
        number, share = coefficient.as_coeff_Mul()
        if abs(number) < 1:
            number, share = sp.Integer(1), coefficient
        steps[-1] = shared.expression(share) * steps[-1]
        first, last = down, shared.expression(number)
        if abs(number) > 1:  # last it would magnify the rounding of small products, first let large ones overflow
            first, last = select(large, down, last), select(large, last, 1)
        value = steps[0] * first
        for step in steps[1:]:
            value = value * step
        total = total + last * value
    return total


def saturated(shared: Writer, value: Real, *, output: bool) -> Real:
    """``value``, and the largest number of its sign where that overflows; an output is NaN where an input is."""
    top = largest(shared.precision.scaled)
    value = select(value < -top, -top, value)
    value = select(top < value, top, value)
    if output:
        value = select(equal(shared.s, shared.s), value, shared.s)
        value = select(equal(shared.mu, shared.mu), value, shared.mu)
    return value
