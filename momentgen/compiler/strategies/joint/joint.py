r"""Rules of two inputs, or of one and a noise: which strategy covers them, their variants, truth and measure of error.

Polynomials (product, difference, multiplicative noise) are written as they stand, term by term: where all terms are of
one sign nothing cancels, and where they are not, the difference is the function's own (the mean of a sum).  A term is
multiplied in an order in which it under- or overflows only where it does itself: m²v as m·(m·v).

Errors are in ulp of the sum of the magnitudes of an output's terms: where all are positive, that is its ulp.

The maximum of two normal inputs, independent or dependent.

With D = X1 - X2, theta² = Var D, a = (mu1 - mu2)/theta, t = |a|; ``+`` the input of the larger mean, ``-`` the other:

    mean = max(mu1, mu2) + theta g,    var = v_+ R(t) + v_- R(-t) + 2 c G,

where g = E(Z - t)_+, R(a) is the variance of (a + Z)_+ and G = g (t + g): Clark's formula with R(a) - Phi(a) = -G put
in, in which every term is positive for c >= 0, and nearly nothing cancels for c < 0 (|terms| <= 2.8 var).  With
J_n the repeated integrals over sqrt(2 pi) (:mod:`momentgen.compiler.ir.kit`) and E = exp(-t²/2),

    g = E J_1,    R(-t) = E (2 J_2 - g J_1),    R(t) = 1 - E (2 J_2 + J_1 (2 t + g)),    Phi(-t) = E J_0.

Partials: with p_i = (v_i - c)/theta², y = p_+ (t + g) J_0 - p_- J_1 (1 - E J_0),

    dmean/dmu_- = E J_0,  dmean/dv = E J_{-1}/(2 theta) = -dmean/dc/2,  dvar/dmu_+ = 2 theta E y = -dvar/dmu_-,
    dvar/dv_± = R(±t) - E t y,   dvar/dc = 2 G + 2 E t y.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Mapping
from typing import Any

import mpmath
import sympy as sp
from sympy.core.sorting import default_sort_key

from momentgen.compiler.derive import Derivation, JointDerivation
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph, Real, equal, exp_factor, exp_mantissa, madd, select, sqrt
from momentgen.compiler.ir.kit import (
    FLOAT64,
    SCALE,
    SLACK,
    Precision,
    clamped,
    mills_ratio,
    parameter_node,
    plus,
    scaling,
)
from momentgen.compiler.ir.stable import OUTPUTS, Stable, settings_of
from momentgen.compiler.measure.ulp import TermsUlp
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.errors import BuildError
from momentgen.rule.inputs import partial_names
from momentgen.rule.symbols import x1, x2


def polynomial_graph(derivation: Derivation | JointDerivation, outputs: tuple[str, ...], largest: float) -> Graph:
    """The graph of the named outputs; ``largest`` is the dtype's largest number, which stands for all beyond it."""
    writer = _Polynomials(derivation)
    for name in outputs:
        node = writer.saturated(writer.output(name), largest, positive=name == "var")
        writer.g.output(name, writer.like_inputs(node) if name in OUTPUTS else node)
    return writer.g


def polynomial_sizes(derivation: JointDerivation, outputs: tuple[str, ...]) -> Graph:
    """For every output the sum of the magnitudes of its terms."""
    writer = _Polynomials(derivation)
    for name in outputs:
        writer.g.output(name, sum(map(abs, writer.terms(name)), start=writer.g.const(0)))
    return writer.g


