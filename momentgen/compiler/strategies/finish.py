"""What is written on after a strategy: f's own values at its jumps, and the largest number beyond the dtype's range.

At a jump all forms take the value right of it, which matters where the variance is 0 alone: :func:`with_jumps` has
those of ``Heaviside(x, 0)``, ``sign(x)`` and ``Piecewise((1, x > 0), (0, True))``.

Moments of an f that is no steeper than x stay in range where those of x do.  What is steeper on one side (SELU) leaves
it a little before x does, and there its outputs are infinite: :func:`saturated` holds them.  Partials of such an f are
bounded, and strategies whose partials are not hold them themselves.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator

import mpmath
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.ir.graph import Graph, equal, select
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.measure.ulp import LARGEST
from momentgen.compiler.strategies.settled import Settled
from momentgen.rule.symbols import x


def saturated(derivation: Derivation, stable: Stable) -> Stable:
    """``stable``, its outputs numbers for every finite input; untouched where f is nowhere steeper than x."""
    settled = Settled.of(derivation.rule)
    sides = [line for at in stable.settings for line in (settled.at(at).left, settled.at(at).right)]
    if any(line is not None and abs(line.slope) > 1 for line in sides):
        _hold(stable.forward, LARGEST)
        if stable.forward64 is not stable.forward:
            _hold(stable.forward64, sys.float_info.max)
    return stable


def _hold(graph: Graph, largest: float) -> None:
    """Write on: outputs are at most ``largest`` in size."""
    for name in OUTPUTS:
        value = graph.result(name)
        if name != "var":
            value = select(value < -largest, -largest, value)
        graph.output(name, select(value > largest, largest, value))


def with_jumps(stable: Stable, derivation: Derivation) -> Stable:
    """``stable``, written on: at the jumps its means are those of f, where that is not what it is right of them."""
    for at, value in _own_values(derivation):
        for graph in (stable.forward, stable.forward64):
            mean, var = (graph.input(name) for name in graph.inputs)
            here = equal(var, 0) & equal(mean, at)
            chosen = select(here, value, graph.result("mean"))
            graph.output("mean", chosen.named(f"f({at:g}) = {float(value):g} at the jump itself"))
    return stable


def _own_values(derivation: Derivation) -> Iterator[tuple[float, mpmath.mpf]]:
    """Breakpoints that are float32 numbers, and f there, where that is not its limit from the right."""
    rule, pieces = derivation.rule, derivation.pieces.pieces
    if rule.bernoulli:
        return
    for left, right in itertools.pairwise(pieces):
        here, limit = (e.subs(x, left.high) for e in (rule.f, right.expr))
        if here.free_symbols | left.high.free_symbols:
            continue
        if not here.is_finite or limit.is_finite is False or sp.simplify(here - limit) == 0:
            continue
        at = float(left.high)
        if math.isfinite(at) and sp.Rational(at) == left.high and float(sp.Float(left.high, 24)) == at:
            with mpmath.workdps(40):
                yield at, mpmath.mpf(sp.N(here, 40))
