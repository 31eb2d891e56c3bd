"""Minimax rational functions, by Remez exchange with Newton's method for the level equations.

Rationals earn their division where a function has a pole nearby or an asymptote to follow; elsewhere prefer
:func:`~momentgen.compiler.approximate.remez`.  The equations are solved in mpmath: they are badly conditioned as the
degrees grow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mpmath import mp, mpf

from momentgen.compiler.approximate._convert import Number, to_mpf
from momentgen.compiler.approximate.remez import (
    Function,
    alternation,
    chebyshev_points,
    evaluate,
    extremum,
    to_monomials,
)
from momentgen.errors import BuildError

__all__ = ["Rational", "remez_rational"]

_OVERSAMPLING = 32


@dataclass(frozen=True)
class Rational:
    """A quotient of polynomials in x - centre that stands for a function on an interval.

    Attributes:
        numerator: coefficients of the powers of ``x - centre``, low to high.
        denominator: alike; the first is 1.
        centre: the point about which it is written.
        interval: (low, high), where the error is measured and proven.
        what: what it approximates.
        error: measured maximum of the weighted error.
        bound: proven maximum of the weighted error; None until :func:`prove` has run.
    """

    numerator: tuple[mpf, ...]
    denominator: tuple[mpf, ...]
    centre: mpf
    interval: tuple[mpf, mpf]
    what: str
    error: mpf
    bound: mpf | None = None

    def __call__(self, x: Number) -> mpf:
        """Value at ``x``, in mpmath's working precision."""
        z = to_mpf(x) - self.centre
        return mp.polyval(self.numerator[::-1], z) / mp.polyval(self.denominator[::-1], z)


def remez_rational(
    function: Function,
    interval: tuple[Number, Number],
    degrees: tuple[int, int],
    *,
    weight: Function | None = None,
    centre: Number = 0,
    digits: int = 40,
    what: str = "f",
) -> Rational:
    """The quotient p/q of given degrees that minimises max |weight(x) (p(x)/q(x) - function(x))| on an interval.

    Args:
        function: mpmath callable, smooth on the interval.
        interval: (low, high), low < high.
        degrees: of the numerator and of the denominator; the latter 1 or more.
        weight: as for :func:`remez`: 1/function (relative error) by default.
        centre: both are written in powers of ``x - centre``.
        digits: decimal digits to which the function is evaluated and the coefficients kept.
        what: what the function is, for messages.

    Raises:
        BuildError: stage ``approximate``, if the exchange finds no nondegenerate fit without poles on the interval
            (try one degree less), or for what :func:`remez` refuses.

    >>> from mpmath import mp
    >>> r = remez_rational(mp.exp, (-1, 1), (2, 2), weight=lambda x: 1)
    >>> print(mp.nstr(r.error, 4))
    8.69e-5
    """
    top, bottom = degrees
    with mp.workdps(digits + 20):
        low, high, origin = to_mpf(interval[0]), to_mpf(interval[1]), to_mpf(centre)
        if not low < high or top < 0 or bottom < 1:
            raise _error(what, f"expected low < high and degrees (m >= 0, n >= 1), got ({low}, {high}) and {degrees}")
        size = top + bottom + 2
        grid = chebyshev_points(max(512, _OVERSAMPLING * size))
        sampler = _Sampler(function, weight, low, high, what)
        samples = [sampler(mpf(y)) for y in grid]
        solution, level = _interpolate(samples, [mpf(y) for y in grid], top, bottom), mpf(0)
        for _ in range(40):
            errors, poles = _errors(solution, samples, grid, top)
            if poles:
                raise _error(what, f"the denominator of degree {bottom} has a zero on the interval")
            worst = max(abs(e) for e in errors)
            if not worst:
                raise _error(what, f"is itself a quotient of degrees {degrees}, or of less")
            scaled = np.array([float(e / worst) for e in errors])
            picks = alternation(scaled, size)
            if len(picks) < size:
                raise _error(
                    what, f"expected {size} alternating extrema at degrees {degrees}, found {len(picks)}: degenerate"
                )
            # The level is that at the extrema themselves, between the grid's points.
            if worst <= level * (1 + mpf("1e-6")):
                break
            points = [mpf(extremum(scaled, i, len(grid) - 1)) for i in picks]
            start = mp.sign(errors[picks[0]]) * min(abs(errors[i]) for i in picks)
            solution, level = _newton(solution, start, points, [sampler(y) for y in points], top, what)
        else:
            raise _error(what, f"the exchange has not converged (level {mp.nstr(level, 4)}, worst {mp.nstr(worst, 4)})")
        numerator = to_monomials(solution[: top + 1], low, high, origin)
        denominator = to_monomials([mpf(1), *solution[top + 1 :]], low, high, origin)
        if not denominator[0]:
            raise _error(what, f"the denominator vanishes at the centre {mp.nstr(origin, 6)}: choose another")
        scale = denominator[0]
        error = mpf(mp.nstr(max(level, worst), 17))
    with mp.workdps(digits):
        return Rational(
            tuple(c / scale for c in numerator),
            tuple(c / scale for c in denominator),
            origin,
            (low, high),
            what,
            error,
        )


