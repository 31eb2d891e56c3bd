"""Atoms: smoothing maps each to itself, and fits keep what they promise."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from momentgen.compiler.fit.atoms import atoms


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
