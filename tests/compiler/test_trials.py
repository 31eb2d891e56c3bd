"""Trials: however one is come to, it is what lowering from scratch gives."""

from __future__ import annotations

import random

import numpy as np

from momentgen.compiler.ir.graph import (
    Graph,
    exp_factor,
    half_square,
    horner,
    madd,
    over_one_plus,
    select,
    sqrt,
    times_exp_mantissa,
)
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.lower.trials import Calibration, Trials
from momentgen.compiler.lower.words import lower


def bell() -> Graph:
    """Outputs that share an exponential: every kind of node that has a way of its own to be carried."""
    g = Graph(inputs=("x", "y"), params=("p",))
    x, y, p = g.input("x"), g.input("y"), g.param("p")
    root = sqrt(madd(y, y, 1))
    t = (x - p) / root
    e = half_square(t)
    phi = times_exp_mantissa(1 / root, e) * (exp_factor(e, 0, 2) * exp_factor(e, 1, 2))
    series = horner(abs(t), [1, "0.3", "-0.07", "0.011"])
    left = x < p
    g.output("one", select(left, phi * series, 1 - phi * series))
    g.output("two", over_one_plus(t + -phi, t * t))
    g.output("three", root - y)
    return g


def test_a_trial_is_the_program_lowered_from_scratch() -> None:
    graph, rng = bell(), random.Random(3)
    numbers = np.random.default_rng(0)
    inputs = {
        name: numbers.uniform(low, high, 1500).astype(np.float32) for name, low, high in (("x", -4, 4), ("y", 0, 3))
    }
    params = {"p_hi": 0.25, "p_lo": 1e-9}
    seen: dict[str, np.ndarray] = {}

    def error(output: str, computed: np.ndarray) -> float:
        seen[output] = computed.copy()
        return float(np.abs(computed.astype(np.float64)).max())

    orders = {i: rng.choice([0, 0, 1]) for i in graph.live()}
    trials = Trials(graph, "f", orders, [Calibration(inputs, params, {}, error)])
    live, double = graph.live(), frozenset[int]()
    for _ in range(60):
        toggled = rng.sample(live, rng.choice([1, 1, 2, 10]))
        double = frozenset(double.symmetric_difference(toggled))
        seen.clear()
        trial = trials.measure(double)
        program = lower(graph, "f", double, orders)
        want = evaluate(program, inputs, params)
        assert trial.operations == program.operations
        for name, values in want.items():
            assert trial.error[name] == float(np.abs(values.astype(np.float64)).max())
            if name in seen:
                assert np.array_equal(seen[name], values, equal_nan=True)
    assert trials.tried == 60
