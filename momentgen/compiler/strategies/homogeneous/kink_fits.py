"""Homogeneous one-kink rules: the polynomials that ``kink_graph`` evaluates.

J_n in u = 1/(1 + t/c), its slope, and an output near a = 0 where its closed form cancels; each of the lowest degree
that is accurate enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import mpmath

from momentgen.compiler.fit import J, Polynomial, lowest_degree
from momentgen.compiler.strategies.homogeneous.forms import OutputForm, Side

__all__ = ["CENTRE", "LOSS", "core", "near_zero", "slope_of", "vanishing_order"]

CENTRE = mpmath.mpf(1) / 4  # Horner about 1/4 magnifies rounding 1.7-fold, about 1/2 twelve-fold
_DEGREES = range(4, 40, 2)
LOSS = 4.0  # conditioning beyond which an output gets its own expansion at a = 0


@lru_cache
def core(order: int, reach: float, goal: float, scale: float) -> Polynomial:
    """P with J_order(t)/sqrt(2 pi) = u^(order+1) P(u - 1/4), u = 1/(1 + t/scale), of the lowest sufficient degree."""
    low = 1 / (1 + mpmath.mpf(reach) / scale)

    def target(u: Any) -> Any:
        return J(order, scale * (1 / u - 1)) / (mpmath.sqrt(2 * mpmath.pi) * u ** (order + 1))

    what = f"J_{order}(t)/(sqrt(2 pi) u^{order + 1}), u = 1/(1 + t/{scale:g}), 0 <= t <= {reach}"
    return lowest_degree(target, (low, mpmath.mpf(1)), _DEGREES, goal, what, centre=CENTRE)


@lru_cache
def slope_of(order: int, reach: float, scale: float) -> Polynomial:
    """Q with dJ_order/du/sqrt(2 pi) = u^order Q(u), to 3 %: it multiplies a rounding error."""
    low = 1 / (1 + mpmath.mpf(reach) / scale)

    def target(u: Any) -> Any:  # J_n' = -(n + 1) J_{n+1}, dt/du = -c/u²
        slope = (order + 1) * scale * J(order + 1, scale * (1 / u - 1)) / u**2
        return slope / (mpmath.sqrt(2 * mpmath.pi) * u**order)

    what = f"dJ_{order}/du/(sqrt(2 pi) u^{order}), u = 1/(1 + t/{scale:g}), 0 <= t <= {reach}"
    return lowest_degree(target, (low, mpmath.mpf(1)), range(1, 8), 0.03, what)


def vanishing_order(side: Side, params: Mapping[str, Any]) -> int:
    """m with O(t) ~ t^m at 0."""
    with mpmath.workdps(60):
        small = mpmath.mpf("1e-12")
        ratio = abs(side.value(2 * small, params) / side.value(small, params))
        return int(mpmath.nint(mpmath.log(ratio, 2)))


def near_zero(form: OutputForm, order: int, params: Mapping[str, Any], goal: float) -> tuple[Polynomial, float]:
    """W with O(t) = t^order W(t²) on 0 <= t <= edge, and the edge: where the general form is well conditioned."""
    edge = next(
        k / 8 for k in range(1, 60) if all(form.plus.condition(j / 8, params) <= LOSS / 2 for j in range(k, 60))
    )

    def target(h: Any) -> Any:
        with mpmath.workdps(90):
            root = mpmath.sqrt(h) if h > mpmath.mpf("1e-30") else mpmath.mpf("1e-15")
            return form.plus.value(root, params) / root**order

    what = f"{form.name}/(sigma^{form.power} t^{order}) in t², 0 <= t <= {edge}"
    interval = (mpmath.mpf(0), mpmath.mpf(edge) ** 2)
    return lowest_degree(target, interval, _DEGREES, goal, what), edge
