"""Variants by formulas: graphs mean what the rule says, and their float32 programs are accurate everywhere."""

from __future__ import annotations

import math
from functools import lru_cache

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import sympy as sp
from compiler.forms import function, in_float32
from hypothesis import given, settings
from hypothesis import strategies as st
from real_rules import rules

from momentgen.compiler.derive import derive
from momentgen.compiler.derive.rewrite import write
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.ir.values import evaluate_float64, evaluate_mpmath, outputs_float64
from momentgen.compiler.strategies.formulas.formula import stable_variants
from momentgen.rule import Accuracy, Formula, Phi, Rule, S, a, mu, phi, sigma, v, x

RULES = rules()
PAPER = ["ap1", "ap2a", "ap2b", "pea", "practical", "large_variance"]
F32 = npt.NDArray[np.float32]


@lru_cache
def variants(rule: str) -> dict[str, Stable]:
    return {stable.variant: stable for stable in stable_variants(derive(RULES[rule]))}


def paper(name: str) -> Stable:
    return variants("logistic_transform")[name]


def f32(values: list[float]) -> F32:
    return np.array(values, np.float32)


def by_the_book(mean: sp.Expr, var: sp.Expr, point: tuple[float, float]) -> dict[str, mpmath.mpf]:
    """The formula as the rule writes it, and its derivatives, with digits to spare."""
    exprs = {"mean": mean, "var": var}
    for name, expr in (("mean", mean), ("var", var)):
        exprs |= {f"d{name}_dmu": sp.diff(expr, mu), f"d{name}_dvar": sp.diff(expr, v)}
    with mpmath.workdps(80):
        at = [mpmath.mpf(value) for value in point]
        return {name: mpmath.mpf(function(expr, [mu, v])(*at)) for name, expr in exprs.items()}


def points(n: int, seed: int = 3) -> tuple[F32, F32]:
    rng = np.random.default_rng(seed)
    var = np.exp2(rng.uniform(-6, 9, n))
    return (rng.normal(0, 2, n) * np.sqrt(1 + var)).astype(np.float32), var.astype(np.float32)


# --- what the graphs mean ------------------------------------------------------------
@pytest.mark.parametrize("name", PAPER)
def test_graphs_and_exact_values_equal_the_formula(name: str) -> None:
    stable, formula = paper(name), RULES["logistic_transform"].variants[name]
    assert isinstance(formula, Formula)
    mean, var = points(25)
    exact = stable.truth(mean, var, {})
    scales = stable.measure.scales((mean, var))  # type: ignore[attr-defined]
    wide = {"mean": mean.astype(np.float64), "var": var.astype(np.float64)}
    computed = outputs_float64(stable.forward64, wide) | outputs_float64(stable.partials64, wide)
    for i, point in enumerate(zip(mean.tolist(), var.tolist(), strict=True)):
        book = by_the_book(formula.mean, formula.var, point)
        if book["var"] < 0:
            book |= dict.fromkeys(("var", "dvar_dmu", "dvar_dvar"), mpmath.mpf(0))
        at = dict(zip(("mean", "var"), point, strict=True))
        with mpmath.workdps(40):
            found = [
                evaluate_mpmath(forward, at) | evaluate_mpmath(partials, at)
                for forward, partials in ((stable.forward, stable.partials), (stable.forward64, stable.partials64))
            ]
        for output, value in book.items():
            size = max(float(scales[output][i]), 1e-300)
            assert abs(found[0][output] - value) <= 1e-8 * size, (output, point)
            assert abs(found[1][output] - value) <= 1e-14 * size, (output, point)
            assert abs(computed[output][i] - value) <= 2e-14 * size, (output, point)
            assert abs(exact[output][i] - value) <= 1e-15 * abs(value) + 1e-60, (output, point)


def test_partials_of_pea_have_no_term_in_the_density() -> None:
    formula = RULES["logistic_transform"].variants["pea"]
    assert isinstance(formula, Formula)
    written = write(formula.mean, formula.var)
    assert not any(written.plain(name).has(phi) for name in PARTIALS)


