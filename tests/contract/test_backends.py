"""One op, several backends and dtypes: they agree, and what cannot be computed is NaN rather than wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from contract.strategies import parameters, points
from hypothesis import given, settings
from hypothesis import strategies as st
from real_rules import ALL, F32, FACTS, FAITHFUL, each, goal_of, moments, op_of, settings_of, six, stables

from momentgen.compiler.certify.points import in_domain
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.measure.ulp import is_normal, ulp_error

FEW = settings(max_examples=25)
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


# --- dtypes ----------------------------------------------------------------------------
@each(ALL)
def test_float64_is_more_than_float32_widened(name: str, variant: str) -> None:
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(500, generator=generator, dtype=torch.float64)
    var = torch.rand(500, generator=generator, dtype=torch.float64) * 3 + 0.1
    setting = settings_of(name)[0]
    out = op_of(name)(mean, var, variant=variant, **setting)
    narrow = op_of(name)(mean.float(), var.float(), variant=variant, **setting)
    assert out.mean.dtype is torch.float64
    torch.testing.assert_close(out.mean, narrow.mean.double(), rtol=2e-5, atol=1e-5)
    if (name, variant) in FAITHFUL:
        moved = op_of(name)(mean * (1 + 1e-11), var, variant=variant, **setting)
        change = (moved.mean - out.mean).abs()
        assert ((change > 0) & (change < 1e-9)).double().mean() > 0.7


# --- NaN, infinities, zero ---------------------------------------------------------------
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


@each(ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_where_the_variance_is_zero(name: str, variant: str, dtype: torch.dtype) -> None:
    for setting in settings_of(name):
        mean = torch.tensor([-3.0, -1e-20, 0.0, 1e-20, 0.5, 1e10], dtype=dtype, requires_grad=True)
        var = torch.zeros(6, dtype=dtype, requires_grad=True)
        out = op_of(name)(mean, var, variant=variant, **setting)
        grads = torch.autograd.grad(out.mean.sum() + out.var.sum(), (mean, var))
        for grad in grads:
            assert grad.isfinite().all(), (grad, setting)


# --- gradients -----------------------------------------------------------------------
@each(ALL)
@FEW
@given(data=st.data())
def test_gradients_are_the_slopes_of_the_float64_form(name: str, variant: str, data: st.DataObject) -> None:
    setting = data.draw(parameters(name))
    mean, var = data.draw(points(ratio=5.0, var=(2.0**-7, 2.0**7)))
    m, v = torch.from_numpy(mean).double(), torch.from_numpy(var).double()
    got = six(name, variant, mean, var, setting)

    def wide(m: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        return list(op_of(name)(m, v, variant=variant, **setting))

    sigma = v.sqrt()
    for suffix, step, size in (("dmu", (1e-4 * sigma, 0 * v), sigma), ("dvar", (0 * m, 1e-4 * v), v)):
        above, below = wide(m + step[0], v + step[1]), wide(m - step[0], v - step[1])
        for output, high, low in zip(OUTPUTS, above, below, strict=True):
            slope = ((high - low) / (2e-4 * size)).numpy()
            scale = np.maximum(np.abs(high.numpy()) / size.numpy(), np.abs(slope))
            gap = np.abs(got[f"d{output}_{suffix}"] - slope)
            if variant == "identity_delta":  # a step at 0, across which a difference is no slope
                gap = np.where(np.abs(mean) > 1e-3 * np.sqrt(var), gap, 0)
            assert (gap <= 2e-5 * scale + 1e-6).all(), (output, suffix)


def test_zero_mean_zero_variance_is_documented_convention_and_finite() -> None:
    zero = np.zeros(1, np.float32)
    for name, variant in FAITHFUL:
        for setting in settings_of(name):
            out = six(name, variant, zero, zero, setting)
            assert out["mean"][0] == FACTS[name].f(np.zeros(1), **setting)[0], name
            assert out["var"][0] == 0, name
            assert all(np.isfinite(value).all() for value in out.values()), name
            assert not is_normal(out["var"].astype(np.float64)).any()
