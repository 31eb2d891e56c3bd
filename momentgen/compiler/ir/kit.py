r"""What several strategies write into their graphs, and what a graph is for.

Among it are repeated integrals of the normal distribution, J_n(t) = ∫_0^∞ x^n exp(-t x - x²/2) dx / n!, t >= 0, from
one fit.  From J_2 follow J_1, J_0 and all higher ones:

    (1 + t²) J_1 = 1 - 2 t J_2,    J_0 = 2 J_2 + t J_1,    n J_n = J_(n-2) - t J_(n-1).

In the first two nothing cancels, and J_1 is exact at t = 0.  Upwards errors grow as t^n/n!; where J_n stands beside
sigma^n φ(t), sigma below some length, they do not count.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import mpmath
import sympy as sp
from sympy.core.sorting import default_sort_key

from momentgen.compiler.fit import J, Polynomial, lowest_degree
from momentgen.compiler.ir.graph import (
    Graph,
    Real,
    equal,
    exp_factor,
    exp_mantissa,
    first_word,
    horner,
    madd,
    over_one_plus,
    select,
    shifted_product,
    sqrt,
)
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.errors import BuildError


@dataclass(frozen=True)
class Precision:
    """What the graph is for.

    Attributes:
        fit: relative error allowed to each fitted polynomial.
        reach: the T at which t is clamped; beyond it every output has its limit or is below the smallest number.
        scaled: whether to normalise the variance by powers of two and keep exponents apart (float32), or not (float64).
        factors: in how many factors exp's power of two is applied; each must be a normal number.
        lean: whether to take the shorter of two ways where it costs a rounding: sigma as var·(1/sigma), the remainder
            of a division by 1 + t² from a rounded difference.
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


def parameter_node(
    g: Graph, expr: sp.Expr, name: str, symbols: Mapping[sp.Symbol, Real] = MappingProxyType({})
) -> Real:
    """A rational function of the parameters, computed once a call, or of ``symbols`` too, as it is written.

    Args:
        expr: in the parameters' symbols.
        symbols: what stands for others.

    Raises:
        BuildError: for any other function.
    """
    if expr.is_number:
        return number(g, expr)
    if isinstance(expr, sp.Symbol):
        return symbols[expr] if expr in symbols else g.param(expr.name)
    if isinstance(expr, sp.Pow) and expr.exp.is_Integer:
        base = parameter_node(g, expr.base, name, symbols)
        node = math.prod([base] * (abs(int(expr.exp)) - 1), start=base)
        return node if expr.exp > 0 else 1 / node
    if isinstance(expr, (sp.Add, sp.Mul)):
        ordered = expr.args if symbols else sorted(expr.args, key=default_sort_key)
        parts = [parameter_node(g, part, name, symbols) for part in ordered]
        if isinstance(expr, sp.Add):
            return functools.reduce(operator.add, parts)
        return functools.reduce(operator.mul, reversed(parts) if symbols else parts)
    raise BuildError(name, "strategies", "expected a rational function of the parameters", expr)


def like(value: Real, *inputs: Real) -> Real:
    """``value``, but NaN where an input is."""
    for each in inputs:
        value = select(equal(each, each), value, each)
    return value


def short_exp(scaled: bool, exponent: Real) -> Real:
    """e^x where its power of two is a normal number, which ``scaled`` keeps apart from the mantissa."""
    value = exp_mantissa(exponent)
    return value * exp_factor(exponent, 0, 1) if scaled else value


def held_exp(scaled: bool, exponent: Real, low: float, high: float | None = None) -> Real:
    """e^x: 0 to the left of ``low``, and to the right of ``high`` what it is there."""
    below = exponent < low
    held = select(below, low, exponent if high is None else select(high < exponent, high, exponent))
    return select(below, 0, short_exp(scaled, held))


def checked(v: Real) -> Real:
    """A variance, NaN where it is negative."""
    return (v * sqrt(select(v >= 0, 1, -1))).named("NaN for a negative variance")


def scaling(v: Real, scaled: bool) -> tuple[Real, Real]:
    """A power of two by whose square a variance is multiplied, so that its root's residuals are normal; its inverse.

    For float64, which is not ``scaled``, both are 1.
    """
    g = v.graph
    if not scaled:
        return g.const(1), g.const(1)
    tiny, huge = v < mpmath.mpf(2) ** -40, mpmath.mpf(2) ** 60 < v
    one, up, down = (g.const(mpmath.mpf(2) ** k) for k in (0, 48, -8))
    c = select(tiny, up, select(huge, down, one)).named("power of two that keeps residuals normal")
    return c, select(tiny, mpmath.mpf(2) ** -48, select(huge, mpmath.mpf(2) ** 8, one))


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


def clamped(value: Real, most: float) -> Real:
    """As :func:`within`, where the upper bound is compared with what the lower one leaves."""
    value = select(value < -most, -most, value)
    return select(value > most, most, value)


def largest(float32: bool) -> float:
    """The largest number of float32 or of float64."""
    return LARGEST if float32 else sys.float_info.max


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


