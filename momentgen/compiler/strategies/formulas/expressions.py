"""From a formula to a graph: sympy expressions in mu, v and parameters, written as real operations.

The formula should be in the form that :mod:`momentgen.compiler.strategies.formulas.formula` gives it, in which nothing
cancels; this module sees to it that nothing over- or underflows on the way and that functions are shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sympy as sp
from sympy.core.sorting import default_sort_key

from momentgen.compiler.derive.rewrite import exponent_of
from momentgen.compiler.ir.graph import Real, equal, select, sqrt
from momentgen.compiler.ir.kit import number, plus
from momentgen.compiler.strategies.formulas.functions import FunctionWriter, Value
from momentgen.errors import BuildError
from momentgen.rule.symbols import Phi, S, mu, phi, v

_FUNCTIONS = (Phi, S, phi, sp.exp)


def _ordered(items: Iterable[sp.Expr]) -> list[sp.Expr]:
    return sorted(items, key=default_sort_key)


class _Product:
    """The factors of a product, by kind."""

    def __init__(self, expr: sp.Expr) -> None:
        self.number: sp.Expr = sp.Integer(1)
        self.exponent: sp.Expr = sp.Integer(0)
        self.mu, self.v = 0, sp.Integer(0)  # powers
        self.gauss: list[tuple[sp.Expr, int]] = []
        self.functions: list[tuple[sp.Expr, int]] = []
        self.powers: list[tuple[sp.Expr, sp.Expr]] = []
        self.steps: list[sp.Heaviside] = []
        for factor in _ordered(sp.Mul.make_args(expr)):
            self.take(factor)

    def take(self, factor: sp.Expr) -> None:
        exponent = None if factor.is_number else exponent_of(factor)
        if factor.is_number:
            self.number *= factor
            return
        if exponent is not None:
            self.exponent += exponent
            return
        base, power = factor.as_base_exp()
        whole = bool(power.is_Integer and power > 0)
        if base == mu and whole:
            self.mu += int(power)
        elif base == v and (2 * power).is_Integer:
            self.v += power
        elif isinstance(base, phi) and whole:
            self.number *= (2 * sp.pi) ** (-power / 2)
            self.gauss.append((base.args[0], int(power)))
        elif isinstance(base, (Phi, S)) and whole:
            self.functions.append((base, int(power)))
        elif isinstance(base, sp.Heaviside) and whole:
            self.steps.append(base)  # 0 or 1, whatever its power
        elif isinstance(base, (sp.Symbol, sp.Add)) and (2 * power).is_Integer:
            self.powers.append((base, power))
        else:
            cause = "expected sums, products and powers of mu, v, Phi, phi, S, exp and Heaviside"
            raise BuildError("", "strategies", cause, factor)

    def grows(self) -> bool:
        """Whether the algebraic part is unbounded, for v -> 0, v -> oo or |mu| -> oo."""
        paired = min(sp.Integer(self.mu), max(-2 * self.v, sp.Integer(0)))
        at_zero = self.v + paired / 2
        at_infinity = at_zero + sum((p for b, p in self.powers if b.has(v)), start=sp.Integer(0))
        roots = sum((-2 * p for b, p in self.powers if b.has(v) and p < 0), start=sp.Integer(0))
        return bool(at_zero < 0 or at_infinity > 0 or self.mu - paired > roots)


class Translator:
    """Writes expressions on the graph of a :class:`FunctionWriter`.

    Args:
        functions: writes the special functions.
        named: symbol -> the expression it stands for; written once.
    """

    def __init__(self, functions: FunctionWriter, named: Mapping[sp.Symbol, sp.Expr] | None = None) -> None:
        self.f, self.g, self.named = functions, functions.g, dict(named or {})
        self._seen: dict[sp.Expr, Value] = {}

    @property
    def arguments(self) -> Translator:
        """What writes arguments of functions, and denominators."""
        return self

    def node(self, expr: sp.Expr) -> Real:
        """The expression as one number."""
        return self.f.apply(self.value(expr))

    def value(self, expr: sp.Expr) -> Value:
        """The expression, its powers of two kept apart where it is a product."""
        if expr not in self._seen:
            self._seen[expr] = self._value(sp.sympify(expr))
        return self._seen[expr]

    def _value(self, expr: sp.Expr) -> Value:
        if expr in self.named:
            return self.value(self.named[expr])
        if expr.is_number:
            return Value(number(self.g, expr))
        if isinstance(expr, sp.Symbol):
            return Value(self.symbol(expr))
        if isinstance(expr, sp.Add):
            return Value(self.sum(expr.args))
        return self.product(expr)

    def symbol(self, symbol: sp.Symbol) -> Real:
        """An input, or a parameter."""
        if symbol == mu:
            return self.f.mu
        return self.f.v if symbol == v else self.g.param(symbol.name)

    def sum(self, terms: Iterable[sp.Expr]) -> Real:
        """A sum; numbers are added up first."""
        terms = list(terms)
        constant = sp.Add(*(term for term in terms if term.is_number))
        total = number(self.g, constant)
        for term in _ordered(term for term in terms if not term.is_number):
            total = plus(total, self.node(term))
        return total

    # --- products ----------------------------------------------------------------
    def product(self, expr: sp.Expr) -> Value:
        """A product: constants and reciprocals, then functions, then what is unbounded, and powers of two last."""
        parts = _Product(expr)
        if parts.steps:
            rest = sp.Mul(*(f for f in sp.Mul.make_args(expr) if f.as_base_exp()[0] not in parts.steps))
            return Value(self.stepped(parts.steps, self.node(rest)))
        if parts.grows():
            for base, power in parts.powers:
                if isinstance(base, sp.Add) and base.has(*_FUNCTIONS) and power == 1:
                    # v·(b + S) loses the powers of two of S where b = 0: v·b + v·S does not.
                    rest = sp.Mul(*(f for f in sp.Mul.make_args(expr) if f != base))
                    return Value(self.sum(sp.Mul(rest, term) for term in base.args))
        bounded, steps = self.algebraic(parts)
        total = Value(number(self.g, parts.number))
        for node in bounded:
            total = self.f.times(total, Value(node))
        for value in self.special(parts):
            total = self.f.times(total, value)
        return self.grow(total, steps)

    def stepped(self, steps: Iterable[sp.Heaviside], node: Real) -> Real:
        """A node times steps, chosen and not multiplied: 0 where a step is, NaN where mu is."""
        nothing = select(equal(self.f.mu, self.f.mu), 0, self.f.mu)
        for step in steps:
            z, at_zero = step.args
            if z not in (mu, -mu) or at_zero not in (0, 1):
                raise BuildError("", "strategies", "expected a step in mu or -mu that is 0 or 1 at 0", step)
            place = self.node(z)
            node = select(place >= 0 if at_zero == 1 else place > 0, node, nothing)
        return node

    def grow(self, total: Value, steps: list[tuple[Real, int]]) -> Value:
        """Multiply by unbounded steps (node, half-powers of v), in an order in which nothing overflows on the way."""
        g, node, factors = self.g, total.mantissa, list(total.factors)
        if len(steps) == 1 and steps[0][1] > 0 and factors:
            # A mantissa may exceed 1. The step times the first factor is subnormal only where the product is.
            first, *rest = factors
            return Value(node * (steps[0][0] * first), (*rest, g.const(1)))
        for step, _ in steps:
            node = node * step
            if factors:
                node = node * factors.pop(0)
        return Value(self.f.apply(Value(node, tuple(factors))))

    def algebraic(self, parts: _Product) -> tuple[list[Real], list[tuple[Real, int]]]:
        """Bounded nodes, and unbounded ones; mu and v are divided by a root or a denominator where there is one."""
        f = self.f
        bounded: list[Real] = []
        divisors: list[tuple[Real, int]] = []  # reciprocals that vanish for v -> oo, and how many roots of v they are
        left = parts.mu
        for base, power in parts.powers:
            if power > 0 or base in self.named or not base.has(v) or base.has(*_FUNCTIONS):
                bounded += self.power(base, power)
                continue
            count = int(-2 * power)
            if count % 2 == 0 and left < 2:
                scale, shape = self.normalised(base)
                parts.number *= scale**power
                divisors += [(1 / self.arguments.node(shape), 2)] * (count // 2)
                continue
            root = 1 / sqrt(self.arguments.node(base))
            bounded += [f.mu * root] * min(left, count)
            divisors += [(root, 1)] * max(count - left, 0)
            left = max(left - count, 0)
        halves = int(2 * parts.v)
        while left and halves < 0:
            bounded.append(f.ratio)
            left, halves = left - 1, halves + 1
        steps = [(f.mu, 2)] * left
        if halves > 0:
            steps += [(f.v, 2)] * (halves // 2) + [(f.sigma, 1)] * (halves % 2)
        else:
            steps += [(f.inverse, -1)] * -halves
        for step in list(steps):
            match = next((d for d in divisors if d[1] == step[1]), None)
            if match is not None:
                divisors.remove(match)
                steps.remove(step)
                bounded.append(step[0] * match[0])
        return [*bounded, *(node for node, _ in divisors)], steps

    def power(self, base: sp.Expr, power: sp.Expr) -> list[Real]:
        """The factors of a power of something bounded."""
        factor = self.node(base) if power > 0 else self.arguments.node(base)
        if not power.is_Integer:
            factor = sqrt(factor)
        if power < 0:
            factor = 1 / factor
        return [factor] * int(abs(power) if power.is_Integer else abs(2 * power))

    def normalised(self, base: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
        """b, and 1 + v·a/b, of a·v + b: its reciprocal is a normal number for every float32 v."""
        poly = base.as_poly(v)
        if poly is None or poly.degree() != 1 or not all(c.is_number for c in poly.all_coeffs()):
            return sp.Integer(1), base
        slope, offset = poly.all_coeffs()
        return (offset, 1 + v * slope / offset) if offset > 1 else (sp.Integer(1), base)

    def special(self, parts: _Product) -> list[Value]:
        """The functions of a product; exp(g)·Phi(z) as one."""
        values: list[Value] = []
        functions = list(parts.functions)
        exponent = sp.expand(parts.exponent)
        if exponent != 0:
            cdfs = [f for f, power in functions if isinstance(f, Phi) and power == 1]
            tilted = sp.expand(exponent - cdfs[0].args[0] ** 2 / 2) if len(cdfs) == 1 else exponent
            if len(cdfs) == 1 and tilted.is_nonpositive and not exponent.is_nonpositive:
                functions = [(f, power) for f, power in functions if f != cdfs[0]]
                z = self.arguments.argument(cdfs[0].args[0])
                node = -z[0] if z[1] else z[0]
                upper = self.arguments.node(exponent)
                values.append(Value(self.f.tilted_normal_cdf(upper, self.exponential(tilted), node)))
            else:
                values.append(self.exponential(exponent))
        for z, power in parts.gauss:
            values += [self.f.gauss(self.arguments.argument(z)[0])] * power
        for function, power in functions:
            z_node, mirrored = self.arguments.argument(function.args[0])
            write = self.f.normal_cdf if isinstance(function, Phi) else self.f.logistic
            values += [write(z_node, mirrored=mirrored)] * power
        return values

    def exponential(self, exponent: sp.Expr) -> Value:
        """exp of an expression; a square of mu/sigma is the density's."""
        if sp.expand(exponent + mu**2 / (2 * v)) == 0:
            return self.f.gauss(self.f.ratio)
        return self.f.exp(self.arguments.node(exponent), decays=bool(exponent.is_nonpositive))

    def argument(self, z: sp.Expr) -> tuple[Real, bool]:
        """The node of z or of -z, whichever has the leading sign, and whether it is that of -z."""
        mirrored = bool(z.could_extract_minus_sign())
        z = -z if mirrored else z
        if any(factor == v ** sp.Rational(-1, 2) for factor in sp.Mul.make_args(z)):
            z = sp.expand(z)  # (mu + c·v)/sigma as mu/sigma + c·sigma, which overflows nowhere
        return self.node(z), mirrored


class MagnitudeTranslator(Translator):
    """Writes the sum of the terms' magnitudes in place of every sum: what rounding errors are relative to."""

    def __init__(self, plain: Translator) -> None:
        super().__init__(plain.f, plain.named)
        self._plain = plain

    @property
    def arguments(self) -> Translator:
        """Arguments and denominators as they are."""
        return self._plain

    def sum(self, terms: Iterable[sp.Expr]) -> Real:
        """Sum of magnitudes."""
        return sum((abs(self.node(term)) for term in _ordered(terms)), start=self.g.const(0))
