"""Exact values for sums over nodes: in float64 on many more nodes, and by balls; and what errors they are held to.

Panels are those on which f is a polynomial (``Branches.resolution``), cut again at every half sigma: nothing of how the
kernels' nodes are placed is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flint import arb, ctx

from momentgen.compiler.function.branches import FOLDS, Branches
from momentgen.compiler.ir.stable import SIX
from momentgen.compiler.toolchain.arrays import F64

_REACH, _STEP = 13.0, 0.5  # sigmas
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_BITS = 256
#: sigmas beside a kink where f may have a root
_GRADED = np.concatenate([-(4.0 ** -np.arange(16)), [0.0], 4.0 ** -np.arange(16)])
_WINDOW = 8.0  # sigmas that f's size is looked at in
_COLUMNS = len(SIX) + 3  # of what is found at a point
_ABOUT, _SPREAD = 4.0, np.linspace(-1, 1, 65)
_ROUNDING, _SMALLEST = 2.0**-50, 2.0**-126


@dataclass(frozen=True)
class Exact:
    """The outputs at some points, and what they are measured by.

    Attributes:
        mean, var: the points.
        found: in rows, the outputs and what else :func:`_row` finds.
    """

    mean: F64
    var: F64
    found: F64

    @property
    def values(self) -> dict[str, F64]:
        """By output."""
        return dict(zip(SIX, self.found, strict=False))

    def and_of(self, other: Exact) -> Exact:
        """At the points of both."""
        pairs = (self.mean, other.mean), (self.var, other.var), (self.found, other.found)
        return Exact(*(np.concatenate(pair, axis=-1) for pair in pairs))

    def allowed(self, name: str, share: Shares) -> F64:
        """The error allowed to an output."""
        fourth, change, size = self.found[len(SIX) :]
        own, s = np.sqrt(np.maximum(self.values["var"], 0)), np.sqrt(self.var)
        floor = share.floor * change + _ROUNDING * size
        if name == "mean":
            return _SMALLEST + (share.mean * (np.abs(self.values["mean"]) + own) + floor)
        if name == "var":
            error = share.sigma * own + floor
            return _SMALLEST + (2 * own * error + error**2)
        over = s if name.endswith("mu") else self.var
        twice = floor * (1 if name.startswith("dmean") else change + floor)
        return _SMALLEST + (share.partial * ((own if name.startswith("dmean") else fourth) / over) + twice / over)

    def errors(self, got: Mapping[str, F64], share: Shares, most: float = np.inf) -> dict[str, F64]:
        """By output, errors over what is allowed; infinite where one is no number; ``most`` is the largest number."""
        found = {}
        for name, values in got.items():
            with np.errstate(all="ignore"):
                allowed = self.allowed(name, share)
                error = np.abs(values - self.values[name].clip(-most, most)) / allowed
            found[name] = np.where(np.isfinite(allowed) & ~np.isnan(error), error, np.inf)
        return found


@dataclass(frozen=True)
class Shares:
    """What is allowed.

    Attributes:
        mean: of |mean| + sigma_y.
        sigma: of sigma_y.
        partial: of the bounds that Cauchy and Schwarz set, as sigma_y/sigma for dmean_dmu.
        floor: of the change of f within 13 sigmas, beside these.
    """

    mean: float
    sigma: float
    partial: float
    floor: float


def in_float64(f: Branches, mean: F64, var: F64) -> Exact:
    """The outputs of an f without parameters, v > 0, where sigma is not far below the lengths of f."""

    def changes(m: float, v: float, z: F64, home: F64) -> tuple[F64, float]:
        (here,) = f.values(np.array([m]))
        return f.values(m + np.sqrt(v) * z, home) - here, here

    with np.errstate(over="ignore", invalid="ignore"):  # moments beyond float64 count as missed
        return _exact(f, mean, var, changes)


def by_balls(f: Branches, mean: F64, var: F64) -> Exact:
    """The same at any variance: f and its changes in balls of 256 bits."""

    def changes(m: float, v: float, z: F64, home: F64) -> tuple[F64, float]:
        mu, s, here = arb(m), arb(v).sqrt(), f.ball(arb(m), m)
        points = zip(z.tolist(), home.tolist(), strict=True)
        return np.array([float(f.ball(mu + s * at, where) - here) for at, where in points]), float(here)

    with ctx.workprec(_BITS):
        return _exact(f, mean, var, changes)


#: mean, variance, points z and homes -> f(mu + sigma z) - f(mu), and f(mu)
_Changes = Callable[[float, float, F64, F64], tuple[F64, float]]


def _exact(f: Branches, mean: F64, var: F64, changes: _Changes) -> Exact:
    rows = np.array([_row(f, m, v, changes) for m, v in zip(mean.tolist(), var.tolist(), strict=True)]).T
    s, twice = np.sqrt(var), 2 * var
    rows[2 : len(SIX)] /= [s, twice, s, twice]
    return Exact(mean, var, rows)


def _row(f: Branches, mean: float, var: float, changes: _Changes) -> list[float]:
    """Mean and variance; partials times sigma or 2 var; and what errors are measured by.

    That is the root of E (f - mean)^4; the largest |f - f(mu)| within 13 sigmas, or fewer where f grows like exp(b x);
    and the largest |f| there, and within the length on which f bends: what its rounding is relative to.
    """
    s = float(np.sqrt(var))
    down, up = f.growth.rates
    low, high = -_REACH - 4 * down * s, _REACH + 4 * up * s  # of f like exp(b x) the fourth power is at 4 b sigma
    if not f.growth.ends[0] <= mean + low * s <= mean + high * s <= f.growth.ends[1]:
        return [np.inf] * _COLUMNS
    beside = [(at - mean) / s + _GRADED for at in f.roots if abs(at - mean) <= _REACH * s]
    even = np.linspace(low, high, round((high - low) / _STEP) + 1)
    cuts = np.concatenate([even, (f.resolution.edges - mean) / s, *beside])
    cuts = np.unique(cuts[(low <= cuts) & (cuts <= high)])
    middle, half = (cuts[1:] + cuts[:-1]) / 2, (cuts[1:] - cuts[:-1]) / 2
    z = (middle[:, None] + half[:, None] * _NODES).ravel()
    home = mean + s * np.repeat(middle, _NODES.size)
    w = (half[:, None] * _WEIGHTS).ravel() * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    d, here = changes(mean, var, z, home)
    return [*_sums(d, z, w / w.sum(), here), _change(f, d, z, s), _size(f, mean, s)]


def _change(f: Branches, d: F64, z: F64, s: float) -> float:
    """The largest |d|, where f grows like exp(b x) near enough for sigma_y not to vanish beside it."""
    low, high = (min(_REACH, b * s + FOLDS / (b * s)) if b else _REACH for b in f.growth.rates)
    return float(np.abs(d[(-low <= z) & (z <= high)]).max())


def _size(f: Branches, mean: float, s: float) -> float:
    """The largest |f| within eight sigmas, and about where f bends on the shortest length."""
    resolution = f.resolution
    widths = resolution.high - resolution.low
    narrow = int(widths.argmin())
    wide, middle = _WINDOW * s, (resolution.high[narrow] + resolution.low[narrow]) / 2
    about = _ABOUT * min(float(widths[narrow]), 1.0)
    places = [mean + wide * _SPREAD, mean + about * _SPREAD, middle + about * _SPREAD]
    return float(np.abs(f.values(np.concatenate(places))).max())


def _sums(d: F64, z: F64, w: F64, here: float) -> list[float]:
    m = float(w @ d)
    e = d - m
    h, square = z * z - 1, w * e * e
    part = np.sqrt(np.sqrt(w)) * np.abs(e)  # whose fourth power may be beyond float64
    most = part.max()
    fourth = most**2 * np.sqrt(((part / most) ** 4).sum()) if most > 0 else 0.0
    return [*map(float, (here + m, square.sum(), (w * e) @ z, (w * e) @ h, square @ z, square @ h, fourth))]