class _Polynomials:
    """Writes the outputs of one rule."""

    def __init__(self, derivation: Derivation | JointDerivation) -> None:
        rule = derivation.rule
        self.rule, self.moments = rule, rule.moments
        self.exprs = {"mean": derivation.mean, "var": derivation.var, **derivation.partials}
        self.g = Graph(tuple(self.moments), tuple(p.name for p in rule.parameters))
        self.names = {symbol: name for name, symbol in self.moments.items()}

    def terms(self, name: str) -> list[Real]:
        """The monomials in the inputs' moments."""
        expr = sp.expand(self.exprs[name])
        poly = expr.as_poly(*self.moments.values())
        if poly is None:
            raise BuildError(self.rule.name, "strategies", f"expected {name} to be a polynomial in the moments", expr)
        nodes = []
        for powers, coefficient in sorted(poly.terms(), key=lambda term: default_sort_key(term[0])):
            monomial = [s for s, n in zip(self.moments.values(), powers, strict=True) for _ in range(n)]
            nodes.append(self.term(coefficient, monomial))
        return nodes

    def term(self, coefficient: sp.Expr, monomial: list[sp.Symbol]) -> Real:
        g = self.g
        # m·m·v as m·(m·v): m·v is in range wherever m²·v and both factors are.
        ordered = sorted(monomial, key=lambda s: (self.names[s].startswith("mean"), monomial.count(s), s.name))
        factors = [g.input(self.names[s]) for s in ordered]
        if coefficient != 1:
            # A whole number comes last, 2·(m·v); a function of the parameters first, m·(m·c).
            factors.insert(
                len(factors) if coefficient.is_number else 0,
                parameter_node(self.g, sp.factor(coefficient), self.rule.name),
            )
        node = factors[0] if factors else g.const(1)
        for factor in factors[1:]:
            node = factor * node
        return node

    def output(self, name: str) -> Real:
        return functools.reduce(plus, self.terms(name), self.g.const(0))

    def saturated(self, node: Real, largest: float, *, positive: bool) -> Real:
        """The node, at most ``largest`` in size; a gradient of 0 times infinity would be NaN."""
        if node.node.kind not in ("mul", "madd", "add", "sub"):
            return node
        return select(node > largest, largest, node) if positive else clamped(node, largest)

    def like_inputs(self, value: Real) -> Real:
        """``value``, but NaN where a variance is negative or NaN, or an input that it lacks is NaN."""
        g = self.g
        nodes = {name: g.input(name) for name in self.moments}
        first, *rest = (n >= 0 if name.startswith("var") else equal(n, n) for name, n in nodes.items())
        usable = functools.reduce(operator.and_, rest, first)
        return select(usable, value, sqrt(select(usable, 1, -1)))


