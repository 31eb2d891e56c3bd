"""The points that decide a certificate, measured once more by slower and more exact means.

Most points are measured against quadrature in float64, which is quick.  What a certificate states should not rest on
it: the worst points of every output, and an even spread over the stated domain, are measured against balls of 256 bits,
and take part in the bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from momentgen.compiler.certify.bounds import Measured, Runner, measure_at
from momentgen.compiler.certify.points import Points, in_domain, wide_points
from momentgen.compiler.certify.search import worst_points
from momentgen.compiler.ir.stable import Stable

__all__ = ["recheck"]

_WORST, _EVEN, _SCREENED = 20, 60, 20_000
_DOMAIN = (1e4, 1e-12, 1e8)  # |mean| up to, variance from, to


def recheck(
    stable: Stable,
    runner: Runner,
    params_of: Callable[[Mapping[str, float]], Mapping[str, float]],
    measured: Measured,
    *,
    seed: int,
) -> Measured:
    """``measured``, with the errors at the decisive points by ``stable.rigorous`` taken in; as it is if there is none.

    Args:
        stable: the variant.
        runner: its programs.
        params_of: what they take, at a setting.
        measured: what quadrature found.
        seed: of the points.
    """
    if stable.rigorous is None:
        return measured
    for setting in stable.settings:
        here = replace(stable.at(setting), settings=(setting,))
        points = _decisive(here, runner, params_of(setting), setting, seed)
        measured = measure_at(replace(here, truth=stable.rigorous), runner, params_of, points, measured)
        if measured.hard:
            break
    return measured


def _decisive(
    stable: Stable, runner: Runner, params: Mapping[str, float], setting: Mapping[str, float], seed: int
) -> Points:
    candidates = worst_points(
        stable, lambda mean, var: runner(mean, var, params), setting, points=_SCREENED, seed=seed + 7
    )
    far, low, high = _DOMAIN
    mean, var = candidates
    usable = in_domain(mean, var) & (np.abs(mean) <= far) & (low <= var) & (var <= high)
    mean, var = mean[usable], var[usable]
    exact, computed = stable.truth(mean, var, setting), runner(mean, var, params)
    errors = (stable.measure(name, computed[name], exact[name], mean, var) for name in exact)
    chosen = [np.argsort(error, kind="stable")[-_WORST:] for error in errors]
    picked = np.unique(np.concatenate(chosen))
    even_mean, even_var = wide_points(4000, seed + 8)
    inside = in_domain(even_mean, even_var) & (np.abs(even_mean) <= far) & (low <= even_var) & (even_var <= high)
    even = np.flatnonzero(inside)[:_EVEN]
    return np.concatenate([mean[picked], even_mean[even]]), np.concatenate([var[picked], even_var[even]])
