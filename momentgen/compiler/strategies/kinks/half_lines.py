r"""Means of x^n e^(b x), b complex, over the half-lines beside a kink: f as seen from either side, and their nodes.

With t = |mu - kink|/sigma, y = |x - kink|, b as seen from mu's side, z = t - b sigma,

    E[y^n e^(b y); beyond the kink] = φ(t) sigma^n I_n(z),

I_n of :mod:`momentgen.compiler.fit.half_plane`, where Re z >= 0; else it is the mean over all x less its mirror image.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import mpmath
import sympy as sp

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.fit.half_plane import half_plane
from momentgen.compiler.ir.graph import Graph, Real, horner, madd, select, sqrt
from momentgen.compiler.strategies.elementary.exponentials import Terms, number
from momentgen.compiler.strategies.kinks.growing_truth import Sides
from momentgen.compiler.strategies.kit import DENSITY, Precision, short_exp, within

_HELD = 2.0**62  # z is held within that: |a + z|² is a number
_GOAL = {True: 1e-8, False: 1e-15}  # of the fits, in float32 and in float64


@dataclass(frozen=True)
class Seen:
    """f as seen from one side of its kink: as terms in y = x - kink.

    Attributes:
        side: -1 where mu is left of the kink.
        entire: p.
        own, beyond: D, on mu's side and beyond the kink.
        own_square, beyond_square: f² - p².
    """

    side: int
    entire: Terms
    own: Terms
    beyond: Terms
    own_square: Terms
    beyond_square: Terms

    @staticmethod
    def of(sides: Sides, side: int) -> Seen:
        """From that side."""
        here, there = (sides.left, sides.right) if side < 0 else (sides.right, sides.left)
        kept = {key: c for key, c in here.coefficients.items() if side * sp.re(key[0]) >= 0}
        entire = Terms(kept)
        square = entire.squared()
        return Seen(side, entire, here - entire, there - entire, here.squared() - square, there.squared() - square)

    def rates(self) -> dict[sp.Expr, int]:
        """b, of each conjugate pair one, and the highest n with it."""
        found: dict[sp.Expr, int] = {}
        for terms in (self.own, self.beyond, self.own_square, self.beyond_square):
            for b, n in terms.coefficients:
                if sp.im(b) >= 0:
                    found[b] = max(found.get(b, 0), n)
        return found


#: real and imaginary part; the latter None where it is 0
_Pair = tuple[Real, Real | None]


@dataclass(frozen=True)
class Tails:
    """Of one rate: whether Re z < 0 (None where it never is), and φ(t) sigma^n I_n(±z), Re(±z) >= 0."""

    flipped: Real | None
    values: tuple[_Pair, ...]


class HalfLines:
    """Writes the nodes that the means over half-lines are made of.

    Args:
        graph: to write to.
        precision: of the graph.
        offset: the node mu - kink.
        left: whether mu is left of the kink.
        var: the node of a variance above 0.
        seen: f from the left and from the right.
    """

    def __init__(
        self, graph: Graph, precision: Precision, offset: Real, left: Real, var: Real, seen: Sequence[Seen]
    ) -> None:
        self.g, self.precision, self.seen = graph, precision, seen
        self.offset, self.left, self.var = offset, left, var
        self.fits: list[Polynomial] = []

    def by_side(self, values: Sequence[Real]) -> Real:
        """The first of two where mu is left of the kink, else the second."""
        return select(self.left, *values)

    @cached_property
    def root(self) -> Real:
        """sigma."""
        return sqrt(self.var).named("standard deviation, of at least v*")

    @cached_property
    def t(self) -> Real:
        """|mu - kink|/sigma."""
        return abs(self.offset) * (1 / self.root)

    @cached_property
    def density(self) -> Real:
        """φ(t), 0 beyond the reach."""
        reach = self.precision.reach
        beyond = self.t > reach
        t = select(beyond, reach, self.t)
        exponent = t * t * -0.5
        value = short_exp(self.precision.scaled, exponent) * DENSITY
        return select(beyond, 0, value).named("phi(t)")

    @cached_property
    def tails(self) -> list[dict[sp.Expr, Tails]]:
        """Per side, of each rate; the two sides share their polynomials."""
        orders = [seen.rates() for seen in self.seen]
        rows = [_sorted(rates, seen.side) for seen, rates in zip(self.seen, orders, strict=True)]
        found: list[dict[sp.Expr, Tails]] = [{}, {}]
        for pair in _paired(rows):
            top = max(order[b] for order, b in zip(orders, pair, strict=True) if b is not None)
            for known, b, tails in zip(found, pair, self._tails(pair, top), strict=True):
                if b is not None:
                    known[b] = tails
        return found

    def _tails(self, pair: Sequence[sp.Expr | None], top: int) -> list[Tails]:
        """Of a rate as seen from either side."""
        g = self.g
        # As seen from mu's side: y runs away from mu, beyond the kink.
        rates = [
            None if b is None else (number(-seen.side * sp.re(b)), number(-seen.side * sp.im(b)))
            for seen, b in zip(self.seen, pair, strict=True)
        ]
        known = [rate for rate in rates if rate is not None]
        real, turning = (self.by_side([g.const((rate or known[0])[i]) for rate in rates]) for i in (0, 1))
        grows = any(rate[0] > 0 for rate in known)
        x = madd(-real, self.root, self.t) if any(rate[0] for rate in known) else self.t
        flipped = x < 0 if grows else None
        x = within(abs(x) if grows else x, _HELD)
        y: Real | None = None
        if any(rate[1] for rate in known):
            y = within(-(turning * self.root), _HELD)
            y = y if flipped is None else select(flipped, -y, y)
        values: list[_Pair] = []
        for n, (re, im) in enumerate(self._integrals(x, y, top)):
            factors = [self.density, *[self.root] * n]
            values.append(
                (reduce(operator.mul, factors, re), None if im is None else reduce(operator.mul, factors, im))
            )
        return [Tails(flipped if rate is not None and rate[0] > 0 else None, tuple(values)) for rate in rates]

    def _integrals(self, x: Real, y: Real | None, top: int) -> list[_Pair]:
        """I_0 .. I_top at x + i y: two by polynomials, those below by I_(n-2) = (I_n + z I_(n-1))/(n - 1)."""
        values = {n: self._fitted(n, x, y) for n in range(max(0, top - 1), top + 1)}
        for n in range(top, 1, -1):
            re, im = values[n]
            before = values[n - 1]
            if y is None or im is None or before[1] is None:
                total: _Pair = (madd(x, before[0], re), None)
            else:
                total = (
                    madd(-y, before[1], madd(x, before[0], re)),
                    madd(y, before[0], madd(x, before[1], im)),
                )
            share = mpmath.mpf(1) / (n - 1)
            values[n - 2] = (total[0] * share, None if total[1] is None else total[1] * share)
        return [values[n] for n in range(top + 1)]

    def _fitted(self, n: int, x: Real, y: Real | None) -> _Pair:
        """I_n(x + i y)."""
        g = self.g
        scale, fit = half_plane(n, _GOAL[self.precision.scaled])
        if fit not in self.fits:
            self.fits.append(fit)
        double, a = g.const(2 * scale), x + scale
        if y is None:
            w = 1 / a
            u = double * w - 1
            value = horner(u, fit.coefficients)
            for _ in range(n + 1):
                value = value * w
            return value, None
        size = 1 / madd(a, a, y * y)
        w_re, w_im = a * size, -(y * size)
        u_re, u_im = double * w_re - 1, double * w_im
        re, im = g.const(fit.coefficients[-1]), g.const(0)
        for c in reversed(fit.coefficients[:-1]):
            re, im = (
                madd(-im, u_im, madd(re, u_re, c)),
                madd(im, u_re, re * u_im),
            )
        for _ in range(n + 1):
            re, im = madd(-im, w_im, re * w_re), madd(im, w_re, re * w_im)
        return re, im


def _sorted(rates: Iterable[sp.Expr], side: int) -> list[sp.Expr]:
    """By how fast they turn, then by how they decay from that side's view."""
    return sorted(rates, key=lambda b: (float(sp.im(b)), float(side * sp.re(b))))


def _paired(rows: Sequence[Sequence[sp.Expr]]) -> list[tuple[sp.Expr | None, sp.Expr | None]]:
    """The rates of either side in pairs, real ones with real ones, in order."""
    pairs: list[tuple[sp.Expr | None, sp.Expr | None]] = []
    for real in (True, False):
        left, right = ([b for b in row if (sp.im(b) == 0) == real] for row in rows)
        pairs += itertools.zip_longest(left, right)
    return pairs
