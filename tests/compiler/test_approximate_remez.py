"""Minimax polynomials: they equioscillate, match the known ones, and come out the same every time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from momentgen.compiler.fit import J, Polynomial, remez
from momentgen.errors import BuildError

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


def test_linear_minimax_of_the_exponential_is_the_textbook_one() -> None:
    fit = remez(mp.exp, (-1, 1), 1, weight=_one)
    with mp.workdps(30):
        slope = mp.sinh(1)
        # Half of max - min of exp(x) - slope x, which are at 1 and at log(slope).
        level = (mp.e - slope - (slope - slope * mp.log(slope))) / 2
        assert abs(fit.coefficients[1] - slope) < 1e-9
        assert abs(fit.error / level - 1) < 1e-6


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


def test_error_of_the_relu_core_by_degree() -> None:
    errors = {d: float(remez(_relu_core, (_LOW, 1), d, centre="0.25").error) for d in (10, 12, 20, 24)}
    assert errors[10] < 2.2e-8
    assert errors[12] < 4.1e-10
    assert errors[20] < 3e-15
    assert errors[24] < 4e-18


def test_odd_core_of_erf_in_the_square_of_its_argument() -> None:
    def core(h: mpf) -> mpf:
        return mp.erf(mp.sqrt(h)) / mp.sqrt(h) if h else 2 / mp.sqrt(mp.pi)

    fit = remez(core, (0, "2.25"), 10, what="erf(sqrt h)/sqrt h")
    assert fit.error < 2e-12


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


def test_the_same_fit_twice() -> None:
    assert remez(_relu_core, (_LOW, 1), 12) == remez(_relu_core, (_LOW, 1), 12)


@pytest.mark.parametrize(
    ("function", "interval", "degree", "says"),
    [
        (lambda x: abs(x) + 1, (-1, 1), 4, "smooth"),
        (lambda x: 1 / x, (-1, 1), 4, "cannot be evaluated"),
        (lambda x: x, (-1, 1), 4, "without zeros"),
        (mp.log, (-2, -1), 4, "finite real value"),
        (mp.exp, (1, 1), 4, "low < high"),
        (mp.exp, (0, 1), -1, "degree"),
    ],
)
def test_what_cannot_be_fitted_is_said(function: object, interval: tuple[int, int], degree: int, says: str) -> None:
    with pytest.raises(BuildError, match=says) as caught:
        remez(function, interval, degree, what="wrong")  # type: ignore[arg-type]
    assert caught.value.stage == "approximate"
    assert "wrong" in str(caught.value)


def test_a_weight_with_a_zero_is_refused() -> None:
    with pytest.raises(BuildError, match="weight"):
        remez(mp.exp, (-1, 1), 3, weight=lambda x: x)


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
