"""Uncertain features at prediction: points of a normal distribution with weights, and quantiles of a mixture over them.

Estimators predict at each point; :mod:`~momentgen.inference.estimators.base` and ``regressor`` average what they say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

#: points per axis, and how many standard deviations they reach, for one, two and three uncertain features
_GRIDS = ((65, 6.0), (17, 6.0), (7, 4.5))
#: quasi-random points for more features, and features up to which their second moments are made exact
_POINTS, _EXACT = 256, 32
#: halvings of the interval that holds a quantile
_HALVINGS = 50


def normal_points(features: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Points ``(k, features)`` of independent standard normal numbers, and weights ``(k,)`` that add up to 1.

    Up to three features have the trapezoidal rule on a grid, which is exact to 1e-4 for smooth functions.  More have
    antithetic points of a scrambled Sobol sequence.

    >>> points, weights = normal_points(2)
    >>> round(float(weights @ points[:, 0] ** 4), 6)
    3.0
    """
    if not features:
        return np.zeros((1, 0)), np.ones(1)
    if features <= len(_GRIDS):
        count, reach = _GRIDS[features - 1]
        axis = np.linspace(-reach, reach, count)
        points = np.stack(np.meshgrid(*[axis] * features, indexing="ij"), -1).reshape(-1, features)
        weights = np.exp(-0.5 * np.square(points).sum(1))
        return points, weights / weights.sum()
    uniform = torch.quasirandom.SobolEngine(features, scramble=True, seed=0).draw(_POINTS // 2, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9)).numpy()
    if features <= _EXACT:
        half = half @ np.linalg.inv(np.linalg.cholesky(half.T @ half / len(half))).T
    return np.concatenate([half, -half]), np.full(_POINTS, 1 / _POINTS)


def mixture_quantile(
    cdf: Callable[[Any], Any], level: float, centres: NDArray[Any], scales: NDArray[Any], weights: NDArray[Any]
) -> NDArray[Any]:
    """Quantile of a mixture of one law, moved and scaled: ``(n,)``, for centres and scales ``(k, n)``.

    >>> from scipy.stats import norm
    >>> float(mixture_quantile(norm.cdf, 0.975, np.zeros((1, 1)), np.ones((1, 1)), np.ones(1)).round(2)[0])
    1.96
    """
    reach = np.ones(1)
    while (cdf(-reach) > min(level, 1 - level)).any() or (cdf(reach) < max(level, 1 - level)).any():
        reach = 2 * reach
    low, high = (centres - reach * scales).min(0), (centres + reach * scales).max(0)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = weights @ cdf((middle - centres) / scales) < level
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)
