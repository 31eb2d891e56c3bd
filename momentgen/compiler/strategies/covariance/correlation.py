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

from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.strategies.formulas.functions import FunctionWriter, Value
from momentgen.compiler.strategies.precision import Precision

__all__ = ["INPUTS", "At", "Nodes", "Pair", "gauss_legendre"]

INPUTS = ("mean1", "var1", "mean2", "var2", "cov")
_SLACK = 1 + mpmath.mpf(2) ** -18  # a covariance may exceed its bound by what rounding it can do
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

    q: int
    beyond: int
    square: int
    inverse: int
    share: int
    e: int


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
        self.swap = g.either(g.lt(mean2, mean1), g.both(g.eq(mean1, mean2), g.lt(var2, var1)))
        self.mean = g.select(self.swap, mean2, mean1), g.select(self.swap, mean1, mean2)
        self.var = g.select(self.swap, var2, var1), g.select(self.swap, var1, var2)
        self.zero, self.one = g.const(0), g.const(1)
        self.usable = self._usable()
        self._scale()
        self._correlation()
        self._ratios()

    def _usable(self) -> int:
        g, usable = self.g, self.g.le(self.g.abs(self.cov), self._bound())
        for mean, var in zip(self.mean, self.var, strict=True):
            usable = g.both(usable, g.both(g.le(self.zero, var), g.eq(mean, mean)))
        return usable

    def _bound(self) -> int:
        g = self.g
        roots = [g.sqrt(g.select(g.le(self.zero, var), var, self.zero)) for var in self.var]
        return g.mul(g.mul(*roots), g.const(_SLACK))

    def _scale(self) -> None:
        """Either variance by a power of two of its own, so that products and their remainders are normal numbers."""
        g = self.g
        up, back = [], []
        for var in self.var:
            c, b = self.one, self.one
            if self.precision.scaled:
                # With 1 added to it a small variance needs no scaling.
                tiny = g.lt(var, g.const(mpmath.mpf(2) ** -40))
                huge = g.lt(g.const(mpmath.mpf(2) ** 60), var)
                more, less = (g.const(mpmath.mpf(2) ** k) for k in (48, -40))
                c = g.select(huge, less, self.one if self.added else g.select(tiny, more, self.one))
                more, less = (g.const(mpmath.mpf(2) ** k) for k in (40, -48))
                b = g.select(huge, more, self.one if self.added else g.select(tiny, less, self.one))
            up.append(g.comment(c, "power of two that keeps remainders normal"))
            back.append(b)
        self.up, self.back = up, back
        self.scaled = [g.mul(g.mul(var, c), c) for var, c in zip(self.var, up, strict=True)]
        self.extra = [g.mul(c, c) if self.added else self.zero for c in up]
        squares = [g.add(w, one) for w, one in zip(self.scaled, self.extra, strict=True)]
        self.none = [self.f.g.eq(var, self.zero) for var in self.var]
        if not self.added:
            squares = [g.select(none, self.one, w) for none, w in zip(self.none, squares, strict=True)]
        squares = [g.select(self.usable, square, self.one) for square in squares]
        self.root = [g.comment(g.sqrt(w), "standard deviation, scaled") for w in squares]
        self.inverse = [g.mul(g.recip(root), c) for root, c in zip(self.root, up, strict=True)]
        if not self.added:
            pairs = zip(self.none, self.inverse, strict=True)
            self.inverse = [g.select(none, self.zero, inverse) for none, inverse in pairs]
        if self.precision.scaled:  # 1/v overflows below 2^-127
            cap = g.const(mpmath.mpf(2) ** 63.5 * (1 + mpmath.mpf(2) ** -20))
            self.inverse = [g.select(g.lt(cap, inverse), cap, inverse) for inverse in self.inverse]
        #: s1 and s2, and s1 s2 but for ``back_both``, the power of two
        self.sigma = [g.mul(root, b) for root, b in zip(self.root, back, strict=True)]
        if not self.added:
            self.sigma = [g.select(none, self.zero, s) for none, s in zip(self.none, self.sigma, strict=True)]
        self.both = g.mul(*self.root)
        self.back_both = g.mul(*back)

    def _correlation(self) -> None:
        g, zero, one = self.g, self.zero, self.one
        covariance = g.mul(self.cov, g.mul(*self.up))
        self.scaled_cov, self.negative = covariance, g.lt(covariance, zero)
        size = g.select(self.usable, g.abs(covariance), zero)
        w1, w2 = self.scaled
        if self.precision.scaled:
            left = g.neg(g.square_difference(size, w2, w1, zero))
        else:
            left = g.sub(g.mul(w1, w2), g.mul(size, size))
        if self.added:
            e1, e2 = self.extra
            left = g.add(g.select(g.lt(zero, left), left, zero), g.add(g.mul(e1, w2), g.mul(e2, w1)))
            left = g.add(left, g.mul(e1, e2))
        certain = g.either(*self.none) if not self.added else g.lt(one, zero)
        left = g.select(g.both(self.usable, g.lt(zero, left)), left, zero)
        self.singular = g.both(g.eq(left, zero), g.invert(certain)) if not self.added else g.eq(left, zero)
        top = g.add(self.both, size)
        root = g.sqrt(g.select(g.eq(left, zero), one, left))
        over = g.recip(top)
        q = g.select(self.singular, zero, g.mul(root, over))
        inverse = g.select(self.singular, g.const(mpmath.mpf(2) ** 40), g.mul(top, g.recip(root)))
        g.suspects |= {*g.nodes[left].args, left, top, root, over, q, inverse}
        if not self.added:
            q, inverse = g.select(certain, one, q), g.select(certain, one, inverse)
        self.q = g.comment(q, "Q = sqrt((1 - rho)/(1 + rho))")
        self.inverse_q = inverse
        self.q2 = g.mul(self.q, self.q)
        g.suspects |= {self.q, self.q2, self.inverse_q}
        self.rho = g.mul(size, g.recip(self.both))
        self.short = g.comment(g.mul(g.mul(g.mul(size, g.const(2)), over), g.recip(g.add(self.q, one))), "1 - Q")

    def _ratios(self) -> None:
        g = self.g
        ratio, raws = [], []
        most, least = g.const(self.precision.reach), g.const(-self.precision.reach)
        for mean, c, root, none in zip(self.mean, self.up, self.root, self.none, strict=True):
            x = g.mul(mean, c)
            if not self.added:
                far = g.const(mpmath.mpf(2) ** 100)  # twice, so that it takes any mean but 0 beyond the reach
                x = g.select(none, g.mul(g.mul(mean, far), far), x)
            raw = g.over(x, root)
            raws.append(raw)
            ratio.append(g.select(g.lt(most, raw), most, g.select(g.lt(raw, least), least, raw)))
        self.ratio = [g.comment(node, f"mean{i}/s{i}, within the reach") for i, node in enumerate(ratio, 1)]
        a, b = self.ratio
        #: b with the sign of the covariance
        self.turned = g.select(self.negative, g.neg(b), b)
        self.total, self.gap = g.add(a, self.turned), g.sub(a, self.turned)
        eighth = g.const(0.125)
        self.a = g.comment(g.mul(g.mul(self.total, self.total), eighth), "A = (a + b)^2/8")
        self.b = g.comment(g.mul(g.mul(self.gap, self.gap), eighth), "B = (a - b)^2/8")
        # What decides the exponents, whose errors of a² 2^-24 are the result's: all else is as good in one word.
        g.suspects |= {*self.root, *raws, *self.ratio, self.turned, self.total, self.gap, self.a, self.b}
        steep = g.mul(self.inverse_q, self.inverse_q)
        parts = g.madd(self.a, self.q2, self.a), g.madd(self.b, steep, self.b)
        self.last_exponent = g.neg(g.add(*parts))
        g.suspects |= {steep, *parts, g.add(*parts), self.last_exponent}

    # --- the integral ------------------------------------------------------------
    def least(self) -> None:
        """M, the least exponent on [Q, 1], and where it is."""
        g, one = self.g, self.one
        t, d = g.abs(self.total), g.abs(self.gap)
        # Where both are next to nothing so is the exponent, and the quotient is not to be taken.
        late = g.either(g.le(t, d), g.lt(t, g.const(mpmath.mpf(2) ** -60)))
        early = g.le(d, g.mul(self.q2, t))
        inner = g.mul(d, g.recip(g.select(late, one, t)))
        self.place = g.comment(
            g.select(late, one, g.select(early, self.q2, inner)), "q*^2, where the exponent is least"
        )
        at_first = g.mul(g.mul(self.b, self.inverse_q), self.inverse_q)
        inner = g.mul(g.mul(t, d), g.const(0.125))
        self.share = g.comment(g.select(late, self.b, g.select(early, at_first, inner)), "B/q*^2")
        self.rise = g.madd(self.a, self.place, self.share)
        both = g.add(self.a, self.b)
        self.exponent = g.neg(g.add(self.rise, both))
        g.suspects |= {self.share, at_first, *g.nodes[at_first].args, self.rise, both, self.exponent}

    def range(self, cut: float) -> tuple[int, int, int]:
        """lo, lo - Q, and hi - lo."""
        g, zero, one, two = self.g, self.zero, self.one, self.g.const(2)
        self.least()
        far = g.const(cut)
        apart = g.madd(self.a, self.place, g.neg(self.share))
        inside = g.madd(apart, apart, g.madd(self.rise, g.const(2 * cut), g.const(cut * cut)))
        top = g.add(g.add(self.rise, far), g.sqrt(inside))
        low, double = g.mul(g.mul(self.b, two), g.recip(top)), g.mul(self.a, two)
        later, sooner = g.lt(self.q2, low), g.lt(top, double)
        lo = g.select(later, g.sqrt(g.select(later, low, one)), self.q)
        high = g.mul(top, g.recip(g.select(sooner, double, one)))
        hi = g.select(sooner, g.sqrt(g.select(sooner, high, one)), one)
        length = g.select(g.either(later, sooner), g.sub(hi, lo), self.short)
        lo = g.comment(lo, "lo, where the integral begins")
        return lo, g.select(later, g.sub(lo, self.q), zero), g.comment(length, "hi - lo")

    def nodes(self, rule: Nodes) -> Iterator[tuple[Any, At]]:
        """Weights, less the factor hi - lo (:attr:`length`), and values at each node."""
        g, one = self.g, self.one
        lo, start, self.length = self.range(rule.cut)
        for node, weight in gauss_legendre(rule.count):
            with mpmath.workdps(40):
                x, w = node**rule.power, weight * rule.power * node ** (rule.power - 1)
            q = g.madd(self.length, g.const(x), lo)
            square = g.mul(q, q)
            bottom = g.add(square, one)
            both = g.recip(g.mul(square, bottom))
            inverse = g.mul(bottom, both)
            steep = g.sub(self.a, g.mul(self.share, inverse))
            exponent = g.mul(g.sub(self.place, square), steep)
            e = g.exp_mantissa(exponent)
            if self.precision.scaled:
                e = g.mul(e, g.exp_factor(exponent, 0, 1))
            yield w, At(q, g.madd(self.length, g.const(x), start), square, inverse, g.mul(square, both), e)

    def sums(self, rule: Nodes, terms: Sequence[Callable[[At], int]]) -> list[int]:
        """1/pi of the integrals of each term times exp(M - exponent)."""
        g = self.g
        totals = [self.zero] * len(terms)
        for weight, at in self.nodes(rule):
            w = g.const(weight / mpmath.pi)
            totals = [g.madd(w, term(at), total) for term, total in zip(terms, totals, strict=True)]
        return [g.mul(total, self.length) for total in totals]

    def decay(self) -> Value:
        """exp(-M)."""
        return self.f.exp(self.exponent, decays=True)

    # --- helpers -----------------------------------------------------------------
    def signed(self, value: int) -> int:
        """With the sign of the covariance."""
        return self.g.select(self.negative, self.g.neg(value), value)

    def checked(self, value: int) -> int:
        """``value``, but NaN where an input is NaN, a variance negative or the covariance impossible."""
        g = self.g
        return g.select(self.usable, value, g.sqrt(g.select(self.usable, self.one, g.const(-1))))
