"""Minimax rationals: they equioscillate, beat the polynomial, and are proven like one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from momentgen.compiler.approximate import J, J_series, prove, remez, remez_rational
from momentgen.errors import BuildError


def _one(_: mpf) -> mpf:
    return mpf(1)


@pytest.mark.parametrize(("degrees", "error"), [((1, 1), 2.0970e-2), ((2, 2), 8.6900e-5)])
def test_exponential_reaches_the_tabulated_absolute_errors(degrees: tuple[int, int], error: float) -> None:
    # Best rational approximation of exp on [-1, 1], Meinardus 1967, and many tables since.
    assert abs(remez_rational(mp.exp, (-1, 1), degrees, weight=_one).error / error - 1) < 1e-4


@pytest.mark.parametrize("degrees", [(1, 1), (2, 2), (3, 4), (5, 5)])
def test_relative_error_equioscillates(degrees: tuple[int, int]) -> None:
    fit = remez_rational(lambda t: J(0, t), (0, 4), degrees)
    with mp.workdps(40):
        points = [2 + 2 * mp.cospi(mpf(i) / 800) for i in range(801)]
        errors = [fit(x) / J(0, x) - 1 for x in points]
    runs: list[mpf] = []
    for e in errors:
        if runs and e * runs[-1] > 0:
            runs[-1] = max(runs[-1], e, key=abs)
        else:
            runs.append(e)
    assert len(runs) == sum(degrees) + 2
    assert all(abs(abs(e) / fit.error - 1) < 1e-3 for e in runs)


def test_the_mills_ratio_is_easier_for_a_rational() -> None:
    rational = remez_rational(lambda t: J(0, t), (0, 18), (5, 6))
    assert rational.error < remez(lambda t: J(0, t), (0, 18), 11).error / 100


_FIT = prove(remez_rational(lambda t: J(0, t), (0, 6), (4, 5)), lambda t: J_series(0, t))


def test_the_bound_is_within_one_per_cent_of_the_error() -> None:
    assert _FIT.bound is not None
    assert _FIT.error <= _FIT.bound <= mpf("1.0101") * _FIT.error


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 6))
def test_no_point_exceeds_the_bound(t: float) -> None:
    assert _FIT.bound is not None
    with mp.workdps(40):
        assert abs(_FIT(t) / J(0, t) - 1) <= _FIT.bound


def test_the_same_fit_twice() -> None:
    assert remez_rational(mp.exp, (0, 1), (2, 3)) == remez_rational(mp.exp, (0, 1), (2, 3))


@pytest.mark.parametrize(
    ("function", "degrees", "says"),
    [(mp.exp, (2, 0), "degrees"), (lambda x: x, (1, 1), "without zeros"), (lambda x: 1 / (x - 2), (1, 1), "degree")],
)
def test_what_cannot_be_fitted_is_said(function: object, degrees: tuple[int, int], says: str) -> None:
    with pytest.raises(BuildError, match=says):
        remez_rational(function, (-1, 1), degrees)  # type: ignore[arg-type]
