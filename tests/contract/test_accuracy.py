"""The accuracy that certificates state, held against exact values at points the certificates have not seen.

Also the generated PyTorch code, and what an infinite input gives.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from contract.certified import certified, points_drawn, settings_drawn
from contract.library import each_variant
from real_rules import (
    ALL,
    F32,
    FACTS,
    FAITHFUL,
    all_of,
    each,
    fresh_seed,
    moments,
    op_of,
    settings_of,
    stables,
)

from momentgen.compiler.certify.points import edge_points, in_domain, wide_points
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS
from momentgen.compiler.toolchain.float32 import LARGEST

SIX = (*OUTPUTS, *PARTIALS)


@each_variant
def test_outputs_and_partials_are_within_the_goal_at_unseen_points_and_settings(name: str, variant: str) -> None:
    seed = fresh_seed(name, variant)
    rng = np.random.default_rng(seed)
    for setting in settings_drawn(name, 3, rng):
        of = certified(name, variant, setting)
        points = points_drawn(name, of, 200, rng)
        exact = of.truth(*points, setting)
        for backend in ("c", "torch"):
            for output, values in all_of(name, variant, points, backend, **setting).items():
                if backend == "torch":  # the bare code has float64's range
                    values = np.clip(values, -LARGEST, LARGEST)
                error = of.error(output, values, exact[output], *points)
                if backend == "torch" and output == "mean" and of.focus:  # there two terms cancel in float64
                    near = points[0] / np.sqrt(points[1].astype(np.float64)) / of.focus[0] - 1
                    error = np.where(np.abs(near) > 1e-6, error, 0)
                at = int(np.argmax(error))
                where = [float(array[at]) for array in points]
                assert error[at] <= 1, (backend, output, setting, seed, where)


@each(ALL)
def test_certificate_bounds_are_met_where_it_says(name: str, variant: str) -> None:
    stable, certificate = stables(name)[variant], op_of(name).certificate(variant)
    for output, bound in certificate.bounds.items():
        if bound[stable.unit] == 0:  # met everywhere: ap1's variance is 0
            continue
        at = dict(bound["at"])
        mean, var = np.float32([at.pop("mean")]), np.float32([at.pop("var")])
        computed, exact = all_of(name, variant, (mean, var), **at), stable.truth(mean, var, at)
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


@each([(n, v) for n, v in PLAIN if not FACTS[n].absolute])
def test_float64_is_accurate_to_some_units_in_its_last_place(name: str, variant: str) -> None:
    stable = stables(name)[variant]
    groups = [wide_points(1_000, 11), edge_points()]
    mean, var = (np.concatenate([group[i] for group in groups]) for i in (0, 1))
    usable = in_domain(mean, var)
    mean, var = mean[usable], var[usable]
    for setting in settings_of(name):
        exact = stable.truth(mean, var, setting)
        got = all_of(name, variant, (mean.astype(np.float64), var.astype(np.float64)), "torch", **setting)
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
