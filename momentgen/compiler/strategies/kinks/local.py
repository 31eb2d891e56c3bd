r"""Piecewise polynomials by the local form alone, at every variance: steps, and branches that grow faster than lines.

The local form of :mod:`momentgen.compiler.strategies.kinks.piecewise_graph` leaves out nothing of a polynomial.  What
it loses is what its kinks cancel at a sigma far above their distance; between steps, and around a single kink, they
cancel nothing that the tolerance sees.  Powers of sigma beyond float32 are multiplied onto what is small, one sigma at
a time, and all is computed of a 64th of f, so that no term leaves float32 before an output does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.ir.graph import Graph, Real, equal, madd, select
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.measure.growth import GrowthMeasure
from momentgen.compiler.measure.moments import measure_for
from momentgen.compiler.strategies.kinks.piecewise import branches_of
from momentgen.compiler.strategies.kinks.piecewise_graph import Branches, PiecewiseWriter
from momentgen.compiler.strategies.kit import NEAR32, NEAR64, Precision, largest, like, number
from momentgen.compiler.strategies.settled import closed_form_truth
from momentgen.compiler.strategies.tolerated import exact_variant, four_graphs, unmet_by_input
from momentgen.rule.symbols import x

_HIGHEST = 5  # powers of a branch: sigma's power in the variance is twice that
_SHARE = 2.0**-6  # of f, that is computed
_FLOAT32 = replace(NEAR32, reach=13.2)  # so far that the variance between steps is below 2^-126


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None; it is for steps, and polynomials steeper than lines."""
    if cause := unmet_by_input(derivation.rule):
        return cause
    if not derivation.kinks:
        return "expected kinks"
    pieces = derivation.pieces.pieces
    if not derivation.is_piecewise_polynomial or derivation.mean is None:
        return "expected branches that are polynomials"
    degrees = [_degree(p.expr) for p in pieces]
    if max(degrees) > _HIGHEST:
        return f"expected branches of degree at most {_HIGHEST}, got {max(degrees)}"
    if max(degrees) > 0 and max(degrees[0], degrees[-1]) < 2:
        return "expected steps, or an outer branch that grows faster than a line"
    return None


