r"""The general fallback for f with kinks: whatever its branches are, so long as f nears a line on either side.

Below v* panels of Gauss-Legendre nodes (:mod:`momentgen.compiler.strategies.kinks.quadrature_graph`); above,
polynomials of two variables (:mod:`momentgen.compiler.strategies.surfaces`).  v* is the largest of a few at which the
panels leave a fifth of the tolerance.  Slow: some forty nodes, an exponential and f each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.measure.moments import MEAN, VARIANCE, MomentsMeasure, measure_for
from momentgen.compiler.strategies.kinks.increments import with_fitted_branches
from momentgen.compiler.strategies.kinks.quadrature_graph import PanelRule, QuadratureWriter
from momentgen.compiler.strategies.kinks.two_forms import Far, by_fine_surfaces, by_surfaces
from momentgen.compiler.strategies.kit import NEAR32, NEAR64, Precision
from momentgen.compiler.strategies.smooth.polynomials import find_fine, fine_facts, surface_facts
from momentgen.compiler.strategies.surfaces.fine_tails import far_out
from momentgen.compiler.strategies.surfaces.surface import Surface
from momentgen.compiler.strategies.surfaces.surface_search import Targets, find_surfaces
from momentgen.compiler.strategies.tolerated import exact_variant, largest_errors, unmet
from momentgen.errors import BuildError

#: cheap first; the wider for an f that is steep beside the tolerance of the mean
_RULES, _RULE_FINE = (PanelRule(16, 5.2), PanelRule(20, 5.5), PanelRule(26, 6.5)), PanelRule(32, 7.5)
_SWITCHES = (100.0, 50.0, 25.0, 12.0, 6.0, 3.0, 1.5, 0.7, 0.3)  # in units of length²
_GRAPHS = {"forward": OUTPUTS, "partials": PARTIALS}
_LOCAL = 0.2  # of the tolerance, left to the panels
_HELD = 0.05  # of what is allowed: what f is off its lines where it is taken for them
_SIZE = 3.0  # of f over sigma at v*: what the sums of the panels round, beside a mean of 1
_UNITS = 40 * 2.0**-24  # of L²: what the sums of dV/dv = E f'² + Cov(f, f'') round, beside what is allowed to it


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None; it is for continuous f with kinks and a line on either side."""
    cause = unmet(derivation, kinks=True, exponentially=False)
    if cause is not None:
        return cause
    f = analyse(derivation.rule.name, derivation.pieces, {})
    if f.jumps:
        return f"expected f to be continuous, got a jump at x = {f.jumps[0][0]:g}"
    with_fitted_branches(f)
    return None


class _Builder:
    """Graphs of one f."""

    def __init__(self, f: Activation) -> None:
        self.f = f
        beyond = max((abs(kink - f.centre) for kink in f.kinks), default=0.0) + f.length
        self.hold = max(far_out(f, _HELD * MEAN, _HELD * VARIANCE), beyond)
        self.branches = tuple(piece.expr for piece in with_fitted_branches(f).pieces)

    def __call__(
        self, rule: PanelRule, precision: Precision, outputs: tuple[str, ...], switch: float, far: Far | None
    ) -> tuple[Graph, tuple[Polynomial, ...]]:
        graph = Graph(("mean", "var"))
        writer = QuadratureWriter(graph, self.f, self.branches, self.hold, rule, precision, switch, far)
        writer.write(outputs)
        return graph, tuple(writer.fits)

    def local_error(self, switch: float, rule: PanelRule, measure: MomentsMeasure, truth: GeneralTruth) -> float:
        """The largest error of the panels below the switch, over the tolerance."""
        sigma = math.sqrt(switch)
        spread = np.linspace(-9, 9, 73)
        points = np.unique(np.concatenate([k + sigma * spread for k in self.f.kinks]))
        mean = np.tile(points, 3).astype(np.float32)
        var = np.repeat([switch * 0.999, switch * 0.5, switch * 0.05], points.size).astype(np.float32)

        def build(outputs: tuple[str, ...]) -> Graph:
            return self(rule, NEAR64, outputs, switch, None)[0]

        return max(largest_errors(build, truth, measure, mean, var).values())


