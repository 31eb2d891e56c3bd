"""What the report measures, against quadrature and definitions evaluated in mpmath."""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path

import mpmath
import numpy as np
import pytest
from quadrature_truth import moments

from momentgen.commands.report.measurements import (
    compare,
    compare_curves,
    kl_normal,
    moment_curves,
    relative_errors,
)
from momentgen.commands.report.subject import Subject, activation, subject_of
from momentgen.errors import MomentgenError
from momentgen.rule import load_rules

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "generated"


@functools.lru_cache
def subject(name: str, package: Path = GENERATED) -> Subject:
    (rule,) = load_rules(ROOT / "rules" / f"{name}.py")
    return subject_of(rule, package)


def kl_by_definition(m: float, v: float, n: float, w: float) -> mpmath.mpf:
    def integrand(x: mpmath.mpf) -> mpmath.mpf:
        p, q = mpmath.npdf(x, m, mpmath.sqrt(v)), mpmath.npdf(x, n, mpmath.sqrt(w))
        return p * (mpmath.log(p) - mpmath.log(q))

    s = mpmath.sqrt(v)
    return mpmath.quad(integrand, [m - 12 * s, m - 3 * s, m, m + 3 * s, m + 12 * s])


@pytest.mark.parametrize("other", [(0.3, 2.0), (0.5, 1.4), (-4.0, 0.3)])
def test_kl_of_normals_is_the_integral_that_defines_it(other: tuple[float, float]) -> None:
    with mpmath.workdps(30):
        want = float(kl_by_definition(0.5, 1.3, *other))
    got = kl_normal(*(np.array([z]) for z in (0.5, 1.3, *other)))
    assert got[0] == pytest.approx(want, rel=1e-12)


def test_kl_is_infinite_where_the_other_is_certain() -> None:
    one, zero = np.array([1.0]), np.array([0.0])
    assert kl_normal(one, one, one, zero)[0] == np.inf


def test_the_curves_are_f_and_the_moments_of_f() -> None:
    drawn = moment_curves(subject("relu"), points=13)
    assert np.array_equal(drawn.f, np.maximum(drawn.mu, 0))
    for i in (0, 5, 6, 12):
        mean, var = moments(subject("relu").rule.f, float(drawn.mu[i]), 1, digits=20)
        assert drawn.means[1][i] == pytest.approx(float(mean), rel=1e-6)
        assert drawn.deviations[1][i] == pytest.approx(float(mpmath.sqrt(var)), rel=1e-6)


def test_f_is_drawn_with_the_upper_value_at_a_jump() -> None:
    f = activation(subject("heaviside").rule, {})
    assert f(np.array([-1.0, 0.0, 1.0])).tolist() == [0.0, 1.0, 1.0]


def test_relative_errors_show_an_error_put_into_the_committed_c(tmp_path: Path) -> None:
    shutil.copytree(GENERATED / "heaviside", tmp_path / "heaviside")
    file = tmp_path / "heaviside" / "exact.c"
    file.write_text(re.sub(r"\*out_var = (\w+);", r"*out_var = \1 * 1.0001f;", file.read_text()))
    (rule,) = load_rules(ROOT / "rules" / "heaviside.py")
    found = relative_errors(subject_of(rule, tmp_path), grid=(9, 5))
    assert np.nanmedian(found.errors["var"]) == pytest.approx(1e-4, rel=0.01)
    assert np.nanmax(found.errors["mean"]) < 1e-5


def test_the_fitted_variance_is_compared_by_its_own_formula() -> None:
    t = mpmath.mpf(json.loads((GENERATED / "relu" / "fitted.json").read_text())["facts"]["t"])
    curves = compare_curves(subject("relu"), np.array([1.0, -0.5]), np.array([1.0, 0.5]))["fitted"]
    with mpmath.workdps(30):
        for i, (mean, sigma) in enumerate([(1.0, 1.0), (-0.5, 0.5)]):
            exact_mean, exact_var = moments(subject("relu").rule.f, mean, sigma**2, digits=20)
            fitted = sigma**2 / (1 + mpmath.exp(-mean / sigma / t))
            assert curves.sigma_ratio[i] == pytest.approx(float(mpmath.sqrt(fitted / exact_var)), rel=1e-6)
            assert abs(curves.mean_error[i]) < 1e-6
            want = kl_by_definition(exact_mean, exact_var, exact_mean, fitted)
            assert curves.kl[i] == pytest.approx(float(want), rel=1e-5)


def test_the_comparison_finds_the_worst_point_and_rounding_alone_in_exact_variants() -> None:
    found = {c.variant: c for c in compare(subject("relu"))}
    assert set(found) == {"exact", "tight", "fitted", "identity_delta", "logistic_input"}
    assert max(found["exact"].kl, found["tight"].kl) < 1e-12
    mean, sigma = found["fitted"].kl_at
    at = compare_curves(subject("relu"), np.array([mean]), np.array([sigma]))["fitted"]
    assert at.kl[0] == found["fitted"].kl > 0.03
    assert at.sigma_ratio[0] <= found["fitted"].sigma_high


def test_a_rule_that_is_not_built_is_an_error(tmp_path: Path) -> None:
    (rule,) = load_rules(ROOT / "rules" / "relu.py")
    with pytest.raises(MomentgenError, match="expected the built rule relu"):
        subject_of(rule, tmp_path)
