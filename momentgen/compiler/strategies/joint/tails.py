"""The fitted core of normal tails: one repeated integral as a polynomial, from which the others follow without loss."""

from __future__ import annotations

import mpmath

from momentgen.compiler.ir.graph import Graph, Real, horner, madd
from momentgen.compiler.strategies.homogeneous.kink_fits import CENTRE, core

__all__ = ["Tails"]


class Tails:
    """J_0, J_1 and J_2 over sqrt(2 pi) at a node t of a graph: from J_2 by the recurrence, all terms positive.

    Attributes:
        j: order -> node.
        fit: the polynomial used.
    """

    def __init__(self, graph: Graph, t: Real, *, goal: float, reach: float, scale: float = 4.0) -> None:
        g = graph
        self.fit = core(2, reach, goal, scale)
        u = (1 / madd(t, 1 / mpmath.mpf(scale), 1)).named(f"u = 1/(1 + t/{scale:g})")
        value = horner(u - CENTRE, self.fit.coefficients)
        j2 = (value * u * u * u).named("J_2/sqrt(2 pi)")
        # J_1 (1 + t²) = 1 - 2 t J_2 and J_0 = 2 J_2 + t J_1: nothing cancels.
        one = g.const(1 / mpmath.sqrt(2 * mpmath.pi))
        double = j2 * 2
        bottom = 1 / madd(t, t, 1)
        j1 = (madd(-t, double, one) * bottom).named("J_1/sqrt(2 pi)")
        j0 = madd(t, j1, double).named("Mills ratio/sqrt(2 pi)")
        self.j = {-1: one, 0: j0, 1: j1, 2: j2}
