"""Sums over nodes of the normal density and its derivatives: right, and the same by C and by NumPy."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from momentgen.compiler.exact import smoothing_sums
from momentgen.compiler.exact.smoothing_sums import ORDERS, density_sums
from momentgen.native.c_compiler import find_compiler

NODES = np.sort(np.random.default_rng(0).uniform(-9, 4, 333))
VALUES = np.random.default_rng(1).normal(size=(2, 333))
POINTS = np.array([-300.0, -11.0, -2.5, 0.0, 3.9, 7.0, 50.0])


@pytest.mark.parametrize("sigma", [0.05, 0.7, 6.0, 1e4])
def test_sums_are_right(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with mpmath.workdps(40):
        exact = np.zeros((2, ORDERS, POINTS.size))
        size = np.zeros_like(exact)
        for i, u in enumerate(POINTS.tolist()):
            density = [mpmath.npdf(mpmath.mpf(u), node, sigma) for node in NODES.tolist()]
            z = [(mpmath.mpf(u) - node) / sigma for node in NODES.tolist()]
            for j, he in enumerate((lambda z: 1, lambda z: -z, lambda z: z * z - 1, lambda z: 3 * z - z**3)):
                for k in range(2):
                    terms = [w * d * he(a) / sigma**j for w, d, a in zip(VALUES[k].tolist(), density, z, strict=True)]
                    exact[k, j, i], size[k, j, i] = float(mpmath.fsum(terms)), float(mpmath.fsum(map(abs, terms)))
    for compiler in (find_compiler(), None):
        monkeypatch.setattr(smoothing_sums, "find_compiler", lambda compiler=compiler: compiler)
        found = density_sums(POINTS, np.full(POINTS.size, sigma), NODES, VALUES)
        assert (np.abs(found - exact) <= 3e-13 * size + 1e-290).all()


def test_no_nodes_that_count_give_0() -> None:
    found = density_sums(POINTS, np.ones(POINTS.size), NODES, np.zeros((2, NODES.size)))
    assert found.shape == (2, ORDERS, POINTS.size)
    assert not found.any()
