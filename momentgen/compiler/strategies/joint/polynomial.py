"""Polynomial rules (product, difference, multiplicative noise): outputs are polynomials in the inputs' moments.

Each is written as it stands, term by term: where all terms are of one sign nothing cancels, and where they are not, the
difference is the function's own (the mean of a sum).  A term is multiplied in an order in which it under- or overflows
only where it does itself: m²v as m·(m·v).
"""

from __future__ import annotations

import functools
import operator

import sympy as sp
from sympy.core.sorting import default_sort_key

from momentgen.compiler.derive import JointDerivation
from momentgen.compiler.ir.graph import Graph, Real, equal, select, sqrt
from momentgen.compiler.ir.stable import OUTPUTS
from momentgen.compiler.strategies.kit import number, plus
from momentgen.errors import BuildError


def polynomial_graph(derivation: JointDerivation, outputs: tuple[str, ...], largest: float) -> Graph:
    """The graph of the named outputs.

    Args:
        derivation: of the rule.
        outputs: names, as :attr:`~momentgen.compiler.strategies.Stable.outputs` has them.
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


def parameter_node(g: Graph, expr: sp.Expr, name: str) -> Real:
    """A rational function of the parameters, computed once a call.

    Args:
        g: the graph.
        expr: in the parameters' symbols.
        name: of the rule, for messages.

    Raises:
        BuildError: for any other function.
    """
    if expr.is_number:
        return number(g, expr)
    if isinstance(expr, sp.Symbol):
        return g.param(expr.name)
    if isinstance(expr, sp.Pow) and expr.exp.is_Integer:
        base = node = parameter_node(g, expr.base, name)
        for _ in range(abs(int(expr.exp)) - 1):
            node = node * base
        return node if expr.exp > 0 else 1 / node
    if isinstance(expr, (sp.Add, sp.Mul)):
        first, *rest = (parameter_node(g, part, name) for part in sorted(expr.args, key=default_sort_key))
        for part in rest:
            first = first + part if isinstance(expr, sp.Add) else first * part
        return first
    raise BuildError(name, "strategies", "expected a rational function of the parameters", expr)


class _Polynomials:
    """Writes the outputs of one rule."""

    def __init__(self, derivation: JointDerivation) -> None:
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
