"""Repeated integrals of the normal distribution, J_n(t) = ∫_0^∞ x^n exp(-t x - x²/2) dx / n!, t >= 0, from one fit.

From J_2 follow J_1, J_0 and all higher ones without a further fit:

    (1 + t²) J_1 = 1 - 2 t J_2,    J_0 = 2 J_2 + t J_1,    n J_n = J_(n-2) - t J_(n-1).

In the first two nothing cancels, and J_1 is exact at t = 0.  Upwards errors grow as t^n/n!; where J_n stands beside
sigma^n φ(t), sigma below some length, they do not count.
"""

from __future__ import annotations

import mpmath

from momentgen.compiler.ir.graph import Real, madd, over_one_plus

__all__ = ["integrals"]


def integrals(t: Real, square: Real, second: Real, top: int) -> list[Real]:
    """Nodes of J_n(t)/sqrt(2 pi), n = 0 .. ``top`` (at least 2).

    Args:
        t, square: nodes of t and t².
        second: node of J_2(t)/sqrt(2 pi).
        top: the highest order.
    """
    with mpmath.workdps(40):
        rest = madd(-(t * 2), second, 1 / mpmath.sqrt(2 * mpmath.pi))
    first = over_one_plus(rest, square)
    j = [madd(t, first, second * 2), first, second]
    for n in range(3, top + 1):
        j.append(madd(-t, j[n - 1], j[n - 2]) * (mpmath.mpf(1) / n))
    return j
