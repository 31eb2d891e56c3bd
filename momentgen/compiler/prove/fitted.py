r"""Fitted polynomials as their proofs see them: over a strip of ζ, and there over a panel of t, as power series.

The variables are t = (mu - centre)/w and ζ = sqrt(least)/w, least the smallest w²; a strip is ζ = centre + half η,
abs(η) <= 1, a panel t = centre + radius τ, abs(τ) <= 1 (:mod:`momentgen.compiler.prove.panels`).  There a
fitted polynomial Σ c_ji Z_j Y_i is a sum of :class:`Part`, Z_j a polynomial in η and Y_i a power series in τ; what
the series leaves out is bounded by Cauchy's estimate, from Y_i over a ball around a disc of C.

:class:`InCells` is an output in float64, or a partial of it: the derivative

    w P_mu = P_t,    w² P_v = -(t P_t + ζ P_ζ)/2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from flint import acb, arb, arb_poly, arb_series, ctx, fmpq, fmpq_mat

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import Patch
from momentgen.compiler.prove.moments import PROVABLE
from momentgen.compiler.strategies.surfaces.fine_cells import Span, cut_at
from momentgen.compiler.strategies.surfaces.fine_output import falls
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces
from momentgen.compiler.strategies.surfaces.surface import Frame, decay, lines_of
from momentgen.compiler.toolchain.arrays import F64

IN_T = 40  # Taylor coefficients in t
_DISC = 4  # radius of Cauchy's disc over that of a panel in t
_Q = 1 / _DISC


@dataclass(frozen=True)
class Strip:
    """A range of ζ: ζ = centre + half η, |η| <= 1."""

    low: float
    high: float

    @property
    def centre(self) -> float:
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Part:
    """Over a panel, Σ_ji c_ji Z_j Y_i.

    Attributes:
        table: c, shape (Z, Y).
        series: of each Y in τ, shape (Y, IN_T).
    """

    table: F64
    series: F64


def _lift_of(f: Activation, output: str) -> int:
    """The power of w that a partial falls with, and its error: 0 of a mean, and of a slope that does not end at 0."""
    slope = lines_of(f)[0]
    return 0 if output == "mean" or (output == "dmean_dmu" and slope != 0) else decay(f)[output]


class InCells:
    """A polynomial in cells, times a power of ζ, or a partial of that.

    Args:
        f: the activation.
        fine: its polynomials.
        output: ``mean``, ``dmean_dmu`` or ``dmean_dvar``.

    Attributes:
        lift: the power of w that it is multiplied by.
        least: the smallest w².
        reach: the |t| from where on it changes no more.
        rows: between these ζ, from low to high, it is analytic.
        cuts: and between these t > 0.
    """

    def __init__(self, f: Activation, fine: FineSurfaces, output: str) -> None:
        self.frame, self.cells, self.shape = fine.frame, fine.cells, fine.outputs["mean"].shape
        self.lift, self.order = _lift_of(f, output), PROVABLE[output][0]
        self.falls = falls(f, "mean")
        self.power = self.falls + self.order - self.lift
        _, b, _, b2 = lines_of(f)
        self.dropped = b == b2  # whether it counts as 0 beyond the reach, and not as what it is there
        made = {patch: _in_chebyshev(patch) for patch in dict.fromkeys(fine.outputs["mean"].patches)}
        self.patches = fine.outputs["mean"].patches
        self.tables = [made[patch] for patch in self.patches]

    @property
    def least(self) -> float:
        return self.frame.least

    @property
    def reach(self) -> float:
        return self.frame.reach

    @property
    def rows(self) -> Sequence[Span]:
        return self.cells.rows

    @property
    def cuts(self) -> Sequence[float]:
        return [math.sqrt(cut_at(self.frame, x)) for x in self.cells.x]

    def row(self, zeta: float) -> int:
        """That of a ζ."""
        return sum(zeta > q for q in self.cells.q)

    def column(self, t: float) -> int:
        """That of a t."""
        side = sum(abs(t) > cut for cut in self.cuts)
        if self.cells.folded:
            return side
        count = len(self.cells.x)
        return count + side if t > 0 else count - side


class OverStrip:
    """It over a strip within a row."""

    def __init__(self, of: InCells, strip: Strip) -> None:
        self.of, self.first = of, of.row(strip.centre) * len(of.cells.columns)
        zeta, root = arb_poly([arb(strip.centre), arb(strip.half)]), 1 / arb(of.least).sqrt()
        scale, shift = of.patches[self.first].z
        z = (2 * zeta * zeta - 1 if of.shape.squared else 2 * zeta - 1) * arb(scale) + arb(shift)
        count = max(table.shape[0] for table in of.tables[self.first : self.first + len(of.cells.columns)])
        share = zeta if of.shape.by_q else arb_poly([1])
        plain, unit = [share * polynomial for polynomial in _chebyshev(z, count)], _power(zeta * root, of.power)
        self.weights: list[F64] = [_rows([row * unit for row in plain])]
        if of.order == 2:  # ζ d/dζ of ζ^falls times that
            steep = [of.falls * row + zeta * row.derivative() * (1 / arb(strip.half)) for row in plain]
            self.weights.append(_rows([row * unit for row in steep]))

    def panel(self, centre: float, radius: float, outside: bool, most: float) -> tuple[list[Part], float] | None:
        """The parts over a panel, ``outside`` beyond the reach, and what they leave out; None if more than ``most``."""
        of = self.of
        number = self.first + of.column(centre)
        if of.patches[number].z != of.patches[self.first].z:
            raise AssertionError("the cells of a row share its second variable")
        table = np.zeros((self.weights[0].shape[0], of.tables[number].shape[1]))
        table[: of.tables[number].shape[0]] = of.tables[number]
        if outside:
            return self.parts(table, self.beyond(number, centre), centre, radius), 0.0
        curve = _Curve(
            of.frame, of.shape.parity is not None, of.patches[number].y, table.shape[1], of.shape.parity or 0
        )
        if (sizes := _sizes(curve, centre, radius)) is None:
            return None
        whole = np.abs(table) @ sizes
        size = [float(whole @ np.abs(rows).sum(axis=1)) for rows in self.weights]
        # What series and their derivatives leave out: Σ q^k and Σ k q^(k - 1)/radius from IN_T on.
        left_out = size[0] * _Q**IN_T / (1 - _Q)
        if of.order:
            steep = size[0] * _Q ** (IN_T + 1) * (IN_T + 1 - IN_T * _Q) / (1 - _Q) ** 2 / radius
            left_out = steep
        if of.order == 2:  # and what the product with t carries beyond
            product = (abs(centre) + radius) * steep + size[0] * _Q**IN_T * IN_T
            left_out = (product + size[1] * _Q**IN_T / (1 - _Q)) / 2
        left_out *= 1 + 1e-9
        if not left_out <= most:
            return None
        return self.parts(table, _series(curve, centre, radius), centre, radius), left_out

    def parts(self, table: F64, series: F64, centre: float, radius: float) -> list[Part]:
        """Of an output's series those of the output, of P_t, or of -(t P_t + ζ P_ζ)/2."""
        order, plain = self.of.order, series[:, :IN_T]
        if order == 0:
            return [Part(table, plain)]
        slope = series[:, 1:] * np.arange(1, IN_T + 1) / radius
        if order == 1:
            return [Part(table, slope)]
        by_t = centre * slope
        by_t[:, 1:] += radius * slope[:, :-1]
        return [Part(table, -by_t / 2), Part(table, -plain / 2)]

    def beyond(self, number: int, centre: float) -> F64:
        """What Y_i are beyond the reach."""
        of = self.of
        scale, shift = of.patches[number].y
        count = of.tables[number].shape[1]
        flat = np.zeros((count, IN_T + 1))
        if of.dropped:
            return flat
        x = math.copysign(1.0, centre)
        base = arb(x) if of.shape.parity is None else arb(1)
        factor = arb(x) if of.shape.parity else arb(1)
        flat[:, 0] = [float((value * factor)[0]) for value in _chebyshev(arb_poly([base * scale + shift]), count)]
        return flat


