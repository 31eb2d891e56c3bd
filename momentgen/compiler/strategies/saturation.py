"""Outputs of a steep f: beyond the range of the dtype its largest number, of the right sign.

Moments of an f that is no steeper than x stay in range where those of x do.  What is steeper on one side (SELU) leaves
it a little before x does, and there its outputs are infinite: :func:`saturated` holds them.  Partials of such an f are
bounded, and strategies whose partials are not hold them themselves.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from momentgen.compiler.derive import Derivation
from momentgen.compiler.ir.graph import Graph, select
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.measure.ulp import LARGEST
from momentgen.compiler.strategies.settled import Settled

__all__ = ["saturated"]


def saturated(derivation: Derivation, stable: Stable) -> Stable:
    """A variant whose outputs are numbers for every finite input; itself where f is nowhere steeper than x."""
    settled = Settled.of(derivation.rule)
    sides = [line for at in stable.settings for line in (settled.at(at).left, settled.at(at).right)]
    if all(line is None or abs(line.slope) <= 1 for line in sides):
        return stable
    forward, forward64 = _held(stable.forward, LARGEST), _held(stable.forward64, sys.float_info.max)
    return replace(stable, forward=forward, forward64=forward64)


def _held(graph: Graph, largest: float) -> Graph:
    """The graph, its outputs at most ``largest`` in size."""
    for name in OUTPUTS:
        value = graph.result(name)
        if name != "var":
            value = select(value < -largest, -largest, value)
        graph.output(name, select(value > largest, largest, value))
    return graph
