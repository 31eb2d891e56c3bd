r"""Moments of a smooth activation in float64: polynomials of two variables whose derivatives are the partials.

The variables, and what is divided out and subtracted, are those of :mod:`momentgen.compiler.stabilise.surface`:

    mean = a mu + b + (a' - a) w J(|t|) + u P(t, q),    V = u P(t, q),    q = sqrt(c)/w,    u the output's unit,

J the mean of a kink, and V = a² v + u P where both lines rise by the same a, beside which the rest is small; P is a
polynomial in s = t/sqrt(kappa² + t²) and in q, or with a symmetry in q².  Of an f with kinks they are wanted from a
variance v* on, where the smoothed f bends so little that they take a few dozen terms: then w² = v, q = sqrt(v*)/w, and
the u of a variance is 1, or v where f is not bounded.  Other than in float32 there is none for each
partial: a partial is the derivative,

    P_mu = P_t/w,    P_v = -(t P_t + q P_q)/(2 w²),

so that gradients are those of what is computed, and two polynomials are all that there is to keep.  They are Chebyshev
series through exact values, without the terms that the accuracy of neither output nor partials (``ALLOWED``) needs;
of an f that bends so sharply that this would take too many, they are ten times less accurate, or a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from momentgen.compiler.approximate.bivariate import Bivariate, degrees_above, powers
from momentgen.compiler.approximate.chebyshev_grid import Grid
from momentgen.compiler.stabilise.activation import Activation
from momentgen.compiler.stabilise.surface import (
    Frame,
    Surface,
    decay,
    end_of,
    flip_of,
    is_level,
    kink_of,
    lines_of,
    plain_of,
    steps,
)
from momentgen.compiler.stabilise.surrogate_truth import QuadratureTruth
from momentgen.errors import BuildError

__all__ = ["ALLOWED", "PARTIALS_OF", "falls", "find_fine_surfaces", "growth_of", "slope_share"]

F64 = npt.NDArray[np.float64]
#: errors of a mean, of a variance over L² v or (range/2)², and of partials over their largest value at a variance
ALLOWED: Mapping[str, float] = {
    "mean": 1e-10,
    "var": 1e-8,
    "dmean_dmu": 2e-9,
    "dmean_dvar": 3e-8,
    "dvar_dmu": 3e-8,
    "dvar_dvar": 3e-8,
}
#: output -> its derivatives in mu and in v
PARTIALS_OF: Mapping[str, tuple[str, str]] = {
    "mean": ("dmean_dmu", "dmean_dvar"),
    "var": ("dvar_dmu", "dvar_dvar"),
}
#: the second where the first does not show all that there is
_GRIDS = (48, 128), (80, 256)
_SHARE, _END = 0.9, 0.1  # of what is allowed: for the series, for what lies beyond the reach
#: |t| at which what is left of a normal distribution is less than that of all, and of its first moment
_NORMAL = {False: 7.0, True: 7.5}
_WIDTHS, _BEND, _BENDS = (
    (0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0),
    4.0,
    (3.0, 3.5, 5.0),
)  # c in units of length², kappa
_BENDS_SMOOTHED = (3.5, 5.0, 7.0)  # kappa, of an f smoothed by the least v
_FRAME, _TRIED = 80, 3  # what another frame costs, in terms; frames in which an output is fitted
_LOOSER, _LARGEST = (1.0, 10.0, 100.0, 1000.0), 1500  # times what is allowed; terms
_LIKELY = 0.1  # of what is allowed: about how large the terms are that count
_STEEP = 8.0  # the order from which on a term's derivatives weigh more than itself
_BISECTIONS, _MORE_DECIMALS = 8, 4
_NEAREST = 1e-15  # the least v over c


def find_fine_surfaces(
    f: Activation, truth: QuadratureTruth, outputs: Sequence[str], start: float = 0.0
) -> dict[str, Surface]:
    """The polynomials of ``outputs``, mean or variance, in one frame or each in its own; ``error`` 1 is ``ALLOWED``.

    Args:
        f: the activation.
        truth: its exact moments.
        outputs: which of them.
        start: the least v that they serve.

    Raises:
        BuildError: if no frame comes near what is allowed.
    """
    found: dict[str, Surface] = {}
    for nodes in _GRIDS:
        search = _Search(f, truth, Grid(*nodes), start)
        for name, frame in search.frames_of(outputs).items():
            surface = search.fitted(name, frame)
            if surface and (name not in found or surface.fit.error < found[name].fit.error):
                found[name] = surface
        if all(name in found and found[name].fit.error <= 1 for name in outputs):
            return found
    if missing := [name for name in outputs if name not in found]:
        cause = f"no polynomial in two variables for {', '.join(missing)} in float64"
        raise BuildError(f.name, "stabilise", cause, f.length)
    return found


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


class _Search:
    """Over frames, by about how many terms outputs take in them."""

    def __init__(self, f: Activation, truth: QuadratureTruth, grid: Grid, start: float) -> None:
        self.f, self.truth, self.grid, self.start = f, truth, grid, start
        self.end = end_of(f, _END * ALLOWED["mean"], _END * ALLOWED["var"])
        self.known: dict[str, dict[Frame, _Target]] = {name: {} for name in PARTIALS_OF}

    def frame(self, width: float, bend: float) -> Frame:
        """The frame of a width, c in units of f's length², and a kappa."""
        normal = _NORMAL[steps(self.f)]
        if self.start:  # smoothed, f ends so much farther out
            return Frame(0.0, bend, float(np.float32(normal + self.end / math.sqrt(self.start))), self.start)
        c = float(np.float32(width * self.f.length**2))
        return Frame(c, bend, float(np.float32(max(normal, self.end / math.sqrt(c)))))

    def target(self, name: str, frame: Frame) -> _Target:
        """An output in a frame."""
        if frame not in self.known[name]:
            self.known[name][frame] = _Target(self.f, frame, name, self.truth, self.grid)
        return self.known[name][frame]

    def needed(self, frame: Frame, names: Sequence[str]) -> int:
        """About how many terms those outputs take."""
        return sum(self.target(name, frame).needed for name in names)

    def best(self, names: Sequence[str]) -> Frame:
        """The frame where they take the fewest: of all widths, then of all kappa."""
        frames = dict.fromkeys(self.frame(width, _BEND) for width in _WIDTHS)
        wide = min(frames, key=lambda frame: self.needed(frame, names))
        bent = [replace(wide, bend=bend) for bend in (_BENDS_SMOOTHED if self.start else _BENDS)]
        return min([wide, *bent], key=lambda frame: self.needed(frame, names))

    def frames_of(self, outputs: Sequence[str]) -> dict[str, Frame]:
        """One frame for all, or one for each."""
        shared, apart = self.best(outputs), {name: self.best([name]) for name in outputs}
        alone = sum(self.needed(frame, [name]) for name, frame in apart.items())
        alone += _FRAME * (len(set(apart.values())) - 1)
        return apart if alone < self.needed(shared, outputs) else dict.fromkeys(outputs, shared)

    def fitted(self, name: str, frame: Frame) -> Surface | None:
        """The polynomial in that frame or, where there is none, in another; None if there is none in the likeliest."""
        others = sorted(self.known[name], key=lambda other: self.needed(other, [name]))
        tried = list(dict.fromkeys([frame, *others]))[:_TRIED]
        return next((found for one in tried if (found := self.target(name, one).surface())), None)


