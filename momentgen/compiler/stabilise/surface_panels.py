r"""Panels in two variables: the difference of a fitted polynomial and a sum of atoms as a Taylor polynomial, bounded.

The variables are t = (mu - centre)/w and ζ = sqrt(least)/w; see :mod:`momentgen.compiler.stabilise.surface_error`,
which cuts all inputs into strips of ζ, and these into panels of t.  What panels of one strip share is worked out once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from flint import arb, fmpq

from momentgen.compiler.stabilise.atom_balls import cramer
from momentgen.compiler.stabilise.fitted_panels import IN_T, Fitted, Strip

__all__ = ["Panels", "SurfaceDifference", "Terms"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
_HEAT = 30  # orders of the heat equation
_INVERSE = 28  # Taylor coefficients of 1/ζ
_TOGETHER = 16  # orders of atoms are asked for in multiples of it: outputs and their partials share them
_NODES = 10  # Chebyshev nodes a coefficient: 1/cos(pi/20) = 1.013 in each variable
#: of float64, with what is of second order; how many roundings there are in a power of ζ and in its product with one of
#: ζ² - reference, in each step of the heat equation, and in what else a coefficient is a product of
_UNIT, _POWERS, _STEPS, _REST = 2.0**-53 * (1 + 1e-9), 90, 9, 10


@dataclass(frozen=True)
class Terms:
    """Atoms of one variance, as functions of t: Σ_n c_n w^-n T_n(t; 1 + beta ζ²), w = sqrt(least)/ζ."""

    beta: float
    coefficients: Mapping[int, float]

    def width(self, z: float) -> float:
        """The variance 1 + beta z."""
        return 1 + self.beta * z


@dataclass(frozen=True, eq=False)
class SurfaceDifference:
    """Constant + polynomial - atoms, times w^lift.

    Attributes:
        fitted: the polynomial, already times w^lift.
        terms: the atoms.
        constant: of the lines; 0 where ``lift`` is positive.
        lift: see above; the atoms' orders are at least that, but for one of -1.
        allowed: what a panel may leave out.
    """

    fitted: Fitted
    terms: tuple[Terms, ...]
    constant: float
    lift: int
    allowed: float

    @property
    def least(self) -> float:
        """The smallest w²."""
        return self.fitted.least


class Panels:
    """What a strip's panels share: for each variance and order m, the polynomial in η that multiplies T_m."""

    def __init__(self, of: SurfaceDifference, strip: Strip, far: float) -> None:
        self.of, self.strip, self.far, self.fitted = of, strip, far, of.fitted.over(strip)
        self.zeta = np.array([strip.centre, strip.half])
        heats = [self.heat(term) for term in of.terms]
        self.steps = max(heats, default=1)
        self.left_out: list[tuple[float, float]] = []  # A and B: of the expansion in ζ, A exp(-B t²)
        powers = {n: self.powers(n - of.lift) for n in {n for term in of.terms for n in term.coefficients}}
        self.count = max([p.shape[1] for p, _ in powers.values()] + [w.shape[1] for w in self.fitted.weights])
        self.weights = [np.pad(part, ((0, 0), (0, self.count - part.shape[1]))) for part in self.fitted.weights]
        self.constant = of.constant * _power(self.zeta / math.sqrt(of.least), max(-of.lift, 0))
        self.sizes = [np.abs(part).sum(axis=1) for part in self.weights]
        every = [self.weighed(term, heat, powers) for term, heat in zip(of.terms, heats, strict=True)]
        #: of all variances and orders: what multiplies T_m, and where its derivatives are in a table of :func:`_orders`
        self.table = np.concatenate([table for _, table, _ in every])
        self.most_of_table = np.concatenate([sizes for _, _, sizes in every])
        self.which = np.repeat(np.arange(len(every)), [orders.size for orders, _, _ in every])
        first = np.concatenate([orders for orders, _, _ in every]) + 1
        self.orders = _TOGETHER * math.ceil((int(first.max(initial=0)) + IN_T) / _TOGETHER)
        self.places = (self.which * self.orders + first)[:, None] + np.arange(IN_T)
        widths = [term.width(strip.reference) for term in of.terms]
        #: A and B again: of the expansion in t, over radius^IN_T; and of all that an atom of t < 0 gives
        self.in_t, self.all = (
            np.array(
                [
                    (_most(orders, sizes, q2, k), 1 / (4 * q2))
                    for q2, (orders, _, sizes) in zip(widths, every, strict=True)
                ]
            )
            for k in (IN_T, 0)
        )
        self.rest = np.array(self.left_out)

    def powers(self, exponent: int) -> tuple[F64, F64]:
        """Of (ζ² - reference)^j (ζ/sqrt(least))^exponent in η, j < steps: coefficients, and their magnitudes summed."""
        strip, root = self.strip, math.sqrt(self.of.least)
        if exponent == -1 and strip.reference == 0.0:  # (ζ²)^j/ζ; the terms of j = 0 add up to 0
            rows = [np.zeros(1), *(_power(self.zeta, 2 * j - 1) * root for j in range(1, self.steps))]
            return _padded(rows), np.array([row.sum() for row in rows])
        delta = np.convolve(self.zeta, self.zeta)
        delta[0] = _less(strip.centre, strip.reference)
        factor = self.inverse() * root if exponent == -1 else _power(self.zeta / root, exponent)
        power, rows, sizes = np.ones(1), [], []
        for _ in range(self.steps):
            rows.append(np.convolve(power, factor))
            sizes.append(np.abs(power).sum() * np.abs(factor).sum())
            power = np.convolve(power, delta)
        return _padded(rows), np.array(sizes)

    def weighed(self, term: Terms, heat: int, powers: Mapping[int, tuple[F64, F64]]) -> tuple[I64, F64, F64]:
        """The orders m, what multiplies T_m, and the sum of the magnitudes of all that this is a sum of."""
        strip, lift = self.strip, self.of.lift
        low, j = min(term.coefficients), np.arange(heat)
        count = max(term.coefficients) - low + 2 * heat - 1
        table, sizes, there = np.zeros((count, self.count)), np.zeros(count), np.zeros(count, bool)
        step = np.cumprod([1.0, *(term.beta / 2 / k for k in range(1, heat))])
        for n, c in term.coefficients.items():
            rows, most = powers[n]
            at = n - low + 2 * j
            table[at, : rows.shape[1]] += (c * step)[:, None] * rows[:heat]
            sizes[at] += np.abs(c * step) * most[:heat]
            there[at] = True
            if n - lift == -1 and strip.reference != 0.0:
                off = (strip.half / strip.centre) ** _INVERSE / strip.low * math.sqrt(self.of.least)
                self.left_out.append((abs(c) * off * (1 + 1e-9) * self.largest(term, n)[0], 0.0))
            top, rate = self.largest(term, n + 2 * heat)
            self.left_out.append((abs(c) * self.after(term, n, heat) * top, rate))
        return low + np.flatnonzero(there), table[there], sizes[there]

    def heat(self, term: Terms) -> int:
        """How many steps of the heat equation leave out little enough of a variance's atoms."""
        if not term.beta:
            return 1
        enough = self.of.allowed / (200 * len(self.of.terms) * len(term.coefficients))
        for steps in range(1, _HEAT):
            if all(
                abs(c) * self.after(term, n, steps) * self.largest(term, n + 2 * steps)[0] <= enough
                for n, c in reversed(list(term.coefficients.items()))
            ):
                return steps
        return _HEAT

    def after(self, term: Terms, n: int, steps: int) -> float:
        """What multiplies T_(n + 2 steps) in the remainder of that many steps, at most."""
        strip, root = self.strip, math.sqrt(self.of.least)
        step = (abs(term.beta) / 2) ** steps / math.factorial(steps) * (1 + 1e-9)
        if n - self.of.lift != -1:
            return step * strip.most**steps * (strip.high / root) ** (n - self.of.lift)
        return (
            step * root * (strip.high ** (2 * steps - 1) if strip.reference == 0.0 else strip.most**steps / strip.low)
        )

    def inverse(self) -> F64:
        """1/ζ in powers of η; nothing about ζ = 0, where it is not asked for."""
        centre, half = self.zeta.tolist()
        if self.strip.reference == 0.0:
            return np.zeros(1)
        return np.asarray((-half / centre) ** np.arange(_INVERSE) / centre)

    # --- one panel ---
    def panel(self, centre: float, radius: float, outside: bool, enough: float) -> float | None:
        """A bound of |D| for |t - centre| <= radius, not a close one below ``enough``; None if too much is left out."""
        of, allowed = self.of, self.of.allowed
        near = max(abs(centre) - radius, 0.0)
        rest = self.rest_of_atoms(near, radius)
        if rest > allowed / 2:
            return None
        fit = self.fitted.panel(centre, radius, outside, allowed / 2)
        if fit is None:
            return None
        parts, rest_of_polynomial = fit
        values = np.zeros((len(of.terms), self.orders))
        nothing, live = allowed / (100 * len(of.terms)), np.ones(len(of.terms), bool)
        for k, (term, (top, rate)) in enumerate(zip(of.terms, self.all, strict=True)):
            if (dust := top * math.exp(-near * near * rate)) > nothing:
                values[k] = _orders(centre, term.width(self.strip.reference), self.orders)
                continue
            rest += dust
            live[k] = centre > 0
            if live[k]:  # for t < 0 nothing, else T_-1 = t and T_0 = 1
                values[k, :2] = centre, 1.0
        kept = live[self.which]
        atoms = values.ravel()[self.places[kept]] * np.array([radius**i / math.factorial(i) for i in range(IN_T)])
        total = -self.table[kept].T @ atoms
        total[: self.constant.size, 0] += self.constant
        # Sums of n products of rounded numbers: at most n roundings each, and those of the numbers.
        depth = _POWERS + _STEPS * self.steps + int(np.count_nonzero(kept))
        rounding = depth * float(self.most_of_table[kept] @ np.abs(atoms).sum(axis=1))
        rounding += _REST * float(np.abs(self.constant).sum())
        for rows, most, part in zip(self.weights, self.sizes, parts, strict=True):
            total += rows.T @ (part.table @ part.series)
            size = float(most @ (np.abs(part.table) @ np.abs(part.series).sum(axis=1)))
            rounding += (sum(part.table.shape) + _REST) * size
        rounding = (rounding + 2 * (sum(total.shape) + _REST) * float(np.abs(total).sum())) * _UNIT
        # High powers, where there is next to nothing, cost as much as others.
        rest += rest_of_polynomial + rounding
        sizes, small = np.abs(total), allowed / 4
        if (crude := float(sizes.sum()) * (1 + 1e-9) + rest) <= enough:
            return crude
        in_eta, in_t = (_kept(sizes.sum(axis=axis), small) for axis in (1, 0))
        rest += float(sizes.sum() - sizes[:in_eta, :in_t].sum()) * (1 + 1e-9)
        largest = float(np.abs(_nodes(in_eta).T @ total[:in_eta, :in_t] @ _nodes(in_t)).max())
        norm = (1 / math.cos(math.pi / (2 * _NODES))) ** 2 * (1 + 1e-9)
        return (largest + rounding) * norm + rest

    def rest_of_atoms(self, near: float, radius: float) -> float:
        """By both expansions, |t| >= near."""
        in_z = self.rest[:, 0] * np.exp(-near * near * self.rest[:, 1])
        in_t = self.in_t[:, 0] * np.exp(-near * near * self.in_t[:, 1])
        return float(in_z.sum() + in_t.sum() * radius**IN_T) * (1 + 1e-9)

    def largest(self, term: Terms, order: int) -> tuple[float, float]:
        """A and B with |T_order(t; q²)| <= A exp(-B t²) over the strip; for order -1 and |t| <= far, B = 0."""
        ends = term.width(self.strip.low**2), term.width(self.strip.high**2)
        if order == -1:  # at most |t| + sqrt(q²/2 pi); with room for what the heat equation leaves out
            return self.far + math.sqrt(max(ends)), 0.0
        return _cramer(order) * min(ends) ** (-order / 2) * (1 + 1e-9), 1 / (4 * max(ends))

    def beyond(self) -> float:
        """What is left to change for |t| > far."""
        strip, far, total = self.strip, self.far, 0.0
        root = math.sqrt(self.of.least)
        for term in self.of.terms:
            ends = term.width(strip.low**2), term.width(strip.high**2)
            for n, c in term.coefficients.items():
                size = (strip.high / root) ** (n - self.of.lift)
                if n == -1:  # less the kink of variance 1
                    size *= strip.high**2 * abs(term.beta) / 2 * _cramer(1) / math.sqrt(min(*ends, 1.0))
                    decay = math.exp(-far * far / (4 * max(*ends, 1.0)))
                else:
                    size *= _cramer(n) * min(ends) ** (-n / 2)
                    decay = math.exp(-far * far / (4 * max(ends)))
                total += abs(c) * size * decay * (1 + 1e-9)
        return total


