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

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.stable import PARTIALS, Edge, Errors, Truth, at_setting, errors_over
from momentgen.compiler.toolchain.arrays import F32, F64, Bools, erfc
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.rule import Accuracy

MEAN, MEAN_SPREAD, VARIANCE, PARTIAL = 1e-6, 1e-9, 1e-5, 1e-4
_PARTIAL_ABSOLUTE = 1e-5  # beside absolute goals of outputs
_SMALLEST = 2.0**-126
_LOG2_VAR = (-44, 44)
EXACT_MEAN, VARIANCE_OF_INPUT = "the exact mean", "the input's variance, sigma its root"
LARGEST_PARTIAL = "{:g} of the largest value that it takes over all means at that variance"
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


def held(exact: F64) -> F64:
    """What the exact values are to be in float32: beyond its range the largest number, of the right sign."""
    return np.clip(exact, -LARGEST, LARGEST)


class Tolerance:
    """A measure of error by what is allowed.

    Attributes:
        with_slopes: whether partials of the variance contain v times one of the mean: (1 + v) 2^-126 is allowed them.
    """

    with_slopes = False

    def allowed(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """The error allowed at each point, 2^-126 at least."""
        with np.errstate(all="ignore"):
            limit = self.limit(output, exact, mean, var)
        least = _SMALLEST * (1 + var) if self.with_slopes and output.startswith("dvar") else _SMALLEST
        return np.maximum(np.where(np.isnan(limit), np.inf, limit), least)

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """The same where that is more; infinite where it is no number."""
        raise NotImplementedError

    def words(self) -> dict[str, Any]:
        """Describe the tolerance as data: a formula per output in ASCII, and what its symbols stand for."""
        raise NotImplementedError

    def counted(self, mean: F64, var: F64) -> Bools:
        """Where errors count."""
        return np.ones(np.shape(mean), np.bool_)

    def __call__(self, output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
        return self.over(output, exact, mean, var)(computed)

    def over(self, output: str, exact: F64, mean: F32, var: F32) -> Errors:
        """The same as a function of what was computed: infinite where that is not finite."""
        at, target = (mean.astype(np.float64), var.astype(np.float64)), held(exact)
        allowed, counted = self.allowed(output, target, *at), self.counted(*at)

        def errors(computed: F32) -> F64:
            with np.errstate(all="ignore"):
                error = np.abs(computed.astype(np.float64) - target) / allowed
            return np.where(counted, np.where(np.isfinite(computed), error, np.inf), 0.0)

        return errors


@dataclass(frozen=True)
class MomentsMeasure(Tolerance):
    """Errors over what is allowed.

    Attributes:
        lipschitz, span, jumps: of f.
        scales: per partial, log2 of its largest value over mu at each variance 2^k, k = -44..44.
        limits: what the rule asks for beyond the usual.
        draw: whether the output is a draw of 0 or 1.
    """

    with_slopes = True
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
                tail[near] = erfc(away[near])
                s = s + jump**2 * tail * (2 - tail) / 4
        return s

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        if output == "mean":
            steep = np.minimum(self.lipschitz * np.sqrt(var), self.span)
            return np.minimum(MEAN * np.maximum(1.0, np.abs(exact)) + MEAN_SPREAD * steep, self.limits.mean)
        if output == "var":
            return np.minimum(VARIANCE * self.spread(mean, var), self.limits.var)
        table = np.array(self.scales[output])
        position = np.log2(np.maximum(var, 1e-300)) - _LOG2_VAR[0]
        inner = np.interp(position, np.arange(len(table)), table)
        # Beyond the table the scale goes on as a power of v.
        below, above = np.minimum(position, 0.0), np.maximum(position - (len(table) - 1), 0.0)
        inner = inner + below * (table[1] - table[0]) + above * (table[-1] - table[-2])
        return np.asarray(self.limits.partial * np.exp2(np.clip(inner, -1000, 1000)))

    def words(self) -> dict[str, Any]:
        shape, limits = self.shape(), self.limits
        said = of_activation(f"{MEAN:g}*max(1, |m|) + {steep(shape)}", shape)
        if self.draw:  # of 0 or 1
            said["var"] = f"{VARIANCE / 4:g}"
        if limits.mean <= MEAN:
            said["mean"] = f"{limits.mean:g}"
            del said["where"]["m"]
            if self.draw:
                said |= {"where": {}, "values": {}}
        elif limits.mean < math.inf:
            said["mean"] = f"min({limits.mean:g}, {said['mean']})"
        if limits.var < math.inf:
            said["var"] = f"{min(limits.var, VARIANCE / 4):g}" if self.draw else f"min({limits.var:g}, {said['var']})"
        return said | {"partials": LARGEST_PARTIAL.format(limits.partial)}

    def shape(self) -> dict[str, Any]:
        """The numbers of f that the words name."""
        jumps = [[float(at), float(jump)] for at, jump in self.jumps]
        return {"L": float(self.lipschitz), "range": float(self.span), "jumps": jumps}


def steep(shape: Mapping[str, Any]) -> str:
    """What is allowed to the mean beside its rounding."""
    return f"{MEAN_SPREAD:g}*" + ("min(L*sigma, range)" if math.isfinite(shape["range"]) else "L*sigma")


def of_activation(mean: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Tolerances that follow from how steep f is, how far it ranges, and its jumps."""
    where = {"m": EXACT_MEAN, "v": VARIANCE_OF_INPUT, "L": "the largest |f'|"}
    spread = "L^2*v"
    values = {name: value for name, value in shape.items() if name not in ("range", "jumps")}
    if math.isfinite(shape["range"]):
        spread, where["range"], values["range"] = "min(L^2*v, (range/2)^2)", "max f - min f", shape["range"]
    if shape["jumps"]:
        spread = f"({spread} + sum of J^2*Phi(a)*Phi(-a))"
        where["J, a"] = "the height of each jump of f, and its distance from the mean in sigmas"
        values["jumps"] = shape["jumps"]
    return {
        "mean": mean,
        "var": f"{VARIANCE:g}*{spread}",
        "partials": LARGEST_PARTIAL.format(PARTIAL),
        "where": where,
        "values": values,
        "least": "2^-126, and (1 + v)*2^-126 of var's partials",
    }


def measure_for(f: Activation, reference: Reference, limits: Limits = USUAL, *, draw: bool = False) -> MomentsMeasure:
    """The measure of an activation, or of a draw with that mean, its partials' scales taken from ``reference``."""
    exponents = np.arange(_LOG2_VAR[0], _LOG2_VAR[1] + 1)
    shape = np.sinh(np.linspace(-4, 4, 121))
    shape = shape / shape[-1]
    points, beside = np.array([f.centre, *f.kinks])[:, None], np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
    rows = []
    for sigma in (2.0 ** (k / 2) for k in exponents):
        far = 12 * f.length + 6 * sigma
        rows.append(np.concatenate([f.centre + far * shape, (points + sigma * beside).ravel()]))
    mean = np.concatenate(rows).astype(np.float32)
    var = np.repeat(np.ldexp(1.0, exponents), rows[0].size).astype(np.float32)
    values = reference(mean, var, {})
    scales = {}
    for name in PARTIALS:
        largest = np.abs(values[name]).reshape(len(exponents), -1).max(axis=1)
        scales[name] = tuple(float(w) for w in np.log2(np.maximum(largest, 1e-280)))
    return MomentsMeasure(f.lipschitz, f.span, f.jumps, scales, limits, draw)


# --- outputs that are random beyond their input ------------------------------------
#: output of Y -> what E h adds to it
ADDED = {"var": "mean", "dvar_dmu": "dmean_dmu", "dvar_dvar": "dmean_dvar"}


@dataclass(frozen=True)
class ConditionalMeasure(Tolerance):
    """The tolerance of f, and that of E h in the variance and its partials.

    Attributes:
        own, expected: the measures of f and of h.
        unit: of h.
    """

    own: Any
    expected: Any
    unit: float

    def at(self, setting: Mapping[str, float]) -> ConditionalMeasure:
        own, expected = (at_setting(measure, setting) for measure in (self.own, self.expected))
        unit = expected.units.scale if hasattr(expected, "units") else 1.0
        return ConditionalMeasure(own, expected, unit)

    def allowed(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        limit: F64 = self.own.allowed(output, exact, mean, var)
        if output == "var":
            return limit + MEAN * np.maximum(self.unit, np.abs(exact))
        return limit + self.expected.allowed(ADDED[output], exact, mean, var) if output in ADDED else limit

    def over(self, output: str, exact: F64, mean: F32, var: F32) -> Errors:
        """The errors of f as they are measured, as a share of what is allowed to both."""
        own: Errors = self.own.over(output, exact, mean, var)
        if output not in ADDED:
            return own
        at = mean.astype(np.float64), var.astype(np.float64)
        share: F64 = self.own.allowed(output, exact, *at) / self.allowed(output, exact, *at)
        return lambda computed: own(computed) * share

    def words(self) -> dict[str, Any]:
        said = self.own.words()
        unit = "A^2" if "A" in said["where"] else "1"
        both = "those of var the sum of this for both of its terms, Var E(Y | X) and E Var(Y | X)"
        return {
            **said,
            "var": f"{said['var']} + {MEAN:g}*max({unit}, V)",
            "partials": f"{said['partials']}, {both}",
            "where": {**said["where"], "V": "the exact variance"},
        }


@dataclass(frozen=True)
class ConditionalTruth:
    """The exact values of f, those of E h added."""

    own: Truth
    expected: Truth

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        values, more = dict(self.own(mean, var, params)), self.expected(mean, var, params)
        return values | {name: values[name] + more[of] for name, of in ADDED.items()}


@dataclass(frozen=True)
class Inside:
    """Another measure, where ``edge`` has numbers."""

    measure: Any
    edge: Edge

    def at(self, setting: Any) -> Inside:
        return replace(self, measure=at_setting(self.measure, setting))

    def words(self) -> dict[str, Any]:
        found: dict[str, Any] = self.measure.words()
        return found

    def __call__(self, output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
        return self.over(output, exact, mean, var)(computed)

    def over(self, output: str, exact: F64, mean: F32, var: F32) -> Errors:
        inside = self.edge.inside(mean.astype(np.float64), var.astype(np.float64))
        errors = errors_over(self.measure, output, exact, mean, var)

        def within(computed: F32) -> F64:
            with np.errstate(invalid="ignore"):
                return np.where(inside, errors(computed), 0.0)

        return within