@dataclass(frozen=True)
class _Chosen:
    """v*, the panels below it, what they leave out of the tolerance, and by graph the polynomials above."""

    switch: float
    panels: PanelRule
    local: float
    surfaces: Mapping[str, Mapping[str, Surface]]


def _choose(f: Activation, build: _Builder, measure: MomentsMeasure, truth: GeneralTruth) -> _Chosen:
    """The fewest nodes that serve at some v*, the largest such v*, and the polynomials above it.

    Raises:
        BuildError: if there are none.
    """
    switches = [float(np.float32(share * f.length**2)) for share in _SWITCHES]
    served = [v for v in switches if _is_rounded_well(f, measure, v)]
    if not served:
        cause = f"expected an f whose sums over panels float32 holds, got slopes up to {f.lipschitz:.3g}"
        raise BuildError(f.name, "strategies", cause, f.pieces)
    tried = []
    for rule, switch in itertools.product(_RULES, served):
        local = build.local_error(switch, rule, measure, truth)
        cause = f"panels leave {local:.3g}"
        if local <= _LOCAL:
            known: Targets = {}
            try:
                surfaces = {name: find_surfaces(f, truth, each, known, start=switch) for name, each in _GRAPHS.items()}
                return _Chosen(switch, rule, local, surfaces)
            except BuildError as error:
                cause = error.cause
        tried.append(f"v* = {switch:.4g}, {rule.nodes} nodes: {cause}")
    cause = f"expected a v* below which panels serve and above which polynomials do, got none ({'; '.join(tried)})"
    raise BuildError(f.name, "strategies", cause, f.pieces)


def _is_rounded_well(f: Activation, measure: MomentsMeasure, switch: float) -> bool:
    """Whether the sums of the panels round within the tolerance up to a v*."""
    zero = np.zeros(1)
    by_v = float(measure.allowed("dvar_dvar", zero, zero, zero + switch)[0])
    return min(f.lipschitz * math.sqrt(switch), f.span / 2) <= _SIZE and by_v >= _UNITS * f.lipschitz**2


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``.

    Raises:
        BuildError: if the two forms cannot be brought within the tolerance.
    """
    rule = derivation.rule
    f = analyse(rule.name, derivation.pieces, {})
    truth = GeneralTruth(f)
    measure = measure_for(f, truth)
    build = _Builder(f)
    chosen = _choose(f, build, measure, truth)
    switch, panels = chosen.switch, chosen.panels
    fine = find_fine(f, truth, OUTPUTS, start=switch)
    graphs: dict[str, Graph] = {}
    fits: list[Polynomial] = []
    for name, outputs in _GRAPHS.items():
        far = by_surfaces(f, chosen.surfaces[name])
        graphs[name], made = build(panels, NEAR32, outputs, switch, far)
        far = by_fine_surfaces(f, fine) if fine else far
        graphs[f"{name}64"], _ = build(_RULE_FINE, NEAR64, outputs, switch, far)
        fits += made
    terms = sum(surface.fit.terms for surface in chosen.surfaces["forward"].values())
    wide = max(40.0 * f.length, 3 * (f.kinks[-1] - f.kinks[0]))
    yield exact_variant(
        f,
        graphs,
        truth,
        measure,
        box={"mu": (f.centre - wide, f.centre + wide), "a": (-20.0, 20.0), "log2_var": (-40.0, 40.0)},
        fits=fits,
        facts={
            "switch": switch,
            "surfaces": {name: surface_facts(found) for name, found in chosen.surfaces.items()},
            **fine_facts(fine),
            "nodes_a_panel": panels.nodes,
            "panels_leave_out": float(f"{chosen.local:.3g}"),
        },
        doc=(
            f"the general fallback: below v = {switch:.4g} panels of {panels.nodes} Gauss-Legendre nodes cut at kinks; "
            f"above, polynomials in mean/w and 1/w, w² = v + c, of {terms} terms in all"
        ),
    )
