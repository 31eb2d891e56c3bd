r"""Exact moments of roots on either side of 0, f = right x^p or left |x|^p, 0 < p < 1, and what errors are allowed.

With M_q = 2^(q/2) Γ((q+1)/2)/√π and N_q = 2^((q+1)/2) Γ(q/2 + 1)/√π, a = mu/sigma and Kummer's function F,

    E |X|^q = sigma^q M_q F(-q/2; 1/2; -a²/2),    E sign(X) |X|^q = sigma^q N_q a F((1-q)/2; 3/2; -a²/2).

Their derivatives in mu are q times the other one's at q - 1; in v they are half the second derivatives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, ctx, fmpq

from momentgen.compiler.exact.differences import from_moments
from momentgen.compiler.measure.moments import EXACT_MEAN, MEAN, PARTIAL, VARIANCE, VARIANCE_OF_INPUT, Tolerance
from momentgen.compiler.toolchain.arrays import F32, F64

_BITS = 260
_FAR = 2.0**20  # |a| beyond which f is its Taylor polynomial at mu, to 1e-12
_SMALLEST = 2.0**-126


@dataclass(frozen=True)
class RootTruth:
    """The six outputs; survives pickling.

    Attributes:
        eighths: 8 p.
        left, right: factors of |x|^p.
    """

    eighths: int
    left: float
    right: float

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        mu, v = mean.astype(np.float64), var.astype(np.float64)
        sigma = np.sqrt(v)
        with np.errstate(all="ignore"):
            a = mu / sigma
            found = np.array([self.unit(at) if abs(at) <= _FAR else (math.nan,) * 6 for at in a.tolist()]).T
            p, size = self.eighths / 8, np.abs(mu)
            powers = (p, 2 * p, p - 1, p - 2, 2 * p - 1, 2 * p - 2)
            near = [values * sigma**power for values, power in zip(found, powers, strict=True)]
            c, side = np.where(mu < 0, self.left, self.right), np.sign(mu)
            far = (
                c * size**p * (1 + p * (p - 1) / 2 / a**2),
                (c * p * size**p / a) ** 2,
                c * p * size ** (p - 1) * side,
                c * p * (p - 1) / 2 * size ** (p - 2),
                side * (c * p) ** 2 * (2 * p - 2) * size ** (2 * p - 1) / a**2,
                (c * p) ** 2 * size ** (2 * p - 2),
            )
        names = ("mean", "var", "dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")
        away = np.abs(a) > _FAR
        return {name: np.where(away, other, one) for name, one, other in zip(names, near, far, strict=True)}

    def unit(self, a: float) -> tuple[float, ...]:
        """The outputs at mean a and variance 1.

        >>> round(RootTruth(4, 0.0, 1.0).unit(0.0)[0], 6)
        0.411089
        """
        with ctx.workprec(_BITS):
            at, p = arb(a), fmpq(self.eighths, 8)
            even, odd = (arb(self.right) + arb(self.left)) / 2, (arb(self.right) - arb(self.left)) / 2
            square = _moments(at, 2 * p, even * even + odd * odd, 2 * even * odd)
            values = from_moments(_moments(at, p, even, odd), square)
            return tuple(float(value.mid()) for value in values)  # what cancels to nothing is a ball about 0


def _moments(a: arb, q: fmpq, even: arb, odd: arb) -> tuple[arb, arb, arb]:
    """even E |X|^q + odd E sign(X) |X|^q at variance 1, and two derivatives in mu."""
    z, half, three_halves = -a * a / 2, fmpq(1, 2), fmpq(3, 2)
    m, n = (factor * size for factor, size in zip((even, odd), _factors(q), strict=True))
    # the even part and the odd part, and their derivatives in mu
    whole = m * _kummer(-q / 2, half, z), n * a * _kummer((1 - q) / 2, three_halves, z)
    first = m * q * a * _kummer(1 - q / 2, three_halves, z), n * _kummer((1 - q) / 2, half, z)
    second = m * q * _kummer(1 - q / 2, half, z), n * (q - 1) * a * _kummer((3 - q) / 2, three_halves, z)
    return whole[0] + whole[1], first[0] + first[1], second[0] + second[1]


@functools.cache
def _factors(q: fmpq) -> tuple[arb, arb]:
    """M_q and N_q."""
    power, root = arb(2) ** arb(q / 2), arb.pi().sqrt()
    return power * arb((q + 1) / 2).gamma() / root, power * arb(2).sqrt() * arb(q / 2 + 1).gamma() / root


def _kummer(a: fmpq, b: fmpq, z: arb) -> arb:
    return arb(1) if a == 0 else z.hypgeom_1f1(arb(a), arb(b))


@dataclass(frozen=True)
class RootMeasure(Tolerance):
    """Errors over what is allowed, in the units of f: no root has a largest slope; survives pickling.

    With r² = mu² + v and C the larger factor, 1e-6 (|m| + C sigma^p) is allowed to the mean, 1e-5 C² v r^(2p-2) to the
    variance, and to its partials and those of the mean 1e-4 of what they are of the order of.
    """

    eighths: int
    factor: float

    def allowed(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """The error allowed at each point."""
        p, c = self.eighths / 8, self.factor
        with np.errstate(all="ignore"):
            r = np.hypot(mean, np.sqrt(var))
            if output == "mean":
                limit = MEAN * (np.abs(exact) + c * np.sqrt(var) ** p)
            elif output == "var":
                limit = VARIANCE * c**2 * (np.sqrt(var) / r) ** 2 * r ** (2 * p)
            else:
                size = {
                    "dmean_dmu": c * r ** (p - 1),
                    "dmean_dvar": c * r ** (p - 2),
                    "dvar_dmu": c**2 * (np.sqrt(var) / r) ** 2 * r ** (2 * p - 1),
                    "dvar_dvar": c**2 * r ** (2 * p - 2),
                }[output]
                limit = PARTIAL * size
        return np.maximum(np.where(np.isnan(limit), np.inf, limit), _SMALLEST)

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
