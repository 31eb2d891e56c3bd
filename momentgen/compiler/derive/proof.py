"""Deciding whether two closed forms are equal.

First symbolically: both in one basis, expanded.  What that leaves open is
evaluated at 60 digits on a grid, which refutes, or agrees to 40 digits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mpmath
import sympy
from sympy import Expr

from momentgen.rule import Parameter
from momentgen.symbols import Phi, S, mu, phi, v

__all__ = ["Counterexample", "Proof", "canonical", "disprove", "function", "prove"]

Proof = Literal["symbolic", "numerical"]
_DIGITS = 60
_MODULES: list[Any] = [
    {
        "Phi": lambda z: mpmath.erfc(-z / mpmath.sqrt(2)) / 2,
        "phi": lambda z: mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi),
        "S": lambda z: 1 / (1 + mpmath.exp(-z)),
        "polylog": mpmath.polylog,
    },
    "mpmath",
]


@dataclass(frozen=True)
class Counterexample:
    """Where two expressions differ most, relative to the larger: the point and both values."""

    point: Mapping[str, float]
    left: mpmath.mpf
    right: mpmath.mpf

    def __str__(self) -> str:
        at = ", ".join(f"{name} = {value:g}" for name, value in self.point.items())
        return f"at {at}: {mpmath.nstr(self.left, 12)} against {mpmath.nstr(self.right, 12)}"


def function(expr: Expr, names: Sequence[sympy.Symbol]) -> Callable[..., mpmath.mpf]:
    """``expr`` as a function of mpmath numbers."""
    return sympy.lambdify(list(names), expr, modules=_MODULES)


def canonical(expr: Expr) -> Expr:
    """``expr`` expanded in the basis Phi(z), phi(z), z of positive leading sign."""

    def positive(z: Expr) -> Expr:
        return 1 - Phi(-z) if z.could_extract_minus_sign() else Phi(z)

    expr = expr.replace(sympy.erf, lambda z: 2 * Phi(sympy.sqrt(2) * z) - 1)
    expr = expr.replace(sympy.erfc, lambda z: 2 * Phi(-sympy.sqrt(2) * z))
    expr = expr.replace(Phi, lambda z: positive(sympy.expand(z)))
    expr = expr.replace(phi, lambda z: phi(sympy.expand(z)))
    expr = expr.replace(S, lambda z: 1 - S(-z) if z.could_extract_minus_sign() else S(sympy.expand(z)))
    return sympy.expand(expr)


def prove(left: Expr, right: Expr, parameters: Sequence[Parameter]) -> Proof | Counterexample:
    """Whether ``left = right`` for every mu, v and parameter value."""
    difference = canonical(left - right)
    if difference == 0:
        return "symbolic"
    elementary = difference.replace(phi, lambda z: sympy.exp(-(z**2) / 2) / sympy.sqrt(2 * sympy.pi))
    elementary = elementary.replace(S, lambda z: 1 / (1 + sympy.exp(-z)))
    if sympy.powsimp(sympy.expand(elementary), deep=True) == 0:
        return "symbolic"
    counterexample = disprove(left, right, parameters)
    if counterexample is not None:
        return counterexample
    if elementary.count_ops() < 300 and sympy.simplify(elementary) == 0:
        return "symbolic"
    return "numerical"


def disprove(left: Expr, right: Expr, parameters: Sequence[Parameter] = ()) -> Counterexample | None:
    """The point of a grid where two expressions differ most, if they differ by more than 40 digits' rounding.

    >>> print(disprove(mu + v, mu - v))
    at mu = 0, v = 1e-08: 1.0e-8 against -1.0e-8
    """
    axes: list[list[float]] = [
        [0.0, 0.3, -0.7, 1.0, -2.5, 4.0, -9.0],
        [1e-8, 0.04, 0.5, 1.0, 3.0, 50.0, 1e6],
    ]
    for p in parameters:
        values = [float(p.default or 0.0), *(e for e in (p.low, p.high) if abs(e) < 1e6)]
        axes.append(list(dict.fromkeys(values)))
    symbols = [mu, v, *(p.symbol for p in parameters)]
    first, second = function(left, symbols), function(right, symbols)
    worst: Counterexample | None = None
    worst_error = mpmath.mpf(10) ** -40
    for point in itertools.islice(itertools.product(*axes), 2000):
        # What more digits make vanish was rounding: a sum whose terms cancel.
        for digits in (_DIGITS, 3 * _DIGITS):
            with mpmath.workdps(digits):
                values_at = [mpmath.mpf(value) for value in point]
                one, two = mpmath.re(first(*values_at)), mpmath.re(second(*values_at))
                size = max(abs(one), abs(two), mpmath.mpf(10) ** (-digits // 2))
                error = abs(one - two) / size
            if error <= worst_error:
                break
        else:
            worst_error = error
            worst = Counterexample({str(s): value for s, value in zip(symbols, point, strict=True)}, one, two)
    return worst
