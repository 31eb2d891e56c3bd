"""Sums of Taylor polynomials over nodes: right, and the same by C and by NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from momentgen.compiler.exact import taylor_sums
from momentgen.compiler.exact.taylor_sums import TaylorTable
from momentgen.native.c_compiler import find_compiler

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
STEP, LOW, ORDERS, TERMS = 0.25, -40, 4, 14


def exponential() -> TaylorTable:
    """exp at multiples of 1/4 from -10 on, up to 10."""
    places = STEP * np.arange(LOW, -LOW + 1)
    factorials = np.array([math.factorial(k) for k in range(ORDERS + TERMS)])
    return TaylorTable(STEP, LOW, np.exp(places)[:, None] / factorials, ORDERS)


def test_the_moments_of_an_exponential_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    u, sigma = np.array([-3.0, -0.1, 0.0, 2.2]), np.array([0.0, 0.1, 0.5, 0.7])
    found = {}
    for compiler in (find_compiler(), None):
        monkeypatch.setattr(taylor_sums, "find_compiler", lambda compiler=compiler: compiler)
        found[compiler] = exponential().sums(u, sigma, NODES, WEIGHTS)
        assert found[compiler].shape == (ORDERS, u.size)
        # E exp(u + sigma Z) and each derivative of it is exp(u + sigma²/2).
        np.testing.assert_allclose(found[compiler], np.tile(np.exp(u + sigma**2 / 2), (ORDERS, 1)), rtol=1e-13)
    first, *others = found.values()
    assert all(other.tobytes() == first.tobytes() for other in others)


def test_bits_are_the_same_without_a_compiler_left_of_the_table_too(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(3)
    table = TaylorTable(STEP, LOW, draw.normal(size=(2 * -LOW + 1, ORDERS + TERMS)), ORDERS)
    u, sigma = draw.uniform(-30, 6, 500), draw.uniform(0, 0.5, 500) ** 4
    found = {}
    for compiler in (find_compiler(), None):
        monkeypatch.setattr(taylor_sums, "find_compiler", lambda compiler=compiler: compiler)
        found[compiler] = table.sums(u, sigma, NODES, WEIGHTS)
    first, *others = found.values()
    assert all(other.tobytes() == first.tobytes() for other in others)
    assert not first[:, u < STEP * (LOW - 1) - 5].any()
    assert first[:, np.abs(u) < 1].all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_points_that_are_not_finite_are_refused(bad: float) -> None:
    good = np.array([0.0, 1.0])
    for u, sigma in ((np.array([0.0, bad]), good), (good, np.array([bad, 1.0]))):
        with pytest.raises(ValueError, match="expected finite u and sigma"):
            exponential().sums(u, sigma, NODES, WEIGHTS)
