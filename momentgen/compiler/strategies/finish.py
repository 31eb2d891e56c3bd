"""What is written on after a strategy: a domain, f's own values at its jumps, the largest number beyond range.

A goal may be missed only at variances that no network has.  ``Rule(domain={"var": 1e8})`` says up to where goals must
hold; beyond the domain that a rule states, or its strategy, outputs and partials are NaN (:func:`restricted`).

At a jump all forms take the value right of it, which matters where the variance is 0 alone: :func:`with_jumps` has
those of ``Heaviside(x, 0)``, ``sign(x)`` and ``Piecewise((1, x > 0), (0, True))``.

Moments of an f that is no steeper than x stay in range where those of x do.  What is steeper on one side (SELU) leaves
it a little before x does, and there its outputs are infinite: :func:`saturated` holds them.  Partials of such an f are
bounded, and strategies whose partials are not hold them themselves.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import mpmath
import numpy as np
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.ir.graph import Graph, equal, select, sqrt
from momentgen.compiler.ir.kit import clamped
from momentgen.compiler.ir.stable import OUTPUTS, Edge, Stable
from momentgen.compiler.measure.moments import Inside
from momentgen.compiler.strategies.tolerance import Parametric
from momentgen.compiler.toolchain.arrays import F64, Bools
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.rule.symbols import x


@dataclass(frozen=True)
class DomainEdge:
    """The largest |mean| and variance, and the edge that the variant has anyway.

    >>> DomainEdge(var=1e8).words
    'var > 1e+08'
    """

    mean: float = math.inf
    var: float = math.inf
    own: Edge | None = None

    @property
    def words(self) -> str:
        """Where outputs and partials are NaN."""
        own = "" if self.own is None else self.own.words
        said = [f"{name} > {most:g}" for name, most in (("|mean|", self.mean), ("var", self.var)) if most < math.inf]
        return " or ".join([*said, *([own] if own else [])])

    def inside(self, mean: F64, var: F64) -> Bools:
        within = (np.abs(mean) <= self.mean) & (var <= self.var)
        return within if self.own is None else within & self.own.inside(mean, var)


def restricted(stable: Stable, most: Mapping[str, float]) -> Stable:
    """Restrict a variant to a domain: beyond it the graphs give NaN, and errors do not count.

    Args:
        stable: a variant of one random input; its graphs are changed in place.
        most: ``mean`` -> the largest |mean|, ``var`` -> the largest variance; either may be missing.
    """
    if not most:
        return stable
    mean, var = (float(np.float32(most.get(name, math.inf))) for name in ("mean", "var"))
    own = stable.edge
    if isinstance(own, DomainEdge):
        mean, var, own = min(mean, own.mean), min(var, own.var), own.own
    edge = DomainEdge(mean, var, own)
    graphs = (stable.forward, stable.partials, stable.forward64, stable.partials64)
    for graph in {id(graph): graph for graph in graphs}.values():
        _end(graph, edge)
    ends = {"mean": edge.mean, "var": edge.var}
    said = {name: f"{_LEAST[name]} <= {end:g}" for name, end in ends.items() if end < math.inf}
    return replace(
        stable,
        measure=Inside(stable.measure, edge),
        edge=edge,
        box={name: _held(name, span, edge) for name, span in stable.box.items()},
        reach=min(stable.reach, edge.mean),
        domain={**stable.domain, **said},
    )


_LEAST = {"mean": "0 or 2^-126 <= |mean|", "var": "0 or 2^-127 <= var"}


def _held(name: str, span: tuple[float, float], edge: DomainEdge) -> tuple[float, float]:
    """A range of calibration, within the domain."""
    low, high = span
    if name == "log2_var" and edge.var < math.inf:
        return min(low, math.log2(edge.var) - 1), min(high, math.log2(edge.var))
    return (max(low, -edge.mean), min(high, edge.mean)) if name == "mu" else span


def _end(graph: Graph, edge: DomainEdge) -> None:
    """NaN for every output beyond the domain."""
    inside = [abs(graph.input("mean")) <= edge.mean] if edge.mean < math.inf else []
    inside += [graph.input("var") <= edge.var] if edge.var < math.inf else []
    if not inside:
        return
    within = functools.reduce(operator.and_, inside)
    nothing = sqrt(select(within, 0, -1)).named("NaN beyond the domain")
    for name in tuple(graph.outputs):
        found = graph.result(name)
        value = select(within, found, nothing)
        if found.index in graph.suspects:
            graph.suspect(value)
        graph.output(name, value)


def saturated(derivation: Derivation, stable: Stable) -> Stable:
    """``stable``, its outputs numbers for every finite input; untouched where f is nowhere steeper than x."""
    function = Parametric.of(derivation.rule)
    sides = [line for at in stable.settings for line in (function.at(at).left, function.at(at).right)]
    if any(line is not None and abs(line.slope) > 1 for line in sides):
        _hold(stable.forward, LARGEST)
        if stable.forward64 is not stable.forward:
            _hold(stable.forward64, sys.float_info.max)
    return stable


def _hold(graph: Graph, largest: float) -> None:
    """Write on: outputs are at most ``largest`` in size."""
    for name in OUTPUTS:
        value = graph.result(name)
        graph.output(name, select(value > largest, largest, value) if name == "var" else clamped(value, largest))


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
