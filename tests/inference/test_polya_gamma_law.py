"""The draws follow the Pólya-gamma distribution, and an error of one per cent in the sampler is found."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch
from polyagamma import polyagamma_cdf
from torch import Tensor

from momentgen.inference.polya_gamma_sampler.function import draws_by, polya_gamma, sampler
from momentgen.native import c_sources

Z = [0.0, 1e-6, 0.1, 1.0, 5.0, 39.0, 41.0, 50.0, 170.0, 1e3, 1e4]
MANY = 4_000_000
KEY = 0x0123456789ABCDEF
#: of each comparison, were it made with fresh random numbers
FALSE_ALARM = 1e-6
SIGMAS = NormalDist().inv_cdf(1 - FALSE_ALARM / 2)
LEVELS = np.linspace(0.001, 0.999, 121)


def moments(b: int, z: float) -> tuple[float, float]:
    """Mean and variance in closed form."""
    if z < 1e-2:
        return b / 4, b / 24
    half = math.tanh(z / 2)
    return b * half / (2 * z), b * (2 * half - z * (1 - half**2)) / (4 * z**3)


def disagreements(draws: Tensor, b: int, z: float) -> list[str]:
    """What tells draws from PG(b, z), each at a rate of false alarms of 1e-6: mean, variance, Kolmogorov-Smirnov.

    The distribution function is that of the package polyagamma.  Massart's bound, 2 exp(-2nd²), holds for the largest
    difference of all.
    """
    x = draws.detach().to("cpu", torch.float64).flatten()
    n, (mean, var) = x.numel(), moments(b, z)
    squares = (x - mean).square()
    off = {
        "mean": float(x.mean() - mean) / math.sqrt(var / n),
        "variance": float((squares.mean() - var) / squares.std()) * math.sqrt(n),
    }
    found = [f"{what}: {value:.2f} standard errors" for what, value in off.items() if abs(value) > SIGMAS]
    points = np.quantile(x.numpy(), LEVELS)
    distance = float(np.abs(polyagamma_cdf(points, h=b, z=z) - LEVELS).max())
    if distance > math.sqrt(math.log(2 / FALSE_ALARM) / (2 * n)) + 3e-5:  # the package's own error at large z
        found.append(f"Kolmogorov-Smirnov: {distance:.2e}")
    return found


def native_draws(b: int, z: float, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return draws_by(sampler(), torch.full((n,), z, dtype=dtype), None, b, KEY)


@pytest.mark.parametrize("z", Z)
def test_draws_follow_the_law(z: float) -> None:
    assert disagreements(native_draws(1, z, MANY), 1, z) == []


@pytest.mark.parametrize("z", [0.0, 1.0, 50.0, 1e3])
def test_draws_in_float32_follow_the_law(z: float) -> None:
    assert disagreements(native_draws(1, z, 1_000_000, torch.float32), 1, z) == []


@pytest.mark.parametrize(("b", "z"), [(2, 0.5), (3, 0.0), (5, 50.0), (7, 2.5)])
def test_sums_follow_the_law_of_b(b: int, z: float) -> None:
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
    mean, var = moments(1, 0.0)
    x, y = (first - mean) / math.sqrt(var), (second - mean) / math.sqrt(var)
    pairs = {"calls": (x, y)} | {f"lag {lag}": (x[:-lag], x[lag:]) for lag in (1, 2, 8, 512, 65536)}
    for name, (left, right) in pairs.items():
        off = float((left * right).mean()) * math.sqrt(left.numel())
        assert abs(off) < 5.2, f"{name}: {off:.2f} standard errors"


# ---------------------------------------------------------------- planted errors


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path))


def planted(constant: str, factor: float, z: float) -> Tensor:
    text = c_sources.polya_gamma()
    source, count = re.subn(rf"(static const double {constant} =) (\S+);", rf"\1 \2 * {factor};", text)
    assert count == 1
    return draws_by(sampler(source), torch.full((MANY,), z, dtype=torch.float64), None, 1, KEY)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("constant", "z"), [("LEFT_MASS", 0.0), ("RIGHT_MASS", 1.0), ("EDGE", 1.0), ("BEYOND", 2.0)])
def test_a_constant_that_is_one_per_cent_off_is_found(constant: str, z: float) -> None:
    assert disagreements(planted(constant, 1.01, z), 1, z) != []


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("factor", "z"), [(0.1, 1.0), (3.0, 5.0)])
def test_both_envelopes_are_exact_on_either_side_of_the_switch(factor: float, z: float) -> None:
    assert disagreements(planted("SWITCH", factor, z), 1, z) == []
