"""Inputs at which a program is measured: random, in the tails, at the edges of float32, near the worst known.

All generators are deterministic; a seed belongs to the rule and variant.

A sample's maximum is no bound, and where few points matter (the edge of an expansion, one binade of the variance) it
is far from one: programs certified within 2 ulp at 12,000 points reached 3.2 elsewhere.  So the worst are searched for.
The graphs meant for float64 are quick and good to some 1e-14, so that many points can be screened by them; the worst
are then climbed from, a few units in the last place at a time.  What is found is measured by the caller against exact
values.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import Errors, Stable, errors_over
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.toolchain.arrays import F32, F64, Bools

Points = tuple[F32, ...]
_NO_POINTS: Points = (np.empty(0, np.float32),) * 2

#: where bounds are certified; beyond it (subnormal input) only the promises that are not about accuracy hold
DOMAIN = {"mean": "0 or normal: 2^-126 <= |mean| < 2^128", "var": "0 or 2^-127 <= var < 2^128"}


def in_domain(mean: F32, var: F32) -> Bools:
    """Whether each point lies in :data:`DOMAIN`, var = 0 excluded."""
    size = np.abs(mean)
    return np.isfinite(mean) & np.isfinite(var) & ((size == 0) | (size >= 2.0**-126)) & (var >= 2.0**-127)


def usable(mean: F32, var: F32) -> Points:
    """The points that lie in the domain."""
    inside = in_domain(mean, var)
    return mean[inside], var[inside]


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
    size = n // len(names)
    k = size // 4

    def within(name: str) -> Points:
        low, high = box[name]
        var = _log_uniform(rng, *box["log2_var"], size)
        groups = [rng.uniform(low, high, size - 2 * k), rng.normal(0, 1.5, k).clip(low, high)]
        values = np.concatenate([*groups, rng.choice([-1.0, 1.0], k) * _log_uniform(rng, -20, 0, k)])
        return _from_ratio(values, var) if name == "a" else (values.astype(np.float32), var.astype(np.float32))

    return joined(map(within, names))


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
    return joined(groups)


def edge_points() -> Points:
    """Zero, the smallest and largest numbers and everything between by decades, for mean and variance alike."""
    sizes = [2.0**-149, 2.0**-140, 2.0**-127, 2.0**-126, 1e-38, 1e-37, 1e-30, 1e-20, 1e-10, 1e-5, 0.01, 0.5]
    sizes += [1.0, 1.5, 3.0, 10.0, 100.0, 1e4, 1e8, 1e15, 1e20, 1e30, 1e38, 3.4e38]
    positive = np.array([0.0, *sizes]).astype(np.float32)
    mean, var = np.meshgrid(np.concatenate([-positive[1:], positive]), positive)
    return mean.ravel(), var.ravel()


def joined(groups: Iterable[Points]) -> Points:
    """Several sets of points as one."""
    return tuple(np.concatenate(columns) for columns in zip(*groups, strict=True))


def near_points(ratios: tuple[float, ...], n: int, seed: int) -> Points:
    """Points with mean/sigma ever nearer to each of ``ratios``, down to the nearest float32 mean."""
    rng = np.random.default_rng(seed)

    def near(ratio: float) -> Points:
        away = rng.choice([-1.0, 1.0], n) * _log_uniform(rng, -30, -1, n)
        _, var = _from_ratio(np.full(n, ratio), _log_uniform(rng, -100, 100, n))
        return (ratio * np.sqrt(var.astype(np.float64)) * (1 + away)).astype(np.float32), var

    return joined([_NO_POINTS, *map(near, ratios)])


def points_at(places: tuple[float, ...], n: int, seed: int) -> Points:
    """Points around each of ``places``, at it and within some sigma of it, for any sigma; and those beside them."""
    rng = np.random.default_rng(seed)

    def around(place: float) -> Points:
        var = _log_uniform(rng, -100, 60, n).astype(np.float32)
        away = rng.choice([0.0, 1.0], n, p=[0.25, 0.75]) * rng.normal(0, 2.0, n)
        return (place + away * np.sqrt(var.astype(np.float64))).astype(np.float32), var

    return joined([*map(around, places), points_beside(places, n, seed)])


def points_beside(places: tuple[float, ...], n: int, seed: int) -> Points:
    """Points at the float32 numbers next to each of ``places``, which may be many sigma from it."""
    rng = np.random.default_rng(seed)

    def beside(place: float) -> Points:
        mean = (np.full(n, place, np.float32).view(np.int32) + rng.integers(-2, 3, n, dtype=np.int32)).view(np.float32)
        var = ((np.abs(mean.astype(np.float64) - place) / rng.uniform(0.05, 13, n)) ** 2).astype(np.float32)
        return usable(mean, var)

    return joined([_NO_POINTS, *map(beside, places)])


def neighbours(points: Points, seed: int, spread: int, count: int = 8) -> Points:
    """Points up to ``spread`` units in the last place from the given: where errors are bad they are worse nearby."""
    rng = np.random.default_rng(seed)
    mean, var = (_moved(rng, np.ascontiguousarray(array, np.float32), spread, count) for array in points)
    return usable(mean, var)


# --- the worst ------------------------------------------------------------------
_KEPT = (200, 60, 60, 60, 60, 60, 60)  # points per output that each round finds
_BLOCK = 64  # errors per block; blocks are ranked by their largest
_NEIGHBOURS = 24
_SPREAD = 1 << 12  # units in the last place that the first climb looks around


def nearly_exact(stable: Stable, mean: F32, var: F32, setting: Mapping[str, float]) -> dict[str, F64]:
    """The six outputs at float32 points by the graphs meant for float64: no truth, but a screen."""
    points = {"mean": mean, "var": var, **setting}
    return outputs_float64(stable.forward64, points) | outputs_float64(stable.partials64, points)


def largest(error: F64, count: int) -> npt.NDArray[np.int64]:
    """Where the ``count`` largest of many are, in order; NaN counts as infinite.

    They lie in the as many blocks whose maxima are largest: a partition of all takes ten times as long.  Of equal
    errors those at earlier places are taken; NumPy's ``argpartition`` takes others on other processors.

    >>> largest(np.arange(1000.0) % 500, 3)
    array([498, 499, 999])
    """
    blocks = error.size // _BLOCK
    chosen = _first_largest(error[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1), count)
    inside = (chosen[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
    candidates = np.append(inside, np.arange(blocks * _BLOCK, error.size))
    return candidates[_first_largest(error[candidates], count)]


def _first_largest(values: F64, count: int) -> npt.NDArray[np.int64]:
    """Where the ``count`` largest of a few are, in order; of those equal to the least of them the first."""
    if values.size <= count:
        return np.arange(values.size)
    numbers = np.where(np.isnan(values), np.inf, values)
    least = np.partition(numbers, -count)[-count]
    equal = np.flatnonzero(numbers == least)
    above = np.flatnonzero(numbers > least)
    return np.sort(np.append(above, equal[: count - above.size]))


def worst_points(
    stable: Stable, run: Callable[..., Mapping[str, F32]], setting: Mapping[str, float], *, points: int, seed: int
) -> Points:
    """Points of the domain where ``run`` is worst, all outputs together, of ``points`` that are screened first.

    ``run`` gives the program's outputs and partials at given means and variances, and a setting.
    """
    (mean, var), known = _first_round(stable, setting, points, seed)
    found: list[Points] = []
    rng = np.random.default_rng(seed)
    for round_, kept in enumerate(_KEPT):
        if round_:
            mean, var = usable(mean, var)
        computed, errors = run(mean, var, setting), _errors(stable, mean, var, setting) if round_ else known
        chosen = [largest(errors_of(computed[name]), kept) for name, errors_of in errors.items()]
        best = np.unique(np.concatenate(chosen))
        mean, var = mean[best], var[best]
        found.append((mean, var))
        for spread in (max(_SPREAD >> (4 * round_), 8), 8):
            mean, var = joined([(mean, var), tuple(_moved(rng, values, spread, _NEIGHBOURS) for values in found[-1])])
    return joined(found)


def _errors(stable: Stable, mean: F32, var: F32, setting: Mapping[str, float]) -> Mapping[str, Errors]:
    """By output, what makes errors of results at these points."""
    reference = nearly_exact(stable, mean, var, setting)
    return {name: errors_over(stable.measure, name, values, mean, var) for name, values in reference.items()}


def _first_round(
    stable: Stable, setting: Mapping[str, float], points: int, seed: int
) -> tuple[Points, Mapping[str, Errors]]:
    """Where a search begins, and the errors there: the same for all programs of a variant, and so found once."""
    known = _first_rounds.setdefault(stable.forward64, {})
    key = (stable.variant, *setting.values(), points, seed)
    if key not in known:
        known[key] = _screen(stable, setting, points, seed)
    return known[key]


#: by the variant's graph, so that they go when it does
_first_rounds: WeakKeyDictionary[Graph, dict[Hashable, tuple[Points, Mapping[str, Errors]]]] = WeakKeyDictionary()


def _screen(
    stable: Stable, setting: Mapping[str, float], points: int, seed: int
) -> tuple[Points, Mapping[str, Errors]]:
    groups = [
        wide_points(points, seed),
        _apart(points // 4, seed),
        near_points(stable.focus(setting), points // 4, seed),
        points_at(stable.places(setting), points // 16, seed),
    ]
    mean, var = usable(*joined(groups))
    return (mean, var), _errors(stable, mean, var, setting)


def _apart(n: int, seed: int) -> Points:
    """Mean and variance over all of float32 apart from each other."""
    rng = np.random.default_rng(seed)
    mean = rng.choice([-1.0, 1.0], n) * np.exp2(rng.uniform(-126, 128, n))
    return mean.astype(np.float32), np.exp2(rng.uniform(-127, 128, n)).astype(np.float32)


def _moved(rng: np.random.Generator, values: F32, spread: int, count: int) -> F32:
    """Each value up to ``spread`` units in the last place away, ``count`` times."""
    bits = np.repeat(values.view(np.int32), count)
    return (bits + rng.integers(-spread, spread + 1, bits.size, dtype=np.int32)).view(np.float32)
