"""Smooth activations in float32: polynomials of two variables, and f(mu) itself at v = 0."""

from __future__ import annotations

from functools import lru_cache

import mpmath
import numpy as np
import pytest
import sympy as sp
from compiler.forms import function

from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.function.activation import analyse
from momentgen.compiler.function.pieces import split
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.lower.words import lower
from momentgen.compiler.measure.moments import MEAN_SPREAD, measure_for
from momentgen.compiler.measure.ulp import ulp_error
from momentgen.compiler.strategies.surfaces import surface_search
from momentgen.compiler.strategies.surfaces.point import PointWriter, has_point_form
from momentgen.compiler.strategies.surfaces.surface import (
    VANISHING,
    Frame,
    Surface,
    decay,
    end_of,
    flip_of,
    is_level,
    plain_of,
)
from momentgen.compiler.strategies.surfaces.surface_graph import build_surface_graph, kink_fit
from momentgen.compiler.strategies.surfaces.surface_search import find_surfaces
from momentgen.errors import BuildError
from momentgen.rule.symbols import Phi, S, x

F32 = np.ndarray[tuple[int], np.dtype[np.float32]]
SOFTPLUS = sp.log(1 + sp.exp(x))
GELU_TANH = x * (1 + sp.tanh(sp.sqrt(2 / sp.pi) * (x + sp.Rational(44715, 1000000) * x**3))) / 2
POINT_FORMS = {
    "sigmoid": S(x),
    "tanh": sp.tanh(x),
    "silu": x * S(x),
    "softplus": SOFTPLUS,
    "logsigmoid": -SOFTPLUS.subs(x, -x),
    "mish": x * sp.tanh(SOFTPLUS),
    "erf": sp.erf(x),
    "gelu": x * Phi(x),
    "gelu_tanh": GELU_TANH,
}


def run(graph: Graph, mean: F32, var: F32) -> dict[str, F32]:
    return dict(evaluate(lower(graph, "f", frozenset(), {}), {"mean": mean, "var": var}, {}))


def truth_of(f: sp.Expr) -> QuadratureTruth | GeneralTruth:
    activation = analyse("f", split(f))
    return GeneralTruth(activation) if activation.algebraic else QuadratureTruth(activation)


@lru_cache
def surfaces_of(f: sp.Expr, outputs: tuple[str, ...]) -> dict[str, Surface]:
    return find_surfaces(analyse("f", split(f)), truth_of(f), outputs)


@pytest.mark.parametrize("name", POINT_FORMS)
def test_f_at_a_point_is_right_to_a_few_ulp(name: str) -> None:
    f = POINT_FORMS[name]
    graph = Graph(("mean", "var"))
    graph.output("mean", PointWriter(graph, graph.input("mean")).node(f))
    rng = np.random.default_rng(5)
    size = np.concatenate([rng.uniform(0, 9, 150), np.exp2(rng.uniform(-20, 0, 80)), [0.55, 0.75, 2.0**-60]])
    mean = (size * rng.choice([-1, 1], size.size)).astype(np.float32)
    with mpmath.workdps(60):
        exact = np.array([float(function(f, [x])(mpmath.mpf(at))) for at in mean.tolist()])
    computed = run(graph, mean, np.zeros_like(mean))["mean"]
    # Half an ulp of an exponent g is g/2 ulp of exp(g); a cubic polynomial is rounded four times.
    exponents = {"gelu": mean**2 / 2, "erf": mean**2, "gelu_tanh": 4 * np.abs(1.6 * mean + 0.0715 * mean**3)}
    assert (ulp_error(computed, exact) <= 5 + exponents.get(name, 0 * mean)).all()


def test_f_at_zero_and_far_out_is_exact() -> None:
    mean = np.array([0.0, 200.0, -200.0, 3e38, -3e38], np.float32)
    for name, right in (("silu", mean[3]), ("mish", mean[3]), ("gelu", mean[3]), ("tanh", 1)):
        graph = Graph(("mean", "var"))
        graph.output("mean", PointWriter(graph, graph.input("mean")).node(POINT_FORMS[name]))
        computed = run(graph, mean, np.zeros_like(mean))["mean"]
        assert computed[0] == 0
        assert computed[3] == right
        assert computed[4] == (0 if right != 1 else -1)


