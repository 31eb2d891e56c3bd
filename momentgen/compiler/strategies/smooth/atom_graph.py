r"""Moments of a sum of atoms on a graph of real operations: a global form and, for smooth f, a local one.

With u = -|mu - centre|, f = near line + F̃(u) and D_j = d^j E F̃/du^j, all of them sums of the same atoms
(:mod:`momentgen.compiler.fit.atoms`), u-slope a of the near line and B_j = d^j E F̃²/du^j from a fit of its own,

    global   V = a² v + 2 a v D_1 + B_0 - D_0²                       v >= v*
    local    V = Σ_{k>=1} v^k/k! (a [k=1] + D_k)²                     v < v*

The local form is the Hermite expansion of Var f: every term is positive, nothing cancels as v -> 0.  Atoms are seen
from their tail only, t = |u|/w >= 0, w² = v + tau, through exp(-t²/2) and fitted polynomials,

    T_-2 = w² φ J_2,   T_-1 = w φ J_1,   T_0 = φ J_0,   T_1 = φ/w,   T_(n+1) = (t/w) T_n - (n - 1)/w² T_(n-1).

On the right side of the centre u runs the other way: coefficients of even order change sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mpmath
import numpy as np

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Line
from momentgen.compiler.ir.graph import Graph, Real, horner, madd, select, sqrt
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.strategies.kit import DENSITY, Precision, checked, like, short_exp
from momentgen.compiler.strategies.mills import CENTRE, core
from momentgen.compiler.toolchain.arrays import F64

_SHORT = 0.05  # v* below which the local form takes f's length as its unit


@dataclass(frozen=True, eq=False)
class AtomSum:
    """f by atoms.

    Attributes:
        centre: a float32 number.
        left, right: the lines, in x.
        taus: variances of the atoms, at v = 0.
        mean: coefficients of F̃ from the left, shape (K, orders).
        second: coefficients of F̃² from the left and from the right, shape (K, orders) each.
        lows: the lowest order in ``mean`` and in ``second``.
        switch: v*.
        terms: how many terms the local form has.
        bounded: whether both lines are level.
    """

    centre: float
    left: Line
    right: Line
    taus: tuple[float, ...]
    mean: F64
    second: tuple[F64, F64]
    lows: tuple[int, int]
    switch: float
    terms: int

    @property
    def bounded(self) -> bool:
        """Whether both lines are level."""
        return self.left.slope == 0 == self.right.slope

    def grows(self, atom: int) -> bool:
        """Whether the mean contains an atom in an order that grows with sigma."""
        return self.lows[0] < 0 and bool(self.mean[atom, : -self.lows[0]].any())


def mills_ratio(precision: Precision, n: int, u: Real) -> tuple[Real, Polynomial]:
    """J_n(t)/sqrt(2 pi), u = 1/(1 + t/4), and what was fitted."""
    fitted = core(n, precision.reach, precision.fit)
    value = horner(u - CENTRE, fitted.coefficients)
    for _ in range(n + 1):
        value = value * u
    return value, fitted


class SurrogateWriter:
    """Writes the values that outputs and partials share.

    Args:
        graph: with inputs ``mean`` and ``var``.
        atoms: f, or f smoothed by the variance v*.
        precision: of the graph.
        held: whether the global form is only right from v* on, and is evaluated at v* below.
    """

    def __init__(self, graph: Graph, atoms: AtomSum, precision: Precision, held: bool = False) -> None:
        self.g, self.atoms, self.precision = graph, atoms, precision
        g = graph
        self.fits: list[Polynomial] = []
        self.mu, self.v = g.input("mean"), checked(g.input("var"))
        distance = self.mu - atoms.centre
        self.negative = distance < 0
        size = abs(distance).named("|mean - centre|")
        self.near = self.v < atoms.switch
        self.little = select(self.near, self.v, 0)
        # Far out only what grows counts, and that is homogeneous: sums there must not overflow on the way.
        self.shrunk: tuple[Real, Real] | None = None
        self.wide = select(self.near, atoms.switch, self.v) if held else self.v
        if precision.scaled and atoms.left.slope != atoms.right.slope:
            huge = mpmath.mpf(2) ** 100 < self.v
            down = select(huge, mpmath.mpf(2) ** -8, 1)
            up = select(huge, mpmath.mpf(2) ** 8, 1)
            self.shrunk = down, up
            self.wide = self.wide * down * down
            size = size * down
        self.size = size
        self.turn = select(self.negative, 1, -1).named("direction of u")
        self.tables = [self.atom(tau, atoms.grows(k)) for k, tau in enumerate(atoms.taus)]
        self.sums: dict[int, Real] = {}
        self.squares: dict[int, Real] = {}
        self.slope = self.by_side(atoms.left.slope, -atoms.right.slope)

    def by_side(self, left: Any, right: Any) -> Real:
        """A constant that depends on the side."""
        return select(self.negative, left, right)

    # --- atoms -------------------------------------------------------------------
    def atom(self, tau: float, grows: bool) -> dict[int, Real]:
        """T_n, as far as they are needed; started here, continued by :meth:`order`."""
        g, reach = self.g, self.g.const(self.precision.reach)
        w2 = self.wide + tau
        w = sqrt(w2)
        r = 1 / w
        raw = self.size * r
        beyond = reach < raw
        t = select(beyond, reach, raw)
        if self.precision.lean:
            w, direct = w2 * r, t * t
            h = direct
        else:  # not t², which would double the rounding of the root in the exponent
            direct = self.size * (1 / w2) * self.size
            h = select(beyond, mpmath.mpf(self.precision.reach) ** 2, direct)
        exponent = h * -0.5
        e = short_exp(self.precision.scaled, exponent)
        nearer, farther = madd(t, 0.25, 1), h + 1
        if min(self.atoms.lows) < 0 and self.precision.lean:
            both = 1 / (nearer * farther)
            u, over = both * farther, both * nearer
        else:
            u, over = 1 / nearer, None
        density = g.const(DENSITY)
        table: dict[int, Real] = {}
        if min(self.atoms.lows) < 0:
            # (1 + t²) J_1 = 1 - 2 t J_2 and J_0 = 2 J_2 + t J_1: nothing cancels, and J_1 is exact at t = 0.
            j2, two = self.mills(2, u), g.const(2)
            over = 1 / farther if over is None else over
            j1 = madd(-(t * two), j2, density) * over
            j0 = madd(t, j1, j2 * two)
            table = {-2: w2 * (e * j2), -1: w * (e * j1), 0: e * j0}
            if grows:  # what the mean far from the centre, of the order of sigma, owes its last digits to
                self.g.suspect(w2, w, r, t, direct, h, exponent, e, j1, e * j1, table[-1], table[0])
                self.g.suspect(*direct.args, *j1.args, e.args[0])
        elif min(self.atoms.lows) == 0:
            table[0] = e * self.mills(0, u)
        table[1] = e * density * r
        table[100] = t * r  # u/w² and 1/w² of the recursion
        table[101] = r * r
        return table

    def mills(self, n: int, u: Real) -> Real:
        """J_n(t)/sqrt(2 pi), u = 1/(1 + t/4)."""
        value, fitted = mills_ratio(self.precision, n, u)
        self.fits.append(fitted)
        return value

    def order(self, atom: int, n: int) -> Real:
        """T_n of an atom."""
        table, g = self.tables[atom], self.g
        if n not in table:
            before, earlier = self.order(atom, n - 1), (self.order(atom, n - 2) if n > 2 else g.const(0))
            last = -(n - 2) * table[101] * earlier
            table[n] = madd(table[100], before, last)
        return table[n]

    def total(self, coefficients: F64, low: int, shift: int, parity: int | None = None) -> Real | None:
        """Σ c_kn T_(n + shift), of the orders of one parity if asked; None where there are none."""
        g, found = self.g, None
        # High orders first: they are small, and what rounding costs grows with the sum so far.
        for n in reversed(range(low, low + coefficients.shape[1])):
            for k, c in enumerate(coefficients[:, n - low].tolist()):
                if c == 0 or (parity is not None and n % 2 != parity):
                    continue
                term = self.order(k, n + shift)
                found = c * term if found is None else madd(c, term, found)
                if shift == 0 and n <= 0 and parity is not None:
                    g.suspect(found)
        return found

    def d(self, j: int) -> Real:
        """D_j."""
        if j not in self.sums:
            g = self.g
            odd, even = (self.total(self.atoms.mean, self.atoms.lows[0], j, parity) for parity in (1, 0))
            turned = None if even is None else self.turn * even
            if odd is None or turned is None:
                found = odd if odd is not None else turned
                value = g.const(0) if found is None else found
            else:
                value = odd + turned
            self.sums[j] = value.named(f"D_{j}: derivative {j} of the mean less its line")
        return self.sums[j]

    def b(self, j: int) -> Real:
        """B_j."""
        if j not in self.squares:
            g = self.g
            left, right = self.atoms.second
            low = self.atoms.lows[1]
            if np.array_equal(left, right):
                value = self.total(left, low, j)
                result = g.const(0) if value is None else value
            else:
                result = g.const(0)
                for k in range(len(left)):
                    for i, n in enumerate(range(low, low + left.shape[1])):
                        c = self.by_side(float(left[k, i]), float(right[k, i]))
                        if c.constant != 0:
                            result = madd(c, self.order(k, n + j), result)
            self.squares[j] = result.named(f"B_{j}: derivative {j} of the mean square less its line")
        return self.squares[j]

    # --- outputs -----------------------------------------------------------------
    def mean(self) -> Real:
        """near line + D_0."""
        g, atoms = self.g, self.atoms
        d0 = self.d(0)
        if self.shrunk is not None:
            d0 = d0 * self.shrunk[1]
        offset = self.by_side(atoms.left.offset, atoms.right.offset)
        slope = self.by_side(atoms.left.slope, atoms.right.slope)
        line = madd(slope, self.mu, offset)
        mean = line + d0
        g.suspect(d0)  # not the line: a second word of a sum that overflows would be NaN
        return mean

    def gain(self, k: int) -> Real:
        """D_k with the line's slope."""
        return self.slope + self.d(1) if k == 1 else self.d(k)

    def global_variance(self) -> Real:
        d0, d1 = self.d(0), self.d(1)
        var = self.b(0) - d0 * d0
        if not self.atoms.bounded:
            inner = madd(self.slope, self.slope, self.slope * 2 * d1)
            var = madd(self.wide, inner, var)
        gain = self.gain(1)
        floor = self.wide * gain * gain
        var = select(var < floor, floor, var)
        if self.shrunk is not None:
            var = var * self.shrunk[1] * self.shrunk[1]
        return var

    def global_partials(self) -> dict[str, Real]:
        a, v = self.slope, self.wide
        d0, d1, d2 = self.d(0), self.d(1), self.d(2)
        two, half = self.g.const(2), self.g.const(0.5)
        by_mu = madd(-2 * d0, d1, self.b(1))
        by_v = madd(-d0, d2, half * self.b(2))
        second = d2
        if not self.atoms.bounded:
            twice = two * a
            by_mu = madd(twice, v * d2, by_mu)
            by_v = madd(a, madd(v, self.d(3), madd(two, d1, a)), by_v)
        if self.shrunk is not None:
            by_mu, second = by_mu * self.shrunk[1], d2 * self.shrunk[0]
        return {
            "dmean_dmu": self.gain(1),
            "dmean_dvar": half * second,
            "dvar_dmu": by_mu,
            "dvar_dvar": by_v,
        }

    def local_mean(self) -> Real:
        """The mean on either side of v*: where f is smooth, the same."""
        return self.mean()

    @cached_property
    def unit(self) -> mpmath.mpf:
        """A power of two near f's length where that is short: squares of high derivatives would overflow otherwise."""
        short = self.precision.scaled and self.atoms.switch < _SHORT
        return mpmath.mpf(2) ** round(math.log2(self.atoms.switch) / 2) if short else mpmath.mpf(1)

    def local_gain(self, k: int) -> Real:
        """unit^(k-1) D_k, with the line's slope."""
        gain = self.gain(k)
        return gain if k == 1 or self.unit == 1 else gain * self.unit ** (k - 1)

    def local_step(self, k: int) -> Real:
        """v/(k unit²)."""
        return self.little * (1 / (k * self.unit**2))

    def local_variance(self) -> Real:
        """v (D_1² + v/2 (D_2² + v/3 (...)))."""
        total = self.g.const(0)
        for k in range(self.atoms.terms, 0, -1):
            d = self.local_gain(k)
            total = madd(d, d, self.local_step(k + 1) * total)
        return self.little * total

    def local_partials(self) -> dict[str, Real]:
        g, v = self.g, self.little
        by_mu, by_v = g.const(0), g.const(0)
        for k in range(self.atoms.terms, 0, -1):
            by_mu = madd(self.local_gain(k), self.local_gain(k + 1), self.local_step(k + 1) * by_mu)
        for k in range(self.atoms.terms, -1, -1):
            by_v = madd(self.local_gain(k + 1), self.local_gain(k + 1), self.local_step(k + 1) * by_v)
            if k:
                by_v = madd(self.local_gain(k), self.local_gain(k + 2), by_v)
        return {
            "dmean_dmu": self.gain(1),
            "dmean_dvar": 0.5 * self.d(2),
            "dvar_dmu": 2 / self.unit * v * by_mu,
            "dvar_dvar": by_v,
        }

    def write(self, outputs: tuple[str, ...]) -> None:
        """All outputs named."""
        g = self.g
        if outputs == OUTPUTS:
            var = select(self.near, self.local_variance(), self.global_variance())
            for name, value in (("mean", self.local_mean()), ("var", var)):
                g.output(name, like(value, self.mu))
            return
        far = self.global_partials()
        close: Mapping[str, Real] = self.local_partials()
        for name in PARTIALS:
            value = select(self.near, close[name], far[name])
            if name in ("dmean_dmu", "dvar_dmu"):
                value = self.turn * value
            g.output(name, value)
