"""Proven errors of float64 formulas: held against mpmath, near what is found, and sensitive to a broken polynomial."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from flint import arb, arb_series
from mpmath.calculus.quadrature import GaussLegendre
from taylor_models import J_series, proven_maximum

from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.fit.special import to_ball
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.ir.values import evaluate_mpmath
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.prove import bounds, claimed
from momentgen.compiler.prove.bounds import KINK_BOUNDS, bound_of
from momentgen.compiler.prove.moments import PROVABLE, Moments, moments_of
from momentgen.compiler.strategies.surfaces.fine_output import BEYOND
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces, find_fine_surfaces
from momentgen.compiler.strategies.surfaces.fine_surface_graph import KINK_REACH, KINK_UNIT, build_fine_graph, fine_core
from momentgen.compiler.strategies.tolerated import Claim
from momentgen.errors import BuildError
from momentgen.rule import Accuracy, Rule
from momentgen.rule.symbols import Phi, S, x

HALF = sp.Rational(1, 2)
#: made of normal tails, odd and even
SMOOTH = {"erf": sp.erf(x), "gelu": x * Phi(x)}
MEANING = [{"S": lambda at: 1 / (1 + mp.exp(-at)), "Phi": mp.ncdf}, "mpmath"]
#: f and its v*: odd; a line on one side; growing on both, with a jump, about a centre that is not 0; one line but for 0
KINKED = {
    "hardtanh": (sp.Max(-1, sp.Min(1, x)), 100.0),
    "hardswish": (sp.Piecewise((0, x <= -3), (x, x >= 3), (x * (x + 3) / 6, True)), 900.0),
    "bent": (sp.Piecewise((-x, x < -1), (x**2, x < 2), (3 * x - sp.sqrt(2), True)), 400.0),
    "hardshrink": (sp.Piecewise((x, (x > HALF) | (x < -HALF)), (0, True)), 25.0),
}
NAMES = [*SMOOTH, *KINKED]


@dataclass(frozen=True)
class Made:
    """An f with its polynomials, its moments in closed form and the graphs that the polynomials serve in."""

    f: Activation
    fine: FineSurfaces
    moments: Moments
    forward: Graph
    partials: Graph


@lru_cache
def made(name: str) -> Made:
    expr, start = KINKED.get(name, (SMOOTH.get(name), 0.0))
    f = analyse(name, split(expr), {})
    goals = BEYOND if start and name != "bent" else None
    fine = find_fine_surfaces(f, QuadratureTruth(f), ("mean",), start, goals=goals)
    moments = moments_of(f)
    assert moments is not None
    graphs = [build_fine_graph(f, fine, outputs) for outputs in (OUTPUTS, PARTIALS)]
    return Made(f, fine, moments, *graphs)


@lru_cache
def stated(name: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = claimed(Claim(made(name).f, made(name).fine))["float64"]
    return found


def computed(one: Made, mean: mp.mpf, var: mp.mpf) -> dict[str, mp.mpf]:
    """What the float64 program is in real arithmetic."""
    point = {"mean": mean, "var": var}
    return evaluate_mpmath(one.forward, point) | evaluate_mpmath(one.partials, point)


@lru_cache
def nodes() -> list[tuple[mp.mpf, mp.mpf]]:
    with mp.workdps(25):
        return [(mp.mpf(z), mp.mpf(w)) for z, w in GaussLegendre(mp.mp).calc_nodes(5, 100)]


def exact(f: Activation, mean: mp.mpf, var: mp.mpf) -> dict[str, mp.mpf]:
    """By Gauss and Legendre between f's kinks, or where a smooth f bends, and over the density."""
    pieces, kinks, sigma = [sp.lambdify(x, p.expr, MEANING) for p in f.pieces], f.kinks, mp.sqrt(var)
    ends = [mean + sigma * z for z in (-13, -9, -6, -3, 0, 3, 6, 9, 13)]
    bends = kinks or [f.centre + f.length * z for z in (-40, -20, -8, -3, 0, 3, 8, 20, 40)]
    cuts = sorted([*ends, *(mp.mpf(at) for at in bends if ends[0] < at < ends[-1])])
    totals = [mp.mpf(0)] * 3
    for low, high in itertools.pairwise(cuts):
        piece = pieces[sum((low + high) / 2 >= k for k in kinks)]
        for node, weight in nodes():
            at = (low + high + (high - low) * node) / 2
            z = (at - mean) / sigma
            value = piece(at) * mp.npdf(z) * weight * (high - low) / 2 / sigma
            totals = [t + value * c for t, c in zip(totals, (1, z / sigma, (z * z - 1) / (2 * var)), strict=True)]
    return dict(zip(PROVABLE, totals, strict=True))


