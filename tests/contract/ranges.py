"""What the ops ought to give anywhere in the range of float: exact values, tolerances, and where NaN is the answer.

Exact values are those of ball arithmetic (of a closed form, or of f itself on panels), at v = 0 those of f at a
rational number.  Tolerances are what a certificate's goal says, from what f is: its steepness, range and jumps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import sympy as sp
import torch
from real_rules import rules

import momentgen.generated
from momentgen.compiler.derive import derive, derive_joint
from momentgen.compiler.exact import ball_function, evaluate
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.stable import PARTIALS
from momentgen.compiler.measure.moments import ADDED, USUAL, ConditionalTruth, Limits, MomentsMeasure, limits_for
from momentgen.compiler.measure.ulp import is_normal, unit
from momentgen.compiler.strategies import ways
from momentgen.compiler.strategies.covariance.covariance import stabilise_covariance
from momentgen.compiler.strategies.joint.joint import stabilise_joint
from momentgen.compiler.strategies.settled import Settled
from momentgen.compiler.strategies.smooth.polynomials import DrawTruth
from momentgen.rule import Rule
from momentgen.rule.inputs import COVARIANCE, input_symbols, partial_names
from momentgen.runtime import Op

F64 = npt.NDArray[np.float64]
Points = tuple[F64, ...]
Values = Mapping[str, F64]
Errors = Callable[[str, F64, F64, Points], F64]
LARGEST = {torch.float32: float(np.finfo(np.float32).max), torch.float64: float(np.finfo(np.float64).max)}
_SMALLEST = 2.0**-126
_MEANS = 1.25  # the largest partial over all means is looked for at some of them

RULES = rules()
OPS: Mapping[str, Op] = {name: op for name in RULES if isinstance(op := getattr(momentgen.generated, name, None), Op)}


@dataclass(frozen=True)
class Subject:
    """One op at its parameters' defaults.

    Attributes:
        rule: of the op.
        truth: exact values at float64 points, variances positive.
        errors: (output, computed, exact, points) -> errors over what the certificate's goal allows.
        jumps: whether f jumps.
    """

    rule: Rule
    truth: Callable[..., Values]
    errors: Errors
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
    rule, way = RULES[name], str(OPS[name].certificate().method.get("way", ""))
    if rule.outputs == COVARIANCE:
        stable, *_ = stabilise_covariance(rule)
        return _measured(rule, stable, lambda *points: stable.truth(*points, rule.defaults))
    if len(rule.inputs) > 1 or rule.noise is not None:
        stable, *_ = stabilise_joint(derive_joint(rule))
        return _measured(rule, stable, lambda *points: stable.truth(*points, rule.defaults))
    derivation = derive(rule)
    if way == "draw of 0 or 1":
        stable, *_ = next(ways(derivation, way))
        return _measured(rule, stable, lambda *points: stable.truth(*points, rule.defaults))
    f = Settled.of(rule).at(rule.defaults)
    limits = limits_for(rule.accuracy)
    if rule.bernoulli:
        balls = DrawTruth(BallTruth(f))
        return Subject(rule, lambda mean, var: balls(mean, var, {}), _Tolerance(f, limits, draw=True))
    truth = _truth(rule, derivation, f)
    if way == "elementary":
        stable, *_ = next(ways(derivation, way))
        return _measured(rule, stable, truth)
    if rule.conditional_var is not None:
        return _random(rule, f)
    if way == "homogeneous":
        return Subject(rule, truth, _in_ulp(rule.accuracy.ulp["exact"]), bool(f.jumps))
    return Subject(rule, truth, _Tolerance(f, limits), bool(f.jumps))


def _truth(rule: Rule, derivation: Any, f: Activation) -> Callable[..., Values]:
    """Of the closed form where its terms do not cancel far out, else of f."""
    if derivation.second is None or (derivation.mean.has(sp.exp) and f.kinks):
        panels = BallTruth(f)
        return lambda mean, var: panels(mean, var, {})
    settled = Settled.of(rule).values(rule.defaults)
    outputs = {"mean": derivation.mean, "var": derivation.var, **derivation.partials}
    balls = ball_function([e.subs(settled) for e in outputs.values()], ["mu", "v"])
    return lambda mean, var: dict(zip(outputs, evaluate(balls, {"mu": mean, "v": var}), strict=True))


def _random(rule: Rule, f: Activation) -> Subject:
    """Of an output with a variance given x: its mean is added to the variance of f, and so are their tolerances."""
    h = Settled.of(rule, rule.conditional_var).at(rule.defaults)
    of_f, of_h = _Tolerance(f), _Tolerance(h)
    panels = ConditionalTruth(BallTruth(f), BallTruth(h))
    units = derive(rule).units
    scale = 1.0 if units is None else Settled.of(rule).number(units.scale, rule.defaults)

    def errors(output: str, computed: F64, exact: F64, points: Points) -> F64:
        error, var = np.abs(computed - exact), points[1]
        if output == "mean":
            return np.asarray(error / (1e-6 * np.maximum(scale, np.abs(exact)) + 1e-9 * f.lipschitz * np.sqrt(var)))
        if output == "var":
            allowed = 1e-5 * f.lipschitz**2 * var + 1e-6 * np.maximum(scale**2, np.abs(exact))
            return np.asarray(error / allowed)
        allowed = of_f.partial(output, var)
        return np.asarray(error / (allowed + of_h.partial(ADDED[output], var) if output in ADDED else allowed))

    return Subject(rule, lambda mean, var: panels(mean, var, {}), errors)


def _measured(rule: Rule, stable: Any, truth: Callable[..., Values]) -> Subject:
    """By the measure of the certificate."""
    measure = stable.at(rule.defaults).measure

    def errors(output: str, computed: F64, exact: F64, points: Points) -> F64:
        narrow = [p.astype(np.float32) for p in points]
        return np.asarray(measure(output, computed.astype(np.float32), exact, *narrow)) / stable.goal

    return Subject(rule, truth, errors)


def _in_ulp(goal: float) -> Errors:
    def errors(output: str, computed: F64, exact: F64, points: Points) -> F64:
        return np.asarray(np.abs(computed - exact) / np.where(is_normal(exact), goal * unit(exact), _SMALLEST))

    return errors


#: the largest partial of a step of a height J is c J^power / sigma^order: power, order and c, rounded down
_OF_JUMP = {
    "dmean_dmu": (1, 1, 0.39), "dmean_dvar": (1, 2, 0.12), "dvar_dmu": (2, 1, 0.16), "dvar_dvar": (2, 2, 0.085),
}  # fmt: skip


class _Tolerance:
    """The tolerance of activations, the largest partials found at the variances asked for."""

    def __init__(self, f: Activation, limits: Limits = USUAL, *, draw: bool = False) -> None:
        self.f = f
        self.measure = MomentsMeasure(f.lipschitz, f.span, f.jumps, {}, limits, draw)
        reference = GeneralTruth(f) if f.algebraic else QuadratureTruth(f)
        own = lambda mean, var, _: reference.outputs(mean, var)  # noqa: E731
        self.reference = DrawTruth(own) if draw else own

    def __call__(self, output: str, computed: F64, exact: F64, points: Points) -> F64:
        mean, var = points
        allowed = self.partial(output, var) if output in PARTIALS else self.measure.allowed(output, exact, mean, var)
        return np.asarray(np.abs(computed - exact) / allowed)

    def partial(self, output: str, var: F64) -> F64:
        """A share of the largest value over the mean."""
        f, sigma = self.f, np.sqrt(var)[:, None]
        far = np.sinh(np.linspace(-4, 4, 81)) / np.sinh(4)
        places = np.array([f.centre, *f.kinks])
        near = (places[:, None] + np.linspace(-2, 2, 9)[None, :] * sigma[:, :, None]).reshape(len(var), -1)
        means = np.concatenate([f.centre + (12 * f.length + 6 * sigma) * far[None, :], near], axis=1)
        every = np.broadcast_to(var[:, None], means.shape)
        values = self.reference(means.ravel(), every.ravel(), {})[output]
        largest = np.abs(values).reshape(means.shape).max(axis=1)
        for place, height in f.jumps:
            # Means that close to a jump are one number in float64: the largest partial of a jump alone.
            power, order, factor = _OF_JUMP[output]
            alone = factor * abs(height) ** power / sigma[:, 0] ** order
            largest = np.where(sigma[:, 0] < 1e-13 * abs(place), np.maximum(largest, alone), largest)
        limit = np.maximum(_MEANS * self.measure.limits.partial * largest, _SMALLEST)
        return np.asarray(np.maximum(limit, _SMALLEST * (1 + var)) if output.startswith("dvar") else limit)


def computed(op: Op, points: Points, dtype: torch.dtype) -> Values:
    """Outputs and partials as a user gets them."""
    leaves = [torch.from_numpy(p).to(dtype).requires_grad_() for p in points]
    result = op(*leaves)
    outputs = (result,) if isinstance(result, torch.Tensor) else tuple(result)
    found = {name: value.detach().double().numpy() for name, value in zip(op.outputs, outputs, strict=True)}
    for k, value in enumerate(outputs):
        gradients = torch.autograd.grad(value.sum(), leaves, retain_graph=True)
        for names, gradient in zip(partial_names(op.input_names, op.outputs).values(), gradients, strict=True):
            found[names[k]] = gradient.double().numpy()
    return found
