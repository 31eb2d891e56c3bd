r"""Functions as sums of atoms that smoothing by a Gaussian maps to themselves.

An atom of variance tau and order n is

    T_n(u; tau) = d^n/du^n Phi(u/sqrt(tau)),     n = -2, -1, 0, 1, ...

(n = -1, -2: integrals from -oo, that is ReLU's first and half its second moment).  Adding v to the variance of a normal
input turns T_n(u; tau) into T_n(u; tau + v), a derivative in u raises n: a function fitted by atoms of K variances has
its mean, and all derivatives of the mean, in closed form at one exponential a variance.  With orders up to 4 or 5, five
variances reach 1e-8 for the activations in use; with orders 0 and 1 alone (a scale mixture) it takes seven.

The fit is by least squares over points, reweighted towards the largest error (Lawson's iteration), in value and in two
derivatives at once, with the growth at +oo as exact constraints, and a ridge that keeps coefficients small: in floating
point an error of 1e-9 is worth nothing if it takes coefficients of 1000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from momentgen.compiler.fit.reflections import least_squares

__all__ = ["AtomFit", "AtomTarget", "atoms", "fit_atoms"]

F64 = npt.NDArray[np.float64]
_ROUNDING = 1.5 * 2.0**-24  # what a unit coefficient costs: its own rounding, the atom's and the sum's
_ROUNDS = 8
_erfc = np.vectorize(math.erfc, otypes=[float])


@dataclass(frozen=True, eq=False)
class AtomTarget:
    """A function to be fitted, vanishing at -oo.

    Attributes:
        u: points, shape (n,).
        values: the function and its first two derivatives there, shape (n, 3).
        allowed: the error allowed to each of the three.
        low: the lowest order, -2 to 1.
        far: totals of the coefficients of orders low..0 that the growth at +oo asks for, Σ_k c_k,n (and for the
            value of a quadratic, Σ_k (c_k,0 + tau_k c_k,-2/2)).
    """

    u: F64
    values: F64
    allowed: tuple[float, float, float]
    low: int
    far: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class AtomFit:
    """Coefficients, one row a variance, one column an order from ``low`` on, and the largest errors found.

    Attributes:
        low: the lowest order.
        coefficients: shape (K, orders), in terms of T_n.
        errors: of the value and the first two derivatives.
        share: the largest error over what is allowed, rounding of coefficients included.
    """

    low: int
    coefficients: F64
    errors: tuple[float, float, float]
    share: float


def atoms(u: F64, tau: float, low: int, high: int) -> dict[int, F64]:
    """T_n(u; tau) for low <= n <= high, in float64.

    >>> atoms(np.zeros(1), 1.0, 0, 0)[0]
    array([0.5])
    """
    w = math.sqrt(tau)
    h = u / w
    big, small = _erfc(-h / math.sqrt(2)) / 2, np.exp(-h * h / 2) / math.sqrt(2 * math.pi)
    t = {0: big, 1: small / w}
    for n in range(1, high):
        t[n + 1] = -(u / tau) * t[n] - ((n - 1) / tau * t[n - 1] if n > 1 else 0.0)
    t[-1] = w * (h * big + small)
    t[-2] = tau * ((h * h + 1) * big + h * small) / 2
    return {n: t[n] for n in range(low, high + 1)}


def fit_atoms(target: AtomTarget, taus: Sequence[float], high: int, rounds: int = _ROUNDS) -> AtomFit:
    """The coefficients for atoms of given variances, orders ``target.low`` to ``high``.

    Args:
        target: what to fit.
        taus: variances.
        high: the highest order.
        rounds: of Lawson's iteration; 1 is plain least squares, a few times worse and as much quicker.
    """
    low, count = target.low, len(taus)
    orders = range(low, high + 1)
    if min(target.allowed) == 0:  # f is constant but for jumps: no fit has no error at all
        return AtomFit(low, np.zeros((count, len(orders))), (math.inf, math.inf, math.inf), math.inf)
    tables = [atoms(target.u, tau, low, high + 2) for tau in taus]
    # Columns of comparable size: T_n is of the order tau^(-n/2) for n > 0.
    scale = np.array([tau ** (max(n, 0) / 2) for tau in taus for n in orders])
    blocks = [np.stack([t[n + j] for t in tables for n in orders], 1) * scale for j in range(3)]
    matrix = np.concatenate([b / a for b, a in zip(blocks, target.allowed, strict=True)])
    wanted = np.concatenate([target.values[:, j] / a for j, a in enumerate(target.allowed)])
    start, free = _far_conditions(target, taus, len(orders))
    # What rounding each coefficient costs, in the units of the objective.
    ridge = np.full(count * len(orders), _ROUNDING / target.allowed[0])
    inner = np.einsum("ij,jk->ik", matrix, free)
    rest = wanted - np.einsum("ij,j->i", matrix, start)
    weights = np.ones(len(wanted))
    best = math.inf, start
    for _ in range(rounds):
        root = np.sqrt(weights)
        left = np.concatenate([inner * root[:, None], ridge[:, None] * free])
        right = np.concatenate([rest * root, -ridge * start])
        solution = start + np.einsum("ij,j->i", free, least_squares(left, right))
        error = np.abs(np.einsum("ij,j->i", matrix, solution) - wanted)
        share = float(error.max()) + _ROUNDING / target.allowed[0] * float(np.abs(solution).max())
        if share < best[0]:
            best = share, solution
        if not 0 < error.max() < math.inf:  # nothing is left to weigh, or no number
            break
        weights = weights * (error / error.max() + 1e-2)
        weights /= weights.mean()
    share, solution = best
    fitted = [np.einsum("ij,j->i", b, solution) for b in blocks]
    value, first, second = (float(np.abs(w - target.values[:, j]).max()) for j, w in enumerate(fitted))
    return AtomFit(low, (solution * scale).reshape(count, len(orders)), (value, first, second), share)


def _far_conditions(target: AtomTarget, taus: Sequence[float], orders: int) -> tuple[F64, F64]:
    """All coefficients that grow as they should: start + free @ z.  The first variance's follow from the rest."""
    low, count = target.low, len(taus)
    tied = range(1 - low)
    start, free = np.zeros(count * orders), np.delete(np.eye(count * orders), list(tied), axis=1)
    for column in tied:
        start[column] = target.far[column]
        for k in range(1, count):
            free[column] -= free[k * orders + column]
    if low == -2:
        start[2] -= taus[0] / 2 * start[0]
        free[2] -= taus[0] / 2 * free[0]
        for k in range(1, count):
            free[2] -= taus[k] / 2 * free[k * orders]
    return start, free
