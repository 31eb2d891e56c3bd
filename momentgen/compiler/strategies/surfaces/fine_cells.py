r"""The cells of the plane that a float64 polynomial is of, and what it is a multiple of.

A polynomial over all of the plane takes hundreds of terms, one over a part of it a fraction of them: the plane of
x = s/largest and q (:mod:`momentgen.compiler.strategies.surfaces.fine_surface`) is cut into a few rows, by q and
therefore by v, and columns, by x.  About the centre columns mirror each other; where all outputs are even or odd in x,
so do the polynomials, and a column is one of abs(x).

An output that is even or odd in x is, but for a factor x, a polynomial of y = 2x² - 1, and of 2q² - 1 where its sign is
that of (t, w) as well; any other is one of x and of 2q - 1.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from momentgen.compiler.strategies.surfaces.surface import Frame
from momentgen.compiler.toolchain.arrays import F64

Span = tuple[float, float]


@dataclass(frozen=True)
class Cells:
    """Where the plane is cut.

    Attributes:
        q: rows are cut there, from low to high.
        x: columns are cut there and at -x, from low to high.
        folded: whether columns are of abs(x).
        least: the least q that polynomials are of; a smaller one counts as that.
    """

    q: tuple[float, ...] = ()
    x: tuple[float, ...] = ()
    folded: bool = True
    least: float = 0.0

    @property
    def rows(self) -> list[Span]:
        """The q of each row."""
        return _spans((self.least, *self.q, 1.0))

    @property
    def sides(self) -> list[Span]:
        """The abs(x) of each column of these."""
        return _spans((0.0, *self.x, 1.0))

    @property
    def columns(self) -> list[Span]:
        """The x of each column, or its abs(x)."""
        if self.folded:
            return self.sides
        return _spans((-1.0, *(-x for x in reversed(self.x)), *self.x, 1.0))

    @property
    def count(self) -> int:
        """How many cells there are."""
        return len(self.rows) * len(self.columns)

    def side(self, column: int) -> int:
        """Which of the ``sides`` a column is on."""
        return column if self.folded else abs(column - len(self.x))


@dataclass(frozen=True)
class Shape:
    """How an output depends on x and q.

    Attributes:
        parity: 0, even in x; 1, odd; None, neither.
        flip: that of :func:`momentgen.compiler.strategies.surfaces.surface.flip_of`.
    """

    parity: int | None
    flip: int

    @property
    def squared(self) -> bool:
        """Whether the second variable is of q²."""
        return self.parity is not None and self.flip != 0

    @property
    def by_q(self) -> bool:
        """Whether q is a factor."""
        return self.parity is not None and self.flip == (1 if self.parity else -1)

    def y_of(self, x: F64) -> F64:
        """The first variable."""
        return x if self.parity is None else 2 * x * x - 1

    def x_of(self, y: F64) -> F64:
        """Its inverse, x >= 0 where that has a parity."""
        return y if self.parity is None else np.sqrt((1 + y) / 2)

    def y_by_x(self, x: F64) -> F64:
        """The slope of the first variable."""
        return np.ones_like(x) if self.parity is None else 4 * x

    def z_of(self, q: F64) -> F64:
        """The second variable."""
        return 2 * q * q - 1 if self.squared else 2 * q - 1

    def q_of(self, z: F64) -> F64:
        """Its inverse."""
        share = (1 + z) / 2
        return np.sqrt(share) if self.squared else share

    def z_by_q(self, q: F64) -> F64:
        """The slope of the second variable."""
        return 4 * q if self.squared else np.full_like(q, 2.0)

    def factor(self, x: F64, q: F64) -> F64:
        """What the polynomial is multiplied by."""
        return (x if self.parity else np.ones_like(x)) * (q if self.by_q else np.ones_like(q))

    def spans(self, cells: Cells, row: int, column: int) -> tuple[Span, Span]:
        """First and second variable in a cell."""
        sides = cells.columns[column] if self.parity is None else cells.sides[cells.side(column)]
        y, z = self.y_of(np.array(sides)), self.z_of(np.array(cells.rows[row]))
        return (float(y[0]), float(y[1])), (float(z[0]), float(z[1]))

    def number(self, cells: Cells, row: int, column: int) -> tuple[int, int]:
        """What tells the polynomials of two cells apart."""
        return row, column if self.parity is None else cells.side(column)


def to_unit(span: Span) -> tuple[float, float]:
    """Scale and shift that make a span that from -1 to 1."""
    low, high = span
    return 2 / (high - low), -(high + low) / (high - low)


def cut_at(frame: Frame, x: float) -> float:
    """t² at an x."""
    return float(frame.t_of(np.array(x * frame.largest))) ** 2


def cut_below(frame: Frame, q: float) -> float:
    """The v at a q."""
    return frame.least / (q * q) - frame.c


def _spans(cuts: tuple[float, ...]) -> list[Span]:
    return list(itertools.pairwise(cuts))
