"""Inputs at which a program is measured: random, in the tails, at the edges of float32, near the worst known.

All generators are deterministic; a seed belongs to the rule and variant.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from momentgen.compiler.toolchain.arrays import F32, F64, Bools

Points = tuple[F32, ...]

#: where bounds are certified; beyond it (subnormal input) only the promises that are not about accuracy hold
DOMAIN = {"mean": "0 or normal: 2^-126 <= |mean| < 2^128", "var": "0 or 2^-127 <= var < 2^128"}


def in_domain(mean: F32, var: F32) -> Bools:
    """Whether each point lies in :data:`DOMAIN`, var = 0 excluded."""
    size = np.abs(mean)
    return np.isfinite(mean) & np.isfinite(var) & ((size == 0) | (size >= 2.0**-126)) & (var >= 2.0**-127)


def seed_of(*names: str) -> int:
    """A seed that depends on the names alone."""
    return zlib.crc32("/".join(names).encode())


def _from_ratio(a: F64, var: F64) -> Points:
    v = np.clip(var, 2.0**-149, 3.4e38).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        mean = np.clip(a * np.sqrt(v.astype(np.float64)), -3.4e38, 3.4e38).astype(np.float32)
    return mean, v


def _log_uniform(rng: np.random.Generator, low: float, high: float, n: int) -> F64:
    return np.asarray(np.exp2(rng.uniform(low, high, n)))


def calibration_points(box: Mapping[str, tuple[float, float]], n: int, seed: int) -> Points:
    """Points for the ablation: the box uniformly, its middle more densely, and towards zero."""
    rng = np.random.default_rng(seed)
    names = [name for name in ("a", "mu") if name in box]
    means, variances = [], []
    for name in names:
        low, high = box[name]
        size = n // len(names)
        k = size // 4
        var = _log_uniform(rng, *box["log2_var"], size)
        values = np.concatenate(
            [
                rng.uniform(low, high, size - 2 * k),
                rng.normal(0, 1.5, k).clip(low, high),
                rng.choice([-1.0, 1.0], k) * _log_uniform(rng, -20, 0, k),
            ]
        )
        mean, var32 = _from_ratio(values, var) if name == "a" else (values.astype(np.float32), var.astype(np.float32))
        means.append(mean)
        variances.append(var32)
    return np.concatenate(means), np.concatenate(variances)


def wide_points(n: int, seed: int) -> Points:
    """All of float32: a = mu/sigma over the bulk, the tails to 1e4 and beyond, and towards 0; any variance."""
    rng = np.random.default_rng(seed)
    k = n // 5
    sign = rng.choice([-1.0, 1.0], k)
    groups = [
        _from_ratio(rng.uniform(-20, 20, n - 4 * k), _log_uniform(rng, -149, 128, n - 4 * k)),
        _from_ratio(rng.normal(0, 1.5, k), _log_uniform(rng, -30, 30, k)),
        _from_ratio(sign * _log_uniform(rng, -60, 1, k), _log_uniform(rng, -126, 127, k)),
        _from_ratio(sign * _log_uniform(rng, 4, 18, k), _log_uniform(rng, -126, 127, k)),
        ((sign * _log_uniform(rng, -40, 40, k)).astype(np.float32), _log_uniform(rng, -60, 60, k).astype(np.float32)),
    ]
    return np.concatenate([g[0] for g in groups]), np.concatenate([g[1] for g in groups])


def edge_points() -> Points:
    """Zero, the smallest and largest numbers and everything between by decades, for mean and variance alike."""
    sizes = [2.0**-149, 2.0**-140, 2.0**-127, 2.0**-126, 1e-38, 1e-37, 1e-30, 1e-20, 1e-10, 1e-5, 0.01, 0.5]
    sizes += [1.0, 1.5, 3.0, 10.0, 100.0, 1e4, 1e8, 1e15, 1e20, 1e30, 1e38, 3.4e38]
    positive = np.array([0.0, *sizes]).astype(np.float32)
    mean, var = np.meshgrid(np.concatenate([-positive[1:], positive]), positive)
    return mean.ravel(), var.ravel()


def near_points(ratios: tuple[float, ...], n: int, seed: int) -> Points:
    """Points with mean/sigma ever nearer to each of ``ratios``, down to the nearest float32 mean."""
    rng = np.random.default_rng(seed)
    means, variances = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
    for ratio in ratios:
        away = rng.choice([-1.0, 1.0], n) * _log_uniform(rng, -30, -1, n)
        _, var = _from_ratio(np.full(n, ratio), _log_uniform(rng, -100, 100, n))
        moved = ratio * np.sqrt(var.astype(np.float64)) * (1 + away)
        means.append(moved.astype(np.float32))
        variances.append(var)
    return np.concatenate(means), np.concatenate(variances)


def points_at(places: tuple[float, ...], n: int, seed: int) -> Points:
    """Points around each of ``places``, at it and within some sigma of it, for any sigma."""
    rng = np.random.default_rng(seed)
    means, variances = [np.empty(0, np.float32)], [np.empty(0, np.float32)]
    for place in places:
        var = _log_uniform(rng, -100, 60, n).astype(np.float32)
        away = rng.choice([0.0, 1.0], n, p=[0.25, 0.75]) * rng.normal(0, 2.0, n)
        means.append((place + away * np.sqrt(var.astype(np.float64))).astype(np.float32))
        variances.append(var)
    return np.concatenate(means), np.concatenate(variances)


def neighbours(points: Points, seed: int, spread: int, count: int = 8) -> Points:
    """Points up to ``spread`` units in the last place from the given: where errors are bad they are worse nearby."""
    rng = np.random.default_rng(seed)
    moved = []
    for array in points:
        bits = np.repeat(np.ascontiguousarray(array, np.float32).view(np.int32), count)
        moved.append((bits + rng.integers(-spread, spread + 1, bits.size, dtype=np.int32)).view(np.float32))
    usable = in_domain(moved[0], moved[1])
    return moved[0][usable], moved[1][usable]
