"""Minimax polynomials of smooth functions, by Remez exchange on the Chebyshev tail.

The function is first written as a Chebyshev series of high degree, in exact integers at a high
precision.  The minimax polynomial of degree n is then the series cut at n plus a small correction, and
that correction fits the *tail* of the series: a problem of numbers of one size, well conditioned in
plain doubles however small the error is.  So the exchange costs milliseconds, and an error of 1e-20 is
resolved as well as one of 1e-3.

All arithmetic is scalar IEEE or integer (no LAPACK), so a fit has the same bits on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from mpmath import mp, mpf
from mpmath.libmp import to_fixed

from momentgen.compiler.fit.special import Number
from momentgen.compiler.toolchain.arrays import F64
from momentgen.errors import BuildError

Function = Callable[[mpf], mpf]

_DIGITS = 40  # to which the function is evaluated, and the coefficients kept
_MAX_SERIES = 4096
_OVERSAMPLING = 128  # grid points an oscillation: the grid's maximum is within 1e-4 of the true one
_TAIL = 2.0**-46  # where the series may be cut, relative to the part of it that is being fitted


@dataclass(frozen=True)
class Polynomial:
    """A polynomial in x - centre that stands for a function on an interval.

    Attributes:
        coefficients: of the powers of ``x - centre``, low to high.
        centre: the point about which it is written.
        interval: (low, high), on which the error is measured.
        what: what it approximates, for messages and for the reader of generated code.
        error: measured maximum of the weighted error.
    """

    coefficients: tuple[mpf, ...]
    centre: mpf
    interval: tuple[mpf, mpf]
    what: str
    error: mpf

    @property
    def degree(self) -> int:
        """Degree of the polynomial: one less than the number of coefficients."""
        return len(self.coefficients) - 1

    def __call__(self, x: Number) -> mpf:
        """Value at ``x``, by Horner's scheme in mpmath's working precision."""
        z, value = mp.convert(x) - self.centre, mpf(0)
        for c in reversed(self.coefficients):
            value = value * z + c
        return value


def remez(
    function: Function,
    interval: tuple[Number, Number],
    degree: int,
    *,
    weight: Function | None = None,
    centre: Number = 0,
    what: str = "f",
) -> Polynomial:
    """The polynomial p of a degree that minimises max |weight(x) (p(x) - function(x))| on an interval.

    Args:
        function: mpmath callable, smooth on the interval, accurate to mpmath's working precision.
        interval: (low, high), low < high.
        degree: of the polynomial, 0 or more.
        weight: mpmath callable without zeros on the interval; 1/function (relative error) by default.
            Use ``lambda x: 1`` for the absolute error.
        centre: the polynomial is written in powers of ``x - centre``.
        what: what the function is, for messages.

    Returns:
        The fit, with its measured error.

    Raises:
        BuildError: stage ``approximate``, if the function is not smooth or not finite on the interval, if the
            weight has a zero or pole there, or if the interval or degree make no sense.

    Source: Remez 1934; for the reduction to the Chebyshev tail compare Trefethen, Approximation
    Theory and Approximation Practice, chapters 4 and 10.

    >>> from mpmath import mp
    >>> p = remez(mp.exp, (-1, 1), 1, weight=lambda x: 1)
    >>> print(mp.nstr(p.error, 8), mp.nstr(p.coefficients[1], 8))
    0.27880159 1.1752012
    """
    with mp.workdps(_DIGITS + 20):
        low, high, origin = mp.convert(interval[0]), mp.convert(interval[1]), mp.convert(centre)
        if not (mp.isfinite(low) and mp.isfinite(high) and low < high):
            raise _error(what, f"expected an interval (low, high) with low < high, got ({low}, {high})")
        if degree < 0:
            raise _error(what, f"expected a degree of 0 or more, got {degree}")
        series = _Series(function, low, high, degree, what)
        grid = chebyshev_points(max(1024, _OVERSAMPLING * (degree + 2)))
        correction, reference = _exchange(series.tail, lambda y: _weights(series, weight, y, what), grid, degree, what)
        chebyshev = [c + mpf(q) * series.scale for c, q in zip(series.head(), correction, strict=True)]
        coefficients = to_monomials(chebyshev, low, high, origin)
    with mp.workdps(_DIGITS):
        rounded = tuple(+c for c in coefficients)
    fit = Polynomial(rounded, +origin, (low, high), what, mpf(0))
    with mp.workdps(_DIGITS + 10):
        error = mpf(0)
        for y in reference:
            x = series.point(y)
            value = function(x)
            error = max(error, abs((fit(x) - value) * (weight(x) if weight is not None else 1 / value)))
    return Polynomial(rounded, origin, (low, high), what, mpf(mp.nstr(error, 17)))


def lowest_degree(
    function: Function,
    interval: tuple[Number, Number],
    degrees: range,
    goal: float,
    what: str,
    *,
    weight: Function | None = None,
    centre: Number = 0,
) -> Polynomial:
    """The fit of the first of these degrees whose weighted error is at most ``goal``; arguments as of :func:`remez`.

    Raises:
        BuildError: if none reaches the goal, or a fit fails.

    >>> len(lowest_degree(mp.exp, (-1, 1), range(2, 20), 1e-6, "exp").coefficients)
    8
    """
    for degree in degrees:
        fit = remez(function, interval, degree, weight=weight, centre=centre, what=what)
        if fit.error <= goal:
            return fit
    of = "a relative" if weight is None else "a weighted"
    raise _error(what, f"no polynomial up to degree {degrees[-1]} reaches {of} error of {goal}")


def _error(what: str, cause: str) -> BuildError:
    return BuildError(what, "approximate", cause)


@lru_cache(maxsize=64)
def _cosines_exact(count: int, bits: int) -> tuple[int, ...]:
    """cos(pi j / count) for j = 0 .. count, as integers scaled by 2**bits."""
    with mp.workprec(bits + 16):
        return tuple(int(to_fixed(mp.cospi(mpf(j) / count)._mpf_, bits)) for j in range(count + 1))


@lru_cache(maxsize=16)
def chebyshev_points(count: int) -> F64:
    """Chebyshev points in doubles, from 1 down to -1; not by numpy, whose cosine depends on the processor."""
    return np.array([math.ldexp(c, -100) for c in _cosines_exact(count, 100)])


def evaluate(function: Function, x: mpf, what: str) -> mpf:
    """``function(x)``, which must be a finite real number."""
    try:
        value = mp.convert(function(x))
    except ArithmeticError as failure:
        raise _error(what, f"cannot be evaluated at {mp.nstr(x, 17)}: {failure!r}") from failure
    if not isinstance(value, mpf) or not mp.isfinite(value):
        raise _error(what, f"expected a finite real value at {mp.nstr(x, 17)}, got {value}")
    return value


class _Series:
    """The Chebyshev series of a function on an interval, in integers times one power of two.

    The degree is doubled until the coefficients have fallen far below the part beyond ``degree``.
    """

    def __init__(self, function: Function, low: mpf, high: mpf, degree: int, what: str) -> None:
        self._function, self._what, self._degree = function, what, degree
        self._middle, self._half = (low + high) / 2, (high - low) / 2
        self._bits = int(3.33 * _DIGITS) + 32
        self._values: dict[tuple[int, int], mpf] = {}
        count = 16
        while count < 2 * degree + 8:
            count *= 2
        while True:
            self._transform(count)
            magnitudes = [abs(c) for c in self._coefficients]
            self._largest_tail = max(magnitudes[degree + 1 :])
            noise = (max(magnitudes) >> int(3.32 * _DIGITS)) + 1
            last = max(magnitudes[-max(4, count // 8) :])
            if last <= max(int(self._largest_tail * _TAIL), noise):
                break
            if count >= _MAX_SERIES:
                raise _error(
                    what,
                    f"expected a function smooth on [{mp.nstr(low, 6)}, {mp.nstr(high, 6)}], but its Chebyshev "
                    f"coefficients have not died out at degree {count}",
                )
            count *= 2
        # A tail of mere rounding noise means that the function is such a polynomial already.
        self.exact = self._largest_tail <= noise
        self.scale = mp.ldexp(max(self._largest_tail, 1), -self._shift)

    def point(self, y: float | mpf) -> mpf:
        """The x in the interval that belongs to y in [-1, 1]."""
        return self._middle + self._half * mpf(y)

    def _transform(self, count: int) -> None:
        cosines = _cosines_exact(count, self._bits)
        values = []
        for j in range(count + 1):
            divisor = math.gcd(j, count)
            key = (j // divisor, count // divisor)
            if key not in self._values:
                x = self.point(mp.ldexp(cosines[j], -self._bits))
                self._values[key] = evaluate(self._function, x, self._what)
            values.append(self._values[key])
        top = max(abs(v) for v in values)
        self._shift = self._bits - (int(mp.frexp(top)[1]) if top else 0)
        fixed = [int(to_fixed(v._mpf_, self._shift)) for v in values]
        fixed[0], fixed[-1] = fixed[0] // 2, fixed[-1] // 2
        # Integers are exact, so the plain sum over all pairs needs no care, and numpy's object loops make it quick.
        table = np.array(cosines + cosines[-2:0:-1], dtype=object)
        ordinates, steps = np.array(fixed, dtype=object), np.arange(count + 1)
        coefficients = []
        for k in range(count + 1):
            total = int(np.dot(ordinates, table[(k * steps) % (2 * count)]))
            coefficients.append((total * 2 // count) >> self._bits)
        coefficients[0] //= 2
        coefficients[-1] //= 2
        self._coefficients = coefficients

    def head(self) -> list[mpf]:
        """Coefficients of T_0 .. T_degree."""
        return [mp.ldexp(c, -self._shift) for c in self._coefficients[: self._degree + 1]]

    def tail(self, grid: F64) -> F64:
        """The series beyond ``degree``, over ``scale``, in doubles."""
        if self.exact:
            return np.zeros_like(grid)
        scaled = [0.0] * (self._degree + 1)
        scaled += [c / self._largest_tail for c in self._coefficients[self._degree + 1 :]]
        return _clenshaw(scaled, grid)

    def values(self, grid: F64) -> F64:
        """The function itself, up to one positive factor, in doubles."""
        top = max(abs(c) for c in self._coefficients) or 1
        return _clenshaw([c / top for c in self._coefficients], grid)


def _clenshaw(coefficients: list[float], y: F64) -> F64:
    after = np.zeros_like(y)
    now = np.zeros_like(y)
    for c in reversed(coefficients[1:]):
        now, after = c + 2 * y * now - after, now
    return np.asarray(coefficients[0] + y * now - after, dtype=np.float64)


def _weights(series: _Series, weight: Function | None, grid: F64, what: str) -> F64:
    """|weight| on a grid, over one factor that belongs to the function or the weight alone."""
    if weight is None:
        values = series.values(grid)
        if values.min() <= 1e-12 and values.max() >= -1e-12:
            raise _error(what, "the relative error needs a function without zeros on the interval: divide them out")
        weights = 1 / np.abs(values)
    else:
        with mp.workdps(20):
            raw = [mp.convert(weight(series.point(y))) for y in grid]
        if not all(mp.isfinite(w) for w in raw) or min(raw) <= 0 <= max(raw):
            raise _error(what, "expected a weight that is finite and without zeros on the interval")
        weights = np.array([float(abs(w)) for w in raw])
    return np.asarray(weights, dtype=np.float64)


def _exchange(
    target: Callable[[F64], F64], weights: Callable[[F64], F64], grid: F64, degree: int, what: str
) -> tuple[list[float], list[float]]:
    """Chebyshev coefficients of the weighted minimax fit to ``target``, and the points where it alternates."""
    size, last = degree + 2, len(grid) - 1
    goal, weighting = target(grid), weights(grid)
    reference = [round(i * last / (size - 1)) for i in range(size)]
    for _ in range(60):
        *solution, level = _level(goal[reference], weighting[reference], grid[reference])
        errors = weighting * (_clenshaw(solution, grid) - goal)
        worst = float(np.abs(errors).max())
        extrema = alternation(errors, size)
        if worst <= abs(level) * (1 + 1e-9) or worst < 1e-13 * weighting.max() or len(extrema) < size:
            break
        if extrema == reference:
            break
        reference = extrema
    else:
        raise _error(what, f"the exchange has not converged in 60 steps (level {abs(level):.3g}, worst {worst:.3g})")
    # One more step from the true extrema, which lie between the grid's points.
    points = np.array([extremum(errors, j, last) for j in reference])
    *solution, level = _level(target(points), weights(points), points)
    return solution, points.tolist()


def _level(goal: F64, weights: F64, points: F64) -> list[float]:
    """Coefficients whose weighted errors at the points are equal and alternate, and that error."""
    rows = []
    for i, y in enumerate(points.tolist()):
        row = [1.0, y][: len(points) - 1]
        while len(row) < len(points) - 1:
            row.append(2 * y * row[-1] - row[-2])
        rows.append([*row, (-1) ** i / float(weights[i])])
    return _solve(rows, goal.tolist())


def extremum(errors: F64, index: int, last: int) -> float:
    """The extremum near a grid point, from the parabola through it and its neighbours."""
    offset = 0.0
    if 0 < index < last:
        before, here, after = (float(e) for e in errors[index - 1 : index + 2])
        curvature = before - 2 * here + after
        if curvature:
            offset = max(-1.0, min(1.0, 0.5 * (before - after) / curvature))
    return float(mp.cospi((index + mpf(offset)) / last))


def alternation(errors: F64, size: int) -> list[int]:
    """``size`` indices at which the errors alternate in sign and are as large as can be."""
    signs = np.signbit(errors)
    starts = [0, *(np.flatnonzero(signs[1:] != signs[:-1]) + 1).tolist(), len(errors)]
    magnitudes = np.abs(errors)
    picks = [a + int(magnitudes[a:b].argmax()) for a, b in pairwise(starts)]
    while len(picks) > size:
        if len(picks) == size + 1:
            picks.pop(0 if magnitudes[picks[0]] < magnitudes[picks[-1]] else -1)
            continue
        # Dropping a neighbouring pair keeps the alternation; drop the pair whose larger one is smallest.
        pairs = [max(magnitudes[a], magnitudes[b]) for a, b in pairwise(picks)]
        at = int(np.argmin(pairs))
        if magnitudes[picks[0]] <= pairs[at]:
            picks.pop(0)
        elif magnitudes[picks[-1]] <= pairs[at]:
            picks.pop()
        else:
            del picks[at : at + 2]
    return picks


def _solve(rows: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with partial pivoting, in scalar doubles: the same bits everywhere."""
    matrix = [[*row, b] for row, b in zip(rows, right, strict=True)]
    size = len(matrix)
    for k in range(size):
        pivot = max(range(k, size), key=lambda i: abs(matrix[i][k]))
        matrix[k], matrix[pivot] = matrix[pivot], matrix[k]
        for i in range(k + 1, size):
            factor = matrix[i][k] / matrix[k][k]
            if factor:
                matrix[i] = [a - factor * b for a, b in zip(matrix[i], matrix[k], strict=True)]
    solution = [0.0] * size
    for k in reversed(range(size)):
        known = math.fsum(matrix[k][j] * solution[j] for j in range(k + 1, size))
        solution[k] = (matrix[k][size] - known) / matrix[k][k]
    return solution


def to_monomials(chebyshev: list[mpf], low: mpf, high: mpf, centre: mpf) -> list[mpf]:
    """Coefficients in powers of x - centre; carried with digits to spare, for the change of basis loses some."""
    size = len(chebyshev)
    with mp.workprec(mp.prec + 8 * size + 64):
        slope = 2 / (high - low)
        offset = slope * (centre - (low + high) / 2)
        before, now = [mpf(1)], [offset, slope]
        total = [chebyshev[0]] + [mpf(0)] * (size - 1)
        for k in range(1, size):
            for i, c in enumerate(now):
                total[i] += chebyshev[k] * c
            after = [2 * offset * c for c in now] + [mpf(0)]
            for i, c in enumerate(now):
                after[i + 1] += 2 * slope * c
            for i, c in enumerate(before):
                after[i] -= c
            before, now = now, after
        return total