def inputs(one: Made, count: int, seed: int) -> list[tuple[float, float]]:
    random = np.random.default_rng(seed)
    frame = one.fine.frame
    q = random.uniform(0.02, 0.98, count)
    var = frame.least / q**2 - frame.c
    t = np.where(np.arange(count) % 2, random.normal(0, 2, count), random.uniform(-1.1, 1.1, count) * frame.reach)
    return list(zip((one.f.centre + t * np.sqrt(var + frame.c)).tolist(), var.tolist(), strict=True))


def bound_at(one: Made, parts: dict[str, float], var: float) -> float:
    """Of an error, by a certificate's facts."""
    w, total = math.sqrt(var + one.fine.frame.c), 0.0
    for key, value in parts.items():
        over = re.fullmatch(r"over_w(\d?)_proven", key)
        power = -int(over[1] or 1) if over else {"constant_proven": 0, "times_w_proven": 1}[key]
        total += value * w**power
    return total


@pytest.mark.parametrize("name", NAMES)
def test_no_mean_and_no_partial_is_further_from_the_exact_one_than_proven(name: str) -> None:
    one, bounds = made(name), stated(name)
    assert set(bounds) == set(PROVABLE)
    with mp.workdps(25):
        for mean, var in inputs(one, 16, 11):
            point = mp.mpf(mean), mp.mpf(var)
            found, truth = computed(one, *point), exact(one.f, *point)
            for output, parts in bounds.items():
                assert abs(found[output] - truth[output]) <= bound_at(one, parts, var), (output, mean, var)


@pytest.mark.parametrize("output", PROVABLE)
def test_the_proven_error_is_near_the_largest_of_a_dense_sample(output: str) -> None:
    one = made("erf")
    bound, lift, _ = bound_of(one.moments, one.fine, output)
    frame = one.fine.frame
    q, t = (np.cos(np.pi * (np.arange(n) + 0.5) / n) for n in (5, 300))
    largest = mp.mpf(0)
    with mp.workdps(25):
        for w in (math.sqrt(frame.least) * 2 / (1 + q)).tolist():
            for u in (t * frame.reach * w).tolist():
                mean, var = mp.mpf(one.f.centre + u), mp.mpf(w) ** 2 - frame.c
                truth = closed_form(mean, var)[output]
                largest = max(largest, abs(computed(one, mean, var)[output] - truth) * mp.mpf(w) ** lift)
    assert largest <= bound <= 1.3 * largest


def closed_form(mean: mp.mpf, var: mp.mpf) -> dict[str, mp.mpf]:
    """E erf X = erf(mu/sqrt(1 + 2 v))."""
    w = mp.sqrt(1 + 2 * var)
    slope = 2 / mp.sqrt(mp.pi) * mp.exp(-((mean / w) ** 2)) / w
    return {"mean": mp.erf(mean / w), "dmean_dmu": slope, "dmean_dvar": -mean / w**2 * slope}


