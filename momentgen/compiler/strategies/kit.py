"""What several strategies write into their graphs."""

from __future__ import annotations

from momentgen.compiler.ir.graph import Graph

__all__ = ["bounded_exp"]

_BOUND = 80.0  # of exponents


def bounded_exp(g: Graph, scaled: bool, exponent: int) -> int:
    """e^x for |x| <= 80: 0 to the left of it, and what it is at 80 to the right.

    Args:
        g: the graph.
        scaled: whether the power of two is kept apart from the mantissa.
        exponent: the node x.
    """
    low, high = g.const(-_BOUND), g.const(_BOUND)
    below = g.lt(exponent, low)
    held = g.select(below, low, g.select(g.lt(high, exponent), high, exponent))
    value = g.select(below, g.const(0), g.exp_mantissa(held))
    return g.mul(value, g.exp_factor(held, 0, 1)) if scaled else value
