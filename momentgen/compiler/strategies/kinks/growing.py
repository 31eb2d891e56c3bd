r"""Functions with one kink whose branches are sums of x^n e^(b x), x^n sin(b x), x^n cos(b x), of any growth.

As max(e^x - 1, 0), x⁺ sin(x), xIELU.  Below a variance v* the local form, above it the closed form, both of
:mod:`momentgen.compiler.strategies.kinks.growing_graph`.  v* is a share of 1/b², b the largest rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.function.activation import analyse
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import Stable, Truth
from momentgen.compiler.measure.moments import MEAN, Inside
from momentgen.compiler.strategies.elementary.entire_graph import TURNED, Edge
from momentgen.compiler.strategies.elementary.exponentials import Moment, exponential_terms
from momentgen.compiler.strategies.kinks.growing_graph import build_growing
from momentgen.compiler.strategies.kinks.growing_truth import GrowingMeasure, Sides
from momentgen.compiler.strategies.kinks.piecewise import branches_of
from momentgen.compiler.strategies.kinks.piecewise_graph import Branches
from momentgen.compiler.strategies.kit import NEAR32, NEAR64
from momentgen.compiler.strategies.tolerated import four_graphs, largest_errors, unmet_by_input
from momentgen.errors import BuildError
from momentgen.rule.symbols import x

_HIGHEST = 3  # power of x in a branch
_SHARE = 1 / 8  # of 1/b²: v*
_LOCAL = 0.2  # of the tolerance, left to the local form's truncation
#: (degree of the power series, terms of the Hermite series), cheap first
_LADDER = ((5, 3), (6, 4), (7, 5), (8, 6), (10, 7), (12, 9))
_LADDER_FINE = (18, 12)


def sides_of(derivation: Derivation) -> Sides | None:
    """f by its terms on either side of its kink; None if it is not made of such, or its kink is irrational."""
    pieces, kinks = derivation.pieces.pieces, derivation.kinks
    if len(pieces) != 2 or not kinks[0].is_Rational:
        return None
    moved = [exponential_terms(sp.expand(piece.expr.subs(x, x + kinks[0]))) for piece in pieces]
    left, right = moved
    return None if left is None or right is None else Sides(kinks[0], left, right)


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None."""
    if cause := unmet_by_input(derivation.rule):
        return cause
    sides = sides_of(derivation)
    if sides is None:
        return "expected one kink, at a rational number, and sums of x^n exp(b x), x^n sin(b x), x^n cos(b x) beside it"
    terms = [key for side in (sides.left, sides.right) for key in side.coefficients]
    if all(b == 0 for b, _ in terms):
        return "expected an exponential, a sine or a cosine, got polynomials"
    highest = max(n for _, n in terms)
    return f"expected powers of x up to {_HIGHEST}, got x^{highest}" if highest > _HIGHEST else None


def _edge(sides: Sides) -> Edge:
    """Where angles and exponents have lost their digits."""
    rates = sides.rates
    rate = max(max(abs(b.imag), abs(b.real)) for b in rates)
    if any(b.imag for b in rates):
        return Edge(rate, max(abs(b.imag * b.real) for b in rates))
    moments: list[Moment] = []
    for terms in (sides.left, sides.right):
        moments += [terms.expectation(), terms.squared().expectation()]
    pairs = {(float(sp.re(p)), float(sp.re(q))) for moment in moments for p, q in moment.parts}
    return Edge(rate, max(q for _, q in pairs), tuple(sorted(pairs - {(0.0, 0.0)})))


def _missed(sides: Sides, branches: Branches, switch: float, edge: Edge, measure: Inside, truth: Truth) -> float:
    """The local form's largest error just below v*, over the tolerance."""
    sigma = math.sqrt(switch)
    means = float(sides.kink) + sigma * np.linspace(-6, 6, 61)
    mean = np.tile(means, 2).astype(np.float32)
    var = np.repeat([switch * 0.999, switch * 0.5], means.size).astype(np.float32)

    def build(outputs: tuple[str, ...]) -> Graph:
        return build_growing(sides, branches, NEAR64, outputs, switch, edge)[0]

    return max(largest_errors(build, truth, measure, mean, var).values())


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``.

    Raises:
        BuildError: if the local form cannot be brought within its share of the tolerance.
    """
    rule, sides = derivation.rule, sides_of(derivation)
    if sides is None:
        return
    f = analyse(rule.name, derivation.pieces, {})
    edge = _edge(sides)
    truth = ClosedFormTruth(sides.outputs(), inside=edge.inside)
    measure = Inside(GrowingMeasure.of(sides), edge)
    rate = max(map(abs, sides.rates))
    switch = float(np.float32(_SHARE / rate**2))
    missed = math.inf
    for degree, terms in _LADDER:
        branches = branches_of(f, rule.f, degree, terms)
        missed = _missed(sides, branches, switch, edge, measure, truth)
        if missed <= _LOCAL:
            break
    else:
        cause = f"the local form leaves out {missed:.3g} of what is allowed at v = {switch:.4g}"
        raise BuildError(rule.name, "strategies", cause, rule.f)
    degree, terms = _LADDER_FINE
    more = branches_of(f, rule.f, degree, terms)
    of = {False: (branches, NEAR32), True: (more, NEAR64)}
    graphs, fits = four_graphs(lambda outputs, float64: build_growing(sides, *of[float64], outputs, switch, edge))
    wide = 12 / rate
    inside = " + ".join(f"{r:g}·{of}" for r, of in ((edge.rate, "|mean|"), (edge.rate_var, "var")) if r)
    yield Stable(
        variant="exact",
        truth=truth,
        measure=measure,
        goal=1.0,
        aim=0.8,
        unit="tolerance",
        slack=MEAN,
        reach=TURNED / edge.rate,
        box={
            "mu": (float(sides.kink) - wide, float(sides.kink) + wide),
            "a": (-12.0, 12.0),
            "log2_var": (-40.0, 8.0 - 2 * math.log2(rate)),
        },
        fits=tuple(dict.fromkeys(fits)),
        domain={"mean": f"0 or 2^-126 <= |mean|, and {inside} <= {TURNED:g}"},
        edge=edge,
        facts={"switch": switch, "local_form_leaves_out": float(f"{missed:.3g}")},
        doc=f"below v = {switch:.4g} the branch at mu and power series about the kink; above, moments in closed form",
        **graphs,
    )
