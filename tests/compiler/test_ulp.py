"""Errors in units in the last place, at the ends of binades and of float32."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from momentgen.compiler.measure.ulp import LARGEST, SMALLEST_NORMAL, is_normal, ulp_error, unit


@given(st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda x: x != 0))
def test_unit_is_the_distance_to_the_next_float32_away_from_zero(x: float) -> None:
    value = np.float32(x)
    away = np.nextafter(value, np.float32(np.copysign(np.inf, value)))
    if np.isfinite(away):
        assert unit(np.array(float(value))) == abs(float(away) - float(value))
        assert ulp_error(np.array([away]), np.array([float(value)]))[0] == (1.0 if abs(x) >= SMALLEST_NORMAL else 0.0)


def test_error_of_a_correct_rounding_is_at_most_a_half() -> None:
    exact = np.random.default_rng(0).lognormal(0, 20, 10_000)
    exact = exact[is_normal(exact)]
    assert ulp_error(exact.astype(np.float32), exact).max() <= 0.5
    assert ulp_error(exact.astype(np.float32), -exact).min() > 1e6


def test_what_is_not_finite_counts_as_infinitely_wrong_and_below_the_normal_range_not_at_all() -> None:
    computed = np.float32([np.nan, np.inf, 1.0, 0.0, 1.0])
    exact = np.array([1.0, 1.0, 1.0, 2.0**-127, 1e300])
    assert ulp_error(computed, exact).tolist() == [np.inf, np.inf, 0.0, 0.0, 0.0]


def test_normal_range() -> None:
    below = float(np.nextafter(SMALLEST_NORMAL, 0))
    sizes = np.array([0.0, below, SMALLEST_NORMAL, 1.0, LARGEST, LARGEST * (1 + 1e-9), np.inf, np.nan])
    assert is_normal(sizes).tolist() == is_normal(-sizes).tolist() == [0, 0, 1, 1, 1, 0, 0, 0]
