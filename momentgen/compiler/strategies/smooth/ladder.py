r"""Atoms for an f that nears its lines slowly: a ladder of variances over as many decades as the tolerance asks for.

1/(1 + |x|), atan x or sqrt(1 + x²) differ from their lines by a power of 1/x, which no few variances represent.  A tail
of that kind is a smooth superposition of atoms of all scales, so that scales in a widening geometric row serve, and the
further out, the coarser: what matters there is the tail's size, not its share.

The fit is that of :mod:`momentgen.compiler.fit.atoms`, but for the error allowed, which here depends on the
place: to the mean in proportion to its size; to the second moment, seen from the near side alone, on the far side what
the variance from that far away allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb, ctx

from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.smoothing import Side
from momentgen.compiler.fit.atoms import AtomFit, atoms
from momentgen.compiler.fit.reflections import least_squares
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.measure.moments import MEAN, MEAN_SPREAD, PARTIAL, VARIANCE
from momentgen.compiler.toolchain.arrays import F64

_SHARES = {"mean": 0.2, "var": 0.15, "partial": 0.1}
_ROUNDING = 1.5 * 2.0**-24  # what a unit coefficient costs
_STEP = 0.1  # of the logarithm of u: atoms of order 6 turn within a fifth of their distance
_BITS = 1200
_DUST = 1e-10


@dataclass(frozen=True, eq=False)
class LadderTarget:
    """A function to be fitted, vanishing at -oo.

    Attributes:
        u: points, shape (n,).
        values: the function and two derivatives, shape (n, 3).
        allowed: the errors allowed, shape (n, 3).
        low: the lowest order, -2 to 0.
        far: Σ_k c_k,n for n = low, low + 1, ... up to 0, as far as the growth at +oo ties them.
    """

    u: F64
    values: F64
    allowed: F64
    low: int
    far: tuple[float, ...]


def outskirts(f: Activation, side: Side) -> float:
    """|u| beyond which f is its lines to what the tolerance of the mean leaves to the fit."""
    distance = 8.0 * f.length
    while distance < 2.0**60 * f.length:
        u = np.array([-distance, distance])
        gap = np.abs(_excess(f, side, u, 1)[:, 0] - np.array([0.0, side.far.slope * distance + side.far.offset]))
        slopes = np.array([side.near.slope, side.near.slope + side.far.slope])
        if np.all(gap <= 0.5 * _SHARES["mean"] * MEAN * _size(f, u, slopes * distance)):
            return distance
        distance *= 1.25
    return distance


def _size(f: Activation, u: F64, values: F64) -> F64:
    """What the mean's error at u is measured by: f, but where f runs from -oo to oo the mean may be 0 at any sigma."""
    if f.left is not None and f.right is not None and f.left.slope * f.right.slope > 0:
        return np.asarray(1.0 + MEAN_SPREAD / MEAN * f.lipschitz * np.abs(u) / 5)
    return np.asarray(np.maximum(1.0, np.abs(values)))


def _excess(f: Activation, side: Side, u: F64, count: int) -> F64:
    """F̃ and its derivatives in u."""
    near, rows = side.near, []
    with ctx.workprec(_BITS):
        for point in u.tolist():
            at = arb(f.centre) + side.sign * arb(point)
            c = f.taylor(f.home(f.centre + side.sign * point), at, count)
            c = [side.sign**k * math.factorial(k) * w for k, w in enumerate(c)]
            c[0] -= near.slope * arb(point) + near.offset
            if count > 1:
                c[1] -= near.slope
            rows.append([float(w) for w in c])
    return np.array(rows)


def grid(f: Activation, end: float) -> F64:
    """Points of a fit, out to ``end`` on either side."""
    top = math.asinh(4 * end / f.length)
    half = np.sinh(np.linspace(0, top, math.ceil(top / _STEP))) / 4 * f.length
    return np.concatenate([-half[:0:-1], half])


def _slopes(f: Activation) -> F64:
    return np.array([abs(side.slope) if side else 0.0 for side in (f.left, f.right)])


def mean_target(f: Activation, truth: GeneralTruth, u: F64, start: float) -> LadderTarget:
    """F̃ from the left, smoothed by a variance ``start``."""
    side = Side(f, 1)
    if start == 0:
        values = _excess(f, side, u, 3)
        curve = f.bend
    else:
        values = _smoothed(f, truth, side, u, start, 1)
        curve = f.lipschitz / math.sqrt(start)
    near, far = side.near, side.far
    size = _size(f, u, values[:, 0] + near.slope * u + near.offset)
    gain = np.abs(values[:, 1] + near.slope)
    steep = f.lipschitz * np.minimum(f.lipschitz / np.maximum(gain, 1e-30), 30.0)
    allowed = np.stack(
        [
            _SHARES["mean"] * MEAN * size,
            _SHARES["var"] * VARIANCE / 2 * steep,
            np.full(u.size, _SHARES["partial"] * PARTIAL * curve),
        ],
        axis=1,
    )
    if far.slope == 0:
        return LadderTarget(u, values, allowed, 0, (far.offset,))
    return LadderTarget(u, values, allowed, -1, (far.slope, far.offset))


def _smoothed(f: Activation, truth: GeneralTruth, side: Side, u: F64, v: float, power: int) -> F64:
    """E F̃^power and its first two derivatives in u, at variance v."""
    near, sigma = side.near, math.sqrt(v)

    def terms(points: F64, z: F64, index: F64) -> list[F64]:
        away = side.sign * (points - f.centre)
        excess = (truth.values(points) - near.slope * away - near.offset) ** power
        # Less its value at the middle, whose share in the derivatives is nothing but rounding.
        middle = here[index][:, None]
        return [excess, (excess - middle) * side.sign * z / sigma, (excess - middle) * (z * z - 1) / v]

    at = f.centre + side.sign * u
    here = (truth.values(at) - near.slope * u - near.offset) ** power
    return truth.expectations(at, np.full(u.size, v), terms).T


