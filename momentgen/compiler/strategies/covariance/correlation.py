r"""Two dependent normal inputs on a graph: their ratios, how correlated they are, and integrals over the correlation.

For X_i ~ N(mu_i, v_i) of covariance c let s_i² = v_i (or 1 + v_i, where a normal variable is added to either input),
a = mu1/s1, b = ±mu2/s2 and rho = |c|/(s1 s2), the sign being that of c.  By Price's theorem covariances of functions
are integrals of the bivariate density over the correlation r from 0 to rho.  With r = (1 - q²)/(1 + q²) and

    Q = sqrt((1 - rho)/(1 + rho)) = sqrt(s1² s2² - c²)/(s1 s2 + |c|),   A = (a + b)²/8,   B = (a - b)²/8,

they are integrals over Q <= q <= 1 of exp(-A (1 + q²) - B (1 + 1/q²)), which is positive and does not cancel:
s1² s2² - c² is computed with the remainders of both products, and 1 - Q = 2 |c|/((s1 s2 + |c|) (1 + Q)).

The exponent is least, M, at q*² = |a - b|/|a + b|, or at that end of [Q, 1] which is nearer.  The integral is taken
over where it exceeds M by at most ``cut``, and exp(-M) is multiplied in last.  The nodes are q = lo + (hi - lo) x^p, x
those of Gauss and Legendre: near q = 0 there is a layer of the width sqrt(B), however narrow, where p > 1 puts nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mpmath
from flint import arb, ctx

from momentgen.compiler.ir.graph import (
    Graph,
    Real,
    equal,
    madd,
    select,
    sqrt,
    square_difference,
)
from momentgen.compiler.strategies.formulas.functions import FunctionWriter, Value
from momentgen.compiler.strategies.kit import SLACK, Precision, short_exp, within

INPUTS = ("mean1", "var1", "mean2", "var2", "cov")
_BITS = 160


@lru_cache
def gauss_legendre(count: int) -> tuple[tuple[Any, Any], ...]:
    """Nodes and weights on (0, 1), to 40 digits."""
    with ctx.workprec(_BITS), mpmath.workdps(45):
        pairs = [arb.legendre_p_root(count, k, weight=True) for k in range(count)]
        number = [[mpmath.mpf(part.mid().str(42, radius=False)) for part in pair] for pair in pairs]
        return tuple((((node + 1) / 2), weight / 2) for node, weight in sorted(number))


@dataclass(frozen=True)
class Nodes:
    """How an integral over the correlation is taken.

    Attributes:
        count: nodes.
        power: p of the mapping.
        cut: by how much the exponent may exceed its least value.
    """

    count: int
    power: float
    cut: float


@dataclass(frozen=True)
class At:
    """Graph nodes at one node of the rule: q, q - Q, q², 1/q², 1/(1 + q²), and exp(M - exponent)."""

    q: Real
    beyond: Real
    square: Real
    inverse: Real
    share: Real
    e: Real


class Pair:
    """The shared values of two dependent inputs.

    Args:
        graph: of :data:`INPUTS`.
        precision: float32 or float64; its ``reach`` is where a and b are clamped.
        added: whether a standard normal variable is added to either input, as for Phi(X).

    Attributes:
        swap: whether what is called the first input here is the second one.
        ratio: a and mu2/s2.
        total, gap: a + b and a - b, b with the sign of the covariance.
        negative: whether the covariance is negative.
        q, inverse_q: Q, and 1/Q; 2^40 at Q = 0, where only its product with a - b counts.
        singular: whether Q = 0.
        rho: |c|/(s1 s2).
        inverse: 1/s1 and 1/s2; 0 for a variance of 0.
    """

    def __init__(self, graph: Graph, precision: Precision, *, added: bool) -> None:
        self.g, self.precision, self.added = graph, precision, added
        self.f = FunctionWriter(graph, precision)
        g = graph
        (mean1, var1), (mean2, var2) = ((g.input(f"mean{i}"), g.input(f"var{i}")) for i in (1, 2))
        self.cov = g.input("cov")
        # In an order of their own, results are the same to the last bit however the inputs are given.
        self.swap = (mean2 < mean1) | equal(mean1, mean2) & (var2 < var1)
        self.mean = select(self.swap, mean2, mean1), select(self.swap, mean1, mean2)
        self.var = select(self.swap, var2, var1), select(self.swap, var1, var2)
        self.zero, self.one = g.const(0), g.const(1)
        self.usable = self._usable()
        self._scale()
        self._correlation()
        self._ratios()

    def _usable(self) -> Real:
        usable = abs(self.cov) <= self._bound()
        for mean, var in zip(self.mean, self.var, strict=True):
            usable = usable & ((self.zero <= var) & equal(mean, mean))
        return usable

    def _bound(self) -> Real:
        roots = [sqrt(select(self.zero <= var, var, self.zero)) for var in self.var]
        return roots[0] * roots[1] * SLACK

    def _scale(self) -> None:
        """Either variance by a power of two of its own, so that products and their remainders are normal numbers."""
        g = self.g
        up, back = [], []
        for var in self.var:
            c, b = self.one, self.one
            if self.precision.scaled:
                # With 1 added to it a small variance needs no scaling.
                tiny = var < mpmath.mpf(2) ** -40
                huge = mpmath.mpf(2) ** 60 < var
                more, less = (g.const(mpmath.mpf(2) ** k) for k in (48, -40))
                c = select(huge, less, self.one if self.added else select(tiny, more, self.one))
                more, less = (g.const(mpmath.mpf(2) ** k) for k in (40, -48))
                b = select(huge, more, self.one if self.added else select(tiny, less, self.one))
            up.append(c.named("power of two that keeps remainders normal"))
            back.append(b)
        self.up, self.back = up, back
        self.scaled = [var * c * c for var, c in zip(self.var, up, strict=True)]
        self.extra = [c * c if self.added else self.zero for c in up]
        squares = [w + one for w, one in zip(self.scaled, self.extra, strict=True)]
        self.none = [equal(var, self.zero) for var in self.var]
        if not self.added:
            squares = [select(none, self.one, w) for none, w in zip(self.none, squares, strict=True)]
        squares = [select(self.usable, square, self.one) for square in squares]
        self.root = [sqrt(w).named("standard deviation, scaled") for w in squares]
        self.inverse = [1 / root * c for root, c in zip(self.root, up, strict=True)]
        if not self.added:
            pairs = zip(self.none, self.inverse, strict=True)
            self.inverse = [select(none, self.zero, inverse) for none, inverse in pairs]
        if self.precision.scaled:  # 1/v overflows below 2^-127
            cap = g.const(mpmath.mpf(2) ** 63.5 * (1 + mpmath.mpf(2) ** -20))
            self.inverse = [select(cap < inverse, cap, inverse) for inverse in self.inverse]
        #: s1 and s2, and s1 s2 but for ``back_both``, the power of two
        self.sigma = [root * b for root, b in zip(self.root, back, strict=True)]
        if not self.added:
            self.sigma = [select(none, self.zero, s) for none, s in zip(self.none, self.sigma, strict=True)]
        self.both = self.root[0] * self.root[1]
        self.back_both = back[0] * back[1]

    def _correlation(self) -> None:
        g, zero, one = self.g, self.zero, self.one
        covariance = self.cov * (self.up[0] * self.up[1])
        self.scaled_cov, self.negative = covariance, covariance < zero
        size = select(self.usable, abs(covariance), zero)
        w1, w2 = self.scaled
        left = -square_difference(size, w2, w1, zero) if self.precision.scaled else w1 * w2 - size * size
        if self.added:
            e1, e2 = self.extra
            left = select(zero < left, left, zero) + (e1 * w2 + e2 * w1)
            left = left + e1 * e2
        certain = self.none[0] | self.none[1] if not self.added else one < zero
        left = select(self.usable & (zero < left), left, zero)
        self.singular = equal(left, zero) & ~certain if not self.added else equal(left, zero)
        top = self.both + size
        root = sqrt(select(equal(left, zero), one, left))
        over = 1 / top
        q = select(self.singular, zero, root * over)
        inverse = select(self.singular, mpmath.mpf(2) ** 40, top * (1 / root))
        g.suspect(*left.args, left, top, root, over, q, inverse)
        if not self.added:
            q, inverse = select(certain, one, q), select(certain, one, inverse)
        self.q = q.named("Q = sqrt((1 - rho)/(1 + rho))")
        self.inverse_q = inverse
        self.q2 = self.q * self.q
        g.suspect(self.q, self.q2, self.inverse_q)
        self.rho = size * (1 / self.both)
        self.short = (size * 2 * over * (1 / (self.q + one))).named("1 - Q")

    def _ratios(self) -> None:
        g = self.g
        ratio, raws = [], []
        for mean, c, root, none in zip(self.mean, self.up, self.root, self.none, strict=True):
            x = mean * c
            if not self.added:
                far = g.const(mpmath.mpf(2) ** 100)  # twice, so that it takes any mean but 0 beyond the reach
                x = select(none, mean * far * far, x)
            raw = x / root
            raws.append(raw)
            ratio.append(within(raw, self.precision.reach))
        self.ratio = [node.named(f"mean{i}/s{i}, within the reach") for i, node in enumerate(ratio, 1)]
        a, b = self.ratio
        #: b with the sign of the covariance
        self.turned = select(self.negative, -b, b)
        self.total, self.gap = a + self.turned, a - self.turned
        eighth = g.const(0.125)
        self.a = (self.total * self.total * eighth).named("A = (a + b)^2/8")
        self.b = (self.gap * self.gap * eighth).named("B = (a - b)^2/8")
        # What decides the exponents, whose errors of a² 2^-24 are the result's: all else is as good in one word.
        g.suspect(*self.root, *raws, *self.ratio, self.turned, self.total, self.gap, self.a, self.b)
        steep = self.inverse_q * self.inverse_q
        parts = madd(self.a, self.q2, self.a), madd(self.b, steep, self.b)
        self.last_exponent = -(parts[0] + parts[1])
        g.suspect(steep, *parts, parts[0] + parts[1], self.last_exponent)

    # --- the integral ------------------------------------------------------------
    def least(self) -> None:
        """M, the least exponent on [Q, 1], and where it is."""
        g, one = self.g, self.one
        t, d = abs(self.total), abs(self.gap)
        # Where both are next to nothing so is the exponent, and the quotient is not to be taken.
        late = (t <= d) | (t < mpmath.mpf(2) ** -60)
        early = d <= self.q2 * t
        inner = d * (1 / select(late, one, t))
        self.place = select(late, one, select(early, self.q2, inner)).named("q*^2, where the exponent is least")
        at_first = self.b * self.inverse_q * self.inverse_q
        inner = t * d * 0.125
        self.share = select(late, self.b, select(early, at_first, inner)).named("B/q*^2")
        self.rise = madd(self.a, self.place, self.share)
        both = self.a + self.b
        self.exponent = -(self.rise + both)
        g.suspect(self.share, at_first, *at_first.args, self.rise, both, self.exponent)

    def range(self, cut: float) -> tuple[Real, Real, Real]:
        """lo, lo - Q, and hi - lo."""
        g, zero, one, two = self.g, self.zero, self.one, self.g.const(2)
        self.least()
        far = g.const(cut)
        apart = madd(self.a, self.place, -self.share)
        inside = madd(apart, apart, madd(self.rise, 2 * cut, cut * cut))
        top = self.rise + far + sqrt(inside)
        low, double = self.b * two * (1 / top), self.a * two
        later, sooner = self.q2 < low, top < double
        lo = select(later, sqrt(select(later, low, one)), self.q)
        high = top * (1 / select(sooner, double, one))
        hi = select(sooner, sqrt(select(sooner, high, one)), one)
        length = select(later | sooner, hi - lo, self.short)
        lo = lo.named("lo, where the integral begins")
        return lo, select(later, lo - self.q, zero), length.named("hi - lo")

    def nodes(self, rule: Nodes) -> Iterator[tuple[Any, At]]:
        """Weights, less the factor hi - lo (:attr:`length`), and values at each node."""
        one = self.one
        lo, start, self.length = self.range(rule.cut)
        for node, weight in gauss_legendre(rule.count):
            with mpmath.workdps(40):
                x, w = node**rule.power, weight * rule.power * node ** (rule.power - 1)
            q = madd(self.length, x, lo)
            square = q * q
            bottom = square + one
            both = 1 / (square * bottom)
            inverse = bottom * both
            steep = self.a - self.share * inverse
            exponent = (self.place - square) * steep
            e = short_exp(self.precision.scaled, exponent)
            yield w, At(q, madd(self.length, x, start), square, inverse, square * both, e)

    def sums(self, rule: Nodes, terms: Sequence[Callable[[At], Real]]) -> list[Real]:
        """1/pi of the integrals of each term times exp(M - exponent)."""
        g = self.g
        totals = [self.zero] * len(terms)
        for weight, at in self.nodes(rule):
            w = g.const(weight / mpmath.pi)
            totals = [madd(w, term(at), total) for term, total in zip(terms, totals, strict=True)]
        return [total * self.length for total in totals]

    def decay(self) -> Value:
        """exp(-M)."""
        return self.f.exp(self.exponent, decays=True)

    # --- helpers -----------------------------------------------------------------
    def signed(self, value: Real) -> Real:
        """With the sign of the covariance."""
        return select(self.negative, -value, value)

    def checked(self, value: Real) -> Real:
        """``value``, but NaN where an input is NaN, a variance negative or the covariance impossible."""
        return select(self.usable, value, sqrt(select(self.usable, self.one, -1)))