# --- pieces ------------------------------------------------------------------------
@dataclass(frozen=True)
class _Curve:
    """What a polynomial is a sum of, as functions of t.

    Chebyshev polynomials of 2x² - 1 (``even``) or of x, ``count`` of them, each scaled and shifted by ``y`` first,
    times x where ``parity`` is 1.
    """

    frame: Frame
    even: bool
    y: tuple[float, float]
    count: int
    parity: int


@lru_cache(maxsize=65536)
def _sizes(curve: _Curve, centre: float, radius: float) -> F64 | None:
    """Bounds over the disc of Cauchy's estimate; None where it reaches a pole."""
    bend, largest = arb(curve.frame.bend), arb(curve.frame.largest)
    disc = acb(arb(centre, radius * _DISC), arb(0, radius * _DISC))
    # s = t/sqrt(kappa² + t²), 1/sqrt(kappa²/t² + 1) where balls are closer so: that is nearly constant far out
    far = abs(centre) > max(2 * radius * _DISC, curve.frame.bend)
    bottom = bend * bend / (disc * disc) + 1 if far else disc * disc + bend * bend
    if not bottom.real > 0:
        return None
    x = (math.copysign(1.0, centre) / bottom.sqrt() if far else disc / bottom.sqrt()) / largest
    square = (1 / bottom if far else disc * disc / bottom) / (largest * largest)
    scale, shift = map(arb, curve.y)
    y = (x if not curve.even else 2 * square - 1) * scale + shift
    # |T_i(y)| <= rho^i on the ellipse of foci -1 and 1 through y
    size = (abs(y - 1) + abs(y + 1)) / 2
    factor = abs(x) if curve.parity else arb(1)
    if not (size.is_finite() and factor.is_finite()):
        return None
    rho = float(size.upper())
    rho += math.sqrt(max(rho * rho - 1, 0.0)) * (1 + 1e-9)
    return np.asarray(float(factor.upper()) * rho ** np.arange(curve.count) * (1 + 1e-9))


