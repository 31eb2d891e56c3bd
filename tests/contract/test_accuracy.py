"""The accuracy that certificates state, held against exact values at points the certificates have not seen.

Also that backends agree, and the PyTorch code: exact values of one rule are prepared once a process, in seconds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from contract.strategies import parameters, points
from hypothesis import given, settings
from hypothesis import strategies as st
from real_rules import (
    ALL,
    F32,
    F64,
    FACTS,
    FAITHFUL,
    Facts,
    all_of,
    each,
    fresh_seed,
    goal_of,
    module_of,
    moments,
    op_of,
    settings_of,
    six,
    stables,
)

from momentgen.compiler.certify.points import edge_points, in_domain, near_points, points_beside, wide_points
from momentgen.compiler.certify.sampling import sampler_of
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.measure.ulp import SMALLEST_NORMAL, ulp_error
from momentgen.compiler.toolchain.float32 import split_float32

SIX = (*OUTPUTS, *PARTIALS)
IN_ULP = [(n, v) for n, v in FAITHFUL if not FACTS[n].absolute]


def _signed(rng: np.random.Generator, low: float, high: float, n: int) -> F64:
    return np.asarray(rng.choice([-1.0, 1.0], n) * 10 ** rng.uniform(low, high, n))


def whole_domain(n: int, seed: int) -> tuple[F32, F32]:
    """mean 0 and ±1e-30 to ±1e30, var 1e-38 to 1e30, |mean|/sigma to 1e4 and beyond; and all of float32."""
    rng = np.random.default_rng(seed)
    k = n // 3
    free = _signed(rng, -30, 30, k), 10 ** rng.uniform(-38, 30, k)
    var = 10 ** rng.uniform(-38, 30, k)
    ratio = np.where(rng.random(k) < 0.7, rng.uniform(-15, 15, k), _signed(rng, -30, 5, k))
    tied = np.where(rng.random(k) < 0.03, 0.0, ratio) * np.sqrt(var), var
    wide = wide_points(n - 2 * k, seed)
    mean = np.concatenate([free[0], tied[0], wide[0]]).astype(np.float32)
    return mean, np.concatenate([free[1], tied[1], wide[1]]).astype(np.float32)


@functools.lru_cache
def _seed(name: str) -> int:
    return fresh_seed(name)


@functools.lru_cache(maxsize=8)
def _exact(name: str, number: int) -> tuple[tuple[F32, F32], Mapping[str, F64]]:
    """Points, others in each run, and exact values at one of the settings; shared by the variants."""
    setting, count = settings_of(name)[number], 5_000 if number == 0 else 2_000
    stable = stables(name)["exact"]
    groups = [whole_domain(count, _seed(name) + number), edge_points()]
    groups.append(near_points(stable.focus(setting), 500, _seed(name)))
    mean, var = (np.concatenate([group[i] for group in groups]) for i in (0, 1))
    usable = in_domain(mean, var)
    mean, var = mean[usable], var[usable]
    return (mean, var), stable.truth(mean, var, setting)


@each(IN_ULP)
def test_outputs_and_partials_are_within_the_promise_at_unseen_points(name: str, variant: str) -> None:
    for number, setting in enumerate(settings_of(name)):
        (mean, var), exact = _exact(name, number)
        computed = six(name, variant, mean, var, setting)
        for output in SIX:
            where = f"{output}, {setting}, seed {_seed(name)}"
            error = ulp_error(computed[output], exact[output])
            at = int(np.argmax(error))
            assert error[at] <= goal_of(name, variant), (where, mean[at], var[at])
            small = np.abs(exact[output]) < SMALLEST_NORMAL
            gap = np.abs(computed[output][small] - exact[output][small])
            assert gap.max(initial=0.0) <= 2.0**-126, where


#: ops of two values, their covariances, and draws of 0 or 1; `make slow` has those whose exact values take long
OF_TWO = (
    "product", "difference", "maximum", "maximum_correlated", "bernoulli_noise", "heaviside_covariance",
    "relu_covariance", "gelu_covariance", "normal_cdf_covariance", "normal_cdf", "probit", "logistic_bernoulli",
)  # fmt: skip
LONG = ("gelu_covariance", "normal_cdf_covariance")
REST = [pair for pair in ALL if pair not in IN_ULP] + [(n, v) for n in OF_TWO for v in op_of(n).variants]


@pytest.mark.parametrize(
    ("name", "variant"), [pytest.param(*pair, marks=pytest.mark.slow if pair[0] in LONG else []) for pair in REST]
)
def test_other_variants_are_within_their_goal_at_unseen_points(name: str, variant: str) -> None:
    stable, seed = stables(name)[variant], fresh_seed(name, variant)
    for setting in stable.settings:
        here, sampler = stable.at(setting), sampler_of(stable.forward.inputs)
        points = whole_domain(2_000, seed) if name in FACTS else wide_points(800, seed)
        if len(stable.forward.inputs) > 2:
            points = sampler.calibration(here, here.forward, setting, 800, seed)
        points = tuple(array[sampler.in_domain(*points)] for array in points)
        computed, exact = all_of(name, variant, points, **setting), stable.truth(*points, setting)
        for output in stable.outputs:
            error = here.measure(output, computed[output], exact[output], *points)
            at = int(np.argmax(error))
            assert error[at] <= stable.goal, (output, setting, seed, [float(array[at]) for array in points])


@pytest.mark.parametrize("name", ["celu", "hardshrink", "hardtanh", "softshrink", "threshold"])
def test_beside_places_that_parameters_move_variants_are_within_their_goal_at_any_parameter(name: str) -> None:
    stable, rng = stables(name)["exact"], np.random.default_rng(seed := fresh_seed(name))
    for _ in range(30):
        drawn = {p.name: sum(split_float32(rng.uniform(p.low, p.high))) for p in op_of(name).parameters}
        here = stable.at(drawn)
        points = points_beside(here.places(drawn), 300, int(rng.integers(2**31)))
        computed, exact = all_of(name, "exact", points, **drawn), here.truth(*points, drawn)
        for output in stable.outputs if points[0].size else ():
            error = here.measure(output, computed[output], exact[output], *points)
            at = int(np.argmax(error))
            assert error[at] <= stable.goal, (output, drawn, seed, [float(array[at]) for array in points])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "logistic_transform" else [])
        for name, variant in FAITHFUL
        if variant == "exact" and FACTS[name].absolute
    ],
)
def test_absolute_accuracy(name: str) -> None:
    facts: Facts = FACTS[name]
    (mean, var), exact = _exact(name, 0)
    computed = six(name, "exact", mean, var, {})
    for output in OUTPUTS:
        assert np.abs(computed[output] - exact[output]).max() <= facts.absolute, output


@each(ALL)
def test_certificate_bounds_are_met_where_it_says(name: str, variant: str) -> None:
    stable, certificate = stables(name)[variant], op_of(name).certificate(variant)
    for output, bound in certificate.bounds.items():
        if bound[stable.unit] == 0:  # met everywhere: ap1's variance is 0
            continue
        at = dict(bound["at"])
        mean, var = np.float32([at.pop("mean")]), np.float32([at.pop("var")])
        computed, exact = six(name, variant, mean, var, at), stable.truth(mean, var, at)
        error = stable.at(at).measure(output, computed[output], exact[output], mean, var)
        assert error[0] == pytest.approx(bound[stable.unit], rel=2e-3), output
        assert error[0] <= bound[stable.unit], output


@each(ALL)
def test_certificate_is_of_this_rule_and_states_every_output(name: str, variant: str) -> None:
    certificate = op_of(name).certificate(variant)
    stable = stables(name)[variant]
    assert (certificate.rule, certificate.variant) == (name, variant)
    assert tuple(certificate.bounds) == SIX
    for output, bound in certificate.bounds.items():
        assert 0 <= bound[stable.unit] <= stable.goal, output
        assert bound[stable.unit] == 0 or sum(bound["histogram_ulp"].values()) > 1000, output
    assert set(certificate.operations) == {"forward", "backward"}


# --- backends ------------------------------------------------------------------------
@each([(n, v) for n, v in FAITHFUL if not FACTS[n].absolute])
@settings(max_examples=10)
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
@settings(max_examples=10)
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


# --- the generated PyTorch code ----------------------------------------------------------
PLAIN = [(n, v) for n, v in FAITHFUL if v == "exact"]


def six64(name: str, variant: str, mean: F64, var: F64, setting: dict[str, float]) -> dict[str, F64]:
    module = module_of(name, variant)
    m, v = torch.from_numpy(mean), torch.from_numpy(var)
    one, zero = torch.ones_like(m), torch.zeros_like(m)
    results = [*module.forward(m, v, **setting)]
    results += [*module.backward(m, v, one, zero, **setting), *module.backward(m, v, zero, one, **setting)]
    return {key: value.numpy() for key, value in zip((*OUTPUTS, *PARTIALS), results, strict=True)}


@each([(n, v) for n, v in PLAIN if not FACTS[n].absolute])
def test_float64_is_accurate_to_some_units_in_its_last_place(name: str, variant: str) -> None:
    stable = stables(name)[variant]
    groups = [wide_points(1_000, 11), edge_points()]
    mean, var = (np.concatenate([group[i] for group in groups]) for i in (0, 1))
    usable = in_domain(mean, var)
    mean, var = mean[usable], var[usable]
    for setting in settings_of(name):
        exact = stable.truth(mean, var, setting)
        got = six64(name, variant, mean.astype(np.float64), var.astype(np.float64), setting)
        for output, want in exact.items():
            large = np.abs(want) > 1e-60  # far below float32's range exact values are good absolutely only
            error = np.abs(got[output] - want)[large] / np.abs(want)[large]
            if output == "mean" and (ratios := stable.focus(setting)):
                # Here the two terms of the mean cancel in float64.
                ratio = (mean / np.sqrt(var.astype(np.float64)))[large]
                error = error * np.minimum(np.abs(ratio / ratios[0] - 1), 1)
            # exp(-a²/2) magnifies the rounding of a²/2, up to 700, that many times.
            assert error.max(initial=0.0) < 3e-13, (output, setting)
            bulk = np.abs(mean[large]) < 5 * np.sqrt(var[large].astype(np.float64))
            assert error[bulk].max(initial=0.0) < 2e-14, (output, setting)


@each(ALL)
def test_backward_is_the_derivative_of_forward(name: str, variant: str) -> None:
    module, rng = module_of(name, variant), np.random.default_rng(0)
    for setting in settings_of(name)[:2]:
        mean = torch.from_numpy(rng.normal(0, 2, 40)).requires_grad_()
        var = torch.from_numpy(rng.uniform(0.1, 4, 40)).requires_grad_()
        grads = [torch.from_numpy(rng.standard_normal(40)) for _ in range(2)]
        want = torch.autograd.grad(module.forward(mean, var, **setting), (mean, var), grads, allow_unused=True)
        got = module.backward(mean, var, *grads, **setting)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, torch.zeros_like(g) if w is None else w, rtol=1e-9, atol=1e-10)
