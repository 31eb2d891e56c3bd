"""Certify variants that are sums over nodes in float64, rounded once for float32.

Errors are relative: those of sigma to sigma itself, those of partials to the bounds that Cauchy and Schwarz set for
them.  Exact values are sums over far more nodes; at the worst points, and at small sigma, sums of balls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import sympy

from momentgen.compiler.certify.bounds import Bound, check_promises, missed_by
from momentgen.compiler.certify.points import seed_of
from momentgen.compiler.exact.by_panels import Shares, by_balls, in_float64
from momentgen.compiler.function.branches import Branches
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, SIX, Stable
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.strategies.finish import DomainEdge
from momentgen.compiler.strategies.quadrature.search import ADVICE, FLOAT32, FLOAT64, drawn
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.errors import BuildError
from momentgen.rule import Rule
from momentgen.rule.symbols import x

_POINTS, _WORST, _SMALL = 800, 4, 24
_EVERY = 50  # of the points that promises are checked at


@dataclass(frozen=True)
class Measured:
    """What was found: bounds, facts, and numbers of points."""

    bounds: Mapping[str, Bound]
    facts: Mapping[str, Any]
    points: int
    promises: int


class _Runner:
    """The float32 kernels: a graph in float64, rounded once."""

    inputs = ("mean", "var")
    outputs = OUTPUTS
    partials = (PARTIALS[:2], PARTIALS[2:])

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self.graphs = graphs

    def __call__(self, *given: Any) -> dict[str, F32]:
        mean, var, params = given
        found = self.exactly(mean.astype(np.float64), var.astype(np.float64), params)
        with np.errstate(all="ignore"):
            return {name: np.clip(values, -LARGEST, LARGEST).astype(np.float32) for name, values in found.items()}

    def exactly(self, mean: F64, var: F64, params: Mapping[str, float]) -> dict[str, F64]:
        """The same before it is rounded."""
        points = {"mean": mean, "var": var, **params}
        return {name: values for graph in self.graphs for name, values in outputs_float64(graph, points).items()}


def measured_by_sums(rule: Rule, stable: Stable) -> Measured:
    """Measure a variant on its domain.

    Raises:
        BuildError: if the goal is missed, or a promise broken.
    """
    settings: Sequence[Branches] = stable.by_sums
    domain = cast("DomainEdge", stable.edge)
    runner, wide = (
        _Runner(graphs) for graphs in ((stable.forward, stable.partials), (stable.forward64, stable.partials64))
    )
    bounds = {name: Bound() for name in SIX}
    float64 = dict.fromkeys(SIX, 0.0)
    count, promises = 0, 0
    for number, setting in enumerate(settings):
        draw = np.random.default_rng(seed_of(rule.name, str(number)))
        mean, var = drawn(setting, domain, draw, _POINTS)
        exact = in_float64(setting, mean, var)
        groups = [exact]
        found = exact.errors(runner.exactly(mean, var, setting.setting), FLOAT32)
        worst = np.unique(np.concatenate([np.argsort(error)[-_WORST:] for error in found.values()]))
        small_mean, small_var = drawn(setting, domain, draw, _SMALL, small=True)
        mean, var = np.concatenate([mean[worst], small_mean]), np.concatenate([var[worst], small_var])
        groups.append(by_balls(setting, mean, var))
        for exact in groups:
            points = exact.mean.astype(np.float32), exact.var.astype(np.float32)
            computed = runner(*points, setting.setting)
            single = {name: values.astype(np.float64) for name, values in computed.items()}
            found = exact.errors(single, FLOAT32, LARGEST)
            for name, bound in bounds.items():
                bound.update(found[name], computed[name], exact.values[name], points, setting.setting)
            double = wide.exactly(exact.mean, exact.var, setting.setting)
            for name, error in exact.errors(double, FLOAT64).items():
                float64[name] = max(float64[name], float(error.max()))
            count += exact.mean.size
        if any(bound.error > stable.goal for bound in bounds.values()):
            cause = f"variant {stable.variant}: {missed_by(bounds, stable)}; {ADVICE}"
            raise BuildError(rule.name, "certify", cause)
        promises += check_promises(
            rule.name,
            stable,
            runner,  # type: ignore[arg-type]
            setting.setting,
            _own_values(rule, setting),
            seed=seed_of(rule.name, stable.variant),
            every=_EVERY,
        )
    stated = {name: float(f"{value:.2g}") for name, value in float64.items()}
    return Measured(bounds, {"float64_measured": stated, "float64_unit": _words(FLOAT64)}, count, promises)


def _own_values(rule: Rule, setting: Branches) -> Callable[..., F64]:
    """f on arrays: at a jump its own value, which may be that of neither side."""
    f = rule.f.subs({p.symbol: sympy.Rational(setting.setting[p.name]) for p in rule.parameters})

    def values(points: F64) -> F64:
        found = setting.values(points)
        for at in np.unique(points[np.isin(points, setting.kinks)]):
            own = f.subs(x, sympy.Rational(float(at)))
            if own.is_finite:
                found[points == at] = float(own)
        return found

    return values


def tolerance_of_sums(stable: Stable) -> dict[str, Any]:
    """The certificate's ``tolerance``."""
    return {"least": "2^-126", "against": "the exact moments", **_words(FLOAT32)}


def _words(share: Shares) -> dict[str, Any]:
    floor = f"{share.floor:g}*D + 2^-50*F"
    return {
        "mean": f"{share.mean:g}*(|m| + s) + {floor}",
        "var": f"2*s*e + e^2, e = {share.sigma:g}*s + {floor}",
        "partials": (
            f"{share.partial:g} of s/sigma, s/v, q/sigma and q/v in turn, "
            f"beside {floor} over sigma or v, times D for those of the variance"
        ),
        "where": {
            "m, s": "the exact mean and standard deviation",
            "q": "the root of the exact fourth central moment",
            "D": "the largest |f - f(mu)| within 13 sigma, or b*sigma + 9/(b*sigma) where f is like exp(b*|x|)",
            "F": "the largest |f| within 8 sigma, and about where f bends most",
            "v": "the input's variance, sigma its root",
        },
        "values": {},
    }
