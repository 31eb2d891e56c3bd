"""What the moments of an activation are, whatever the code that computes them: a specification by its properties.

Every property holds of the exact moments; the slack is the accuracy that the op promises, see ``real_rules.slack``.
"""

from __future__ import annotations

import numpy as np
import pytest
from contract.strategies import SIZE, anything, floats, parameters, points
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from real_rules import ALL, F32, FACTS, FAITHFUL, NAMES, each, moments, six, slack, stables

from momentgen.compiler.measure.ulp import LARGEST, SMALLEST_NORMAL

FEW = settings(max_examples=20)
HOMOGENEOUS = [(n, v) for n, v in FAITHFUL if FACTS[n].degree is not None]
PARTIALS_DEGREE = {"mean": 0, "var": 0, "dmean_dmu": 1, "dmean_dvar": 2, "dvar_dmu": 1, "dvar_dvar": 2}
VARIANTS_OF_BOTH = [v for v in ("exact", "tight") if ("relu", v) in FAITHFUL]


# --- variance ----------------------------------------------------------------------
@each(ALL)
@FEW
@given(data=st.data())
def test_variance_is_never_negative_and_finite_input_gives_no_nan_and_finite_gradients(
    name: str, variant: str, data: st.DataObject
) -> None:
    mean, var = data.draw(anything())
    out = six(name, variant, mean, var, data.draw(parameters(name)))
    assert (out["var"] >= 0).all()
    for output, values in out.items():
        assert np.isfinite(values).all() if output.startswith("d") else not np.isnan(values).any(), output


@each([(n, v) for n, v in FAITHFUL if FACTS[n].lipschitz])
@FEW
@given(data=st.data())
def test_variance_is_at_most_the_lipschitz_constant_squared_times_the_input_variance(
    name: str, variant: str, data: st.DataObject
) -> None:
    (mean, var), setting = data.draw(points(zero=True)), data.draw(parameters(name))
    lipschitz = FACTS[name].lipschitz
    assert lipschitz is not None
    most = lipschitz(**setting) ** 2 * var.astype(np.float64)
    _, out_var = moments(name, variant, mean, var, setting)
    assert (out_var <= most + slack(name, variant, most)).all()


@each([(n, v) for n, v in FAITHFUL if FACTS[n].high() == 1.0])
@FEW
@given(data=st.data())
def test_variance_of_a_number_between_0_and_1_is_at_most_mean_times_one_minus_mean(
    name: str, variant: str, data: st.DataObject
) -> None:
    mean, var = data.draw(points(zero=True))
    m, v = moments(name, variant, mean, var, {})
    wide = m.astype(np.float64)
    most = wide * (1 - wide)
    # 1 - m loses the places of m that 1 has not.
    assert (v <= most + slack(name, variant, m) + slack(name, variant, most)).all()


# --- mean --------------------------------------------------------------------------
@each(ALL)
@FEW
@given(data=st.data())
def test_mean_lies_between_the_extremes_of_f(name: str, variant: str, data: st.DataObject) -> None:
    mean, var = data.draw(anything())
    setting, facts = data.draw(parameters(name)), FACTS[name]
    out_mean, _ = moments(name, variant, mean, var, setting)
    assert (out_mean >= facts.low(**setting)).all()
    assert (out_mean <= facts.high(**setting) + (0 if (name, variant) in FAITHFUL else 2e-7)).all()


@each([(n, v) for n, v in FAITHFUL if FACTS[n].increasing])
@FEW
@given(data=st.data())
def test_mean_increases_with_the_input_mean_where_f_does(name: str, variant: str, data: st.DataObject) -> None:
    (mean, var), setting = data.draw(points(zero=True)), data.draw(parameters(name))
    mean = np.sort(mean)
    out_mean, _ = moments(name, variant, mean, np.full_like(var, var[0]), setting)
    assert (np.diff(out_mean.astype(np.float64)) >= -slack(name, variant, out_mean[1:], out_mean[:-1])).all()


@each([(n, v) for n, v in FAITHFUL if FACTS[n].convex])
@FEW
@given(data=st.data())
def test_mean_of_a_convex_f_is_at_least_f_of_the_mean_and_grows_with_the_variance(
    name: str, variant: str, data: st.DataObject
) -> None:
    (mean, var), setting = data.draw(points(zero=True)), data.draw(parameters(name))
    var = np.sort(var)
    out_mean, _ = moments(name, variant, mean, var, setting)
    least = FACTS[name].f(mean.astype(np.float64), **setting)
    assert (out_mean >= least - slack(name, variant, least)).all()
    at_one = moments(name, variant, np.full_like(mean, mean[0]), var, setting)[0].astype(np.float64)
    assert (np.diff(at_one) >= -slack(name, variant, at_one[1:], at_one[:-1])).all()


# --- symmetries ----------------------------------------------------------------------
@each([(n, v) for n, v in FAITHFUL if FACTS[n].even])
@FEW
@given(inputs=points(zero=True))
def test_reflection_of_an_even_f_changes_the_sign_of_the_gradient_in_the_mean_alone(
    name: str, variant: str, inputs: tuple[F32, F32]
) -> None:
    mean, var = inputs
    there, back = six(name, variant, mean, var, {}), six(name, variant, -mean, var, {})
    for output, value in there.items():
        sign = -1 if output.endswith("_dmu") else 1
        np.testing.assert_array_equal(value, sign * back[output], err_msg=output)


