"""Where a program's errors are largest: a search that a random sample cannot replace.

A sample's maximum is no bound, and where few points matter (the edge of an expansion, one binade of the variance) it
is far from one: programs certified within 2 ulp at 12,000 points reached 3.2 elsewhere.  The graphs meant for float64
are quick and good to some 1e-14, so that many points can be screened by them; the worst are then climbed from, a few
units in the last place at a time.  What is found is measured by the caller against exact values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from momentgen.compiler.certify.points import Points, in_domain, near_points, points_at, wide_points
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import Errors, Stable
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.toolchain.arrays import F32, F64

_KEPT = (200, 60, 60, 60, 60, 60, 60)  # points an output that each round finds
_BLOCK = 64  # errors of which the largest is looked at first
_NEIGHBOURS = 24
_SPREAD = 1 << 12  # units in the last place that the first climb looks around


def nearly_exact(stable: Stable, mean: F32, var: F32, setting: Mapping[str, float]) -> dict[str, F64]:
    """The six outputs by the graphs meant for float64: no truth, but a screen.

    Args:
        stable: the variant.
        mean, var: float32 arrays of one shape.
        setting: parameter name -> value.
    """
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
    stable: Stable,
    run: Callable[[F32, F32], Mapping[str, F32]],
    setting: Mapping[str, float],
    *,
    points: int,
    seed: int,
) -> Points:
    """Points of the domain where ``run`` is worst, all outputs together.

    Args:
        stable: the variant: its measure of error, its float64 graphs, and where it is to be looked at closely.
        run: the program's outputs and partials at given means and variances.
        setting: parameter name -> value.
        points: how many to screen first.
        seed: of the points.
    """
    (mean, var), known = _first_round(stable, setting, points, seed)
    found: list[Points] = []
    rng = np.random.default_rng(seed)
    for round_, kept in enumerate(_KEPT):
        if round_:
            usable = in_domain(mean, var)
            mean, var = mean[usable], var[usable]
        computed, errors = run(mean, var), _errors(stable, mean, var, setting) if round_ else known
        chosen = [largest(errors_of(computed[name]), kept) for name, errors_of in errors.items()]
        best = np.unique(np.concatenate(chosen))
        mean, var = mean[best], var[best]
        found.append((mean, var))
        for spread in (max(_SPREAD >> (4 * round_), 8), 8):
            mean, var = (
                np.append(mean, _moved(rng, found[-1][0], spread)),
                np.append(var, _moved(rng, found[-1][1], spread)),
            )
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])


def _errors(stable: Stable, mean: F32, var: F32, setting: Mapping[str, float]) -> Mapping[str, Errors]:
    """By output, what makes errors of results at these points."""
    reference = nearly_exact(stable, mean, var, setting)
    return {name: stable.errors(name, values, mean, var) for name, values in reference.items()}


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
    mean, var = (np.concatenate([group[i] for group in groups]) for i in (0, 1))
    usable = in_domain(mean, var)
    mean, var = mean[usable], var[usable]
    return (mean, var), _errors(stable, mean, var, setting)


def _apart(n: int, seed: int) -> Points:
    """Mean and variance over all of float32 apart from each other."""
    rng = np.random.default_rng(seed)
    mean = rng.choice([-1.0, 1.0], n) * np.exp2(rng.uniform(-126, 128, n))
    return mean.astype(np.float32), np.exp2(rng.uniform(-127, 128, n)).astype(np.float32)


def _moved(rng: np.random.Generator, values: F32, spread: int) -> F32:
    """Each value up to ``spread`` units in the last place away, several times."""
    bits = np.repeat(values.view(np.int32), _NEIGHBOURS)
    return (bits + rng.integers(-spread, spread + 1, bits.size, dtype=np.int32)).view(np.float32)
