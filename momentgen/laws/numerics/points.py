"""Fixed quasi-random points of normal variables, over which functions of few correlated values are averaged."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

__all__ = ["POINTS", "elsewhere", "normal_points", "standard_points"]

#: how many points are enough for a class posterior or the moments of a softmax
POINTS = 512


@functools.lru_cache(maxsize=16)
def normal_points(dimensions: int, count: int = POINTS) -> Tensor:
    """A fixed quasi-random set of standard normal points, symmetric about 0, shape ``(count, dimensions)``, float64.

    >>> normal_points(3).shape, bool(normal_points(3).sum().abs() < 1e-9)
    (torch.Size([512, 3]), True)
    """
    return elsewhere(_drawn, dimensions, count)


@functools.lru_cache(maxsize=16)
def standard_points(dimensions: int, count: int = POINTS) -> Tensor:
    """The same, turned and scaled so that their covariance is the identity: linear functions have exact moments.

    Args:
        dimensions: fewer than half of ``count``.
        count: of the points, even.
    """
    return elsewhere(_whitened, normal_points(dimensions, count))


def elsewhere(make: Any, *args: Any) -> Tensor:
    """The result of ``make`` outside of the active transforms of ``torch.func``, which belong to a thread."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(make, *args).result()


def _drawn(dimensions: int, count: int) -> Tensor:
    engine: Any = torch.quasirandom.SobolEngine
    uniform = engine(dimensions, scramble=True, seed=0).draw(count // 2, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    return torch.cat([half, -half])


def _whitened(points: Tensor) -> Tensor:
    root = torch.linalg.cholesky(points.T @ points / len(points))
    return torch.linalg.solve_triangular(root, points.T, upper=False).T.contiguous()