@lru_cache
def mills_core(goal: float) -> Polynomial:
    """P with J_0(t)/sqrt(2 pi) = u P(u - 1/4), u = 1/(1 + t/4), for every t >= 0, of the lowest sufficient degree."""
    root = mpmath.sqrt(2 * mpmath.pi)

    def target(u: Any) -> Any:
        if u < mpmath.mpf("1e-30"):  # J_0(t) = 1/t - O(1/t³)
            return 1 / (4 * root)
        return J(0, 4 * (1 / u - 1)) / (root * u)

    what = "J_0(t)/(sqrt(2 pi) u), u = 1/(1 + t/4), t >= 0"
    return lowest_degree(target, (mpmath.mpf(0), mpmath.mpf(1)), range(8, 40, 2), goal, what, centre=CENTRE)


def tail_ratio(t: Real, goal: float, fits: list[Polynomial]) -> Real:
    """J_0(t)/sqrt(2 pi) for every t >= 0: Phi(-t) over exp(-t²/2)."""
    core = mills_core(goal)
    fits.append(core)
    u = 1 / madd(t, 0.25, 1)
    return horner(u - CENTRE, core.coefficients) * u


def mills_ratio(precision: Precision, n: int, u: Real) -> tuple[Real, Polynomial]:
    """J_n(t)/sqrt(2 pi), u = 1/(1 + t/4), and what was fitted."""
    fitted = core(n, precision.reach, precision.fit)
    value = horner(u - CENTRE, fitted.coefficients)
    return math.prod([u] * (n + 1), start=value), fitted


@lru_cache
def slope_of(order: int, reach: float) -> Polynomial:
    """Q with dJ_order/du/sqrt(2 pi) = u^order Q(u), to 3 %: it multiplies a rounding error."""
    low = 1 / (1 + mpmath.mpf(reach) / SCALE)

    def target(u: Any) -> Any:  # J_n' = -(n + 1) J_{n+1}, dt/du = -c/u²
        slope = (order + 1) * SCALE * J(order + 1, SCALE * (1 / u - 1)) / u**2
        return slope / (mpmath.sqrt(2 * mpmath.pi) * u**order)

    what = f"dJ_{order}/du/(sqrt(2 pi) u^{order}), u = 1/(1 + t/{SCALE:g}), 0 <= t <= {reach}"
    return lowest_degree(target, (low, mpmath.mpf(1)), range(1, 8), 0.03, what)


def close_mills_ratio(precision: Precision, n: int, t: Real, reach: float) -> tuple[Real, Polynomial]:
    """J_n(t)/sqrt(2 pi), 0 <= t <= reach, to u's second word where it may have one, and what was fitted."""
    fitted = core(n, reach, precision.fit)
    exact = (1 / madd(t, 1 / mpmath.mpf(SCALE), 1)).named(f"u = 1/(1 + t/{SCALE:g})")
    # The fit is taken at u's first word, and moved by its slope to u: that is cheaper than to carry u through it.
    u = first_word(exact) if precision.scaled else exact
    value, power = horner(u - CENTRE, fitted.coefficients), math.prod([u] * n, start=t.graph.const(1))
    if precision.scaled:
        slope = horner(u, slope_of(n, reach).coefficients) * power
        value = shifted_product(value, power * u, slope, exact)
    else:
        value = value * (power * u)
    return value.named(f"J_{n}/sqrt(2 pi)"), fitted


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


@lru_cache
def _trigonometric(kind: str, goal: float) -> Polynomial:
    """sin(r) = r P(r²) or cos(r) = P(r²), |r| <= pi/4 and a little beyond."""
    top = mpmath.mpf("0.62")

    def target(s: Any) -> Any:
        r = mpmath.sqrt(s)
        if kind == "cos":
            return mpmath.cos(r)
        return mpmath.sin(r) / r if s > mpmath.mpf("1e-30") else mpmath.mpf(1)

    what = f"{kind} by a polynomial in r², r² <= 0.62"
    return lowest_degree(target, (mpmath.mpf(0), top), range(2, 16), goal, what)


def sine_and_cosine(goal: float, turned: Real, fits: list[Polynomial]) -> tuple[Real, Real]:
    """Sine and cosine of an angle below 2^13 by polynomials of that relative error, after multiples of pi/2."""
    n = round(turned * (2 / mpmath.pi))
    # pi/2 in three parts; n times the first is exact while n < 2^13.
    r, left = turned, mpmath.pi / 2
    for bits in (11, 11, 0):
        part = mpmath.nint(mpmath.ldexp(left, bits)) / mpmath.mpf(2) ** bits if bits == 11 else left
        if bits and left < 1:
            part = mpmath.nint(mpmath.ldexp(left, 24)) / mpmath.mpf(2) ** 24
        left = left - part
        r = madd(-n, part, r)
    quarter = n - turned.graph.const(4) * round(n * 0.25)  # -2, -1, 0, 1 or 2
    s = r * r
    sine, cosine = _trigonometric("sin", goal), _trigonometric("cos", goal)
    fits += [sine, cosine]
    small, large = r * horner(s, sine.coefficients), horner(s, cosine.coefficients)
    odd = equal(quarter * quarter, 1)
    high, low = select(odd, large, small), select(odd, small, large)
    minus_sin = equal(quarter, -1) | equal(abs(quarter), 2)
    minus_cos = equal(quarter, 1) | equal(abs(quarter), 2)
    return select(minus_sin, -high, high), select(minus_cos, -low, low)
