"""What the forms made of atoms, panels and polynomials of two variables ask of a rule, and which of it is not met."""

from __future__ import annotations

from momentgen.compiler.derive import Derivation
from momentgen.compiler.function.activation import analyse

__all__ = ["unmet"]


def unmet(derivation: Derivation, *, kinks: bool, exponentially: bool, draw: bool = False) -> str | None:
    """What is expected of f and not met; None if all is: one normal input, no parameters, a line on either side.

    Args:
        derivation: the rule, derived.
        kinks: whether f is to have kinks or jumps, or to be smooth.
        exponentially: whether it is to near its lines faster than by a power of x.
        draw: whether the output is to be a draw of 0 or 1 with probability f, or f itself.

    Raises:
        BuildError: if f cannot be looked at.
    """
    rule = derivation.rule
    if rule.input != "normal":
        return f"expected a normal input, got {rule.input}"
    if rule.bernoulli != draw:
        return f"expected {'a draw of 0 or 1, got f itself' if draw else 'f itself, got a draw of 0 or 1'}"
    if rule.parameters:
        return "expected no parameters, got " + ", ".join(p.name for p in rule.parameters)
    if kinks and not derivation.kinks:
        return "expected kinks"
    if not kinks and derivation.kinks:
        return f"expected a smooth f, got kinks at {', '.join(map(str, derivation.kinks))}"
    f = analyse(rule.name, derivation.pieces, {})
    for line, side in ((f.left, "-oo"), (f.right, "oo")):
        if line is None:
            return f"expected f to near a line for x -> {side}, which it does not"
    if f.algebraic and exponentially:
        return "expected f to near a line on either side exponentially, not by a power of x"
    return None
