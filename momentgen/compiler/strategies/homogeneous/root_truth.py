r"""Moments of roots on either side of 0, f = right x^p or left |x|^p, 0 < p < 1, and what errors are allowed.

With M_q = 2^(q/2) Γ((q+1)/2)/√π and N_q = 2^((q+1)/2) Γ(q/2 + 1)/√π, a = mu/sigma and Kummer's function F,

    E |X|^q = sigma^q M_q F(-q/2; 1/2; -a²/2),    E sign(X) |X|^q = sigma^q N_q a F((1-q)/2; 3/2; -a²/2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from flint import arb

from momentgen.compiler.exact import BallForm
from momentgen.compiler.exact.differences import from_moments
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.measure.moments import EXACT_MEAN, MEAN, PARTIAL, VARIANCE, VARIANCE_OF_INPUT, Tolerance
from momentgen.compiler.toolchain.arrays import F64
from momentgen.rule.symbols import mu, v


class Kummer(BallForm):
    """Kummer's function F(a; b; z)."""

    nargs = 3

    @classmethod
    def eval(cls, a: sp.Expr, b: sp.Expr, z: sp.Expr) -> sp.Expr | None:
        return sp.S.One if a.is_zero else None

    def fdiff(self, argindex: int = 3) -> sp.Expr:
        """By z."""
        a, b, z = self.args
        return a / b * Kummer(a + 1, b + 1, z)

    @staticmethod
    def ball(*args: Any) -> arb:
        """Its value at balls."""
        a, b, z = args
        return z.hypgeom_1f1(a, b)


@dataclass(frozen=True)
class Roots:
    """f by its power and factors.

    Attributes:
        eighths: 8 p.
        left, right: factors of |x|^p.
    """

    eighths: int
    left: float
    right: float

    def outputs(self) -> dict[str, sp.Expr]:
        """The six outputs, in mu and v; derivatives in v are half the second ones in mu."""
        left, right = (sp.Rational(factor) for factor in (self.left, self.right))
        p, rows = sp.Rational(self.eighths, 8), []
        for q, even, odd in (
            (p, (right + left) / 2, (right - left) / 2),
            (2 * p, (right**2 + left**2) / 2, (right**2 - left**2) / 2),
        ):
            moment = v ** (q / 2) * (even * _even(q) + odd * _odd(q))
            slope = sp.diff(moment, mu)
            rows.append((moment, slope, sp.diff(slope, mu)))
        return dict(zip((*OUTPUTS, *PARTIALS), from_moments(*rows), strict=True))


def _even(q: sp.Expr) -> sp.Expr:
    """E |X|^q over sigma^q."""
    half = sp.Rational(1, 2)
    return 2 ** (q / 2) * sp.gamma((q + 1) / 2) / sp.sqrt(sp.pi) * Kummer(-q / 2, half, -(mu**2) / (2 * v))


def _odd(q: sp.Expr) -> sp.Expr:
    """E sign(X) |X|^q over sigma^q."""
    size = 2 ** ((q + 1) / 2) * sp.gamma(q / 2 + 1) / sp.sqrt(sp.pi)
    return size * mu / sp.sqrt(v) * Kummer((1 - q) / 2, sp.Rational(3, 2), -(mu**2) / (2 * v))


@dataclass(frozen=True)
class RootMeasure(Tolerance):
    """Errors over what is allowed, in the units of f: no root has a largest slope; survives pickling.

    With r² = mu² + v and C the larger factor, 1e-6 (|m| + C sigma^p) is allowed to the mean, 1e-5 C² v r^(2p-2) to the
    variance, and to its partials and those of the mean 1e-4 of what they are of the order of.
    """

    eighths: int
    factor: float

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """What is allowed."""
        p, c = self.eighths / 8, self.factor
        r = np.hypot(mean, np.sqrt(var))
        if output == "mean":
            return MEAN * (np.abs(exact) + c * np.sqrt(var) ** p)
        if output == "var":
            return VARIANCE * c**2 * (np.sqrt(var) / r) ** 2 * r ** (2 * p)
        size = {
            "dmean_dmu": c * r ** (p - 1),
            "dmean_dvar": c * r ** (p - 2),
            "dvar_dmu": c**2 * (np.sqrt(var) / r) ** 2 * r ** (2 * p - 1),
            "dvar_dvar": c**2 * r ** (2 * p - 2),
        }
        return PARTIAL * size[output]

    def words(self) -> dict[str, Any]:
        """What is allowed, in words."""
        orders = "C*r^(p - 1), C*r^(p - 2), C^2*v*r^(2*p - 3) and C^2*r^(2*p - 2)"
        return {
            "mean": f"{MEAN:g}*(|m| + C*sigma^p)",
            "var": f"{VARIANCE:g}*C^2*v*r^(2*p - 2)",
            "partials": f"{PARTIAL:g} of {orders}, in the order of the bounds",
            "where": {
                "m": EXACT_MEAN,
                "v": VARIANCE_OF_INPUT,
                "r": "the root of mean^2 + v",
                "p, C": "f's power of |x|, and its larger factor",
            },
            "values": {"p": self.eighths / 8, "C": self.factor},
        }