# --- pieces ------------------------------------------------------------------------
def _less(root: float, reference: float) -> float:
    """root² - reference, rounded once."""
    return float(arb(fmpq(*root.as_integer_ratio()) ** 2 - fmpq(*reference.as_integer_ratio())))


def _power(row: F64, n: int) -> F64:
    total = np.ones(1)
    for _ in range(n):
        total = np.convolve(total, row)
    return total


def _kept(sizes: F64, small: float) -> int:
    """How many of the first there are before the rest sum to less than ``small``."""
    return max(1, int(np.count_nonzero(np.cumsum(sizes[::-1]) > small)))


def _padded(rows: Sequence[F64]) -> F64:
    most = max(row.size for row in rows)
    return np.array([np.pad(row, (0, most - row.size)) for row in rows])


def _most(orders: I64, sizes: F64, q2: float, further: int) -> float:
    """A bound of Σ_m size_m |T_(m + further)(-|t|; q²)|/further!, but for exp(-t²/4q²)."""
    each = [_cramer(m + further) * _root(q2, m + further) for m in orders.tolist()]
    return float(sizes @ np.array(each)) / math.factorial(further) * (1 + 1e-9)


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


@lru_cache
def _falling(q2: float, count: int) -> F64:
    """q^-n, n >= -1, rounded once."""
    root = arb(q2).sqrt()
    return np.array([float(root**-n) for n in range(-1, count - 1)])


@lru_cache
def _whole(count: int) -> tuple[arb, ...]:
    """1, 2, ... as balls: converting a number takes as long as an operation."""
    return tuple(map(arb, range(1, count)))


@lru_cache(maxsize=131072)
def _orders(t: float, q2: float, count: int) -> F64:
    """T_n(t; q²), n from -1 on, rounded."""
    h = -arb(t) / arb(q2).sqrt()
    density = (-h * h / 2).exp() / (2 * arb.pi()).sqrt()
    big = (h / arb(2).sqrt()).erfc() / 2
    # T_(n + 1)(h; 1) = -h T_n - (n - 1) T_(n - 1)
    before, now = density, h * density
    table = [density - h * big, big, density, now]
    for factor in _whole(count - 3):
        before, now = now, h * now - factor * before
        table.append(now)
    return np.array([float(value) for value in table]) * _falling(q2, count)
