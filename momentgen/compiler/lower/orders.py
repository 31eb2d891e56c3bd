"""Which term of a sum is the larger, read off measured magnitudes: a shorter exact sum serves there.

Knuth's sum of two floats with its error takes six operations, Dekker's three, but Dekker's wants the larger term first.
Between ``ablate``, which measures, and :mod:`momentgen.compiler.lower.words`, which writes the sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import mpmath
import numpy as np

from momentgen.compiler.ir.graph import Graph


def orders_of(graph: Graph, values: Mapping[int, np.ndarray]) -> dict[int, int]:
    """For each sum, which operand is never the smaller: 1 the first, 2 the second, 0 neither.

    The first operand of ``madd(a, b, c)`` is the product, the second is ``c``.
    ``values`` are magnitudes measured over calibration points.
    """
    orders: dict[int, int] = {}
    for index in graph.live():
        node = graph.nodes[index]
        if node.kind not in ("add", "sub", "madd"):
            continue
        with np.errstate(all="ignore"):
            if node.kind == "madd":
                first = np.abs(values[node.args[0]] * values[node.args[1]])
                second = np.abs(values[node.args[2]])
            else:
                first, second = (np.abs(values[a]) for a in node.args)
            first, second = np.broadcast_arrays(first, second)
            usable = np.isfinite(first) & np.isfinite(second)
            terms = ([], [node.args[2]]) if node.kind == "madd" else ([node.args[0]], [node.args[1]])
        orders[index] = next(
            (
                order
                for order, leading, large, small in ((1, terms[0], first, second), (2, terms[1], second, first))
                if np.all((large >= small) | ~usable) or any(_is_anchor(graph, i, small[usable]) for i in leading)
            ),
            0,
        )
    return orders


def _is_anchor(graph: Graph, index: int, other: np.ndarray) -> bool:
    """Whether a node is 0 or a power of two that Dekker's sum may begin with, however it compares to the other term.

    With p = 2^k and |x| <= 2^(k+23), p is a multiple of the last place of fl(p + x), so that fl(p + x) - p is exact.
    """
    node = graph.nodes[index]
    if node.kind == "select":
        return all(_is_anchor(graph, a, other) for a in node.args[1:])
    if node.kind != "const":
        return False
    mantissa, exponent = mpmath.frexp(node.payload)
    return node.payload == 0 or (abs(mantissa) == 0.5 and bool(np.all(other <= 2.0 ** (int(exponent) - 1 + 22))))
