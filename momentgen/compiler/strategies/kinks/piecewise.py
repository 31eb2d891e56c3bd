"""Activations with kinks or jumps that follow a line on either side: hard*, *shrink, ELU and their like.

Below v* the local form of :mod:`momentgen.compiler.strategies.kinks.piecewise_graph`; above, polynomials of two
variables as for smooth f, of :mod:`momentgen.compiler.strategies.surfaces`.  v* is the largest of a few that both can
serve: the polynomials must be within their share of the tolerance, and the local form, evaluated in float64, within a
fifth of it.

Where branches are polynomials the local form leaves nothing out: in float64 it has a v* of its own there, far larger.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
from flint import arb

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.measure.moments import MEAN, PARTIAL, USUAL, VARIANCE, Limits, MomentsMeasure, measure_for
from momentgen.compiler.strategies.kinks.piecewise_graph import Branches, build_piecewise
from momentgen.compiler.strategies.kinks.two_forms import by_fine_surfaces, by_surfaces
from momentgen.compiler.strategies.kit import NEAR32, NEAR64
from momentgen.compiler.strategies.smooth.polynomials import fine_facts, in_words, surface_facts
from momentgen.compiler.strategies.surfaces.fine_output import ALLOWED, BEYOND
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces, find_fine_surfaces
from momentgen.compiler.strategies.surfaces.surface import Surface
from momentgen.compiler.strategies.surfaces.surface_search import Targets, find_surfaces
from momentgen.compiler.strategies.tolerated import Claim, exact_variant, largest_errors, unmet
from momentgen.errors import BuildError
from momentgen.rule.symbols import x

#: sigma at the switch, in units of half the distance between the outer kinks, or of the length
_SWITCHES = (0.7, 0.6, 0.5, 0.42, 0.35)
_SINGLE = (2.0, 1.6, 1.3, 1.0, 0.8, 0.6, 0.45)
_BENT = 1.4  # lengths, of a sigma that power series about the kinks of an f that bends between them serve
_SWITCHES_FINE = (100.0, 36.0, 9.0, 4.0, 1.0)  # v* of float64 where branches are polynomials, in units squared
_CLOSER = Limits(mean=MEAN / 2, partial=PARTIAL / 2)
_LOCAL = 0.2  # of the tolerance, left to the local form's truncation, and to its rounding in float64
#: tolerances of float32 over those of float64
_FINER = {name: {"mean": MEAN, "var": VARIANCE}.get(name, PARTIAL) / allowed for name, allowed in ALLOWED.items()}
#: (degree of the power series, terms of the Hermite series, order of the expansion in v), cheap first
_LADDER = ((7, 4, 2), (8, 5, 3), (9, 6, 4), (11, 7, 5), (14, 9, 7))
_LADDER_FINE = (18, 11, 9)
_GRAPHS = {"forward": OUTPUTS, "partials": PARTIALS}
_DEGREE = 2  # of a polynomial branch; cubics range so far between their kinks that the fits round too much


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None; it is for f with kinks that are soon a line on either side.

    Raises:
        BuildError: if f cannot be looked at.
    """
    cause = unmet(derivation, kinks=True, exponentially=True)
    if cause is not None:
        return cause
    steep = [p.expr for p in derivation.pieces if p.expr.is_polynomial(x) and sp.degree(p.expr, x) > _DEGREE]
    return f"expected branches of degree at most {_DEGREE}, got {steep[0]}" if steep else None


@dataclass(frozen=True, eq=False)
class _Exact:
    """What does not depend on how close the polynomials are to be: exact values, and the measure of errors."""

    truth: QuadratureTruth
    measure: MomentsMeasure


@lru_cache(maxsize=1)
def _exact(f: Activation) -> _Exact:
    truth = QuadratureTruth(f)
    return _Exact(truth, measure_for(f, truth))


@lru_cache(maxsize=8)
def branches_of(f: Activation, rule_f: sp.Expr, degree: int, terms: int, heat: int) -> Branches:
    """f's branches and the power series of their differences about the kinks."""
    expressions = tuple(sp.expand(p.expr) for p in f.pieces)
    count = len(f.kinks)

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
    polynomial = all(e.is_polynomial(x) for e in expressions)
    highest = max(int(sp.degree(e, x)) if e.has(x) else 0 for e in expressions) if polynomial else 0
    return Branches(
        f.kinks,
        expressions,
        tuple(jumps),
        tuple(tuple(row) for row in squares),
        tuple(closed),
        max(highest, 1) if polynomial else terms,
        highest // 2 + 1 if polynomial else heat,
    )


def _square(series: list[arb]) -> list[arb]:
    return [sum((series[j] * series[n - j] for j in range(n + 1)), arb(0)) for n in range(len(series))]


def _unit(f: Activation) -> float:
    """Half the distance between the outer kinks; of a single one, f's length."""
    return (f.kinks[-1] - f.kinks[0]) / 2 or f.length


def _switches(f: Activation) -> tuple[float, ...]:
    sigmas = [_unit(f) * s for s in (_SWITCHES if len(f.kinks) > 1 else _SINGLE)]
    if _BENT * f.length < sigmas[-1]:  # a sine turns often between its kinks
        sigmas.append(_BENT * f.length)
    return tuple(float(np.float32(s * s)) for s in sigmas)


@dataclass(frozen=True)
class _Fine:
    """What float64 has above its v*."""

    surfaces: FineSurfaces
    switch: float