# --- the maximum -------------------------------------------------------------------
def maximum_graph(
    precision: Precision, outputs: tuple[str, ...], *, covariance: bool
) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of the named outputs, of dependent inputs where there is a ``covariance``, and what was fitted."""
    writer = _Maximum(precision, covariance)
    for name in outputs:
        writer.g.output(name, writer.outputs[name]())
    return writer.g, (writer.fit,)


def maximum_sizes(precision: Precision, *, covariance: bool) -> Graph:
    """For every output the sum of the magnitudes of its terms: what rounding errors are relative to."""
    writer = _Maximum(precision, covariance, sizes=True)
    for name, write in writer.outputs.items():
        writer.g.output(name, write())
    return writer.g


class _Maximum:
    """Writes the shared values at once, and an output when asked."""

    def __init__(self, precision: Precision, covariance: bool, sizes: bool = False) -> None:
        names = ("mean1", "var1", "mean2", "var2", *(["cov"] if covariance else []))
        self.g = g = Graph(names)
        self.precision, self.sizes = precision, sizes
        self.mean = g.input("mean1"), g.input("mean2")
        self.var = g.input("var1"), g.input("var2")
        self.cov = g.input("cov") if covariance else None
        self.swap = self.mean[0] < self.mean[1]
        self.scale()
        self.ratio()
        self.tail()
        self.outputs = {"mean": self.of_mean, "var": self.of_var}
        for i in (1, 2):
            self.outputs[f"dmean_dmu{i}"] = lambda i=i: self.slope(i)  # type: ignore[misc]
            self.outputs[f"dmean_dvar{i}"] = lambda: self.mean_by_variance(0.5)
            self.outputs[f"dvar_dmu{i}"] = lambda i=i: self.var_by_mean(i)  # type: ignore[misc]
            self.outputs[f"dvar_dvar{i}"] = lambda i=i: self.var_by_variance(i)  # type: ignore[misc]
        if covariance:
            self.outputs |= {"dmean_dcov": lambda: self.mean_by_variance(-1), "dvar_dcov": self.var_by_covariance}

    # --- shared values -------------------------------------------------------------
    def scale(self) -> None:
        """The variances scaled by a power of two, so that no residual of theta's root underflows."""
        one = self.g.const(1)
        v1, v2 = self.var
        usable = (v1 >= 0) & (v2 >= 0)
        c, back = scaling(select(v1 < v2, v2, v1), self.precision.scaled)
        self.c = c
        w1, w2 = (v * c * c for v in (v1, v2))
        if self.cov is None:
            w = w1 + w2
        else:
            wc = self.cov * c * c
            bound = sqrt(v1) * SLACK * sqrt(v2)
            usable = usable & (abs(self.cov) <= bound)
            # In this order the first difference is exact wherever the sum cancels, so that its correction stays small.
            first = v1 < v2
            larger, smaller = select(first, w2, w1), select(first, w1, w2)
            w = larger - wc * 2 + smaller
            # What rounding the covariance made of theta = 0.
            w = select(w > 0, w, 0)
            w1, w2 = w1 - wc, w2 - wc
        self.shares = w1, w2
        self.degenerate = equal(w, 0)
        w = select(usable, select(self.degenerate, one, w), -1)
        root = sqrt(w).named("theta, scaled; NaN for a negative variance or an impossible covariance")
        self.r = 1 / root
        # Terms in 1/theta count as 0 at theta = 0.
        self.theta = select(self.degenerate, 0, root * back)
        self.inverse = select(self.degenerate, 0, self.r * c)

    def ratio(self) -> None:
        """t = |mu1 - mu2|/theta, at most the reach, and exp(-t²/2)."""
        g = self.g
        gap = abs(self.mean[0] - self.mean[1])
        apart = self.degenerate & (gap > 0)
        x = select(apart, mpmath.mpf(2) ** 100, gap * self.c)
        raw, reach = x * self.r, g.const(self.precision.reach)
        self.t = select(reach < raw, reach, raw).named("t = min(|mean1 - mean2|/theta, reach)")
        exponent = self.t * self.t * -0.5
        self.e = exp_mantissa(exponent).named("exp(-t^2/2), mantissa")
        count = self.precision.factors if self.precision.scaled else 0
        self.factors = [exp_factor(exponent, i, count) for i in range(count)]

    def tail(self) -> None:
        """J_0, J_1 and J_2 over sqrt(2 pi) at t, from J_2 by the recurrence, in which all terms are positive.

        And g, and E J_0, with the exponent applied: beside numbers of the order of 1 they may underflow.
        """
        g, t = self.g, self.t
        u = (1 / madd(t, 1 / mpmath.mpf(SCALE), 1)).named(f"u = 1/(1 + t/{SCALE:g})")
        j2, self.fit = mills_ratio(self.precision, 2, u)
        one = g.const(1 / mpmath.sqrt(2 * mpmath.pi))
        double = j2.named("J_2/sqrt(2 pi)") * 2
        bottom = 1 / madd(t, t, 1)
        j1 = (madd(-t, double, one) * bottom).named("J_1/sqrt(2 pi)")
        self.j = j = {-1: one, 0: madd(t, j1, double).named("Mills ratio/sqrt(2 pi)"), 1: j1, 2: j2}
        self.plain = self.e * math.prod(self.factors, start=g.const(1))
        self.excess = (self.plain * j[1]).named("g = E (Z - t)_+")
        self.upper = self.plain * j[0]
        self.reach_over = self.t + self.excess  # E (Z + t)_+

    # --- helpers -------------------------------------------------------------------
    def last(self, node: Real, factors: list[Real], *first: Real) -> Real:
        """node·first..., the powers of two last."""
        return math.prod((*first, *factors), start=node)

    def minus(self, a: Real, b: Real) -> Real:
        """a - b, or a + b where sizes are asked for."""
        return a + b if self.sizes else a - b

    def sized(self, node: Real) -> Real:
        return abs(node) if self.sizes else node

    def sides(self, pair: tuple[Real, Real]) -> tuple[Real, Real]:
        """Of two values, that of the input with the larger mean first."""
        first, second = pair
        return select(self.swap, second, first), select(self.swap, first, second)

    def choose(self, i: int, larger: Real, smaller: Real) -> Real:
        """For input i: the one, if its mean is the larger, else the other."""
        return select(self.swap, smaller, larger) if i == 1 else select(self.swap, larger, smaller)

    def weights(self) -> tuple[Real, Real]:
        """p_+ and p_-."""
        plus, minus = self.sides(self.shares)
        p, q = (self.sized(share * self.r * self.r) for share in (plus, minus))
        return p, q

    def y(self) -> Real:
        j = self.j
        p, q = self.weights()
        first = p * self.reach_over * j[0]
        return self.minus(first, q * j[1] * (1 - self.upper))

    # --- outputs -------------------------------------------------------------------
    def of_mean(self) -> Real:
        larger = self.sized(select(self.swap, self.mean[1], self.mean[0]))
        return larger + self.last(self.e * self.j[1], self.factors, self.theta)

    def low(self) -> Real:
        """R(-t)/E."""
        j = self.j
        return madd(-self.excess, j[1], j[2] * 2)

    def high(self) -> Real:
        """(1 - R(t))/E."""
        j = self.j
        return madd(j[1], madd(self.t, 2, self.excess), j[2] * 2)

    def of_var(self) -> Real:
        plus, minus = self.sides(self.var)
        share = 1 - self.plain * self.high()
        small = self.last(self.e * self.low(), self.factors, minus)
        total = madd(plus, share, small)
        if self.cov is not None:
            twice = self.j[1] * self.reach_over * 2
            total = total + self.sized(self.last(self.e * twice, self.factors, self.cov))
        return total

    def slope(self, i: int) -> Real:
        smaller = self.last(self.e * self.j[0], self.factors)
        return self.choose(i, 1 - self.upper, smaller)

    def mean_by_variance(self, factor: float) -> Real:
        node = self.e * (self.j[-1] * factor)
        half = len(self.factors) // 2
        return self.sized(math.prod((*self.factors[:half], self.inverse, *self.factors[half:]), start=node))

    def var_by_mean(self, i: int) -> Real:
        node = self.last(self.e * 2 * self.y(), self.factors, self.theta)
        return node if self.sizes else self.choose(i, node, -node)

    def var_by_variance(self, i: int) -> Real:
        part = self.t * self.y()
        if self.sizes:
            larger = 1 - self.plain * self.high() + self.plain * part
        else:
            larger = 1 - self.plain * (self.high() + part)
        smaller = self.last(self.e * self.minus(self.low(), part), self.factors)
        return self.choose(i, larger, smaller)

    def var_by_covariance(self) -> Real:
        inner = madd(self.j[1], self.reach_over, self.t * self.y())
        return self.last(self.e * (inner * 2), self.factors)


