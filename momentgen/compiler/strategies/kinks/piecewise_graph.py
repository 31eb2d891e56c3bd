r"""The local form of an f with kinks: the branch that mu is on, and what f differs from it beyond every kink.

For v < v*, with p the branch at mu, P_k = E p^(k) = Σ_j v^j/(2^j j!) p^(k+2j)(mu), and D = f - p, which lives beyond
the kinks and is a power series there,

    E D = Σ_kinks Σ_n d_n sigma^n I_n(-t),    t = |mu - kink|/sigma,   I_n(-t) = φ(t) J_n(t),
    mean = P_0 + D_0,    V = Σ_{k>=1} v^k/k! P_k (P_k + 2 D_k) + S_0 - D_0²,

D_k = d^k E D/dmu^k, S_k = d^k E D²/dmu^k.  Every term is of the order of L² v or exponentially small: nothing cancels.
Powers of 1/sigma occur only where the exact partials grow without bound (a kink, a jump).  Above v* polynomials of two
variables, which the caller writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import mpmath
import numpy as np
import sympy as sp

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph, Real, madd, select
from momentgen.compiler.ir.kit import (
    DENSITY,
    Precision,
    checked,
    deviation,
    integrals,
    like,
    mills_ratio,
    short_exp,
    within,
)
from momentgen.compiler.ir.stable import PARTIALS
from momentgen.compiler.strategies.kinks.branch_series import BranchSeries
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.rule.symbols import x


@dataclass(frozen=True, eq=False)
class Branches:
    """f by its branches and its kinks.

    Attributes:
        kinks: from left to right.
        branches: expressions in ``x``, one more than kinks.
        jumps: per kink, Taylor coefficients times n! about it of the branch on its right less that on its left.
        squares: per branch as the base and per kink, the same of (f - base)².
        closed: per kink, whether f takes the value of the branch on its left there.
        terms: k up to which the Hermite series of the variance runs.
        order: of the Taylor series of a branch, which decides how far P_k is expanded in v.
        ends: on the left and on the right, where a branch that is no polynomial is taken for its line.
        slopes: of these lines.
    """

    kinks: tuple[float, ...]
    branches: tuple[sp.Expr, ...]
    jumps: tuple[tuple[float, ...], ...]
    squares: tuple[tuple[tuple[float, ...], ...], ...]
    closed: tuple[bool, ...]
    terms: int
    order: int
    ends: tuple[float, float] = (-math.inf, math.inf)
    slopes: tuple[float, float] = (0.0, 0.0)


_LEAP = 1e-12  # the branches differ by that much but for rounding
#: (graph, a variance of at least v*, outputs) -> the outputs above v*, and what was fitted
Far = Callable[[Graph, Real, Sequence[str]], tuple[dict[str, Real], Sequence[Polynomial]]]


class PiecewiseWriter:
    """Writes both forms.

    Args:
        graph: with inputs ``mean`` and ``var``.
        branches: of f, for the local form.
        precision: of the graph.
        switch: v*.
        far: what writes the form above it; None for the local form alone.
    """

    def __init__(self, graph: Graph, branches: Branches, precision: Precision, switch: float, far: Far | None) -> None:
        self.g, self.branches, self.precision, self.far = graph, branches, precision, far
        one = graph.const(1)
        self.fits: list[Polynomial] = []
        self.mu, self.v = graph.input("mean"), checked(graph.input("var"))
        # The form not chosen is evaluated where it is finite.
        held = graph.const(switch)
        self.near = self.v < held
        self.wide = select(self.near, held, self.v)
        self.small = select(self.near, self.v, held)
        self.degenerate, self.sigma, self.inverse = deviation(self.small)
        self.gaps = [self.gap(kink) for kink in branches.kinks]
        self.below = [gap <= 0 if closed else gap < 0 for gap, closed in zip(self.gaps, branches.closed, strict=True)]
        self.turns = [select(b, one, -1) for b in self.below]
        #: whether f jumps somewhere
        self.leaps = any(len(row) > 0 and abs(row[0]) > _LEAP for row in branches.jumps)
        self._powers: dict[int, Real] = {0: one}
        self._p: dict[int, Real] = {}

    def gap(self, kink: float) -> Real:
        """mu - kink; near the kink exact, also where float32 does not hold it."""
        head = float(np.float32(kink))
        return self.mu - head - (kink - head)

    # --- branches ----------------------------------------------------------------
    def by_branch(self, values: Sequence[Real]) -> Real:
        """The value of the branch that mu is on."""
        chosen = values[-1]
        for below, value in reversed(list(zip(self.below, values[:-1], strict=True))):
            chosen = select(below, value, chosen)
        return chosen

    def point(self, index: int) -> Real:
        """mu, held within a branch that is no polynomial: beyond it its functions might overflow."""
        if self.branches.branches[index].is_polynomial(x):
            return self.mu
        left, right = self.branches.ends
        low, high = (self.g.const(end) for end in (left, *self.branches.kinks, right)[index : index + 2])
        mu = select(self.mu < low, low, self.mu)
        return select(high < mu, high, mu)

    @cached_property
    def derivatives(self) -> list[Real]:
        """Those of the branch that mu is on, there."""
        rows, (left, right) = [], self.branches.slopes
        slopes = (left, *[0.0] * (len(self.branches.kinks) - 1), right)  # of the lines where mu is held
        for i, expr in enumerate(self.branches.branches):
            point = self.point(i)
            series = BranchSeries(point, self.branches.order + 1, self.precision, self.fits, self.centre(i))
            first, *rest = series.whole(expr)
            if not expr.is_polynomial(x):
                first = madd(slopes[i], self.mu - point, first)
            rows.append([first, *(math.factorial(n) * c for n, c in enumerate(rest, 1))])
        return [self.by_branch(row) for row in zip(*rows, strict=True)]

    def centre(self, index: int) -> float:
        """A float32 number amid a branch; of an outer one its kink."""
        ends = self.branches.kinks[max(index - 1, 0) : index + 1]
        return float(np.float32(sum(ends) / len(ends)))

    def p(self, k: int) -> Real:
        """P_k, of the derivatives that there are."""
        if k not in self._p:
            own = self.derivatives[k::2]
            total = own[-1] if own else self.g.const(0)
            for j in range(len(own) - 2, -1, -1):
                total = madd(self.small * (mpmath.mpf(1) / (2 * (j + 1))), total, own[j])
            self._p[k] = total
        return self._p[k]

    # --- kinks -------------------------------------------------------------------
    def power(self, n: int) -> Real:
        """sigma^n."""
        if n not in self._powers:
            g = self.g
            step, before = (self.sigma, n - 1) if n > 0 else (self.inverse, n + 1)
            value = self.power(before) * step
            if n <= -2 and self.precision.scaled:
                # 1/v overflows below 2^-127; capped there, gradients that contain it stay finite.
                cap = g.const(mpmath.mpf(2) ** 127 * (1 + mpmath.mpf(2) ** -20))
                value = select(cap < value, cap, value)
            self._powers[n] = value
        return self._powers[n]

    @cached_property
    def moments(self) -> list[dict[int, Real]]:
        """Per kink, I_n(-t) for n from -1 up to the longest series."""
        top = max(len(row) for row in (*self.branches.jumps, *(r for base in self.branches.squares for r in base))) - 1
        return [self.kink_moments(k, max(top, 1)) for k in range(len(self.gaps))]

    def kink_moments(self, index: int, top: int) -> dict[int, Real]:
        reach = self.g.const(self.precision.reach)
        size = abs(self.gaps[index])
        raw = size * self.inverse
        beyond = (reach < raw) | self.degenerate
        t = select(beyond, reach, raw).named(f"|mean - {self.branches.kinks[index]:.6g}|/sigma")
        h = t * t
        exponent = h * -0.5
        e = short_exp(self.precision.scaled, exponent)
        self.g.suspect(*self.sigma.args, *self.inverse.args, self.gaps[index], size, raw, t, h, exponent, e)
        # Beyond the reach, and at v = 0, exactly nothing: a jump's square may be large beside the smallest variances.
        e = select(beyond, 0, e)
        u = 1 / madd(t, 0.25, 1)
        second, fitted = mills_ratio(self.precision, 2, u)
        self.fits.append(fitted)
        j = integrals(t, h, second, max(top, 2))
        density = e * DENSITY
        table = {n: e * value for n, value in enumerate(j)}
        table[-1] = density
        table[1000] = t
        return table

    def moment(self, kink: int, n: int) -> Real:
        """I_n(-t); derivatives of phi for n < -1."""
        table = self.moments[kink]
        if n not in table:
            m = -n - 1  # phi^(m) at -t: A_(m) = t A_(m-1) - (m - 1) A_(m-2)
            before = self.moment(kink, n + 1)
            value = table[1000] * before
            if m > 1:
                value = madd(-(m - 1), self.moment(kink, n + 2), value)
            table[n] = value
        return table[n]

    def with_term(self, total: Real, factor: Real, power: int, moment: tuple[int, int]) -> Real:
        """total + factor sigma^power I_n at a kink."""
        return madd(factor, self.power(power) * self.moment(*moment), total)

    def jump_sum(self, rows: Sequence[Sequence[Real]], k: int, extra: int) -> Real:
        """sigma^extra times derivative k of Σ_kinks Σ_n c_n sigma^n I_n, seen from mu."""
        g, total = self.g, self.g.const(0)
        for kink, row in enumerate(rows):
            odd, even = g.const(0), g.const(0)
            for n, c in reversed(list(enumerate(row))):
                if c.constant == 0:
                    continue
                if n % 2:
                    odd = self.with_term(odd, c, n - k + extra, (kink, n - k))
                else:
                    even = self.with_term(even, c, n - k + extra, (kink, n - k))
            # Even orders change sign with the side, and so does every derivative.
            turn = self.turns[kink]
            part = turn * odd + even if k % 2 else odd + turn * even
            total = total + part
        return total

    def dd(self, k: int, extra: int = 0) -> Real:
        """sigma^extra D_k."""
        g = self.g
        return self.jump_sum([[g.const(c) for c in row] for row in self.branches.jumps], k, extra)

    def ss(self, k: int) -> Real:
        """S_k."""
        g, squares = self.g, self.branches.squares
        rows = []
        for kink in range(len(self.branches.kinks)):
            length = max(len(base[kink]) for base in squares)
            padded = [list(base[kink]) + [0.0] * (length - len(base[kink])) for base in squares]
            rows.append([self.by_branch([g.const(row[n]) for row in padded]) for n in range(length)])
        return self.jump_sum(rows, k, 0)

    # --- outputs -----------------------------------------------------------------
    def local_variance(self) -> Real:
        two, d0 = self.g.const(2), self.dd(0)
        total = self.ss(0) - d0 * d0
        for k in range(self.branches.terms, 0, -1):
            p = self.p(k)
            if p.constant == 0:
                continue
            # v^k/k! P_k (P_k + 2 D_k), the powers of sigma shared out so that none is negative
            inner = madd(self.power(k), p, two * self.dd(k, k))
            total = madd((mpmath.mpf(1) / math.factorial(k)) * (self.power(k) * p), inner, total)
        return select(total < 0, 0, total)

    def local_partials(self) -> dict[str, Real]:
        g, two, half = self.g, self.g.const(2), self.g.const(0.5)
        d0 = self.dd(0)
        by_mu = madd(-2 * d0, self.dd(1), self.ss(1))
        by_v = madd(-d0, self.dd(2), half * self.ss(2))
        for k in range(self.branches.terms, -1, -1):
            p, p1, p2 = self.p(k), self.p(k + 1), self.p(k + 2)
            w = g.const(mpmath.mpf(1) / math.factorial(k))
            power = self.power(2 * k)
            # by_v: v^k/k! (P_k+1 (P_k+1 + 2 D_k+1) + P_k P_k+2 + P_k+2 D_k + P_k D_k+2), the last three for k >= 1
            if p1.constant != 0:
                inner = madd(power, p1, two * self.dd(k + 1, 2 * k))
                by_v = madd(w * p1, inner, by_v)
            if k == 0:
                continue
            if p2.constant != 0:
                by_v = madd(w * p2, madd(power, p, self.dd(k, 2 * k)), by_v)
            if p.constant != 0:
                by_v = madd(w * p, self.dd(k + 2, 2 * k), by_v)
                by_mu = madd(two * w * p, madd(power, p1, self.dd(k + 1, 2 * k)), by_mu)
            if p1.constant != 0:
                by_mu = madd(two * w * p1, self.dd(k, 2 * k), by_mu)
        return {
            "dmean_dmu": self.p(1) + self.dd(1),
            "dmean_dvar": half * (self.p(2) + self.dd(2)),
            "dvar_dmu": by_mu,
            "dvar_dvar": by_v,
        }

    def write(self, outputs: tuple[str, ...]) -> None:
        if outputs == PARTIALS:
            close = self.local_partials()
        else:
            close = {"mean": self.p(0) + self.dd(0), "var": self.local_variance()}
        far = close
        if self.far is not None:
            far, fits = self.far(self.g, self.wide, outputs)
            self.fits += fits
        for name in outputs:
            value = select(self.near, close[name], far[name])
            if name not in PARTIALS:
                value = like(value, self.mu)
            elif self.leaps and self.precision.scaled:  # a jump over sigma, squared, may be more
                value = within(value, LARGEST)
            self.g.output(name, value)


def build_piecewise(
    branches: Branches, precision: Precision, outputs: tuple[str, ...], switch: float, far: Far | None = None
) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of ``OUTPUTS`` or ``PARTIALS``, and what was fitted for it; without ``far`` of the local form alone."""
    graph = Graph(("mean", "var"))
    writer = PiecewiseWriter(graph, branches, precision, switch, far)
    writer.write(outputs)
    return graph, tuple(writer.fits)
