"""Rules of two inputs, or of one and a noise: which strategy covers them, their variants, truth and measure of error.

Polynomials (product, difference, multiplicative noise) are written as they stand, term by term: where all terms are of
one sign nothing cancels, and where they are not, the difference is the function's own (the mean of a sum).  A term is
multiplied in an order in which it under- or overflows only where it does itself: m²v as m·(m·v).  ``maximum_graph`` has
Max(x1, x2), independent or dependent.

Errors are in ulp of the sum of the magnitudes of an output's terms: where all are positive, that is its ulp.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Mapping
from typing import Any

import sympy as sp
from sympy.core.sorting import default_sort_key

from momentgen.compiler.derive import Derivation, JointDerivation
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph, Real, equal, select, sqrt
from momentgen.compiler.ir.kit import FLOAT64, Precision, parameter_node, plus
from momentgen.compiler.ir.stable import OUTPUTS, Stable, settings_of
from momentgen.compiler.measure.ulp import TermsUlp
from momentgen.compiler.strategies.joint.maximum_graph import maximum_graph, maximum_sizes
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.errors import BuildError
from momentgen.rule.inputs import partial_names
from momentgen.rule.symbols import x1, x2


def polynomial_graph(derivation: Derivation | JointDerivation, outputs: tuple[str, ...], largest: float) -> Graph:
    """The graph of the named outputs.

    Args:
        derivation: of the rule.
        outputs: names, as :attr:`~momentgen.compiler.ir.stable.Stable.outputs` has them.
        largest: the largest number of the dtype, which stands for all beyond it.
    """
    writer = _Polynomials(derivation)
    for name in outputs:
        node = writer.saturated(writer.output(name), largest, positive=name == "var")
        writer.g.output(name, writer.like_inputs(node) if name in OUTPUTS else node)
    return writer.g


def polynomial_sizes(derivation: JointDerivation, outputs: tuple[str, ...]) -> Graph:
    """For every output the sum of the magnitudes of its terms."""
    writer = _Polynomials(derivation)
    for name in outputs:
        total = writer.g.const(0)
        for term in writer.terms(name):
            total = total + abs(term)
        writer.g.output(name, total)
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
        total = self.g.const(0)
        for node in self.terms(name):
            total = plus(total, node)
        return total

    def saturated(self, node: Real, largest: float, *, positive: bool) -> Real:
        """The node, at most ``largest`` in size; a gradient of 0 times infinity would be NaN."""
        g = self.g
        if node.node.kind not in ("mul", "madd", "add", "sub"):
            return node
        most, least = g.const(largest), g.const(-largest)
        if not positive:
            node = select(node < least, least, node)
        return select(most < node, most, node)

    def like_inputs(self, value: Real) -> Real:
        """``value``, but NaN where a variance is negative or NaN, or an input that it lacks is NaN."""
        g = self.g
        nodes = {name: g.input(name) for name in self.moments}
        first, *rest = (n >= 0 if name.startswith("var") else equal(n, n) for name, n in nodes.items())
        usable = functools.reduce(operator.and_, rest, first)
        return select(usable, value, sqrt(select(usable, 1, -1)))


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
    if derivation.kinked:
        return (_maximum(derivation),)
    if rule.covariance:
        raise BuildError(rule.name, "strategies", "a polynomial rule has independent inputs", rule.f)
    return (_polynomial(derivation),)


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
