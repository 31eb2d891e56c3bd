"""The conditional variance of an output that is random beyond its input, as a function to be averaged.

Var Y = Var E(Y | X) + E Var(Y | X): the first term is that of f by itself, the second is the mean of another function
of the same input, which is derived as a rule of its own (:func:`conditional_rule`).
"""

from __future__ import annotations

import mpmath
import sympy
from sympy import Expr

from momentgen.compiler.derive.proof import function
from momentgen.compiler.function.pieces import samples_of
from momentgen.errors import BuildError
from momentgen.rule import Rescaled, Rule
from momentgen.rule.symbols import x

__all__ = ["conditional_rule"]

#: where the sign is looked at, in units of the rule's width
_PLACES = tuple(side * place for place in (0.01, 0.1, 0.5, 1, 2, 4, 8, 16, 40) for side in (-1, 1))
_DIGITS = 30


def conditional_rule(rule: Rule) -> Rule:
    """Var(Y | x) as a rule, in the units of the rule itself: scale² times its base, and what is constant in x.

    Raises:
        BuildError: if it is constant in x, is negative somewhere, or still has parameters in those units.

    >>> from momentgen.rule import Accuracy, S
    >>> gate = Rule("gate", f=x * S(x), conditional_var=x**2 * S(x) * S(-x), accuracy=Accuracy(moments=True))
    >>> conditional_rule(gate).f
    x**2*S(-x)*S(x)
    """
    given = rule.conditional_var
    if given is None:
        raise BuildError(rule.name, "derive", "expected a conditional variance", rule.f)
    constant, rest = sympy.expand(given).as_independent(x, as_Add=True)
    if rest == 0:
        cause = "conditional_var is constant in x: add it to the variance that the op gives, as nn.InjectedNoise does"
        raise BuildError(rule.name, "derive", cause, given)
    _check_sign(rule, given)
    units = rule.rescaled
    if units is None:
        return Rule(rule.name, f=given, parameters=rule.parameters, accuracy=rule.accuracy)
    of = sympy.expand(rest.subs(x, units.centre + units.width * x) / units.scale**2)
    if of.free_symbols - {x}:
        cause = f"conditional_var is not {units.scale**2} times a function of (x - {units.centre})/({units.width})"
        raise BuildError(rule.name, "derive", cause, given)
    own = Rescaled(of, centre=units.centre, width=units.width, scale=units.scale**2, offset=constant)
    return Rule(rule.name, f=given, parameters=rule.parameters, rescaled=own, accuracy=rule.accuracy)


def _check_sign(rule: Rule, given: Expr) -> None:
    """Refute that it is nowhere negative, or fail to.

    Raises:
        BuildError: with the point.
    """
    for sample in samples_of(rule.parameters):
        centre, width = 0.0, 1.0
        if rule.rescaled is not None:
            centre, width = (float(e.subs(sample)) for e in (rule.rescaled.centre, rule.rescaled.width))
        with mpmath.workdps(_DIGITS):
            values = function(given.subs(sample), [x])
            for place in _PLACES:
                value = values(mpmath.mpf(centre + place * width))
                if value < 0:
                    at = ", ".join(f"{symbol} = {float(w):g}" for symbol, w in sample.items())
                    cause = f"conditional_var must not be negative, got {mpmath.nstr(value, 6)} at x = "
                    raise BuildError(rule.name, "derive", f"{cause}{centre + place * width:g} {at}".rstrip(), given)
