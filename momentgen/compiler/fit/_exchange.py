"""Linear minimax: min over d of max |r + J d|, by single exchange (Stiefel), the dual simplex method in disguise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["linear_minimax"]

_Array = NDArray[np.float64]


def linear_minimax(residual: _Array, jacobian: _Array, steps: int = 500) -> _Array:
    """The d that minimises ``max |residual + jacobian @ d|``.

    Args:
        residual: shape (m,).
        jacobian: shape (m, n), m > n, of full column rank; columns may differ in size by any factor.
        steps: exchanges at most; the best reference so far serves where they run out.

    Returns:
        Shape (n,).

    >>> x = np.linspace(-1, 1, 201)
    >>> d = linear_minimax(-np.abs(x), np.stack([np.ones_like(x), x], axis=1))
    >>> print(np.round(d[0], 12))
    0.5
    """
    scale = np.abs(jacobian).max(axis=0)
    rows = jacobian / scale
    count = rows.shape[1]
    reference = _independent_rows(rows)
    rest = np.setdiff1d(np.arange(len(rows)), reference)
    reference.append(int(rest[np.abs(residual[rest]).argmax()]))
    # The multipliers of the reference are its null vector; their signs are those of the errors at its optimum.
    signs = np.sign(np.linalg.svd(rows[reference].T)[2][-1])
    signs[signs == 0] = 1.0
    solution = _solve_reference(residual, rows, reference, signs)
    if solution[-1] < 0:
        signs = -signs
    for _ in range(steps):
        solution = _solve_reference(residual, rows, reference, signs)
        errors = residual + rows @ solution[:-1]
        entering = int(np.abs(errors).argmax())
        if abs(errors[entering]) <= solution[-1] * (1 + 1e-9) + 1e-14:
            break
        sign = np.sign(errors[entering])
        dual = np.vstack([(signs[:, None] * rows[reference]).T, np.ones(count + 1)])
        sides = np.zeros((count + 1, 2))
        sides[count] = 1.0
        sides[:count, 1] = sign * rows[entering]
        multipliers, entry = np.linalg.solve(dual, sides).T
        ratios = np.full(count + 1, np.inf)
        positive = entry > 1e-12
        ratios[positive] = np.maximum(multipliers[positive], 0) / entry[positive]
        leaving = int(ratios.argmin())
        reference[leaving], signs[leaving] = entering, sign
    return np.asarray(solution[:-1] / scale, dtype=np.float64)


def _solve_reference(residual: _Array, rows: _Array, reference: list[int], signs: _Array) -> _Array:
    """D and the level E with residual + rows d = signs E on the reference."""
    system = np.hstack([rows[reference], -signs[:, None]])
    return np.asarray(np.linalg.solve(system, -residual[reference]), dtype=np.float64)


def _independent_rows(rows: _Array) -> list[int]:
    """As many well conditioned rows as there are columns: each the one that sticks out furthest of those before."""
    left, chosen = rows.copy(), []
    for _ in range(rows.shape[1]):
        norms = np.einsum("ij,ij->i", left, left)
        chosen.append(int(norms.argmax()))
        direction = left[chosen[-1]] / np.sqrt(norms[chosen[-1]])
        for _ in range(2):
            left = left - np.outer(left @ direction, direction)
    return chosen
