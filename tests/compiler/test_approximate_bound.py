"""The error that a fit states is nearly reached, and proven: of the function, a wrong one would not be."""

from __future__ import annotations

import pytest
from flint import arb, arb_series
from mpmath import mp, mpf
from taylor_models import BallFunction, J_series, proven_maximum

from momentgen.compiler.fit import J, Polynomial, remez
from momentgen.compiler.fit.special import to_ball

_LOW = 1 / (1 + mpf("18.7") / 4)


def _relu_core(u: mpf) -> mpf:
    return 2 * J(2, 4 * (1 / u - 1)) / u**3


def _relu_core_ball(u: arb_series) -> arb_series:
    return 2 * J_series(2, 4 / u - 4) / u**3


def _bound(fit: Polynomial, ball: BallFunction) -> mpf:
    """A proven bound of a fit's relative error."""

    def error(x: arb_series) -> arb_series:
        value, exact = arb_series([arb(0)]), ball(x)
        for c in reversed(fit.coefficients):
            value = value * (x - to_ball(fit.centre)) + to_ball(c)
        return (value - exact) / exact

    return proven_maximum(error, fit.interval, pieces=2048, order=14, bits=400, what=fit.what)


@pytest.mark.parametrize("degree", [12, 20, 28])
def test_the_stated_error_is_proven_and_reached(degree: int) -> None:
    fit = remez(_relu_core, (_LOW, 1), degree, centre="0.25")
    assert fit.error * (1 - mpf("1e-3")) < _bound(fit, _relu_core_ball) < 1.05 * fit.error
    with mp.workdps(50):
        reached = max(abs(fit(x) / _relu_core(x) - 1) for x in mp.linspace(*fit.interval, 500))
    assert 0.95 * fit.error < reached < fit.error * (1 + mpf("1e-3"))


def test_a_wrong_function_is_not_proven_small() -> None:
    assert 9e-4 < _bound(remez(mp.exp, (0, 1), 8), lambda x: x.exp() * (1 + x / 1000)) < 1.1e-3
