"""Proven errors of float32 formulas: held against closed forms in mpmath, and sensitive to a broken polynomial."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import mpmath as mp
import numpy as np
import numpy.typing as npt
import pytest
import sympy as sp

from momentgen.compiler.approximate import J
from momentgen.compiler.pieces import split
from momentgen.compiler.real import evaluate_float64
from momentgen.compiler.stabilise import surface_error
from momentgen.compiler.stabilise.activation import Activation, analyse
from momentgen.compiler.stabilise.moments_measure import MEAN
from momentgen.compiler.stabilise.proven import difference, proven_facts, proven_outputs
from momentgen.compiler.stabilise.stable import OUTPUTS, PARTIALS
from momentgen.compiler.stabilise.sup_error import prove_sup_error
from momentgen.compiler.stabilise.surface import Surface, find_surfaces
from momentgen.compiler.stabilise.surface_error import PROVABLE, lift_of, prove_kink, prove_surface
from momentgen.compiler.stabilise.surface_graph import build_surface_graph, kink_fit
from momentgen.compiler.stabilise.surrogate import Found, find_mean_atoms
from momentgen.compiler.stabilise.surrogate_truth import QuadratureTruth
from momentgen.symbols import Phi, x

F64 = npt.NDArray[np.float64]
FUNCTIONS = {"erf": sp.erf(x), "gelu": x * Phi(x)}


@lru_cache
def _made(name: str) -> tuple[Activation, Found, dict[str, Surface]]:
    f = analyse(name, split(FUNCTIONS[name]), {})
    truth = QuadratureTruth(f)
    surfaces = find_surfaces(f, truth, OUTPUTS)
    if name == "erf":
        surfaces |= find_surfaces(f, truth, PARTIALS)
    return f, find_mean_atoms(f), surfaces


def _inputs(f: Activation) -> tuple[F64, F64]:
    random = np.random.default_rng(5)
    var = np.concatenate([f.length**2 * 10.0 ** random.uniform(-6, 6, 1500), [1e-12, 1e30]])
    mean = f.centre + np.sqrt(var + f.length**2) * np.concatenate(
        [random.normal(0, 2, 1000), random.uniform(-9, 9, 502)]
    )
    return mean, var


def _exact(name: str, output: str, mean: float, var: float) -> mp.mpf:
    """E erf X = erf(mu/sqrt(1 + 2 v)); E X Phi(X) = mu Phi(h) + v phi(h)/sqrt(1 + v), h = mu/sqrt(1 + v)."""
    mu, v = mp.mpf(mean), mp.mpf(var)
    if name == "erf":
        w = mp.sqrt(1 + 2 * v)
        slope = 2 / mp.sqrt(mp.pi) * mp.exp(-((mu / w) ** 2)) / w
        return {"mean": mp.erf(mu / w), "dmean_dmu": slope, "dmean_dvar": -mu / w**2 * slope}[output]
    h = mu / mp.sqrt(1 + v)
    return mu * mp.ncdf(h) + v * mp.npdf(h) / mp.sqrt(1 + v)


def _computed(name: str, output: str, mean: F64, var: F64) -> F64:
    """What the float32 program computes, in float64."""
    f, _, surfaces = _made(name)
    outputs = OUTPUTS if output == "mean" else PARTIALS
    graph, _ = build_surface_graph(f, surfaces, outputs)
    return np.asarray(evaluate_float64(graph, {"mean": mean, "var": var})[graph.outputs[output]])


def _errors(name: str, output: str, mean: F64, var: F64) -> F64:
    computed = _computed(name, output, mean, var)
    with mp.workdps(40):
        exact = [_exact(name, output, m, v) for m, v in zip(mean.tolist(), var.tolist(), strict=True)]
        return np.array([float(abs(mp.mpf(c) - e)) for c, e in zip(computed.tolist(), exact, strict=True)])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "gelu" else []) for name in FUNCTIONS]
)
def test_no_mean_is_further_from_the_exact_one_than_proven(name: str) -> None:
    f, found, surfaces = _made(name)
    stated = proven_outputs(f, {"mean": surfaces["mean"]}, found.atoms, proven_facts(f, found.atoms, found.mean.errors))
    constant, growing = stated["mean"]["constant_proven"], stated["mean"].get("times_w_proven", 0.0)
    mean, var = _inputs(f)
    error = _errors(name, "mean", mean, var)
    w = np.sqrt(var + surfaces["mean"].frame.c)
    rounding = 2.0**-50 * (np.abs(mean) + w)
    assert (error <= constant + growing * w + rounding).all()
    assert constant <= MEAN


@pytest.mark.parametrize("output", PROVABLE)
def test_the_proven_error_is_near_the_largest_of_a_dense_sample(output: str) -> None:
    f, found, surfaces = _made("erf")
    bound, _ = prove_surface(f, surfaces[output], found.atoms, output, MEAN / 3 if output == "mean" else 1e-5)
    rest = prove_sup_error(difference(f, found.atoms, found.mean.errors)).bounds[PROVABLE[output][0]]
    frame = surfaces[output].frame
    zeta, t = (np.cos(np.pi * (np.arange(n) + 0.5) / n) for n in (24, 90))
    w = np.sqrt(frame.c) * 2 / (1 + zeta[:, None])
    mean, var = f.centre + t * frame.reach * w, np.broadcast_to(np.maximum(w**2 - frame.c, 0), (24, 90))
    error = _errors("erf", output, mean.ravel(), var.ravel()).reshape(24, 90)
    lifted = ((error - PROVABLE[output][1] * rest) * w ** lift_of(f, output)).max()
    assert lifted <= bound <= 1.15 * lifted


def test_a_broken_coefficient_shows() -> None:
    f, found, surfaces = _made("erf")
    good = surfaces["mean"]
    odd = [list(row) for row in good.fit.odd]
    odd[1][0] += 1e-5  # times x z, and the root of z: at most 1e-5
    broken = replace(good, fit=replace(good.fit, odd=tuple(map(tuple, odd))))
    right, _ = prove_surface(f, good, found.atoms, "mean", MEAN / 3)
    wrong, _ = prove_surface(f, broken, found.atoms, "mean", MEAN / 3)
    assert 1e-5 - right <= wrong <= 1.05 * (1e-5 + right)


def test_the_kink_is_as_good_as_proven_beyond_the_reach_as_well() -> None:
    frame = _made("gelu")[2]["mean"].frame
    bound, fit = prove_kink(frame, False), kink_fit(frame, False)
    largest = mp.mpf(0)
    for t in np.linspace(0, 2 * frame.reach, 400).tolist():
        held = min(t, frame.reach)
        s = mp.mpf(held) / mp.sqrt(frame.bend**2 + mp.mpf(held) ** 2) / frame.largest
        kink = mp.exp(-(mp.mpf(held) ** 2) / 2) * fit(s)
        largest = max(largest, abs(kink - mp.npdf(t) * J(1, t)))
    assert largest <= bound <= 1.1 * largest


def test_a_proof_that_takes_too_many_panels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    f, found, surfaces = _made("erf")
    monkeypatch.setattr(surface_error, "_PANELS", 10)
    facts = proven_facts(f, found.atoms, found.mean.errors)
    stated = proven_outputs(f, {"mean": surfaces["mean"]}, found.atoms, facts)
    assert "expected at most 10 panels" in stated["mean"]["unproven_because"]


def test_without_a_proof_for_the_atoms_there_is_none_for_the_mean() -> None:
    f, found, surfaces = _made("erf")
    assert proven_outputs(f, surfaces, found.atoms, {"sup_error_proven": None}) == {}
