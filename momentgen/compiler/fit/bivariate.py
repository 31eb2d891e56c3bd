r"""Polynomials of two variables on a square, with no more terms than an accuracy needs.

    f(x, z) ~ Σ_j z^j (E_j(y) + x O_j(y)),    y = 2x² - 1,    |x| <= 1, |z| <= 1,

E_j and O_j of degrees that fall with j.  In powers of y = T_2(x) coefficients stay small where those in powers of x
would grow like 2.4^degree: a series that converges like r^-n in T_n(x) does so like r^-2n in T_n(y).  Even and odd
parts are fitted apart, so that a symmetric function costs half.

Which terms: the Chebyshev coefficients above a threshold, filled up so that degrees fall with j; the largest threshold
for which a weighted fit (least squares with Lawson's reweighting) over Chebyshev nodes is within 1.

A truncated series (:class:`Grid`) needs about a tenth more terms, and no iteration: a thousand terms in float64 are
found as quickly as fifty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from momentgen.compiler.fit.reflections import least_squares
from momentgen.compiler.toolchain.arrays import F64

Degrees = tuple[int, ...]
_ROUNDS = 6  # of Lawson's iteration
_BISECTIONS = 6
_HOPELESS = 4.0  # reweighting does not make an error so many times smaller
_BEYOND = 1.0 + 1e-9  # a least mean square of the error over what is allowed: no reweighting brings it within 1
_ORDERS = 0.75  # of a series in z, for each row
_LARGEST = 450  # terms; beyond that something else is wanted


@dataclass(frozen=True)
class Bivariate:
    """Σ_j z^j (E_j(y) + x O_j(y)), y = 2x² - 1.

    Attributes:
        even, odd: per power of z, coefficients in y from low to high.
        error: the largest error over what was allowed, at the nodes.
    """

    even: tuple[tuple[float, ...], ...]
    odd: tuple[tuple[float, ...], ...]
    error: float

    @property
    def terms(self) -> int:
        """How many coefficients there are."""
        return sum(len(row) for row in (*self.even, *self.odd))

    @property
    def size(self) -> float:
        """The sum of the coefficients' sizes, which is what its rounding grows with."""
        return math.fsum(abs(c) for row in (*self.even, *self.odd) for c in row)


def columns(count: int) -> F64:
    """Points in x: Chebyshev nodes, from high to low, stretched so that the outermost are 1 and -1.

    >>> columns(3).round(4) + 0.0
    array([ 1.,  0., -1.])
    """
    points = nodes(count)
    return points / points[0]


def rows(count: int) -> F64:
    """Points in z: Chebyshev nodes, stretched so that the highest is 1; -1 itself is left out.

    >>> bool(rows(20)[-1] > -1), float(rows(20)[0])
    (True, 1.0)
    """
    points = nodes(count)
    return 2 * (1 + points) / (1 + points[0]) - 1


def nodes(count: int) -> F64:
    """Chebyshev nodes, from high to low."""
    return np.cos(np.pi * (np.arange(count) + 0.5) / count)


@lru_cache(maxsize=256)
def transform(count: int) -> F64:
    """Values at the nodes -> Chebyshev coefficients; not to be written to."""
    table = np.cos(np.arange(count)[:, None] * np.pi * (np.arange(count) + 0.5) / count) * 2 / count
    table[0] /= 2
    table.flags.writeable = False
    return table


def coefficients_of(values: F64) -> F64:
    """Values at the nodes, z x x -> Chebyshev coefficients."""
    inner = np.einsum("jk,kx->jx", transform(values.shape[0]), values)
    return np.einsum("jx,ix->ji", inner, transform(values.shape[1]))


def degrees_above(sizes: F64, threshold: float) -> Degrees:
    """Per power of z, up to which term they are larger; none has more than the one before."""
    large = sizes > threshold
    counts = np.where(large.any(axis=1), large.shape[1] - np.argmax(large[:, ::-1], axis=1), 0)
    return tuple(int(n) for n in np.maximum.accumulate(counts[::-1])[::-1] if n)


