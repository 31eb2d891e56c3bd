"""Elementary branches of any growth beside one kink: what is exact by quadrature, and the graphs by what is exact."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest
import sympy as sp
from quadrature_truth import moments, partials

from momentgen.compiler.derive import derive
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.lower.words import lower
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.kinks import growing
from momentgen.rule import Rule, x

WAY = "elementary beside a kink"
CALL = sp.Max(sp.exp(x) - 1, 0)
FUNCTIONS = {
    "call": CALL,
    "a jump at 1/2": sp.Piecewise((sp.cos(2 * x), x > sp.Rational(1, 2)), (-sp.exp(x), True)),
}
named = pytest.mark.parametrize("name", FUNCTIONS)
POINTS = [(0.3, 1.0), (-2.0, 0.25), (1.5, 9.0), (0.4, 0.01)]


@functools.lru_cache
def stable_of(name: str) -> Stable:
    (stable,) = stabilise(derive(Rule("mine", f=FUNCTIONS[name])), WAY)
    return stable


@named
def test_exact_values_are_those_of_quadrature(name: str) -> None:
    truth = pickle.loads(pickle.dumps(stable_of(name).truth))
    for mean, var in POINTS:
        wanted = dict(zip(OUTPUTS, moments(FUNCTIONS[name], mean, var, digits=20), strict=True))
        wanted |= partials(FUNCTIONS[name], mean, var, digits=20)
        exact = truth(np.array([mean]), np.array([var]), {})
        for output, (found,) in exact.items():
            assert found == pytest.approx(float(wanted[output]), rel=1e-13, abs=1e-15)


def points_of(stable: Stable, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    var = np.exp2(rng.uniform(*stable.box["log2_var"], count))
    mean = np.where(rng.random(count) < 0.5, rng.uniform(-12, 12, count), rng.uniform(-12, 12, count) * np.sqrt(var))
    return mean.astype(np.float32), var.astype(np.float32)


@named
def test_the_graphs_in_float64_are_a_millionth_of_the_tolerance_off(name: str) -> None:
    stable = stable_of(name)
    mean, var = points_of(stable, 200)
    exact = stable.truth(mean, var, {})
    for graph in (stable.forward64, stable.partials64):
        found = outputs_float64(graph, {"mean": mean.astype(np.float64), "var": var.astype(np.float64)})
        for output, values in found.items():
            beyond = np.abs(exact[output]) > 1e38  # its largest number stands for what float32 does not hold
            values = np.where(beyond, np.nan, np.broadcast_to(values, mean.shape))
            errors = stable.measure(output, values, exact[output], mean, var)
            assert errors[~beyond].max() <= 1e-6


def test_double_floats_hold_the_tolerance_and_beyond_float32_the_largest_number() -> None:
    stable = stable_of("call")
    mean, var = points_of(stable, 200)
    exact = stable.truth(mean, var, {})
    for graph in (stable.forward, stable.partials):
        every = frozenset(i for i in graph.live() if graph.nodes[i].kind not in ("input", "const"))
        program = lower(graph, "mine", every, {}, backward=False)
        for output, values in evaluate(program, {"mean": mean, "var": var}, {}).items():
            assert stable.measure(output, values, exact[output], mean, var).max() <= 0.1
    assert (np.abs(exact["var"]) > 1e39).any()


def test_the_tolerance_is_relative_to_what_the_outputs_of_exponentials_are() -> None:
    stable = stable_of("call")
    measure: Any = stable.measure
    mean, var = np.linspace(-3, 3, 25), np.ones(25)
    exact = stable.truth(mean, var, {})
    for output, values in exact.items():
        allowed = measure.measure.allowed(output, values, mean, var)
        assert allowed.min() <= 5e-3 * np.abs(values).max()


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (sp.Max(x, 0) ** 2, "expected an exponential, a sine or a cosine, got polynomials"),
        (sp.Max(x, 0) ** 4 * sp.sin(x), "expected powers of x up to 3, got x^4"),
        (sp.Abs(sp.tanh(x)), "expected one kink, at a rational number, and sums of"),
        (sp.Piecewise((sp.sin(x), x > sp.pi), (x, True)), "expected one kink, at a rational number, and sums of"),
    ],
)
def test_what_it_does_not_serve_is_said(f: sp.Expr, reason: str) -> None:
    assert str(growing.why_not(derive(Rule("mine", f=f)))).startswith(reason)
