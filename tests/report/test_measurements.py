"""What the report measures, against quadrature and definitions evaluated in mpmath."""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path

import mpmath
import numpy as np
import pytest
from quadrature_truth import moments

from momentgen.commands.report.measurements import compare, moment_curves, relative_errors
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


def test_the_comparison_finds_the_worst_points_of_each_variant_and_rounding_alone_in_exact_ones() -> None:
    found = {c.variant: c for c in compare(subject("relu"))}
    assert set(found) == {"exact", "tight", "fitted", "identity_delta"}
    assert max(found["exact"].kl[0], found["tight"].kl[0]) < 1e-12
    assert found["identity_delta"].kl[0] == np.inf  # its variance is 0 for mu <= 0
    t = mpmath.mpf("0.3703294866")
    assert found["fitted"].mean[0] < 1e-6
    with mpmath.workdps(30):
        for worst, (mean, sigma) in (found["fitted"].kl, found["fitted"].var):
            exact_mean, exact_var = moments(subject("relu").rule.f, mean, sigma**2, digits=20)
            fitted = sigma**2 / (1 + mpmath.exp(-mean / sigma / t))
            kl = kl_by_definition(exact_mean, exact_var, exact_mean, fitted)
            of_var = abs(fitted / exact_var - 1)
            assert min(abs(worst / float(kl) - 1), abs(worst / float(of_var) - 1)) < 1e-5


def test_a_rule_that_is_not_built_is_an_error(tmp_path: Path) -> None:
    (rule,) = load_rules(ROOT / "rules" / "relu.py")
    with pytest.raises(MomentgenError, match="expected the built rule relu"):
        subject_of(rule, tmp_path)
