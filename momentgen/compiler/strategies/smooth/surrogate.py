r"""Smooth activations that follow a line on either side: sigmoid, tanh, softplus, SiLU, GELU, Mish and their like.

All outputs are polynomials of two variables (:mod:`momentgen.compiler.strategies.surfaces.surface`, for float64
:mod:`momentgen.compiler.strategies.surfaces.fine_surface`).

Where f has kinks (:mod:`momentgen.compiler.strategies.kinks.piecewise`) float32 has a sum of atoms above v*, found from
f alone: over numbers of variances and orders from cheap to dear, and over how the variances are spread, the first whose
errors, in value and two derivatives, are within what the tolerance leaves for the fit.  They bound those of the
moments: |E f - E g| <= sup|f - g| and |sqrt Var f - sqrt Var g| <= min(sup|f - g|, sqrt v sup|f' - g'|) (Minkowski,
Poincaré) for every mu and v.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.exact.smoothing import Side
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.fit.atoms import AtomFit, AtomTarget, fit_atoms
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable, Truth
from momentgen.compiler.measure.moments import (
    MEAN,
    PARTIAL,
    USUAL,
    VARIANCE,
    Limits,
    MomentsMeasure,
    limits_for,
    measure_for,
)
from momentgen.compiler.strategies.claim import Claim
from momentgen.compiler.strategies.requirements import unmet
from momentgen.compiler.strategies.smooth.choosing import Chosen, choose_atoms
from momentgen.compiler.strategies.smooth.draw import DrawTruth, add_draw
from momentgen.compiler.strategies.smooth.surrogate_graph import AtomSum
from momentgen.compiler.strategies.surfaces.fine_output import ALLOWED
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces, find_fine_surfaces
from momentgen.compiler.strategies.surfaces.fine_surface_graph import build_fine_graph
from momentgen.compiler.strategies.surfaces.point import has_point_form
from momentgen.compiler.strategies.surfaces.surface import Surface, Targets, find_surfaces
from momentgen.compiler.strategies.surfaces.surface_graph import build_surface_graph
from momentgen.errors import BuildError
from momentgen.rule import Rule

__all__ = [
    "Found",
    "draw_variants",
    "facts_of",
    "find_atoms",
    "fine_facts",
    "found_atoms",
    "in_words",
    "mean_alone",
    "stable_variants",
    "why_no_draw",
    "why_not",
]

F64 = npt.NDArray[np.float64]
_POINTS = 80  # of a fit, on either side of the centre
#: shares of the tolerance left to the fit; the rest is for rounding
_FIT = {"mean": 0.2, "var": 0.15, "partial": 0.1}
#: outputs by graph: all; of a draw, whose partials take its mean; of a mean alone
_ALL = {"forward": OUTPUTS, "partials": PARTIALS}
_DRAW = {"forward": ("mean",), "partials": ("mean", "dmean_dmu", "dmean_dvar")}
_MEAN_ALONE = {"forward": ("mean",), "partials": ("dmean_dmu", "dmean_dvar")}
#: lengths over f's own that frames of a mean alone are tried with: a bump is wider than that
_WIDER = (1.0, 3.0)
_PROMISING = 4.0  # a plain fit over what is allowed
#: what an atom that grows costs over one that does not, where f has kinks: at 2.5 ELU rounds badly, at 8 hardswish does
_GROWTH = 5.0
#: the most cells for float64: alone, and beside another grid of cells, whose parts are counted together
_CELLS, _CELLS_BESIDE = 28, 4
#: what is allowed to polynomials of so few cells
_BESIDE = {**ALLOWED, "dmean_dvar": 3 * ALLOWED["dmean_dvar"]}
_POINT = 2.0**-22  # of f(mu) at v = 0, over max(1, |f(mu)|)
#: the rounding of 1, and how many times the tolerance the sum of all that coefficients lose may be
_UNIT, _ROUNDED = 2.0**-24, 6.0
#: smallest and largest tau + v*, in units of v*, of a function smoothed by v*
_LEAST, _MOST = (0.6, 1.0), (3.0, 8.0, 25.0, 80.0, 250.0)


@dataclass(frozen=True, eq=False)
class Found:
    """Atoms found for an activation, of its mean and mostly of its square, with the fits they come from.

    ``share`` is the largest error of these over what is allowed to them.
    """

    atoms: AtomSum
    mean: AtomFit
    second: tuple[AtomFit, ...]
    share: float


def why_not(derivation: Derivation) -> str | None:
    """Why f is not served; None if it is: smooth, and soon a line on either side.

    Raises:
        BuildError: if f cannot be looked at.
    """
    return unmet(derivation, kinks=False, exponentially=True)


def why_no_draw(derivation: Derivation) -> str | None:
    """Why a draw of 0 or 1 with probability f is not served; None if it is.

    Raises:
        BuildError: if f cannot be looked at.
    """
    return unmet(derivation, kinks=False, exponentially=True, draw=True)


# --- choices ---------------------------------------------------------------------
def _grid(f: Activation, widest: float) -> F64:
    """Points out to where f is a line and the atom of the widest variance has ended as well."""
    far = max(f.reach + 4 * f.length, 7 * math.sqrt(widest)) / f.length
    half = np.sinh(np.linspace(0, math.asinh(2 * far), _POINTS)) / 2
    return f.length * np.concatenate([-half[:0:-1], half])


def _mean_target(f: Activation, side: Side, u: F64, start: float) -> AtomTarget:
    """F̃ smoothed by a variance ``start``."""
    values = side.moments(u, np.full_like(u, start))[0][:3].T
    allowed = (
        _FIT["mean"] * MEAN,
        _FIT["var"] * VARIANCE / 2 * f.lipschitz,
        _FIT["partial"] * PARTIAL * (f.lipschitz / math.sqrt(start)),
    )
    if side.far.slope == 0:  # atoms that outgrow f would have to cancel at large sigma
        low = 0 if side.far.offset else 1
        return AtomTarget(u, values, allowed, low, (side.far.offset,) if low == 0 else ())
    return AtomTarget(u, values, allowed, -1, (side.far.slope, side.far.offset))


def _second_target(f: Activation, side: Side, u: F64, start: float) -> AtomTarget:
    values = side.moments(u, np.full_like(u, start))[1][:3].T
    scale = min(f.lipschitz**2 * start, (f.span / 2) ** 2) + sum(height**2 for _, height in f.jumps) / 4
    root = math.sqrt(start)
    allowed = (
        _FIT["var"] * VARIANCE * scale,
        _FIT["partial"] * PARTIAL * scale / root,
        2 * _FIT["partial"] * PARTIAL * scale / start,
    )
    a, b = side.far.slope, side.far.offset
    if a == 0:
        return AtomTarget(u, values, allowed, 0 if b else 1, (b * b,) if b else ())
    return AtomTarget(u, values, allowed, -2, (2 * a * a, 2 * a * b, b * b + a * a * start))


def find_atoms(f: Activation, choices: tuple[tuple[int, int], ...], switch: float) -> Found:
    """The cheapest atoms of ``choices`` whose fit is within the tolerance's share; the best where none is.

    Args:
        f: what to fit.
        choices: (number of variances, highest order), cheap first.
        switch: v*, from where on they are used.
    """
    widest = max(tau for count, _ in choices for taus in _spreads(count, switch) for tau in taus)
    u = _grid(f, widest + switch)
    sides = Side(f, 1), Side(f, -1)
    seconds = [_second_target(f, side, u, switch) for side in sides]
    even = np.allclose(seconds[0].values, seconds[1].values, rtol=0, atol=1e-3 * seconds[0].allowed[0])
    targets = [_mean_target(f, sides[0], u, switch), *(seconds[:1] if even else seconds)]

    def fit(taus: tuple[float, ...], high: int, rounds: int) -> list[AtomFit]:
        return [fit_atoms(target, tuple(tau + switch for tau in taus), high, rounds, _GROWTH) for target in targets]

    chosen = choose_atoms(choices, lambda count: _spreads(count, switch), fit, promising=_PROMISING)
    return found_atoms(f, chosen, switch, 0)


def _spreads(count: int, start: float) -> list[tuple[float, ...]]:
    """Sets of variances to try, float32 numbers."""
    if count == 1:
        tables = [np.zeros(1)]
    else:
        tables = [start * (np.geomspace(low, top, count) - 1.0) for low in _LEAST for top in _MOST]
    return [tuple(float(np.float32(tau)) for tau in taus) for taus in tables]


def found_atoms(f: Activation, chosen: Chosen, switch: float, terms: int) -> Found:
    """The atoms chosen, with what else their form is made of."""
    if f.left is None or f.right is None:
        raise BuildError(f.name, "stabilise", "expected f to follow a line on either side", f.pieces)
    if not chosen.taus:
        raise BuildError(
            f.name, "stabilise", "expected a tolerance that is nowhere 0, as that of steps is far out", f.pieces
        )
    mean, second = chosen.fits[0], (chosen.fits[1], chosen.fits[-1])
    tables = [_without_dust(fit.coefficients) for fit in (mean, *second)]
    lows = mean.low, second[0].low
    atoms = AtomSum(f.centre, f.left, f.right, chosen.taus, tables[0], (tables[1], tables[2]), lows, switch, terms)
    return Found(atoms, mean, second, chosen.share)


def _without_dust(table: F64) -> F64:
    """Coefficients that symmetry makes zero, exactly so."""
    cleaned = table.copy()
    for column in range(table.shape[1]):
        if np.abs(table[:, column]).max() < 1e-13:
            cleaned[:, column] = 0.0
    return cleaned


# --- strategy --------------------------------------------------------------------
def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``.

    Raises:
        BuildError: if no surrogate is within the tolerance.
    """
    rule = derivation.rule
    f = analyse(rule.name, derivation.pieces, {})
    truth, limits = QuadratureTruth(f), limits_for(rule.accuracy)
    fine = _fine_surfaces(f, truth, OUTPUTS, _CELLS)
    surfaces: dict[str, Mapping[str, Surface]] = {}
    known: Targets = {}
    for name, outputs in _ALL.items():
        surfaces[name] = find_surfaces(f, truth, outputs, known, limits)
        check_rounding(f, surfaces[name])
    terms = sum(surface.fit.terms for surface in surfaces["forward"].values())
    in_float64 = f"{in_words(fine)}, whose derivatives are the partials" if fine else "no others"
    doc = f"polynomials in mean/w and 1/w, w² = v + c, of {terms} terms in all; in float64 {in_float64}"
    made = _stable(rule, f, surfaces, fine, _ALL, doc, truth, BallTruth(f), measure_for(f, truth, limits))
    yield replace(made, claim=Claim(f, fine) if fine else None)


