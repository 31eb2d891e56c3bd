"""Fitting a Gaussian scale mixture: variable projection over minimax, then Newton on the equations it ends in.

For given scales the weights enter linearly: their minimax is found outright.  The scales move by linearised
minimax steps in a trust region; with the weights following exactly, that converges in some ten steps from Gauss
quadrature of the mixing law (moving both alike takes hundreds).  At the optimum 2 K extrema of value and slope
error are level.  Those equations, solved by Newton's method at high precision, define the fit: it is the same
on every machine, whatever rounding the search before it made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray

from momentgen.compiler.approximate._convert import Number, to_mpf
from momentgen.compiler.approximate._exchange import linear_minimax
from momentgen.compiler.approximate.mixture import LOGISTIC, ScaleMixture, Sigmoid, prove_scale_mixture
from momentgen.errors import BuildError

__all__ = ["fit_scale_mixture"]

_Array = NDArray[np.float64]


def fit_scale_mixture(
    terms: int,
    target: Sigmoid = LOGISTIC,
    *,
    value_tolerance: Number = 2e-8,
    slope_tolerance: Number | None = 1e-6,
    slope_range: Number = 8,
    derivatives: int = 6,
    digits: int = 30,
) -> ScaleMixture:
    """The mixture of ``terms`` normal distribution functions that is closest to a sigmoid.

    It minimises max(sup |e| / value_tolerance, max over |x| <= slope_range of |e'| / F' / slope_tolerance): only the
    ratio of the two tolerances matters.  The errors are then proven (:func:`prove_scale_mixture`).

    Args:
        terms: number of terms, 2 to 11.
        target: the sigmoid; the logistic one by default.
        value_tolerance: size of a value error that counts as much as
        slope_tolerance: a relative slope error of this size; None to fit the value alone.
        slope_range: where the relative slope error counts.
        derivatives: prove the errors of so many derivatives.
        digits: of the weights and scales.

    Returns:
        The fit, with proven bounds. Whether the tolerances are met is for the caller to ask (``level <= 1``).

    Raises:
        BuildError: stage ``approximate``, if the fit does not converge or its errors cannot be proven.

    >>> fit = fit_scale_mixture(5, slope_tolerance=None, derivatives=0)
    >>> print(mp.nstr(fit.errors[0], 3), fit.bounds[0] < 1.01 * fit.errors[0])
    5.95e-7 True
    """
    if not 2 <= terms <= 11:
        raise BuildError(target.name, "approximate", f"expected 2 to 11 terms of a scale mixture, got {terms}")
    problem = _Problem.sample(target, value_tolerance, slope_tolerance, slope_range)
    scales, weights = np.array(target.scales(terms)), np.full(terms, 1.0 / terms)
    scales, weights, residual = _search(problem, scales, weights, 0.1)
    for stage in (1, 2):
        problem = problem.refined(residual, 8.0**-stage)
        scales, weights, residual = _search(problem, scales, weights, 0.1 * 1e-3**stage)
    with mp.workdps(digits + 20):
        p, s, level, determined = _polish(problem, scales, weights, residual)
    with mp.workdps(digits):
        order = sorted(range(terms), key=lambda i: -s[i])
        mixture = ScaleMixture(
            tuple(+p[i] for i in order),
            tuple(+s[i] for i in order),
            target.name,
            problem.slope_range,
            +level,
            determined=determined,
        )
    proven = prove_scale_mixture(mixture, target, derivatives=derivatives)
    reached = [proven.errors[0] / problem.tolerances[0]]
    if problem.tolerances[1] is not None and proven.slope_error is not None:
        reached.append(proven.slope_error / problem.tolerances[1])
    return replace(proven, level=max(mixture.level, *reached))


@dataclass(frozen=True)
class _Problem:
    """A fit, sampled: value error at ``values``, relative slope error at ``slopes``, each over its tolerance."""

    target: Sigmoid
    tolerances: tuple[mpf, mpf | None]
    slope_range: mpf
    values: _Array
    slopes: _Array

    @classmethod
    def sample(
        cls, target: Sigmoid, value_tolerance: Number, slope_tolerance: Number | None, slope_range: Number
    ) -> _Problem:
        value = to_mpf(value_tolerance)
        steep = None if slope_tolerance is None else to_mpf(slope_tolerance)
        end = to_mpf(slope_range)
        if value <= 0 or (steep is not None and steep <= 0) or not 0 < end <= target.reach:
            raise BuildError(
                target.name,
                "approximate",
                f"expected positive tolerances and 0 < slope_range <= {target.reach}, got "
                f"value_tolerance={value_tolerance}, slope_tolerance={slope_tolerance}, slope_range={slope_range}",
            )
        near = target.reach * 3 / 16
        values = np.array([near * i / 240 for i in range(1, 241)] + [near + near * i / 56 for i in range(1, 141)])
        count = 241 if steep is not None else 0
        slopes = np.array([float(end) * math.sin(math.pi / 2 * i / 240) for i in range(count)])
        return cls(target, (value, steep), end, values, slopes)

    def refined(self, residual: _Array, fraction: float) -> _Problem:
        """The same fit, sampled also around the level extrema, at a fraction of the first sample's spacing.

        It brings the search so close to the true optimum that Newton's method converges from there.
        """
        extra: tuple[list[float], list[float]] = ([], [])
        for component, x, _ in _active(self, residual, len(residual)):
            at, spacing = float(x), fraction * self.target.reach / 320
            extra[component].extend(at + spacing * i for i in range(-10, 11))
        ends = (self.target.reach, float(self.slope_range))
        samples = [
            np.array(sorted({*old.tolist(), *(x for x in new if 0 < x <= end)}))
            for old, new, end in zip((self.values, self.slopes), extra, ends, strict=True)
        ]
        return replace(self, values=samples[0], slopes=samples[1])

    @cached_property
    def goal(self) -> _Array:
        """What the terms should sum to at the samples."""
        value, slope = self.tolerances
        tails = [float(self.target.tail(mpf(x)) / value) for x in self.values]
        return np.array(tails + [1.0 / float(slope)] * len(self.slopes) if slope is not None else tails)

    @cached_property
    def _slope(self) -> _Array:
        return np.array([float(self.target.slope(mpf(x))) for x in self.slopes])

    def basis(self, scales: _Array) -> tuple[_Array, _Array]:
        """The terms at the samples, shape (m, terms), and their derivatives in the log of the scale."""
        y = np.outer(self.values, scales)
        tails = np.array([[0.5 * math.erfc(v / math.sqrt(2)) for v in row] for row in y.tolist()])
        value = float(self.tolerances[0])
        blocks = [tails / value]
        moved = [-y * _density(y) / value]
        if self.tolerances[1] is not None:
            z = np.outer(self.slopes, scales)
            slopes = _density(z) * scales / self._slope[:, None] / float(self.tolerances[1])
            blocks.append(slopes)
            moved.append(slopes * (1 - z * z))
        return np.vstack(blocks), np.vstack(moved)


def _density(y: _Array) -> _Array:
    return np.asarray(np.exp(-0.5 * y * y) / math.sqrt(2 * math.pi), dtype=np.float64)


def _weights(problem: _Problem, scales: _Array, weights: _Array) -> tuple[_Array, _Array, _Array, _Array]:
    """The best weights (of sum 1) for given scales; with the basis, its derivatives and the residual there."""
    basis, moved = problem.basis(scales)
    for _ in range(2):  # the second step takes out the rounding of the first
        step = linear_minimax(basis @ weights - problem.goal, basis[:, :-1] - basis[:, -1:])
        weights = weights + np.append(step, -step.sum())
    return weights, basis, moved, basis @ weights - problem.goal


def _search(problem: _Problem, scales: _Array, weights: _Array, radius: float) -> tuple[_Array, _Array, _Array]:
    """Scales, weights and residual of the minimax on the samples."""
    terms = len(scales)
    weights, basis, moved, residual = _weights(problem, scales, weights)
    level = float(np.abs(residual).max())
    for _ in range(100):
        jacobian = np.hstack([basis[:, :-1] - basis[:, -1:], moved * weights])
        while True:
            # Rows that make a log-scale's move of ``radius`` as bad as the present error: a soft trust region.
            fence = np.hstack([np.zeros((terms, terms - 1)), np.eye(terms) * level / radius])
            step = linear_minimax(np.append(residual, np.zeros(terms)), np.vstack([jacobian, fence]))
            linear = float(np.abs(residual + jacobian @ step).max())
            move, drift = step[terms - 1 :], np.append(step[: terms - 1], -step[: terms - 1].sum())
            found = _weights(problem, scales * np.exp(move), weights + drift)
            reached = float(np.abs(found[3]).max())
            gain = (level - reached) / (level - linear) if level > linear else 0.0
            if gain > 0.05:
                break
            radius = min(radius, float(np.abs(move).max())) / 3
            if radius < 1e-12:
                return scales, weights, residual
        if gain > 0.6:
            radius *= 2.5
        settled = reached > level * (1 - 1e-10)
        scales, (weights, basis, moved, residual), level = scales * np.exp(move), found, reached
        if settled:
            break
    return scales, weights, residual


def _active(problem: _Problem, residual: _Array, size: int) -> list[tuple[int, mpf, int]]:
    """The level extrema of the residual: (0 value or 1 slope, x, sign)."""
    level = np.abs(residual).max()
    found = []
    split = len(problem.values)
    for component, x, r in ((0, problem.values, residual[:split]), (1, problem.slopes, residual[split:])):
        high = np.where(np.abs(r) >= 0.97 * level, np.sign(r), 0.0)
        edges = [0, *(np.flatnonzero(high[1:] != high[:-1]) + 1).tolist(), len(r)]
        # One extremum for each stretch that stays high: rounding makes several of a flat top.
        for first, end in pairwise(edges):
            if first < end and high[first]:
                i = first + int(np.abs(r[first:end]).argmax())
                found.append((float(abs(r[i])), component, mpf(float(x[i])), int(high[first])))
    found.sort(key=lambda item: -item[0])
    return [item[1:] for item in found[:size]]


def _polish(
    problem: _Problem, scales: _Array, weights: _Array, residual: _Array
) -> tuple[list[mpf], list[mpf], mpf, bool]:
    """Weights, scales and level that solve the equations of the optimum, and whether there are enough of these."""
    terms = len(scales)
    s, p = [mpf(float(x)) for x in scales], [mpf(float(x)) for x in weights]
    level = mpf(float(np.abs(residual).max()))
    points = _active(problem, residual, 2 * terms)
    if len(points) < 2 * terms:
        # A degenerate optimum, with fewer level extrema than unknowns: it is well determined to a few digits only.
        s = [mpf(mp.nstr(x, 12)) for x in s]
        p = [mpf(mp.nstr(x, 12)) for x in p[:-1]]
        return [*p, 1 - sum(p)], s, level, False
    start = level
    for _ in range(30):
        matrix, right = mp.zeros(2 * terms + 1), mp.zeros(2 * terms + 1, 1)
        for j, (component, x, sign) in enumerate(points):
            tolerance, goal, row, moved = _rows(problem, component, x, s)
            matrix[j, 2 * terms] = -sign
            for i in range(terms):
                matrix[j, i], matrix[j, terms + i] = row[i] / tolerance, p[i] * moved[i] / tolerance
            error = (mp.fsum(a * b for a, b in zip(p, row, strict=True)) - goal) / tolerance
            right[j] = sign * level - error
        for i in range(terms):
            matrix[2 * terms, i] = 1
        right[2 * terms] = 1 - mp.fsum(p)
        step = mp.lu_solve(matrix, right)
        p = [a + step[i] for i, a in enumerate(p)]
        s = [a * mp.exp(step[terms + i]) for i, a in enumerate(s)]
        level += step[2 * terms]
        if min(p) <= 0 or abs(level / start - 1) > 0.05:
            break
        points = [(c, _vertex(problem, c, x, s, p), sign) for c, x, sign in points]
        if max(abs(step[i]) for i in range(2 * terms)) < mpf(10) ** (12 - mp.dps):
            return p, s, level, True
    raise BuildError(
        problem.target.name,
        "approximate",
        f"the fit of {terms} terms has not converged (level {mp.nstr(start, 5)} before, {mp.nstr(level, 5)} after)",
    )


def _rows(problem: _Problem, component: int, x: mpf, s: list[mpf]) -> tuple[mpf, mpf, list[mpf], list[mpf]]:
    """Tolerance, goal, the terms, and their derivatives in the log of the scale, at one point."""
    tolerance = problem.tolerances[component]
    if component == 0:
        row = [mp.erfc(a * x / mp.sqrt(2)) / 2 for a in s]
        return tolerance, problem.target.tail(x), row, [-a * x * mp.npdf(a * x) for a in s]
    slope = problem.target.slope(x)
    row = [a * mp.npdf(a * x) / slope for a in s]
    return tolerance, mpf(1), row, [b * (1 - (a * x) ** 2) for a, b in zip(s, row, strict=True)]


def _vertex(problem: _Problem, component: int, x: mpf, s: list[mpf], p: list[mpf]) -> mpf:
    """The extremum of the error near x, by one step of a parabola; the ends of the slope's range stay put."""
    if component == 1 and (x == 0 or x >= problem.slope_range):
        return x

    def error(at: mpf) -> mpf:
        _, goal, row, _ = _rows(problem, component, at, s)
        return mp.fsum(a * b for a, b in zip(p, row, strict=True)) - goal

    h = mpf("1e-5")
    before, here, after = error(x - h), error(x), error(x + h)
    curvature = before - 2 * here + after
    if not curvature:
        return x
    moved = x + h * (before - after) / (2 * curvature)
    if component == 1:
        moved = min(moved, problem.slope_range)
    return moved if abs(moved - x) < mpf("0.2") * (1 + x / 4) else x