def test_a_broken_coefficient_of_one_cell_shows() -> None:
    one = made("gelu")
    cell = one.fine.cells.count // 2
    patches = list(one.fine.outputs["mean"].patches)
    first, *rest = patches[cell].table
    patches[cell] = replace(patches[cell], table=((first[0] + 1e-8, *first[1:]), *rest))
    surface = replace(one.fine.outputs["mean"], patches=tuple(patches))
    broken = replace(one.fine, outputs={"mean": surface})
    right, *_ = bound_of(one.moments, one.fine, "mean")
    wrong, *_ = bound_of(one.moments, broken, "mean")
    assert right < 1e-10
    assert 1e-9 < wrong < 1.05e-8  # times q, and over w


def test_a_proof_that_takes_too_many_panels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_PANELS", 10)
    facts = claimed(Claim(made("erf").f, made("erf").fine))
    assert "expected at most 10 panels" in facts["float64"]["mean"]["unproven_because"]


def test_the_moments_of_functions_made_of_normal_tails_are_theirs() -> None:
    for name, c, expected in (("erf", 0.5, {0: 2.0, 1: 0.0}), ("gelu", 1.0, {0: 0.0, 1: -1.0})):
        assert (made(name).moments.c, made(name).moments.tails) == (c, expected)
    both = analyse("both", split(sp.erfc(x) / 2 - (1 + 2 * x) * sp.erf(-x) + x), {})
    assert moments_of(both) is not None
    assert moments_of(both).tails == {0: 1.0, 1: -2.0}  # type: ignore[union-attr]


@pytest.mark.parametrize("expr", [S(x), sp.erf(x) + sp.erf(2 * x), x**2 * Phi(x), sp.erf(x) / 3, sp.erf(x - 1)])
def test_nothing_is_stated_of_other_functions(expr: sp.Expr) -> None:
    f = replace(made("erf").f, name="other", pieces=split(expr))
    assert claimed(Claim(f, made("erf").fine)) == {}


def test_moments_of_a_function_with_kinks_are_those_about_its_centre() -> None:
    atoms, rest = made("hardtanh").moments.atoms(100.0, "mean", 0, 1e-12)
    # x - sign(x) within (-1, 1): 2 sign, whose step T_0 is, and odd moments of the rest
    expected = {0: 2.0, **{m: sp.Rational(2, sp.factorial(m + 1)) for m in range(2, 10, 2)}}
    assert {m: pytest.approx(float(c)) for m, c in expected.items()} == atoms
    assert 0 < rest < 1e-13


def test_a_series_of_moments_that_does_not_end_says_so() -> None:
    with pytest.raises(BuildError, match="moments of f to be enough"):
        made("hardtanh").moments.atoms(1e-4, "mean", 0, 1e-12)


def test_nothing_is_stated_of_pieces_that_are_no_polynomials() -> None:
    f = analyse("elu", split(sp.Piecewise((sp.exp(x) - 1, x < 0), (x, True))), {})
    assert moments_of(f) is None


@pytest.mark.parametrize("order", [0, 1])
def test_the_smoothed_kink_is_right_to_the_digits_that_proofs_state(order: int) -> None:
    fit, unit = fine_core(order), arb(KINK_UNIT)

    def error(u: arb_series) -> arb_series:
        t, value = unit * (1 / u - 1), arb_series([arb(0)])
        for c in reversed(fit.coefficients):
            value = value * (u - to_ball(fit.centre)) + arb(float(c))
        exact = J_series(order, t) / (2 * arb.pi()).sqrt()
        return (-t * t / 2).exp() * (value * u ** (order + 1) - exact)

    most = float(proven_maximum(error, fit.interval, pieces=768, order=12, bits=300))
    assert most * (1 + 1e-12) + math.exp(-(KINK_REACH**2) / 2) <= KINK_BOUNDS[order] < 2e-17


def test_lines_that_meet_at_the_centre_have_no_atoms_and_are_proven() -> None:
    rule = Rule("valley", f=sp.Max(x, -x / 2), accuracy=Accuracy(moments=True))
    certificate = json.loads(compile_rule(rule).files["exact.json"])
    assert certificate["bounds"]["mean"]["tolerance"] <= 1
