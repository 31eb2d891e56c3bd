"""f at a jump itself: all forms take the value right of a jump for it, which matters where the variance is 0 alone.

``Heaviside(x, 0)``, ``sign(x)`` and ``Piecewise((1, x > 0), (0, True))`` have another one, and so has their mean at a
mean on the jump and a variance of 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import mpmath
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.ir.graph import equal, select
from momentgen.compiler.ir.stable import Stable
from momentgen.rule.symbols import x

__all__ = ["with_jumps"]


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
    if rule.input != "normal" or rule.bernoulli:
        return
    for left, right in itertools.pairwise(pieces):
        here, limit = (e.subs(x, left.high) for e in (rule.f, right.expr))
        if here.free_symbols | limit.free_symbols | left.high.free_symbols:
            continue
        if not (here.is_finite and limit.is_finite) or sp.simplify(here - limit) == 0:
            continue
        at = float(left.high)
        if math.isfinite(at) and sp.Rational(at) == left.high and float(sp.Float(left.high, 24)) == at:
            with mpmath.workdps(40):
                yield at, mpmath.mpf(sp.N(here, 40))
