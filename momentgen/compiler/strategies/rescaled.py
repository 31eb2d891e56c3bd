r"""Rules that are another function in other units: f(x) = A g((x - c)/h) + B, A and h positive.

The base g is served as any rule; its graphs are then copied with the input mapped and the outputs mapped back,

    m = A m_g + B,   V = A² V_g,   m_mu = A/h m_g,mu,   m_v = A/h² m_g,v,   V_mu = A²/h V_g,mu,   V_v = A²/h² V_g,v

at ((mu - c)/h, v/h²), whatever strategy made them.  Two things are the copy's own:

- near a kink k of g, (mu - c)/h - k is wanted to the digits of sigma: it is taken as (mu - (c + h k))/h;
- v/h² may overflow where v does not.  Far out f is homogeneous of degree 1 where its sides differ in slope, else a line
  and something that falls as a power of sigma: there mean and variance are taken 2^-16- and 2^-32-fold, and the outputs
  are scaled back.

v/h² below 2^-127 is beyond what bounds are certified for; the measure says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import Graph, Node, Real, first_word, madd, second_word, select
from momentgen.compiler.ir.kit import largest, parameter_node
from momentgen.compiler.ir.stable import PARTIALS, ErrorMeasure, Stable, Truth, at_setting, settings_of
from momentgen.compiler.measure.moments import MEAN, MomentsMeasure, Tolerance, of_activation, steep
from momentgen.compiler.strategies.surfaces.surface import decay, lines_of
from momentgen.compiler.strategies.tolerance import Parametric, ParametricMeasure, ParametricTruth, closed_form_truth
from momentgen.compiler.toolchain.arrays import F32, F64, Bools
from momentgen.errors import BuildError
from momentgen.rule import Rescaled, Rule

_HUGE_VAR, _HUGE_MEAN, _LEAST_VAR = 100, 110, -60  # binary exponents: far out, and what may not be scaled down
_STEP = 16
_NAMES = ("centre", "width", "scale", "offset")
#: output -> powers of A and of 1/h in it
_POWERS = {
    "mean": (1, 0),
    "var": (2, 0),
    "dmean_dmu": (1, 1),
    "dmean_dvar": (1, 2),
    "dvar_dmu": (2, 1),
    "dvar_dvar": (2, 2),
}


@dataclass(frozen=True)
class Units:
    """c, h, A and B at one setting."""

    centre: float
    width: float
    scale: float
    offset: float

    @staticmethod
    def at(function: Parametric, rescaled: Rescaled, setting: Mapping[str, float]) -> Units:
        """The units of a rule at a setting of its parameters."""
        return Units(*(function.number(getattr(rescaled, name), setting) for name in _NAMES))

    def of(self, output: str) -> float:
        """What one unit of the base's output is in f's."""
        a, h = _POWERS[output]
        return self.scale**a / self.width**h


@dataclass(frozen=True)
class RescaledMeasure(Tolerance):
    """The base's tolerance in f's units, at one setting; the mean's rounding is relative to the mean of f."""

    with_slopes = True
    base: MomentsMeasure | ParametricMeasure
    function: Parametric
    rescaled: Rescaled
    units: Units

    def at(self, setting: Mapping[str, float]) -> RescaledMeasure:
        units = Units.at(self.function, self.rescaled, setting)
        return replace(self, base=at_setting(self.base, setting), units=units)

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        units = self.units
        own = (exact - (units.offset if output == "mean" else 0.0)) / units.of(output)
        limit = units.of(output) * self.base.allowed(
            output, own, (mean - units.centre) / units.width, var / units.width**2
        )
        return np.asarray(np.maximum(limit, MEAN * np.abs(exact)) if output == "mean" else limit, np.float64)

    def counted(self, mean: F64, var: F64) -> Bools:
        """Where v/h² is beyond 2^-127."""
        return np.asarray(var >= 2.0**-127 * self.units.width**2)

    def words(self) -> dict[str, Any]:
        units, rescaled, base = self.units, self.rescaled, self.base
        found = base.measure if isinstance(base, ParametricMeasure) else base
        shape = found.shape()
        shape["L"] = shape["L"] * units.of("dmean_dmu")
        shape["range"] = shape["range"] * units.scale
        shape["jumps"] = [[units.centre + units.width * at, units.scale * jump] for at, jump in shape["jumps"]]
        mean, where = f"{MEAN:g}*max(1, |m|) + {steep(shape)}", {}
        if rescaled.scale != 1 or rescaled.offset != 0:
            mean = f"max({MEAN:g}*max(A, |m - B|) + {steep(shape)}, {MEAN:g}*|m|)"
            scale = "the unit of f's values" if sp.sympify(rescaled.scale).is_number else str(rescaled.scale)
            where = {"A": scale, "B": str(rescaled.offset)}
            shape |= {"A": units.scale, "B": units.offset}
            if rescaled.offset == 0:
                mean = f"{MEAN:g}*max(A, |m|) + {steep(shape)}"
                del where["B"], shape["B"]
        said = of_activation(mean, shape)
        return {**said, "where": said["where"] | where}


