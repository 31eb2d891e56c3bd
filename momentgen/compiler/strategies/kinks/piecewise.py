"""Activations with kinks or jumps that near a line on either side: hard*, *shrink, ELU, softsign and their like.

Below v* the local form of :mod:`momentgen.compiler.strategies.kinks.piecewise_graph`; above, polynomials of two
variables as for smooth f, of :mod:`momentgen.compiler.strategies.surfaces`.  v* is the largest of a few that both can
serve: the polynomials must be within their share of the tolerance, and the local form, evaluated in float64, within a
fifth of it.  A branch's nearest pole limits v*: power series about mu work up to a sigma of a tenth of its distance.

Where branches are polynomials the local form leaves nothing out: in float64 it has a v* of its own there, far larger.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from flint import arb

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.ir.graph import Graph, Real, select
from momentgen.compiler.ir.kit import NEAR32, NEAR64
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.measure.moments import MEAN, PARTIAL, VARIANCE, measure_for
from momentgen.compiler.strategies.kinks.branch_series import unknown_function
from momentgen.compiler.strategies.kinks.piecewise_graph import Branches, Far, build_piecewise
from momentgen.compiler.strategies.smooth.polynomials import fine_facts, in_words, surface_facts
from momentgen.compiler.strategies.surfaces.fine_output import ALLOWED, BEYOND, OF_SLOW
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces, far_out, find_fine_surfaces
from momentgen.compiler.strategies.surfaces.fine_surface_graph import FineWriter
from momentgen.compiler.strategies.surfaces.surface import Surface
from momentgen.compiler.strategies.surfaces.surface_graph import SurfaceWriter
from momentgen.compiler.strategies.surfaces.surface_search import find_by_graph
from momentgen.compiler.strategies.tolerance import exact_variant, largest_errors, unmet
from momentgen.errors import BuildError
from momentgen.rule.symbols import x

#: sigma at the switch, in units of half the distance between the outer kinks, or of the length
_SWITCHES = (0.7, 0.6, 0.5, 0.42, 0.35, 1.0, 1.4, 2.0, 2.8)
_SINGLE = (2.0, 1.6, 1.3, 1.0, 0.8, 0.6, 0.45, 0.35, 0.27, 0.2)
_BENT = 1.4  # lengths, of a sigma that power series about the kinks of an f that bends between them serve
_SWITCHES_FINE = (100.0, 36.0, 9.0, 4.0, 1.0)  # v* of float64 where branches are polynomials, in units squared
_LOCAL = 0.2  # of the tolerance, left to the local form's truncation, and to its rounding in float64
#: tolerances of float32
_USUAL = {"mean": MEAN, "var": VARIANCE}
#: of all power series: of the branch at mu and about the kinks; cheap first
_ORDERS, _LONG, _ORDER_FINE = (6, 8, 10, 12, 14), (16, 20, 24), 24
_GRAPHS = {"forward": OUTPUTS, "partials": PARTIALS}
_WHOLE = 5  # the highest degree of branches whose series are whole
_CUT = 16.0  # times v*, where polynomials of an f that nears its lines slowly give place to others
_HELD = 0.1  # of what is allowed: what f is off its lines where it is taken for them


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None; it is for f with kinks that near a line on either side.

    Raises:
        BuildError: if f cannot be looked at.
    """
    cause = unmet(derivation, kinks=True, exponentially=False)
    names = () if cause else filter(None, (unknown_function(piece.expr) for piece in derivation.pieces))
    return cause or next((f"expected branches by functions whose series are known here, got {n}" for n in names), None)


def _branches(f: Activation, rule_f: sp.Expr, order: int, hold: float) -> Branches:
    """f's branches and the power series of their differences about the kinks, whole where they are polynomials.

    ``rule_f`` decides to what branch a kink belongs; beyond ``hold`` from the centre f is taken for its lines.
    """
    expressions = tuple(p.expr for p in f.pieces)
    count = len(f.kinks)
    highest = max(int(sp.degree(e, x)) if e.has(x) and e.is_polynomial(x) else 0 for e in expressions)
    polynomial = highest <= _WHOLE and all(e.is_polynomial(x) for e in expressions)
    degree = max(order, 2 * highest) if polynomial else order

    def series(piece: int, kink: float) -> list[arb]:
        return f.taylor(piece, kink, degree + 1)

    def plain(values: list[arb]) -> tuple[float, ...]:
        size = max(abs(float(w)) for w in values)
        row = [float(w) * math.factorial(n) if abs(float(w)) > 1e-17 * size else 0.0 for n, w in enumerate(values)]
        while len(row) > 1 and row[-1] == 0.0:
            row.pop()
        return tuple(row)

    jumps = []
    squares: list[list[tuple[float, ...]]] = [[] for _ in range(count + 1)]
    closed = []
    for i, kink in enumerate(f.kinks):
        left, right = series(i, kink), series(i + 1, kink)
        jumps.append(plain([b - a for a, b in zip(left, right, strict=True)]))
        for base in range(count + 1):
            own = series(base, kink)
            before, after = ([w - o for w, o in zip(row, own, strict=True)] for row in (left, right))
            squares[base].append(plain([a - b for a, b in zip(_square(after), _square(before), strict=True)]))
        value = float(sp.N(rule_f.subs(x, f.pieces.kinks[i]), 20))
        closed.append(abs(value - float(left[0])) < abs(value - float(right[0])))
    return Branches(
        f.kinks,
        expressions,
        tuple(jumps),
        tuple(tuple(row) for row in squares),
        tuple(closed),
        max(highest, 1) if polynomial else order // 2,
        max(highest, 1) if polynomial else order,
        (f.centre - hold, f.centre + hold),
        (f.left.slope if f.left else 0.0, f.right.slope if f.right else 0.0),
    )