@given(st.sampled_from([Phi, S]), st.sampled_from([Phi, S]), st.integers(1, 3), st.integers(-2, 2))
@settings(max_examples=10, deadline=None)
def test_rewriting_keeps_the_value(f: type, g: type, n: int, shift: int) -> None:
    mean = f((mu + shift) / sp.sqrt(v + n))
    var = mean * (1 - mean) * g(mu / sp.sqrt(n * v + 1)) + v * (1 - g(a)) ** 2
    written = write(mean, var)
    book = by_the_book(mean, var, (0.625, 1.5))
    for output, value in book.items():
        with mpmath.workdps(60):
            rewritten = function(written.plain(output), [mu, v])(mpmath.mpf("0.625"), mpmath.mpf("1.5"))
            assert mpmath.almosteq(rewritten, value, 1e-30)


# --- float32 programs ------------------------------------------------------------------
@pytest.mark.parametrize("name", PAPER)
def test_float32_programs_are_within_the_goal_and_a_certain_input_gives_the_limits(name: str) -> None:
    stable, formula = paper(name), RULES["logistic_transform"].variants[name]
    assert isinstance(formula, Formula)
    mean = f32([-40.0, -3.0, -0.25, 0.25, 2.0, 11.0])
    var = np.zeros_like(mean)
    exact = stable.truth(mean, var, {})
    for i, value in enumerate(mean.tolist()):
        book = by_the_book(formula.mean, formula.var, (value, 1e-70))
        assert abs(book["mean"] - exact["mean"][i]) <= 1e-14 * book["mean"]
    rng = np.random.default_rng(5)
    wide = np.exp2(rng.uniform(-30, 30, 600)).astype(np.float32)
    ratios = np.concatenate([rng.uniform(-14, 14, 400) * np.sqrt(wide[:400] + 1), rng.uniform(-80, 80, 200)])
    mean, var = np.concatenate([mean, ratios.astype(np.float32)]), np.concatenate([var, wide])
    exact = stable.truth(mean, var, {})
    for output, computed in in_float32(stable, mean, var).items():
        assert stable.measure(output, computed, exact[output], mean, var).max() <= stable.goal, output


def test_a_negative_formula_is_taken_as_zero_with_its_partials() -> None:
    stable = paper("large_variance")
    where = stable.facts["negative"]
    assert where["lowest"] < -0.003
    mean, var = f32([1.75, 1.75]), f32([0.001, 4.0])
    exact = stable.truth(mean, var, {})
    computed = in_float32(stable, mean, var)
    for output in ("var", "dvar_dmu", "dvar_dvar"):
        assert computed[output][0] == exact[output][0] == 0.0
        assert computed[output][1] != 0.0
    assert not any("negative" in paper(name).facts for name in ("ap2a", "ap2b", "pea", "practical"))


def test_tails_are_relatively_accurate() -> None:
    mean = f32([-30.0, -60.0, -80.0])
    for name in ("ap1", "ap2b", "pea"):
        stable = paper(name)
        var = np.full_like(mean, 1.0 if name == "pea" else 0.5)
        exact = stable.truth(mean, var, {})["mean"]
        computed = in_float32(stable, mean, var)["mean"]
        assert np.all(np.abs(computed - exact) <= 2.0**-22 * exact), name


# --- fitted ------------------------------------------------------------------------------
def stated(rule: str) -> sp.Rational:
    """The number t of the variance's S(a/t)."""
    (logistic,) = RULES[rule].variants["fitted"].var.atoms(S)
    return sp.simplify(a / logistic.args[0])


@pytest.mark.parametrize(("rule", "slope", "lowest"), [("relu", 0.0, -3.0), ("leaky_relu", 0.01, -10.0)])
def test_a_fitted_number_has_the_least_maximal_divergence_as_its_rule_says(
    rule: str, slope: float, lowest: float
) -> None:
    ratio = np.linspace(lowest, 10, 4001)
    below, density = (
        np.vectorize(math.erfc)(-ratio / math.sqrt(2)) / 2,
        np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi),
    )
    of_relu = ratio * density + (ratio**2 + 1) * below - (ratio * below + density) ** 2
    exact = slope**2 + 2 * slope * (1 - slope) * below + (1 - slope) ** 2 * of_relu

    def worst(t: float) -> float:
        share = exact / (slope**2 + (1 - slope**2) / (1 + np.exp(-ratio / t)))
        return float(((share - 1 - np.log(share)) / 2).max())

    t = float(stated(rule))
    assert worst(t) < min(worst(t * (1 - 1e-4)), worst(t * (1 + 1e-4)))
    assert f"{worst(t):.4f}" in RULES[rule].variants["fitted"].doc


