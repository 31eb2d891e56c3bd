"""Elementary moments: the errors that are allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from momentgen.compiler.measure.moments import (
    EXACT_MEAN,
    MEAN,
    PARTIAL,
    VARIANCE,
    VARIANCE_OF_INPUT,
    Tolerance,
)
from momentgen.compiler.strategies.elementary.exponentials import Moment, Terms, number
from momentgen.compiler.toolchain.arrays import F64


@dataclass(frozen=True)
class RelativeMeasure(Tolerance):
    """Errors over what is allowed: 1e-6 max(1, |mean|), 1e-5 of the variance, 1e-4 of each partial.

    What float32 does not hold has to be its largest number, of the right sign.
    """

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """What is allowed."""
        if output == "mean":
            return MEAN * np.maximum(1.0, np.abs(exact))
        return (VARIANCE if output == "var" else PARTIAL) * np.abs(exact)

    def words(self) -> dict[str, Any]:
        """Describe the tolerance."""
        return {
            "mean": f"{MEAN:g}*max(1, |m|)",
            "var": f"{VARIANCE:g}*V",
            "partials": f"{PARTIAL:g} of its exact value",
            "where": {"m": EXACT_MEAN, "V": "the exact variance"},
            "values": {},
        }


@dataclass(frozen=True)
class _Magnitude:
    """Σ |c| |mu|^i v^j e^(p mu + q v): the terms of a moment, each by its size."""

    rows: tuple[tuple[float, float, int, int, float], ...]

    @staticmethod
    def of(moment: Moment) -> _Magnitude:
        with mpmath.workdps(30):
            return _Magnitude(
                tuple(
                    (float(sp.re(p)), float(sp.re(q)), i, j, float(abs(number(c))))
                    for (p, q), row in moment.real_parts()
                    for (i, j), c in row.items()
                )
            )

    def __call__(self, mean: F64, var: F64) -> F64:
        total = np.zeros_like(mean)
        for p, q, i, j, c in self.rows:
            total = total + c * np.abs(mean) ** i * var**j * np.exp(p * mean + q * var)
        return total


@dataclass(frozen=True)
class Power:
    """E Σ c² X^(2n) e^(2 b X) over the terms of f, b real; half of that for a sine or cosine, which c bounds.

    Attributes:
        rows: (b, n, c²).
    """

    rows: tuple[tuple[float, int, float], ...]

    @staticmethod
    def of(terms: Terms) -> Power:
        """Of f."""
        rows = []
        with mpmath.workdps(30):
            for (b, n), c in terms.coefficients.items():
                turn = sp.im(b)
                if turn >= 0:  # the other of a pair is its conjugate
                    size = float(abs(number(c))) * (math.sqrt(2) if turn > 0 else 1)
                    rows.append((float(sp.re(b)), n, size**2))
        return Power(tuple(rows))

    def __call__(self, mean: F64, var: F64) -> F64:
        total = np.zeros_like(mean)
        for b, n, c in self.rows:
            moved, inner = mean + 2 * b * var, np.zeros_like(mean)
            exponent = 2 * b * mean + 2 * b**2 * var
            for j in range(n + 1):  # E (m + sigma Z)^(2n): all terms are positive
                factor = math.comb(2 * n, 2 * j) * math.prod(range(1, 2 * j, 2))
                inner = inner + factor * moved ** (2 * (n - j)) * var**j
            total = total + c * inner * np.exp(exponent)
        return total


@dataclass(frozen=True)
class TermsMeasure(Tolerance):
    """Errors over what is allowed, for an f without a Lipschitz constant whose terms may cancel.

    With M_k the sum of the magnitudes of the terms of E f^(k), G_k = E Σ t², t the terms of f^(k), and
    s_k = min(v G_{k+1}, G_k), by which the variance of f^(k) would be bounded if its terms were independent:

    - mean: 1e-6 max(1, M_0);
    - variance: 1e-5 s_0;
    - partials: 1e-4 of M_1, M_2/2, 2 sqrt(s_0 s_1) and G_1 + sqrt(s_0 s_2): the sizes of E f', E f''/2, 2 Cov(f, f')
      and E f'² + Cov(f, f'').

    For one term these are the exact values up to small factors; where terms cancel, they are what cancels.  What
    float32 does not hold has to be its largest number, of the right sign.
    """

    of_terms = True
    magnitudes: tuple[_Magnitude, ...]
    powers: tuple[Power, ...]

    @staticmethod
    def of(terms: Terms) -> TermsMeasure:
        """The measure of f."""
        mean = terms.expectation()
        means = (mean, mean.derivative(0), mean.derivative(0).derivative(0))
        derivatives = [terms]
        for _ in range(3):
            derivatives.append(derivatives[-1].derivative())
        return TermsMeasure(tuple(map(_Magnitude.of, means)), tuple(map(Power.of, derivatives)))

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """What is allowed."""
        if output == "mean":
            return MEAN * np.maximum(1.0, self.magnitudes[0](mean, var))
        if output.startswith("dmean"):
            order = 1 if output == "dmean_dmu" else 2
            return PARTIAL / order * self.magnitudes[order](mean, var)
        g = [power(mean, var) for power in self.powers]
        s = [np.minimum(var * g[k + 1], g[k]) for k in range(3)]
        return {
            "var": VARIANCE * s[0],
            "dvar_dmu": 2 * PARTIAL * np.sqrt(s[0]) * np.sqrt(s[1]),
            "dvar_dvar": PARTIAL * (g[1] + np.sqrt(s[0]) * np.sqrt(s[2])),
        }[output]

    def words(self) -> dict[str, Any]:
        """Describe the tolerance."""
        return {
            "mean": f"{MEAN:g}*max(1, M0)",
            "var": f"{VARIANCE:g}*s0",
            "partials": f"{PARTIAL:g} of M1, M2/2, 2*sqrt(s0*s1) and G1 + sqrt(s0*s2), in the order of the bounds",
            "where": {
                "Mk": "the sum of the magnitudes of the terms of E of f's k-th derivative",
                "Gk": "E of the sum of the squared terms of that derivative",
                "sk": f"min(v*G(k+1), Gk), v {VARIANCE_OF_INPUT}",
            },
            "values": {},
        }
