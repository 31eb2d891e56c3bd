"""Gaussians times sines and cosines: their closed forms against quadrature."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp
from quadrature_truth import moments, partials

from momentgen.compiler.derive import derive
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.smooth import gaussians
from momentgen.rule import Rule, x

WAY = "Gaussians, in closed form"
MORLET = sp.exp(-(x**2) / 2) * sp.cos(5 * x)
FUNCTIONS = {
    "Morlet": MORLET,
    "a sine, off its centre": sp.exp(-(x**2) + x) * sp.sin(2 * x),
    "two widths": x * sp.exp(-(x**2)) * sp.sin(x) + sp.exp(-3 * x**2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("mean", "var"), [(0.3, 1.0), (-0.7, 0.001), (1.5, 30.0)])
def test_the_graphs_in_float64_are_quadrature(name: str, mean: float, var: float) -> None:
    bells = gaussians.Bells.of(FUNCTIONS[name])
    wanted = dict(zip(OUTPUTS, moments(FUNCTIONS[name], mean, var, digits=15), strict=True))
    wanted |= partials(FUNCTIONS[name], mean, var, digits=15)
    for outputs in (OUTPUTS, PARTIALS):
        graph, _ = bells.graph(outputs, True, 1 / 8 / bells.rate, 14)
        for output, values in outputs_float64(graph, {"mean": np.array([mean]), "var": np.array([var])}).items():
            assert values[0] == pytest.approx(float(wanted[output]), rel=1e-8, abs=1e-10)


def test_the_graphs_in_float64_are_far_within_the_tolerance() -> None:
    (stable,), rng = stabilise(derive(Rule("mine", f=MORLET)), WAY), np.random.default_rng(0)
    var = np.exp2(rng.uniform(-40, 100, 60)).astype(np.float32)
    mean = (rng.uniform(-12, 12, 60) * np.sqrt(np.where(rng.random(60) < 0.5, var, 1))).astype(np.float32)
    exact = stable.truth(mean, var, {})
    for graph in (stable.forward64, stable.partials64):
        found = outputs_float64(graph, {"mean": mean.astype(np.float64), "var": var.astype(np.float64)})
        for output, values in found.items():
            assert stable.measure(output, values.astype(np.float32), exact[output], mean, var).max() <= 0.1


@pytest.mark.parametrize("f", [sp.exp(-(x**2)), sp.exp(-(x**2)) + sp.sin(x)])
def test_what_has_another_form_is_left_to_it(f: sp.Expr) -> None:
    assert gaussians.why_not(derive(Rule("mine", f=f))) == "expected Gaussians times polynomials and a sine or cosine"
