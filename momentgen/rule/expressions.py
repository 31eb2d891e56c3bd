"""Checks that an expression in a rule is a real, finite function of known symbols, of a size that can be compiled.

:mod:`momentgen.rule` uses it when a rule is made.  Nothing is simplified or evaluated here, so that it takes no time.
The compiler finds out later whether the expression has moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import mpmath
import sympy
from sympy import Add, Expr, Float, Mul, Number, NumberSymbol, Pow, Rational, Symbol
from sympy.core.function import Application, AppliedUndef
from sympy.core.relational import Relational
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.logic.boolalg import Boolean

from momentgen.errors import RuleError

__all__ = [
    "DEEPEST",
    "HIGHEST_POWER",
    "LARGEST",
    "LEAST",
    "MOST_NODES",
    "check_expression",
    "check_number",
    "is_number",
]

#: operations, symbols and numbers in one expression, as it is written
MOST_NODES = 5000
#: how far operations may be nested
DEEPEST = 100
#: the power of a symbol, factors and nested powers taken together, in an activation (what lies beyond takes minutes to
#: derive, and its coefficients leave float32), and in formulas that authors give
HIGHEST_POWER, HIGHEST_POWER_OF_FORMULAS = 16, 64
#: what numbers in a rule may be, in absolute value: those of float32, that are not subnormal
LARGEST, LEAST = 2.0**128, 2.0**-126
_MOST_BITS = 4096  # of a numerator or denominator

_NODES = (Add, Mul, Pow, Symbol, Number, NumberSymbol, Application, Relational, Boolean, ExprCondPair)


def check_expression(
    rule: str, what: str, value: Any, allowed: Iterable[Symbol], *, highest: int = HIGHEST_POWER_OF_FORMULAS
) -> None:
    """Check one expression of a rule.

    Args:
        rule: its name, for messages.
        what: which of its expressions, for messages.
        value: the expression.
        allowed: the symbols that may occur in it.
        highest: power of a symbol that it may have.

    Raises:
        RuleError: if it is not an expression, too large, not real and finite, or has unknown symbols or functions.

    >>> check_expression("r", "f", Symbol("x") ** 2, [Symbol("x")])
    """
    if not isinstance(value, Expr):
        hint = "; wrap a number in sympy.Integer or Rational" if isinstance(value, (int, float)) else ""
        shown = repr(value)
        shown = shown if len(shown) < 100 else f"{shown[:100]}..."
        raise RuleError(rule, f"{what} must be a sympy expression, got {type(value).__name__}{hint}", shown)
    _check_size(rule, what, value)
    for node in _nodes(value):
        _check_node(rule, what, node, value)
    known = set(allowed)
    for symbol in sorted(value.free_symbols - known, key=str):
        same = [k for k in known if str(k) == str(symbol)]
        cause = (
            f"symbol {symbol} has other assumptions than the rule's own: import it, or use Parameter.symbol"
            if same
            else f"unknown symbol {symbol}; known are {', '.join(sorted(map(str, known)))}"
        )
        raise RuleError(rule, f"{what}: {cause}", value)
    power = _power(value, frozenset(known))
    if power > highest:
        cause = f"has a power of {power}; the highest that can be compiled is {highest}"
        raise RuleError(rule, f"{what} {cause}", value)


def check_number(rule: str, what: str, value: Any) -> None:
    """Check a number of a rule: an int, a float or a sympy number that is real, finite and one in float32.

    Raises:
        RuleError: if it is not.

    >>> check_number("r", "a default", 0.5)
    """
    if not is_number(value):
        raise RuleError(rule, f"{what} must be a number, got {value!r}")
    if value != 0 and not LEAST <= abs(value) < LARGEST:
        raise RuleError(rule, f"{what} must be 0 or a number of float32, from 1.2e-38 to 3.4e38 in size")


def is_number(value: object) -> bool:
    """Whether it is an int, a float or a sympy number, and not NaN; infinities are."""
    number = isinstance(value, (int, float, Number)) and not isinstance(value, bool)
    return number and value is not sympy.nan and value == value


def _nodes(value: Any) -> Iterator[Any]:
    """All parts of an expression, conditions and branches included, without recursion."""
    stack = [value]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.args)


def _check_size(rule: str, what: str, value: Expr) -> None:
    count, stack = 0, [(value, 1)]
    while stack:
        node, depth = stack.pop()
        count += 1
        if depth > DEEPEST:
            raise RuleError(rule, f"{what} is nested more than {DEEPEST} operations deep")
        if count > MOST_NODES:
            raise RuleError(rule, f"{what} has more than {MOST_NODES} operations, symbols and numbers")
        stack.extend((arg, depth + 1) for arg in node.args)


def _check_node(rule: str, what: str, node: Any, value: Expr) -> None:
    """One part of an expression by itself."""
    if node is sympy.nan or node is sympy.zoo:
        raise RuleError(rule, f"{what} is undefined", value)
    if node in (sympy.oo, -sympy.oo):
        raise RuleError(rule, f"{what} must be finite, but has {node}", value)
    if isinstance(node, Number):
        _check_magnitude(rule, what, node)
    elif node is sympy.I:
        raise RuleError(rule, f"{what} must be real and written without I, as cos(x) instead of exp(I*x) is", value)
    elif isinstance(node, AppliedUndef):
        raise RuleError(rule, f"{what}: unknown function {node.func}", value)
    elif not isinstance(node, _NODES):
        raise RuleError(rule, f"{what} has a {type(node).__name__}, which is no function that can be compiled", value)
    elif isinstance(node, (Pow, Application)) and not node.free_symbols and node.is_extended_real is False:
        raise RuleError(rule, f"{what} must be real, but has {node}", value)


def _check_magnitude(rule: str, what: str, number: Any) -> None:
    """A number must be one of float32, so that no constant of a kernel overflows for it alone."""
    if isinstance(number, Rational):
        if max(number.p.bit_length(), number.q.bit_length()) > _MOST_BITS:
            raise RuleError(rule, f"{what} has a number of more than {_MOST_BITS} bits")
    elif not (isinstance(number, Float) and number.is_finite):
        raise RuleError(rule, f"{what} has {number}, which is no real number")
    if number != 0 and not LEAST <= abs(number) < LARGEST:
        # Not all digits: there may be thousands.
        size = mpmath.mpf(number.p) / number.q if isinstance(number, Rational) else mpmath.mpf(number)
        shown = mpmath.nstr(size, 3)
        raise RuleError(rule, f"{what} has the number {shown}; in float32 numbers go from 1.2e-38 to 3.4e38")


def _power(expr: Any, symbols: frozenset[Symbol]) -> int:
    """The power of symbols that an expression has as it is written: x**3*(1 + x**2)**2 has 7."""
    if not expr.args:
        return int(expr in symbols)
    powers = [_power(arg, symbols) for arg in expr.args]
    if isinstance(expr, Mul):
        return sum(powers)
    if isinstance(expr, Pow) and expr.exp.is_Rational:
        # Not int() of a product: an exponent may have thousands of digits.
        return powers[0] * int(sympy.ceiling(abs(expr.exp))) if powers[0] else 0
    return max(powers)
