"""Proven errors of float64 formulas: held against mpmath, near what is found, and sensitive to a broken polynomial."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from mpmath.calculus.quadrature import GaussLegendre

from momentgen.compiler.pieces import split
from momentgen.compiler.real import Graph, evaluate_mpmath
from momentgen.compiler.stabilise import surface_error
from momentgen.compiler.stabilise.activation import Activation, analyse
from momentgen.compiler.stabilise.algebraic import find_mean_ladder
from momentgen.compiler.stabilise.fine_output import BEYOND
from momentgen.compiler.stabilise.fine_surface import FineSurfaces, find_fine_surfaces
from momentgen.compiler.stabilise.fine_surface_graph import build_fine_graph
from momentgen.compiler.stabilise.general_truth import GeneralTruth
from momentgen.compiler.stabilise.proven import proven_facts, proven_fine
from momentgen.compiler.stabilise.surface_error import (
    PROVABLE,
    kink_terms,
    lift_of,
    prove_fine,
    prove_fine_kink,
)
from momentgen.compiler.stabilise.surrogate import Found, find_mean_atoms
from momentgen.compiler.stabilise.surrogate_truth import QuadratureTruth
from momentgen.errors import BuildError
from momentgen.symbols import Phi, S, x

HALF = sp.Rational(1, 2)
#: atoms themselves, odd and even; fitted by atoms, neither odd nor even
SMOOTH = {"erf": sp.erf(x), "gelu": x * Phi(x), "leaning": S(x) + S(x / 2 - 1)}
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
    """An f with its polynomials, the atoms that prove them and the graphs that they serve in."""

    f: Activation
    fine: FineSurfaces
    found: Found | None
    forward: Graph
    partials: Graph


@lru_cache
def made(name: str) -> Made:
    expr, start = KINKED.get(name, (SMOOTH.get(name), 0.0))
    f = analyse(name, split(expr), {})
    goals = BEYOND if start and name != "bent" else None
    fine = find_fine_surfaces(f, QuadratureTruth(f), ("mean",), start, goals=goals)
    graphs = [build_fine_graph(f, fine, partials=partials) for partials in (False, True)]
    return Made(f, fine, None if start else find_mean_atoms(f), *graphs)


@lru_cache
def stated(name: str) -> dict[str, dict[str, float]]:
    one = made(name)
    if one.found is None:
        return proven_fine(one.f, one.fine, None, None)
    facts = proven_facts(one.f, one.found.atoms, one.found.mean.errors)
    return proven_fine(one.f, one.fine, one.found.atoms, facts)


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
    one, lift = made("erf"), lift_of(made("erf").f, output)
    assert one.found is not None
    bound, _ = prove_fine(one.f, one.fine, one.found.atoms, output, one.fine.goals[output] / 3)
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
    assert one.found is not None
    cell = one.fine.cells.count // 2
    patches = list(one.fine.outputs["mean"].patches)
    first, *rest = patches[cell].table
    patches[cell] = replace(patches[cell], table=((first[0] + 1e-8, *first[1:]), *rest))
    surface = replace(one.fine.outputs["mean"], patches=tuple(patches))
    broken = replace(one.fine, outputs={"mean": surface})
    right, _ = prove_fine(one.f, one.fine, one.found.atoms, "mean", 1e-10)
    wrong, _ = prove_fine(one.f, broken, one.found.atoms, "mean", 1e-10)
    assert right < 1e-10
    assert 1e-9 < wrong < 1.05e-8  # times q, and over w


def test_one_side_of_a_mirrored_function_is_as_much_as_both(monkeypatch: pytest.MonkeyPatch) -> None:
    one = made("gelu")
    assert one.found is not None
    half, few = prove_fine(one.f, one.fine, one.found.atoms, "mean", 1e-10)
    monkeypatch.setattr(surface_error, "_is_mirrored", lambda f, parity: False)
    whole, many = prove_fine(one.f, one.fine, one.found.atoms, "mean", 1e-10)
    assert 2 * few == many
    assert whole == pytest.approx(half, rel=0.1)


def test_functions_made_of_normal_tails_are_their_own_atoms() -> None:
    for name, coefficients in (("erf", [2, 0, 0]), ("gelu", [1, 0, -1, 0])):
        one = made(name)
        assert one.found is not None
        assert one.found.atoms.mean.tolist() == [pytest.approx(coefficients, abs=1e-14)]
        facts = proven_facts(one.f, one.found.atoms, one.found.mean.errors)
        assert max(facts["sup_error_proven"]) < 2e-13


def test_moments_of_a_function_with_kinks_are_those_about_its_centre() -> None:
    f = made("hardtanh").f
    (terms,), rest = kink_terms(f, 100.0, "mean", 1e-12)
    # x - sign(x) within (-1, 1): 2 sign, whose step T_0 is, and odd moments of the rest
    expected = {0: 2.0, **{m: sp.Rational(2, sp.factorial(m + 1)) for m in range(2, 10, 2)}}
    assert {m: pytest.approx(float(c)) for m, c in expected.items()} == terms.coefficients
    assert 0 < rest < 1e-13


def test_a_series_of_moments_that_does_not_end_says_so() -> None:
    with pytest.raises(BuildError, match="moments of f to be enough"):
        kink_terms(made("hardtanh").f, 1e-4, "mean", 1e-12)


def test_pieces_that_are_no_polynomials_are_refused() -> None:
    f = analyse("elu", split(sp.Piecewise((sp.exp(x) - 1, x < 0), (x, True))), {})
    with pytest.raises(BuildError, match="expected polynomials of degree at most 2"):
        kink_terms(f, 100.0, "mean", 1e-12)


@pytest.mark.parametrize("order", [0, 1])
def test_the_smoothed_kink_is_right_to_more_digits_than_float64_has(order: int) -> None:
    assert prove_fine_kink(order) < 2e-17


@pytest.mark.slow
def test_a_mean_that_grows_is_proven_in_proportion_to_it() -> None:
    f = analyse("pseudo_huber", split(sp.sqrt(1 + x**2) - 1), {})
    truth = GeneralTruth(f)
    fine = find_fine_surfaces(f, truth, ("mean",))
    found = find_mean_ladder(f, truth)
    one = Made(f, fine, found, *(build_fine_graph(f, fine, partials=partials) for partials in (False, True)))
    facts = proven_facts(f, found.atoms, found.mean.errors)
    bounds = proven_fine(f, fine, found.atoms, facts)
    assert bounds["mean"]["times_max_w_u_proven"] + bounds["mean"]["times_max_1_f_proven"] < 1e-9
    random = np.random.default_rng(4)
    with mp.workdps(25):
        for sigma, share in zip(10.0 ** random.uniform(-2, 4, 12), random.normal(0, 2, 12), strict=True):
            mean, var = mp.mpf(share * (1 + sigma)), mp.mpf(sigma) ** 2
            found_here, truth_here = computed(one, mean, var), exact(f, mean, var)
            size = max(mp.sqrt(var + fine.frame.c), abs(mean))
            most = bounds["mean"]["times_max_w_u_proven"] * size
            most += bounds["mean"]["times_max_1_f_proven"] * (1 + truth_here["mean"])
            assert abs(found_here["mean"] - truth_here["mean"]) <= most, (mean, var)
            for output in ("dmean_dmu", "dmean_dvar"):
                error = abs(found_here[output] - truth_here[output])
                assert error <= bound_at(one, bounds[output], float(var)), (output, mean, var)
