r"""Panels in two variables: the difference of a fitted polynomial and a sum of atoms as a Taylor polynomial, bounded.

The variables are t = (mu - centre)/w and ζ = sqrt(c)/w; see :mod:`momentgen.compiler.stabilise.surface_error`, which
cuts all inputs into strips of ζ, and these into panels of t.  What panels of one strip share is worked out once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from flint import acb, arb, arb_series, ctx

from momentgen.compiler.stabilise.atom_balls import cramer
from momentgen.compiler.stabilise.surface import Surface

__all__ = ["Panels", "Strip", "SurfaceDifference", "Terms"]

F64 = npt.NDArray[np.float64]
_IN_T = 34  # Taylor coefficients in t
_HEAT = 14  # orders of the heat equation
_INVERSE = 24  # Taylor coefficients of 1/ζ
_DISC = 4  # radius of Cauchy's disc over that of a panel in t
_NODES = 8  # Chebyshev nodes a coefficient: 1/cos(pi/16) = 1.02 in each variable
_ROUNDING = 2e-12  # of the sums below, relative to the sum of magnitudes: fewer than 18,000 roundings of 1.1e-16


@dataclass(frozen=True)
class Strip:
    """A range of ζ: ζ = centre + half η, |η| <= 1, and the reference of the expansion in ζ²."""

    low: float
    high: float
    reference: float

    @property
    def centre(self) -> float:
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def most(self) -> float:
        """Largest |ζ² - reference|."""
        return max(self.high**2 - self.reference, self.reference - self.low**2) * (1 + 1e-12)


@dataclass(frozen=True)
class Terms:
    """Atoms of one variance, as functions of t: Σ_n c_n (ζ/sqrt c)^n T_n(t; 1 + beta ζ²)."""

    beta: float
    coefficients: Mapping[int, float]

    def width(self, z: float) -> float:
        """The variance 1 + beta z."""
        return 1 + self.beta * z


@dataclass(frozen=True, eq=False)
class SurfaceDifference:
    """Constant + (ζ/sqrt c)^power polynomial - atoms, all over (ζ/sqrt c)^lift.

    Attributes:
        surface: whose polynomial it is.
        terms: the atoms.
        constant: of the lines.
        power: of the polynomial, less ``lift``.
        lift: see above; the atoms' orders are at least that.
        dropped: whether the polynomial is 0 beyond the reach, and not what it is there.
        allowed: what a panel may leave out.
    """

    surface: Surface
    terms: tuple[Terms, ...]
    constant: float
    power: int
    lift: int
    dropped: bool
    allowed: float

    @property
    def c(self) -> float:
        """Of w² = v + c."""
        return self.surface.frame.c

    @property
    def tables(self) -> tuple[F64, F64]:
        """Coefficients of the even and of the odd part, [power of z, power of y]."""
        return _table(self.surface.fit.even), _table(self.surface.fit.odd)


class Panels:
    """What a strip's panels share: for each variance and order m, the polynomial in η that multiplies T_m."""

    def __init__(self, of: SurfaceDifference, strip: Strip, far: float) -> None:
        self.of, self.strip, self.far, self.coefficients = of, strip, far, of.tables
        self.zeta = np.array([strip.centre, strip.half])
        self.left_out: list[tuple[float, float]] = []  # A and B: of the expansion in ζ, A exp(-B t²)
        pairs = [self.weighed(term) for term in of.terms]
        fit = self.of_polynomial(self.zeta)
        rows = [*(row for part in fit for row in part), *(row for pair in pairs for row in pair[0].values())]
        self.count = max(row.size for row in rows)
        self.fit = [np.stack([_padded(row, self.count) for row in part]) for part in fit]
        #: by variance: the orders, and what multiplies each, with its sign and without, shape (orders, powers of η)
        self.orders = [np.array(sorted(weight)) for weight, _ in pairs]
        self.tables = [
            [np.stack([_padded(rows[m], self.count) for m in sorted(rows)]) for rows in pair] for pair in pairs
        ]
        widths = [term.width(strip.reference) for term in of.terms]
        #: A and B again: of the expansion in t, over radius^_IN_T; and of all that an atom of t < 0 gives
        self.in_t = np.array(
            [(self.most(sizes, q2, _IN_T), 1 / (4 * q2)) for q2, (_, sizes) in zip(widths, pairs, strict=True)]
        )
        self.all = [(self.most(sizes, q2, 0), 1 / (4 * q2)) for q2, (_, sizes) in zip(widths, pairs, strict=True)]
        self.rest = np.array(self.left_out)

    @staticmethod
    def most(sizes: Mapping[int, F64], q2: float, further: int) -> float:
        """A bound of Σ_m size_m |T_(m + further)(-|t|; q²)|/further!, but for exp(-t²/4q²)."""
        factorial = math.factorial(further)
        return sum(
            float(row.sum()) * (_cramer(m + further) * _root(q2, m + further) / factorial) * (1 + 1e-9)
            for m, row in sizes.items()
        )

    def weighed(self, term: Terms) -> tuple[dict[int, F64], dict[int, F64]]:
        """By order m, what multiplies T_m; and the same of the magnitudes of all that it is a sum of."""
        strip, zeta, root, lift = self.strip, self.zeta, math.sqrt(self.of.c), self.of.lift
        delta = np.convolve(zeta, zeta)
        delta[0] -= strip.reference
        weight: dict[int, F64] = {}
        size: dict[int, F64] = {}
        for n, c in term.coefficients.items():
            about_zero = n == -1 and strip.reference == 0.0
            factor = self.inverse() * root if n == -1 else _power(zeta / root, n - lift)
            power, step = np.ones(1), 1.0
            for j in range(_HEAT):
                row = np.convolve(power, factor)
                if about_zero:  # (ζ²)^j/ζ; the terms of j = 0 add up to 0
                    row = _power(zeta, 2 * j - 1) * root if j else np.zeros(1)
                m = n + 2 * j
                weight[m] = _sum(weight.get(m), c * step * row)
                size[m] = _sum(size.get(m), abs(c * step) * np.abs(row))
                power = np.convolve(power, delta)
                step *= term.beta / 2 / (j + 1)
            if about_zero:
                rest = strip.high ** (2 * _HEAT - 1) * root
            elif n == -1:
                rest = strip.most**_HEAT * root / strip.low
                off = (strip.half / strip.centre) ** _INVERSE / strip.low * root
                self.left_out.append((abs(c) * off * (1 + 1e-9) * self.largest(term, n)[0], 0.0))
            else:
                rest = strip.most**_HEAT * (strip.high / root) ** (n - lift)
            top, rate = self.largest(term, n + 2 * _HEAT)
            self.left_out.append((abs(c * step) * rest * (1 + 1e-9) * top, rate))
        return weight, size

    def inverse(self) -> F64:
        """1/ζ in powers of η; nothing about ζ = 0, where it is not asked for."""
        centre, half = self.zeta.tolist()
        if self.strip.reference == 0.0:
            return np.zeros(1)
        return np.asarray((-half / centre) ** np.arange(_INVERSE) / centre)

    def of_polynomial(self, zeta: F64) -> tuple[list[F64], list[F64]]:
        """What multiplies Σ_i c_ji y^i, and x times it, in powers of η."""
        of = self.of
        flip, unit = of.surface.flip, _power(zeta / math.sqrt(of.c), of.power)
        z = 2 * np.convolve(zeta, zeta) if flip else 2 * zeta
        z[0] -= 1
        parts = []
        for parity, table in enumerate(self.coefficients):
            share = zeta if (flip, parity) in ((1, 1), (-1, 0)) else np.ones(1)
            parts.append([np.convolve(np.convolve(_power(z, j), share), unit) for j in range(len(table))])
        return parts[0], parts[1]

    # --- one panel ---
    def panel(self, centre: float, radius: float, outside: bool) -> float | None:
        """A bound of |D| for |t - centre| <= radius; None where too much is left out."""
        of, allowed = self.of, self.of.allowed
        near = max(abs(centre) - radius, 0.0)
        rest = self.rest_of_atoms(near, radius)
        if rest > allowed / 2:
            return None
        fit = self.fit_series(centre, radius, outside)
        if fit is None:
            return None
        series, rest_of_polynomial = fit
        if rest_of_polynomial > allowed / 2:
            return None
        total, sizes = np.zeros((self.count, _IN_T)), np.zeros((self.count, _IN_T))
        scale = np.array([radius**i / math.factorial(i) for i in range(_IN_T)])
        enough = allowed / (100 * len(of.terms))
        for term, orders, (weight, size), (top, rate) in zip(of.terms, self.orders, self.tables, self.all, strict=True):
            low, dust = int(orders[0]), top * math.exp(-near * near * rate)
            if dust <= enough:  # for t < 0 nothing, else T_0 = 1 and T_-1 = t
                rest += dust
                values = np.zeros(int(orders[-1]) + _IN_T - low)
                if centre > 0 and low <= 0:
                    values[: 1 - low] = (centre, 1.0)[-1 - low :]
            else:
                values = _orders(centre, term.width(self.strip.reference), low, int(orders[-1]) + _IN_T)
            part = values[orders[:, None] - low + np.arange(_IN_T)] * scale
            total -= weight.T @ part
            sizes += size.T @ np.abs(part)
        total[0, 0] += of.constant
        for rows, table, powers in zip(self.fit, self.coefficients, series, strict=True):
            inner = table @ powers
            total += rows.T @ inner
            sizes += np.abs(rows).T @ (np.abs(table) @ np.abs(powers))
        rounding = _ROUNDING * float(sizes.sum())
        # High powers, where there is next to nothing, cost as much as others.
        size, small = np.abs(total), allowed / 4
        in_eta, in_t = (_kept(size.sum(axis=axis), small) for axis in (1, 0))
        rest += float(size.sum() - size[:in_eta, :in_t].sum()) * (1 + 1e-9)
        largest = float(np.abs(_nodes(in_eta).T @ total[:in_eta, :in_t] @ _nodes(in_t)).max())
        norm = (1 / math.cos(math.pi / (2 * _NODES))) ** 2 * (1 + 1e-9)
        return (largest + rounding) * norm + rounding + rest + rest_of_polynomial

    def rest_of_atoms(self, near: float, radius: float) -> float:
        """By both expansions, |t| >= near."""
        in_z = self.rest[:, 0] * np.exp(-near * near * self.rest[:, 1])
        in_t = self.in_t[:, 0] * np.exp(-near * near * self.in_t[:, 1])
        return float(in_z.sum() + in_t.sum() * radius**_IN_T) * (1 + 1e-9)

    def largest(self, term: Terms, order: int) -> tuple[float, float]:
        """A and B with |T_order(t; q²)| <= A exp(-B t²) over the strip; for order -1 and |t| <= far, B = 0."""
        ends = term.width(self.strip.low**2), term.width(self.strip.high**2)
        if order == -1:  # at most |t| + sqrt(q²/2 pi); with room for what the heat equation leaves out
            return self.far + math.sqrt(max(ends)), 0.0
        return _cramer(order) * min(ends) ** (-order / 2) * (1 + 1e-9), 1 / (4 * max(ends))

    def fit_series(self, centre: float, radius: float, outside: bool) -> tuple[tuple[F64, F64], float] | None:
        """Powers of y, and x times them, in powers of (t - centre)/radius; with what they leave out of the fit."""
        of = self.of
        counts = [table.shape[1] for table in self.coefficients]
        if outside:
            flat = [np.zeros((count, _IN_T)) for count in counts]
            if not of.dropped:
                for part, value in zip(flat, (1.0, math.copysign(1.0, centre)), strict=True):
                    part[:, 0] = value  # y = 1
            return (flat[0], flat[1]), 0.0
        series = _frame_series(of.surface.frame.bend, of.surface.frame.largest, centre, radius, max(counts))
        if series is None:
            return None
        even, odd, y, x = series
        sizes = [
            float((np.abs(table) @ y ** np.arange(n)).sum()) for table, n in zip(self.coefficients, counts, strict=True)
        ]
        unit = (self.strip.high / math.sqrt(of.c)) ** of.power
        most = (sizes[0] + x * sizes[1]) * unit * (1 + 1e-9)
        q = 1 / _DISC
        return (even[: counts[0]], odd[: counts[1]]), most * q**_IN_T / (1 - q)

    def beyond(self) -> float:
        """What is left to change for |t| > far."""
        strip, far, total = self.strip, self.far, 0.0
        root = math.sqrt(self.of.c)
        for term in self.of.terms:
            ends = term.width(strip.low**2), term.width(strip.high**2)
            for n, c in term.coefficients.items():
                if n == -1:
                    size = root * strip.high * abs(term.beta) / 2 * _cramer(1) / math.sqrt(min(*ends, 1.0))
                    decay = math.exp(-far * far / (4 * max(*ends, 1.0)))
                else:
                    size = (strip.high / root) ** (n - self.of.lift) * _cramer(n) * min(ends) ** (-n / 2)
                    decay = math.exp(-far * far / (4 * max(ends)))
                total += abs(c) * size * decay * (1 + 1e-9)
        return total


