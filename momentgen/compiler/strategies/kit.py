"""What several strategies write into their graphs."""

from __future__ import annotations

from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.measure.ulp import LARGEST

__all__ = ["bounded_exp", "plus", "within_range"]

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


def plus(g: Graph, total: int, term: int) -> int:
    """total + term, as one operation where the term is a product."""
    node = g.nodes[term]
    if node.kind != "mul":
        return g.add(total, term)
    x, y = node.args
    return g.madd(x, y, total)


def within_range(g: Graph, value: int) -> int:
    """At most the largest float32 in size."""
    top, low = g.const(LARGEST), g.const(-LARGEST)
    return g.select(g.lt(top, value), top, g.select(g.lt(value, low), low, value))