def _square(series: list[arb]) -> list[arb]:
    return [sum((series[j] * series[n - j] for j in range(n + 1)), arb(0)) for n in range(len(series))]


def _unit(f: Activation) -> float:
    """Half the distance between the outer kinks; of a single one, f's length."""
    return (f.kinks[-1] - f.kinks[0]) / 2 or f.length


def _switches(f: Activation) -> tuple[float, ...]:
    sigmas = [_unit(f) * s for s in (_SWITCHES if len(f.kinks) > 1 else _SINGLE)]
    if _BENT * f.length < min(sigmas):  # a sine turns often between its kinks
        sigmas.append(_BENT * f.length)
    return tuple(float(np.float32(s * s)) for s in sigmas)


def _by_surfaces(f: Activation, surfaces: Mapping[str, Surface]) -> Far:
    """What writes polynomials above v*."""

    def write(g: Graph, v: Real, outputs: Sequence[str]) -> tuple[dict[str, Real], Sequence[Polynomial]]:
        writer = SurfaceWriter(g, f, surfaces, None, v)
        values = writer.values(outputs)
        for at in writer.variables.values():  # a mean beside its lines is a polynomial of x
            g.suspect(at.x, at.share, *at.share.args)
        return values, writer.fits

    return write


def _by_cells(below: Far, cut: float, above: Far) -> Far:
    """What writes one form up to a variance, and another from there."""

    def write(g: Graph, v: Real, outputs: Sequence[str]) -> tuple[dict[str, Real], Sequence[Polynomial]]:
        held, is_below = g.const(cut), v < cut
        low, low_fits = below(g, select(is_below, v, held), outputs)
        high, high_fits = above(g, select(is_below, held, v), outputs)
        return {name: select(is_below, low[name], high[name]) for name in outputs}, (*low_fits, *high_fits)

    return write


@dataclass(frozen=True)
class _Chosen:
    """What float32 has: v*, the branches below it, what they leave out, and by graph the polynomials above, in cells.

    An f that nears its lines slowly may need a second cell, which begins at ``_CUT`` v*.
    """

    switch: float
    branches: Branches
    local: float
    cells: tuple[Mapping[str, Mapping[str, Surface]], ...]

    def far(self, f: Activation, graph: str) -> Far:
        """What writes the polynomials."""
        first, *rest = (_by_surfaces(f, cell[graph]) for cell in self.cells)
        return _by_cells(first, self.switch * _CUT, *rest) if rest else first


