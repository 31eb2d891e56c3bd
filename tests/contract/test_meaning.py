"""What the moments of an activation are, whatever the code that computes them: a specification by its properties.

Every property holds of the exact moments; most to the last bit, which no accuracy implies.
"""

from __future__ import annotations

import numpy as np
from contract.strategies import anything, parameters, points
from hypothesis import given, settings
from hypothesis import strategies as st
from real_rules import ALL, F32, FACTS, FAITHFUL, all_of, each, moments, slack

from momentgen.compiler.measure.ulp import SMALLEST_NORMAL
from momentgen.compiler.toolchain.float32 import LARGEST

FEW = settings(max_examples=20)
HOMOGENEOUS = [(n, v) for n, v in FAITHFUL if FACTS[n].degree is not None]
PARTIALS_DEGREE = {"mean": 0, "var": 0, "dmean_dmu": 1, "dmean_dvar": 2, "dvar_dmu": 1, "dvar_dvar": 2}


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


# --- symmetries ----------------------------------------------------------------------
@each([(n, v) for n, v in FAITHFUL if FACTS[n].even])
@FEW
@given(inputs=points(zero=True))
def test_reflection_of_an_even_f_changes_the_sign_of_the_gradient_in_the_mean_alone(
    name: str, variant: str, inputs: tuple[F32, F32]
) -> None:
    mean, var = inputs
    there, back = all_of(name, variant, (mean, var)), all_of(name, variant, (-mean, var))
    for output, value in there.items():
        sign = -1 if output.endswith("_dmu") else 1
        np.testing.assert_array_equal(value, sign * back[output], err_msg=output)


@each(HOMOGENEOUS)
@FEW
@given(data=st.data(), power=st.integers(-20, 20))
def test_scaling_by_a_power_of_two_scales_every_output_without_changing_a_bit_of_its_mantissa(
    name: str, variant: str, data: st.DataObject, power: int
) -> None:
    (mean, var), setting = data.draw(points(ratio=15.0, var=(2.0**-30, 2.0**40))), data.draw(parameters(name))
    mean = np.where(np.abs(mean) < 2.0**-100, np.float32(0), mean)  # else scaling makes it subnormal, which rounds
    c = np.float32(2.0**power)
    small, large = (
        all_of(name, variant, (mean, var), **setting),
        all_of(name, variant, (c * mean, c * c * var), **setting),
    )
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


# --- gradients -----------------------------------------------------------------------
@each(FAITHFUL)
@FEW
@given(data=st.data())
def test_signs_of_the_gradients(name: str, variant: str, data: st.DataObject) -> None:
    (mean, var), setting = data.draw(points()), data.draw(parameters(name))
    facts, out = FACTS[name], all_of(name, variant, (mean, var), **setting)
    if facts.increasing and not facts.absolute:
        assert (out["dmean_dmu"] >= 0).all()
    if facts.convex:  # dE f/dv = E f''/2
        assert (out["dmean_dvar"] >= 0).all()


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
