r"""Smooth activations that follow a line on either side: sigmoid, tanh, softplus, SiLU, GELU, Mish and their like.

All outputs are polynomials of two variables (:mod:`momentgen.compiler.strategies.surfaces.surface`, for float64
:mod:`momentgen.compiler.strategies.surfaces.fine_surface`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.ir.graph import Graph, madd, select
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable, Truth
from momentgen.compiler.measure.moments import MEAN, USUAL, VARIANCE, Limits, MomentsMeasure, limits_for, measure_for
from momentgen.compiler.strategies.surfaces.fine_output import ALLOWED
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces, find_fine_surfaces
from momentgen.compiler.strategies.surfaces.fine_surface_graph import build_fine_graph
from momentgen.compiler.strategies.surfaces.point import has_point_form
from momentgen.compiler.strategies.surfaces.surface import Surface
from momentgen.compiler.strategies.surfaces.surface_graph import build_surface_graph
from momentgen.compiler.strategies.surfaces.surface_search import find_by_graph
from momentgen.compiler.strategies.tolerance import exact_variant, unmet
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.errors import BuildError
from momentgen.rule import Rule

#: outputs by graph: all; of a draw, whose partials take its mean; of a mean alone
_ALL = {"forward": OUTPUTS, "partials": PARTIALS}
_DRAW = {"forward": ("mean",), "partials": ("mean", "dmean_dmu", "dmean_dvar")}
_MEAN_ALONE = {"forward": ("mean",), "partials": ("dmean_dmu", "dmean_dvar")}
#: f's lengths in that which frames of a mean alone are tried with next: a bump is wider
_WIDER = 3.0
#: the most cells for float64: alone, of a slow f, and beside another grid of cells, whose parts are counted together
_CELLS, _CELLS_SLOW, _CELLS_BESIDE = 28, 100, 4
#: what is allowed to polynomials of so few cells
_BESIDE = {**ALLOWED, "dmean_dvar": 3 * ALLOWED["dmean_dvar"]}
_FINE_ENOUGH = 0.3  # of the variance's tolerance in float32: what polynomials for float64 may be off
_POINT = 2.0**-22  # of f(mu) at v = 0, over max(1, |f(mu)|)


#: why a strategy cannot handle a smooth f that nears a line on either side, or a draw of 0 or 1 with that probability
why_not = partial(unmet, kinks=False, exponentially=False)
why_no_draw = partial(unmet, kinks=False, exponentially=True, draw=True)


# --- strategy --------------------------------------------------------------------
def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``.

    Raises:
        BuildError: if none is within the tolerance.
    """
    rule = derivation.rule
    f = analyse(rule.name, derivation.pieces)
    truth, limits = GeneralTruth(f) if f.algebraic else QuadratureTruth(f), limits_for(rule.accuracy)
    fine = find_fine(f, truth, OUTPUTS, _CELLS_SLOW if f.algebraic else _CELLS)
    surfaces = find_by_graph(f, truth, _ALL, limits)
    terms = sum(surface.fit.terms for surface in surfaces["forward"].values())
    in_float64 = f"{in_words(fine)}, whose derivatives are the partials" if fine else "no others"
    doc = f"polynomials in mean/w and 1/w, w² = v + c, of {terms} terms in all; in float64 {in_float64}"
    yield _stable(rule, f, surfaces, fine, _ALL, doc, truth, BallTruth(f), measure_for(f, truth, limits))


def mean_alone(derivation: Derivation) -> Stable:
    """Only the mean of a smooth f that is nowhere negative, and its partials; what else they have is not promised.

    Raises:
        BuildError: if this strategy cannot handle f, or none is within the tolerance.
    """
    rule = derivation.rule
    if cause := unmet(derivation, kinks=False, exponentially=True):
        raise BuildError(rule.name, "strategies", cause, rule.f)
    f = analyse(rule.name, derivation.pieces)
    truth = QuadratureTruth(f)
    fine = find_fine(f, truth, ("mean",), _CELLS_BESIDE, _BESIDE)
    surfaces = _mean_surfaces(f, truth, _MEAN_ALONE, USUAL)
    doc = f"a polynomial of {surfaces['forward']['mean'].fit.terms} terms"
    made = _stable(rule, f, surfaces, fine, _MEAN_ALONE, doc, truth, BallTruth(f), measure_for(f, truth))
    for graph in (made.forward, made.forward64):
        mean, zero = graph.result("mean"), graph.const(0)
        graph.output("mean", select(mean < zero, zero, mean))
    return made


