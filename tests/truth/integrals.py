"""Means and standard deviations of functions of normal values: to ten digits, or by 2**18 quasi-random points.

- :func:`of_one`: of one value, by Gauss-Legendre panels split at the function's kinks and jumps.
- :func:`of_few`: of up to four values, by the product of Gauss-Hermite rules; for smooth functions alone.
- :func:`of_order`: of an order statistic of equal independent values, by its density.
- :func:`by_points`: of any function, by scrambled Sobol points; four digits.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

__all__ = ["by_points", "of_few", "of_one", "of_order"]

#: standard deviations beyond which a normal value counts for nothing
REACH = 12.0
#: mean and standard deviation
Truth = tuple[float, float]


def _panels(places: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss-Legendre rules between places, in pieces no longer than a half."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    inside = [place for place in places if abs(place) < REACH]
    ends = np.unique([*np.arange(-REACH, REACH + 0.25, 0.5), *inside])
    found = [
        (start + (nodes + 1) * (stop - start) / 2, weights * (stop - start) / 2)
        for start, stop in itertools.pairwise(ends)
    ]
    points, sizes = zip(*found, strict=True)
    return np.concatenate(points), np.concatenate(sizes)


def _moments(values: np.ndarray, weights: np.ndarray) -> Truth:
    mean = float(weights @ values)
    return mean, math.sqrt(float(weights @ (values - mean) ** 2))


def of_one(
    function: Callable[[np.ndarray], np.ndarray], mean: float = 0.0, std: float = 1.0, kinks: Sequence[float] = ()
) -> Truth:
    """Of a function of one normal value; ``kinks`` are places of the value where the function is not smooth."""
    points, weights = _panels([(place - mean) / std for place in kinks])
    return _moments(function(mean + std * points), weights * stats.norm.pdf(points))


def of_order(count: int, place: int, function: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> Truth:
    """Of the value at a place, counted from 0, of so many sorted standard normal values."""
    points, weights = _panels([])
    log_density = (
        stats.norm.logpdf(points) + place * stats.norm.logcdf(points) + (count - 1 - place) * stats.norm.logsf(points)
    )
    log_count = special.gammaln(count + 1) - special.gammaln(place + 1) - special.gammaln(count - place)
    return _moments(function(points), weights * np.exp(log_density + log_count))


def of_few(function: Callable[[Tensor], Tensor], mean: Tensor, root: Tensor, order: int) -> Truth:
    """Of a smooth function of rows, shape ``(N, n)``, of the normal law with covariance ``root.T @ root``."""
    nodes, weights = special.roots_hermitenorm(order)
    grid = torch.cartesian_prod(*[torch.as_tensor(nodes)] * len(mean)).reshape(-1, len(mean))
    sizes = torch.cartesian_prod(*[torch.as_tensor(weights / weights.sum())] * len(mean)).reshape(len(grid), -1).prod(1)
    values = function(mean + grid @ root).reshape(-1)
    return _moments(values.numpy(), sizes.numpy())


def by_points(function: Callable[[Tensor], Tensor], mean: Tensor, root: Tensor, power: int = 18) -> Truth:
    """Of any function of rows, by ``2**power`` scrambled Sobol points."""
    engine = torch.quasirandom.SobolEngine(len(mean), scramble=True, seed=1)
    drawn = engine.draw(2**power, dtype=torch.float64).clamp(2.0**-60, 1 - 2.0**-53)
    values = torch.cat([function(mean + part @ root).reshape(-1) for part in torch.special.ndtri(drawn).split(2**14)])
    return float(values.mean()), float(values.std())
