"""An expression in x as nodes of a graph in float64, without overflow on the way.

A value is a mantissa times an exponential whose exponent is kept apart (:class:`Scaled`).  Products add exponents, sums
take out the largest, and logarithms give the exponent back.  So log(1 + exp(x)), log(S(x)), phi(x)/Phi(x) and a ratio
of exponentials are right for every x, in whatever way they are written.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mpmath
import sympy as sp

from momentgen.compiler.function.activation import elementary
from momentgen.compiler.ir.graph import Graph, Real, horner, log, select, sqrt
from momentgen.compiler.ir.kit import FLOAT64, exp_ratio, held_exp, number, sine_and_cosine, tail_ratio
from momentgen.errors import BuildError
from momentgen.rule.symbols import Phi, S

_MOST = 700.0  # of an exponent: what is beyond is exp(700), or exp(-700)
_SMALLEST = 2.0**-1022  # whose logarithm stands for that of 0
_CLOSE = 0.5  # an exponent up to which exp(g) - 1 is by a polynomial
_PHI, _ASINH = sp.Function("_Phi"), sp.Function("_asinh")


@dataclass(frozen=True)
class Scaled:
    """``mantissa`` times exp(``exponent``); None stands for an exponent of 0."""

    mantissa: Real
    exponent: Real | None = None


@lru_cache
def _arctangent() -> tuple[float, ...]:
    """atan(u)/u in powers of u², |u| <= tan(pi/8)."""

    def target(w: Any) -> Any:
        return mpmath.atan(mpmath.sqrt(w)) / mpmath.sqrt(w) if w else mpmath.mpf(1)

    with mpmath.workdps(40):
        coefficients = mpmath.chebyfit(target, [mpmath.mpf(0), mpmath.mpf("0.1716")], 13)
    return tuple(float(c) for c in reversed(coefficients))


class Expressions:
    """Writes expressions on a graph; ``symbols`` has what stands for each symbol, ``name`` is that of the rule."""

    def __init__(self, graph: Graph, symbols: Mapping[sp.Symbol, Real], name: str) -> None:
        self.graph, self.name = graph, name
        self._seen: dict[sp.Expr, Scaled] = {symbol: Scaled(node) for symbol, node in symbols.items()}

    def node(self, expr: sp.Expr) -> Real:
        """An expression as one number.

        Raises:
            BuildError: for a function that is not known.
        """
        # sympy writes Phi(-z) in erfc as 1 - Phi(z), which loses the digits of a tail.
        expr = expr.replace(sp.asinh, _ASINH).replace(Phi, _PHI).replace(sp.erf, lambda z: 2 * _PHI(sp.sqrt(2) * z) - 1)
        expr = elementary(expr.replace(sp.erfc, lambda z: 2 * _PHI(-sp.sqrt(2) * z)))
        expr = expr.replace(sp.log, lambda z: -sp.log(1 + sp.exp(-z.args[0])) if isinstance(z, S) else sp.log(z))
        return self.plain(self.value(expr))

    def plain(self, value: Scaled) -> Real:
        """A value as one number: at most about 1e304 times its mantissa."""
        return value.mantissa if value.exponent is None else value.mantissa * self._exp(value.exponent)

    def value(self, expr: sp.Expr) -> Scaled:
        """An expression, its exponent apart; of functions that :func:`elementary` leaves."""
        if expr not in self._seen:
            self._seen[expr] = self._written(expr)
        return self._seen[expr]

    def _exp(self, exponent: Real) -> Real:
        return held_exp(False, exponent, -_MOST, _MOST)

    def _log(self, a: Real) -> Real:
        return log(select(a < _SMALLEST, select(a < 0, a, _SMALLEST), a))

    def _written(self, expr: sp.Expr) -> Scaled:
        if expr.is_number:
            return Scaled(number(self.graph, expr))
        if isinstance(expr, sp.Add):
            return self._less_one(expr) or self._sum([self.value(term) for term in expr.args])
        if isinstance(expr, sp.Mul):
            return self._product(expr)
        if isinstance(expr, sp.exp):
            return Scaled(self.graph.const(1), self.plain(self.value(expr.args[0])))
        if isinstance(expr, sp.Pow):
            return self._power(expr.base, expr.exp)
        if isinstance(expr, S):
            return self._inverse(self._sum([Scaled(self.graph.const(1)), self.value(sp.exp(-expr.args[0]))]))
        if type(expr) is _ASINH:
            return self._inverse_sinh(expr.args[0])
        of = {
            _PHI: self._lower_tail,
            sp.log: self._logarithm,
            sp.sin: lambda value: Scaled(self._waves(value)[0]),
            sp.cos: lambda value: Scaled(self._waves(value)[1]),
            sp.atan: self._atan,
        }
        if isinstance(expr, sp.log) and 1 in expr.args[0].args and isinstance(expr.args[0], sp.Add):
            return self._logarithm_beside_one(expr.args[0] - 1)
        if type(expr) not in of:
            cause = f"expected functions that the compiler knows, got {type(expr).__name__}"
            raise BuildError(self.name, "strategies", cause, expr)
        return of[type(expr)](self.value(expr.args[0]))

    def _less_one(self, expr: sp.Add) -> Scaled | None:
        """a (exp(g) - 1), without what cancels in it; None where a sum is another."""
        number_, term = expr.as_independent(*expr.free_symbols, as_Add=True)
        factor, power = term.as_independent(*expr.free_symbols, as_Add=False)
        if number_ == 0 or factor != -number_ or not isinstance(power, sp.exp):
            return None
        g = self.plain(self.value(power.args[0]))
        negative = g < 0
        a = select(negative, g, -g)
        with mpmath.workdps(40):
            near = exp_ratio(mpmath.mpf(-_CLOSE), mpmath.mpf(0), 1e-17)
        less = select(a > -_CLOSE, a * horner(a - near.centre, near.coefficients), self._exp(a) - 1)
        mantissa = select(negative, less, -less) * number(self.graph, factor)
        return Scaled(mantissa, select(negative, 0, g))

    def _logarithm_beside_one(self, rest: sp.Expr) -> Scaled:
        """log(1 + u): what rounding takes of 1 + u is put back."""
        value = self.value(rest)
        one = Scaled(self.graph.const(1))
        u = self.plain(value)
        near = self._beside_one(u)
        if value.exponent is None:
            return Scaled(near)
        far = self._logarithm(self._sum([one, value])).mantissa
        return Scaled(select(abs(u) < 1, near, far))

    def _beside_one(self, u: Real) -> Real:
        whole = u + 1
        return self._log(whole) + (u - (whole - 1)) / select(whole > 0, whole, 1)

    def _inverse_sinh(self, expr: sp.Expr) -> Scaled:
        """asinh(z), of small z by log(1 + u)."""
        value = self.value(expr)
        z = self.plain(value)
        negative = z < 0
        size = select(negative, -z, z)
        held = select(size > 1, 1, size)
        square = held * held
        near = self._beside_one(held + square / (1 + sqrt(1 + square)))
        large = Scaled(select(size > 1, abs(value.mantissa), 1), value.exponent)
        squared = self._times([large, large])
        root = self._sum([Scaled(self.graph.const(1)), squared])
        half = None if root.exponent is None else root.exponent * 0.5
        far = self._logarithm(self._sum([large, Scaled(sqrt(root.mantissa), half)])).mantissa
        whole = select(size > 1, far, near)
        return Scaled(select(negative, -whole, whole))

    # --- arithmetic --------------------------------------------------------------
    def _sum(self, terms: list[Scaled]) -> Scaled:
        exponents = [term.exponent for term in terms if term.exponent is not None]
        if not exponents:
            return Scaled(functools.reduce(operator.add, [term.mantissa for term in terms]))
        if len(exponents) < len(terms):
            exponents.append(self.graph.const(0))
        most = functools.reduce(lambda a, b: select(a < b, b, a), exponents)
        parts = [term.mantissa * self._exp(-most if term.exponent is None else term.exponent - most) for term in terms]
        return Scaled(functools.reduce(operator.add, parts), most)

    def _product(self, expr: sp.Expr) -> Scaled:
        above: list[Scaled] = []
        below: list[Scaled] = []
        for factor in expr.args:
            base, power = factor.as_base_exp()
            if power.is_Rational and power < 0 and not factor.is_number and not isinstance(factor, sp.exp):
                below.append(self.value(base**-power))
            else:
                above.append(self.value(factor))
        top, bottom = self._times(above), self._times(below)
        if not below:
            return top
        exponent = top.exponent
        if bottom.exponent is not None:
            exponent = -bottom.exponent if exponent is None else exponent - bottom.exponent
        return Scaled(top.mantissa / bottom.mantissa, exponent)

    def _times(self, factors: list[Scaled]) -> Scaled:
        mantissa, exponent = self.graph.const(1), None
        for factor in factors:
            mantissa = mantissa * factor.mantissa
            if factor.exponent is not None:
                exponent = factor.exponent if exponent is None else exponent + factor.exponent
        return Scaled(mantissa, exponent)

    def _inverse(self, value: Scaled) -> Scaled:
        return Scaled(1 / value.mantissa, None if value.exponent is None else -value.exponent)

    def _power(self, base: sp.Expr, power: sp.Expr) -> Scaled:
        if power.is_number and power.is_negative:
            return self._inverse(self.value(base**-power))
        value = self.value(base)
        if power.is_Integer:
            if power < 4:
                return self._times([value] * int(power))
            half = self.value(base ** (power // 2))
            return self._times([half, half, *([value] if power % 2 else [])])
        if power.is_number:
            exponent = None if value.exponent is None else value.exponent * number(self.graph, power)
            if power == sp.Rational(1, 2):
                return Scaled(sqrt(value.mantissa), exponent)
            if power.is_Rational and power.q == 2:
                whole = self._times([Scaled(value.mantissa)] * (power.p // 2) if power.p > 1 else [])
                return Scaled(whole.mantissa * sqrt(value.mantissa), exponent)
            return Scaled(self._exp(self._log(value.mantissa) * number(self.graph, power)), exponent)
        return Scaled(self.graph.const(1), self.plain(self._logarithm(value)) * self.plain(self.value(power)))

    # --- functions ---------------------------------------------------------------
    def _logarithm(self, value: Scaled) -> Scaled:
        found = self._log(value.mantissa)
        return Scaled(found if value.exponent is None else found + value.exponent)

    def _lower_tail(self, value: Scaled) -> Scaled:
        """Phi(z)."""
        z = self.plain(value)
        negative = z < 0
        size = select(negative, -z, z)
        tail = Scaled(tail_ratio(size, FLOAT64.fit, []), size * size * -0.5)
        exponent = select(negative, size * size * -0.5, 0)
        return Scaled(select(negative, tail.mantissa, 1 - self.plain(tail)), exponent)

    def _waves(self, value: Scaled) -> tuple[Real, Real]:
        with mpmath.workdps(40):  # multiples of pi/2 are taken off to more digits than float64 has
            return sine_and_cosine(FLOAT64.fit, self.plain(value), [])

    def _atan(self, value: Scaled) -> Scaled:
        z = self.plain(value)
        size = select(z < 0, -z, z)
        inverse = size > 1
        t = select(inverse, 1 / select(inverse, size, 1), size)
        high = t > mpmath.tan(mpmath.pi / 8)
        u = select(high, (t - 1) / (t + 1), t)
        part = u * horner(u * u, _arctangent())
        near = select(high, part + mpmath.pi / 4, part)
        whole = select(inverse, mpmath.pi / 2 - near, near)
        return Scaled(select(z < 0, -whole, whole))
