"""Moments of functions of several random inputs, or of one input and a noise, in closed form.

Closed are polynomials in jointly normal inputs (by Stein: E[X_i g] = mu_i E g + sum_j C_ij E dg/dx_j), with a noise
factor known by two moments; and Max(x1, x2) = x2 + D_+, since

    E D_+ = d Phi(a) + s phi(a),   E D_+^2 = (d^2 + s^2) Phi(a) + d s phi(a),   Cov(x2, D_+) = Cov(x2, D) Phi(a)

for D = x1 - x2 ~ N(d, s^2), a = d/s (Clark 1961, "The greatest of a finite set of random variables").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
from sympy import Expr, Integer, Max, Poly

from momentgen.compiler.derive.proof import check_author
from momentgen.errors import BuildError
from momentgen.rule import Rule
from momentgen.rule.inputs import input_symbols, partial_names
from momentgen.rule.symbols import Phi, phi


@dataclass(frozen=True)
class JointDerivation:
    """What derive hands on for a rule of several inputs, or with a noise.

    Attributes:
        rule: the rule derived.
        mean, var: in the symbols of ``rule.moments`` and the parameters.
        partials: of both in every moment of the inputs, named as :func:`~momentgen.rule.inputs.partial_names` says.
        kinked: whether f has a Max.
    """

    rule: Rule
    mean: Expr
    var: Expr
    partials: Mapping[str, Expr] = field(hash=False)
    kinked: bool


def derive_joint(rule: Rule) -> JointDerivation:
    """Moments of a rule of several inputs, or with a noise, checked against the author's own formulas.

    Raises:
        BuildError: if f is outside the algebra, or a formula of the author's is wrong.

    >>> from momentgen.rule.symbols import x1, x2
    >>> derive_joint(Rule("product", f=x1 * x2, inputs=("x1", "x2"))).var
    mu1**2*v2 + mu2**2*v1 + v1*v2
    """
    rule = rule.in_formulas
    algebra = _Joint(rule)
    kinks = rule.f.atoms(Max)
    mean, var = algebra.maximum() if kinks else algebra.polynomial()
    partials: dict[str, Expr] = {}
    for name, (of_mean, of_var) in partial_names(tuple(rule.moments)).items():
        symbol = rule.moments[name]
        partials |= {of_mean: sympy.diff(mean, symbol), of_var: sympy.diff(var, symbol)}
    check_author(rule, {"mean": mean, "var": var, **partials}, _grid(rule))
    return JointDerivation(rule, mean, var, partials, bool(kinks))


def _grid(rule: Rule) -> dict[str, tuple[float, ...]]:
    """Values of moments and parameters at which formulas are compared; a covariance is within what variances allow."""
    of = {"mean": (0.0, 0.7, -2.5), "var": (0.04, 1.0, 7.0), "cov": (0.012,)}
    axes = {str(symbol): of[name.rstrip("12")] for name, symbol in rule.moments.items()}
    return axes | {p.name: (float(p.default or 0.0),) for p in rule.parameters}


class _Joint:
    """Expectations under the rule's inputs."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.inputs = rule, input_symbols(rule.inputs)
        symbols = list(rule.moments.values())
        self.mean = dict(zip(self.inputs, symbols[0::2], strict=False))
        variances = dict(zip(self.inputs, symbols[1::2], strict=False))
        dependent: Expr = symbols[-1] if rule.covariance else Integer(0)
        self.covariance = {(x, y): variances[x] if x == y else dependent for x in self.inputs for y in self.inputs}

    def error(self, cause: str, expression: object) -> BuildError:
        return BuildError(self.rule.name, "derive", f"f is outside the algebra: {cause}", expression)

    # --- polynomials -------------------------------------------------------------
    def polynomial(self) -> tuple[Expr, Expr]:
        noise = self.rule.noise
        generators = (*self.inputs, *([] if noise is None else [noise.symbol]))
        f = self.rule.f.as_poly(*generators)
        if f is None:
            raise self.error("of several inputs, a polynomial or Max(x1, x2) has closed moments", self.rule.f)
        if noise is not None and f.degree(noise.symbol) > 1:
            raise self.error("only two moments of the noise are known, so f must be linear in it", self.rule.f)
        mean, second = self.expectation(f), self.expectation(f * f)
        return mean, sympy.expand(second - mean**2)

    def expectation(self, poly: Poly) -> Expr:
        total: Expr = Integer(0)
        noise = self.rule.noise
        for powers, coefficient in poly.terms():
            of_noise = Integer(1)
            if noise is not None:
                *powers, order = powers
                of_noise = (Integer(1), noise.mean, noise.var + noise.mean**2)[order]
            total += coefficient * of_noise * self.monomial(tuple(powers))
        return sympy.expand(total)

    def monomial(self, powers: tuple[int, ...]) -> Expr:
        """E of a product of powers of the inputs, by Stein's identity."""
        first = next((i for i, n in enumerate(powers) if n), None)
        if first is None:
            return Integer(1)
        rest = tuple(n - (i == first) for i, n in enumerate(powers))
        total = self.mean[self.inputs[first]] * self.monomial(rest)
        for j, n in enumerate(rest):
            if n:
                less = tuple(m - (i == j) for i, m in enumerate(rest))
                total += self.covariance[self.inputs[first], self.inputs[j]] * n * self.monomial(less)
        return sympy.expand(total)

    # --- Max(x1, x2) -------------------------------------------------------------
    def maximum(self) -> tuple[Expr, Expr]:
        if self.rule.f != Max(*self.inputs) or self.rule.noise is not None:
            raise self.error("beside Max(x1, x2) itself, a polynomial has closed moments", self.rule.f)
        one, two = self.inputs
        lower, dependent = self.covariance[two, two], self.covariance[one, two]
        d, square = self.mean[one] - self.mean[two], self.covariance[one, one] + lower - 2 * dependent
        s = sympy.sqrt(square)
        above = Phi(d / s)
        excess = d * above + s * phi(d / s)
        excess_var = (d**2 + square) * above + d * s * phi(d / s) - excess**2
        return self.mean[two] + excess, lower + 2 * (dependent - lower) * above + excess_var
