r"""Chebyshev series of two variables through values at the nodes of a grid, with their derivatives there.

    f(x, z) ~ Σ_j Σ_i c_ji T_j(z) T_i(x),    |x| <= 1, |z| <= 1

A truncated series needs about a tenth more terms than the best polynomial, and no iteration: a thousand terms in
float64 are found as quickly as fifty.  :mod:`momentgen.compiler.approximate.bivariate` has the nodes, and the fit with
the fewest terms.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from momentgen.compiler.approximate.bivariate import columns, nodes, rows, transform

__all__ = ["Grid"]

F64 = npt.NDArray[np.float64]


class Grid:
    """Nodes, and the Chebyshev polynomials with their slopes there.

    Args:
        row_count: nodes in z, :func:`rows`.
        column_count: nodes in x, :func:`columns`.

    >>> grid = Grid(6, 8)
    >>> grid.series(grid.z[:, None] * (2 * grid.x**2 - 1)).round(12)[1, :4] + 0.0
    array([0., 0., 1., 0.])
    """

    def __init__(self, row_count: int, column_count: int) -> None:
        self.z, self.x = rows(row_count), columns(column_count)
        self._of_z, self._slope_of_z = _polynomials(self.z)
        self._of_x, self._slope_of_x = _polynomials(self.x)
        # The nodes are Chebyshev's on an interval that is a little longer: 1/first in x, (3 + first)/(1 + first) in z.
        first = nodes(row_count)[0]
        self._from_z = _rebased((1 + first) / 2, (first - 1) / 2, row_count)
        self._from_x = _rebased(nodes(column_count)[0], 0.0, column_count)

    def series(self, values: F64) -> F64:
        """c_ji of the polynomial through values at z x x."""
        return _between(self._from_z, values, self._from_x)

    def values(self, series: F64) -> F64:
        """The values of a series, which may have fewer terms, at the nodes."""
        return self._at_nodes(series, self._of_z, self._of_x)

    def slopes(self, series: F64) -> tuple[F64, F64]:
        """The derivatives of a series in x and in z, at the nodes."""
        by_x = self._at_nodes(series, self._of_z, self._slope_of_x)
        return by_x, self._at_nodes(series, self._slope_of_z, self._of_x)

    @staticmethod
    def _at_nodes(series: F64, of_z: F64, of_x: F64) -> F64:
        r, c = series.shape
        return _between(of_z[:, :r], series, of_x[:, :c])


def _between(left: F64, middle: F64, right: F64) -> F64:
    # Not matmul, whose bits depend on the machine.
    return np.einsum("ka,an->kn", np.einsum("kj,ja->ka", left, middle), np.ascontiguousarray(right.T))


def _polynomials(x: F64) -> tuple[F64, F64]:
    """T_n and T_n' at so many points as there are orders."""
    of_first = [np.ones_like(x), x]
    of_second = [np.ones_like(x), 2 * x]  # T_n' = n U_n-1
    for _ in range(len(x) - 2):
        of_first.append(2 * x * of_first[-1] - of_first[-2])
        of_second.append(2 * x * of_second[-1] - of_second[-2])
    slopes = [np.zeros_like(x), *(n * of_second[n - 1] for n in range(1, len(x)))]
    return np.stack(of_first, 1), np.stack(slopes, 1)


@lru_cache
def _rebased(factor: float, shift: float, count: int) -> F64:
    """Values at points of which ``factor`` times them, and ``shift`` more, are the nodes -> Chebyshev coefficients."""
    order = np.arange(count)[:, None]
    inner = np.cos(order * np.arccos(np.clip(factor * nodes(count) + shift, -1.0, 1.0)))  # T_n there, at true nodes
    rebase = np.einsum("mk,nk->mn", transform(count), inner)
    return np.einsum("mn,nk->mk", rebase, transform(count))
