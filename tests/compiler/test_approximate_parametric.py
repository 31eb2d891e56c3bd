"""One-parameter fits: the papers' R(a) ~ S(a/t), its divergence, and where it makes no sense."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
from flint import arb, arb_series
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from taylor_models import proven_maximum

from momentgen.compiler.fit import ParameterFit, fit_parameter
from momentgen.compiler.fit.special import to_ball
from momentgen.errors import BuildError


def _relu_variance(a: mpf) -> mpf:
    density, below = mp.npdf(a), mp.ncdf(a)
    return a * density + (a * a + 1) * below - (a * below + density) ** 2


def _exact(slope: mpf) -> Callable[[mpf], mpf]:
    return lambda a: slope**2 + 2 * slope * (1 - slope) * mp.ncdf(a) + (1 - slope) ** 2 * _relu_variance(a)


def _fitted(slope: mpf) -> Callable[[mpf, mpf], mpf]:
    return lambda t, a: slope**2 + (1 - slope**2) / (1 + mp.exp(-a / t))


def _divergence(slope: mpf, t: mpf, a: mpf) -> mpf:
    ratio = _exact(slope)(a) / _fitted(slope)(t, a)
    return (ratio - 1 - mp.log(ratio)) / 2


@lru_cache
def _leaky() -> ParameterFit:
    slope = mpf("0.01")
    return fit_parameter(_exact(slope), _fitted(slope), bounds=("0.1", 1))


def _exact_ball(a: arb_series) -> arb_series:
    slope, below, density = arb("0.01"), (-a / arb(2).sqrt()).erfc() / 2, (-a * a / 2).exp() / (2 * arb.pi()).sqrt()
    variance = a * density + (a * a + 1) * below - (a * below + density) ** 2
    return slope**2 + 2 * slope * (1 - slope) * below + (1 - slope) ** 2 * variance


def _fitted_ball(t: arb, a: arb_series) -> arb_series:
    return arb("0.01") ** 2 + (1 - arb("0.01") ** 2) / (1 + (-a / t).exp())


def test_leaky_relu_under_the_largest_divergence() -> None:
    fit = _leaky()
    assert mp.nstr(fit.value, 8) == "0.37575903"
    assert mp.nstr(fit.objective, 6) == "0.0334471"
    assert [mp.nstr(a, 4) for a in sorted(fit.where)] == ["-3.323", "0.1849"]


def test_the_two_maxima_trade_places_at_the_fit() -> None:
    fit, slope = _leaky(), mpf("0.01")
    with mp.workdps(30):
        left, right = sorted(fit.where)
        for step, higher, lower in ((mpf("1e-4"), left, right), (mpf("-1e-4"), right, left)):
            t = fit.value + step
            assert _divergence(slope, t, higher) > fit.objective > _divergence(slope, t, lower)


@settings(max_examples=100, deadline=None)
@given(st.floats(-10, 10))
def test_no_argument_exceeds_the_objective(a: float) -> None:
    fit = _leaky()
    with mp.workdps(30):
        assert _divergence(mpf("0.01"), fit.value, mpf(a)) <= fit.objective * (1 + mpf("1e-9"))


@settings(max_examples=50, deadline=None)
@given(st.floats(0.1, 1))
def test_no_other_parameter_is_better(t: float) -> None:
    with mp.workdps(30):
        worst = max(_divergence(mpf("0.01"), mpf(t), a) for a in _leaky().where)
        assert worst >= _leaky().objective * (1 - mpf("1e-6"))


def test_the_divergence_is_proven_over_the_whole_domain() -> None:
    fit = _leaky()

    def divergence(a: arb_series) -> arb_series:
        ratio = _exact_ball(a) / _fitted_ball(to_ball(fit.value), a)
        return (ratio - 1 - ratio.log()) / 2

    bound = proven_maximum(divergence, fit.domain, pieces=16384, what="divergence")
    assert fit.objective <= bound * (1 + mpf("1e-9"))
    assert bound <= mpf("1.0101") * fit.objective


@pytest.mark.parametrize(("low", "value", "objective"), [(-3, "0.370329", "0.035108"), (-2, "0.418775", "0.0325096")])
def test_relu_needs_a_domain(low: int, value: str, objective: str) -> None:
    fit = fit_parameter(_exact(mpf(0)), _fitted(mpf(0)), bounds=("0.1", 1), domain=(low, 10), points=200)
    assert (mp.nstr(fit.value, 6), mp.nstr(fit.objective, 6)) == (value, objective)


def test_the_divergence_of_relu_has_no_bound() -> None:
    with mp.workdps(60):
        reached = [_divergence(mpf(0), mpf("0.3758"), mpf(a)) for a in (-5, -10, -20)]
        assert reached[0] > 1
        assert reached[2] > 2 * reached[1] > 4 * reached[0]


@pytest.mark.parametrize(
    ("bounds", "domain", "says"),
    [
        ((1, 2), (1, 1), "low < high"),
        ((2, 3), (1, 1.5), "end of the bounds"),
        ((1, 2), (-1, 1), "positive variances"),
    ],
)
def test_senseless_requests_are_refused(bounds: tuple[float, float], domain: tuple[float, float], says: str) -> None:
    with pytest.raises(BuildError, match=says):
        fit_parameter(lambda a: a, lambda t, a: t, bounds=bounds, domain=domain, what="t")
