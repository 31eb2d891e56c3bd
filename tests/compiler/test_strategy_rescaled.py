"""Rules with parameters from a base: what is proved of them, and their moments by the oracle at many settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sympy as sp
from compiler.forms import in_float32

from momentgen.build.native_kernel import NativeKernel
from momentgen.compiler.derive import derive
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.ir.values import evaluate_float64
from momentgen.compiler.lower.words import lower
from momentgen.compiler.strategies import stabilise
from momentgen.native.c_compiler import find_compiler
from momentgen.rule import Parameter, Rescaled, Rule, S, load_rules, x

RULES = Path(__file__).parents[2] / "rules"
w = Parameter("w", default=1, low=0.5, high=2)


def stable_of(name: str) -> Stable:
    (stable,) = (s for s in stabilise(derive(load_rules(RULES / f"{name}.py")[0])) if s.variant == "exact")
    return stable


def test_elu_of_alpha_1_and_celu_are_one_function_and_selu_is_a_scaled_elu() -> None:
    mean, var = np.linspace(-3, 3, 41), np.full(41, 0.7)
    found = {}
    for name, setting in (("elu", {"alpha": 1.0}), ("celu", {"alpha": 1.0}), ("selu", {})):
        graph = stable_of(name).forward64
        values = evaluate_float64(graph, {"mean": mean, "var": var, **setting})
        found[name] = {n: values[i] for n, i in graph.outputs.items()}
    for output in ("mean", "var"):
        np.testing.assert_allclose(found["elu"][output], found["celu"][output], rtol=1e-13, atol=1e-15)
    elu = stable_of("elu").forward64
    values = evaluate_float64(elu, {"mean": mean, "var": var, "alpha": 1.6732632423543772})
    scale = 1.0507009873554805
    np.testing.assert_allclose(found["selu"]["mean"], scale * values[elu.outputs["mean"]], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found["selu"]["var"], scale**2 * values[elu.outputs["var"]], rtol=1e-12)


a = Parameter("alpha", default=2, low=0.5, high=4)
d = Parameter("delta", default=0, low=-3, high=3)
A, D, W = a.symbol, d.symbol, w.symbol


@pytest.mark.parametrize(
    ("f", "units"),
    [
        (x * S(W * x), Rescaled(x * S(x), width=1 / W, scale=1 / W)),
        (A * sp.tanh(W * x), Rescaled(sp.tanh(x), width=1 / W, scale=A)),
        (sp.tanh(x - D) + D, Rescaled(sp.tanh(x), centre=D, offset=D)),
        (sp.exp(-(((x - D) / W) ** 2)), Rescaled(sp.exp(-(x**2)), centre=D, width=W)),
        (sp.Max(0, sp.Min(W, x)), Rescaled(sp.Max(0, sp.Min(1, x)), width=W, scale=W)),
        (sp.Max(D - W, sp.Min(D + W, x)), Rescaled(sp.Max(-1, sp.Min(1, x)), D, W, W, D)),
        (
            sp.Piecewise((A * x / W, x > 0), (A * (sp.exp(x / W) - 1), True)),
            Rescaled(sp.Piecewise((x, x > 0), (sp.exp(x) - 1, True)), width=W, scale=A),
        ),
    ],
    ids=["swish", "dyt", "moved", "gaussian", "capped", "clamp", "pelu"],
)
def test_units_in_which_f_has_no_parameters_are_found(f: sp.Expr, units: Rescaled) -> None:
    derivation = derive(Rule("mine", f=f, parameters=tuple(p for p in (a, d, w) if f.has(p.symbol))))
    assert derivation.rule.rescaled == derivation.units == units


@pytest.mark.parametrize("f", [sp.Max(x, 0) + A * sp.tanh(x), x * S(x) + W * sp.exp(-(x**2)), sp.tanh(x) ** 3 - D * x])
def test_parameters_that_do_more_than_scale_are_left_as_they_are(f: sp.Expr) -> None:
    derivation = derive(Rule("mine", f=f, parameters=tuple(p for p in (a, d, w) if f.has(p.symbol))))
    assert derivation.rule.rescaled is derivation.units is None


def test_the_slopes_of_a_bump_far_out_are_those_of_its_closed_form() -> None:
    mu, v, bump = sp.Symbol("mu"), sp.Symbol("v", positive=True), sp.exp(-(x**2))
    f = bump.subs(x, x / w.symbol) + 3
    (stable,) = stabilise(derive(Rule("bump", f=f, parameters=(w,))))
    width, var = 1.5, 2.0**104  # inputs beyond 2^100 are brought down, and outputs back
    mean = np.array([-1.0, 0.5, 2.0], np.float32) * np.float32(2.0**52)
    found = in_float32(stable, mean, np.full_like(mean, var), {"w": width})
    spreads = [(k, width**2 + 2 * k * v) for k in (1, 2)]  # of exp(-k x²/w²), the bump and its square
    first, second = (width / sp.sqrt(spread) * sp.exp(-k * mu**2 / spread) for k, spread in spreads)
    for output, of in (("dmean_dmu", first), ("dvar_dmu", second - first**2)):
        slope = sp.diff(of, mu)
        wanted = np.array([float(slope.subs({mu: sp.Float(m, 30), v: sp.Float(var, 30)})) for m in mean.tolist()])
        np.testing.assert_allclose(found[output], wanted, rtol=0, atol=2e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["celu", "hardtanh", "softshrink", "hardshrink", "softplus", "threshold"])
def test_bases_of_the_rules_are_proved(name: str) -> None:
    (rule,) = load_rules(RULES / f"{name}.py")
    derivation = derive(rule)
    assert derivation.base is not None
    assert derivation.rule.rescaled is not None
    assert derivation.base.rule.f == derivation.rule.rescaled.of


def test_a_draw_of_0_or_1_has_no_units_of_its_own() -> None:
    assert derive(Rule("gate", f=S(W * x), parameters=(w,), bernoulli=True)).units is None


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
def test_variances_whose_square_of_the_width_over_or_underflows_are_carried() -> None:
    from momentgen.compiler.emit import Header, render_c

    stable = stable_of("celu")
    program = lower(stable.forward, "celu", frozenset(), {})
    kernel = NativeKernel(render_c((program,), Header("celu", "")), "celu", 2, 2, 2)
    mean, var = np.float32([1e38, 0.0, -1e30, 3.0]), np.float32([3e38, 2e38, 1e-30, 1e-37])
    for alpha in (1 / 16, 16.0):
        m, v = kernel(mean, var, params=[alpha, 0.0])
        np.testing.assert_allclose(m[[0, 3]], mean[[0, 3]], rtol=1e-6)
        np.testing.assert_allclose(v[[0, 3]], [3e38, 1e-37], rtol=1e-5)
        # X of a vast spread is max(X, 0) to CELU
        np.testing.assert_allclose(m[1], np.sqrt(2e38 / (2 * np.pi)), rtol=1e-6)
        np.testing.assert_allclose(v[1], 2e38 * (1 / 2 - 1 / (2 * np.pi)), rtol=1e-5)
        np.testing.assert_allclose(m[2], -alpha, rtol=1e-6)
        assert v[2] == 0