def draw_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact`` of a draw of 1 with probability f, else 0: the mean of f, and m(1 - m).

    Raises:
        BuildError: if none is within the tolerance.
    """
    rule = derivation.rule
    f = analyse(rule.name, derivation.pieces)
    own, limits = QuadratureTruth(f), limits_for(rule.accuracy)
    truth, rigorous = DrawTruth(own), DrawTruth(BallTruth(f))
    fine = find_fine(f, own, ("mean",), _CELLS)
    measure = measure_for(f, truth, limits, draw=True)
    surfaces = _mean_surfaces(f, own, _DRAW, replace(limits, partial=limits.partial * _narrowest(measure)))
    doc = f"a polynomial of {surfaces['forward']['mean'].fit.terms} terms for the mean m, and m(1 - m)"
    made = _stable(rule, f, surfaces, fine, _DRAW, doc, truth, rigorous, measure)
    for graph in {id(g): g for g in (made.forward, made.partials, made.forward64, made.partials64)}.values():
        add_draw(graph)
    yield replace(made, vanishes=False)


def _narrowest(measure: MomentsMeasure) -> float:
    """The least share that a partial of m(1 - m) has of that of m: both their largest over all means at a variance."""
    shares = (np.subtract(measure.scales[f"dvar_{by}"], measure.scales[f"dmean_{by}"]) for by in ("dmu", "dvar"))
    return min(1.0, *(float(np.exp2(share.min())) for share in shares))


def _stable(
    rule: Rule,
    f: Activation,
    surfaces: Mapping[str, Mapping[str, Surface]],
    fine: FineSurfaces | None,
    outputs: Mapping[str, tuple[str, ...]],
    doc: str,
    truth: Truth,
    rigorous: Truth,
    measure: MomentsMeasure,
) -> Stable:
    """The variant ``exact`` of polynomials for float32 and float64: of each graph ``outputs``."""
    point = rule.f if has_point_form(rule.f) else None
    graphs: dict[str, Any] = {}
    fits: list[Polynomial] = []
    for name, wanted in outputs.items():
        graphs[name], made = build_surface_graph(f, surfaces[name], wanted, point if name == "forward" else None)
        graphs[f"{name}64"] = build_fine_graph(f, fine, wanted) if fine else graphs[name]
        fits += made
    return exact_variant(
        f,
        graphs,
        truth,
        measure,
        slack=MEAN if point is None else _POINT,
        rigorous=rigorous,
        box={"mu": (-12.0 * f.length, 12.0 * f.length), "log2_var": (-40.0, 30.0)},
        fits=fits,
        facts={"surfaces": {name: surface_facts(found) for name, found in surfaces.items()}, **fine_facts(fine)},
        doc=doc,
    )


def _mean_surfaces(
    f: Activation, truth: QuadratureTruth, graphs: Mapping[str, tuple[str, ...]], limits: Limits
) -> dict[str, Mapping[str, Surface]]:
    """By graph, the polynomials of the mean and its partials, in wider frames where those of f's length do not serve.

    Raises:
        BuildError: if none is within the tolerance.
    """
    with contextlib.suppress(BuildError):
        return find_by_graph(f, truth, graphs, limits)
    return find_by_graph(replace(f, length=_WIDER * f.length), truth, graphs, limits)


def find_fine(
    f: Activation,
    truth: QuadratureTruth | GeneralTruth,
    outputs: tuple[str, ...],
    most: int,
    goals: Mapping[str, float] | None = None,
) -> FineSurfaces | None:
    """The polynomials for float64; none of an f that bends too sharply for them, which has those for float32."""
    with contextlib.suppress(BuildError):
        found = find_fine_surfaces(f, truth, outputs, most=most, goals=goals)
        if found.error * found.goals["var"] <= _FINE_ENOUGH * VARIANCE:
            return found
    return None


def in_words(fine: FineSurfaces) -> str:
    """Terms and cells."""
    terms = sum(surface.terms for surface in fine.outputs.values())
    return f"of {terms} terms over {fine.cells.count} cells" if fine.cells.count > 1 else f"of {terms} terms"


def surface_facts(found: Mapping[str, Surface]) -> dict[str, Any]:
    """What it says of the polynomials for float32."""
    return {
        name: {
            "c": surface.frame.c,
            "bend": surface.frame.bend,
            "reach": surface.frame.reach,
            "terms": surface.fit.terms,
            "error_over_allowed": _digits(surface.fit.error),
        }
        for name, surface in found.items()
    }


def fine_facts(fine: FineSurfaces | None) -> dict[str, Any]:
    """What the certificate says of the polynomials for float64; where there are none, those of float32 serve."""
    if fine is None:
        return {"surfaces_float64": {}, "allowed_float64": "as in float32, whose polynomials serve"}
    frame = {"c": fine.frame.c, "bend": fine.frame.bend, "reach": fine.frame.reach, "cells": fine.cells.count}
    missed = _digits(1.01 * fine.error) if fine.error > 1 else 1.0  # by what the goals are exceeded
    of = {n: {"terms": s.terms, "error_over_allowed": _digits(s.error / missed)} for n, s in fine.outputs.items()}
    allowed = {name: missed * goal for name, goal in fine.goals.items()}
    return {"surfaces_float64": {**frame, **of}, "allowed_float64": allowed}


def _digits(value: Any) -> float:
    return float(f"{float(value):.3g}")


# --- draws of 0 or 1 ---------------------------------------------------------------


@dataclass(frozen=True)
class DrawTruth:
    """The exact values of a draw, from those of f."""

    own: Truth

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        values = dict(self.own(mean, var, params))
        m, slope = values["mean"], 1 - 2 * values["mean"]
        of_mean = {"dvar_dmu": slope * values["dmean_dmu"], "dvar_dvar": slope * values["dmean_dvar"]}
        return values | {"var": m * (1 - m)} | of_mean


def add_draw(graph: Graph) -> None:
    """Give a graph with the output ``mean`` the variance of the draw; one with partials of the mean, those of both."""
    g = graph
    if "dmean_dmu" not in g.outputs:
        m = g.result("mean")
        var, zero = m * (1 - m), g.const(0)
        made = {"mean": m, "var": select(var < zero, zero, var)}
    else:
        slope = madd(-2, g.result("mean"), 1)
        made = {name: g.result(name) for name in ("dmean_dmu", "dmean_dvar")}
        made |= {f"dvar_{by}": slope * g.result(f"dmean_{by}") for by in ("dmu", "dvar")}
    g.outputs.clear()
    for name in (name for name in (*OUTPUTS, *PARTIALS) if name in made):
        g.output(name, made[name])