def _error(what: str, cause: str) -> BuildError:
    return BuildError(what, "approximate", cause)


class _Sampler:
    """(value, weight) of a function at y in [-1, 1]."""

    def __init__(self, function: Function, weight: Function | None, low: mpf, high: mpf, what: str) -> None:
        self._function, self._weight, self._low, self._high, self._what = function, weight, low, high, what

    def __call__(self, y: mpf) -> tuple[mpf, mpf]:
        x = (self._low + self._high) / 2 + (self._high - self._low) / 2 * y
        value = evaluate(self._function, x, self._what)
        if self._weight is not None:
            return value, evaluate(self._weight, x, self._what)
        if not value:
            raise _error(self._what, f"the relative error needs a function without zeros, but it is 0 at {x}")
        return value, 1 / value


def _chebyshev(y: mpf, count: int) -> list[mpf]:
    row = [mpf(1), y][:count]
    while len(row) < count:
        row.append(2 * y * row[-1] - row[-2])
    return row


def _interpolate(samples: list[tuple[mpf, mpf]], grid: list[mpf], top: int, bottom: int) -> list[mpf]:
    """p/q through as many samples as it has coefficients, at Chebyshev zeros: where to begin."""
    size, last = top + bottom + 1, len(grid) - 1
    matrix, right = mp.zeros(size), mp.zeros(size, 1)
    for j in range(size):
        i = round((j + mpf("0.5")) * last / size)
        value, row = samples[i][0], _chebyshev(grid[i], max(top, bottom) + 1)
        for k in range(top + 1):
            matrix[j, k] = row[k]
        for k in range(1, bottom + 1):
            matrix[j, top + k] = -value * row[k]
        right[j] = value
    return list(mp.lu_solve(matrix, right))


def _quotient(solution: list[mpf], y: mpf, top: int) -> tuple[mpf, mpf]:
    row = _chebyshev(y, max(top + 1, len(solution) - top))
    below = 1 + mp.fdot(solution[top + 1 :], row[1 : len(solution) - top])
    return mp.fdot(solution[: top + 1], row[: top + 1]), below


def _errors(
    solution: list[mpf], samples: list[tuple[mpf, mpf]], grid: np.ndarray[tuple[int], np.dtype[np.float64]], top: int
) -> tuple[list[mpf], bool]:
    """Weighted errors on the grid, and whether the denominator changes sign on it."""
    errors, signs = [], set()
    for y, (value, weight) in zip(grid.tolist(), samples, strict=True):
        above, below = _quotient(solution, mpf(y), top)
        signs.add(int(mp.sign(below)))
        errors.append(weight * (above / below - value) if below else mpf("inf"))
    return errors, len(signs) > 1


def _newton(
    solution: list[mpf], level: mpf, points: list[mpf], samples: list[tuple[mpf, mpf]], top: int, what: str
) -> tuple[list[mpf], mpf]:
    """Coefficients whose weighted errors at the points are level and alternate, and the level's size."""
    size = len(points)
    for _ in range(12):
        matrix, right = mp.zeros(size), mp.zeros(size, 1)
        for j, (y, (value, weight)) in enumerate(zip(points, samples, strict=True)):
            wanted = value + (-1) ** j * level / weight
            above, below = _quotient(solution, y, top)
            row = _chebyshev(y, max(top + 1, size - 1 - top))
            for k in range(top + 1):
                matrix[j, k] = row[k]
            for k in range(1, size - 1 - top):
                matrix[j, top + k] = -wanted * row[k]
            matrix[j, size - 1] = -((-1) ** j) * below / weight
            right[j] = wanted * below - above
        step = mp.lu_solve(matrix, right)
        solution = [c + step[i] for i, c in enumerate(solution)]
        level += step[size - 1]
        if abs(step[size - 1]) <= abs(level) * mpf("1e-12"):
            return solution, abs(level)
    raise _error(what, "the level equations have no solution near the interpolant: try other degrees")
