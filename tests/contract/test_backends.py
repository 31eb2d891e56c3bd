"""One op by several backends: they agree, and what cannot be computed is NaN rather than wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from contract.strategies import parameters, points
from hypothesis import given, settings
from hypothesis import strategies as st
from real_rules import ALL, F32, FACTS, FAITHFUL, each, goal_of, moments, settings_of, six, stables

from momentgen.compiler.certify.points import in_domain
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.measure.ulp import ulp_error

FEW = settings(max_examples=10)
SIX = (*OUTPUTS, *PARTIALS)


# --- backends ------------------------------------------------------------------------
@each([(n, v) for n, v in FAITHFUL if not FACTS[n].absolute])
@FEW
@given(data=st.data())
def test_c_and_pytorch_agree_within_the_certificate(name: str, variant: str, data: st.DataObject) -> None:
    (mean, var), setting = data.draw(points()), data.draw(parameters(name))
    by_c, by_torch = (six(name, variant, mean, var, setting, backend) for backend in ("c", "torch"))
    for output in SIX:
        # PyTorch's is float64 rounded once, half a unit from exact.
        error = ulp_error(by_c[output], by_torch[output].astype(np.float64))
        usable = np.isfinite(by_torch[output]) & in_domain(mean, var)
        if output == "mean" and (ratios := stables(name)[variant].focus(setting)):
            usable &= np.abs(mean / np.sqrt(var.astype(np.float64)) / ratios[0] - 1) > 1e-6
        assert error[usable].max(initial=0.0) <= goal_of(name, variant) + 1, output


@each([pair for pair in ALL if pair not in FAITHFUL or FACTS[pair[0]].absolute])
@FEW
@given(data=st.data())
def test_c_and_pytorch_agree_within_the_goal_of_other_variants(name: str, variant: str, data: st.DataObject) -> None:
    (mean, var), setting = data.draw(points()), data.draw(parameters(name))
    stable = stables(name)[variant].at(setting)
    by_c, by_torch = (six(name, variant, mean, var, setting, backend) for backend in ("c", "torch"))
    for output in SIX:
        error = stable.measure(output, by_c[output], by_torch[output].astype(np.float64), mean, var)
        usable = np.isfinite(by_torch[output]) & in_domain(mean, var)
        assert error[usable].max(initial=0.0) <= stable.goal + 1, output


# --- NaN, infinities ---------------------------------------------------------------
def _same_or_nan(got: F32, want: float, where: str, absolute: float = 1e-12) -> None:
    value = float(got)
    assert math.isnan(value) or value == pytest.approx(want, rel=1e-6, abs=absolute), (
        f"{where}: got {value}, the limit is {want}"
    )


@each(FAITHFUL)
@pytest.mark.parametrize("sign", [1, -1])
def test_infinite_means_give_the_limit_or_nan(name: str, variant: str, sign: int) -> None:
    facts = FACTS[name]
    for setting in settings_of(name):
        far = float(facts.f(np.array([sign * 1e300]), **setting)[0])
        limit = sign * math.inf if far == sign * 1e300 else (math.copysign(math.inf, far) if abs(far) > 1e100 else far)
        for var in (0.0, 1e-30, 1.0, 1e30):
            mean = np.float32([sign * math.inf])
            m, v = moments(name, variant, mean, np.float32([var]), setting)
            _same_or_nan(m[0], limit, f"mean at {sign}inf, {var}, {setting}", facts.absolute or 1e-12)
            slope = far / (sign * 1e300) if facts.degree == 1 else 0.0
            _same_or_nan(v[0], slope**2 * np.float32(var), f"var at {sign}inf, {var}, {setting}")


@each(FAITHFUL)
def test_an_infinite_variance_gives_the_limit_or_nan(name: str, variant: str) -> None:
    facts = FACTS[name]
    for setting in settings_of(name):
        for mean in (0.0, 1.0, -1e30):
            m, v = moments(name, variant, np.float32([mean]), np.float32([math.inf]), setting)
            if facts.high(**setting) == 1.0:
                limits = 0.5, 0.25
            else:
                symmetric = setting == {"negative_slope": 1.0}  # the identity, whose mean stays
                limits = (mean if symmetric else math.inf), math.inf
            _same_or_nan(m[0], limits[0], f"mean at {mean}, inf, {setting}")
            _same_or_nan(v[0], limits[1], f"var at {mean}, inf, {setting}")
