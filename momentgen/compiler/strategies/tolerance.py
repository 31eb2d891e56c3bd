"""An f measured by a tolerance: what strategies ask of a rule, its exact values and measure, and the variant.

Fits and kernels may come from another function (a rule's base, its halves); what they are measured against is f itself
with its parameters set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, ErrorMeasure, Stable, Truth
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.measure.moments import MEAN, MomentsMeasure, Tolerance, measure_for
from momentgen.compiler.toolchain.arrays import F32, F64, Bools
from momentgen.rule import Rule

Setting = Mapping[str, float]


@dataclass(frozen=True)
class Parametric:
    """A function of x and parameters; at a setting, a function of x.

    Attributes:
        name: of the rule.
        f: the function.
        defaults: (parameter's symbol, default), in the rule's order; what a setting does not name has its default.
    """

    name: str
    f: sp.Expr
    defaults: tuple[tuple[sp.Symbol, float], ...]

    @staticmethod
    def of(rule: Rule, f: sp.Expr | None = None) -> Parametric:
        """The rule's f, or another expression in the rule's parameters."""
        return Parametric(
            rule.name, rule.f if f is None else f, tuple((p.symbol, p.default or 0.0) for p in rule.parameters)
        )

    def values(self, setting: Setting) -> dict[sp.Symbol, sp.Rational]:
        """The parameters' values as exact numbers."""
        return {symbol: sp.Rational(float(setting.get(symbol.name, default))) for symbol, default in self.defaults}

    def number(self, expression: sp.Expr, setting: Setting) -> float:
        """An expression in the parameters alone."""
        return float(sp.N(sp.sympify(expression).subs(self.values(setting)), 30))

    def at(self, setting: Setting) -> Activation:
        """f with its parameters set, analysed."""
        return _activation(self.name, self.f.subs(self.values(setting)))


@lru_cache(maxsize=64)
def _activation(name: str, f: sp.Expr) -> Activation:
    return analyse(name, split(f))


@lru_cache(maxsize=64)
def _quadrature(name: str, f: sp.Expr) -> QuadratureTruth:
    return QuadratureTruth(_activation(name, f))


@lru_cache(maxsize=64)
def _measure(name: str, f: sp.Expr) -> MomentsMeasure:
    return measure_for(_activation(name, f), _quadrature(name, f))


def closed_form_truth(derivation: Derivation, inside: Callable[..., Bools] | None = None) -> ClosedFormTruth:
    """The six outputs by balls from derive's closed forms; ``inside`` says where the measure looks."""
    outputs = {"mean": derivation.mean, "var": derivation.var, **derivation.partials}
    return ClosedFormTruth(outputs, tuple(p.name for p in derivation.rule.parameters), inside=inside)


@dataclass(frozen=True)
class ParametricTruth:
    """The six outputs at any setting, in float64 or ``by_balls``."""

    function: Parametric
    by_balls: bool = False

    def __call__(self, mean: F32, var: F32, params: Setting) -> dict[str, F64]:
        function = self.function
        if self.by_balls:
            return BallTruth(function.at(params))(mean, var, {})
        return _quadrature(function.name, function.f.subs(function.values(params)))(mean, var, {})


@dataclass(frozen=True)
class ParametricMeasure(Tolerance):
    """The tolerance at the defaults; ``at`` has that of a setting."""

    function: Parametric
    setting: tuple[tuple[str, float], ...] = ()

    def at(self, setting: Setting) -> ParametricMeasure:
        return replace(self, setting=tuple(setting.items()))

    @cached_property
    def measure(self) -> MomentsMeasure:
        """The measure of f with its parameters set."""
        return _measure(self.function.name, self.function.f.subs(self.function.values(dict(self.setting))))

    def allowed(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        return self.measure.allowed(output, exact, mean, var)

    def words(self) -> dict[str, Any]:
        return self.measure.words()


def unmet(derivation: Derivation, *, kinks: bool, exponentially: bool, draw: bool = False) -> str | None:
    """What is expected of f and not met; None if all is: no parameters, a line on either side.

    Args:
        kinks: whether f is to have kinks or jumps, or to be smooth.
        exponentially: whether it is to near its lines faster than by a power of x.
        draw: whether the output is to be a draw of 0 or 1 with probability f, or f itself.

    Raises:
        BuildError: if f cannot be looked at.
    """
    rule = derivation.rule
    if rule.bernoulli != draw:
        return f"expected {'a draw of 0 or 1, got f itself' if draw else 'f itself, got a draw of 0 or 1'}"
    if rule.parameters:
        names = ", ".join(p.name for p in rule.parameters)
        return f"expected parameters that only scale f, as `rescaled` can state, got {names}"
    if kinks and not derivation.kinks:
        return "expected kinks"
    if not kinks and derivation.kinks:
        return f"expected a smooth f, got kinks at {', '.join(map(str, derivation.kinks))}"
    f = analyse(rule.name, derivation.pieces)
    for line, side in ((f.left, "-oo"), (f.right, "oo")):
        if line is None:
            return f"expected f to near a line for x -> {side}, which it does not"
    if f.algebraic and exponentially:
        return "expected f to near a line on either side exponentially, not by a power of x"
    return None


def exact_variant(
    f: Activation,
    graphs: Mapping[str, Any],
    truth: Truth,
    measure: ErrorMeasure,
    *,
    fits: Iterable[Polynomial],
    facts: Mapping[str, Any],
    **more: Any,
) -> Stable:
    """The variant, of f's graphs by field of :class:`~momentgen.compiler.ir.stable.Stable`; ``more`` has others."""
    usual: dict[str, Any] = {"aim": 0.9, "slack": MEAN, "rigorous": BallTruth(f)}
    return Stable(
        variant="exact",
        truth=truth,
        measure=measure,
        goal=1.0,
        unit="tolerance",
        reach=f.evaluable,
        fits=tuple(dict.fromkeys(fits)),
        facts={"lipschitz": f.lipschitz, "range": f.span, "length": f.length, "centre": f.centre, **facts},
        **(usual | more),
        **graphs,
    )


def four_graphs(
    build: Callable[[tuple[str, ...], bool], tuple[Graph, Iterable[Polynomial]]],
) -> tuple[dict[str, Any], list[Polynomial]]:
    """The graphs of a variant by field of :class:`Stable`, and what was fitted for those of float32.

    Args:
        build: (outputs, whether for float64) -> a graph, and what was fitted for it.
    """
    graphs: dict[str, Any] = {}
    fits: list[Polynomial] = []
    for name, outputs in (("forward", OUTPUTS), ("partials", PARTIALS)):
        graphs[name], made = build(outputs, False)
        fits += made
        graphs[f"{name}64"], _ = build(outputs, True)
    return graphs, fits


def largest_errors(
    build: Callable[[tuple[str, ...]], Graph], truth: Truth, measure: ErrorMeasure, mean: F32, var: F32
) -> dict[str, float]:
    """By output, the largest error in float64 at some points, of the graphs that ``build`` makes of outputs."""
    exact, found = truth(mean, var, {}), dict[str, float]()
    for outputs in (OUTPUTS, PARTIALS):
        for name, values in outputs_float64(build(outputs), {"mean": mean, "var": var}).items():
            found[name] = float(measure(name, values, exact[name], mean, var).max())
    return found
