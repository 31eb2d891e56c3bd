"""A domain that a rule states, or its strategy: beyond it outputs and partials are NaN.

A goal may be missed only at variances that no network has.  ``Rule(domain={"var": 1e8})`` says up to where goals must
hold.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from momentgen.compiler.ir.graph import Graph, select, sqrt
from momentgen.compiler.ir.stable import Edge, Stable
from momentgen.compiler.measure.moments import Inside
from momentgen.compiler.toolchain.arrays import F64, Bools


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
        """Whether they are certainly numbers."""
        within = (np.abs(mean) <= self.mean) & (var <= self.var)
        return within if self.own is None else within & self.own.inside(mean, var)


def restricted(stable: Stable, most: Mapping[str, float]) -> Stable:
    """The variant on a domain alone: its graphs give NaN beyond, and nothing is asked of it there.

    Args:
        stable: a variant of one random input; its graphs are changed in place.
        most: ``mean`` -> the largest |mean|, ``var`` -> the largest variance; either may be missing.
    """
    mean, var = (float(np.float32(most.get(name, math.inf))) for name in ("mean", "var"))
    own = stable.edge
    if isinstance(own, DomainEdge):
        mean, var, own = min(mean, own.mean), min(var, own.var), own.own
    edge = DomainEdge(mean, var, own)
    graphs = (stable.forward, stable.partials, stable.forward64, stable.partials64)
    for graph in {id(graph): graph for graph in graphs}.values():
        _end(graph, edge)
    said = {name: f"{_LEAST[name]} <= {edge_of:g}" for name, edge_of in _limits(edge).items()}
    return replace(
        stable,
        measure=Inside(stable.measure, edge),
        edge=edge,
        box={name: _held(name, span, edge) for name, span in stable.box.items()},
        reach=min(stable.reach, edge.mean),
        domain={**stable.domain, **said},
    )


_LEAST = {"mean": "0 or 2^-126 <= |mean|", "var": "0 or 2^-127 <= var"}


def _limits(edge: DomainEdge) -> dict[str, float]:
    return {name: most for name, most in (("mean", edge.mean), ("var", edge.var)) if most < math.inf}


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
