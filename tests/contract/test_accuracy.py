"""The accuracy that certificates state, held against exact values at points the certificates have not seen."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import pytest
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
    op_of,
    settings_of,
    six,
    stables,
)

from momentgen.compiler.certify.points import edge_points, in_domain, near_points, wide_points
from momentgen.compiler.certify.sampling import sampler_of
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.measure.ulp import SMALLEST_NORMAL, ulp_error

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
    """Points and exact values at one of the settings; shared by the variants."""
    setting, count = settings_of(name)[number], (10_000 if FACTS[name].absolute else 20_000) if number == 0 else 6_000
    stable = stables(name)["exact"]
    groups = [whole_domain(count, _seed(name) + number), edge_points()]
    groups.append(near_points(stable.focus(setting), 2_000, _seed(name)))
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
        points = whole_domain(6_000, seed) if name in FACTS else wide_points(1_500, seed)
        if len(stable.forward.inputs) > 2:
            points = sampler.calibration(here, here.forward, setting, 2_000, seed)
        points = tuple(array[sampler.in_domain(*points)] for array in points)
        computed, exact = all_of(name, variant, points, **setting), stable.truth(*points, setting)
        for output in stable.outputs:
            error = here.measure(output, computed[output], exact[output], *points)
            at = int(np.argmax(error))
            assert error[at] <= stable.goal, (output, setting, seed, [float(array[at]) for array in points])


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
