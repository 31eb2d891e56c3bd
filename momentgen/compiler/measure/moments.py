r"""The tolerance that general activations are measured by, from what f is: steepness, range, jumps.

- mean: 1e-6 max(1, |m'|) + 1e-9 min(L sigma, range);
- variance: 1e-5 s, s = min(L² v, (range/2)²) + Σ J² Phi(a) Phi(-a) over the jumps J of f;
- partials: 1e-4 of the largest value that the partial takes over all mu at that variance;
- where the rule gives absolute goals, a mean and a variance within these too, and partials within 1e-5 of that value;
- a draw of 0 or 1 has a variance of up to 1/4 at any v: that is its s;
- where f has no Lipschitz constant (exp, square): relative to the exact value, 1e-5 and for partials 1e-4.

Below the normal range of float32, 2^-126 is allowed, and to the partials of the variance, which contain v times a
partial of the mean, (1 + v) 2^-126.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.stable import PARTIALS, Errors
from momentgen.compiler.measure.ulp import LARGEST
from momentgen.rule import Accuracy

__all__ = [
    "MEAN",
    "MEAN_SPREAD",
    "PARTIAL",
    "USUAL",
    "VARIANCE",
    "Limits",
    "MomentsMeasure",
    "held",
    "limits_for",
    "measure_for",
    "shares",
]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
MEAN, MEAN_SPREAD, VARIANCE, PARTIAL = 1e-6, 1e-9, 1e-5, 1e-4
_PARTIAL_ABSOLUTE = 1e-5  # beside absolute goals of outputs
_SMALLEST = 2.0**-126
_LOG2_VAR = (-44, 44)
_erfc = np.vectorize(math.erfc, otypes=[float])
_FAR = 10.0  # Phi(a) Phi(-a) at a = 10 sqrt(2) is 1e-45, far below _SMALLEST

#: (mean, var, parameters) -> the six outputs, in float64
Reference = Callable[[F32, F32, Mapping[str, float]], Mapping[str, F64]]


@dataclass(frozen=True)
class Limits:
    """What a rule asks for beyond the usual.

    Attributes:
        mean, var: absolute errors that a mean and a variance may not exceed.
        partial: of its largest value over all means at that variance, the error of a partial.
    """

    mean: float = math.inf
    var: float = math.inf
    partial: float = PARTIAL

    @property
    def small_mean(self) -> float:
        """The error allowed to a mean of at most 1."""
        return min(MEAN, self.mean)

    def share_of_variance(self, span: float) -> float:
        """The error allowed to the variance of an f of that range, over the largest that it may be."""
        return min(VARIANCE, self.var / (span / 2) ** 2) if math.isfinite(span) else VARIANCE


USUAL = Limits()


def limits_for(accuracy: Accuracy) -> Limits:
    """The limits that a rule's accuracy sets.

    >>> limits_for(Accuracy(moments=True)) == USUAL, limits_for(Accuracy(mean_abs=3e-7)).partial
    (True, 1e-05)
    """
    mean, var = (math.inf if goal is None else goal for goal in (accuracy.mean_abs, accuracy.var_abs))
    return USUAL if mean == var == math.inf else Limits(mean, var, _PARTIAL_ABSOLUTE)


@dataclass(frozen=True)
class MomentsMeasure:
    """Errors over what is allowed; survives pickling.

    Attributes:
        lipschitz, span, jumps: of f.
        scales: per partial, log2 of its largest value over mu at each variance 2^k, k = -44..44.
        limits: what the rule asks for beyond the usual.
        draw: whether the output is a draw of 0 or 1.
    """

    lipschitz: float
    span: float
    jumps: tuple[tuple[float, float], ...]
    scales: Mapping[str, tuple[float, ...]]
    limits: Limits = USUAL
    draw: bool = False

    def spread(self, mean: F64, var: F64) -> F64:
        """s: what the variance is measured against."""
        if self.draw:
            return np.full(np.shape(var), 0.25)
        with np.errstate(all="ignore"):
            s = np.minimum(self.lipschitz**2 * var, (self.span / 2) ** 2)
            for point, jump in self.jumps:
                away = np.abs(mean - point) / np.sqrt(np.maximum(var, 1e-300)) / math.sqrt(2)
                near = away < _FAR  # math.erfc takes an element at a time
                tail = np.zeros_like(away)
                tail[near] = _erfc(away[near])
                s = s + jump**2 * tail * (2 - tail) / 4
        return s

    def allowed(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """The error allowed at each point."""
        if output == "mean":
            steep = np.minimum(self.lipschitz * np.sqrt(var), self.span)
            limit = np.minimum(MEAN * np.maximum(1.0, np.abs(exact)) + MEAN_SPREAD * steep, self.limits.mean)
        elif output == "var":
            limit = np.minimum(VARIANCE * self.spread(mean, var), self.limits.var)
        else:
            table = np.array(self.scales[output])
            position = np.log2(np.maximum(var, 1e-300)) - _LOG2_VAR[0]
            inner = np.interp(position, np.arange(len(table)), table)
            # Beyond the table the scale goes on as a power of v.
            below, above = np.minimum(position, 0.0), np.maximum(position - (len(table) - 1), 0.0)
            inner = inner + below * (table[1] - table[0]) + above * (table[-1] - table[-2])
            limit = self.limits.partial * np.exp2(np.clip(inner, -1000, 1000))
            if output.startswith("dvar"):  # they contain v times a partial of the mean
                limit = np.maximum(limit, _SMALLEST * (1 + var))
        return np.maximum(limit, _SMALLEST)

    def __call__(self, output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
        return self.over(output, exact, mean, var)(computed)

    def over(self, output: str, exact: F64, mean: F32, var: F32) -> Errors:
        """The same as a function of what was computed."""
        allowed = self.allowed(output, exact, mean.astype(np.float64), var.astype(np.float64))
        return functools.partial(shares, held(exact), allowed)


def shares(exact: F64, allowed: F64, computed: F32) -> F64:
    """Errors over what is allowed, infinite where a result is not finite."""
    with np.errstate(all="ignore"):
        error = np.abs(computed.astype(np.float64) - exact) / allowed
    return np.where(np.isfinite(computed), error, np.inf)


def held(exact: F64) -> F64:
    """What the exact values are to be in float32: beyond its range the largest number, of the right sign."""
    return np.clip(exact, -LARGEST, LARGEST)


def measure_for(f: Activation, reference: Reference, limits: Limits = USUAL, *, draw: bool = False) -> MomentsMeasure:
    """The measure of an activation, or of a draw with that mean, its partials' scales taken from ``reference``."""
    exponents = np.arange(_LOG2_VAR[0], _LOG2_VAR[1] + 1)
    shape = np.sinh(np.linspace(-4, 4, 121))
    shape = shape / shape[-1]
    means, variances = [], []
    points = np.array([f.centre, *f.kinks])
    for k in exponents:
        sigma = 2.0 ** (k / 2)
        far = 12 * f.length + 6 * sigma
        near = (points[:, None] + sigma * np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])).ravel()
        row = np.concatenate([f.centre + far * shape, near])
        means.append(row)
        variances.append(np.full(row.size, 2.0**k))
    mean, var = np.concatenate(means).astype(np.float32), np.concatenate(variances).astype(np.float32)
    values = reference(mean, var, {})
    scales = {}
    for name in PARTIALS:
        largest = np.abs(values[name]).reshape(len(exponents), -1).max(axis=1)
        scales[name] = tuple(float(w) for w in np.log2(np.maximum(largest, 1e-280)))
    return MomentsMeasure(f.lipschitz, f.span, f.jumps, scales, limits, draw)