@pytest.mark.parametrize("rule", ["relu", "leaky_relu"])
def test_fitted_variance_is_the_family_at_the_fitted_number(rule: str) -> None:
    stable = variants(rule)["fitted"]
    slope = stable.settings[0].get("negative_slope", 0.0)
    mean, var = points(10)
    with mpmath.workdps(40):
        for m, w in zip(mean.tolist(), var.tolist(), strict=True):
            al, t = mpmath.mpf(slope), mpmath.mpf(stated(rule).p) / stated(rule).q
            expected = w * (al**2 + (1 - al**2) / (1 + mpmath.exp(-m / mpmath.sqrt(w) / t)))
            found = evaluate_mpmath(stable.forward64, {"mean": m, "var": w, **stable.settings[0]})
            assert mpmath.almosteq(found["var"], expected, 1e-15)
            exact = stable.truth(f32([m]), f32([w]), stable.settings[0])
            assert mpmath.almosteq(found["mean"], mpmath.mpf(float(exact["mean"][0])), 1e-14)


def test_a_fitted_variant_takes_what_the_exact_mean_needs() -> None:
    stable = variants("leaky_relu")["fitted"]
    assert stable.unit == "ulp"
    assert len(stable.scalars(stable.settings[0])) > 0
    assert stable.forward.params == stable.partials.params


def test_a_formula_with_unbounded_factors_is_accurate_in_the_tail() -> None:
    mean = mu * Phi(a) + sigma * phi(a)
    variants = {"plain": Formula(mean=mean, var=v * Phi(a))}
    rule = Rule("some", f=S(x), accuracy=Accuracy(mean_abs=1e-6), variants=variants)
    (stable,) = stable_variants(derive(rule))
    at = f32([-4e15, 3.0]), f32([1e30, 4.0])
    exact = stable.truth(*at, {})
    computed = in_float32(stable, *at)
    for output in OUTPUTS:
        assert stable.measure(output, computed[output], exact[output], *at).max() <= stable.goal


# --- steps ---------------------------------------------------------------------------
def step_variant(mean: sp.Expr, var: sp.Expr) -> Stable:
    return stable_variants(derive(Rule("stepped", f=sp.Max(x, 0), variants={"given": Formula(mean=mean, var=var)})))[0]


@pytest.mark.parametrize("at_zero", [0, 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_step_is_chosen_by_the_sign_of_the_mean_and_is_a_constant_to_partials(at_zero: int, sign: int) -> None:
    step = sp.Heaviside(sign * mu, at_zero)
    stable = step_variant(mean=mu * step + S(mu), var=v * (1 + 3 * step))
    means = np.array([-2.0, -1e-30, 0.0, 1e-30, 2.0])
    on = np.where(means == 0, at_zero, sign * means > 0)
    logistic = 1 / (1 + np.exp(-means))
    want = {
        "mean": means * on + logistic,
        "var": 0.5 * (1 + 3 * on),
        "dmean_dmu": on + logistic * (1 - logistic),
        "dmean_dvar": 0 * means,
        "dvar_dmu": 0 * means,
        "dvar_dvar": 1.0 + 3 * on,
    }
    exact = stable.truth(means.astype(np.float32), np.full(5, 0.5, np.float32), {})
    for graph in (stable.forward64, stable.partials64):
        values = evaluate_float64(graph, {"mean": means, "var": np.full(5, 0.5)})
        for name, index in graph.outputs.items():
            np.testing.assert_allclose(np.broadcast_to(values[index], 5), want[name], rtol=1e-12, err_msg=name)
            np.testing.assert_allclose(exact[name], want[name], rtol=1e-7, err_msg=name)


def test_a_variance_with_a_step_vanishes_with_the_input_s() -> None:
    assert step_variant(mean=sp.Max(mu, 0), var=v * sp.Heaviside(mu, 0)).vanishes
    assert not step_variant(mean=sp.Max(mu, 0), var=sp.Heaviside(mu, 0)).vanishes