@dataclass(frozen=True, eq=False)
class BivariateTarget:
    """What is to be fitted, at ``rows`` x ``columns``.

    Attributes:
        values: shape (z, x), an even number of columns.
        weight: per row, one over the error allowed.
        factors: per row, what the even and the odd part in x are multiples of.
    """

    values: F64
    weight: F64
    factors: tuple[F64, F64]

    @property
    def parts(self) -> tuple[tuple[F64, F64], tuple[F64, F64]]:
        """The even and the odd part over their factors, and their weights."""
        mirrored = self.values[:, ::-1]
        even, odd = (self.values + mirrored) / 2, (self.values - mirrored) / 2
        by_even, by_odd = self.factors
        return (even / by_even[:, None], self.weight * by_even), (odd / by_odd[:, None], self.weight * by_odd)

    @property
    def sizes(self) -> tuple[F64, F64]:
        """Chebyshev coefficients of both parts over the error allowed, about, at the most."""
        even, odd = (np.abs(coefficients_of(values)) * weight.max() for values, weight in self.parts)
        return even, odd


def terms_needed(target: BivariateTarget) -> int:
    """About how many terms :func:`fit_bivariate` will take; a hundred times quicker."""
    return sum(sum(degrees_above(sizes[:, parity::2], 0.3)) for parity, sizes in enumerate(target.sizes))


def fit_bivariate(target: BivariateTarget) -> Bivariate | None:
    """The polynomial with the fewest terms found whose weighted error is within 1; None if it would take too many.

    >>> x, z, one = columns(12)[None, :], rows(8)[:, None], np.ones(8)
    >>> fit_bivariate(BivariateTarget(x * z + 3, 1e6 * one, (one, one))).even
    ((3.0,),)
    """
    sizes, parts = target.sizes, target.parts
    half = target.values.shape[1] // 2
    low, high = -2.0, 1.5  # of log10 of the threshold
    best: Bivariate | None = None
    known: dict[tuple[int, Degrees], tuple[list[F64], F64]] = {}
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        shape = [degrees_above(sizes[parity][:, parity::2], 10.0**middle) for parity in (0, 1)]
        if sum(map(sum, shape)) > _LARGEST:
            low = middle
            continue
        fits = []
        for parity, (values, weight) in enumerate(parts):
            key = parity, shape[parity]
            if key not in known:
                known[key] = _fit(values[:, :half], weight, shape[parity], parity)
            fits.append(known[key])
            if np.abs(known[key][1]).max() > 1.0:  # no use in the other
                break
        error = float(np.max(sum(np.abs(found) for _, found in fits)))
        if error <= 1.0:
            best = Bivariate(powers(fits[0][0], 0), powers(fits[1][0], 1), error)
            low = middle
        else:
            high = middle
    return best


def _fit(values: F64, weight: F64, degrees: Degrees, parity: int) -> tuple[list[F64], F64]:
    """Chebyshev coefficients per power of z, and the weighted errors at the nodes with x >= 0."""
    wanted = (values * weight[:, None]).ravel()
    if not degrees:
        return [], wanted.reshape(values.shape)
    count, half = values.shape
    in_z, in_x = np.arccos(np.clip(rows(count), -1, 1)), np.arccos(columns(2 * half)[:half])
    by_row = [np.cos(j * in_z) * weight for j in range(len(degrees))]
    by_column = [np.cos((2 * i + parity) * in_x) for i in range(max(degrees))]
    pairs = [(a, by_column[i]) for a, n in zip(by_row, degrees, strict=True) for i in range(n)]
    matrix = np.stack([(a[:, None] * b).ravel() for a, b in pairs], 1)
    importance = np.ones(len(wanted))
    best = math.inf, np.zeros(matrix.shape[1]), wanted
    for _ in range(_ROUNDS):
        root = np.sqrt(importance)
        solution = least_squares(matrix * root[:, None], wanted * root)
        error = wanted - np.einsum("ij,j->i", matrix, solution)
        largest = float(np.abs(error).max())
        if largest < best[0]:
            best = largest, solution, error
        if largest == 0.0 or largest > _HOPELESS:
            break
        # No polynomial's largest error is below the least weighted mean square, whatever the weights.
        if float(np.mean(importance * error * error)) > _BEYOND:
            break
        importance = importance * (np.abs(error) / largest + 1e-2)
        importance /= importance.mean()
    _, solution, error = best
    return np.split(solution, np.cumsum(degrees)[:-1]), error.reshape(values.shape)