@each([(n, v) for n, v in FAITHFUL if FACTS[n].step])
@FEW
@given(inputs=points())
def test_reflection_of_a_sigmoid_gives_one_minus_the_mean_and_the_same_variance(
    name: str, variant: str, inputs: tuple[F32, F32]
) -> None:
    mean, var = inputs
    there, back = six(name, variant, mean, var, {}), six(name, variant, -mean, var, {})
    total = there["mean"].astype(np.float64) + back["mean"]
    assert (np.abs(total - 1) <= slack(name, variant, there["mean"], back["mean"])).all()
    for output in ("var", "dmean_dmu", "dvar_dvar"):
        gap = np.abs(there[output].astype(np.float64) - back[output])
        assert (gap <= slack(name, variant, there[output], back[output])).all(), output


@each(HOMOGENEOUS)
@FEW
@given(data=st.data(), power=st.integers(-20, 20))
def test_scaling_by_a_power_of_two_scales_every_output_without_changing_a_bit_of_its_mantissa(
    name: str, variant: str, data: st.DataObject, power: int
) -> None:
    (mean, var), setting = data.draw(points(ratio=15.0, var=(2.0**-30, 2.0**40))), data.draw(parameters(name))
    mean = np.where(np.abs(mean) < 2.0**-100, np.float32(0), mean)  # else scaling makes it subnormal, which rounds
    c = np.float32(2.0**power)
    small, large = six(name, variant, mean, var, setting), six(name, variant, c * mean, c * c * var, setting)
    degree = FACTS[name].degree
    assert degree is not None
    for output, value in small.items():
        times = (2 if "var" in output.split("_")[0] else 1) * degree - PARTIALS_DEGREE[output]
        want = value.astype(np.float64) * float(c) ** times
        # Nearer to the smallest normal number a double-float's second word rounds, and the last bit may change.
        least = SMALLEST_NORMAL * 2.0**26
        roomy = (np.abs(want) >= least) & (np.abs(value) >= least) & (np.abs(want) <= LARGEST)
        np.testing.assert_array_equal(large[output][roomy], want[roomy].astype(np.float32), err_msg=output)
        normal = (np.abs(want) >= SMALLEST_NORMAL) & (np.abs(value) >= SMALLEST_NORMAL) & (np.abs(want) <= LARGEST)
        gap = np.abs(large[output][normal] - want[normal])
        assert (gap <= slack(name, variant, large[output][normal], want[normal])).all(), output


@each(HOMOGENEOUS)
@FEW
@given(data=st.data(), factor=st.sampled_from([3, 5, 7, 11, 100]))
def test_scaling_by_any_factor_scales_mean_and_variance(
    name: str, variant: str, data: st.DataObject, factor: int
) -> None:
    (mean, var), setting = data.draw(points(ratio=15.0, var=(2.0**-30, 2.0**40))), data.draw(parameters(name))
    # With 10 bits of mantissa each, the factor (its square has 14) multiplies them exactly.
    mean, var = ((x.view(np.int32) & ~0x3FFF).view(np.float32) for x in (mean, var))
    c = np.float32(factor)
    small, large = moments(name, variant, mean, var, setting), moments(name, variant, c * mean, c * c * var, setting)
    degree = FACTS[name].degree
    assert degree is not None
    for order, (few, many) in enumerate(zip(small, large, strict=True), start=1):
        times = float(factor) ** (order * degree)
        gap = np.abs(times * few.astype(np.float64) - many)
        assert (gap <= times * slack(name, variant, few) + slack(name, variant, many)).all()


# --- between rules -------------------------------------------------------------------
@pytest.mark.skipif(not {"relu", "abs"} <= {*NAMES}, reason="no such rules")
@pytest.mark.parametrize("variant", VARIANTS_OF_BOTH)
@FEW
@given(inputs=points(zero=True))
def test_abs_is_relu_plus_relu_of_the_negative(variant: str, inputs: tuple[F32, F32]) -> None:
    mean, var = inputs
    (above, var_above), (below, var_below) = (moments("relu", variant, sign * mean, var, {}) for sign in (1, -1))
    m, v = moments("abs", variant, mean, var, {})
    together = above.astype(np.float64) + below
    assert (np.abs(m - together) <= slack("abs", variant, m) + slack("relu", variant, above, below)).all()
    # Where one is positive the other is 0, so that their covariance is -E relu(X)·E relu(-X).
    product = above.astype(np.float64) * below
    spread = var_above.astype(np.float64) + var_below - 2 * product
    allowed = slack("abs", variant, v) + slack("relu", variant, var_above, var_below, *[product] * 4)
    assert (np.abs(v - spread) <= allowed).all()


