"""What the certificate of any variant promises at any setting: exact values, and errors over the goal.

Of general activations both are found without the fits of a build, in tenths of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from contract.library import OPS
from real_rules import F32, F64, Setting, rules, stables

from momentgen.compiler.certify.points import edge_points, near_points, points_at, wide_points
from momentgen.compiler.certify.sampling import joined, sampler_of
from momentgen.compiler.derive.derivation import base_rule, conditional_rule
from momentgen.compiler.derive.scaling import found_units
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.stable import Truth
from momentgen.compiler.measure.moments import ConditionalMeasure, ConditionalTruth, limits_for, measure_for
from momentgen.compiler.strategies.rescaled import RescaledMeasure, RescaledTruth, Units
from momentgen.compiler.strategies.settled import Settled
from momentgen.compiler.strategies.smooth.polynomials import DrawTruth
from momentgen.compiler.toolchain.float32 import split_float32
from momentgen.rule import Rule

Points = tuple[F32, ...]
#: strategies whose measure is that of activations
_GENERAL = ("smooth, by polynomials", "with kinks, by power series", "halves", "draw, by polynomials")


@dataclass(frozen=True)
class Certified:
    """One variant at one setting.

    Attributes:
        truth: float32 points, then the setting -> exact values by output.
        error: (output, computed, exact, *points) -> errors over the goal.
        places: means near which points are to lie.
        focus: the same of mean/sigma.
    """

    truth: Truth
    error: Callable[..., F64]
    places: tuple[float, ...]
    focus: tuple[float, ...] = ()


def certified(name: str, variant: str, setting: Setting) -> Certified:
    """What is promised of a variant at a setting."""
    if OPS[name].certificate(variant).method.get("way") in _GENERAL:
        return Certified(*_general(rules()[name], setting))
    stable = stables(name)[variant].at(setting)

    def error(output: str, computed: F32, exact: F64, *points: F32) -> F64:
        return np.asarray(stable.measure(output, computed, exact, *points) / stable.goal)

    return Certified(stable.truth, error, stable.places(setting), stable.focus(setting))


def _general(rule: Rule, setting: Setting) -> tuple[Truth, Any, tuple[float, ...]]:
    """Exact values, measure, and centre and kinks of an activation."""
    settled, rescaled = Settled.of(rule), rule.rescaled or found_units(rule, split(rule.f, rule.parameters))
    f = (settled if rescaled is None else Settled.of(base_rule(rule, rescaled))).at(setting)
    reference = GeneralTruth(f) if f.algebraic else QuadratureTruth(f)
    truth: Any = lambda mean, var, _: reference.outputs(mean.astype(np.float64), var.astype(np.float64))  # noqa: E731
    truth = DrawTruth(truth) if rule.bernoulli else truth
    measure: Any = measure_for(f, truth, limits_for(rule.accuracy), draw=rule.bernoulli)
    places: tuple[float, ...] = (f.centre, *f.kinks)
    if rescaled is not None:
        units = Units.at(settled, rescaled, setting)
        truth, measure = RescaledTruth(truth, settled, rescaled), RescaledMeasure(measure, settled, rescaled, units)
        places = tuple(units.centre + units.width * place for place in places)
    if rule.conditional_var is not None:
        more, of_more, _ = _general(conditional_rule(rule), setting)
        truth, measure = ConditionalTruth(truth, more), ConditionalMeasure(measure, of_more, 1.0).at(setting)
    return truth, measure, places


def settings_drawn(name: str, count: int, rng: np.random.Generator) -> list[dict[str, float]]:
    """The defaults, and others anywhere in the parameters' ranges, also over their logarithms."""
    parameters = OPS[name].parameters
    drawn = [{p.name: float(p.default or 0.0) for p in parameters}]
    for _ in range(count if parameters else 0):
        shares = {p: rng.random() for p in parameters}
        even = {p.name: p.low + shares[p] * (p.high - p.low) for p in parameters}
        if rng.random() < 0.5:
            even |= {p.name: p.low * (p.high / p.low) ** shares[p] for p in parameters if p.low > 0}
        drawn.append({key: sum(split_float32(value)) for key, value in even.items()})
    return drawn


def points_drawn(name: str, of: Certified, count: int, rng: np.random.Generator) -> Points:
    """Points of the domain: anywhere, on its edges, of usual sizes, and near the places that matter."""
    sampler, seed = sampler_of(OPS[name].input_names), int(rng.integers(2**31))
    if len(OPS[name].input_names) > 2:
        points = joined([sampler.calibration(stables(name)["exact"], stables(name)["exact"].forward, {}, count, seed)])
    else:
        usual = (
            3 * rng.standard_normal(count) + rng.choice(of.places or (0.0,), count),
            np.exp2(rng.uniform(-12, 8, count)),
        )
        groups = [wide_points(count, seed), edge_points(), tuple(array.astype(np.float32) for array in usual)]
        groups += [points_at(of.places, count // 4, seed), near_points(of.focus, count // 4, seed)]
        points = joined(groups)
    return tuple(array[sampler.in_domain(*points)] for array in points)