def mean_alone(derivation: Derivation) -> Stable:
    """Only the mean of a smooth f that is nowhere negative, and its partials; what else they have is not promised.

    Raises:
        BuildError: if f is not served, or no surrogate is within the tolerance.
    """
    rule = derivation.rule
    if cause := why_not(derivation):
        raise BuildError(rule.name, "stabilise", cause, rule.f)
    f = analyse(rule.name, derivation.pieces, {})
    truth = QuadratureTruth(f)
    fine = _fine_surfaces(f, truth, ("mean",), _CELLS_BESIDE, _BESIDE)
    surfaces = _mean_surfaces(f, truth, _MEAN_ALONE, USUAL)
    doc = f"a polynomial of {surfaces['forward']['mean'].fit.terms} terms"
    made = _stable(rule, f, surfaces, fine, _MEAN_ALONE, doc, truth, BallTruth(f), measure_for(f, truth))
    for graph in (made.forward, made.forward64):
        mean, zero = graph.outputs["mean"], graph.const(0)
        graph.output("mean", graph.select(graph.lt(mean, zero), zero, mean))
    return made


def draw_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact`` of a draw of 1 with probability f, else 0: the mean of f, and m(1 - m).

    Raises:
        BuildError: if no surrogate is within the tolerance.
    """
    rule = derivation.rule
    f = analyse(rule.name, derivation.pieces, {})
    own, limits = QuadratureTruth(f), limits_for(rule.accuracy)
    truth, rigorous = DrawTruth(own), DrawTruth(BallTruth(f))
    fine = _fine_surfaces(f, own, ("mean",), _CELLS)
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
    return Stable(
        variant="exact",
        truth=truth,
        measure=measure,
        goal=1.0,
        aim=0.9,
        unit="tolerance",
        slack=MEAN if point is None else _POINT,
        reach=f.evaluable,
        rigorous=rigorous,
        box={"mu": (-12.0 * f.length, 12.0 * f.length), "log2_var": (-40.0, 30.0)},
        fits=tuple(dict.fromkeys(fits)),
        facts={
            **_facts(f),
            "surfaces": {name: _surface_facts(found) for name, found in surfaces.items()},
            **fine_facts(fine),
        },
        doc=doc,
        **graphs,
    )


def _mean_surfaces(
    f: Activation, truth: QuadratureTruth, graphs: Mapping[str, tuple[str, ...]], limits: Limits
) -> dict[str, Mapping[str, Surface]]:
    """By graph, the polynomials of the mean and its partials, in wider frames where those of f's length do not serve.

    Raises:
        BuildError: if none is within the tolerance.
    """
    known: Targets = {}

    def found(width: float) -> dict[str, Mapping[str, Surface]]:
        wide = replace(f, length=width * f.length)
        surfaces: dict[str, Mapping[str, Surface]] = {}
        for name, outputs in graphs.items():
            surfaces[name] = find_surfaces(wide, truth, outputs, known, limits)
            check_rounding(f, surfaces[name])
        return surfaces

    *narrow, last = _WIDER
    for width in narrow:
        with contextlib.suppress(BuildError):
            return found(width)
    return found(last)


def _fine_surfaces(
    f: Activation,
    truth: QuadratureTruth,
    outputs: tuple[str, ...],
    most: int,
    goals: Mapping[str, float] | None = None,
) -> FineSurfaces | None:
    """The polynomials for float64; none of an f that bends too sharply for them, which has those for float32."""
    try:
        return find_fine_surfaces(f, truth, outputs, most=most, goals=goals)
    except BuildError:
        return None


def in_words(fine: FineSurfaces) -> str:
    """Terms and cells."""
    terms = sum(surface.terms for surface in fine.outputs.values())
    return f"of {terms} terms over {fine.cells.count} cells" if fine.cells.count > 1 else f"of {terms} terms"


def check_rounding(f: Activation, surfaces: Mapping[str, Surface]) -> None:
    """Whether float32 holds the mean's polynomial; all others are measured more generously.

    Raises:
        BuildError: if its coefficients are so large that rounding alone takes many times the tolerance.
    """
    size = surfaces["mean"].fit.size if "mean" in surfaces else 0.0
    if size * _UNIT > _ROUNDED * MEAN:
        cause = f"the mean's polynomial has coefficients of {size:.3g} in all, which float32 does not hold to {MEAN:g}"
        raise BuildError(f.name, "stabilise", cause, f.pieces)


def facts_of(f: Activation, found: Found, fine: Found | None = None) -> dict[str, Any]:
    """What the certificate says of f and its surrogate, and of that for float64 where that is another."""
    facts = {**_facts(f), "switch": found.atoms.switch, "atoms": _atom_facts(found)}
    return facts | ({"atoms_float64": _atom_facts(fine)} if fine else {})


def _facts(f: Activation) -> dict[str, Any]:
    return {"lipschitz": f.lipschitz, "range": f.span, "length": f.length, "centre": f.centre}


def _surface_facts(found: Mapping[str, Surface]) -> dict[str, Any]:
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
    """What the certificate says of the polynomials for float64, if there are any."""
    if fine is None:
        return {"surfaces_float64": {}, "allowed_float64": dict(ALLOWED)}
    frame = {"c": fine.frame.c, "bend": fine.frame.bend, "reach": fine.frame.reach, "cells": fine.cells.count}
    of = {n: {"terms": s.terms, "error_over_allowed": _digits(s.error)} for n, s in fine.outputs.items()}
    return {"surfaces_float64": {**frame, **of}, "allowed_float64": dict(fine.goals)}


def _atom_facts(found: Found) -> dict[str, Any]:
    return {
        "variances": list(found.atoms.taus),
        "mean": found.mean.coefficients.tolist(),
        "sup_error_of_derivatives": [_digits(e) for e in found.mean.errors],
        "second": [fit.coefficients.tolist() for fit in dict.fromkeys(found.second)],
        "second_sup_error_of_derivatives": [[_digits(e) for e in fit.errors] for fit in found.second],
    }


def _digits(value: Any) -> float:
    return float(f"{float(value):.3g}")
