"""Inputs at which a program of two random inputs is measured; ``points`` has those of one.

What decides how hard a point is, is the gap of the means over its standard deviation, the ratio of the variances, how
large the means are beside the gap, and how close a covariance comes to its bound.  All are drawn over their range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from momentgen.compiler.certify.points import Points, joined, largest
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.toolchain.arrays import F32, F64, Bools

#: where bounds are certified
DOMAIN = {
    "mean1, mean2": "0 or normal: 2^-126 <= |mean| < 2^128",
    "var1, var2": "0 or 2^-127 <= var < 2^128; var1 + var2 - 2 cov > 0",
    "cov": "0 or normal, where the rule has it; cov^2 <= var1 var2",
}
_EDGES = (2.0**-126, 1e-37, 1e-30, 1e-20, 1e-10, 1e-5, 0.01, 0.5, 1.0, 1.5, 3.0, 10.0, 1e4, 1e8, 1e15, 1e20, 1e30, 3e38)
_KEPT = (150, 40, 40)  # points an output that each round of the search finds


def in_domain(*points: F32) -> Bools:
    """Whether each point lies in :data:`DOMAIN`."""
    mean1, var1, mean2, var2 = (array.astype(np.float64) for array in points[:4])
    good = np.ones(mean1.shape, np.bool_)
    with np.errstate(all="ignore"):
        for mean in (mean1, mean2):
            good &= np.isfinite(mean) & ((mean == 0) | (np.abs(mean) >= 2.0**-126))
        for var in (var1, var2):
            good &= np.isfinite(var) & ((var == 0) | (var >= 2.0**-127))
        gap = var1 + var2
        if len(points) == 5:
            cov = points[4].astype(np.float64)
            good &= np.isfinite(cov) & ((cov == 0) | (np.abs(cov) >= 2.0**-126)) & (cov * cov <= var1 * var2)
            gap = (np.maximum(var1, var2) - 2 * cov) + np.minimum(var1, var2)
        return good & (gap > 0)


def _signs(rng: np.random.Generator, n: int) -> F64:
    return rng.choice([-1.0, 1.0], n)


def _mixed(n: int, rng: np.random.Generator, *draws: Callable[[int], F64]) -> F64:
    """Each element from one of several laws, at random."""
    which = rng.integers(len(draws), size=n)
    drawn = np.stack([draw(n) for draw in draws])
    return np.asarray(drawn[which, np.arange(n)])


def spread(n: int, seed: int, *, covariance: bool, reach: float = 126.0) -> Points:
    """Points of the domain, log2 of the variances within ``reach``.

    Args:
        n: how many are drawn; a few fall outside of the domain and are left out.
        reach: of log2 of the variances.
    """
    rng = np.random.default_rng(seed)

    def wide(width: float) -> Callable[[int], F64]:
        return lambda k: np.asarray(np.exp2(rng.uniform(-width, width, k)))

    var1 = np.exp2(rng.uniform(-reach, reach, n))
    ratio = _mixed(n, rng, wide(1), wide(1), wide(6), wide(30), wide(200))
    var2 = np.clip(var1 * ratio, 2.0**-reach, 2.0**reach)
    var2[rng.random(n) < 0.05] = 0.0
    v1, v2 = var1.astype(np.float32), var2.astype(np.float32)
    s = np.sqrt(v1.astype(np.float64) + v2)
    cov: list[F32] = []
    if covariance:
        near = _mixed(
            n, rng, lambda k: rng.uniform(-1, 1, k), lambda k: _signs(rng, k) * (1 - np.exp2(rng.uniform(-24, 0, k)))
        )
        bound = np.sqrt(v1.astype(np.float64) * v2)
        # Rounded towards 0, so that the bound holds.
        c = np.nextafter((near * bound).astype(np.float32), np.float32(0))
        c[np.abs(c) < 2.0**-126] = 0.0
        cov = [c]
        s = np.sqrt(np.maximum(v1.astype(np.float64) + v2 - 2.0 * c, 0.0))
    a = _mixed(
        n,
        rng,
        lambda k: rng.uniform(-20, 20, k),
        lambda k: rng.normal(0, 1.5, k),
        lambda k: rng.normal(0, 1.5, k),
        lambda k: _signs(rng, k) * np.exp2(rng.uniform(-60, 1, k)),
        lambda k: _signs(rng, k) * np.exp2(rng.uniform(4, 18, k)),
    )
    base = s * _mixed(
        n, rng, lambda k: np.zeros(k), lambda k: rng.normal(0, 1.5, k), lambda k: _signs(rng, k) * wide(20)(k)
    )
    with np.errstate(all="ignore"):
        limit = 3.4e38
        mean2 = np.clip(base, -limit, limit).astype(np.float32)
        mean1 = np.clip(mean2.astype(np.float64) + a * s, -limit, limit).astype(np.float32)
    swap = rng.random(n) < 0.5
    points: Points = (
        np.where(swap, mean2, mean1),
        np.where(swap, v2, v1),
        np.where(swap, mean1, mean2),
        np.where(swap, v1, v2),
        *cov,
    )
    return kept(points)


def kept(points: Points) -> Points:
    """Those of the domain."""
    usable = in_domain(*points)
    return tuple(array[usable] for array in points)


def edges(n: int, seed: int, *, covariance: bool) -> Points:
    """Any combination of zero and numbers from the smallest to the largest; variances may all be 0, too."""
    rng = np.random.default_rng(seed)
    sizes = np.array([0.0, 2.0**-149, *_EDGES], np.float32)
    mean1, mean2 = (rng.choice(sizes, n) * _signs(rng, n).astype(np.float32) for _ in range(2))
    var1, var2 = rng.choice(sizes, n), rng.choice(sizes, n)
    mean2 = np.where(rng.random(n) < 0.2, mean1, mean2)
    none = rng.random(n) < 0.1
    var1[none] = var2[none] = 0.0
    points: Points = (mean1, var1, mean2, var2)
    if covariance:
        share = rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], n)
        bound = share * np.sqrt(var1.astype(np.float64) * var2)
        points = (*points, np.nextafter(bound.astype(np.float32), np.float32(0)))
    return points


def near_by(points: Points, seed: int, spread: int, count: int = 8) -> Points:
    """Points of the domain up to ``spread`` units in the last place from the given ones."""
    rng = np.random.default_rng(seed)
    moved = []
    for array in points:
        bits = np.repeat(np.ascontiguousarray(array, np.float32).view(np.int32), count)
        still = bits == 0  # beside 0 all is subnormal
        bits = bits + np.where(still, 0, rng.integers(-spread, spread + 1, bits.size)).astype(np.int32)
        moved.append(bits.view(np.float32))
    return kept(tuple(moved))


def screened(
    stable: Stable, run: Callable[..., Mapping[str, F32]], setting: Mapping[str, float], *, points: int, seed: int
) -> Points:
    """Points where ``run`` is worst by the graphs meant for float64, of ``points`` and those climbed from the worst."""
    at = spread(points, seed, covariance=len(stable.forward.inputs) == 5)
    found: list[Points] = []
    for round_, keep in enumerate(_KEPT):
        computed = run(*at, setting)
        chosen = []
        for graph in (stable.forward64, stable.partials64):
            values = outputs_float64(graph, {**dict(zip(graph.inputs, at, strict=True)), **setting})
            for name, reference in values.items():
                error = stable.measure(name, computed[name], reference, *at)
                # Where even float64 has no number, exact values decide.
                error = np.where(np.isnan(error), 0.0, error)
                chosen.append(largest(error, keep))
        best = np.unique(np.concatenate(chosen))
        found.append(tuple(array[best] for array in at))
        around = [near_by(found[-1], seed + round_, size, 16) for size in (8, 4096 >> (5 * round_))]
        at = joined([found[-1], *around])
    return joined(found)
