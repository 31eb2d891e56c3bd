"""Proof that a rule's f is its base in other units, as the rule says."""

from __future__ import annotations

import sympy
from sympy import Expr

from momentgen.compiler.function.pieces import Pieces, samples_of, split, vanishes
from momentgen.errors import BuildError
from momentgen.rule import Rescaled, Rule
from momentgen.rule.symbols import x

__all__ = ["base_rule", "check_rescaled"]


def base_rule(rule: Rule, rescaled: Rescaled) -> Rule:
    """The base as a rule, with those of the parameters that occur in it.

    >>> line = Rule("line", f=2 * x, rescaled=Rescaled(x, scale=sympy.Integer(2)))
    >>> base_rule(line, line.rescaled).f
    x
    """
    used = tuple(p for p in rule.parameters if p.symbol in rescaled.of.free_symbols)
    return Rule(rule.name, f=rescaled.of, parameters=used, accuracy=rule.accuracy)


def check_rescaled(rule: Rule, rescaled: Rescaled, pieces: Pieces) -> None:
    """Check f(centre + width·x) = scale·of(x) + offset, piece by piece, breakpoints included.

    Raises:
        BuildError: where it does not hold, or ``width`` or ``scale`` is not positive for every value of the parameters.
    """
    for what in ("width", "scale"):
        expression: Expr = getattr(rescaled, what)
        for sample in samples_of(rule.parameters):
            value = expression.subs(sample)
            if not (value.is_finite and value > 0):
                at = ", ".join(f"{symbol} = {float(w):g}" for symbol, w in sample.items())
                raise BuildError(
                    rule.name, "derive", f"rescaled: {what} must be positive, got {value} at {at}", expression
                )
    base = split(rescaled.of, rule.parameters)
    inner = rescaled.centre + rescaled.width * x
    if len(base.pieces) != len(pieces.pieces):
        cause = f"rescaled: f has {len(pieces.pieces)} pieces, its base {len(base.pieces)}"
        raise BuildError(rule.name, "derive", cause, rescaled.of)
    for own, other in zip(pieces, base, strict=True):
        if own.high != sympy.oo and not vanishes(own.high - inner.subs(x, other.high)):
            cause = f"rescaled: f breaks at {own.high}, its base where f would at {inner.subs(x, other.high)}"
            raise BuildError(rule.name, "derive", cause, rescaled.of)
        difference = own.expr.subs(x, inner) - rescaled.scale * other.expr - rescaled.offset
        if not vanishes(difference):
            cause = (
                f"rescaled: f({inner}) is not {rescaled.scale} times its base plus {rescaled.offset}; they differ by"
            )
            raise BuildError(rule.name, "derive", cause, sympy.simplify(difference))
