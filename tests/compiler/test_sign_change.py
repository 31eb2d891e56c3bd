"""The expansion about a mean's sign change: the root, its square to many digits, and the Taylor polynomial."""

from __future__ import annotations

import mpmath
import pytest

from momentgen.sign_change import NAMES, TERMS, expand, truncated_moment


def leaky_mean(slope: str):
    """E max(x, slope·x) at a = -t, sigma = 1."""
    with mpmath.workdps(50):
        al = mpmath.mpf(slope)

    def function(t):
        return -al * t + (1 - al) * (mpmath.npdf(t) - t * mpmath.erfc(t / mpmath.sqrt(2)) / 2)

    return function


def words(values: tuple[float, ...]) -> dict[str, mpmath.mpf]:
    with mpmath.workdps(60):
        return {n: mpmath.mpf(values[2 * i]) + mpmath.mpf(values[2 * i + 1]) for i, n in enumerate(NAMES)}


@pytest.mark.parametrize("slope", ["0.01", "0.3", "0.0001", "0.9", "1e-30"])
def test_root_and_polynomial_of_a_leaky_mean(slope: str) -> None:
    function = leaky_mean(slope)
    found = words(expand(function))
    with mpmath.workdps(60):
        # Newton from what was found, to all digits.
        root = mpmath.findroot(function, found["sign_at"], tol=mpmath.mpf(10) ** -110)
        assert abs(found["sign_at"] / root - 1) < 2.0**-47
        square = found["sign_square"] + found["sign_square_rest"]
        assert abs(square / root**2 - 1) < mpmath.mpf("1e-27")
        width = found["sign_width"]
        assert 0 < width <= 0.25
        scale = abs(mpmath.diff(function, root))
        for k in range(-8, 9):
            d = width * k / 8
            polynomial = mpmath.polyval([found[f"sign_taylor{i}"] for i in reversed(range(TERMS))], d)
            assert abs(d * polynomial - function(root + d)) <= 1e-9 * scale * max(abs(d), mpmath.mpf(10) ** -20)


@pytest.mark.parametrize("function", [lambda t: 1 + t, lambda t: -1 / (1 + t), lambda t: t])
def test_without_a_sign_change_the_interval_is_empty(function) -> None:
    values = expand(function)
    assert values[0] == -1.0
    assert set(values[1:]) == {0.0}
    assert len(values) == 2 * len(NAMES)


def test_words_are_float32_numbers_whose_second_is_a_rounding_error_of_the_first() -> None:
    values = expand(leaky_mean("0.01"))
    for hi, lo in zip(values[::2], values[1::2], strict=True):
        assert abs(lo) <= abs(hi) * 2.0**-24
        assert float(mpmath.mpf(hi)) == hi


@pytest.mark.parametrize("n", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("t", [0, 0.5, 3, 18, 40])
def test_truncated_moments_are_their_integrals(n: int, t: float) -> None:
    with mpmath.workdps(30):
        if n < 0:
            want = mpmath.mpf(1)
        else:
            want = mpmath.quad(lambda x: x**n * mpmath.exp(-t * x - x * x / 2), [0, 0.1, 1, 4, 12]) / mpmath.factorial(
                n
            )
        assert abs(truncated_moment(n, t) / want - 1) < 1e-24


def test_a_sign_change_of_the_other_side_comes_with_a_negative_place() -> None:
    def other(t):
        return t - 2

    left, right = words(expand(lambda t: 1 + t, other)), words(expand(other))
    assert left["sign_at"] == -right["sign_at"] == -2
    assert {n: w for n, w in left.items() if n != "sign_at"} == {n: w for n, w in right.items() if n != "sign_at"}
    assert expand(other, lambda t: t - 3) == expand(other)
    assert expand(lambda t: 1 + t, lambda t: 2 + t)[0] == -1.0
