"""What several strategies write into their graphs, and what a graph is for."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import mpmath
import sympy as sp

from momentgen.compiler.fit import Polynomial, lowest_degree
from momentgen.compiler.ir.graph import Graph, Real, equal, exp_factor, exp_mantissa, madd, select, sqrt
from momentgen.compiler.measure.ulp import LARGEST


@dataclass(frozen=True)
class Precision:
    """What the graph is for.

    Attributes:
        fit: relative error allowed to each fitted polynomial.
        reach: the T at which t is clamped; beyond it every output has its limit or is below the smallest number.
        scaled: whether to normalise the variance by powers of two and keep exponents apart (float32), or not (float64).
        factors: in how many factors exp's power of two is applied; each must be a normal number.
        lean: whether to take the shorter of two ways where it costs a rounding: sigma as var·(1/sigma), the remainder
            of a division by 1 + t² from a rounded difference, an atom by two divisions instead of four.
    """

    fit: float
    reach: float
    scaled: bool
    factors: int = 2
    lean: bool = False


FLOAT64 = Precision(fit=1e-16, reach=38.5, scaled=False)
#: of graphs whose densities count as 0 beyond their reach
NEAR32 = Precision(fit=2e-8, reach=13.0, scaled=True)
NEAR64 = replace(FLOAT64, reach=37.5)


SLACK = 1 + mpmath.mpf(2) ** -18  # a covariance may exceed its bound by what rounding it can do
_BOUND = 80.0  # of exponents


@lru_cache
def exp_ratio(low: mpmath.mpf, high: mpmath.mpf, goal: float, centre: mpmath.mpf = 0) -> Polynomial:
    """P with e^y - 1 = y P(y - centre) for low <= y <= high."""

    def target(y: Any) -> Any:
        return mpmath.expm1(y) / y if abs(y) > mpmath.mpf("1e-30") else mpmath.mpf(1)

    ends = f"|y| <= {sp.nsimplify(high)}" if low == -high else f"{sp.nsimplify(low)} <= y <= {sp.nsimplify(high)}"
    return lowest_degree(target, (low, high), range(3, 24), goal, f"(exp(y) - 1)/y, {ends}", centre=centre)


with mpmath.workdps(60):
    DENSITY = 1 / mpmath.sqrt(2 * mpmath.pi)  # of a standard normal variable at 0


def number(graph: Graph, value: sp.Expr) -> Real:
    """An exact number, to 60 digits."""
    with mpmath.workdps(60):
        return graph.const(mpmath.mpf(sp.N(value, 65)))


def like(value: Real, *inputs: Real) -> Real:
    """``value``, but NaN where an input is."""
    for each in inputs:
        value = select(equal(each, each), value, each)
    return value


def short_exp(scaled: bool, exponent: Real) -> Real:
    """e^x where its power of two is a normal number, which ``scaled`` keeps apart from the mantissa."""
    value = exp_mantissa(exponent)
    return value * exp_factor(exponent, 0, 1) if scaled else value


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


def deviation(v: Real) -> tuple[Real, Real, Real]:
    """Whether a variance is 0, its root, and 1 over that; at variance 0 that is 0."""
    degenerate = equal(v, 0)
    root = sqrt(select(degenerate, 1, v))
    sigma = select(degenerate, 0, root).named("standard deviation")
    return degenerate, sigma, select(degenerate, 0, 1 / root)


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
