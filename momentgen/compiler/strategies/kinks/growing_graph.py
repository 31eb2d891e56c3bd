r"""Branches that are sums of x^n e^(b x), b complex, left and right of one kink: the graph of real operations.

Seen from the side that mu is on, f = p + D: p has the terms of the branch there that do not grow beyond the kink, for
all x, and D what f differs by from it, on that side (what decays away from the kink) and beyond the kink.  Then

    mean = E p + E D,    V = Var p + E (f² - p²) - E D (2 E p + E D),

and no term is much larger than what they leave.  E p and Var p are those of ``elementary``, D and f² - p² sums of terms
over half-lines (``half_lines``).  Terms that grow beyond the kink, or on mu's side, are summed in units of the largest
of their exponentials.

Below v* the local form of ``piecewise_graph``, its P_k in closed form.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from functools import cached_property, reduce

import mpmath
import sympy as sp

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph, Real, madd, select, sqrt
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.strategies.elementary.entire_graph import Edge, Writer
from momentgen.compiler.strategies.elementary.entire_sums import Closed, SumWriter, Unit
from momentgen.compiler.strategies.elementary.exponentials import Moment, Terms, number
from momentgen.compiler.strategies.kinks.growing_truth import Sides
from momentgen.compiler.strategies.kinks.half_lines import HalfLines, Seen, Tails
from momentgen.compiler.strategies.kinks.piecewise_graph import Branches, PiecewiseWriter
from momentgen.compiler.strategies.kit import Precision, like
from momentgen.compiler.strategies.kit import number as constant

_SPREAD = ("var", "dvar_dmu", "dvar_dvar")


class _Growing(PiecewiseWriter):
    """Writes both forms."""

    def __init__(
        self, graph: Graph, sides: Sides, branches: Branches, precision: Precision, switch: float, edge: Edge
    ) -> None:
        super().__init__(graph, branches, precision, switch, None)
        self.seen = tuple(Seen.of(sides, side) for side in (-1, 1))
        writer = Writer(graph, not precision.scaled, edge)
        (offset,), (left,) = self.gaps, self.below
        self.halves = HalfLines(graph, precision, offset, left, self.wide, self.seen)
        #: per side: writers of its branch, at a variance below v*, and of its p, above
        self.near_sums: list[SumWriter] = []
        self.far_sums: list[SumWriter] = []
        for seen, whole in zip(self.seen, (sides.left, sides.right), strict=True):
            outside = offset > 0 if seen.side < 0 else offset < 0
            held = select(outside, 0, offset)  # mu, on its side
            grows = any(sp.re(b) != 0 for b in whole.rates)
            for sums, terms, v, count in (
                (self.near_sums, whole, self.small, branches.terms),
                (self.far_sums, seen.entire, self.wide, 0),
            ):
                own = copy.copy(writer)
                own.mu, own.v = held if grows else offset, v
                sums.append(SumWriter(own, Closed.of(terms, None, count, True)))
        self.writer = writer

    # --- below v* ------------------------------------------------------------------
    @cached_property
    def near_units(self) -> list[Unit | None]:
        """Per side, the largest exponential of its branch."""
        return [sums.unit(sums.closed.series[0]) for sums in self.near_sums]

    def p(self, k: int) -> Real:
        if k not in self._p:
            rows = zip(self.near_sums, self.near_units, strict=True)
            self._p[k] = self.by_branch([sums.moment(sums.closed.series[k], unit) for sums, unit in rows])
        return self._p[k]

    def near_values(self, outputs: tuple[str, ...]) -> dict[str, Real]:
        """The local form, in units of the branch's exponential where that is large: nothing of D is left there."""
        g, values = self.g, self.local(outputs)
        exponents = [g.const(0) if unit is None else unit.value for unit in self.near_units]
        if all(e.constant == 0 for e in exponents):
            return values
        exponent = self.by_branch(exponents)
        twice = exponent * 2
        return {n: self.near_sums[0].times_unit(w, twice if n in _SPREAD else exponent) for n, w in values.items()}

    # --- above v* ------------------------------------------------------------------
    def far_values(self, outputs: Sequence[str]) -> dict[str, Real]:
        """The form above v*, by mu's side."""
        every = [_Far(self, index).values(outputs) for index in range(len(self.seen))]
        return {name: self.by_branch([values[name] for values in every]) for name in outputs}

    # --- outputs -------------------------------------------------------------------
    def write(self, outputs: tuple[str, ...]) -> None:
        g, w = self.g, self.writer
        close, far = self.near_values(outputs), self.far_values(outputs)
        lost = [node for sums in (*self.near_sums, *self.far_sums) for node in sums.lost]
        valid = w.valid
        if lost:
            valid = valid * sqrt(select(reduce(operator.or_, lost), -1, 1))
        for name in outputs:
            value = select(self.near, close[name], far[name])
            if name == "var":
                value = select(value < 0, 0, value)
            value = w.finite(value) * valid
            if name in OUTPUTS:
                value = like(value, self.mu)
            g.output(name, value)