#: the variance of the input with the smaller mean may be 2^254 times the other's: exp(-t²/2) must fall below 2^-278
#: before t is clamped
_FORWARD = Precision(fit=2.2e-8, reach=20.5, scaled=True, factors=4)
_PARTIALS = Precision(fit=2.2e-8, reach=18.6875, scaled=True)
_AIM = 0.8
_BOX = {"log2_var": (-50.0, 50.0)}


def stabilise_joint(derivation: JointDerivation) -> tuple[Stable, ...]:
    """The variant ``exact`` of a rule of two inputs, or of one and a noise, alone.

    Raises:
        BuildError: if no strategy covers the rule.
    """
    rule = derivation.rule
    if set(rule.accuracy.ulp) != {"exact"}:
        cause = "expected an accuracy in ulp of the variant exact, and of no other"
        raise BuildError(rule.name, "strategies", cause, rule.accuracy)
    if rule.variants:
        cause = "a rule of two inputs, or with a noise, has the exact variant alone"
        raise BuildError(rule.name, "strategies", cause, rule.f)
    if rule.covariance and not derivation.kinked:
        raise BuildError(rule.name, "strategies", "a polynomial rule has independent inputs", rule.f)
    return ((_maximum if derivation.kinked else _polynomial)(derivation),)


def _outputs(derivation: JointDerivation) -> dict[str, sp.Expr]:
    """All outputs in the op's input names, in the order of :attr:`Stable.outputs`."""
    named = {s: sp.Symbol(name, real=True) for name, s in derivation.rule.moments.items()}
    pairs = partial_names(tuple(derivation.rule.moments)).values()
    exprs = {"mean": derivation.mean, "var": derivation.var, **derivation.partials}
    order = (*OUTPUTS, *(p[0] for p in pairs), *(p[1] for p in pairs))
    return {name: exprs[name].subs(named) for name in order}


