"""Fits: minimax polynomials, those of two variables, and least squares."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from numpy.polynomial import chebyshev

from momentgen.compiler.fit import J, Polynomial, reflections, remez
from momentgen.compiler.fit.bivariate import Bivariate, BivariateTarget, columns, fit_bivariate, rows, terms_needed
from momentgen.compiler.fit.reflections import least_squares
from momentgen.errors import BuildError
from momentgen.native.c_compiler import find_compiler

# Minimax polynomials: they equioscillate, match the known ones, and come out the same every time.
_LOW = 1 / (1 + mpf("18.7") / 4)


def _relu_core(u: mpf) -> mpf:
    return 2 * J(2, 4 * (1 / u - 1)) / u**3


def _one(_: mpf) -> mpf:
    return mpf(1)


def _extrema(fit: Polynomial, function: object, weight: object, points: int = 1500) -> list[mpf]:
    """Local extrema of the weighted error on a Chebyshev grid, in order."""
    low, high = fit.interval
    errors = []
    for i in range(points + 1):
        x = (low + high) / 2 + (high - low) / 2 * mp.cospi(mpf(i) / points)
        errors.append(weight(x) * (fit(x) - function(x)))  # type: ignore[operator]
    inner = [b for a, b, c in zip(errors, errors[1:], errors[2:], strict=False) if (b - a) * (c - b) <= 0]
    return [errors[0], *inner, errors[-1]]


@pytest.mark.parametrize("degree", [1, 4, 9])
def test_monomial_one_degree_up_leaves_a_chebyshev_polynomial(degree: int) -> None:
    fit = remez(lambda x: x ** (degree + 1), (-1, 1), degree, weight=_one)
    assert abs(fit.error * 2**degree - 1) < 1e-10


@pytest.mark.parametrize("degree", [3, 8, 12, 28])
def test_relative_error_equioscillates(degree: int) -> None:
    fit = remez(_relu_core, (_LOW, 1), degree, centre="0.25")
    with mp.workdps(40):
        extrema = [e for e in _extrema(fit, _relu_core, lambda x: 1 / _relu_core(x)) if abs(e) > fit.error / 2]
        assert len(extrema) == degree + 2
        assert all(a * b < 0 for a, b in pairwise(extrema))
        assert all(abs(abs(e) / fit.error - 1) < 1e-3 for e in extrema)


def test_absolute_error_equioscillates_under_a_weight() -> None:
    fit = remez(mp.cos, (0, 3), 6, weight=lambda x: 1 + x)
    with mp.workdps(40):
        extrema = _extrema(fit, mp.cos, lambda x: 1 + x)
        assert sum(abs(abs(e) / fit.error - 1) < 2e-3 for e in extrema) == 8


@settings(max_examples=25, deadline=None)
@given(st.floats(-3, 3), st.floats(0.01, 2), st.integers(0, 9), st.floats(-2, 2))
def test_measured_error_is_the_maximum(low: float, width: float, degree: int, centre: float) -> None:
    fit = remez(mp.exp, (low, low + width), degree, centre=centre)
    with mp.workdps(60):
        worst = max(abs(fit(x) / mp.exp(x) - 1) for x in mp.linspace(mpf(low), mpf(low) + mpf(width), 60))
        assert worst <= fit.error * (1 + mpf("1e-3"))


def test_a_polynomial_is_returned_as_it_is() -> None:
    fit = remez(lambda x: x**3 - 2 * x + 7, (-2, 1), 5, centre=1)
    assert [mp.nstr(c, 15) for c in fit.coefficients[:4]] == ["6.0", "1.0", "3.0", "1.0"]
    assert fit.error < mpf("1e-38")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((lambda x: abs(x) + 1, (-1, 1), 4), "smooth"),
        ((lambda x: 1 / x, (-1, 1), 4), "cannot be evaluated"),
        ((lambda x: x, (-1, 1), 4), "without zeros"),
        ((mp.log, (-2, -1), 4), "finite real value"),
        ((mp.exp, (1, 1), 4), "low < high"),
        ((mp.exp, (0, 1), -1), "degree"),
        ((mp.exp, (-1, 1), 3, lambda x: x), "weight"),
    ],
)
def test_what_cannot_be_fitted_is_said(given: tuple[Any, ...], says: str) -> None:
    function, interval, degree, weight = (*given, None)[:4]
    with pytest.raises(BuildError, match=says) as caught:
        remez(function, interval, degree, what="wrong", weight=weight)
    assert caught.value.stage == "approximate"
    assert "wrong" in str(caught.value)


@settings(max_examples=40, deadline=None)
@given(st.floats(-6, 40), st.integers(0, 5))
def test_truncated_moments_are_the_integral(t: float, n: int) -> None:
    with mp.workdps(25):
        scale = 1 / (1 + abs(mpf(t)))
        ends = [0, scale, 4 * scale, 16 * scale, 64 * scale, 8, 16, 40]
        truth = mp.quad(lambda x: x**n * mp.exp(-t * x - x * x / 2), sorted(ends)) / mp.factorial(n)
        assert abs(J(n, t) / truth - 1) < mpf("1e-18")


@pytest.mark.parametrize("t", [0, 1, 30, "1e4", "1e30"])
def test_truncated_moments_do_not_cancel_far_out(t: int | str) -> None:
    with mp.workdps(30):
        short = [J(n, t) for n in range(6)]
        assert abs(short[0] / J(0, t) - 1) < mpf("1e-28")
    with mp.workdps(60):
        assert all(abs(a / J(n, t) - 1) < mpf("1e-28") for n, a in enumerate(short))
        if mpf(t) >= 10**4:
            assert all(abs(a * mpf(t) ** (n + 1) - 1) < 40 / mpf(t) ** 2 + mpf("1e-28") for n, a in enumerate(short))


@pytest.mark.parametrize("n", [-1, -3])
def test_negative_order_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="order"):
        J(n, 1)


# Polynomials of two variables: within what was allowed, also between the points, with few terms.
ONE = np.ones(20)


def value(fit: Bivariate, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Written out, not by Horner's scheme."""
    y, total = 2 * x**2 - 1, np.zeros(np.broadcast(x, z).shape)
    for j, row in enumerate(fit.even):
        total = total + z**j * sum(c * y**i for i, c in enumerate(row))
    for j, row in enumerate(fit.odd):
        total = total + z**j * x * sum(c * y**i for i, c in enumerate(row))
    return total


