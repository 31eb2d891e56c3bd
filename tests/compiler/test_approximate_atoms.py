"""Atoms: smoothing maps each to itself, and fits keep what they promise."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from momentgen.compiler.fit.atoms import AtomTarget, atoms, fit_atoms


@pytest.mark.parametrize("order", [-2, -1, 0, 1, 3])
def test_smoothing_by_a_normal_adds_its_variance_to_that_of_the_atom(order: int) -> None:
    tau, v, u = 0.7, 0.45, -0.3
    with mpmath.workdps(20):

        def atom(x: mpmath.mpf) -> mpmath.mpf:
            s = mpmath.sqrt(tau)
            h, big, small = x / s, mpmath.ncdf(x / s), mpmath.npdf(x / s)
            hermite = [lambda: small / s, lambda: -h * small / s**2, lambda: (h * h - 1) * small / s**3]
            table = {-2: tau * ((h * h + 1) * big + h * small) / 2, -1: s * (h * big + small), 0: big}
            return table[order] if order <= 0 else hermite[order - 1]()

        smoothed = mpmath.quad(lambda z: atom(u + mpmath.sqrt(v) * z) * mpmath.npdf(z), [-9, -3, 0, 3, 9])
    found = atoms(np.array([u]), tau + v, order, max(order, 0))[order][0]
    assert abs(found - float(smoothed)) < 1e-12


def test_a_fit_grows_at_infinity_as_it_is_told() -> None:
    u = np.linspace(-12, 12, 121)
    taus = (0.8, 2.5, 8.0)
    # softplus: 0 to the left, u to the right
    values = np.stack([np.log1p(np.exp(u)), 1 / (1 + np.exp(-u)), np.exp(u) / (1 + np.exp(u)) ** 2], 1)
    target = AtomTarget(u, values, (1e-6, 1e-5, 1e-4), -1, (1.0, 0.0))
    fit = fit_atoms(target, taus, 5)
    assert abs(fit.coefficients[:, 0].sum() - 1) < 1e-12
    assert abs(fit.coefficients[:, 1].sum()) < 1e-12


def test_the_errors_stated_are_those_between_the_points_too() -> None:
    def softplus(u: np.ndarray) -> np.ndarray:
        return np.stack([np.logaddexp(0, u), 1 / (1 + np.exp(-u)), 0.25 / np.cosh(u / 2) ** 2], 1)

    grid = np.linspace(-40, 40, 321)
    taus = (0.6, 1.7, 5.0, 15.0)
    fit = fit_atoms(AtomTarget(grid, softplus(grid), (2e-7, 1e-6, 1e-5), -1, (1.0, 0.0)), taus, 5)
    between = np.linspace(-40, 40, 5001)
    tables = [atoms(between, tau, -1, 5) for tau in taus]
    fitted = sum(c * t[n] for row, t in zip(fit.coefficients, tables, strict=True) for n, c in enumerate(row, start=-1))
    assert np.abs(fitted - softplus(between)[:, 0]).max() < 1.5 * fit.errors[0] + 1e-12
    assert fit.errors[0] < 1e-6
