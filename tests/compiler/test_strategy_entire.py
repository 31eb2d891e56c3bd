"""x, x², exp, sin and cos, times and plus constants: where they end, and what they are beyond range."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp
from compiler.forms import SIX, in_float32, in_float64, stable_of

from momentgen.compiler.derive import derive
from momentgen.compiler.exact import ball_function, evaluate
from momentgen.compiler.function.pieces import split
from momentgen.compiler.strategies.elementary import entire
from momentgen.rule import Parameter, Rule, x

SLOPE = Parameter("slope", default=1.0, low=0.5, high=2.0)


def test_floats_in_f_are_the_fractions_that_they_are() -> None:
    (piece,) = split(sp.sin(0.3 * x) ** 2 / 0.3)
    assert not piece.expr.atoms(sp.Float)
    assert float(piece.expr.subs(x, 2)) == pytest.approx(np.sin(0.3 * 2) ** 2 / 0.3, rel=1e-15)


@pytest.mark.parametrize(
    ("f", "served"),
    [
        (3 * x - 1, True),
        (x**2 / 2 + 1, True),
        (2 * sp.exp(-x / 3) + 1, True),
        (1 - sp.cos(3 * x), True),
        (2**x, True),
        (x**2 + x, False),
        (x**3, False),
        (x * sp.exp(x), False),
        (sp.exp(x) - sp.exp(-x), False),
        (x + sp.sin(x) ** 2, False),
        (sp.tanh(x), False),
        (SLOPE.symbol * sp.sin(x), False),
    ],
    ids=str,
)
def test_one_term_and_a_constant_are_served_and_sums_are_not(f: sp.Expr, served: bool) -> None:
    parameters = (SLOPE,) if f.has(SLOPE.symbol) else ()
    assert entire.applies(derive(Rule("mine", f=f, parameters=parameters))) == served


def test_a_sine_at_a_rate_that_single_floats_do_not_hold_keeps_its_angle_far_out() -> None:
    stable = stable_of(sp.sin(sp.Rational(3, 10) * x))
    mean, var = np.array([1.2e6, -9.876543e5, 3.3e5], np.float32), np.full(3, 0.01, np.float32)
    values, exact = in_float32(stable, mean, var, double=True), stable.truth(mean, var, {})
    assert np.abs(values["dmean_dmu"] - exact["dmean_dmu"]).max() < 1e-6


@pytest.mark.parametrize(("f", "edge"), [(sp.exp(-3 * x), 1e6 / 3), (sp.sin(x), 1e6)], ids=str)
def test_the_certificates_domain_ends_where_nothing_is_measured(f: sp.Expr, edge: float) -> None:
    stable = stable_of(f)
    assert stable.domain["mean"].endswith(f"|mean| <= {edge:g}")
    mean = np.array([-0.999 * edge, -1.01 * edge], np.float32)
    exact = stable.truth(mean, np.full(2, 1e-6, np.float32), {})["var"]
    wrong = np.full(2, 12.25, np.float32)  # measured up to there, and beyond not
    error = stable.measure("mean", wrong, np.array([1.0, exact[1]]), mean, np.full(2, 1e-6, np.float32))
    assert error[0] > 1
    assert error[1] == 0
    assert np.isinf(exact[1])


@pytest.mark.parametrize("f", [sp.exp(-2 * x), x**2], ids=str)
def test_a_rate_that_is_a_power_of_two_and_a_square_are_measured_everywhere(f: sp.Expr) -> None:
    stable = stable_of(f)
    assert not stable.edge.words
    mean, var = np.array([-3e38, 3e38], np.float32), np.ones(2, np.float32)
    for held, wrong in ((3.4028235e38, False), (-np.inf, True), (np.inf, True), (1e38, True), (0.0, True)):
        error = stable.measure("mean", np.full(2, held, np.float32), np.full(2, np.inf), mean, var)
        assert ((error > 1) == wrong).all(), held


@pytest.mark.parametrize("f", [x**2, sp.exp(3 * x), 3 * x - 1], ids=str)
@pytest.mark.parametrize("form", ["double", "float64"])
def test_beyond_range_outputs_are_the_largest_number_of_the_right_sign(f: sp.Expr, form: str) -> None:
    stable, derivation = stable_of(f), derive(Rule("mine", f=f))
    means = [-3e38, -1e10, -700.0, -60.0, 0.5, 60.0, 90.0, 3e5, 1e30]
    variances = [1e-30, 1e-3, 1.0, 60.0, 2e5, 1e30]
    mean, var = (axis.ravel().astype(np.float32) for axis in np.meshgrid(means, variances))
    exact = ball_function([derivation.mean, derivation.var, *derivation.partials.values()], ["mu", "v"])
    want = dict(zip(SIX, evaluate(exact, {"mu": mean.astype(float), "v": var.astype(float)}), strict=True))
    largest = np.finfo(np.float64 if form == "float64" else np.float32).max
    values = in_float64(stable, mean, var) if form == "float64" else in_float32(stable, mean, var, double=True)
    inside = stable.edge.inside(mean.astype(np.float64), var.astype(np.float64))
    for name in SIX:
        got, beyond = values[name], np.abs(want[name]) > largest
        known = ~np.isnan(got)
        assert not np.isinf(got).any(), name
        assert (known | ~inside).all(), name
        assert (got == np.sign(want[name]) * largest)[beyond & known].all(), name
        error = stable.measure(
            name, np.clip(got, -3.4028235e38, 3.4028235e38).astype(np.float32), want[name], mean, var
        )
        assert (error[~beyond & known] <= 0.3).all(), name


@pytest.mark.parametrize(("f", "mean"), [(sp.sin(30 * x), 1e5), (sp.sin(x), 3e6), (sp.cos(x), -3e6)], ids=str)
def test_an_angle_without_digits_gives_nan_in_outputs_and_partials(f: sp.Expr, mean: float) -> None:
    stable, at = stable_of(f), (np.array([mean], np.float32), np.ones(1, np.float32))
    assert stable.edge.words
    assert not stable.edge.inside(at[0].astype(np.float64), at[1].astype(np.float64)).any()
    for values in (in_float32(stable, *at, double=False), in_float64(stable, *at)):
        assert all(np.isnan(values[name]).all() for name in SIX)


def test_an_exponent_whose_parts_cancel_far_out_gives_nan_and_others_their_limits() -> None:
    stable = stable_of(sp.exp(3 * x))
    mean, var = np.array([-1e9, -1e9, 1e9], np.float32), np.array([2e9 / 3, 1.0, 1.0], np.float32)
    for values, largest in (
        (in_float32(stable, mean, var, double=False), np.finfo(np.float32).max),
        (in_float64(stable, mean, var), np.finfo(np.float64).max),
    ):
        assert np.isnan(values["mean"][0])
        assert values["mean"][1] == 0 == values["var"][1]
        assert values["mean"][2] == largest == values["var"][2]
