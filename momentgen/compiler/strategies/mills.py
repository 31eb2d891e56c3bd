"""Repeated integrals of the normal distribution, J_n(t) = ∫_0^∞ x^n exp(-t x - x²/2) dx / n!, t >= 0, from one fit.

From J_2 follow J_1, J_0 and all higher ones without a further fit:

    (1 + t²) J_1 = 1 - 2 t J_2,    J_0 = 2 J_2 + t J_1,    n J_n = J_(n-2) - t J_(n-1).

In the first two nothing cancels, and J_1 is exact at t = 0.  Upwards errors grow as t^n/n!; where J_n stands beside
sigma^n φ(t), sigma below some length, they do not count.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mpmath

from momentgen.compiler.fit import J, Polynomial, lowest_degree
from momentgen.compiler.ir.graph import Graph, Real, horner, madd, over_one_plus
from momentgen.compiler.strategies.kit import DENSITY, Precision

CENTRE = mpmath.mpf(1) / 4  # Horner about 1/4 magnifies rounding 1.7-fold, about 1/2 twelve-fold
DEGREES = range(4, 40, 2)
SCALE = 4.0  # c in u = 1/(1 + t/c), the variable of the fits; a power of two, so that t/c is exact


@lru_cache
def core(order: int, reach: float, goal: float, scale: float = SCALE) -> Polynomial:
    """P with J_order(t)/sqrt(2 pi) = u^(order+1) P(u - 1/4), u = 1/(1 + t/scale), of the lowest sufficient degree."""
    low = 1 / (1 + mpmath.mpf(reach) / scale)

    def target(u: Any) -> Any:
        return J(order, scale * (1 / u - 1)) / (mpmath.sqrt(2 * mpmath.pi) * u ** (order + 1))

    what = f"J_{order}(t)/(sqrt(2 pi) u^{order + 1}), u = 1/(1 + t/{scale:g}), 0 <= t <= {reach}"
    return lowest_degree(target, (low, mpmath.mpf(1)), DEGREES, goal, what, centre=CENTRE)


def mills_ratio(precision: Precision, n: int, u: Real) -> tuple[Real, Polynomial]:
    """J_n(t)/sqrt(2 pi), u = 1/(1 + t/4), and what was fitted."""
    fitted = core(n, precision.reach, precision.fit)
    value = horner(u - CENTRE, fitted.coefficients)
    for _ in range(n + 1):
        value = value * u
    return value, fitted


@lru_cache
def slope_of(order: int, reach: float) -> Polynomial:
    """Q with dJ_order/du/sqrt(2 pi) = u^order Q(u), to 3 %: it multiplies a rounding error."""
    low = 1 / (1 + mpmath.mpf(reach) / SCALE)

    def target(u: Any) -> Any:  # J_n' = -(n + 1) J_{n+1}, dt/du = -c/u²
        slope = (order + 1) * SCALE * J(order + 1, SCALE * (1 / u - 1)) / u**2
        return slope / (mpmath.sqrt(2 * mpmath.pi) * u**order)

    what = f"dJ_{order}/du/(sqrt(2 pi) u^{order}), u = 1/(1 + t/{SCALE:g}), 0 <= t <= {reach}"
    return lowest_degree(target, (low, mpmath.mpf(1)), range(1, 8), 0.03, what)


def integrals(t: Real, square: Real, second: Real, top: int) -> list[Real]:
    """Nodes of J_n(t)/sqrt(2 pi), n = 0 .. ``top`` (at least 2).

    Args:
        t, square: nodes of t and t².
        second: node of J_2(t)/sqrt(2 pi).
        top: the highest order.
    """
    first = over_one_plus(madd(-(t * 2), second, DENSITY), square)
    j = [madd(t, first, second * 2), first, second]
    for n in range(3, top + 1):
        j.append(madd(-t, j[n - 1], j[n - 2]) * (mpmath.mpf(1) / n))
    return j


class Tails:
    """J_0, J_1 and J_2 over sqrt(2 pi) at a node t of a graph: from J_2 by the recurrence, all terms positive.

    Attributes:
        j: order -> node.
        fit: the polynomial used.
    """

    def __init__(self, graph: Graph, t: Real, *, goal: float, reach: float) -> None:
        g = graph
        self.fit = core(2, reach, goal)
        u = (1 / madd(t, 1 / mpmath.mpf(SCALE), 1)).named(f"u = 1/(1 + t/{SCALE:g})")
        value = horner(u - CENTRE, self.fit.coefficients)
        j2 = (value * u * u * u).named("J_2/sqrt(2 pi)")
        # J_1 (1 + t²) = 1 - 2 t J_2 and J_0 = 2 J_2 + t J_1: nothing cancels.
        one = g.const(1 / mpmath.sqrt(2 * mpmath.pi))
        double = j2 * 2
        bottom = 1 / madd(t, t, 1)
        j1 = (madd(-t, double, one) * bottom).named("J_1/sqrt(2 pi)")
        j0 = madd(t, j1, double).named("Mills ratio/sqrt(2 pi)")
        self.j = {-1: one, 0: j0, 1: j1, 2: j2}