@dataclass(frozen=True)
class RescaledTruth:
    """The base's exact values in f's units.

    In float64 (mu - c)/h is right to the digits of sigma where f is smooth, and about a kink at c.
    """

    base: Any
    function: Parametric
    rescaled: Rescaled

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        units = Units.at(self.function, self.rescaled, params)
        at = (mean.astype(np.float64) - units.centre) / units.width, var.astype(np.float64) / units.width**2
        values = self.base(*at, params)
        found = {name: units.of(name) * np.asarray(value, np.float64) for name, value in values.items()}
        found["mean"] = found["mean"] + units.offset
        return found


class _Copy:
    """A base's graph between the two maps."""

    def __init__(self, base: Graph, rule: Rule, rescaled: Rescaled, f: Activation, *, scaled: bool) -> None:
        self.base, self.rule, self.scaled, self.f, self.lines = base, rule.name, scaled, f, lines_of(f)
        self.g = g = Graph(base.inputs, tuple(p.name for p in rule.parameters))
        self.width, self.scale, self.offset = (
            parameter_node(g, e, rule.name) for e in (rescaled.width, rescaled.scale, rescaled.offset)
        )
        self.units = rescaled
        mean, var, one = g.input("mean"), g.input("var"), g.const(1)
        self.down = self.up = self.down_var = self.up_var = one
        moved, spread = self.from_(rescaled.centre), var
        if rescaled.width != 1:
            if scaled:
                power = [g.const(mpmath.mpf(2) ** k) for k in (_HUGE_VAR, _HUGE_MEAN, _LEAST_VAR, -_STEP, _STEP)]
                far = (power[0] < var) | (power[1] < abs(mean))
                wide = far & (power[2] < var)
                self.down, self.up = select(far, power[3], one), select(far, power[4], one)
                self.down_var, self.up_var = select(wide, power[3], one), select(wide, power[4], one)
                spread = var * self.down_var * self.down_var
            spread = spread * (1 / (self.width * self.width))
        self.inner = {"mean": self.in_units(moved).named("mean in units of the base"), "var": spread}
        self.nodes = self.copied()

    def from_(self, place: sp.Expr) -> Real:
        """mu less a function of the parameters; near it exact, also where float32 does not hold it."""
        g, mean = self.g, self.g.input("mean")
        node = parameter_node(g, place, self.rule)
        if not self.scaled:
            return mean - node
        constant = node.constant
        if constant is not None:
            head = float(np.float32(float(constant)))
            return mean - head - (constant - head)
        return mean - first_word(node) - second_word(node)

    def in_units(self, length: Real) -> Real:
        """A length in units of the base, brought down far out."""
        return length if self.units.width == 1 else length * self.down / self.width

    def copied(self) -> dict[int, Real]:
        """The base's nodes, by their index there."""
        nodes = self.g.taken(self.base, self.mapped)
        self.g.suspect(*(nodes[i] for i in self.base.suspects if i in nodes))
        if self.g.suspects:
            self.g.suspect(*self.inner.values())
        return nodes

    def mapped(self, node: Node) -> Real | None:
        """What stands here for an input of the base, and for its distance from a constant place."""
        if node.kind == "input":
            return self.inner[node.payload]
        if node.kind != "sub" or self.base.nodes[node.args[0]] != Node("input", (), "mean"):
            return None
        place = self.base.constant(node.args[1])
        if place is None:
            return None
        moved = self.from_(sp.expand(self.units.centre + self.units.width * sp.Rational(float(place))))
        distance = self.in_units(moved)
        self.g.suspect(moved, *distance.args, distance)
        return distance

    def write(self) -> Graph:
        """The graph, its outputs mapped back."""
        g = self.g
        per = 1 / self.width if self.units.width != 1 else g.const(1)
        left, _, right, _ = self.lines
        for name, index in self.base.outputs.items():
            a, h = _POWERS[name]
            value, factor = self.nodes[index], g.const(1)
            back = self.back(name)
            level = self.level() if name == "mean" and back else g.const(0)
            value = value - level
            factor = math.prod((*[self.scale] * a, *[per] * h), start=factor)
            value = madd(factor, level, math.prod(back, start=factor * value))
            if name == "var" and left == right != 0:  # a little above v, by the error of a polynomial
                value = select(value > largest(self.scaled), largest(self.scaled), value)
            g.output(name, value + self.offset if name == "mean" else value)
        if g.suspects:
            g.suspect(*map(g.result, g.outputs))
        return g

    def level(self) -> Real:
        """What f is on a side where it is level, in units of the base: far out, this does not grow with mu."""
        a, b, a2, b2 = self.lines
        return select(self.g.input("mean") < 0, 0 if a else b, 0 if a2 else b2)

    def back(self, name: str) -> list[Real]:
        """Powers of two that undo the inputs' scaling."""
        if not self.scaled or self.units.width == 1:
            return []
        slope, _, other, _ = self.lines
        grown = {"mean": [self.up], "var": [self.up_var, self.up_var]}
        if slope != other:
            return (grown | {"dmean_dvar": [self.down_var], "dvar_dmu": [self.up_var]}).get(name, [])
        falls = [self.down if name.endswith("dmu") else self.down_var] * decay(self.f)[name]
        if not slope:  # what mean and variance of a bump fall by is nothing beside their tolerance
            return falls if name in PARTIALS else []
        # The partials of a line are constant; dvar_dmu has v times a partial of what f has beside it.
        return (grown | {"dmean_dvar": falls, "dvar_dmu": falls[2:]}).get(name, [])