def test_an_f_of_other_functions_has_no_form_for_a_point() -> None:
    assert not has_point_form(sp.atan(x))
    assert not has_point_form(x / (1 + sp.exp(x)))
    assert all(has_point_form(f) for f in POINT_FORMS.values())


@pytest.mark.parametrize(
    "f",
    [
        sp.erf(x),
        pytest.param(sp.exp(-(x**2) / 2), marks=pytest.mark.slow),
        pytest.param(SOFTPLUS, marks=pytest.mark.slow),
        pytest.param(x - sp.tanh(x), marks=pytest.mark.slow),
        pytest.param(x * S(x), marks=pytest.mark.slow),
        sp.atan(x),
        pytest.param(x / (1 + x**2), marks=pytest.mark.slow),
        pytest.param(x / 2 + sp.sqrt(1 + x**2), marks=pytest.mark.slow),
    ],
    ids=["erf", "bell", "softplus", "tanhshrink", "silu", "atan", "lorentz", "bent"],
)
def test_float32_outputs_are_within_the_tolerance_of_exact_values(f: sp.Expr) -> None:
    activation = analyse("f", split(f))
    truth = truth_of(f)
    measure, balls = measure_for(activation, truth), BallTruth(activation)
    rng = np.random.default_rng(2)
    var = np.exp2(rng.uniform(-30, 30, 120)).astype(np.float32)
    mean = (rng.normal(0, 3, 120) * (activation.length + np.sqrt(var))).astype(np.float32)
    exact = balls(mean, var, {})
    for outputs in (OUTPUTS, PARTIALS):
        graph, _ = build_surface_graph(activation, surfaces_of(f, outputs), outputs)
        computed = run(graph, mean, var)
        for name in outputs:
            # Single floats throughout: the build makes double-floats of what far means of size sigma need.
            goal = 2.0 if name == "mean" and not np.isfinite(activation.span) else 1.0
            assert measure(name, computed[name], exact[name], mean, var).max() <= goal, name


def test_bounds_hold_where_polynomials_would_pass_them() -> None:
    activation = analyse("erf", split(sp.erf(x)))
    surfaces = surfaces_of(sp.erf(x), OUTPUTS)
    assert surfaces["mean"].fit.even == ()  # odd in mu
    assert surfaces["var"].fit.odd == ()
    graph, _ = build_surface_graph(activation, surfaces, OUTPUTS)
    rng = np.random.default_rng(3)
    var = np.exp2(rng.uniform(-126, 127, 4000)).astype(np.float32)
    mean = (rng.choice([-1, 1], 4000) * np.exp2(rng.uniform(-126, 127, 4000))).astype(np.float32)
    computed = run(graph, mean, var)
    assert (computed["var"] >= 0).all()
    assert (np.abs(computed["mean"]) <= 1).all()
    odd = run(graph, -mean, var)
    assert np.array_equal(odd["mean"], -computed["mean"])
    assert np.array_equal(odd["var"], computed["var"])
    broken = run(graph, np.array([0.5, np.nan], np.float32), np.array([-1e-3, 1.0], np.float32))
    assert np.isnan(broken["mean"]).all()
    assert np.isnan(broken["var"]).all()


def test_what_is_left_of_a_mean_changes_sign_with_t_and_w_and_a_variance_has_no_such_symmetry() -> None:
    level, kinked = analyse("tanh", split(sp.tanh(x))), analyse("silu", split(x * S(x)))
    assert [flip_of(level, name) for name in (*OUTPUTS, *PARTIALS)] == [-1, 0, 1, -1, 0, 0]
    assert [flip_of(kinked, name) for name in (*OUTPUTS, *PARTIALS)] == [1, 0, -1, 1, 0, 0]


