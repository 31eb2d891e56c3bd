"""Deciding whether two closed forms are equal: in balls on a grid, which refutes, or agrees to 40 digits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flint import arb, ctx
from sympy import Expr

from momentgen.compiler.exact.balls import BallFunction, ball_function
from momentgen.errors import BuildError
from momentgen.rule import Parameter, Rule


@dataclass(frozen=True)
class Counterexample:
    """Where two expressions differ most, relative to the larger: the point and both values, to 12 digits."""

    point: Mapping[str, float]
    left: str
    right: str

    def __str__(self) -> str:
        at = ", ".join(f"{name} = {value:g}" for name, value in self.point.items())
        return f"at {at}: {self.left} against {self.right}"


def check_author(rule: Rule, derived: Mapping[str, Expr], axes: Mapping[str, Sequence[float]]) -> None:
    """Refute the closed forms that the rule's author gives, or fail to.

    Raises:
        BuildError: where one is wrong, or has no value that can be told.
    """
    for what, expression in {"mean": rule.mean, "var": rule.var, **rule.partials}.items():
        if expression is None:
            continue
        try:
            counterexample = disprove(expression, derived[what], axes)
        except ValueError as error:
            cause = f"the rule's {what} cannot be compared: {error}"
            raise BuildError(rule.name, "derive", cause, expression) from error
        if counterexample is not None:
            cause = f"the rule's {what} is wrong, worst {counterexample} derived"
            raise BuildError(rule.name, "derive", cause, expression)


def grid(parameters: Sequence[Parameter] = ()) -> dict[str, list[float]]:
    """Values of mu, v and parameters, at which two expressions are compared."""
    axes = {"mu": [0.0, 0.3, -0.7, 1.0, -2.5, 4.0, -9.0], "v": [1e-8, 0.04, 0.5, 1.0, 3.0, 50.0, 1e6]}
    for p in parameters:
        values = [float(p.default or 0.0), *(e for e in (p.low, p.high) if abs(e) < 1e6)]
        axes[p.name] = list(dict.fromkeys(values))
    return axes


def disprove(left: Expr, right: Expr, axes: Mapping[str, Sequence[float]]) -> Counterexample | None:
    """The point of a grid where two expressions differ most, if somewhere they surely differ.

    The values are balls: a difference is proven, never rounding.

    Raises:
        ValueError: if nowhere on the grid the balls tell, or an expression has a function that balls do not know.

    >>> from momentgen.rule.symbols import mu, v
    >>> print(disprove(mu + v, mu - v, grid()))
    at mu = 0, v = 1e-08: 1.00000000000e-8 against -1.00000000000e-8
    """
    names = tuple(axes)
    both = ball_function([left, right], names)
    worst: Counterexample | None = None
    worst_error, decided = 0.0, 0
    for point in itertools.islice(itertools.product(*axes.values()), 2000):
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
