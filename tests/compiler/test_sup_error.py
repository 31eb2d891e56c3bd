"""Proven sup-errors: never below an error found with mpmath, hardly above the largest, alert to what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from flint import acb, arb

from momentgen.compiler.oracle.balls import compile_analytic
from momentgen.compiler.pieces import split
from momentgen.compiler.stabilise.activation import Activation, analyse
from momentgen.compiler.stabilise.algebraic import find_ladder
from momentgen.compiler.stabilise.atom_balls import AtomGroup
from momentgen.compiler.stabilise.general_truth import GeneralTruth
from momentgen.compiler.stabilise.proven import difference, proven_facts
from momentgen.compiler.stabilise.sup_error import Difference, prove_sup_error
from momentgen.compiler.stabilise.surrogate import Found, find_atoms, find_mean_atoms
from momentgen.errors import BuildError
from momentgen.symbols import S, x

#: with kinks, and the v* that they are smoothed by: lines, and a parabola between lines
KINKED = {
    "hardtanh": (sp.Max(-1, sp.Min(1, x)), 0.5),
    "hardswish": (sp.Piecewise((0, x <= -3), (x, x >= 3), (x * (x + 3) / 6, True)), 4.0),
}


@lru_cache
def _found(name: str) -> tuple[Activation, Found]:
    if name in KINKED:
        expr, smoothed_by = KINKED[name]
        f = analyse(name, split(expr), {})
        return f, find_atoms(f, ((3, 4),), smoothed_by, 0, start=smoothed_by)
    if name == "atan":
        f = analyse(name, split(sp.atan(x)), {})
        return f, find_ladder(f, GeneralTruth(f), ((12, 4),), 0.25, 12, 0.0)
    f = analyse(name, split({"silu": x * S(x), "tanh": sp.tanh(x)}[name]), {})
    return f, find_mean_atoms(f)


def _atom(n: int, u: mp.mpf, tau: mp.mpf) -> mp.mpf:
    """T_n from its definition: d^n/du^n Phi(u/w)."""
    w = mp.sqrt(tau)
    h = u / w
    if n == -1:
        return u * mp.ncdf(h) + w * mp.npdf(h)
    if n == 0:
        return mp.ncdf(h)
    hermite = mp.mpf(2) ** (-mp.mpf(n - 1) / 2) * mp.hermite(n - 1, h / mp.sqrt(2))
    return (-1) ** (n - 1) * hermite * mp.npdf(h) / w**n


@lru_cache
def _exact(name: str, derivative: int) -> Callable[[mp.mpf], mp.mpf]:
    f = {"silu": x / (1 + sp.exp(-x)), "tanh": sp.tanh(x), "atan": sp.atan(x)}[name]
    return sp.lambdify(x, f.diff(x, derivative), "mpmath")


def _error(name: str, point: float, derivative: int) -> mp.mpf:
    """|f - g| or a derivative's, f smoothed where it has kinks."""
    f, found = _found(name)
    atoms = found.atoms
    at = mp.mpf(point)
    start = mp.mpf(atoms.switch) if f.kinks else mp.mpf(0)
    if name == "hardtanh":
        value = _atom(derivative - 1, at + 1, start) - _atom(derivative - 1, at - 1, start) - (derivative == 0)
    else:
        value = _exact(name, derivative)(at)
    line = (atoms.left.slope * at + atoms.left.offset, atoms.left.slope, 0)[derivative]
    total = mp.mpf(line)
    for tau, row in zip(atoms.taus, atoms.mean.tolist(), strict=True):
        for n, c in enumerate(row, start=atoms.lows[0]):
            total += c * _atom(n + derivative, at - mp.mpf(atoms.centre), mp.mpf(tau) + start)
    return abs(value - total)


@pytest.mark.parametrize("name", ["silu", "tanh", "hardtanh", "atan"])
def test_no_point_exceeds_the_proven_bound_and_some_come_near(name: str) -> None:
    f, found = _found(name)
    proven = prove_sup_error(difference(f, found.atoms, found.mean.errors))
    random = np.random.default_rng(1)
    points = np.concatenate([random.normal(0, 2.5 * f.length, 80), f.length * random.standard_cauchy(20) * 30])
    for derivative in range(3):
        with mp.workdps(40):
            largest = max(_error(name, point, derivative) for point in points.tolist())
        assert largest <= proven.bounds[derivative]
        assert proven.reached[derivative] <= proven.bounds[derivative] <= 1.01 * proven.reached[derivative]