def smooth(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    return np.exp(x * z) / (3 + x + z) + np.tanh(2 * x)


def target(f: object, allowed: float) -> BivariateTarget:
    x, z = columns(60)[None, :], rows(20)[:, None]
    return BivariateTarget(np.broadcast_to(f(x, z), (20, 60)), ONE / allowed, (ONE, ONE))  # type: ignore[operator]


@pytest.mark.parametrize("allowed", [1e-3, 1e-6])
def test_the_error_is_within_what_is_allowed_also_between_the_points(allowed: float) -> None:
    fit = fit_bivariate(target(smooth, allowed))
    assert fit is not None
    x, z = np.linspace(-1, 1, 701)[None, :], np.linspace(rows(20)[-1], 1, 301)[:, None]
    assert np.abs(value(fit, x, z) - smooth(x, z)).max() <= 1.15 * allowed
    assert 0.3 < fit.error <= 1.0


def test_less_accuracy_takes_fewer_terms() -> None:
    counts = [fit.terms for allowed in (1e-2, 1e-4, 1e-6) if (fit := fit_bivariate(target(smooth, allowed)))]
    assert counts == sorted(counts)
    assert len(set(counts)) == 3
    assert terms_needed(target(smooth, 1e-6)) == pytest.approx(counts[-1], rel=0.4)


def test_an_odd_function_has_no_even_part() -> None:
    fit = fit_bivariate(target(lambda x, z: np.sin(2 * x) * (1 + z), 1e-7))
    assert fit is not None
    assert fit.even == ()
    assert fit.terms <= 14


def test_coefficients_stay_small_where_powers_of_x_would_cancel() -> None:
    fit = fit_bivariate(target(lambda x, z: 1 / (1 + 8 * x**2) + 0 * z, 1e-7))
    assert fit is not None
    assert len(fit.even[0]) > 15
    in_y = max(abs(c) for row in fit.even for c in row)
    series = chebyshev.chebinterpolate(lambda x: 1 / (1 + 8 * x**2), 2 * len(fit.even[0]))
    in_x = np.abs(chebyshev.cheb2poly(series)).max()
    assert in_y < 10
    assert in_x > 1000


def test_a_part_is_fitted_over_its_factor() -> None:
    x, z = columns(60)[None, :], rows(20)[:, None]
    root = np.sqrt((1 + z[:, 0]) / 2)
    fit = fit_bivariate(BivariateTarget(np.cos(x) + x * root[:, None] * (1 + z), ONE * 1e9, (ONE, root)))
    assert fit is not None
    assert np.allclose(fit.odd, [[1.0], [1.0]], atol=1e-8)


def test_what_takes_too_many_terms_is_refused() -> None:
    assert fit_bivariate(target(lambda x, z: np.abs(x - 0.1 * z), 1e-9)) is None


# Least squares by reflections: right, and with the same bits by C and by NumPy.
@pytest.mark.parametrize(
    ("rows", "columns", "wanted"),
    [(1, 1, 1), (7, 3, 1), (9, 8, 1), (200, 41, 1), (301, 1, 1), (150, 50, 33), (999, 17, 2)],
)
def test_the_solution_is_right_and_its_bits_are_the_same_without_a_compiler(
    rows: int, columns: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(rows)
    matrix = draw.normal(size=(rows, columns)) * np.exp(draw.uniform(-9, 3, (rows, 1)))
    right = draw.normal(size=(rows, wanted))
    if wanted == 1:
        right = right[:, 0]
    found = {}
    for compiler in (find_compiler(), None):
        monkeypatch.setattr(reflections, "find_compiler", lambda compiler=compiler: compiler)
        found[compiler] = least_squares(matrix, right)
    first, *others = found.values()
    assert first.shape == (columns, *right.shape[1:])
    assert np.allclose(first, np.linalg.lstsq(matrix, right, rcond=None)[0], rtol=1e-7, atol=1e-9)
    assert all(other.tobytes() == first.tobytes() for other in others)


def test_a_column_of_zeros_takes_no_part() -> None:
    matrix = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert least_squares(matrix, np.array([1.0, 2.0, 3.0])).tolist() == [pytest.approx(2.0), 0.0]


@pytest.mark.parametrize("compiler", [None, find_compiler()])
def test_fewer_rows_than_columns_are_refused(compiler: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflections, "find_compiler", lambda: compiler)
    with pytest.raises(ValueError, match="at least as many rows as columns, got a matrix 2 x 3"):
        least_squares(np.ones((2, 3)), np.ones(2))
