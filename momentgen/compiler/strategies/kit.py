"""What several strategies write into their graphs."""

from __future__ import annotations

import sys

from momentgen.compiler.ir.graph import Real, equal, exp_factor, exp_mantissa, madd, select, sqrt
from momentgen.compiler.measure.ulp import LARGEST

__all__ = ["bounded_exp", "checked", "deviation", "largest", "plus", "within"]

_BOUND = 80.0  # of exponents


def bounded_exp(scaled: bool, exponent: Real) -> Real:
    """e^x for |x| <= 80: 0 to the left of it, and what it is at 80 to the right.

    Args:
        scaled: whether the power of two is kept apart from the mantissa.
        exponent: x.
    """
    below = exponent < -_BOUND
    held = select(below, -_BOUND, select(exponent > _BOUND, _BOUND, exponent))
    value = select(below, 0, exp_mantissa(held))
    return value * exp_factor(held, 0, 1) if scaled else value


def checked(v: Real) -> Real:
    """A variance, NaN where it is negative."""
    return (v * sqrt(select(v >= 0, 1, -1))).named("NaN for a negative variance")


def deviation(v: Real, inverse: float = 0.0) -> tuple[Real, Real, Real]:
    """Whether a variance is 0, its root, and 1 over that; at variance 0 ``inverse``."""
    degenerate = equal(v, 0)
    root = sqrt(select(degenerate, 1, v))
    sigma = select(degenerate, 0, root).named("standard deviation")
    return degenerate, sigma, select(degenerate, inverse, 1 / root)


def plus(total: Real, term: Real) -> Real:
    """total + term, as one operation where the term is a product."""
    if term.node.kind != "mul":
        return total + term
    x, y = term.args
    return madd(x, y, total)


def within(value: Real, most: float) -> Real:
    """``value``, at most ``most`` in size; NaN stays NaN."""
    return select(value > most, most, select(value < -most, -most, value))


def largest(float32: bool) -> float:
    """The largest number of float32 or of float64."""
    return LARGEST if float32 else sys.float_info.max
