"""One-kink rules without cancellation: the forms and the graphs mean the derived moments, and are well conditioned."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp
from compiler.forms import function, in_float32
from real_rules import rules, stables

from momentgen.build.native_kernel import NativeKernel
from momentgen.compiler.derive import derive
from momentgen.compiler.derive.forms import OutputForm, output_forms
from momentgen.compiler.ir.kit import FLOAT64
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, SIX
from momentgen.compiler.ir.values import evaluate_mpmath
from momentgen.compiler.lower.words import lower
from momentgen.compiler.measure.ulp import ulp_error
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.homogeneous.kink import stable_variants, why_not
from momentgen.compiler.strategies.homogeneous.kink_graph import build_graph
from momentgen.native.c_compiler import find_compiler
from momentgen.rule import Parameter, Rescaled, Rule, S, x
from momentgen.rule.symbols import Phi, mu, phi, v

NAMES = [name for name in ("relu", "leaky_relu", "abs", "heaviside", "relu_squared") if name in rules()]
VARIANTS = [
    (name, variant) for name in NAMES for variant in ("exact", "tight") if (name, variant) != (NAMES[-1], "tight")
]
DIGITS = 60


@functools.lru_cache
def forms_of(name: str) -> dict[str, OutputForm]:
    derivation = derive(rules()[name])
    return output_forms(derivation.mean, derivation.second, int(derivation.degree))


def parameters(name: str, value: str = "0.3") -> dict[str, Any]:
    with mpmath.workdps(DIGITS):
        return {p.name: mpmath.mpf(value) for p in rules()[name].parameters}


@functools.lru_cache
def closed_forms(name: str) -> Mapping[str, Any]:
    """The derived moments as mpmath functions of mean, variance and parameters."""
    derivation = derive(rules()[name])
    exprs = {"mean": derivation.mean, "var": derivation.var, **derivation.partials}
    names = [mu, v, *(p.symbol for p in rules()[name].parameters)]
    return {key: function(expr, names) for key, expr in exprs.items()}


def exact(name: str, mean: Any, var: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: mpmath.mpf(f(mean, var, *params.values())) for key, f in closed_forms(name).items()}


def random_points(seed: int, count: int = 25, reach: float = 15.0) -> list[tuple[Any, Any]]:
    rng = random.Random(seed)
    points = []
    for _ in range(count):
        var = mpmath.mpf(10) ** rng.uniform(-6, 6)
        points.append((rng.uniform(-reach, reach) * mpmath.sqrt(var), var))
    return points


@pytest.mark.parametrize("name", NAMES)
def test_terms_of_the_forms_do_not_cancel_in_the_tails(name: str) -> None:
    params = parameters(name)
    form_of = forms_of(name)
    for output, form in form_of.items():
        for t in (1.5, 2, 3, 5, 10, 20, 35):
            assert form.plus.condition(t, params) < 8, (output, t)
            # A mean that changes sign is expanded there.
            if not (output == "mean" and name == "leaky_relu"):
                assert form.minus.condition(t, params) < 8, (output, -t)


@pytest.mark.parametrize("name", NAMES)
def test_parity_read_off_the_forms_is_that_of_the_moments(name: str) -> None:
    params = parameters(name)
    with mpmath.workdps(60):
        for output, form in forms_of(name).items():
            values = [(form.plus.value(t, params), form.minus.value(t, params)) for t in (0.3, 1.1, 2.7)]
            for sign in (1, -1):
                agrees = all(abs(b - sign * a) <= abs(a) * mpmath.mpf(10) ** -50 for a, b in values)
                assert agrees == (form.parity == sign), output


@pytest.mark.parametrize("name", NAMES)
def test_graph_for_float64_means_the_moments(name: str) -> None:
    params = parameters(name)
    check_graph(name, [build_graph(forms_of(name), params, FLOAT64, o)[0] for o in (OUTPUTS, PARTIALS)], params, 2e-15)


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_graphs_for_float32_mean_the_moments_to_the_error_of_their_fits(name: str, variant: str) -> None:
    stable = stables(name)[variant]
    tolerance = max(float(fit.error) for fit in stable.fits)
    params: dict[str, Any] = {p.name: 0.3 for p in rules()[name].parameters}
    scalars = stable.scalars(params)
    graphs = [stable.forward, stable.partials]
    names = [p for p in graphs[0].params if p not in params]
    pairs = dict(zip(names, zip(scalars[::2], scalars[1::2], strict=True), strict=True)) if scalars else {}
    derived = {key: mpmath.mpf(hi) + mpmath.mpf(lo) for key, (hi, lo) in pairs.items()}
    check_graph(name, graphs, params, tolerance, derived)


def check_graph(
    name: str, graphs: list[Any], params: Mapping[str, Any], tolerance: float, derived: Mapping[str, Any] | None = None
) -> None:
    with mpmath.workdps(120):
        params = {key: mpmath.mpf(value) for key, value in params.items()}
        for mean, var in random_points(2, count=40, reach=12.0):
            want = exact(name, mean, var, params)
            got: dict[str, Any] = {}
            for graph in graphs:
                got |= evaluate_mpmath(graph, {"mean": mean, "var": var, **params, **(derived or {})})
            for output in SIX:
                assert abs(got[output] - want[output]) <= 8 * tolerance * abs(want[output]), (output, mean, var)


@pytest.mark.parametrize("slope", [1.2, 4.0, 0.25, 0.0, 1.0])
def test_a_prelu_s_mean_is_right_beside_its_zero_on_either_side_of_0_and_its_variance_where_it_is_steep(
    slope: float,
) -> None:
    w = Parameter("w", default=2.0, low=0.0, high=4.0)
    stable, *_ = stable_variants(
        derive(Rule("mine", f=sp.Piecewise((x, x > 0), (w.symbol * x, True)), parameters=(w,)))
    )
    setting, rng, points = {"w": slope}, random.Random(5), []
    zeros = stable.focus(setting)
    assert len(zeros) == (0 if slope in (0.0, 1.0) else 1)
    assert all((zero > 0) == (slope > 1) for zero in zeros)
    for _ in range(300):
        var = 2.0 ** rng.uniform(-100, 127.9)
        a = rng.choice([*zeros, 1.0]) * (1 + 2.0 ** rng.uniform(-24, 3)) * rng.choice([1, 1, 1, -1])
        points.append((a * var**0.5, var))
    mean, var_ = np.array(points, np.float32).T.copy()
    want = stable.truth(mean, var_, setting)
    got = in_float32(stable, mean, var_, setting)
    for output in OUTPUTS:
        assert ulp_error(got[output], want[output]).max() <= 3, output
        beyond = np.abs(want[output]) > 3.41e38
        assert (got[output][beyond] == np.finfo(np.float32).max).all(), output


@pytest.mark.slow
@pytest.mark.parametrize(("default", "low", "high"), [(2.0, 1.0, 4.0), (0.25, 0.0, 4.0)])
def test_a_prelu_whose_slope_may_exceed_1_builds_in_both_variants(default: float, low: float, high: float) -> None:
    w = Parameter("w", default=default, low=low, high=high)
    built = compile_rule(Rule("mine", f=sp.Piecewise((x, x > 0), (w.symbol * x, True)), parameters=(w,)))
    assert [variant.name for variant in built.variants] == ["exact", "tight"]
    for variant, goal in zip(built.variants, (8.0, 2.0), strict=True):
        assert all(float(bound.split()[0]) <= goal for bound in variant.bounds.values()), variant.bounds


SQUARES = [(0.0, 1.0), (-1e20, 1e38), (3e37, 2e-38), (-2.6e18, 1.7e34), (1e-30, 6e-39), (1.3e19, 1e38)]
HIGHER = [(0.0, 1.0), (-1.4e20, 6.2e37), (-2.5e20, 2.36e38), (1e37, 2e-38), (1e-30, 6e-39)]


@pytest.mark.parametrize(
    ("f", "points"),
    [
        *((f, SQUARES) for f in (sp.Max(x, 0) ** 2, x * sp.Abs(x))),
        *((f, HIGHER) for f in (sp.Max(x, 0) ** 3, sp.Abs(x) ** 3, sp.Max(x, 0) ** 4)),
    ],
    ids=str,
)
def test_a_power_beside_a_kink_keeps_what_float32_holds(f: Any, points: list[tuple[float, float]]) -> None:
    rng, points = random.Random(7), [*points]
    for _ in range(300):
        var = 2.0 ** rng.uniform(-120, 127)
        points.append((rng.uniform(-28, 28) * var**0.5, var))
    (stable,), (mean, var_) = stable_variants(derive(Rule("mine", f=f))), np.array(points, np.float32).T.copy()
    got, want = in_float32(stable, mean, var_), stable.truth(mean, var_, {})
    for output in SIX:
        assert ulp_error(got[output], want[output]).max() <= 2, output
        assert np.isfinite(got[output]).all(), output
        # What overflows is the largest number.
        beyond = np.abs(want[output]) > 3.41e38
        largest = np.float32(3.4028234e38) * np.sign(want[output][beyond])
        assert got[output][beyond].tolist() == largest.tolist(), output


def test_a_moment_that_is_not_linear_in_phi_is_refused() -> None:
    a = mu / sp.sqrt(v)
    with pytest.raises(ValueError, match="not linear"):
        output_forms(Phi(a) ** 2, Phi(a), 0)
    with pytest.raises(ValueError, match="not sigma"):
        output_forms(mu * Phi(a) + phi(a), v * Phi(a), 1)


def test_only_homogeneous_functions_with_a_kink_at_zero_are_taken() -> None:
    assert not any(why_not(derive(rules()[name])) for name in NAMES)
    assert why_not(derive(Rule("shifted", f=sp.Max(x, 1))))
    assert why_not(derive(Rule("mixed", f=sp.Max(x, 0) + sp.Abs(x) * x)))
    assert np.isfinite(float(exact(NAMES[0], mpmath.mpf(0), mpmath.mpf(1), parameters(NAMES[0]))["mean"]))


# Rules with parameters from a base: what is proved of them, and their moments by the oracle at many settings.
RULES = Path(__file__).parents[2] / "rules"
w = Parameter("w", default=1, low=0.5, high=2)


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


def test_a_draw_of_0_or_1_has_no_units_of_its_own() -> None:
    assert derive(Rule("gate", f=S(W * x), parameters=(w,), bernoulli=True)).units is None


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
def test_variances_whose_square_of_the_width_over_or_underflows_are_carried() -> None:
    from momentgen.compiler.emit import Header, render_c

    stable = stables("celu")["exact"]
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