@lru_cache(maxsize=8192)
def _series(curve: _Curve, centre: float, radius: float) -> F64:
    """Power series in τ, one coefficient more than IN_T."""
    bend, largest = arb(curve.frame.bend), arb(curve.frame.largest)
    scale, shift = map(arb, curve.y)
    cap = ctx.cap
    try:
        ctx.cap = IN_T + 1
        t = arb_series([arb(centre), arb(radius)], IN_T + 1)
        over = 1 / (t * t + bend * bend)
        x = t * over.sqrt() / largest
        base = x if not curve.even else 2 * t * t * over / (largest * largest) - 1
        base = base * scale + shift
        before = x if curve.parity else arb_series([arb(1)], IN_T + 1)
        rows, now = [], before * base
        for _ in range(curve.count):
            rows.append([float(before[i]) for i in range(IN_T + 1)])
            before, now = now, 2 * base * now - before
    finally:
        ctx.cap = cap
    return np.array(rows)


def _in_chebyshev(patch: Patch) -> F64:
    """A patch's table for Chebyshev polynomials of its variables, each number rounded once."""
    most = max(map(len, patch.table))
    rows = [[fmpq(*float(c).as_integer_ratio()) for c in row] + [fmpq(0)] * (most - len(row)) for row in patch.table]
    powers = fmpq_mat(len(rows), most, [c for row in rows for c in row])
    table = _of_powers(len(rows)).transpose() * powers * _of_powers(most)
    return np.array([[float(arb(table[j, i])) for i in range(most)] for j in range(len(rows))])


@lru_cache
def _of_powers(count: int) -> fmpq_mat:
    """Row n: x^n as a sum of Chebyshev polynomials."""
    rows = [[fmpq(0)] * count for _ in range(count)]
    for n in range(count):
        for k in range(n // 2 + 1):
            rows[n][n - 2 * k] = fmpq(math.comb(n, k), 2 ** (n - 1) if n else 1) / (2 if 2 * k == n and n else 1)
    return fmpq_mat(count, count, [c for row in rows for c in row])


def _chebyshev(z: arb_poly, count: int) -> list[arb_poly]:
    found = [arb_poly([1]), z]
    while len(found) < count:
        found.append(2 * z * found[-1] - found[-2])
    return found[:count]


def _power(base: arb_poly, n: int) -> arb_poly:
    """base^n, n >= 0."""
    total = arb_poly([1])
    for _ in range(n):
        total = total * base
    return total


def _rows(polynomials: Sequence[arb_poly]) -> F64:
    """Their coefficients, padded with zeros, each rounded once."""
    rows = [[float(c) for c in polynomial.coeffs()] for polynomial in polynomials]
    most = max(1, *map(len, rows))
    return np.array([[*row, *[0.0] * (most - len(row))] for row in rows])