def rescaled_variant(derivation: Derivation, base: Stable) -> Stable:
    """The variant ``exact`` of a rule, from that of its base.

    Raises:
        BuildError: if the base takes scalars that the host derives, or f has no tolerance of its own.
    """
    rule, rescaled = derivation.rule, derivation.units
    if rescaled is None:
        raise BuildError(rule.name, "strategies", "expected an f in other units", rule.f)
    if base.scalars_source or not isinstance(base.measure, MomentsMeasure | ParametricMeasure):
        cause = f"f is {rescaled.of} in other units, which the strategy of that does not take"
        raise BuildError(rule.name, "strategies", cause, rule.f)
    function, own = Parametric.of(rule), Parametric.of(rule, rescaled.of)
    g = own.at({})

    def copy(graph: Graph, scaled: bool) -> Graph:
        return _Copy(graph, rule, rescaled, g, scaled=scaled).write()

    units = Units.at(function, rescaled, {})
    measure: ErrorMeasure = RescaledMeasure(base.measure, function, rescaled, units)
    truth: Truth
    rigorous: Truth | None
    if isinstance(base.truth, ClosedFormTruth) or (derivation.is_piecewise_polynomial and g.jumps):
        # Beside tiny variances a jump shows from further away than quadrature reaches.
        truth, rigorous = closed_form_truth(derivation), None
    elif derivation.is_piecewise_polynomial:
        truth, rigorous = ParametricTruth(function), ParametricTruth(function, by_balls=True)
    else:
        truth = RescaledTruth(base.truth, function, rescaled)
        rigorous = None if base.rigorous is None else RescaledTruth(base.rigorous, function, rescaled)

    def places(setting: Mapping[str, float]) -> tuple[float, ...]:
        here = Units.at(function, rescaled, setting)
        return tuple(here.centre + here.width * kink for kink in own.at(setting).kinks)

    low, high = base.box["mu"]
    return replace(
        base,
        forward=copy(base.forward, True),
        partials=copy(base.partials, True),
        forward64=copy(base.forward64, False),
        partials64=copy(base.partials64, False),
        truth=truth,
        rigorous=rigorous,
        measure=measure,
        settings=settings_of(rule),
        box={**base.box, "mu": (units.centre + units.width * low, units.centre + units.width * high)},
        unit_at=lambda setting: Units.at(function, rescaled, setting).scale,
        places=places,
        domain={"var": f"0 or 2^-127 max(1, ({rescaled.width})^2) <= var < 2^128"} if rescaled.width != 1 else {},
        facts={**base.facts, "base": str(rescaled.of), "rescaled": {n: str(getattr(rescaled, n)) for n in _NAMES}},
        doc=f"{rescaled.of} in other units: {base.doc}",
    )
