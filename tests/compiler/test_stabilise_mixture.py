"""The logistic transform: what its graphs mean, and how accurate they are in plain float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quadrature_truth import moments
from quadrature_truth import partials as oracle_partials

from momentgen.compiler.derive import Derivation, derive
from momentgen.compiler.evaluate import CompiledProgram, compile_program
from momentgen.compiler.lower import lower
from momentgen.compiler.points import calibration_points, edge_points, in_domain, wide_points
from momentgen.compiler.real import Graph, evaluate_float64, evaluate_mpmath
from momentgen.compiler.stabilise import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.stabilise.mixture import applies, stable_variants
from momentgen.compiler.stabilise.mixture_graph import SWITCH
from momentgen.compiler.stabilise.mixture_truth import logistic_moments, logistic_truth
from momentgen.errors import BuildError
from momentgen.rule import Accuracy, InputBox, Rule, S, ScaleMixture, x

F32 = npt.NDArray[np.float32]


def _rule(**changes: object) -> Rule:
    data: dict[str, object] = {
        "f": S(x),
        "surrogate": ScaleMixture(of="logistic", terms=7, sup_error=2e-8),
        "accuracy": Accuracy(
            mean_abs=3e-7, var_abs=3e-7, var_rel=1e-5, var_rel_domain=InputBox(mu=(-4.0, 4.0), v=(0.0, 1.0))
        ),
    }
    return Rule("logistic_transform", **{**data, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def derivation() -> Derivation:
    return derive(_rule())


@pytest.fixture(scope="module")
def stable(derivation: Derivation) -> Stable:
    (variant,) = stable_variants(derivation)
    return variant


@pytest.fixture(scope="module")
def programs(stable: Stable) -> tuple[CompiledProgram, CompiledProgram]:
    """Forward and partials with every node a single float32."""
    forward, partials = (
        compile_program(lower(graph, name, frozenset(), {}))
        for name, graph in (("forward", stable.forward), ("partials", stable.partials))
    )
    return forward, partials


def _floats(*values: float) -> F32:
    return np.array(values, dtype=np.float32)


def _run(programs: tuple[CompiledProgram, CompiledProgram], mean: F32, var: F32) -> dict[str, F32]:
    inputs = {"mean": np.asarray(mean, np.float32), "var": np.asarray(var, np.float32)}
    return {**programs[0](inputs, {}), **programs[1](inputs, {})}


# --- truth -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mu", "v"),
    [
        (0.5, 1e-12),
        (-50.0, 0.25),
        (3.0, 1.5625),
        pytest.param(3.0, 1.625, marks=pytest.mark.slow),
        (-7.0, 40.0),
        (20.0, 1000.0),
        pytest.param(20.0, 1030.0, marks=pytest.mark.slow),
        (1e3, 1e6),
    ],
)
def test_truth_agrees_with_quadrature_of_f_itself(mu: float, v: float) -> None:
    with mpmath.workdps(30):
        mean, var = moments(S(x), mu, v, digits=20)
        expected = {"mean": mean, "var": var, **oracle_partials(S(x), mu, v, digits=20)}
        for name, value in logistic_moments(mu, v).items():
            error = abs(mpmath.mpf(value.str(30, radius=False)) - expected[name])
            relative = abs(expected[name]) * mpmath.mpf("1e-17")
            assert error <= (relative if v <= 1.5625 else max(relative, mpmath.mpf("1e-18"))), name


def test_forms_of_the_truth_agree_where_they_meet() -> None:
    with mpmath.workdps(30):
        for v in (float(np.nextafter(1.5625, 2)), 1024.0):
            for mu in (0.0, -1.0, 3.0, 30.0):
                below, above = logistic_moments(mu, float(np.nextafter(v, 0))), logistic_moments(mu, v)
                for name, value in below.items():
                    gap = mpmath.mpf((value - above[name]).str(20, radius=False))
                    assert abs(gap) < 1e-16, name  # that much the function itself moves


def test_truth_at_zero_variance_is_f_and_its_derivatives() -> None:
    values = logistic_truth(_floats(-2.0), _floats(0.0), {})
    with mpmath.workdps(30):
        p = 1 / (1 + mpmath.exp(2))
        slope = p * (1 - p)
        expected = (p, 0, slope, slope * (1 - 2 * p) / 2, 0, slope**2)
    assert [values[n][0] for n in (*OUTPUTS, *PARTIALS)] == pytest.approx([float(e) for e in expected], rel=1e-15)


def test_truth_refuses_a_negative_variance() -> None:
    with pytest.raises(ValueError, match="variance"):
        logistic_moments(0.0, -1.0)


# --- what the graphs mean ------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(mu=st.floats(-30, 30), log_v=st.floats(-30, 30))
def test_float64_graphs_are_the_moments_to_1e_10(stable: Stable, mu: float, log_v: float) -> None:
    v = 2.0**log_v
    exact = logistic_moments(mu, v)
    with mpmath.workdps(40):
        values = {**_at(stable.forward64, mu, v), **_at(stable.partials64, mu, v)}
        for name, value in values.items():
            assert abs(value - mpmath.mpf(exact[name].str(30, radius=False))) < mpmath.mpf("1.5e-10"), name


@settings(max_examples=40, deadline=None)
@given(mu=st.floats(-30, 30), log_v=st.floats(-30, 30))
def test_float32_graphs_are_the_moments_within_half_the_tolerance(stable: Stable, mu: float, log_v: float) -> None:
    mean, var = _floats(mu), _floats(2.0**log_v)
    exact = stable.truth(mean, var, {})
    for graph in (stable.forward, stable.partials):
        values = evaluate_float64(graph, {"mean": mean, "var": var})
        for name, index in graph.outputs.items():
            # The measure takes float32 for what a program computes; here it is exact but for float64.
            assert stable.measure(name, values[index], exact[name], mean, var)[0] < 0.5, name


@settings(max_examples=30, deadline=None)
@given(mu=st.floats(-12, 12), v=st.one_of(st.floats(1e-3, 1.05), st.floats(1.07, 50), st.just(1.0)))
def test_float64_partials_are_the_derivatives_of_the_float64_forward(stable: Stable, mu: float, v: float) -> None:
    with mpmath.workdps(40):
        h = mpmath.mpf("1e-8")
        partials = _at(stable.partials64, mu, v)
        for symbol, (du, dv) in {"mu": (h, 0), "var": (0, h)}.items():
            up = _at(stable.forward64, mpmath.mpf(mu) + du, mpmath.mpf(v) + dv)
            down = _at(stable.forward64, mpmath.mpf(mu) - du, mpmath.mpf(v) - dv)
            for name in OUTPUTS:
                difference = (up[name] - down[name]) / (2 * h)
                assert abs(difference - partials[f"d{name}_d{symbol}"]) < 1e-9, (name, symbol)


def test_forms_meet_at_the_switch(stable: Stable) -> None:
    mean = np.linspace(-12, 12, 97)
    below, above = (np.full_like(mean, float(SWITCH) * (1 + side)) for side in (-1e-15, 1e-15))
    for graph in (stable.forward64, stable.partials64):
        left, right = (evaluate_float64(graph, {"mean": mean, "var": v}) for v in (below, above))
        for name, index in graph.outputs.items():
            assert np.abs(left[index] - right[index]).max() < 2e-10, name


def _at(graph: Graph, mu: object, v: object) -> dict[str, mpmath.mpf]:
    return evaluate_mpmath(graph, {"mean": mu, "var": v})


# --- float32 -------------------------------------------------------------------------
@pytest.mark.parametrize("region", ["calibration", "box", "wide", "edges", "switch"])
def test_single_floats_keep_every_output_within_the_aim(
    stable: Stable, programs: tuple[CompiledProgram, CompiledProgram], region: str
) -> None:
    rng = np.random.default_rng(7)
    regions: dict[str, Callable[[], tuple[npt.NDArray[Any], npt.NDArray[Any]]]] = {
        "calibration": lambda: calibration_points(stable.box, 1500, 11),
        "box": lambda: (rng.uniform(-4, 4, 1500), rng.uniform(0, 1, 1500)),
        "wide": lambda: wide_points(2500, 3),
        "edges": edge_points,
        "switch": lambda: (rng.uniform(-12, 12, 1500), float(SWITCH) * (1 + rng.normal(0, 0.02, 1500))),
    }
    mean, var = regions[region]()
    mean, var = mean.astype(np.float32), var.astype(np.float32)
    usable = in_domain(mean, var)
    mean, var = mean[usable], var[usable]
    exact = stable.truth(mean, var, {})
    for name, value in _run(programs, mean, var).items():
        error = stable.measure(name, value, exact[name], mean, var)
        worst = int(error.argmax())
        assert error[worst] <= stable.aim, (name, mean[worst], var[worst], value[worst], exact[name][worst])


def test_the_accuracy_asked_for_is_kept_to_the_letter(
    stable: Stable, programs: tuple[CompiledProgram, CompiledProgram]
) -> None:
    """Mean and variance within 3e-7, the variance within 1e-5 of itself for |mu| <= 4, v <= 1: without the measure."""
    rng = np.random.default_rng(5)
    mean = np.concatenate([rng.uniform(-4, 4, 2000), rng.uniform(-40, 40, 1000)]).astype(np.float32)
    var = np.concatenate([np.exp2(rng.uniform(-60, 0, 2000)), np.exp2(rng.uniform(-10, 20, 1000))]).astype(np.float32)
    exact, values = stable.truth(mean, var, {}), _run(programs, mean, var)
    for name in OUTPUTS:
        assert np.abs(values[name] - exact[name]).max() <= 3e-7
    relative = np.abs(values["var"][:2000] / exact["var"][:2000] - 1)
    assert relative.max() <= 1e-5


def test_variance_is_never_negative_and_nothing_finite_gives_nan(
    programs: tuple[CompiledProgram, CompiledProgram],
) -> None:
    rng = np.random.default_rng(2)
    n = 300_000
    mean = (rng.choice([-1.0, 1.0], n) * np.exp2(rng.uniform(-60, 100, n))).astype(np.float32)
    mean[: n // 2] = rng.uniform(-110, 110, n // 2)
    var = np.exp2(rng.uniform(-149, 127, n)).astype(np.float32)
    var[: n // 4] = np.exp2(rng.uniform(-4, 4, n // 4))
    edges = edge_points()
    values = _run(programs, np.concatenate([mean, edges[0]]), np.concatenate([var, edges[1]]))
    assert values["var"].min() >= 0
    for name, value in values.items():
        assert np.isfinite(value).all(), name
    assert values["mean"].min() >= 0
    assert values["mean"].max() <= 1
    assert values["var"].max() <= 0.25 + 3e-7


def test_mean_increases_with_mu(programs: tuple[CompiledProgram, CompiledProgram]) -> None:
    mean = np.linspace(-30, 30, 4001).astype(np.float32)
    for v in (0.0, 1e-3, 0.7, 1.0625, 3.0, 1e3, 1e10):
        values = programs[0]({"mean": mean, "var": np.full_like(mean, v)}, {})["mean"]
        # Rounding, 2e-7 at most, is all by which it may fall.
        assert np.diff(values.astype(np.float64)).min() >= -2.4e-7


def test_zero_variance_gives_f_itself_and_finite_gradients(
    programs: tuple[CompiledProgram, CompiledProgram],
) -> None:
    mean = _floats(-1e30, -200, -100, -20, -1.5, -1e-30, 0, 0.01, 3, 15, 1e4, 3e38)
    values = _run(programs, mean, np.zeros_like(mean))
    exact = logistic_truth(mean, np.zeros_like(mean), {})
    assert (values["var"] == 0).all()
    np.testing.assert_allclose(values["mean"], exact["mean"], rtol=3e-7, atol=2.0**-126)
    np.testing.assert_allclose(values["dmean_dmu"], exact["dmean_dmu"], rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(values["dvar_dvar"], exact["dvar_dvar"], rtol=2e-6, atol=1e-37)
    assert (values["dvar_dmu"] == 0).all()


def test_small_variance_is_relatively_accurate_in_the_far_tail(
    programs: tuple[CompiledProgram, CompiledProgram],
) -> None:
    mean = np.linspace(-38, -4, 200).astype(np.float32)
    for v in (1e-3, 0.1, 1.0):
        var = np.full_like(mean, v)
        exact, values = logistic_truth(mean, var, {}), programs[0]({"mean": mean, "var": var}, {})
        for name in OUTPUTS:
            assert np.abs(values[name] / exact[name] - 1).max() < 5e-5


def test_what_is_no_number_stays_none(programs: tuple[CompiledProgram, CompiledProgram]) -> None:
    nan = np.nan
    mean = _floats(nan, nan, nan, 0, 1, 2, -3, 4, np.inf)
    var = _floats(0, 1, 30, nan, -1, -1e-38, -1e30, -np.inf, np.inf)
    for name, value in _run(programs, mean, var).items():
        assert np.isnan(value).all(), name


def test_infinite_inputs_give_limits(programs: tuple[CompiledProgram, CompiledProgram]) -> None:
    mean, var = _floats(np.inf, -np.inf, np.inf, -np.inf, 3.0), _floats(0.5, 0.5, 4, 4, np.inf)
    values = programs[0]({"mean": mean, "var": var}, {})
    np.testing.assert_allclose(values["mean"], [1, 0, 1, 0, 0.5], atol=3e-7)
    np.testing.assert_allclose(values["var"], [0, 0, 0, 0, 0.25], atol=3e-7)


# --- the strategy --------------------------------------------------------------------
def test_it_applies_to_the_logistic_function_alone(derivation: Derivation) -> None:
    assert applies(derivation)
    surrogate = ScaleMixture(of="logistic", terms=7, sup_error=2e-8)
    accuracy = Accuracy(mean_abs=3e-7, var_abs=3e-7)
    assert not applies(derive(Rule("other", f=S(x) ** 2, surrogate=surrogate, accuracy=accuracy)))


def test_facts_hold_both_forms(stable: Stable) -> None:
    facts = stable.facts
    assert facts["mixture"]["sup_error_of_derivatives"][0] <= 2e-8
    assert sum(facts["mixture"]["weights"]) == 1
    assert facts["near_variance_error_at_switch"] < 5e-6
    assert facts["far_variance_error_at_switch"] < 1e-7


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"surrogate": ScaleMixture(of="logistic", terms=5, sup_error=2e-8)}, "mixture of 5 terms"),
        ({"accuracy": Accuracy(ulp={"exact": 8.0})}, "mean_abs"),
        (
            {
                "accuracy": Accuracy(
                    mean_abs=3e-7, var_abs=3e-7, var_rel=1e-5, var_rel_domain=InputBox(mu=(-4.0, 4.0), v=(0.0, 9.0))
                )
            },
            "var_rel_domain",
        ),
    ],
)
def test_what_cannot_be_reached_is_said(changes: dict[str, object], cause: str) -> None:
    with pytest.raises(BuildError, match=cause):
        stable_variants(derive(_rule(**changes)))
