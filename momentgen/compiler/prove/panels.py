r"""Panels in two variables: the difference of a fitted polynomial and a sum of atoms as a Taylor polynomial, bounded.

The variables are t = (mu - centre)/w and ζ = sqrt(least)/w; see :mod:`momentgen.compiler.prove.bounds`, which cuts all
inputs into strips of ζ, and these into panels of t.  What panels of one strip share is worked out once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from flint import arb

from momentgen.compiler.prove.fitted import IN_T, InCells, OverStrip, Strip
from momentgen.compiler.prove.moments import cramer
from momentgen.compiler.toolchain.arrays import F64

_TOGETHER = 16  # orders of atoms are asked for in multiples of it: outputs and their partials share them
_NODES = 10  # Chebyshev nodes a coefficient: 1/cos(pi/20) = 1.013 in each variable
#: of float64, with what is of second order; how many roundings there are in a power of ζ, and in what else a
#: coefficient is a product of
_UNIT, _POWERS, _REST = 2.0**-53 * (1 + 1e-9), 90, 10


@dataclass(frozen=True, eq=False)
class Difference:
    """D: constant + polynomial - Σ_n c_n w^-n T_n(t; 1), times w^lift.

    Attributes:
        fitted: the polynomial, already times w^lift.
        atoms: c_n by n, from n = lift >= 0 on.
        constant: of the lines; 0 where the lift is positive.
        allowed: what a panel may leave out.
    """

    fitted: InCells
    atoms: Mapping[int, float]
    constant: float
    allowed: float


class Panels:
    """What a strip's panels share: for each order n the polynomial in η that multiplies T_n."""

    def __init__(self, of: Difference, strip: Strip) -> None:
        self.of, self.fitted = of, OverStrip(of.fitted, strip)
        zeta = np.array([strip.centre, strip.half]) / math.sqrt(of.fitted.least)
        rows = [c * _power(zeta, n - of.fitted.lift) for n, c in of.atoms.items()]
        weights = self.fitted.weights
        self.count = max([row.size for row in rows] + [part.shape[1] for part in weights])
        self.weights = [np.pad(part, ((0, 0), (0, self.count - part.shape[1]))) for part in weights]
        self.sizes = [np.abs(part).sum(axis=1) for part in weights]
        table = np.array([np.pad(row, (0, self.count - row.size)) for row in rows])
        self.table = table.reshape(len(rows), self.count)  # of lines that meet at the centre there are no atoms
        self.most = np.abs(self.table).sum(axis=1)
        self.orders = np.array(list(of.atoms), dtype=int)
        self.asked = _TOGETHER * math.ceil((int(self.orders.max(initial=0)) + IN_T) / _TOGETHER)
        self.places = self.orders[:, None] + np.arange(IN_T)
        #: of what the expansion in t leaves out, over radius^IN_T exp(-t²/4), and of all that atoms give for t < 0
        self.in_t, self.all = (self.largest(further) / math.factorial(further) for further in (IN_T, 0))

    def largest(self, further: int) -> float:
        """A bound of Σ_n |what multiplies T_n| |T_(n + further)(-|t|)| exp(t²/4)."""
        return float(self.most @ np.array([_cramer(n + further) for n in self.orders.tolist()])) * (1 + 1e-9)

    def panel(self, centre: float, radius: float, outside: bool, enough: float) -> float | None:
        """A bound of |D| for |t - centre| <= radius, not a close one below ``enough``; None if too much is left out."""
        allowed, near = self.of.allowed, max(abs(centre) - radius, 0.0)
        rest = self.in_t * radius**IN_T * math.exp(-near * near / 4) * (1 + 1e-9)
        if rest > allowed / 2:
            return None
        fit = self.fitted.panel(centre, radius, outside, allowed / 2)
        if fit is None:
            return None
        parts, rest_of_polynomial = fit
        dust, live = self.all * math.exp(-near * near / 4), True
        if dust > allowed / 100:
            values = _orders(centre, self.asked)
        else:  # for t < 0 nothing, else T_0 = 1
            values, live = np.zeros(self.asked), centre > 0
            values[0] = float(live)
            rest += dust
        atoms = values[self.places] * np.array([radius**i / math.factorial(i) for i in range(IN_T)])
        total = -self.table.T @ atoms
        total[0, 0] += self.of.constant
        # Sums of n products of rounded numbers: at most n roundings each, and those of the numbers.
        depth = _POWERS + (self.orders.size if live else 0)
        rounding = depth * float(self.most @ np.abs(atoms).sum(axis=1)) + _REST * abs(self.of.constant)
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

    def beyond(self, far: float) -> float:
        """What is left to change for |t| > far."""
        return self.all * math.exp(-far * far / 4)


def _power(row: F64, n: int) -> F64:
    total = np.ones(1)
    for _ in range(n):
        total = np.convolve(total, row)
    return total


def _kept(sizes: F64, small: float) -> int:
    """How many of the first there are before the rest sum to less than ``small``."""
    return max(1, int(np.count_nonzero(np.cumsum(sizes[::-1]) > small)))


@lru_cache
def _cramer(n: int) -> float:
    return float(cramer(n, 1.0).upper()) * (1 + 1e-15)


@lru_cache
def _nodes(count: int) -> F64:
    nodes = np.cos((2 * np.arange(_NODES * count) + 1) * math.pi / (2 * _NODES * count))
    return np.asarray(nodes[None, :] ** np.arange(count)[:, None])


@lru_cache(maxsize=131072)
def _orders(t: float, count: int) -> F64:
    """T_n(t; 1) for n < count, rounded: T_(n + 1) = -t T_n - (n - 1) T_(n - 1)."""
    h = arb(-t)
    density = (-h * h / 2).exp() / (2 * arb.pi()).sqrt()
    table = [(h / arb(2).sqrt()).erfc() / 2, density, h * density]
    for n in range(2, count - 1):
        table.append(h * table[n] - (n - 1) * table[n - 1])
    return np.array([float(value) for value in table])
