r"""The six outputs of an f with kinks at small sigma, in float64: sums over z of f(mu + sigma z) - f(mu).

The line of z is cut at the kinks into panels of Gauss-Legendre nodes.  Differences come from power series about mu and
about the kinks, so that they are relatively accurate however small sigma is, and with them the variance; partials
follow by the score of the normal density, d/dmu = E[. z]/sigma and d/dv = E[. (z² - 1)]/(2 v), jumps included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.toolchain.arrays import F32, F64

_SETS = 8  # of points whose values are cached


class ActivationTruth:
    """The outputs of an activation at float32 points."""

    def __init__(self, f: Activation) -> None:
        self.f = f
        self._cache: dict[tuple[bytes, bytes], dict[str, F64]] = {}

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        key = (np.asarray(mean).tobytes(), np.asarray(var).tobytes())
        if key not in self._cache:
            if len(self._cache) >= _SETS:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = self.outputs(np.asarray(mean, np.float64), np.asarray(var, np.float64))
        return self._cache[key]

    @cached_property
    def differences(self) -> Differences:
        """For small sigma."""
        return Differences(self.f)

    def outputs(self, mean: F64, var: F64, *, rests: bool = False) -> dict[str, F64]:
        """The outputs at float64 points, v > 0; with ``rests`` also what they have beside the line on mu's side."""
        raise NotImplementedError


def from_expectations(here: Any, expectations: Iterable[Any], sigma: Any, var: Any) -> dict[str, Any]:
    """The outputs, and as ``rise`` the mean less f(mu), of d = f(X) - f(mu) and z = (X - mu)/sigma: arrays or balls.

    Args:
        here: f(mu).
        expectations: of d, d², d z, d (z² - 1), d² z and d² (z² - 1).
        sigma: root of ``var``.
        var: *variances*.
    """
    one, two, first, second, square1, square2 = expectations
    return {
        "mean": here + one,
        "rise": one,
        "var": two - one * one,
        "dmean_dmu": first / sigma,
        "dmean_dvar": second / (2 * var),
        "dvar_dmu": (square1 - 2 * one * first) / sigma,
        "dvar_dvar": (square2 / 2 - one * second) / var,
    }


_TERMS = 22
REACH, PANELS = 14.5, 20  # in sigma; as far as tolerances follow a jump: the square of one of 1e4 counts to 13
NODES = np.polynomial.legendre.leggauss(16)


class Differences:
    """Outputs at points with sigma well below the length of f."""

    def __init__(self, f: Activation) -> None:
        self.f = f
        self.at_kinks = []
        for i, kink in enumerate(f.kinks):
            left, right = (f.taylor(j, kink, _TERMS) for j in (i, i + 1))
            self.at_kinks.append(np.array([float(b - a) for a, b in zip(left, right, strict=True)]))

    def outputs(self, mean: F64, var: F64) -> dict[str, F64]:
        """The outputs, and as ``rise`` the mean less f(mu), to its own digits; shapes (n,)."""
        f, sigma = self.f, np.sqrt(var)
        home = f.homes(mean)
        points = zip(home.tolist(), mean.tolist(), strict=True)
        series = np.array([[float(c) for c in f.taylor(piece, m, _TERMS)] for piece, m in points])
        # Cuts: even panels, and the kinks that are near.
        cuts = np.linspace(-REACH, REACH, PANELS + 1)[None, :] + np.zeros((mean.size, 1))
        for kink in f.kinks:
            # exact: the difference of two float64 numbers close to each other
            cuts = np.concatenate([cuts, np.clip((kink - mean) / sigma, -REACH, REACH)[:, None]], axis=1)
        cuts.sort(axis=1)
        sums = np.zeros((6, mean.size))
        for k in range(cuts.shape[1] - 1):
            low, high = cuts[:, k], cuts[:, k + 1]
            half = (high - low) / 2
            z = (low + high)[:, None] / 2 + half[:, None] * NODES[0]
            weight = half[:, None] * NODES[1] * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            # Apart from the tangent, whose odd moments are zero and would only leave their rounding.
            rest, line = self.difference(mean, sigma, z, series, home), series[:, 1:2] * sigma[:, None] * z
            d, h = rest + line, z * z - 1
            for row, term in enumerate((rest, d * d, d * z, rest * h, rest * (d + line) * z, d * d * h)):
                sums[row] += (weight * term).sum(axis=1)
        return from_expectations(series[:, 0], sums, sigma, var)

    def difference(self, mean: F64, sigma: F64, z: F64, series: F64, home: npt.NDArray[np.int64]) -> F64:
        """f(mu + sigma z) less the tangent at mu on a panel that no kink divides; z has shape (n, nodes)."""
        step = sigma[:, None] * z
        total = _horner(series, step, 2)
        middle = (z[:, 0] + z[:, -1]) / 2  # in z: mu + sigma z may round to mu
        for i, kink in enumerate(self.f.kinks):
            gap = (kink - mean)[:, None]
            series_here, at = self.at_kinks[i], gap[:, 0] / sigma
            sign = np.where((home <= i) & (middle > at), 1.0, 0.0) - np.where((home > i) & (middle < at), 1.0, 0.0)
            # What the branches differ by, x - kink beyond the kink.
            beyond = np.where(sign[:, None] == 0, 0.0, step - gap)
            up = series_here[0] + _horner(np.broadcast_to(series_here, (mean.size, _TERMS)), beyond)
            total = total + sign[:, None] * up
        return total


def _horner(series: F64, step: F64, start: int = 1) -> F64:
    """Σ_{k>=start} c_k step^k."""
    total = np.zeros_like(step)
    for k in range(_TERMS - 1, start - 1, -1):
        total = total * step + series[:, k : k + 1]
    return total * step**start
