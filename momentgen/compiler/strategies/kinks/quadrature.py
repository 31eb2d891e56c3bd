r"""The general fallback for f with kinks: whatever its branches are, so long as f nears a line on either side.

Below v* panels of Gauss-Legendre nodes (:mod:`momentgen.compiler.strategies.kinks.quadrature_graph`); above, f smoothed
by v* is fitted by a ladder of atoms (:mod:`momentgen.compiler.strategies.smooth.ladder`).  v* is the largest of a few
at which the panels leave a fifth of the tolerance.  Slow: some forty nodes, an exponential and f each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.smoothing import Side
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.measure.moments import MomentsMeasure, measure_for
from momentgen.compiler.strategies.kinks.increments import with_fitted_branches
from momentgen.compiler.strategies.kinks.quadrature_graph import PanelRule, build_quadrature
from momentgen.compiler.strategies.kit import NEAR32, NEAR64, Precision
from momentgen.compiler.strategies.smooth.algebraic import find_ladder
from momentgen.compiler.strategies.smooth.atom_graph import AtomSum
from momentgen.compiler.strategies.smooth.choosing import atom_facts
from momentgen.compiler.strategies.smooth.ladder import outskirts
from momentgen.compiler.strategies.tolerated import exact_variant, four_graphs, largest_errors, unmet
from momentgen.errors import BuildError

_CHOICES = ((5, 4), (6, 5), (8, 5), (10, 5), (12, 5), (12, 6), (14, 6), (16, 6), (18, 6), (20, 6), (22, 6))
_FINE = ((20, 6),)
#: cheap first; the wider for an f that is steep beside the tolerance of the mean
_RULES, _RULE_FINE = (PanelRule(20, 5.5), PanelRule(26, 6.5)), PanelRule(32, 7.5)
_SWITCHES = (100.0, 50.0, 25.0, 12.0, 6.0, 3.0, 1.5, 0.7, 0.3)  # in units of length²
_LOCAL = 0.2  # of the tolerance, left to the panels
_HOPELESS = 3.0
#: of the goal, at calibration; atoms that grow cancel worst where the mean is near 0, which few points see
_AIM, _AIM_GROWING = 0.9, 0.7
_SIZE = 1.5  # of f over sigma at v*: what the sums of the panels round, beside a mean of 1
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
        self.hold = 16 * max(outskirts(f, Side(f, sign)) for sign in (1, -1))
        slopes = []
        for i, kink in enumerate(f.kinks):
            before, after = (float(f.taylor(j, kink, 2)[1]) for j in (i, i + 1))
            slopes.append(after - before)
        self.slopes = tuple(slopes)
        self.branches = tuple(piece.expr for piece in with_fitted_branches(f).pieces)

    def __call__(self, atoms: AtomSum, rule: PanelRule, precision: Precision, outputs: tuple[str, ...]) -> Any:
        f = self.f
        return build_quadrature(atoms, f.kinks, self.branches, self.slopes, self.hold, rule, precision, outputs)

    def local_error(self, switch: float, rule: PanelRule, measure: MomentsMeasure, truth: GeneralTruth) -> float:
        """The largest error of the panels below the switch, over the tolerance."""
        f, none = self.f, np.zeros((1, 1))
        if f.left is None or f.right is None:
            raise BuildError(f.name, "strategies", "expected f to near a line on either side", f.pieces)
        atoms = AtomSum(f.centre, f.left, f.right, (0.0,), none, (none, none), (1, 1), switch, 0)
        sigma = math.sqrt(switch)
        spread = np.linspace(-9, 9, 73)
        points = np.unique(np.concatenate([k + sigma * spread for k in f.kinks]))
        mean = np.tile(points, 3).astype(np.float32)
        var = np.repeat([switch * 0.999, switch * 0.5, switch * 0.05], points.size).astype(np.float32)

        def build(outputs: tuple[str, ...]) -> Graph:
            graph: Graph = self(atoms, rule, NEAR64, outputs)[0]
            return graph

        return max(largest_errors(build, truth, measure, mean, var).values())


def _choose(
    f: Activation, build: _Builder, measure: MomentsMeasure, truth: GeneralTruth
) -> tuple[float, PanelRule, float]:
    """v*, the panels, and what they leave out of the tolerance.

    Raises:
        BuildError: if no panels serve any v*.
    """
    tried = []
    for share in _SWITCHES:
        switch = float(np.float32(share * f.length**2))
        if min(f.lipschitz * math.sqrt(switch), f.span / 2) > _SIZE:
            continue
        zero = np.zeros(1)
        if measure.allowed("dvar_dvar", zero, zero, zero + switch)[0] < _UNITS * f.lipschitz**2:
            continue
        for rule in _RULES:
            local = build.local_error(switch, rule, measure, truth)
            if local <= _LOCAL:
                return switch, rule, local
            tried.append(f"v* = {switch:.4g}, {rule.nodes} nodes: {local:.3g}")
    raise BuildError(f.name, "strategies", f"panels miss {_LOCAL} of the tolerance ({'; '.join(tried)})", f.pieces)


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
    switch, panels, local = _choose(f, build, measure, truth)
    found = find_ladder(f, truth, _CHOICES, switch, 0, switch)
    if found.share > _HOPELESS:
        cause = f"the best multi-scale expansion misses what is allowed to it {found.share:.3g}-fold"
        raise BuildError(rule.name, "strategies", cause, rule.f)
    fine = find_ladder(f, truth, _FINE, switch, 0, switch)
    of = {False: (found.atoms, panels, NEAR32), True: (fine.atoms, _RULE_FINE, NEAR64)}
    graphs, fits = four_graphs(lambda outputs, float64: build(*of[float64], outputs))
    wide = max(40.0 * f.length, 3 * (f.kinks[-1] - f.kinks[0]))
    yield exact_variant(
        f,
        graphs,
        truth,
        measure,
        aim=_AIM if found.atoms.bounded else _AIM_GROWING,
        box={"mu": (f.centre - wide, f.centre + wide), "a": (-20.0, 20.0), "log2_var": (-40.0, 40.0)},
        fits=fits,
        facts={
            **atom_facts(found, fine),
            "nodes_a_panel": panels.nodes,
            "panels_leave_out": float(f"{local:.3g}"),
        },
        doc=(
            f"the general fallback: below v = {switch:.4g} panels of {panels.nodes} Gauss-Legendre nodes cut at kinks; "
            f"above, a multi-scale expansion, atoms of {len(found.atoms.taus)} variances, "
            "fitted to f smoothed by that variance"
        ),
    )
