"""Polynomials for inner branches that have no power series of float32 primitives: atan, erf or log between kinks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import sympy as sp

from momentgen.compiler.fit.reflections import least_squares
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.function.pieces import Piece, Pieces
from momentgen.compiler.strategies.kinks.branch_series import unknown_function
from momentgen.errors import BuildError
from momentgen.rule.symbols import x

#: errors of value, slope and bend: of max(1, abs(f)), of the largest slope, of the largest bend
_GOALS = (3e-8, 5e-7, 5e-6)
_POINTS, _DEGREES = 160, range(3, 21)


def with_fitted_branches(f: Activation) -> Activation:
    """f, polynomials for those of its inner branches that are no functions of float32 primitives.

    Raises:
        BuildError: for an outer branch of that kind, or one that no polynomial follows.
    """
    pieces = list(f.pieces)
    for index, (low, high) in enumerate(pairwise([None, *f.kinks, None])):
        piece, name = pieces[index], unknown_function(pieces[index].expr)
        if name is None:
            continue
        if low is None or high is None:
            cause = f"expected {name} between kinks alone, got it on a branch that has no end"
            raise BuildError(f.name, "strategies", cause, piece.expr)
        pieces[index] = Piece(piece.low, piece.high, _polynomial(f, index, low, high))
    return replace(f, pieces=Pieces(tuple(pieces)))


def _polynomial(f: Activation, index: int, low: float, high: float) -> sp.Expr:
    """The polynomial of the lowest degree that is as close as the tolerance takes.

    Raises:
        BuildError: if there is none.
    """
    middle, half = (low + high) / 2, (high - low) / 2
    at = np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS)
    rows = [[float(c) for c in f.taylor(index, float(middle + half * p), 3)] for p in at]
    wanted = np.array(rows).T * np.array([[1.0], [1.0], [2.0]])
    by_value, by_slope, by_bend = _GOALS
    allowed = np.stack(
        [
            by_value * np.maximum(1.0, np.abs(wanted[0])),
            np.full(_POINTS, by_slope * f.lipschitz),
            np.full(_POINTS, by_bend * max(f.bend, 1e-3 * f.lipschitz / f.length)),
        ]
    )
    target = (wanted / allowed).ravel()
    for degree in _DEGREES:
        k = np.arange(degree + 1)
        powers = [at[:, None] ** np.maximum(k - n, 0) for n in range(3)]
        basis = np.array([powers[0], k * powers[1] / half, k * (k - 1) * powers[2] / half**2])
        matrix = (basis / allowed[:, :, None]).reshape(-1, degree + 1)
        found = least_squares(matrix, target)
        if np.abs(target - np.einsum("ij,j->i", matrix, found)).max() <= 1.0:
            unit = (x - sp.Rational(middle)) / sp.Rational(half)
            return sp.expand(sum(sp.Rational(float(c)) * unit ** int(n) for n, c in enumerate(found)))
    cause = f"expected branches that a polynomial of degree {_DEGREES[-1]} follows"
    raise BuildError(f.name, "strategies", cause, f.pieces.pieces[index].expr)
