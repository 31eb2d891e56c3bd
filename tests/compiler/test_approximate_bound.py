"""Proven bounds are bounds, and close to what is reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from flint import arb, arb_series
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from taylor_models import BallFunction, J_series, proven_maximum

from momentgen.compiler.fit import J, Polynomial, remez
from momentgen.compiler.fit.special import to_ball
from momentgen.errors import BuildError

_LOW = 1 / (1 + mpf("18.7") / 4)


def _relu_core(u: mpf) -> mpf:
    return 2 * J(2, 4 * (1 / u - 1)) / u**3


def _relu_core_ball(u: arb_series) -> arb_series:
    return 2 * J_series(2, 4 / u - 4) / u**3


def _rounded(fit: Polynomial) -> Polynomial:
    return replace(fit, coefficients=tuple(mpf(float(np.float32(float(c)))) for c in fit.coefficients))


def _bound(fit: Polynomial, ball: BallFunction, weight: BallFunction | None = None) -> mpf:
    """A proven bound of a fit's weighted error, relative by default."""

    def error(x: arb_series) -> arb_series:
        value, exact = arb_series([arb(0)]), ball(x)
        for c in reversed(fit.coefficients):
            value = value * (x - to_ball(fit.centre)) + to_ball(c)
        return (value - exact) * weight(x) if weight is not None else (value - exact) / exact

    return proven_maximum(error, fit.interval, pieces=2048, order=14, bits=400, what=fit.what)


_CORE = remez(_relu_core, (_LOW, 1), 12, centre="0.25")
_CASES: dict[str, tuple[Polynomial, Callable[[mpf], mpf], BallFunction]] = {
    "exp": (remez(mp.exp, (-1, "1.5"), 7, centre="0.5"), mp.exp, lambda x: x.exp()),
    "core": (_CORE, _relu_core, _relu_core_ball),
    "core with float32 coefficients": (_rounded(_CORE), _relu_core, _relu_core_ball),
}


@cache
def _bound_of(case: str) -> mpf:
    fit, _, ball = _CASES[case]
    return _bound(fit, ball)


@pytest.mark.parametrize("case", _CASES)
@settings(max_examples=200, deadline=None)
@given(place=st.floats(0, 1))
def test_no_point_exceeds_the_bound(case: str, place: float) -> None:
    fit, function, _ = _CASES[case]
    with mp.workdps(50):
        low, high = fit.interval
        x = low + (high - low) * mpf(place)
        assert abs(fit(x) / function(x) - 1) <= _bound_of(case)


@pytest.mark.parametrize("case", _CASES)
def test_bound_is_within_two_per_cent_of_a_value_that_is_reached(case: str) -> None:
    fit, function, _ = _CASES[case]
    with mp.workdps(50):
        reached = max(abs(fit(x) / function(x) - 1) for x in mp.linspace(*fit.interval, 500))
    assert reached <= _bound_of(case) <= reached * mpf("1.02")


def test_rounding_the_coefficients_is_seen() -> None:
    assert _bound_of("core with float32 coefficients") > 10 * _bound_of("core")


@pytest.mark.parametrize("degree", [20, 28])
def test_small_errors_are_proven_too(degree: int) -> None:
    fit = remez(_relu_core, (_LOW, 1), degree, centre="0.25")
    assert _bound(fit, _relu_core_ball) < 1.05 * fit.error < mpf("1e-14")


def test_absolute_error() -> None:
    fit = remez(mp.cos, (0, 3), 6, weight=lambda x: 1)
    bound = _bound(fit, lambda x: x.cos(), lambda x: arb_series([1]))
    with mp.workdps(30):
        assert bound >= max(abs(fit(x) - mp.cos(x)) for x in mp.linspace(0, 3, 400)) > 0.99 * fit.error


def test_a_wrong_function_is_not_proven_small() -> None:
    assert 9e-4 < _bound(remez(mp.exp, (0, 1), 8), lambda x: x.exp() * (1 + x / 1000)) < 1.1e-3


def test_maximum_inside_a_narrow_peak() -> None:
    found = proven_maximum(lambda x: 1 / (1 + (1000 * (x - arb("0.123456"))) ** 2), (0, 1), pieces=8192)
    assert 1 <= found < 1.2


def test_maximum_of_an_unbounded_function_is_refused() -> None:
    with pytest.raises(BuildError, match="expected a bounded function"):
        proven_maximum(lambda x: 1 / x, (0, 1), what="1/x")


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 60), st.floats(0, 1), st.floats(0, 1), st.integers(0, 4))
def test_ball_series_of_the_truncated_moments_contains_the_derivatives(
    t: float, width: float, place: float, n: int
) -> None:
    low = arb(t)
    series = J_series(n, arb_series([low.union(low + arb(width)), arb(1)], 5))
    with mp.workdps(40):
        point = mpf(t) + mpf(width) * mpf(place)
        for k in range(5):
            # J_n^(k) / k! = (-1)^k C(n+k, k) J_{n+k}
            exact = (-1) ** k * mp.binomial(n + k, k) * J(n + k, point)
            assert series[k].lower() <= arb(mp.nstr(exact, 30)) <= series[k].upper()
