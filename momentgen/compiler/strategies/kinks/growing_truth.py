r"""What moments of an f with elementary branches are measured by: closed forms for balls, and the errors allowed.

With y = x - kink, m = mu - kink and R_n(b) = E[y^n e^(b y); y > 0],

    R_0 = e^(b m + b² v/2) erfc(-(m + b v)/sqrt(2 v))/2,   R_1 = (m + b v) R_0 + v φ(m/sigma)/sigma,
    R_n = (m + b v) R_(n-1) + (n - 1) v R_(n-2),

b complex; left of the kink the same with the other tail and sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from momentgen.compiler.exact import RealPart
from momentgen.compiler.exact.differences import from_moments
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.measure.moments import (
    EXACT_MEAN,
    MEAN,
    MEAN_SPREAD,
    PARTIAL,
    VARIANCE,
    VARIANCE_OF_INPUT,
    Tolerance,
)
from momentgen.compiler.strategies.elementary.entire_measure import Power, log_tail
from momentgen.compiler.strategies.elementary.exponentials import Terms
from momentgen.compiler.toolchain.arrays import F64
from momentgen.rule.symbols import mu, phi, v

_ORDERS, _NEAR = 4, 2  # derivatives that count, and further ones that say how large these are near the kink


@dataclass(frozen=True)
class Sides:
    """f by what it is on either side of its kink, in y = x - kink.

    Attributes:
        kink: a rational number.
        left, right: terms of f.
    """

    kink: sp.Rational
    left: Terms
    right: Terms

    def derivative(self) -> Sides:
        """f', without what is at the kink."""
        return Sides(self.kink, self.left.derivative(), self.right.derivative())

    def squared(self) -> Sides:
        """f²."""
        return Sides(self.kink, self.left.squared(), self.right.squared())

    @property
    def jump(self) -> sp.Expr:
        """f right of the kink less f left of it."""
        return sp.expand(self.right.at_zero - self.left.at_zero)

    def expectation(self) -> sp.Expr:
        """E f, in mu and v."""
        m = mu - self.kink
        total = sp.Integer(0)
        for side, terms in ((-1, self.left), (1, self.right)):
            for (b, n), c in terms.coefficients.items():
                if sp.im(b) >= 0:  # the other of a pair is its conjugate
                    total += RealPart((2 if sp.im(b) > 0 else 1) * c * _tail(b, n, side, m))
        return total

    def outputs(self) -> dict[str, sp.Expr]:
        """The six outputs, in mu and v; derivatives in v are half the second ones in mu."""
        rows = []
        for moment in (self.expectation(), self.squared().expectation()):
            slope = sp.diff(moment, mu)
            rows.append((moment, slope, sp.diff(slope, mu)))
        return dict(zip((*OUTPUTS, *PARTIALS), from_moments(*rows), strict=True))

    @property
    def rates(self) -> tuple[complex, ...]:
        """The b of either side."""
        return tuple(complex(sp.N(b)) for terms in (self.left, self.right) for b in terms.rates)


def _tail(b: sp.Expr, n: int, side: int, m: sp.Expr) -> sp.Expr:
    """E[y^n e^(b y)] beyond the kink on one side."""
    centre = m + b * v
    before, row = v * side * phi(m / sp.sqrt(v)) / sp.sqrt(v), sp.exp(b * m + b**2 * v / 2)
    row = row * sp.erfc(-side * centre / sp.sqrt(2 * v)) / 2
    for k in range(n):
        before, row = row, centre * row + (k * v * before if k else before)
    return row