class _Writer(PiecewiseWriter):
    """The local form, powers of sigma a factor at a time: sigma^n may be beyond range where its product is not."""

    share = 1.0

    @cached_property
    def _scaled(self) -> dict[tuple[int, int], Real]:
        return {}

    def at_scale(self, n: int, value: Real) -> Real:
        """sigma^n times a value."""
        for _ in range(abs(n)):
            value = value * (self.sigma if n > 0 else self.inverse)
        return value

    def with_term(self, total: Real, factor: Real, power: int, moment: tuple[int, int]) -> Real:
        return total + self.at_scale(power, factor * self.moment(*moment))

    def scaled(self, k: int, n: int) -> Real:
        """sigma^n P_k, sigma first: P_k may be beyond range where that is not."""
        if (k, n) not in self._scaled:
            g, scale = self.g, self.at_scale(n, self.g.const(1))
            values = []
            for expr in self.branches.branches:
                total = g.const(0)
                for j in range(self.branches.order // 2, -1, -1):
                    row = sp.Poly(sp.diff(expr, x, k + 2 * j), x).all_coeffs()[::-1]
                    c = [scale * number(g, w) for w in row]
                    value = c[-1]
                    for w in reversed(c[:-1]):
                        value = madd(value, self.mu, w)
                    step = self.small * (mpmath.mpf(1) / (2 * (j + 1)))
                    total = madd(step, total, value)
                values.append(total)
            self._scaled[k, n] = self.by_branch(values)
        return self._scaled[k, n]

    def p(self, k: int) -> Real:
        return self.scaled(k, 0)

    def local_variance(self) -> Real:
        two, d0 = self.g.const(2), self.dd(0)
        total = self.ss(0) - d0 * d0
        for k in range(self.branches.terms, 0, -1):
            p = self.scaled(k, k)
            total = madd(self.weight(k) * p, madd(two, self.dd(k, k), p), total)
        return select(total < 0, 0, total)

    def local_partials(self) -> dict[str, Real]:
        g, two, half, d0 = self.g, self.g.const(2), self.g.const(0.5), self.dd(0)
        by_mu = madd(-2 * d0, self.dd(1), self.ss(1))
        by_v = madd(-d0, self.dd(2), half * self.ss(2))
        for k in range(self.branches.terms, -1, -1):
            w = g.const(self.weight(k))
            p, p1, p2 = (self.scaled(k + n, k) for n in range(3))
            d, d1, d2 = (self.dd(k + n, k) for n in range(3))
            by_v = madd(w * p1, madd(two, d1, p1), by_v)
            if k == 0:
                continue
            by_v = madd(w * p2, p + d, by_v)
            by_v = madd(w * p, d2, by_v)
            by_mu = madd(two * w * p, p1 + d1, by_mu)
            by_mu = madd(two * w * p1, d, by_mu)
        return {
            "dmean_dmu": self.p(1) + self.dd(1),
            "dmean_dvar": half * (self.p(2) + self.dd(2)),
            "dvar_dmu": by_mu,
            "dvar_dvar": by_v,
        }

    def write_held(self, outputs: tuple[str, ...], largest: float) -> None:
        """All outputs named, at most ``largest`` in size: that of their sign far out where terms leave no number."""
        g, values = self.g, self.local(outputs)
        for name in outputs:
            share = self.share**2 if name in ("var", "dvar_dmu", "dvar_dvar") else self.share
            value, (left, right) = 1 / share * values[name], self.signs(name)
            top, low = g.const(largest), g.const(-largest)
            # Where one side outgrows the other, all that overflows has its sign, whatever the terms left.
            over, under = (g.const(right * largest),) * 2 if left == right and self.share != 1 else (top, low)
            value = select(top < value, over, select(value < low, under, value))
            beyond = g.const(right * largest)
            if left != right:
                beyond = select(self.mu < 0, left * largest, beyond)
            value = select(equal(value, value), value, beyond)
            if name in OUTPUTS:
                value = like(value, self.mu, self.v)
            g.output(name, value)

    def signs(self, name: str) -> tuple[float, float]:
        """The signs of an output far to the left and to the right; that of the side that outgrows the other."""
        left, right = (_degree(self.branches.branches[k]) for k in (0, -1))
        signs = [_sign(self.branches.branches[k], side, name) for k, side in ((0, -1), (-1, 1))]
        return signs[0 if left >= right else 1], signs[1 if right >= left else 0]


def _degree(expr: sp.Expr) -> int:
    return int(sp.degree(expr, x)) if expr.has(x) else 0


def _sign(expr: sp.Expr, side: int, name: str) -> float:
    """The sign of an output of a polynomial far out on a side."""
    if name in ("var", "dvar_dvar"):
        return 1.0
    if name == "dvar_dmu":
        return float(side)
    power = _degree(expr) - (name == "dmean_dmu")
    return float(np.sign(side**power * (float(sp.Poly(expr, x).LC()) if expr.has(x) else 1.0)))


def _graph(
    branches: Branches, precision: Precision, outputs: tuple[str, ...], largest: float, share: float
) -> tuple[Graph, tuple[Polynomial, ...]]:
    graph = Graph(("mean", "var"))
    writer = _Writer(graph, branches, precision, largest, None)
    writer.share = share
    writer.write_held(outputs, largest)
    return graph, tuple(writer.fits)


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``."""
    rule = derivation.rule
    f: Activation = analyse(rule.name, derivation.pieces, {})
    truth = closed_form_truth(derivation)
    steps = all(not p.expr.has(x) for p in f.pieces)
    growth = GrowthMeasure.of(f)
    measure: Any = measure_for(f, truth) if steps else growth
    share = 1.0 if steps else _SHARE
    part = replace(f, pieces=f.pieces.map(lambda e: e * sp.Rational(share)))
    branches = branches_of(part, rule.f * sp.Rational(share), _HIGHEST)
    graphs, fits = four_graphs(
        lambda outputs, float64: _graph(branches, NEAR64 if float64 else _FLOAT32, outputs, largest(not float64), share)
    )
    wide = max(12.0 * f.length, 3 * (f.kinks[-1] - f.kinks[0]))
    stable = exact_variant(
        f,
        graphs,
        truth,
        measure,
        rigorous=None,
        aim=0.8,
        box={"mu": (f.centre - wide, f.centre + wide), "a": (-12.0, 12.0), "log2_var": (-40.0, 30.0)},
        fits=fits,
        facts={},
        doc="the branch at mu and its differences from the others beyond the kinks, in closed form at every variance",
    )
    yield stable if steps else replace(stable, facts={"length": f.length, "centre": f.centre})