@pytest.mark.parametrize("name", ["tanh", "hardtanh"])
def test_the_proven_bound_is_near_the_largest_error_of_a_dense_sample(name: str) -> None:
    f, found = _found(name)
    proven = prove_sup_error(difference(f, found.atoms, found.mean.errors))
    with mp.workdps(25):
        dense = max(_error(name, point, 0) for point in np.linspace(0, 12, 481))  # both are odd
    assert proven.bounds[0] <= 1.1 * dense


def test_a_wrong_coefficient_shows_in_full() -> None:
    f, found = _found("tanh")
    right = prove_sup_error(difference(f, found.atoms, found.mean.errors)).bounds[0]
    table, wrong = found.atoms.mean.copy(), 1e-6
    table[2, 1 - found.atoms.lows[0]] += wrong
    broken = prove_sup_error(difference(f, replace(found.atoms, mean=table), found.mean.errors)).bounds[0]
    added = wrong / np.sqrt(2 * np.pi * found.atoms.taus[2])  # at the centre, where T_1 is largest
    assert added - right <= broken <= 1.01 * (added + right)
    assert broken > 100 * right


def test_a_step_of_the_wrong_height_has_no_bound_near_what_was_measured() -> None:
    f, found = _found("tanh")
    table = found.atoms.mean.copy()
    table[0, 0 - found.atoms.lows[0]] += 1e-6
    with pytest.raises(
        BuildError, match=r"rule tanh, stage approximate: expected f and its surrogate to be one beyond"
    ):
        prove_sup_error(difference(f, replace(found.atoms, mean=table), found.mean.errors))


def test_lines_that_part_are_told() -> None:
    groups = (AtomGroup(0.0, 1.0, -1, (1.0,)),)
    with pytest.raises(BuildError, match=r"stage approximate: .* x -> oo, but they part"):
        prove_sup_error(Difference("ramp", None, 0.0, 0.0, groups, (1e-3, 1e-3, 1e-3), 0.0, 1.0))


def test_an_f_whose_tail_is_not_enclosed_has_no_proof_but_a_reason() -> None:
    _, found = _found("tanh")
    f = analyse("wavy", split(sp.tanh(x) + sp.exp(-(x**2)) * sp.sin(x)), {})
    with pytest.raises(BuildError, match="rule wavy, stage approximate: no enclosure over"):
        prove_sup_error(difference(f, found.atoms, found.mean.errors))
    facts = proven_facts(f, found.atoms, found.mean.errors)
    assert facts["sup_error_proven"] is None
    assert "sin" in facts["sup_error_unproven_because"]


def test_kinks_between_exponentials_have_no_proof_but_a_reason() -> None:
    _, found = _found("hardtanh")
    f = analyse("elu", split(sp.Piecewise((x, x > 0), (sp.exp(x) - 1, True))), {})
    facts = proven_facts(f, found.atoms, found.mean.errors)
    assert facts["sup_error_proven"] is None
    assert "polynomials" in facts["sup_error_unproven_because"]


@pytest.mark.parametrize("name", KINKED)
def test_facts_round_up_and_name_the_variance_that_smooths(name: str) -> None:
    f, found = _found(name)
    proven = prove_sup_error(difference(f, found.atoms, found.mean.errors))
    facts = proven_facts(f, found.atoms, found.mean.errors)
    for stated, bound in zip(facts["sup_error_proven"], proven.bounds, strict=True):
        assert bound <= stated <= 1.01 * bound
    assert facts["sup_error_of_f_smoothed_by"] == KINKED[name][1]


def test_complex_balls_across_the_cut_of_atan_are_not_analytic() -> None:
    atan = compile_analytic(sp.atan(x))
    across = acb(arb(0, 0.5), arb(1.5, 0.25))
    assert not atan(across, True).is_finite()
    assert atan(across, False).is_finite()
    assert atan(acb(0.5, 0.25), True).overlaps(acb(0.5, 0.25).atan())
