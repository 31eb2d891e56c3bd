r"""The tolerance of an f whose branches are polynomials of any degree: by how steep they are where the input is.

With c the middle of the kinks, r = |mu - c| + sigma, B_k(r) the largest that the k-th derivative of a branch can be at
a distance r from c by its coefficients, and J_k the sum of the magnitudes of that derivative's jumps,

- mean: 1e-6 max(1, |m|) + 1e-9 B_1 sigma;
- variance: 1e-5 s, s = B_1² v + Σ J² Phi(a) Phi(-a) over the jumps J of f;
- partials: 1e-4 of B_1 + J_0/sigma, of B_2/2 + J_1/sigma + J_0/v, of sigma B_1 (sigma B_2 + J_1) + J_0²/sigma, and of
  B_1² + sigma B_1 B_2 + J_1 B_1 + J_0²/v: the sizes of E f', E f''/2, 2 Cov(f, f') and E f'² + Cov(f, f'').
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.measure.moments import (
    EXACT_MEAN,
    MEAN,
    MEAN_SPREAD,
    PARTIAL,
    VARIANCE,
    VARIANCE_OF_INPUT,
    MomentsMeasure,
    Tolerance,
)
from momentgen.compiler.toolchain.arrays import F64
from momentgen.rule.symbols import x

_ORDERS = 3


@dataclass(frozen=True)
class GrowthMeasure(Tolerance):
    """Errors over what is allowed; survives pickling.

    Attributes:
        centre: c.
        rows: per power of |x - c|, the largest coefficient of a branch in size.
        jumps: (point, height) where f jumps.
        kinks: J_1.
    """

    of_terms = with_slopes = True
    centre: float
    rows: tuple[float, ...]
    jumps: tuple[tuple[float, float], ...]
    kinks: float

    @staticmethod
    def of(f: Activation) -> GrowthMeasure:
        """The measure of an f whose branches are polynomials."""
        centre = sp.Rational(f.centre)
        every = [sp.Poly(p.expr.subs(x, x + centre), x).all_coeffs()[::-1] for p in f.pieces]
        most = max(map(len, every))
        rows = [max(abs(float(row[n])) if n < len(row) else 0.0 for row in every) for n in range(most)]
        slopes = [[float(f.taylor(j, k, 2)[1]) for j in (i, i + 1)] for i, k in enumerate(f.kinks)]
        return GrowthMeasure(f.centre, tuple(rows), f.jumps, math.fsum(abs(b - a) for a, b in slopes))

    def steepness(self, order: int, away: F64) -> F64:
        """B_k."""
        row = [math.perm(n, order) * c for n, c in enumerate(self.rows)][order:] or [0.0]
        return np.asarray(np.polynomial.polynomial.polyval(away, row), np.float64)

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """What is allowed."""
        sigma = np.sqrt(np.maximum(var, 1e-300))
        leap, turn = math.fsum(abs(height) for _, height in self.jumps), self.kinks
        away = np.abs(mean - self.centre) + sigma
        _, steep, bend = (self.steepness(k, away) for k in range(_ORDERS))
        if output == "mean":
            return np.asarray(MEAN * np.maximum(1.0, np.abs(exact)) + MEAN_SPREAD * steep * sigma)
        if output == "var":
            return np.asarray(VARIANCE * (steep**2 * var + self.at_jumps(mean, var)))
        size = {
            "dmean_dmu": steep + leap / sigma,
            "dmean_dvar": bend / 2 + turn / sigma + leap / var,
            "dvar_dmu": sigma * steep * (sigma * bend + turn) + leap**2 / sigma,
            "dvar_dvar": steep**2 + sigma * steep * bend + turn * steep + leap**2 / var,
        }
        return np.asarray(PARTIAL * size[output])

    def at_jumps(self, mean: F64, var: F64) -> F64:
        """Σ J² Phi(a) Phi(-a)."""
        return MomentsMeasure(0.0, math.inf, self.jumps, {}).spread(mean, var)

    def words(self) -> dict[str, Any]:
        """Describe the tolerance."""
        jumps = {"J, a": "the height of each jump of f, and its distance from the mean in sigmas"} if self.jumps else {}
        return {
            "mean": f"{MEAN:g}*max(1, |m|) + {MEAN_SPREAD:g}*B1*sigma",
            "var": f"{VARIANCE:g}*" + ("(B1^2*v + sum of J^2*Phi(a)*Phi(-a))" if jumps else "B1^2*v"),
            "partials": f"{PARTIAL:g} of B1, B2/2, sigma^2*B1*B2 and B1^2 + sigma*B1*B2, in the order of the bounds, "
            "and of what kinks and jumps add to them",
            "where": {
                "m": EXACT_MEAN,
                "v": VARIANCE_OF_INPUT,
                "Bk": "the most that a branch's k-th derivative is within |mean - c| + sigma of c, by its coefficients",
                "c": "the middle of the kinks",
                **jumps,
            },
            "values": {"c": self.centre, **({"jumps": [list(jump) for jump in self.jumps]} if jumps else {})},
            "least": "2^-126, and (1 + v)*2^-126 of var's partials",
        }