@dataclass(frozen=True)
class _Values:
    """P at the nodes, and its derivatives in t and in q."""

    value: F64
    by_t: F64
    by_q: F64


class _Target:
    """One output in one frame: the exact one and its partials at the nodes, and the series of P."""

    def __init__(self, f: Activation, frame: Frame, name: str, truth: QuadratureTruth, grid: Grid) -> None:
        self.f, self.frame, self.name, self.flip, self.grid = f, frame, name, flip_of(f, name), grid
        share = (1 + grid.z) / 2
        if not self.flip:
            share = share * share  # q²
        self.v = np.maximum(frame.least / share - frame.c, max(_NEAREST * frame.c, frame.start))[:, None]
        s = grid.x[None, :] * frame.largest
        self.t = frame.bend * s / np.sqrt(1 - s * s)
        self.w = np.sqrt(self.v + frame.c)
        self.u, self.q = self.t * self.w, math.sqrt(frame.least) / self.w
        v = np.broadcast_to(self.v, self.u.shape)
        every = truth.outputs((self.u + f.centre).ravel(), v.ravel(), rests=True)
        names = (name, *PARTIALS_OF[name])
        self.exact = {one: every[one].reshape(self.u.shape) for one in names}
        self.allowed = {one: self._allowed(one) for one in names}
        self.unit = self._grown()[0] * self.w ** -float(falls(f, name))
        one = np.ones_like(self.q)
        #: what the even and the odd part in x are multiples of
        self.factors = {0: (one, one), 1: (one, self.q), -1: (self.q, one)}[self.flip]
        normal = self._rest({one: values.reshape(self.u.shape) for one, values in every.items()}) / self.unit
        mirrored = normal[:, ::-1]
        parts = (normal + mirrored) / 2, (normal - mirrored) / 2
        self.series = [grid.series(part / by) for part, by in zip(parts, self.factors, strict=True)]
        j, i = np.indices(self.series[0].shape)
        weight = [float((self.unit * by / self.allowed[name]).max()) for by in self.factors]
        self.sizes = [np.abs(c) * w * (1 + (i + j) / _STEEP) for c, w in zip(self.series, weight, strict=True)]

    def _rest(self, every: Mapping[str, F64]) -> F64:
        """What the polynomial is of, to its own digits: far out it may be far smaller than what is subtracted."""
        if self.name == "var":
            return every["var_rest"] if slope_share(self.f, "var") else every["var"]
        _, b, _, b2 = lines_of(self.f)
        level = np.where(self.u < 0, b - b2, b2 - b) / 2
        return every["mean_rest"] + level - (kink_of(self.f, self.u, self.w) if steps(self.f) else 0.0)

    def _grown(self) -> tuple[F64, F64]:
        """What the output grows or vanishes with, but for a power of w; and its derivative in v."""
        one, growth = np.ones_like(self.v), growth_of(self.f, self.name, self.frame)
        if growth == "bounded":
            share = self.frame.c / (self.v + self.frame.c)
            return self.v * share, share * share
        return (self.v, one) if growth == "v" else (one, 0 * one)

    def _allowed(self, output: str) -> F64:
        """The error allowed in each row."""
        allowed = ALLOWED[output]
        if output == "mean":
            return np.full(self.v.shape, allowed)
        if output == "var":
            return np.asarray(allowed * np.minimum(self.f.lipschitz**2 * self.v, (self.f.span / 2) ** 2))
        return np.asarray(allowed * np.abs(self.exact[output]).max(axis=1, keepdims=True))

    @property
    def needed(self) -> int:
        """About how many terms it takes."""
        return sum(sum(degrees_above(sizes, _LIKELY, parity)) for parity, sizes in enumerate(self.sizes))

    def surface(self) -> Surface | None:
        """The polynomial with the fewest of the largest terms that is within what is allowed, or near; else None."""
        for looser in _LOOSER:
            low, high = math.log10(looser) - 4.0, math.log10(looser) + 1.0  # of the least size
            best: list[F64] | None = None
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                kept = [self._kept(parity, 10.0**middle) for parity in (0, 1)]
                if self._error(kept) <= _SHARE * looser:
                    best, low = kept, middle
                else:
                    high = middle
            if best is not None and (found := self._rounded(best, looser)) and found.fit.terms <= _LARGEST:
                return found
        return None

    def _rounded(self, kept: Sequence[F64], looser: float) -> Surface | None:
        """The powers of a series, with as few decimals as are enough; None where float64 does not hold them."""
        exact = [self._powers(series, parity) for parity, series in enumerate(kept)]
        terms = sum(len(row) for part in exact for row in part)
        weight = max(float((self.unit * by / self.allowed[self.name]).max()) for by in self.factors)
        fewest = math.ceil(math.log10(math.sqrt(max(terms, 1)) * weight / looser))
        for decimals in range(fewest, fewest + _MORE_DECIMALS):
            even, odd = (tuple(tuple(round(c, decimals) for c in row) for row in part) for part in exact)
            error = self._error([_as_series(even, 0), _as_series(odd, 1)])
            if error <= looser:
                return Surface(self.frame, Bivariate(even, odd, error), self.flip)
        return None

    def _powers(self, series: F64, parity: int) -> tuple[tuple[float, ...], ...]:
        degrees = _degrees(series, parity)
        rows = zip(series, degrees, strict=True)
        return powers([row[parity : parity + 2 * n : 2] for row, n in rows], parity)

    def _kept(self, parity: int, least: float) -> F64:
        """The series of a parity without terms that are smaller."""
        degrees = degrees_above(self.sizes[parity], least, parity)
        series = np.zeros((len(degrees), max(2 * max(degrees, default=0) + parity - 1, 0)))
        for j, n in enumerate(degrees):
            series[j, parity : parity + 2 * n : 2] = self.series[parity][j, parity : parity + 2 * n : 2]
        return series

    def _error(self, kept: Sequence[F64]) -> float:
        """The largest error of output and partials at the nodes, over what is allowed."""
        outputs = self._outputs(self._values(kept))
        return max(float((np.abs(outputs[n] - self.exact[n]) / self.allowed[n]).max()) for n in outputs)

    def _values(self, kept: Sequence[F64]) -> _Values:
        squared, frame = self.flip != 0, self.frame
        x_by_t = frame.bend**2 / (frame.bend**2 + self.t * self.t) ** 1.5 / frame.largest
        z_by_q = 4 * self.q if squared else np.full_like(self.q, 2.0)
        value, by_t, by_q = (np.zeros_like(self.u) for _ in range(3))
        for series, factor, slope in zip(kept, self.factors, (self.flip < 0, self.flip > 0), strict=True):
            plain = self.grid.values(series)
            by_x, by_z = self.grid.slopes(series)
            value += plain * factor
            by_t += by_x * factor * x_by_t
            by_q += by_z * factor * z_by_q + plain * slope
        return _Values(value, by_t, by_q)

    def _outputs(self, p: _Values) -> dict[str, F64]:
        """The output and its partials in mu and in v."""
        f, w, q, t = self.f, self.w, self.q, self.t
        power, by_mu, by_v = falls(f, self.name), *PARTIALS_OF[self.name]
        p_mu, p_v = p.by_t / w, -(t * p.by_t + q * p.by_q) / (2 * w * w)
        if self.name == "mean":
            a, _, a2, _ = lines_of(f)
            plain_mu, plain_v = np.where(self.u < 0, a, a2), np.zeros_like(self.u)
            if steps(f):
                plain_mu = plain_mu - (a2 - a) * np.sign(t) * _tail(np.abs(t))
                plain_v = (a2 - a) * np.exp(-t * t / 2) / math.sqrt(2 * math.pi) / (2 * w)
            unit_v = -power / 2 * self.unit / (w * w)
            plain = plain_of(f, "mean", self.u, w)
        else:
            plain_mu, plain_v = np.zeros_like(self.u), np.full_like(self.u, slope_share(f, self.name))
            plain = plain_v * self.v
            unit_v = self._grown()[1] * w ** -float(power) - power / 2 * self.unit / (w * w)
        return {
            self.name: plain + self.unit * p.value,
            by_mu: plain_mu + self.unit * p_mu,
            by_v: plain_v + self.unit * p_v + unit_v * p.value,
        }


def _degrees(series: F64, parity: int) -> list[int]:
    """How many terms of a parity the rows of a truncated series have."""
    large = series[:, parity::2] != 0
    return [int(row.shape[0] - np.argmax(row[::-1])) if row.any() else 0 for row in large]


def _as_series(table: tuple[tuple[float, ...], ...], parity: int) -> F64:
    """Powers of y and z, with a factor x where they are odd, as a Chebyshev series in x and z."""
    rows = []
    for row in table:
        of_y = chebyshev.poly2cheb(row)  # T_n(y) = T_2n(x)
        series = np.zeros(2 * len(of_y))
        series[: 2 * len(of_y) : 2] = of_y
        rows.append(chebyshev.chebmulx(series)[: 2 * len(of_y)] if parity else series)
    if not rows:
        return np.zeros((0, 0))
    padded = np.array([_padded(row, max(map(len, rows))) for row in rows])
    return np.array([_padded(chebyshev.poly2cheb(column), len(rows)) for column in padded.T]).T


def _padded(row: npt.NDArray[np.floating[Any]], count: int) -> F64:
    return np.concatenate([row, np.zeros(count - len(row))])


_tail = np.vectorize(lambda t: math.erfc(t / math.sqrt(2)) / 2, otypes=[float])
