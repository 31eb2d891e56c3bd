"""Deciding whether two closed forms are equal.

First symbolically: both in one basis, expanded.  What that leaves open is
evaluated in balls on a grid, which refutes, or agrees to 40 digits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mpmath
import sympy
from flint import arb, ctx
from sympy import Expr

from momentgen.compiler.exact.balls import BallFunction, ball_function
from momentgen.rule import Parameter
from momentgen.rule.symbols import Phi, S, phi

Proof = Literal["symbolic", "numerical"]
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
    """Where two expressions differ most, relative to the larger: the point and both values, to 12 digits."""

    point: Mapping[str, float]
    left: str
    right: str

    def __str__(self) -> str:
        at = ", ".join(f"{name} = {value:g}" for name, value in self.point.items())
        return f"at {at}: {self.left} against {self.right}"


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
    """The point of a grid where two expressions differ most, if somewhere they surely differ.

    The values are balls: a difference is proven, never rounding.

    Raises:
        ValueError: if nowhere on the grid the balls tell, or an expression has a function that balls do not know.

    >>> from momentgen.rule.symbols import mu, v
    >>> print(disprove(mu + v, mu - v))
    at mu = 0, v = 1e-08: 1.00000000000e-8 against -1.00000000000e-8
    """
    axes: list[list[float]] = [[0.0, 0.3, -0.7, 1.0, -2.5, 4.0, -9.0], [1e-8, 0.04, 0.5, 1.0, 3.0, 50.0, 1e6]]
    for p in parameters:
        values = [float(p.default or 0.0), *(e for e in (p.low, p.high) if abs(e) < 1e6)]
        axes.append(list(dict.fromkeys(values)))
    names = ["mu", "v", *(p.name for p in parameters)]
    both = ball_function([left, right], names)
    worst: Counterexample | None = None
    worst_error, decided = 0.0, 0
    for point in itertools.islice(itertools.product(*axes), 2000):
        pair = _resolved(both, point)
        if pair is None:
            continue
        decided += 1
        one, two = pair
        if not one.overlaps(two):
            error = float(abs(one - two) / abs(one).max(abs(two)))
            if error > worst_error:
                worst_error = error
                shown = one.mid().str(12, radius=False), two.mid().str(12, radius=False)
                worst = Counterexample(dict(zip(names, point, strict=True)), *shown)
    if not decided:
        raise ValueError("the expressions have no value that ball arithmetic can tell at any point tried")
    return worst


def _resolved(both: BallFunction, point: tuple[float, ...]) -> tuple[arb, arb] | None:
    """Both values to 40 digits, or told apart before; None where 4096 bits do not do it (a zero, a singularity)."""
    precision = ctx.prec
    try:
        for ctx.prec in (192, 768, 4096):
            one, two = both(*point)
            accurate = min(one.rel_accuracy_bits(), two.rel_accuracy_bits()) >= 133
            if one.is_finite() and two.is_finite() and (accurate or not one.overlaps(two)):
                return one, two
        return None
    finally:
        ctx.prec = precision