# --- pieces ------------------------------------------------------------------------
def _table(rows: tuple[tuple[float, ...], ...]) -> F64:
    """Coefficients [power of z, power of y]."""
    most = max(map(len, rows), default=1)
    return np.array([[*row, *[0.0] * (most - len(row))] for row in rows] or [[0.0]])


def _power(row: F64, n: int) -> F64:
    total = np.ones(1)
    for _ in range(n):
        total = np.convolve(total, row)
    return total


def _kept(sizes: F64, small: float) -> int:
    """How many of the first there are before the rest sum to less than ``small``."""
    return max(1, int(np.count_nonzero(np.cumsum(sizes[::-1]) > small)))


def _padded(row: F64, count: int) -> F64:
    return np.concatenate([row, np.zeros(count - row.size)])


def _sum(a: F64 | None, b: F64) -> F64:
    if a is None:
        return b
    count = max(a.size, b.size)
    return _padded(a, count) + _padded(b, count)


@lru_cache
def _cramer(n: int) -> float:
    return float(cramer(n, 1.0).upper()) * (1 + 1e-15)


def _root(q2: float, n: int) -> float:
    """What T_n(t; q²) is a multiple of, that of variance 1 being given: q^-n."""
    return float(q2 ** (-n / 2))


@lru_cache
def _nodes(count: int) -> F64:
    nodes = np.cos((2 * np.arange(_NODES * count) + 1) * math.pi / (2 * _NODES * count))
    return np.asarray(nodes[None, :] ** np.arange(count)[:, None])


