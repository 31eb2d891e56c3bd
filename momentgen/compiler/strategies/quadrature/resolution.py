"""Where f bends, and on which lengths: found by halving intervals until a polynomial follows f on each.

From the intervals follow features: centres and lengths such that near any x the length is about that of the intervals
there.  It grows with the distance from a centre, as the nodes of a sum do (:mod:`.sums`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from momentgen.compiler.strategies.quadrature.function import Branches
from momentgen.compiler.strategies.quadrature.growth import FARTHEST, FOLDS
from momentgen.compiler.toolchain.arrays import F64, Bools

_DEGREE, _CLOSE, _FLOOR, _ROUNDING = 12, 1e-9, 1e-11, 2e-14
_NEAREST, _MOST = 1e-8, 3000  # the shortest interval, and how many there may be
_SHRINK = 8.0
_FEATURES, _SPREAD = 10, 40

#: distances from a centre, and points, at which f is looked at for peaks
_WIDENING, _EVEN = np.sinh(np.linspace(-36, 36, 1601)) * 1e-9, np.linspace(-50, 50, 10001)

_angles = np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1)
_NODES = np.cos(_angles)
_TESTS = np.cos(np.pi * np.arange(1, _DEGREE + 1) / (_DEGREE + 1))
_COEFFICIENTS = np.linalg.inv(np.polynomial.chebyshev.chebvander(_NODES, _DEGREE))
_PREDICT = np.polynomial.chebyshev.chebvander(_TESTS, _DEGREE) @ _COEFFICIENTS


@dataclass(frozen=True)
class Resolution:
    """Intervals on each of which f is a polynomial to some nine digits of how much it changes about there.

    Attributes:
        low, high: their ends, from left to right.
        reach: |x| up to which they were looked for.
    """

    low: F64
    high: F64
    reach: float

    @property
    def edges(self) -> F64:
        """All ends."""
        return np.unique(np.concatenate([self.low, self.high]))


def resolved(f: Branches) -> Resolution:
    """The intervals of an f without parameters; fewer decades of x where they were too many (a sine)."""
    reach = FARTHEST
    while True:
        found = _within(f, reach)
        if found is not None or reach < 1:
            break
        reach /= _SHRINK
    low, high = found or (np.array([-reach, 0.0]), np.array([0.0, reach]))
    return Resolution(low, high, reach)


def _within(f: Branches, reach: float) -> tuple[F64, F64] | None:
    inner = f.kinks[np.abs(f.kinks) < reach]
    # Where f grows, an interval across many scales would be followed as closely as its largest values ask.
    scales = 4.0 ** np.arange(math.log(reach, 4))
    ends = np.clip(f.growth.ends, -reach, reach)
    edges = np.unique(np.concatenate([ends, [0.0], -scales, scales, inner]).clip(*ends))
    grid = np.unique(np.concatenate([edges, _EVEN, *(k + _WIDENING for k in {0.0, *inner, *f.centres})]))
    grid = grid[(ends[0] <= grid) & (grid <= ends[1])]
    values = f.values(grid)
    known = np.where(np.isfinite(values), values, 0.0)
    left, right = (min(_EVEN[-1], FOLDS / rate) if rate else _EVEN[-1] for rate in f.growth.rates)
    near = (-left <= grid) & (grid <= right)
    size = float(known[near].max() - known[near].min())
    low, high = edges[:-1], edges[1:]
    kept: list[tuple[F64, F64]] = []
    count = 0
    while low.size:
        followed = _is_followed(f, low, high, grid, known, size)
        followed |= high - low <= _NEAREST
        kept.append((low[followed], high[followed]))
        count += int(followed.sum())
        low, high = low[~followed], high[~followed]
        if count + low.size > _MOST:
            return None
        middle = (low + high) / 2
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    lows, highs = (np.concatenate(ends) for ends in zip(*kept, strict=True))
    order = np.argsort(lows)
    return lows[order], highs[order]


def _is_followed(f: Branches, low: F64, high: F64, grid: F64, values: F64, size: float) -> Bools:
    middle, half = ((low + high) / 2)[:, None], ((high - low) / 2)[:, None]
    home = np.broadcast_to(middle, (low.size, _DEGREE + 1)).ravel()
    at_nodes = f.values((middle + half * _NODES).ravel(), home).reshape(low.size, -1)
    home = np.broadcast_to(middle, (low.size, _DEGREE)).ravel()
    at_tests = f.values((middle + half * _TESTS).ravel(), home).reshape(low.size, -1)
    error = np.abs(at_tests - at_nodes @ _PREDICT.T).max(1)
    change = at_nodes.max(1) - at_nodes.min(1)
    rows = at_nodes @ _COEFFICIENTS.T
    wide = np.zeros(low.size)
    for k, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        beside = values[np.searchsorted(grid, a - 1.5 * (b - a)) : np.searchsorted(grid, b + 1.5 * (b - a))]
        wide[k] = beside.max() - beside.min() if beside.size else 0.0
        inside = np.arange(np.searchsorted(grid, a, "right"), np.searchsorted(grid, b))
        if inside.size:  # a peak between the nodes
            inside = inside[:: max(1, inside.size // _SPREAD)]
            at = (grid[inside] - middle[k]) / half[k]
            error[k] = max(error[k], np.abs(np.polynomial.chebyshev.chebval(at, rows[k]) - values[inside]).max())
    allowed = _CLOSE * np.maximum(change, wide) + _FLOOR * size + _ROUNDING * np.abs(at_nodes).max(1)
    with np.errstate(invalid="ignore"):
        return (error <= allowed) | ~np.isfinite(error)


@dataclass(frozen=True)
class Feature:
    """A place where f bends, and the length on which it does."""

    at: float
    length: float


def features(found: Sequence[Resolution], fixed: F64, coarse: float) -> tuple[list[Feature], float]:
    """Few features with which near each interval of some resolutions the length is at most ``coarse`` times its own.

    Args:
        found: of f at settings of its parameters.
        fixed: places where there is a feature in any case: kinks.
        coarse: as above.

    Returns:
        The features from left to right, and the largest length that there may be where they end: infinite where
        they cover all intervals, and not where they would be too many.
    """
    low = np.concatenate([of.low for of in found])
    high = np.concatenate([of.high for of in found])
    middle, half = (low + high) / 2, (high - low) / 2
    needed = half > _NEAREST
    reach = max(of.reach for of in found)
    while True:
        within = np.abs(middle) <= reach
        made, rest = _chosen(low, high, needed & within, fixed, coarse)
        if not rest or reach < 1:
            beyond = half[needed & ~within]
            return sorted(made, key=lambda feature: feature.at), coarse * float(beyond.min(initial=np.inf))
        reach /= 2


def _chosen(low: F64, high: F64, needed: Bools, fixed: F64, coarse: float) -> tuple[list[Feature], bool]:
    """The features, and whether some intervals are left."""
    middle, half = (low + high) / 2, (high - low) / 2
    edges = [np.abs(middle - at) <= 1.001 * half for at in fixed]
    lengths = [float(half[near].min()) if near.any() else 1.0 for near in edges]  # a kink may be beyond all intervals
    made = [Feature(at, length) for at, length in zip(fixed.tolist(), lengths, strict=True)]
    left = needed.copy()

    def covered(at: float, length: float) -> Bools:
        return np.hypot(length, middle - at) <= coarse * half

    for feature in made:
        left &= ~covered(feature.at, feature.length)
    while left.any() and len(made) < _FEATURES + len(fixed):
        least = half[left].min()
        small = left & (half <= 2 * least)
        candidates = np.unique(np.concatenate([low[small], high[small], middle[small]]))
        candidates = candidates[:: max(1, candidates.size // 60)]
        counts = [int((covered(at, least) & left).sum()) for at in candidates]
        best = max(range(len(counts)), key=lambda k: (counts[k], -abs(candidates[k])))
        made.append(Feature(float(candidates[best]), float(least)))
        now = covered(made[-1].at, made[-1].length) & left
        left &= ~(now if now.any() else left & (half <= least))
    return made, bool(left.any())
