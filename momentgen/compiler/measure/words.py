"""The words for an error that is larger than its goal."""

from __future__ import annotations

from collections.abc import Mapping


def missed(error: float, output: str, at: Mapping[str, float], goal: float, unit: str) -> str:
    """State an error that is larger than its goal, and where it occurs.

    >>> missed(3e6, "dmean_dmu", {"mean": 1199.638916, "var": 21.5}, 1.0, "tolerance")
    'expected an error of at most 1 tolerance, got 3e+06 for dmean_dmu at mean = 1200, var = 21.5'
    """
    where = ", ".join(f"{name} = {value:.4g}" for name, value in at.items())
    return f"expected an error of at most {goal:g} {unit}, got {error:.3g} for {output} at {where}"
