"""Exact values and measures of an f with parameters: what they are at each setting.

Fits and kernels may come from another function (a rule's base, its halves); what they are measured against is f itself
with its parameters set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.measure.moments import MomentsMeasure, Tolerance, measure_for
from momentgen.compiler.toolchain.arrays import F32, F64, Bools
from momentgen.rule import Rule

Setting = Mapping[str, float]


@dataclass(frozen=True)
class Settled:
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
    def of(rule: Rule, f: sp.Expr | None = None) -> Settled:
        """The rule's f, or another expression in the rule's parameters."""
        return Settled(
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
class SettledTruth:
    """The six outputs at any setting, in float64 or ``by_balls``."""

    settled: Settled
    by_balls: bool = False

    def __call__(self, mean: F32, var: F32, params: Setting) -> dict[str, F64]:
        settled = self.settled
        if self.by_balls:
            return BallTruth(settled.at(params))(mean, var, {})
        return _quadrature(settled.name, settled.f.subs(settled.values(params)))(mean, var, {})


@dataclass(frozen=True)
class SettledMeasure(Tolerance):
    """The tolerance at the defaults; ``at`` has that of a setting."""

    settled: Settled
    setting: tuple[tuple[str, float], ...] = ()

    def at(self, setting: Setting) -> SettledMeasure:
        """The measure of f at ``setting``."""
        return replace(self, setting=tuple(setting.items()))

    @cached_property
    def measure(self) -> MomentsMeasure:
        """The measure of f with its parameters set."""
        return _measure(self.settled.name, self.settled.f.subs(self.settled.values(dict(self.setting))))

    def allowed(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """The error allowed at each point."""
        return self.measure.allowed(output, exact, mean, var)

    def words(self) -> dict[str, Any]:
        """Describe the tolerance."""
        return self.measure.words()