def second_target(f: Activation, truth: GeneralTruth, u: F64, v: float, sign: int) -> LadderTarget:
    """F̃² as seen from one side, smoothed by v."""
    side = Side(f, sign)
    values = _smoothed(f, truth, side, u, v, 2)
    least = np.maximum(v, np.where(u > 0, u / 5, 0.0) ** 2)  # the smallest variance that brings u to the near side
    scale = np.minimum(f.lipschitz**2 * least, (f.span / 2) ** 2) + sum(h**2 for _, h in f.jumps) / 4
    # Derivatives far beyond are seen at large sigma alone, and follow from the values.
    seen = 1 + np.where(u > 0, u, 0.0) ** 2 / v
    allowed = np.stack(
        [
            _SHARES["var"] * VARIANCE * scale,
            _SHARES["partial"] * PARTIAL * scale * seen / math.sqrt(v),
            2 * _SHARES["partial"] * PARTIAL * scale * seen / v,
        ],
        axis=1,
    )
    a, b = side.far.slope, side.far.offset
    if a == 0:
        return LadderTarget(u, values, allowed, 0, (b * b,))
    # (a u + b + c/u)² has a constant of its own, left to the fit.
    return LadderTarget(u, values, allowed, -2, (2 * a * a, 2 * a * b))


def ladder(count: int, first: float, last: float, widening: float, start: float) -> tuple[float, ...]:
    """Variances tau, float32 numbers; the roots of tau + start go from ``first`` to ``last`` in steps that grow.

    ``widening`` is how much wider the last step is than the first, in logarithms.
    """
    steps = np.linspace(1.0, widening, count - 1)
    position = np.concatenate([[0.0], np.cumsum(steps)]) / steps.sum()
    return tuple(float(np.float32((first * (last / first) ** p) ** 2 - start)) for p in position)


def fit_ladder(
    target: LadderTarget, taus: tuple[float, ...], high: int, rounds: int, lasting: int | None = None
) -> AtomFit:
    """The coefficients for atoms of given variances, orders ``target.low`` to ``high``.

    Args:
        target: what to fit.
        taus: variances.
        high: the highest order.
        rounds: of Lawson's iteration.
        lasting: how many of the variances, from the smallest, have the orders up to 0, which do not fade as sigma
            grows; None: all.  What several of them differ by cancels there; of one, nothing does.
    """
    low, count = target.low, len(taus)
    orders = range(low, high + 1)
    tables = [atoms(target.u, tau, low, high + 2) for tau in taus]
    scale = np.array([tau ** (n / 2) for tau in taus for n in orders])  # columns of unit size
    blocks = [np.stack([t[n + j] for t in tables for n in orders], 1) * scale for j in range(3)]
    matrix = np.concatenate([b / a[:, None] for b, a in zip(blocks, target.allowed.T, strict=True)])
    wanted = (target.values / target.allowed).T.ravel()
    start, free = _tied(target, taus, len(orders), scale, count if lasting is None else lasting)
    unit = float(target.allowed[:, 0].min())
    ridge = _ROUNDING / unit
    inner = _times(matrix, free)
    rest = wanted - np.einsum("ij,j->i", matrix, start)
    weights = np.ones(len(wanted))
    best = math.inf, start
    for _ in range(rounds):
        root = np.sqrt(weights)
        left = np.concatenate([inner * root[:, None], ridge * free])
        right = np.concatenate([rest * root, -ridge * start])
        solution = start + np.einsum("ij,j->i", free, least_squares(left, right))
        error = np.abs(np.einsum("ij,j->i", matrix, solution) - wanted)
        share = float(error.max()) + 0.5 * _ROUNDING / unit * float(np.abs(solution - start).max())
        if share < best[0]:
            best = share, solution
        weights = weights * (error / error.max() + 1e-2)
        weights /= weights.mean()
    share, solution = best
    table = solution.reshape(count, len(orders))
    table[:, np.abs(table).max(axis=0) < _DUST] = 0.0  # what symmetry makes zero, exactly so
    solution = table.ravel()
    fitted = [np.einsum("ij,j->i", b, solution) for b in blocks]
    value, first, second = (float(np.abs(w - target.values[:, j]).max()) for j, w in enumerate(fitted))
    return AtomFit(low, (solution * scale).reshape(count, len(orders)), (value, first, second), share)


def _times(matrix: F64, free: F64) -> F64:
    """Their product: a column of ``free`` is one of the unit matrix, and perhaps a multiple of an earlier one."""
    later = free.shape[0] - 1 - np.argmax(free[::-1] != 0, axis=0)
    earlier = np.argmax(free != 0, axis=0)
    columns = np.arange(free.shape[1])
    product = matrix[:, later] * free[later, columns] + 0.0
    two = later != earlier
    product[:, two] += matrix[:, earlier[two]] * free[earlier, columns][two]
    return product


def _tied(target: LadderTarget, taus: tuple[float, ...], orders: int, scale: F64, lasting: int) -> tuple[F64, F64]:
    """All scaled coefficients that grow as they should: start + free @ z; those of the first variance follow."""
    tied = len(target.far)
    size = len(taus) * orders
    start, free = np.zeros(size), np.eye(size)
    for column, total in enumerate(target.far):
        start[column] = total / scale[column]
        for k in range(1, len(taus)):
            free[column, k * orders + column] = -scale[k * orders + column] / scale[column]
    absent = [k * orders + column for k in range(lasting, len(taus)) for column in range(1 - target.low)]
    return start, np.delete(free, [*range(tied), *absent], axis=1)
