r"""The tolerance of an f whose branches are polynomials of any degree: by how steep they are where the input is.

With c the middle of the kinks, r = |mu - c| + sigma, B_k(r) the largest that the k-th derivative of a branch can be at
a distance r from c by its coefficients, and J_k the sum of the magnitudes of that derivative's jumps,

- mean: 1e-6 max(1, |m|) + 1e-9 B_1 sigma;
- variance: 1e-5 s, s = B_1² v + Σ J² Phi(a) Phi(-a) over the jumps J of f;
- partials: 1e-4 of B_1 + J_0/sigma, of B_2/2 + J_1/sigma + J_0/v, of sigma B_1 (sigma B_2 + J_1) + J_0²/sigma, and of
  B_1² + sigma B_1 B_2 + J_1 B_1 + J_0²/v: the sizes of E f', E f''/2, 2 Cov(f, f') and E f'² + Cov(f, f'').
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import sympy as sp

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.stable import Errors
from momentgen.compiler.measure.moments import MEAN, MEAN_SPREAD, PARTIAL, VARIANCE, MomentsMeasure, held, shares
from momentgen.compiler.measure.ulp import LARGEST
from momentgen.rule.symbols import x

__all__ = ["GrowthMeasure"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_SMALLEST = 2.0**-126
_ORDERS = 3


@dataclass(frozen=True)
class GrowthMeasure:
    """Errors over what is allowed; survives pickling.

    Attributes:
        centre: c.
        rows: per power of |x - c|, the largest coefficient of a branch in size.
        jumps: (point, height) where f jumps.
        kinks: J_1.
    """

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

    def allowed(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """The error allowed at each point."""
        sigma = np.sqrt(np.maximum(var, 1e-300))
        leap, turn = math.fsum(abs(height) for _, height in self.jumps), self.kinks
        with np.errstate(all="ignore"):
            away = np.abs(mean - self.centre) + sigma
            _, steep, bend = (self.steepness(k, away) for k in range(_ORDERS))
            if output == "mean":
                limit = MEAN * np.maximum(1.0, np.abs(exact)) + MEAN_SPREAD * steep * sigma
            elif output == "var":
                limit = VARIANCE * (steep**2 * var + self.at_jumps(mean, var))
            else:
                size = {
                    "dmean_dmu": steep + leap / sigma,
                    "dmean_dvar": bend / 2 + turn / sigma + leap / var,
                    "dvar_dmu": sigma * steep * (sigma * bend + turn) + leap**2 / sigma,
                    "dvar_dvar": steep**2 + sigma * steep * bend + turn * steep + leap**2 / var,
                }[output]
                limit = PARTIAL * size
                if output.startswith("dvar"):  # they contain v times a partial of the mean
                    limit = np.maximum(limit, _SMALLEST * (1 + var))
        return np.maximum(np.where(np.isnan(limit), np.inf, limit), _SMALLEST)

    def at_jumps(self, mean: F64, var: F64) -> F64:
        """Σ J² Phi(a) Phi(-a)."""
        return MomentsMeasure(0.0, math.inf, self.jumps, {}).spread(mean, var)

    def __call__(self, output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
        return self.over(output, exact, mean, var)(computed)

    def over(self, output: str, exact: F64, mean: F32, var: F32) -> Errors:
        """The same as a function of what was computed.

        Terms may be beyond float32 where what they leave is not; what surely is has no such excuse.
        """
        allowed = self.allowed(output, held(exact), mean.astype(np.float64), var.astype(np.float64))
        beyond = np.abs(exact) - allowed > LARGEST
        return functools.partial(shares, held(exact), np.where(beyond, PARTIAL * LARGEST, allowed))
