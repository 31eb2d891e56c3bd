"""Step, ReLU and leaky ReLU of a logistic input: graphs and float32 programs against quadrature of f itself."""

from __future__ import annotations

import functools

import mpmath
import numpy as np
import pytest
import sympy
from quadrature_truth import moments, partials
from real_rules import rules

from momentgen.compiler.certify.points import calibration_points, seed_of
from momentgen.compiler.derive import derive
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.ir.values import evaluate_float64, evaluate_mpmath
from momentgen.compiler.lower.trials import orders_of
from momentgen.compiler.lower.words import lower
from momentgen.compiler.strategies import logistic_input
from momentgen.errors import BuildError
from momentgen.rule import LogisticInput, Rule, x

NAMES = ("heaviside", "leaky_relu")  # relu is a leaky one of slope 0
POINTS = ((0.3, 1.0), (-2.0, 0.25), (7.0, 2.0), (-1e-3, 1e4))


@functools.lru_cache
def stable_of(name: str) -> Stable:
    (stable,) = logistic_input.stable_variants(derive(rules()[name]))
    return stable


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("mu", "v"), POINTS)
def test_graphs_are_the_moments_under_a_logistic_input(name: str, mu: float, v: float) -> None:
    stable, rule = stable_of(name), rules()[name]
    for setting in stable.settings[:2]:
        exact = dict(zip(OUTPUTS, moments(rule.f, mu, v, setting, 20, "logistic"), strict=True))
        exact |= partials(rule.f, mu, v, setting, 20, "logistic")
        with mpmath.workdps(30):
            point = {"mean": mu, "var": v, **{k: mpmath.mpf(w) for k, w in setting.items()}}
            wide = evaluate_mpmath(stable.forward64, point) | evaluate_mpmath(stable.partials64, point)
            single = evaluate_mpmath(stable.forward, point) | evaluate_mpmath(stable.partials, point)
        truth = stable.truth(np.float32([mu]), np.float32([v]), setting)
        for output, value in exact.items():
            assert float(wide[output]) == pytest.approx(float(value), rel=1e-14, abs=1e-15), output
            # A fit of 2e-8, and what cancels of a leaky mean.
            assert float(single[output]) == pytest.approx(float(value), rel=3e-7), output
            if mu != -1e-3:  # a float32
                close = pytest.approx(float(value), rel=2e-7 if mu == 0.3 else 1e-12)
                assert truth[output][0] == close, output


@pytest.mark.parametrize("name", NAMES)
def test_double_floats_leave_two_ulp_of_the_terms(name: str) -> None:
    stable = stable_of(name)
    for setting in stable.settings:
        here = stable.at(setting)
        points = calibration_points(stable.box, 800, seed_of(name, "logistic"))
        exact = stable.truth(*points, setting)
        for graph in (stable.forward, stable.partials):
            values = evaluate_float64(graph, {**dict(zip(graph.inputs, points, strict=True)), **setting})
            program = lower(graph, "x", frozenset(graph.live()), orders_of(graph, values))
            hi = {f"{k}_hi": float(np.float32(w)) for k, w in setting.items()}
            lo = {f"{k}_lo": w - float(np.float32(w)) for k, w in setting.items()}
            result = evaluate(program, dict(zip(graph.inputs, points, strict=True)), {**hi, **lo})
            for output in graph.outputs:
                assert here.measure(output, result[output], exact[output], *points).max() <= 2


def test_other_rules_are_refused() -> None:
    rule = Rule("square", f=x**2, variants={"logistic_input": LogisticInput()})
    with pytest.raises(BuildError, match="a logistic input is for a step or max"):
        logistic_input.stable_variants(derive(rule))
    assert sympy.Max(x, 0) == rules()["relu"].f
