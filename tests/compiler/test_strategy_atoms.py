"""Rules found from f alone: the truth they are measured by, the form they take, and what they reach."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import sympy as sp
from quadrature_truth import moments, partials

from momentgen.compiler.derive import derive
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.function.activation import Line, analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.values import evaluate_float64
from momentgen.compiler.strategies import stabilise
from momentgen.rule import Rule
from momentgen.rule.symbols import S, x

MISH = x * sp.tanh(sp.log(1 + sp.exp(x)))
ELU = sp.Piecewise((x, x > 0), (sp.exp(x) - 1, True))
SHRINK = sp.Piecewise((x, x > sp.Rational(1, 2)), (x, x < -sp.Rational(1, 2)), (sp.Integer(0), True))
POINTS = [(0.49, 1e-4), (-0.7, 1e-9), (40.0, 900.0)]


@pytest.mark.parametrize(
    "f", [pytest.param(MISH, marks=pytest.mark.slow), ELU, SHRINK], ids=["mish", "elu", "hardshrink"]
)
def test_both_truths_agree_with_the_oracle(f: sp.Expr) -> None:
    activation = analyse("f", split(f), {})
    mean, var = (np.array(column, np.float32) for column in zip(*POINTS, strict=True))
    quick, balls = QuadratureTruth(activation)(mean, var, {}), BallTruth(activation)(mean, var, {})
    for i, (m, v) in enumerate(zip(mean.tolist(), var.tolist(), strict=True)):
        exact = dict(zip(("mean", "var"), moments(f, m, v, digits=20), strict=True)) | partials(f, m, v, digits=20)
        for name, value in exact.items():
            size = float(abs(value)) + {"var": 1e-6 * v}.get(name, 1e-6)
            assert abs(balls[name][i] - float(value)) < 1e-13 * size + 1e-15 * float(abs(value)), (name, m, v)
            assert abs(quick[name][i] - float(value)) < 1e-8 * size, (name, m, v)


@pytest.mark.parametrize("f", [sp.tanh(x), x * S(x), sp.log(1 + sp.exp(x))], ids=["tanh", "silu", "softplus"])
def test_small_and_wide_forms_of_a_smooth_f_meet_and_are_right(f: sp.Expr) -> None:
    activation = analyse("f", split(f), {})
    sigma = activation.length * np.array([0.2499, 0.2501, 0.1, 1e-3] * 4)
    mean, var = activation.centre + activation.length * np.repeat([-4.0, -0.6, 0.1, 2.5], 4), sigma**2
    found, balls = QuadratureTruth(activation).outputs(mean, var), BallTruth(activation)
    exact = [balls.at(*point) for point in zip(mean.tolist(), var.tolist(), strict=True)]
    for name, values in found.items():
        want = np.array([float(row[name]) for row in exact])
        assert np.abs(values / want - 1).max() < (1e-11 if name == "mean" else 3e-9), name
    far = QuadratureTruth(activation).outputs(np.array([-1e30, 1e30]), np.full(2, activation.length**2 / 100))
    assert all(np.isfinite(values).all() for values in far.values())


def test_what_f_is_is_found_from_its_expression() -> None:
    silu = analyse("silu", split(x * S(x)), {})
    assert silu.left == Line(0.0, 0.0)
    assert silu.right == Line(1.0, 0.0)
    assert abs(silu.lipschitz - 1.0998393194) < 1e-5
    assert analyse("tanh", split(sp.tanh(x)), {}).span == pytest.approx(2.0, abs=1e-9)
    assert analyse("shrink", split(SHRINK), {}).jumps == ((-0.5, 0.5), (0.5, 0.5))


def test_the_torch_form_of_a_kinked_rule_is_right_beyond_the_points_of_its_fit() -> None:
    (stable,) = stabilise(derive(Rule("shrink", f=SHRINK)))
    mean, var = np.array([-4.42, 2.7], np.float32), np.array([0.241, 0.65], np.float32)
    graph = stable.forward64
    values = evaluate_float64(graph, {"mean": mean, "var": var})
    for i, (m, v) in enumerate(zip(mean.tolist(), var.tolist(), strict=True)):
        exact = moments(SHRINK, m, v, digits=20)
        for name, value in zip(("mean", "var"), exact, strict=True):
            assert abs(values[graph.outputs[name]][i] - float(value)) < 1e-8, (name, m, v)


def test_sine_and_square_are_exact_in_the_closed_algebra() -> None:
    for f, v in ((sp.sin(x), 1e-8), (x**2, 3.0)):
        (stable,) = stabilise(derive(Rule("elementary", f=f)))
        points = {"mean": np.array([0.8]), "var": np.array([v])}
        for graph in (stable.forward64, stable.partials64):
            values = evaluate_float64(graph, points)
            exact = dict(zip(("mean", "var"), moments(f, 0.8, v, digits=20), strict=True))
            exact |= partials(f, 0.8, v, digits=20)
            for name, index in graph.outputs.items():
                assert mpmath.almosteq(float(np.ravel(values[index])[0]), exact[name], rel_eps=1e-12), (f, name)
