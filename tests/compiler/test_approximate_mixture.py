"""Scale mixtures of the logistic sigmoid: proven, level, and as good as they are said to be."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from momentgen.compiler.approximate import LOGISTIC, ScaleMixture, fit_scale_mixture, prove_scale_mixture
from momentgen.errors import BuildError


@lru_cache
def _fit(terms: int, value_alone: bool = False) -> ScaleMixture:
    return fit_scale_mixture(terms, slope_tolerance=None if value_alone else 1e-6)


def _logistic(x: mpf) -> mpf:
    return 1 / (1 + mp.exp(-x))


@pytest.mark.parametrize(("terms", "error"), [(5, 6.0e-7), (7, 1.3e-8), (8, 2.2e-9)])
def test_value_alone_reaches_the_known_sup_errors(terms: int, error: float) -> None:
    assert _fit(terms, True).bounds[0] < error


@pytest.mark.parametrize(
    ("terms", "value", "slope"),
    [
        (7, 3.5e-8, 1.8e-6),
        (8, 5.3e-9, 2.7e-7),
        pytest.param(9, 9.2e-10, 4.6e-8, marks=pytest.mark.slow),
        pytest.param(10, 1.7e-10, 8.4e-9, marks=pytest.mark.slow),
    ],
)
def test_value_and_slope_together(terms: int, value: float, slope: float) -> None:
    fit = _fit(terms)
    assert fit.bounds[0] < value
    assert fit.slope_bound is not None
    assert fit.slope_bound < slope


@pytest.mark.parametrize("terms", [5, 8])
def test_weights_are_a_probability_and_scales_positive(terms: int) -> None:
    fit = _fit(terms)
    with mp.workdps(40):
        assert abs(sum(fit.weights) - 1) < mpf("1e-29")
    assert min(fit.weights) > 0
    assert min(fit.scales) > 0
    assert list(fit.scales) == sorted(fit.scales, reverse=True)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([(5, True), (8, False)]), st.floats(-45, 45))
def test_no_point_exceeds_the_bounds(case: tuple[int, bool], x: float) -> None:
    fit = _fit(*case)
    with mp.workdps(40):
        at = mpf(x)
        assert abs(fit(at) - _logistic(at)) <= fit.bounds[0]
        for k in range(1, len(fit.bounds)):
            # Derivatives from exact formulas: a Taylor expansion of S, Hermite polynomials for the mixture.
            exact = mp.taylor(_logistic, at, k)[k] * mp.factorial(k)
            mixed = sum(
                p * s**k * (-1) ** (k - 1) * _hermite(k - 1, s * at) * mp.npdf(s * at)
                for p, s in zip(fit.weights, fit.scales, strict=True)
            )
            assert abs(exact - mixed) <= fit.bounds[k] * (1 + mpf("1e-12"))


def _hermite(n: int, y: mpf) -> mpf:
    return mp.hermite(n, y / mp.sqrt(2)) / mp.sqrt(2) ** n


@settings(max_examples=60, deadline=None)
@given(st.floats(-8, 8))
def test_no_point_exceeds_the_slope_bound(x: float) -> None:
    fit = _fit(8)
    with mp.workdps(40):
        slope = LOGISTIC.slope(abs(mpf(x)))
        assert abs(fit.derivative(mpf(x)) / slope - 1) <= fit.slope_bound


@pytest.mark.parametrize("case", [(5, True), (7, False), (8, False), pytest.param((10, False), marks=pytest.mark.slow)])
def test_bounds_are_reached_within_one_per_cent(case: tuple[int, bool]) -> None:
    fit = _fit(*case)
    assert all(e <= b <= mpf("1.01") * e for e, b in zip(fit.errors, fit.bounds, strict=True))
    assert fit.slope_error <= fit.slope_bound <= mpf("1.01") * fit.slope_error


def test_value_and_slope_errors_are_level_at_twice_as_many_points_as_terms() -> None:
    fit = _fit(8)
    with mp.workdps(30):
        level = 0
        values = [(fit(x) - _logistic(x)) / mpf(2e-8) for x in mp.linspace(0, 40, 1601)]
        slopes = [(fit.derivative(x) / LOGISTIC.slope(x) - 1) / mpf(1e-6) for x in mp.linspace(0, 8, 801)]
        slopes = [slopes[1], *slopes, slopes[-2]]  # even at 0; the end of the range may be an extremum
        for curve in (values, slopes):
            for a, b, c in zip(curve, curve[1:], curve[2:], strict=False):
                assert abs(b) <= fit.level * (1 + mpf("1e-9"))
                level += abs(b) >= max(abs(a), abs(c)) and abs(b) > 0.99 * fit.level
        assert level == 16


def test_rounding_to_float32_is_seen_and_proven() -> None:
    fit = _fit(8)
    rounded = replace(
        fit,
        weights=tuple(mpf(float(np.float32(float(p)))) for p in fit.weights),
        scales=tuple(mpf(float(np.float32(float(s)))) for s in fit.scales),
    )
    proven = prove_scale_mixture(rounded, derivatives=0)
    assert 2 * fit.bounds[0] < proven.bounds[0] < 1e-7
    with mp.workdps(30):
        assert all(abs(proven(x) - _logistic(x)) <= proven.bounds[0] for x in mp.linspace(-30, 30, 301))


def test_a_degenerate_optimum_says_so() -> None:
    assert _fit(8).determined
    assert not _fit(7).determined


def test_the_same_fit_twice() -> None:
    assert fit_scale_mixture(6, derivatives=0) == fit_scale_mixture(6, derivatives=0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"terms": 1}, "2 to 11"),
        ({"terms": 5, "value_tolerance": 0}, "positive"),
        ({"terms": 5, "slope_range": 1e3}, "slope_range"),
    ],
)
def test_senseless_requests_are_refused(arguments: dict[str, float], says: str) -> None:
    with pytest.raises(BuildError, match=says):
        fit_scale_mixture(**arguments)  # type: ignore[arg-type]
