"""The draws follow the Pólya-gamma distribution, and an error of one per cent in the sampler is found."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import mpmath as mp
import pytest
import torch
from inference.polya_gamma_truth import FALSE_ALARM, cdf, cumulants, disagreements
from polyagamma import random_polyagamma
from torch import Tensor

from momentgen.inference.polya_gamma_sampler.envelope import ENVELOPE
from momentgen.inference.polya_gamma_sampler.function import draws_by, polya_gamma, sampler

Z = [0.0, 1e-6, 0.1, 1.0, 5.0, 39.0, 41.0, 50.0, 170.0, 1e3, 1e4]
MANY = 4_000_000
KEY = 0x0123456789ABCDEF


def native_draws(b: int, z: float, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return draws_by(sampler(), torch.full((n,), z, dtype=dtype), None, b, KEY)


# ---------------------------------------------------------------- the truth itself


@pytest.mark.parametrize("z", [0.0, 1.0, 7.0])
def test_the_series_of_the_tests_agrees_with_the_other_series_of_the_density(z: float) -> None:
    h = mp.mpf(z) / 2
    for x in (0.05, 0.16, 0.4, 1.2):
        rates = [(mp.mpf(n) + 0.5) ** 2 * mp.pi**2 / 2 + h**2 / 2 for n in range(60)]
        terms = [(-1) ** n * mp.pi * (n + 0.5) / rate * mp.exp(-rate * 4 * x) for n, rate in enumerate(rates)]
        assert abs(1 - mp.cosh(h) * mp.fsum(terms) - cdf(1, z, x)) < 1e-14


@pytest.mark.parametrize(("b", "z"), [(1, 1.0), (5, 2.5)])
def test_the_series_of_the_tests_has_the_known_laplace_transform(b: int, z: float) -> None:
    def integrand(x: mp.mpf) -> mp.mpf:
        return mp.exp(-2 * x) * 2 * cdf(b, z, x)

    got = mp.quad(integrand, [1e-3, 0.1, 0.5, 2, 8, 20], maxdegree=3)
    assert abs(got / (mp.cosh(z / 2) / mp.cosh(mp.sqrt(mp.mpf(z) ** 2 / 4 + 1))) ** b - 1) < 1e-9


def test_cumulants_are_those_of_the_closed_forms() -> None:
    for z in (0.3, 2.0, 30.0):
        mean, var, _ = cumulants(1, z)
        assert mean == pytest.approx(math.tanh(z / 2) / (2 * z), rel=1e-14)
        assert var == pytest.approx((math.sinh(z) - z) / (4 * z**3 * math.cosh(z / 2) ** 2), rel=1e-12)


def test_from_40_on_the_distribution_is_the_inverse_gaussian() -> None:
    """In total variation, to exp(-z): half the integral of the difference of the densities."""
    with mp.workdps(40):
        for z in (40, 60):
            h = mp.mpf(z) / 2

            def difference(x: mp.mpf, h: mp.mpf = h) -> mp.mpf:
                inverse_gaussian = mp.exp(h - h * h * x / 2 - 1 / (2 * x)) / mp.sqrt(2 * mp.pi * x**3)
                series = mp.fsum((-1) ** n * (2 * n + 1) * mp.exp(-2 * n * (n + 1) / x) for n in range(8))
                return abs((1 + mp.exp(-2 * h)) * series - 1) * inverse_gaussian

            distance = mp.quad(difference, [mp.mpf(k) / 40 / h for k in (4, 30, 50, 120, 400)], maxdegree=5) / 2
            assert 0 < distance <= mp.exp(-z)


# ---------------------------------------------------------------- the draws


@pytest.mark.parametrize("z", Z)
def test_compiled_draws_follow_the_series_density(z: float) -> None:
    assert disagreements(native_draws(1, z, MANY), 1, z) == []


@pytest.mark.parametrize("z", [0.0, 1.0, 50.0, 1e3])
def test_compiled_draws_in_float32_follow_the_series_density(z: float) -> None:
    assert disagreements(native_draws(1, z, 1_000_000, torch.float32), 1, z) == []


@pytest.mark.parametrize(("b", "z"), [(2, 0.5), (3, 0.0), (5, 50.0), (7, 2.5)])
def test_sums_follow_the_series_density_for_b(b: int, z: float) -> None:
    assert disagreements(native_draws(b, z, 1_000_000), b, z) == []


def test_each_element_of_a_mixture_has_its_own_b_and_z() -> None:
    cases = [(1, 0.0), (3, 0.0), (2, 0.5), (1, -5.0), (5, 50.0), (1, 5.0)]
    b = torch.tensor([b for b, _ in cases])
    z = torch.tensor([z for _, z in cases], dtype=torch.float64).expand(200_000, len(cases))
    draws = polya_gamma(b, z, generator=torch.Generator().manual_seed(5))
    for column, (count, tilt) in enumerate(cases):
        assert disagreements(draws[:, column], count, abs(tilt)) == []


def test_draws_of_neighbours_and_of_successive_calls_are_not_correlated() -> None:
    z, generator = torch.zeros(2_000_000, dtype=torch.float64), torch.Generator().manual_seed(11)
    first, second = polya_gamma(1, z, generator=generator), polya_gamma(1, z, generator=generator)
    mean, var, _ = cumulants(1, 0.0)
    x, y = (first - mean) / math.sqrt(var), (second - mean) / math.sqrt(var)
    pairs = {"calls": (x, y)} | {f"lag {lag}": (x[:-lag], x[lag:]) for lag in (1, 2, 8, 512, 65536)}
    for name, (left, right) in pairs.items():
        off = float((left * right).mean()) * math.sqrt(left.numel())
        assert abs(off) < 5.2, f"{name}: {off:.2f} standard errors"


@pytest.mark.parametrize("z", [0.0, 1.0, 5.0])
def test_draws_agree_with_the_package_polyagamma(z: float) -> None:
    """Its method ``alternate``: the others are off for large z."""
    n = 1_000_000
    theirs = torch.from_numpy(random_polyagamma(1, z, size=n, method="alternate", random_state=7))
    both, order = torch.cat([native_draws(1, z, n), theirs]).sort()
    assert bool(both.isfinite().all())
    steps = torch.where(order < n, 1.0, -1.0).double().cumsum(0) / n
    distance, allowed = float(steps.abs().max()), math.sqrt(math.log(2 / FALSE_ALARM) / n)
    assert distance < allowed, f"z = {z}: {distance:.2e}, allowed {allowed:.2e}"


# ---------------------------------------------------------------- planted errors


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path))


def planted(constant: str, factor: float, z: float) -> Tensor:
    envelope = dataclasses.replace(ENVELOPE, **{constant: getattr(ENVELOPE, constant) * factor})
    return draws_by(sampler(envelope), torch.full((MANY,), z, dtype=torch.float64), None, 1, KEY)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("constant", "z"), [("left_mass", 0.0), ("right_mass", 1.0), ("edge", 1.0), ("beyond", 2.0)])
def test_a_constant_that_is_one_per_cent_off_is_found(constant: str, z: float) -> None:
    assert disagreements(planted(constant, 1.01, z), 1, z) != []


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("factor", "z"), [(0.1, 1.0), (3.0, 5.0)])
def test_both_envelopes_are_exact_on_either_side_of_the_switch(factor: float, z: float) -> None:
    assert disagreements(planted("switch", factor, z), 1, z) == []
