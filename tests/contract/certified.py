"""What the certificate of any variant promises at any setting: exact values, and errors over the goal.

Of general activations both are found without the fits of a build, in tenths of a second.  At the defaults exact values
anywhere in the range of float are those of ball arithmetic (of a closed form, or of f itself on panels), at v = 0 those
of f at a rational number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
import torch
from contract.library import OPS
from real_rules import F32, F64, Setting, rules, stables

from momentgen.compiler.certify.points import edge_points, joined, near_points, points_at, wide_points
from momentgen.compiler.certify.sampling import sampler_of
from momentgen.compiler.derive import derive
from momentgen.compiler.derive.derivation import base_rule, conditional_rule
from momentgen.compiler.derive.scaling import found_units
from momentgen.compiler.exact import ball_function, evaluate
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.stable import OUTPUTS, Truth
from momentgen.compiler.measure.moments import ConditionalMeasure, ConditionalTruth, limits_for, measure_for
from momentgen.compiler.measure.ulp import is_normal, unit
from momentgen.compiler.strategies.rescaled import RescaledMeasure, RescaledTruth, Units
from momentgen.compiler.strategies.smooth.polynomials import DrawTruth
from momentgen.compiler.strategies.tolerance import Parametric
from momentgen.compiler.toolchain.float32 import split_float32
from momentgen.rule import Rule
from momentgen.rule.inputs import input_symbols, partial_names
from momentgen.runtime import Op

Points = tuple[F32, ...]
Values = Mapping[str, F64]
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
    settled, rescaled = Parametric.of(rule), rule.rescaled or found_units(rule, split(rule.f, rule.parameters))
    f = (settled if rescaled is None else Parametric.of(base_rule(rule, rescaled))).at(setting)
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


# --- anywhere in the range of float -------------------------------------------------
@dataclass(frozen=True)
class Subject:
    """One op at its parameters' defaults.

    Attributes:
        rule: of the op.
        truth: exact values at float64 points, variances positive.
        error: (output, computed, exact, *points) -> errors over what the certificate's goal allows.
        jumps: whether f jumps.
    """

    rule: Rule
    truth: Callable[..., Values]
    error: Callable[..., F64]
    jumps: bool = False

    def at_point(self, *means: F64, of: sp.Expr | None = None) -> F64:
        """f, or another function of its inputs, exactly and then rounded, at float64 means."""
        symbols = input_symbols(self.rule.inputs)
        f = (self.rule.f if of is None else of).subs(
            {p.symbol: sp.Rational(float(p.default or 0.0)) for p in self.rule.parameters}
        )
        rows = zip(*means, strict=True)
        exact = [f.subs({s: sp.Rational(float(m)) for s, m in zip(symbols, row, strict=True)}) for row in rows]
        return np.array([float(sp.N(value, 30)) for value in exact])


@functools.cache
def subject(name: str) -> Subject:
    """The op of a rule."""
    rule, way = rules()[name], OPS[name].certificate().method.get("way")
    defaults = rule.defaults
    if way == "homogeneous":
        f = Parametric.of(rule).at(defaults)
        return Subject(rule, _rigorous(rule, f), _in_ulp(rule.accuracy.ulp["exact"]), bool(f.jumps))
    of = certified(name, "exact", defaults)

    def narrowed(output: str, computed: F64, exact: F64, *points: F64) -> F64:
        return of.error(output, computed.astype(np.float32), exact, *(p.astype(np.float32) for p in points))

    if len(rule.inputs) > 1 or rule.noise is not None or way == "draw of 0 or 1":
        return Subject(rule, lambda *points: of.truth(*points, defaults), narrowed)
    f = Parametric.of(rule).at(defaults)
    error = narrowed if way == "elementary" else of.error
    if rule.conditional_var is None and not rule.bernoulli:
        return Subject(rule, _rigorous(rule, f), error, bool(f.jumps))
    balls: Any = DrawTruth(BallTruth(f))
    if rule.conditional_var is not None:
        balls = ConditionalTruth(BallTruth(f), BallTruth(Parametric.of(rule, rule.conditional_var).at(defaults)))
    return Subject(rule, lambda mean, var: balls(mean, var, {}), error)


def _rigorous(rule: Rule, f: Activation) -> Callable[..., Values]:
    """Of the closed form where its terms do not cancel far out, else of f."""
    derivation = derive(rule)
    if derivation.second is None or (derivation.mean.has(sp.exp) and f.kinks):
        panels = BallTruth(f)
        return lambda mean, var: panels(mean, var, {})
    settled = Parametric.of(rule).values(rule.defaults)
    outputs = {"mean": derivation.mean, "var": derivation.var, **derivation.partials}
    balls = ball_function([e.subs(settled) for e in outputs.values()], ["mu", "v"])
    return lambda mean, var: dict(zip(outputs, evaluate(balls, {"mu": mean, "v": var}), strict=True))


def _in_ulp(goal: float) -> Callable[..., F64]:
    def errors(output: str, computed: F64, exact: F64, *points: F64) -> F64:
        return np.asarray(np.abs(computed - exact) / np.where(is_normal(exact), goal * unit(exact), 2.0**-126))

    return errors


def computed(op: Op, points: Sequence[F64], dtype: torch.dtype) -> Values:
    """Outputs and partials as a user gets them."""
    leaves = [torch.from_numpy(p).to(dtype).requires_grad_() for p in points]
    outputs = tuple(op(*leaves))
    found = {name: value.detach().double().numpy() for name, value in zip(OUTPUTS, outputs, strict=True)}
    for k, value in enumerate(outputs):
        gradients = torch.autograd.grad(value.sum(), leaves, retain_graph=True)
        for names, gradient in zip(partial_names(op.input_names).values(), gradients, strict=True):
            found[names[k]] = gradient.double().numpy()
    return found