# --- tolerance -------------------------------------------------------------------
@dataclass(frozen=True)
class GrowingMeasure(Tolerance):
    """Errors over what is allowed, by how large f's terms and their derivatives are where the input is.

    With ℓ the inverse of the largest rate, G_k = E Σ t², t the terms of f^(k) on their own side of the kink, L_k the
    largest of f^(k), ℓ f^(k+1) and ℓ² f^(k+2) at the kink on either side, J_k the jump of f^(k) there,
    q = Phi(a) Phi(-a), a = (mu - kink)/sigma, and
    s_k = L_(k+1)² min(v, ℓ²) + min(v G_(k+1), G_k) + J_k² q:

    - mean: 1e-6 max(1, |m|) + 1e-9 sqrt(G_0);
    - variance: 1e-5 s_0;
    - partials: 1e-4 of L_1 + sqrt(G_1) + J_0/sigma, of (L_2 + sqrt(G_2) + J_1/sigma + J_0/v)/2, of
      2 sqrt(s_0 s_1) + J_0²/sigma, and of L_1² + G_1 + sqrt(s_0 s_2) + J_1 (L_1 + sqrt(G_1)) + J_0²/v: the sizes of
      E f', E f''/2, 2 Cov(f, f') and E f'² + Cov(f, f'').

    What float32 does not hold has to be its largest number, of the right sign.
    """

    of_terms = with_slopes = True
    kink: float
    powers: tuple[tuple[Power, Power], ...]
    sizes: tuple[float, ...]
    jumps: tuple[float, ...]
    length: float

    @staticmethod
    def of(sides: Sides) -> GrowingMeasure:
        """The measure of f."""
        every = [sides]
        for _ in range(_ORDERS + _NEAR - 1):
            every.append(every[-1].derivative())
        length = 1 / max(map(abs, sides.rates))
        at_kink = [max(abs(complex(sp.N(t.at_zero))) for t in (g.left, g.right)) for g in every]
        sizes = [max(at_kink[k + j] * length**j for j in range(_NEAR + 1)) for k in range(_ORDERS)]
        return GrowingMeasure(
            float(sides.kink),
            tuple((Power.of(g.left, -1), Power.of(g.right, 1)) for g in every[:_ORDERS]),
            tuple(sizes),
            tuple(abs(float(sp.N(g.jump))) for g in every[:_ORDERS]),
            length,
        )

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """What is allowed."""
        sigma, m = np.sqrt(np.maximum(var, 1e-300)), mean - self.kink
        g = [left(-m, var) + right(m, var) for left, right in self.powers]
        slope, bend = (self.sizes[k] + np.sqrt(g[k]) for k in (1, 2))
        leap, turn = self.jumps[:2]
        if output == "mean":
            return MEAN * np.maximum(1.0, np.abs(exact)) + MEAN_SPREAD * np.sqrt(g[0])
        if output == "dmean_dmu":
            return np.asarray(PARTIAL * (slope + leap / sigma))
        if output == "dmean_dvar":
            return np.asarray(PARTIAL / 2 * (bend + turn / sigma + leap / var))
        s = [self._spread(k, g, m / sigma, var) for k in range(3)]
        if output == "var":
            return VARIANCE * s[0]
        if output == "dvar_dmu":
            return np.asarray(PARTIAL * (2 * np.sqrt(s[0]) * np.sqrt(s[1]) + leap**2 / sigma))
        steep = self.sizes[1] ** 2 + g[1] + turn * slope
        return np.asarray(PARTIAL * (steep + np.sqrt(s[0]) * np.sqrt(s[2]) + leap**2 / var))

    def _spread(self, order: int, g: list[F64], a: F64, var: F64) -> F64:
        """s_k."""
        floor = self.sizes[order + 1] ** 2 * np.minimum(var, self.length**2)
        tails = np.exp(log_tail(a) + log_tail(-a))
        return np.asarray(floor + np.minimum(var * g[order + 1], g[order]) + self.jumps[order] ** 2 * tails)

    def words(self) -> dict[str, Any]:
        """Describe the tolerance."""
        return {
            "mean": f"{MEAN:g}*max(1, |m|) + {MEAN_SPREAD:g}*sqrt(G0)",
            "var": f"{VARIANCE:g}*s0",
            "partials": f"{PARTIAL:g} of L1 + sqrt(G1), (L2 + sqrt(G2) + J1/sigma)/2, 2*sqrt(s0*s1) and L1^2 + G1 + "
            "sqrt(s0*s2) + J1*(L1 + sqrt(G1)), in the order of the bounds, and of what a jump adds to them",
            "where": {
                "m": EXACT_MEAN,
                "v": VARIANCE_OF_INPUT,
                "Gk": "E of the sum of the squared terms of f's k-th derivative, each on its own side of the kink",
                "Lk": "the largest of f's k-th derivative and of l and l^2 times the next two, at the kink",
                "Jk": "the jump of f's k-th derivative",
                "sk": "L(k+1)^2*min(v, l^2) + min(v*G(k+1), Gk) + Jk^2*Phi(a)*Phi(-a), a = (mean - kink)/sigma",
            },
            "values": {"kink": self.kink, "l": self.length},
            "least": "2^-126, and (1 + v)*2^-126 of var's partials",
        }