@pytest.mark.skipif("abs" not in NAMES, reason="no such rule")
@pytest.mark.parametrize("variant", VARIANTS_OF_BOTH)
@FEW
@given(inputs=points(zero=True))
def test_second_moment_of_abs_is_that_of_the_input(variant: str, inputs: tuple[F32, F32]) -> None:
    mean, var = inputs
    m, v = (x.astype(np.float64) for x in moments("abs", variant, mean, var, {}))
    want = mean.astype(np.float64) ** 2 + var
    assert (np.abs(m * m + v - want) <= slack("abs", variant, v, m * m, m * m)).all()


@pytest.mark.skipif(not {"relu", "leaky_relu"} <= {*NAMES}, reason="no such rules")
@pytest.mark.parametrize("variant", VARIANTS_OF_BOTH)
@FEW
@given(inputs=points(zero=True), setting=parameters("leaky_relu"))
def test_leaky_relu_is_a_mixture_of_the_identity_and_relu(
    variant: str, inputs: tuple[F32, F32], setting: dict[str, float]
) -> None:
    mean, var = inputs
    slope = setting["negative_slope"]
    plain = moments("relu", variant, mean, var, {})[0]
    leaky = moments("leaky_relu", variant, mean, var, setting)[0]
    want = slope * mean.astype(np.float64) + (1 - slope) * plain
    allowed = slack("leaky_relu", variant, leaky) + (1 - slope) * slack("relu", variant, plain)
    assert (np.abs(leaky - want) <= allowed).all()
    if slope in (0.0, 1.0):
        np.testing.assert_allclose(leaky, want.astype(np.float32), rtol=2e-6, atol=2.0**-126)


@pytest.mark.skipif(not {"relu", "heaviside"} <= {*NAMES}, reason="no such rules")
@pytest.mark.parametrize("variant", VARIANTS_OF_BOTH)
@FEW
@given(inputs=points())
def test_the_derivative_of_relu_is_the_step(variant: str, inputs: tuple[F32, F32]) -> None:
    relu, step = (six(name, variant, *inputs, {}) for name in ("relu", "heaviside"))
    pairs = [("dmean_dmu", "mean", 1.0), ("dmean_dvar", "dmean_dmu", 0.5)]  # the second is Price's theorem
    for of_relu, of_step, factor in pairs:
        got, want = relu[of_relu].astype(np.float64), factor * step[of_step].astype(np.float64)
        assert (np.abs(got - want) <= slack("relu", variant, got) + slack("heaviside", variant, want)).all()


# --- gradients -----------------------------------------------------------------------
@each(FAITHFUL)
@FEW
@given(data=st.data())
def test_signs_and_sizes_of_the_gradients(name: str, variant: str, data: st.DataObject) -> None:
    (mean, var), setting = data.draw(points()), data.draw(parameters(name))
    facts, out = FACTS[name], six(name, variant, mean, var, setting)
    if facts.increasing:
        below = out["dmean_dmu"] < 0
        if facts.absolute and below.any():
            exact = stables(name)[variant].truth(mean[below], var[below], setting)["dmean_dmu"]
            allowed = stables(name)[variant].measure.allowed("dmean_dmu", exact, mean[below], var[below])
            below[below] = out["dmean_dmu"][below] < -allowed
        assert not below.any()
    if facts.convex:  # dE f/dv = E f''/2
        assert (out["dmean_dvar"] >= 0).all()
    if facts.lipschitz is not None:  # dE f/dmu = E f'
        most = np.full(SIZE, facts.lipschitz(**setting))
        assert (np.abs(out["dmean_dmu"]) <= most + slack(name, variant, most)).all()


# --- limits ----------------------------------------------------------------------------
@each(FAITHFUL)
@FEW
@given(data=st.data())
def test_a_certain_input_gives_f_of_it_and_no_variance(name: str, variant: str, data: st.DataObject) -> None:
    mean, _ = data.draw(anything())
    setting = data.draw(parameters(name))
    out_mean, out_var = moments(name, variant, mean, np.zeros_like(mean), setting)
    want = FACTS[name].f(mean.astype(np.float64), **setting)
    assert (np.abs(out_mean - want) <= slack(name, variant, want)).all()
    assert (out_var == 0).all()


@each(HOMOGENEOUS)
@FEW
@given(data=st.data(), ratio=st.floats(30.0, 1e12))
def test_far_from_a_kink_the_moments_are_those_of_the_straight_line(
    name: str, variant: str, data: st.DataObject, ratio: float
) -> None:
    mean, setting = data.draw(floats(2.0**-50, 2.0**50)), data.draw(parameters(name))
    means = np.array([mean, -mean], np.float32)
    var = ((means.astype(np.float64) / ratio) ** 2).astype(np.float32)
    var = np.maximum(var, np.float32(2.0**-126))
    assume((np.abs(means) > 25 * np.sqrt(var.astype(np.float64))).all())
    f = FACTS[name].f
    value, slope = f(means.astype(np.float64), **setting), np.zeros(2)
    if FACTS[name].degree == 1:
        slope = value / means
    out_mean, out_var = moments(name, variant, means, var, setting)
    assert (np.abs(out_mean - value) <= slack(name, variant, value)).all()
    want = slope**2 * var
    assert (np.abs(out_var - want) <= slack(name, variant, want)).all()
