"""The strategy for any f with a second moment: sums over nodes, the last in the list.

Cut at kinks and jumps, graded (:mod:`.sums`) about features that are found from f, on the widest
domain that some count of nodes reaches (:mod:`.search`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from momentgen.compiler.derive import Derivation
from momentgen.compiler.function.branches import Branches
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable, settings_of
from momentgen.compiler.measure.moments import MEAN
from momentgen.compiler.strategies.finish import restricted
from momentgen.compiler.strategies.quadrature.search import Search
from momentgen.compiler.strategies.quadrature.sums import Moments
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.errors import BuildError

_SETTINGS = 5  # that features are looked for at, and that it is measured at


def why_not(derivation: Derivation) -> str | None:
    """Why the strategy cannot handle f, or None."""
    rule = derivation.rule
    if rule.conditional_var is not None:
        return "expected an output that f(x) decides, got a conditional variance"
    return "expected f itself, got a draw of 0 or 1" if rule.bernoulli else None


def stable_variants(derivation: Derivation) -> Iterable[Stable]:
    """The variant.

    Raises:
        BuildError: if f has functions that the compiler does not know, or no count of nodes is enough.
    """
    rule = derivation.rule
    f = Branches(rule.name, derivation.pieces, [p.symbol for p in rule.parameters])
    settings = [f.at(setting) for setting in settings_of(rule)[:_SETTINGS]]
    search = Search(f, settings, rule.domain)
    if (chosen := search.chosen()) is None:
        raise BuildError(rule.name, "strategies", search.missed())
    nodes, domain = chosen
    finer = search.finer(domain)
    moments, moments64 = Moments(f, nodes), Moments(f, finer)
    stable = Stable(
        variant="exact",
        forward=moments.graph(OUTPUTS),
        partials=moments.graph(PARTIALS),
        forward64=moments64.graph(OUTPUTS),
        partials64=moments64.graph(PARTIALS),
        truth=_none,
        measure=_no_measure,
        goal=1.0,
        aim=1.0,
        unit="tolerance",
        box={},
        settings=tuple(setting.setting for setting in settings),
        slack=MEAN,
        facts={
            "nodes": {"float32": nodes.count, "float64": finer.count},
            "cuts": len(nodes.features) + len(nodes.kinks),
        },
        by_sums=tuple(settings),
        doc="sums over nodes in float64: graded about kinks and bends of f, differences from f(mu); float32 is rounded",
    )
    return [restricted(stable, {"mean": domain.mean, "var": domain.var})]


def _none(mean: F32, var: F32, params: object) -> dict[str, F64]:
    return {name: np.full(mean.shape, math.nan) for name in (*OUTPUTS, *PARTIALS)}


def _no_measure(output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
    return np.full(mean.shape, math.inf)