@pytest.mark.parametrize(
    ("f", "powers"),
    [
        (sp.erf(x), [0, 1, 2, 0, 1, 2]),
        (x * Phi(x), [1, 0, 1, 0, 1, 0]),
        (sp.exp(-(x**2)), [1, 2, 3, 1, 2, 3]),
        (x * sp.exp(-(x**2)), [2, 3, 4, 1, 2, 3]),
        (2 * x + sp.exp(-(x**2)), [1, 2, 3, 0, 3, 0]),
        (2 * x + x * sp.exp(-(x**2)), [2, 3, 4, 0, 4, 0]),
        (sp.atan(x), [0, 1, 2, 0, 1, 2]),
        (sp.sqrt(1 + x**2), [0, 0, 1, 0, 1, 0]),
        (x / (1 + x**2), [0, 2, 3, 0, 2, 3]),
        (x / (1 + sp.Abs(x)), [0, 1, 2, 0, 1, 2]),
    ],
    ids=str,
)
def test_outputs_fall_with_sigma_as_the_power_that_is_divided_out(f: sp.Expr, powers: list[int]) -> None:
    activation = analyse("f", split(f))
    found = decay(activation)
    assert [found[name] for name in ("mean", "dmean_dmu", "dmean_dvar", "var", "dvar_dmu", "dvar_dvar")] == powers
    if activation.algebraic:
        return
    balls, t = BallTruth(activation), np.array([-1.7, -0.6, 0.4, 1.1])
    sizes = []
    for sigma in (2.0**10, 2.0**11):
        mean, var = (t * sigma).astype(np.float32), np.full(4, sigma**2, np.float32)
        exact = balls(mean, var, {})
        base = 1.0 if is_level(activation) else sigma**2
        sizes.append(
            {
                name: np.abs(exact[name] - plain_of(activation, name, mean.astype(np.float64), np.full(4, sigma)))
                / (base if name in VANISHING else 1.0)
                for name in decay(activation)
            }
        )
    for name, power in decay(activation).items():
        # Not faster, or a polynomial would have to vanish at 1/w = 0; and for partials not slower.
        ratio = float((sizes[1][name] / sizes[0][name]).max())
        assert ratio < 1.02 * 2.0**-power, name
        if name in ("dmean_dmu", "dmean_dvar"):
            assert ratio > 0.98 * 2.0**-power, name


def test_a_mean_whose_coefficients_float32_does_not_hold_is_refused_with_that_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f = analyse("mine", split(sp.erf(x)))
    monkeypatch.setattr(surface_search, "_ROUNDED", 1e-3)
    with pytest.raises(BuildError, match=r"coefficients of .* in all, which float32 does not hold to 1e-06"):
        find_surfaces(f, QuadratureTruth(f), ("mean",))


@pytest.mark.parametrize("both", [False, True])
def test_a_frame_without_a_reach_goes_to_where_nothing_changes_any_more(both: bool) -> None:
    frame = Frame(1.0, 3.5, 2.0**24, both=both)
    assert frame.is_slow
    s = np.array([-0.9, -0.3, 0.0, 0.5, 0.99]) * frame.largest
    t = frame.t_of(s)
    back = 2 * t / (3.5 + np.hypot(3.5, 2 * t)) if both else t / np.hypot(3.5, t)
    np.testing.assert_allclose(back, s, rtol=1e-12)
    assert float(frame.t_of(np.array(frame.largest))) == pytest.approx(2.0**24, rel=0.02)


def test_where_the_mean_cancels_the_smoothed_kink_is_right_to_what_is_allowed_to_sigma() -> None:
    frame = Frame(2.0, 3.0, 9.0)
    fit = kink_fit(frame, True)
    worst = 0.0
    for t in np.linspace(0, 9, 181).tolist():
        s = t / np.hypot(frame.bend, t)
        at = mpmath.mpf(s / frame.largest) - mpmath.mpf(0.5)
        core = mpmath.polyval(list(reversed(fit.coefficients)), at)
        exact = mpmath.npdf(t) - t * mpmath.ncdf(-t)
        worst = max(worst, float(abs(mpmath.exp(-(mpmath.mpf(t) ** 2) / 2) * core - exact)))
    assert worst <= MEAN_SPREAD / 4
    assert len(fit.coefficients) > len(kink_fit(frame, False).coefficients)


def test_a_function_that_is_nearly_its_lines_ends_at_once() -> None:
    f = analyse("flat", split(x + sp.Float("1e-12") * sp.tanh(x)))
    assert end_of(f, 1e-7, 1e-6) == 0.0