def _orders(t: float, q2: float, low: int, high: int) -> F64:
    """T_n(t; q²), low <= n < high, low >= -1, rounded."""
    tau, u = arb(q2), arb(t)
    w = tau.sqrt()
    h = u / w
    density = (-h * h / 2).exp() / (2 * arb.pi()).sqrt()
    big = (-h / arb(2).sqrt()).erfc() / 2
    table = {-1: w * (h * big + density), 0: big, 1: density / w}
    first, second = -u / tau, -1 / tau
    for n in range(1, high - 1):
        table[n + 1] = first * table[n] + (n - 1) * second * table[n - 1] if n > 1 else first * table[1]
    return np.array([float(table[n]) for n in range(low, high)])


@lru_cache(maxsize=4096)
def _frame_series(
    bend: float, largest: float, centre: float, radius: float, count: int
) -> tuple[F64, F64, float, float] | None:
    """Series of y^i and of x y^i, i < count, in (t - centre)/radius, and bounds of |y| and |x| on Cauchy's disc."""
    disc = acb(arb(centre, radius * _DISC), arb(0, radius * _DISC))
    bottom = disc * disc + arb(bend) ** 2
    if not bottom.real > 0:
        return None
    square = disc * disc / bottom / arb(largest) ** 2
    sizes = [abs(2 * square - 1), abs(square).sqrt()]
    if not all(size.is_finite() for size in sizes):
        return None
    cap = ctx.cap
    try:
        ctx.cap = _IN_T
        t = arb_series([arb(centre), arb(radius)], _IN_T)
        over = 1 / (t * t + arb(bend) ** 2)
        y = 2 * t * t * over / arb(largest) ** 2 - 1
        odd = t * over.sqrt() / arb(largest)
        rows: list[list[F64]] = [[], []]
        power = arb_series([arb(1)], _IN_T)
        for _ in range(count):
            for row, value in zip(rows, (power, power * odd), strict=True):
                row.append(np.array([float(value[i]) for i in range(_IN_T)]))
            power = power * y
    finally:
        ctx.cap = cap
    return np.array(rows[0]), np.array(rows[1]), float(sizes[0].upper()), float(sizes[1].upper())