class _Far:
    """The form above v* as seen from one side."""

    def __init__(self, writer: _Growing, index: int) -> None:
        self.halves, self.g = writer.halves, writer.g
        self.seen, self.tails = writer.seen[index], writer.halves.tails[index]
        self.sums = writer.far_sums[index]

    def half_lines(self, own: Terms, beyond: Terms, unit: Unit | None) -> Real:
        """E of ``own`` on mu's side of the kink and of ``beyond`` beyond it, in units of ``unit``."""
        g, away = self.g, -self.seen.side
        total = g.const(0)
        for b, tails in self.tails.items():
            here, there = (self._restricted(terms, b) for terms in (own, beyond))
            if here.coefficients:
                value = self._whole(here, None) - self._tail(here, tails, away)
                if tails.flipped is not None:
                    value = select(tails.flipped, self._tail(here, tails, -away), value)
                total = total + self._little(value, unit)
            if there.coefficients:
                value = self._little(self._tail(there, tails, away), unit)
                if tails.flipped is not None:
                    mirrored = self._little(self._tail(there, tails, -away), unit)
                    value = select(tails.flipped, self._whole(there, unit) - mirrored, value)
                total = total + value
        return total

    def _little(self, value: Real, unit: Unit | None) -> Real:
        """0 beside a large unit."""
        return value if unit is None else select(unit.value > 0, 0, value)

    def _restricted(self, terms: Terms, b: sp.Expr) -> Terms:
        pair = (b, sp.conjugate(b))
        return Terms({key: c for key, c in terms.coefficients.items() if key[0] in pair})

    def _whole(self, terms: Terms, unit: Unit | None) -> Real:
        """E of terms over all x."""
        return self.sums.moment(terms.expectation(), unit)

    def _tail(self, terms: Terms, tails: Tails, sign: int) -> Real:
        """Σ Re c sign^n φ sigma^n I_n."""
        total = self.g.const(0)
        for (b, n), c in terms.coefficients.items():
            if sp.im(b) < 0:
                continue
            with mpmath.workdps(50):
                value = mpmath.mpc(number(c)) * (2 if sp.im(b) > 0 else 1) * sign**n
            re, im = tails.values[n]
            total = madd(value.real, re, total)
            if im is not None and value.imag:
                total = madd(-value.imag, im, total)
        return total

    def values(self, outputs: Sequence[str]) -> dict[str, Real]:
        return self.partials() if tuple(outputs) == PARTIALS else self.outputs()

    # --- what outputs are made of ----------------------------------------------------
    def unit_of(self, entire: Moment, beyond: Terms) -> Unit | None:
        """The largest exponential of what grows."""
        growing = {key: c for key, c in beyond.coefficients.items() if -self.seen.side * sp.re(key[0]) > 0}
        both = dict(entire.parts)
        for exponent, row in Terms(growing).expectation().parts.items():
            both.setdefault(exponent, row)
        return self.sums.unit(Moment(both))

    @cached_property
    def edges(self) -> tuple[Real, Real]:
        """The density at the kink, and its derivative in mu."""
        inverse = 1 / self.halves.root
        density = self.halves.density * inverse
        slope = density * inverse * self.halves.t
        return density, slope if self.seen.side < 0 else -slope

    def derivative(self, own: Terms, beyond: Terms, order: int, unit: Unit | None) -> Real:
        """d^order/dmu^order of E of ``own`` on mu's side and ``beyond`` beyond the kink, order up to 2."""
        g, rows = self.g, [(own, beyond)]
        for _ in range(order):
            rows.append((rows[-1][0].derivative(), rows[-1][1].derivative()))
        jumps = [self._number(b.at_zero - a.at_zero, -self.seen.side) for a, b in rows]
        total = self.half_lines(*rows[order], unit)
        edge = g.const(0)
        if order:
            density, slope = self.edges
            edge = jumps[order - 1] * density
            if order == 2:
                edge = madd(jumps[0], slope, edge)
        return total + self._little(edge, unit)

    def _number(self, value: sp.Expr, sign: int) -> Real:
        return constant(self.g, sign * sp.re(value))

    def first(self, order: int) -> tuple[Real, Real]:
        """Derivatives in mu of E p and E D, as plain numbers: used where no unit is large."""
        seen, closed = self.seen, self.sums.closed
        entire = closed.series[order]
        return self.sums.moment(entire, None), self.derivative(seen.own, seen.beyond, order, None)

    def mean_like(self, order: int, share: float = 1.0) -> Real:
        """``share`` of d^order/dmu^order of the mean."""
        seen = self.seen
        entire = self.sums.closed.series[order]
        row = seen.beyond
        for _ in range(order):
            row = row.derivative()
        unit = self.unit_of(entire, row)
        value = self.sums.moment(entire, unit) + self.derivative(seen.own, seen.beyond, order, unit)
        return self.sums.times_unit(share * value, unit)

    def square_like(self, order: int, entire: Moment, products: Real, share: float = 1.0) -> Real:
        """``share`` of d^order/dmu^order of E (f² - p²); plus ``entire``, less ``products``."""
        seen = self.seen
        row = seen.beyond_square
        for _ in range(order):
            row = row.derivative()
        unit = self.unit_of(entire, row)
        value = share * self.derivative(seen.own_square, seen.beyond_square, order, unit)
        value = value - self._little(products, unit)
        return self.sums.times_unit(self.sums.moment(entire, unit) + value, unit)

    def outputs(self) -> dict[str, Real]:
        p, d = self.first(0)
        products = d * madd(p, 2, d)
        return {"mean": self.mean_like(0), "var": self.square_like(0, self.sums.closed.outputs["var"], products)}

    def partials(self) -> dict[str, Real]:
        (p, d), (p1, d1), (p2, d2) = (self.first(k) for k in range(3))
        closed = self.sums.closed.outputs
        by_mu = 2 * madd(d1, p + d, d * p1)
        by_v = madd(d2, p + d, d * p2)
        return {
            "dmean_dmu": self.mean_like(1),
            "dmean_dvar": self.mean_like(2, 0.5),
            "dvar_dmu": self.square_like(1, closed["dvar_dmu"], by_mu),
            "dvar_dvar": self.square_like(2, closed["dvar_dvar"], by_v, 0.5),
        }


def build_growing(
    sides: Sides,
    branches: Branches,
    precision: Precision,
    outputs: tuple[str, ...],
    switch: float,
    edge: Edge,
) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of ``OUTPUTS`` or ``PARTIALS``, and what was fitted for it."""
    graph = Graph(("mean", "var"))
    writer = _Growing(graph, sides, branches, precision, switch, edge)
    writer.write(outputs)
    return graph, tuple(dict.fromkeys([*writer.fits, *writer.writer.fits, *writer.halves.fits]))