def powers(series_of: list[F64], parity: int) -> tuple[tuple[float, ...], ...]:
    """Chebyshev series in x and z of a parity in x -> powers of y and z, an odd one's factor x taken out.

    >>> powers([np.array([1.0, 0.5])], 0)  # 1 + T_2(x)/2
    ((1.0, 0.5),)
    """
    if not series_of:
        return ()
    table = np.zeros((len(series_of), len(series_of[0])))
    for series, row in zip(table, series_of, strict=True):
        count = len(row)
        series[:count] = row
        if parity:  # T_2n(x) = T_n(y); T_2n+1(x) = x (2 T_n(y) - 2 T_n-1(y) + ... ± 1)
            series[:count] = [2 * sum((-1) ** (n - i) * row[n] for n in range(i, count)) for i in range(count)]
            series[0] /= 2
    return tuple(tuple(found[: len(row)].tolist()) for found, row in zip(powers_of(table), series_of, strict=True))


# --- series, f(y, z) ~ Σ_j Σ_i c_ji T_j(z) T_i(y) ---------------------------------
class Grid:
    """Nodes, and the series through values there.

    Args:
        row_count: nodes in z, :func:`rows`.
        column_count: nodes in y.
        both: whether -1 is a node in y, as 1 is: :func:`columns`, or else :func:`rows`.

    >>> grid = Grid(6, 8)
    >>> grid.series(grid.z[:, None] * (2 * grid.y**2 - 1), np.ones(6)).round(12)[1, :4] + 0.0
    array([0., 0., 1., 0.])
    """

    def __init__(self, row_count: int, column_count: int, both: bool = True) -> None:
        self.z, self.y = rows(row_count), columns(column_count) if both else rows(column_count)
        # The nodes are Chebyshev's on an interval that is a little longer: 1/first, or (3 + first)/(1 + first) times.
        first = nodes(column_count)[0]
        self._from_y = _rebased(*((first, 0.0) if both else ((1 + first) / 2, (first - 1) / 2)), column_count)

    def series(self, values: F64, weight: F64) -> F64:
        """c_ji through values at z x y; of three quarters as many orders in z as rows, which count by their weights.

        Weights keep the noise of rows in which little accuracy is wanted, and had, from the others.
        """
        in_z = np.cos(np.arange(math.ceil(_ORDERS * len(self.z))) * np.arccos(np.clip(self.z, -1, 1))[:, None])
        of_rows = least_squares(in_z * weight[:, None], values * weight[:, None])
        # Not matmul, whose bits depend on the machine.
        return np.einsum("ja,ia->ji", of_rows, self._from_y)


def values_over(series: npt.NDArray[Any], z: F64, y: F64) -> F64:
    """A series' values at z x y; three times as quick as ``chebgrid2d``.

    >>> values_over(np.array([[1.0, 2.0], [0.0, 0.5]]), np.array([0.5]), np.array([-1.0, 1.0]))
    array([[-1.25,  3.25]])
    """
    rows, columns = series.shape
    of_z, of_y = chebyshev.chebvander(z, rows - 1), chebyshev.chebvander(y, columns - 1)
    # Not matmul, whose bits depend on the machine.
    return np.asarray(np.einsum("zi,yi->zy", np.einsum("zj,ji->zi", of_z, series), of_y))


def powers_of(series: F64) -> F64:
    """Coefficients of Chebyshev polynomials -> of powers, in both variables.

    >>> powers_of(np.array([[1.0, 0.0, 0.5]])) + 0.0
    array([[0.5, 0. , 1. ]])
    """
    for _ in range(2):
        count = series.shape[1]
        padded = [np.pad(power, (0, count - len(power))) for power in map(chebyshev.cheb2poly, series)]
        series = np.array(padded, np.float64).T
    return series


@lru_cache
def _rebased(factor: float, shift: float, count: int) -> F64:
    """Values at the points p whose ``factor`` p + ``shift`` are the nodes -> Chebyshev coefficients."""
    order = np.arange(count)[:, None]
    inner = np.cos(order * np.arccos(np.clip(factor * nodes(count) + shift, -1.0, 1.0)))  # T_n there, at true nodes
    rebase = np.einsum("mk,nk->mn", transform(count), inner)
    return np.einsum("mn,nk->mk", rebase, transform(count))
