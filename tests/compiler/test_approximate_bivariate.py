"""Polynomials of two variables: within what was allowed, also between the points, with few terms."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import chebyshev

from momentgen.compiler.fit.bivariate import Bivariate, BivariateTarget, columns, fit_bivariate, rows, terms_needed

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
