"""Integrals of a normal density beyond a point, complex argument included: their one polynomial against quadrature."""

from __future__ import annotations

import mpmath
import pytest

from momentgen.compiler.fit.half_plane import half_plane, moment_integrals

POINTS = [mpmath.mpc(*z) for z in ((0, 0), (0.3, 0), (7, 0), (1e6, 0), (0, 0.5), (0, 9), (0.2, 40), (3, -2), (0, 1e5))]


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("goal", [1e-8, 1e-15])
def test_the_polynomial_is_within_its_goal_over_the_half_plane(n: int, goal: float) -> None:
    scale, fit = half_plane(n, goal)
    assert 0 < fit.error <= goal
    with mpmath.workdps(80):
        for z in POINTS:
            u = (scale - z) / (scale + z)
            value = mpmath.polyval(fit.coefficients[::-1], u) / (scale + z) ** (n + 1)
            assert abs(value / moment_integrals(z, n)[n] - 1) <= 1.01 * goal


@pytest.mark.parametrize("z", [mpmath.mpc(0.5, 0), mpmath.mpc(0.5, 3), mpmath.mpc(0, 2)])
def test_the_integrals_are_those_of_quadrature(z: mpmath.mpc) -> None:
    for n, value in enumerate(moment_integrals(z, 4)):
        exact = mpmath.quad(lambda x, n=n: x**n * mpmath.exp(-z * x - x * x / 2), range(13))
        assert abs(value - exact) <= 1e-13 * max(1, abs(exact))