class _Search:
    """For v*, of float32 and of float64."""

    def __init__(self, f: Activation, rule_f: sp.Expr) -> None:
        if f.lipschitz == 0:
            cause = "expected a tolerance that is nowhere 0, as that of steps is far out"
            raise BuildError(f.name, "strategies", cause, f.pieces)
        self.f, self.rule_f = f, rule_f
        self.truth = GeneralTruth(f) if f.algebraic else QuadratureTruth(f)
        self.measure = measure_for(f, self.truth)
        beyond = max(abs(kink - f.centre) for kink in f.kinks) + f.length
        self.hold = float(np.float32(max(far_out(f, _HELD * ALLOWED["mean"], _HELD * ALLOWED["var"]), beyond)))

    def branches(self, order: int) -> Branches:
        """f's branches by series of an order."""
        return _branches(self.f, self.rule_f, order, self.hold)

    def local_errors(self, branches: Branches, switch: float) -> Mapping[str, float]:
        """The local form's largest errors just below the switch, over the tolerance."""
        sigma = math.sqrt(switch)
        spread = np.linspace(-6, 6, 61)
        points = np.unique(np.concatenate([k + sigma * spread for k in self.f.kinks]))
        mean = np.tile(points, 2).astype(np.float32)
        var = np.repeat([switch * 0.999, switch * 0.5], points.size).astype(np.float32)
        return largest_errors(
            lambda outputs: build_piecewise(branches, NEAR64, outputs, switch)[0], self.truth, self.measure, mean, var
        )

    def chosen(self) -> _Chosen:
        """The largest switch that both forms serve.

        Raises:
            BuildError: if there is none, with how far each form was off.
        """
        f, tried = self.f, []
        ladder, long = ([self.branches(order) for order in orders] for orders in (_ORDERS, _LONG))
        # Long series last: they serve a larger v*, but rounding in them grows with it.
        attempts = [(v, steps) for steps in (ladder, long) for v in _switches(f)]
        for switch, steps in attempts:
            for branches in steps:
                local = max(self.local_errors(branches, switch).values())
                if local <= _LOCAL:
                    break
            tried.append(f"v* = {switch:.4g}: the local form leaves out {local:.3g} of what is allowed")
            if local > _LOCAL:
                continue
            for cuts in ((), (_CUT * switch,)) if f.algebraic else ((),):
                ends = (switch, *cuts, math.inf)
                try:
                    cells = tuple(
                        find_by_graph(f, self.truth, _GRAPHS, start=low, stop=high)
                        for low, high in itertools.pairwise(ends)
                    )
                    return _Chosen(switch, branches, local, cells)
                except BuildError as error:
                    tried[-1] = f"v* = {switch:.4g}: {error.cause}"
        cause = f"no switch serves both forms ({'; '.join(dict.fromkeys(tried))})"
        raise BuildError(f.name, "strategies", cause, f.pieces)

    def fine(self, branches: Branches, switch: float) -> tuple[FineSurfaces, float] | None:
        """For float64 the polynomials of the largest v* that both forms serve, and v*; None if there is none.

        Of branches that are no polynomials, at float32's v*.
        """
        f, own = self.f, OF_SLOW if self.f.algebraic else ALLOWED
        switches = [float(np.float32(s * _unit(f) ** 2)) for s in _SWITCHES_FINE]
        if not all(p.expr.is_polynomial(x) for p in f.pieces):
            switches = [switch]

        def serves(v: float) -> bool:
            errors = self.local_errors(branches, v).items()
            return all(error * _USUAL.get(name, PARTIAL) <= _LOCAL * own[name] for name, error in errors)

        served = [v for v in switches if serves(v)]
        for goals, v in itertools.product((OF_SLOW,) if f.algebraic else (BEYOND, ALLOWED), served):
            with contextlib.suppress(BuildError):
                surfaces = find_fine_surfaces(f, self.truth, OUTPUTS, v, goals=goals)
                if surfaces.error <= 1:
                    return surfaces, v
        return None


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``.

    Raises:
        BuildError: if the two forms cannot be brought within the tolerance.
    """
    rule = derivation.rule
    f = analyse(rule.name, derivation.pieces)
    search = _Search(f, rule.f)
    chosen = search.chosen()
    switch = chosen.switch
    more = search.branches(_ORDER_FINE)
    surfaces, above = search.fine(more, switch) or (None, switch)
    graphs: dict[str, Any] = {}
    fits: list[Polynomial] = []
    for name, outputs in _GRAPHS.items():
        far = chosen.far(f, name)
        graphs[name], made = build_piecewise(chosen.branches, NEAR32, outputs, switch, far)
        fits += made
        if surfaces is not None:
            far = lambda g, v, outputs: (FineWriter(g, f, surfaces, v).values(outputs), ())  # noqa: E731
        graphs[f"{name}64"], _ = build_piecewise(more, NEAR64, outputs, above, far)
    in_float64 = f"; in float64 below v = {above:.4g}, and above {in_words(surfaces)}" if surfaces else ""
    cells = [{name: surface_facts(found) for name, found in cell.items()} for cell in chosen.cells]
    count = sum(surface.fit.terms for cell in chosen.cells for surface in cell["forward"].values())
    wide = max((40.0 if f.algebraic else 12.0) * f.length, 3 * (f.kinks[-1] - f.kinks[0]))
    slow = {"a": (-20.0, 20.0), "log2_var": (-40.0, 40.0)}
    yield exact_variant(
        f,
        graphs,
        search.truth,
        search.measure,
        box={"mu": (f.centre - wide, f.centre + wide), **(slow if f.algebraic else {"log2_var": (-40.0, 30.0)})},
        fits=fits,
        facts={
            "switch": switch,
            "local_form_leaves_out": float(f"{chosen.local:.3g}"),
            **dict(zip(("surfaces", "surfaces_farther"), cells, strict=False)),
            "switch_float64": above,
            **fine_facts(surfaces),
        },
        doc=(
            f"below v = {switch:.4g} the branch at mu and power series about the kinks; above, polynomials in mean/w "
            f"and 1/w, w² = v + c, of {count} terms in all{in_float64}"
        ),
    )