def _stable(derivation: JointDerivation, outputs: Mapping[str, sp.Expr], sizes: Graph, **parts: Any) -> Stable:
    rule = derivation.rule
    goal = rule.accuracy.ulp["exact"]
    return Stable(
        variant="exact",
        truth=ClosedFormTruth(outputs, tuple(p.name for p in rule.parameters), tuple(rule.moments)),
        measure=TermsUlp(sizes, rule.defaults, held=True),
        goal=goal,
        aim=goal * _AIM,
        unit="ulp of the terms",
        **parts,
    )


def _polynomial(derivation: JointDerivation) -> Stable:
    outputs = _outputs(derivation)
    partials = tuple(name for name in outputs if name not in OUTPUTS)
    largest = LARGEST, sys.float_info.max
    graphs = [polynomial_graph(derivation, names, most) for most in largest for names in (OUTPUTS, partials)]
    return _stable(
        derivation,
        outputs,
        polynomial_sizes(derivation, tuple(outputs)),
        forward=graphs[0],
        partials=graphs[1],
        forward64=graphs[2],
        partials64=graphs[3],
        box=_BOX | {"a": (-18.7, 18.7)},
        settings=settings_of(derivation.rule),
        vanishes=derivation.rule.noise is None,
        doc="polynomials in the moments, term by term",
    )


def _maximum(derivation: JointDerivation) -> Stable:
    rule = derivation.rule
    if rule.f != sp.Max(x1, x2) or rule.parameters:
        raise BuildError(rule.name, "strategies", "of the rules with a kink and two inputs, only Max(x1, x2)", rule.f)
    outputs = _outputs(derivation)
    partials = tuple(name for name in outputs if name not in OUTPUTS)

    def build(precision: Precision, names: tuple[str, ...]) -> tuple[Graph, tuple[Polynomial, ...]]:
        return maximum_graph(precision, names, covariance=rule.covariance)

    (forward, fits), (backward, more) = build(_FORWARD, OUTPUTS), build(_PARTIALS, partials)
    return _stable(
        derivation,
        outputs,
        maximum_sizes(FLOAT64, covariance=rule.covariance),
        forward=forward,
        partials=backward,
        forward64=build(FLOAT64, OUTPUTS)[0],
        partials64=build(FLOAT64, partials)[0],
        box=_BOX,
        fits=(*fits, *more),
        doc="Clark's moments of the larger of two normal variables, as sums of positive terms",
    )