@lru_cache(maxsize=1)
def _find_fine(f: Activation, branches: Branches, switch: float) -> _Fine | None:
    """The form of the largest v* whose polynomials and local form are accurate; None if there is none.

    Of branches that are no polynomials, at float32's v*.
    """
    switches = [float(np.float32(s * _unit(f) ** 2)) for s in _SWITCHES_FINE]
    if not all(p.expr.is_polynomial(x) for p in f.pieces):
        switches = [switch]
    served = [v for v in switches if _serves_below(v, f, branches)]
    for goals, switch in itertools.product((BEYOND, ALLOWED), served):
        with contextlib.suppress(BuildError):
            surfaces = find_fine_surfaces(f, _exact(f).truth, OUTPUTS, switch, goals=goals)
            if surfaces.error <= 1:
                return _Fine(surfaces, switch)
    return None


def _serves_below(switch: float, f: Activation, branches: Branches) -> bool:
    """Whether the local form is as accurate as float64's."""
    errors = _local_errors(f, branches, switch)
    return all(error * _FINER[name] <= _LOCAL for name, error in errors.items())


@lru_cache(maxsize=64)
def _local_errors(f: Activation, branches: Branches, switch: float) -> Mapping[str, float]:
    """The local form's largest errors just below the switch, over the tolerance."""
    of = _exact(f)
    sigma = math.sqrt(switch)
    spread = np.linspace(-6, 6, 61)
    points = np.unique(np.concatenate([k + sigma * spread for k in f.kinks]))
    mean = np.tile(points, 2).astype(np.float32)
    var = np.repeat([switch * 0.999, switch * 0.5], points.size).astype(np.float32)
    return largest_errors(
        lambda outputs: build_piecewise(branches, NEAR64, outputs, switch)[0], of.truth, of.measure, mean, var
    )


@dataclass(frozen=True)
class _Chosen:
    """What float32 has: v*, the branches below it, by graph the polynomials above, and what ``branches`` leave out."""

    switch: float
    branches: Branches
    surfaces: Mapping[str, Mapping[str, Surface]]
    local: float


def _choose(f: Activation, rule_f: sp.Expr, limits: Limits) -> _Chosen:
    """The largest switch that both forms serve.

    Raises:
        BuildError: if there is none, with how far each form was off.
    """
    if f.lipschitz == 0:
        cause = "expected a tolerance that is nowhere 0, as that of steps is far out"
        raise BuildError(f.name, "strategies", cause, f.pieces)
    truth = _exact(f).truth
    ladder = [branches_of(f, rule_f, *steps) for steps in _LADDER]
    tried = []
    # Long series last: they serve a larger v*, but rounding in them grows with it.
    for switch, steps in [(v, ladder[:-1]) for v in _switches(f)] + [(v, ladder[-1:]) for v in _switches(f)]:
        for branches in steps:
            local = max(_local_errors(f, branches, switch).values())
            if local <= _LOCAL:
                break
        cause = f"the local form leaves out {local:.3g} of what is allowed"
        if local <= _LOCAL:
            try:
                known: Targets = {}
                surfaces = {n: find_surfaces(f, truth, o, known, limits, switch) for n, o in _GRAPHS.items()}
                return _Chosen(switch, branches, surfaces, local)
            except BuildError as error:
                cause = error.cause
        tried.append(f"v* = {switch:.4g}: {cause}")
    raise BuildError(f.name, "strategies", f"no switch serves both forms ({'; '.join(dict.fromkeys(tried))})", f.pieces)


def closer_variants(derivation: Derivation) -> Iterator[Stable]:
    """The same where polynomials that are within the tolerance at the nodes of their fit miss it between them."""
    return stable_variants(derivation, _CLOSER)


def stable_variants(derivation: Derivation, limits: Limits = USUAL) -> Iterator[Stable]:
    """The variant ``exact``; ``limits`` are those of the polynomials.

    Raises:
        BuildError: if the two forms cannot be brought within the tolerance.
    """
    rule = derivation.rule
    f = analyse(rule.name, derivation.pieces, {})
    chosen = _choose(f, rule.f, limits)
    switch = chosen.switch
    more = branches_of(f, rule.f, *_LADDER_FINE)
    fine = _find_fine(f, more, switch)
    graphs: dict[str, Any] = {}
    fits: list[Polynomial] = []
    for name, outputs in _GRAPHS.items():
        far = by_surfaces(f, chosen.surfaces[name])
        graphs[name], made = build_piecewise(chosen.branches, NEAR32, outputs, switch, far)
        fits += made
        above, far = (fine.switch, by_fine_surfaces(f, fine.surfaces)) if fine else (switch, far)
        graphs[f"{name}64"], _ = build_piecewise(more, NEAR64, outputs, above, far)
    in_float64 = f"; in float64 below v = {fine.switch:.4g}, and above {in_words(fine.surfaces)}" if fine else ""
    count = sum(surface.fit.terms for surface in chosen.surfaces["forward"].values())
    wide = max(12.0 * f.length, 3 * (f.kinks[-1] - f.kinks[0]))
    yield exact_variant(
        f,
        graphs,
        _exact(f).truth,
        _exact(f).measure,
        box={"mu": (f.centre - wide, f.centre + wide), "log2_var": (-40.0, 30.0)},
        fits=fits,
        facts={
            "switch": switch,
            "local_form_leaves_out": float(f"{chosen.local:.3g}"),
            "surfaces": {name: surface_facts(found) for name, found in chosen.surfaces.items()},
            "switch_float64": fine.switch if fine else switch,
            **fine_facts(fine.surfaces if fine else None),
        },
        claim=Claim(f, fine.surfaces) if fine else None,
        doc=(
            f"below v = {switch:.4g} the branch at mu and power series about the kinks; above, polynomials in mean/w "
            f"and 1/w, w² = v + c, of {count} terms in all{in_float64}"
        ),
    )
