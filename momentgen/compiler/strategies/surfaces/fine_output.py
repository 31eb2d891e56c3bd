r"""What a float64 polynomial is fitted to: an output less its plain part, over its unit, at points of a frame.

    mean = a mu + b + (a' - a) w J(|t|) + u P(t, q),    V = u P(t, q),    q = sqrt(c)/w,    u the output's unit,

J the mean of a kink, and V = a² v + u P where both lines rise by the same a, beside which the rest is small.  Of an f
with kinks they are wanted from a variance v* on: then w² = v, q = sqrt(v*)/w, and the u of a variance is 1, or v where
f is not bounded.  Partials are the derivatives,

    P_mu = P_t/w,    P_v = -(t P_t + q P_q)/(2 w²).

A polynomial over all of the plane of x = s/largest and q takes hundreds of terms, one over a part of it a fraction of
them: the plane is cut into a few rows, by q and therefore by v, and columns, by x.  About the centre columns mirror
each other; where all outputs are even or odd in x, so do the polynomials, and a column is one of abs(x).

An output that is even or odd in x is, but for a factor x, a polynomial of y = 2x² - 1, and of 2q² - 1 where its sign is
that of (t, w) as well; any other is one of x and of 2q - 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.measure.moments import MEAN, MEAN_SPREAD
from momentgen.compiler.strategies.surfaces.surface import (
    Frame,
    decay,
    flip_of,
    is_level,
    kink_of,
    least_mean,
    lines_of,
    plain_of,
    smoothed_of,
    steps,
)
from momentgen.compiler.toolchain.arrays import F64, erfc

#: errors of a mean, over its least at a variance where that grows and f nears its lines slowly; of a variance over L² v
#: or (range/2)²; of partials over their largest value at a variance
ALLOWED: Mapping[str, float] = {
    "mean": 1e-10,
    "var": 1e-8,
    "dmean_dmu": 1.2e-9,
    "dmean_dvar": 1e-8,
    "dvar_dmu": 3e-8,
    "dvar_dvar": 3e-8,
}
#: the same of an f that nears its lines slowly
OF_SLOW: Mapping[str, float] = {name: 100 * allowed for name, allowed in ALLOWED.items()}
#: the same beyond a v*, below which outputs are exact: of an f that is smooth on so large a scale it costs little
BEYOND: Mapping[str, float] = {
    "mean": 3.6e-12,
    "var": 3e-11,
    "dmean_dmu": 3.6e-11,
    "dmean_dvar": 3.6e-10,
    "dvar_dmu": 1.5e-10,
    "dvar_dvar": 4.5e-10,
}
#: of an f made of normal tails, whose mean takes few terms
OF_TAILS: Mapping[str, float] = {
    "mean": 1e-11,
    "var": 5e-10,
    "dmean_dmu": 6e-11,
    "dmean_dvar": 6e-10,
    "dvar_dmu": 3e-9,
    "dvar_dvar": 2e-9,
}
#: output -> its derivatives in mu and in v
PARTIALS_OF: Mapping[str, tuple[str, str]] = {"mean": ("dmean_dmu", "dmean_dvar"), "var": ("dvar_dmu", "dvar_dvar")}
_NEAREST = 1e-15  # the least v over c
_NOTHING = 1e-3  # of what is allowed: an even or an odd part that is none
_SAMPLE = (8, 24)  # points of a frame that show whether there is one

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


class Exact:
    """The exact moments of an f, with their rests; what mean and variance both ask for is found once."""

    def __init__(self, truth: QuadratureTruth | GeneralTruth) -> None:
        self._truth = truth
        self._known: dict[tuple[bytes, bytes], Mapping[str, F64]] = {}

    def __call__(self, mean: F64, var: F64) -> Mapping[str, F64]:
        """By output, at float64 points, v > 0."""
        key = mean.tobytes(), var.tobytes()
        if key not in self._known:
            self._known[key] = self._truth.outputs(mean, var, rests=True)
        return self._known[key]


@dataclass(frozen=True)
class Points:
    """Points of a frame, q (a column) times x (a row), and the exact outputs there."""

    q: F64
    x: F64
    v: F64
    w: F64
    t: F64
    u: F64
    exact: Mapping[str, F64]


class Output:
    """One output, ``mean`` or ``var``, in one frame; ``goals`` are ``ALLOWED`` or others of that kind."""

    def __init__(
        self, f: Activation, frame: Frame, name: str, exact: Exact, goals: Mapping[str, float] = ALLOWED
    ) -> None:
        self.f, self.frame, self.name, self.exact, self.goals = f, frame, name, exact, goals
        rows, columns = _SAMPLE
        x = np.linspace(1 / columns, 1, columns)
        at = self.points((np.arange(rows) + 0.5) / rows, np.concatenate([x, -x]))
        share = self.rest(at) / self.allowed(at)[name]
        right, left = share[:, :columns], share[:, columns:]
        sizes = [np.abs(part).max() for part in (right - left, right + left)]  # odd, even
        self.shape = Shape(next((n for n in (0, 1) if sizes[n] <= _NOTHING), None), flip_of(f, name))

    def points(self, q: F64, x: F64) -> Points:
        """The exact outputs at all pairs of these."""
        frame = self.frame
        q = q[:, None]
        v = np.maximum(frame.least / (q * q) - frame.c, max(_NEAREST * frame.c, frame.start))
        w = np.sqrt(v + frame.c)
        s = x[None, :] * frame.largest
        t = frame.t_of(s)
        u = t * w
        every = self.exact((u + self.f.centre).ravel(), np.broadcast_to(v, u.shape).ravel())
        exact = {one: values.reshape(u.shape) for one, values in every.items()}
        return Points(math.sqrt(frame.least) / w, x[None, :], v, w, t, u, exact)

    def allowed(self, at: Points) -> dict[str, F64]:
        """The errors allowed to the output and its partials, by row; of partials where all columns are there."""
        f, found = self.f, {}
        for name in (self.name, *PARTIALS_OF[self.name]):
            size = np.ones_like(at.v)
            if name == "mean":
                size = np.maximum(least_mean(f, at.v), 1.0)
                if f.algebraic:  # as in the tolerance, of a sigma that drowns it
                    size = size + MEAN_SPREAD / MEAN * np.minimum(f.lipschitz * np.sqrt(at.v), f.span)
            elif name == "var":
                size = np.minimum(f.lipschitz**2 * at.v, (f.span / 2) ** 2)
            else:
                size = np.abs(at.exact[name]).max(axis=1, keepdims=True)
            found[name] = np.asarray(self.goals[name] * size)
        return found

    def normal(self, at: Points) -> F64:
        """The polynomial's exact values."""
        return np.asarray(self.rest(at) / self.unit(at) / self.shape.factor(at.x, at.q))

    def rest(self, at: Points) -> F64:
        """The output less its plain part, to its own digits: far out it may be far smaller than that."""
        if self.name == "var":
            return at.exact["var_rest"] if slope_share(self.f, "var") else at.exact["var"]
        _, b, _, b2 = lines_of(self.f)
        if self.f.algebraic:
            return np.asarray(at.exact["mean_rest"] - smoothed_of(self.f, at.u, at.w))
        level = np.where(at.u < 0, b - b2, b2 - b) / 2
        return np.asarray(at.exact["mean_rest"] + level - (kink_of(self.f, at.u, at.w) if steps(self.f) else 0.0))

    def unit(self, at: Points) -> F64:
        """What the output is a multiple of."""
        return np.asarray(self._grown(at)[0] * at.w ** -float(falls(self.f, self.name)))

    def _grown(self, at: Points) -> tuple[F64, F64]:
        """What it grows or vanishes with, but for a power of w; and the derivative of that in v."""
        one, growth = np.ones_like(at.v), growth_of(self.f, self.name, self.frame)
        if growth == "bounded":
            share = self.frame.c / (at.v + self.frame.c)
            return at.v * share, share * share
        return (at.v, one) if growth == "v" else (one, 0 * one)

    def x_by_t(self, at: Points) -> F64:
        """The slope of x."""
        bend, largest = self.frame.bend, self.frame.largest
        if self.frame.both:
            root = np.hypot(bend, 2 * at.t)
            return np.asarray(2 * bend / (root * (bend + root)) / largest)
        return np.asarray(bend**2 / (bend**2 + at.t * at.t) ** 1.5 / largest)

    def outputs(self, at: Points, p: F64, p_by_t: F64, p_by_q: F64) -> dict[str, F64]:
        """Output and partials of a P and its derivatives."""
        f, w, q, t, unit = self.f, at.w, at.q, at.t, self.unit(at)
        power, by_mu, by_v = falls(f, self.name), *PARTIALS_OF[self.name]
        p_mu, p_v = p_by_t / w, -(t * p_by_t + q * p_by_q) / (2 * w * w)
        if self.name == "mean":
            a, b, a2, b2 = lines_of(f)
            plain_mu, plain_v = np.where(at.u < 0, a, a2), np.zeros_like(at.u)
            if steps(f):
                plain_mu = plain_mu - (a2 - a) * np.sign(t) * erfc(np.abs(t) / math.sqrt(2)) / 2
                plain_v = (a2 - a) * np.exp(-t * t / 2) / math.sqrt(2 * math.pi) / (2 * w)
            if f.algebraic and b != b2:
                step = (b2 - b) * np.exp(-t * t / 2) / math.sqrt(2 * math.pi) / w
                plain_mu, plain_v = plain_mu + step, plain_v - step * t / (2 * w)
            unit_v = -power / 2 * unit / (w * w)
            plain = plain_of(f, "mean", at.u, w)
            if f.algebraic:
                plain = np.where(at.u < 0, a * at.u + b, a2 * at.u + b2) + smoothed_of(f, at.u, w)
        else:
            plain_mu, plain_v = np.zeros_like(at.u), np.full_like(at.u, slope_share(f, self.name))
            plain = plain_v * at.v
            unit_v = self._grown(at)[1] * w ** -float(power) - power / 2 * unit / (w * w)
        return {self.name: plain + unit * p, by_mu: plain_mu + unit * p_mu, by_v: plain_v + unit * p_v + unit_v * p}


def slope_share(f: Activation, name: str) -> float:
    """What is subtracted from a variance over v: a² where both lines rise by a, beside which the rest is small."""
    return lines_of(f)[0] ** 2 if name == "var" and not steps(f) else 0.0


def growth_of(f: Activation, name: str, frame: Frame) -> str:
    """What P is multiplied by beside a power of r: "one", a variance "v" or, of a "bounded" f, v c/(v + c)."""
    if name == "mean" or (frame.start and is_level(f)):
        return "one"
    return "bounded" if is_level(f) else "v"


def falls(f: Activation, name: str) -> int:
    """The power of r that P is multiplied by: that which the output falls with, less what is subtracted of it."""
    return decay(f)["mean"] + 1 if slope_share(f, name) else decay(f)[name]
