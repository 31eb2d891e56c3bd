r"""The local form of any f with kinks: Gauss-Legendre panels in z = (x - mu)/sigma, cut at the kinks, for v < v*.

With weights normalised to 1 and Δ_i = f(mu + sigma z_i) - f(mu),

    mean = f(mu) + E Δ,   V = E Δ² - (E Δ)²,

where nothing is lost: E Δ² is of the order of V, since mu itself lies amid the nodes.  Differences come without
cancellation from :mod:`momentgen.compiler.strategies.kinks.increments`, through the kinks between mu and x where there
are any.  Partials are by Stein's identities, f'' being what it is on the branches and J δ(x - kink) where the slope
jumps by J,

    dmean/dmu = E f',   dmean/dv = E f''/2,   dV/dmu = 2 Cov(f, f'),   dV/dv = E f'² + Cov(f, f'').

Above v* polynomials of two variables (:mod:`momentgen.compiler.strategies.kinks.two_forms`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import sympy as sp

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import Graph, Real, madd, select
from momentgen.compiler.ir.stable import PARTIALS
from momentgen.compiler.strategies.kinks.increments import Increments, plain
from momentgen.compiler.strategies.kinks.two_forms import Far, TwoForms
from momentgen.compiler.strategies.kit import DENSITY, Precision, short_exp
from momentgen.compiler.strategies.surfaces.surface import lines_of
from momentgen.rule.symbols import x


@dataclass(frozen=True)
class PanelRule:
    """How many nodes a panel has, and at how many standard deviations the outer ones end."""

    nodes: int
    end: float


class QuadratureWriter(TwoForms):
    """Writes both forms.

    Args:
        graph: with inputs ``mean`` and ``var``.
        f: continuous.
        branches: expressions in ``x``, one more than kinks.
        hold: |x| beyond which f is taken as its line.
        rule: of the panels.
        precision: of the graph.
        switch: v*.
        far: what writes the form above it; None for the local form alone.
    """

    def __init__(
        self,
        graph: Graph,
        f: Activation,
        branches: tuple[sp.Expr, ...],
        hold: float,
        rule: PanelRule,
        precision: Precision,
        switch: float,
        far: Far | None,
    ) -> None:
        super().__init__(graph, precision, switch, far, 2.0**75)  # more than any other
        self.f, self.kinks, self.rule = f, f.kinks, rule
        slopes = ([float(f.taylor(j, kink, 2)[1]) for j in (i, i + 1)] for i, kink in enumerate(f.kinks))
        #: per kink, by how much f' jumps
        self.slopes = [after - before for before, after in slopes]
        towards = [-1, *[0] * (len(branches) - 2), 1]
        self.branches = tuple(map(plain, branches, towards))
        self.derivatives = [
            [plain(sp.diff(b, x, n), end) for n in (1, 2)] for b, end in zip(self.branches, towards, strict=True)
        ]
        self.centres = _centres(f.kinks)
        edge = graph.const(float(np.float32(hold)))
        self.at = self.clamp(self.mu, -edge, edge)
        self.gaps = [self.gap(kink) for kink in f.kinks]  # kink - mu

    def gap(self, kink: float) -> Real:
        """kink - mu; near the kink exact, also where float32 does not hold it."""
        head = float(np.float32(kink))
        return head - self.at + (kink - head)

    def clamp(self, value: Real, low: Real, high: Real) -> Real:
        below = select(value < low, low, value)
        return select(high < below, high, below)

    def between(self, start: Real, step: Real, branch: int) -> Increments:
        """Expressions between two points of a branch."""
        return Increments(self.g, start, step, self.precision, self.fits, self.centres[branch])

    # --- where mu is among the branches --------------------------------------------
    @cached_property
    def bases(self) -> list[tuple[Real, Real]]:
        """Per branch: the point of it nearest to mu, and that point less mu."""
        zero = self.g.const(0)
        result = []
        for i in range(len(self.branches)):
            start, away = self.at, zero
            if i < len(self.kinks):  # not beyond the kink on its right
                right = self.gaps[i] < zero
                start = select(right, self.kinks[i], start)
                away = select(right, self.gaps[i], away)
            if i:
                left = zero < self.gaps[i - 1]
                start = select(left, self.kinks[i - 1], start)
                away = select(left, self.gaps[i - 1], away)
            result.append((start, away))
        return result

    def chain(self, exprs: Sequence[sp.Expr], jumps: Sequence[float]) -> tuple[list[Real], list[Real]]:
        """Of a function h by its branches and its jumps: h(base) - h(mu) a branch, h(kink-) - h(mu) a kink.

        Sums over the kinks between, of differences within branches.
        """
        g, zero = self.g, self.g.const(0)
        right = [zero < gap for gap in self.gaps]  # the kink is right of mu
        ups, totals = [], []
        for q, (gap, jump) in enumerate(zip(self.gaps, jumps, strict=True)):
            (start, away), (_, beyond) = self.bases[q], self.bases[q + 1]
            ups.append(self.between(start, gap - away, q).difference(exprs[q]))
            down = self.between(g.const(self.kinks[q]), beyond - gap, q + 1).difference(exprs[q + 1])
            totals.append(ups[-1] + jump + down)
        offsets = []
        for p in range(len(exprs)):
            offset = zero
            for q, total in enumerate(totals):
                part = (total, zero) if q < p else (zero, -total)
                offset = offset + select(right[q], *part)
            offsets.append(offset)
        return offsets, [offset + up for offset, up in zip(offsets, ups, strict=False)]

    # --- nodes -------------------------------------------------------------------
    @cached_property
    def changes(self) -> tuple[list[Real], list[Real]]:
        """f's offsets a branch, and f(kink) - f(mu) a kink."""
        return self.chain(self.branches, [0.0] * len(self.kinks))

    def expectations(self, derivatives: bool) -> list[Real]:
        """E Δ, E Δ², and with ``derivatives`` E Δ', E Δ'², E Δ Δ', E f'', E Δ f'', with Δ' = f' - f'(mu).

        Node by node: a sum over all nodes of what a first sum gave would hold them all at once.
        """
        end, zero = self.g.const(self.rule.end), self.g.const(0)
        ends = [-end, *(self.clamp(gap * self.inverse, -end, end) for gap in self.gaps), end]
        places, weights = np.polynomial.legendre.leggauss(self.rule.nodes)
        offsets = self.changes[0]
        slopes, slope_offsets = [row[0] for row in self.derivatives], offsets
        if derivatives:
            slope_offsets, _ = self.chain(slopes, self.slopes)
        totals, whole = [zero] * (7 if derivatives else 2), zero
        for i, branch in enumerate(self.branches):
            half = (ends[i + 1] - ends[i]) * 0.5
            middle = (ends[i + 1] + ends[i]) * 0.5
            start, away = self.bases[i]
            # A panel of a kink out of reach is empty: its nodes are at the kink, not beyond it.
            most = self.sigma * end
            away = self.clamp(away, -most, most)
            for place, weight in zip(places.tolist(), weights.tolist(), strict=True):
                z = madd(half, place, middle)
                share = half * weight * self.density(z)
                step = self.sigma * z - away
                between = self.between(start, step, i)
                change = offsets[i] + between.difference(branch)
                whole = whole + share
                rows = [share * change]
                values = [(share, change), (rows[0], change)]
                if derivatives:
                    slope = slope_offsets[i] + between.difference(slopes[i])
                    curve = self.between(start + step, zero, i).value(self.derivatives[i][1])
                    part = share * slope
                    values += [(share, slope), (part, slope), (part, change), (share, curve), (rows[0], curve)]
                totals = [madd(one, two, total) for (one, two), total in zip(values, totals, strict=True)]
        share = 1 / whole
        return [total * share for total in totals]

    def density(self, z: Real) -> Real:
        """exp(-z²/2)."""
        return short_exp(self.precision.scaled, z * z * -0.5)

    @cached_property
    def first(self) -> list[Real]:
        """E Δ and E Δ²."""
        return self.expectations(derivatives=False)

    def here(self, exprs: Sequence[sp.Expr]) -> Real:
        """A function at mu."""
        zero = self.g.const(0)
        values = [self.between(base, zero, i).value(exprs[i]) for i, (base, _) in enumerate(self.bases)]
        chosen = values[-1]
        for gap, value in reversed(list(zip(self.gaps, values[:-1], strict=True))):
            chosen = select(zero < gap, value, chosen)
        return chosen

    # --- outputs -----------------------------------------------------------------
    def local_mean(self) -> Real:
        """f at mu, or its line there, and what the panels add."""
        a, _, a2, _ = lines_of(self.f)
        slope = select(self.mu < self.f.centre, a, a2)
        return madd(slope, self.mu - self.at, self.here(self.branches)) + self.first[0]

    def local_variance(self) -> Real:
        """E Δ² - (E Δ)²."""
        shift, square = self.first
        value = square - shift * shift
        return select(self.degenerate | (value < 0), 0, value)

    def local_partials(self) -> dict[str, Real]:
        """By Stein's identities."""
        g, two, half = self.g, self.g.const(2), self.g.const(0.5)
        shift, _, turn, turns, both, bend, with_bend = self.expectations(derivatives=True)
        gain = self.here([row[0] for row in self.derivatives]) + turn
        by_mu = madd(-shift, turn, both)
        by_v = madd(gain, gain, turns - turn * turn)
        by_v = by_v + madd(-shift, bend, with_bend)
        reach = g.const(self.precision.reach)
        for gap, jump, height in zip(self.gaps, self.slopes, self.changes[1], strict=True):
            if abs(jump) < 1e-12:
                continue
            t = abs(gap * self.inverse)
            density = self.density(select(reach < t, reach, t))
            density = density * self.inverse * (DENSITY * jump)
            bend = bend + density
            by_v = madd(height - shift, density, by_v)
        return {
            "dmean_dmu": gain,
            "dmean_dvar": half * bend,
            "dvar_dmu": two * by_mu,
            "dvar_dvar": by_v,
        }

    def local(self, outputs: Sequence[str]) -> Mapping[str, Real]:
        """The outputs below v*."""
        if outputs == PARTIALS:
            return self.local_partials()
        return {"mean": self.local_mean(), "var": self.local_variance()}


def _centres(kinks: tuple[float, ...]) -> list[float]:
    """A float32 number amid each branch; of the outer ones their kink."""
    middles = [float(np.float32((low + high) / 2)) for low, high in pairwise(kinks)]
    return [float(np.float32(kinks[0])), *middles, float(np.float32(kinks[-1]))]
