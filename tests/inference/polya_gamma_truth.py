"""The Pólya-gamma distribution by mpmath, from the published series, and how far draws are from it."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

import mpmath as mp
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

#: of each comparison, were it made with fresh random numbers
FALSE_ALARM = 1e-6
_DIGITS = 40
_POINTS = 120


def cdf(b: int, z: float, x: float) -> mp.mpf:
    """P(PG(b, z) <= x): the series of Polson, Scott and Windle (2013), each term an inverse Gaussian.

    The density is cosh(z/2)^b exp(-z²x/2) 2^(b-1)/Γ(b) Σ (-1)^n Γ(n+b)/n! (2n+b)/√(2πx³) exp(-(2n+b)²/8x).
    """
    with mp.workdps(_DIGITS):
        z, x, total, n = mp.mpf(z), mp.mpf(x), mp.mpf(0), 0
        root = mp.sqrt(2 * x)

        def below(t: mp.mpf) -> mp.mpf:  # P(normal <= t √2)
            return mp.erfc(-t) / 2

        while True:
            m = mp.mpf(2 * n + b) / 2
            # exp(-mz) times the distribution function of the inverse Gaussian of mean m/z and shape m².
            part = mp.exp(-m * z) * below((x * z - m) / root) + mp.exp(m * z) * below(-(x * z + m) / root)
            term = (-1) ** n * mp.gamma(n + b) / mp.factorial(n) * part
            total += term
            if abs(term) <= abs(total) * mp.mpf(10) ** -25 and n > 2:
                break
            n += 1
        return mp.cosh(z / 2) ** b * mp.mpf(2) ** b / mp.gamma(b) * total


@functools.cache
def cumulants(b: int, z: float) -> tuple[float, float, float]:
    """Mean, variance and fourth cumulant, from E exp(sX) = (cosh √u / cosh √(u - s/2))^b, u = z²/4."""
    with mp.workdps(80):
        u = mp.mpf(z) ** 2 / 4

        def log_cosh(v: mp.mpf) -> mp.mpf:
            return mp.re(mp.log(mp.cosh(mp.sqrt(v))))

        return tuple(float(-b * mp.mpf(-0.5) ** n * mp.diff(log_cosh, u, n)) for n in (1, 2, 4))  # type: ignore[return-value]


@functools.cache
def distribution(b: int, z: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Points from far in one tail to far in the other, and P(PG(b, z) <= point)."""
    mean = cumulants(b, z)[0]

    def end(step: float) -> float:
        x = mean
        while 1e-5 < cdf(b, z, x) < 1 - 1e-5:
            x *= step
        return x

    # The steps are small next to the spread, which is √(2/z) of the mean where z is large.
    step = math.exp(min(0.1, 0.3 / math.sqrt(1 + abs(z))))
    points = np.geomspace(end(1 / step), end(step), _POINTS)
    return points, np.array([float(cdf(b, z, float(x))) for x in points])


def disagreements(draws: Tensor, b: int, z: float) -> list[str]:
    """What tells draws from PG(b, z), each at a rate of false alarms of 1e-6: mean, variance, Kolmogorov-Smirnov.

    The statistic of Kolmogorov and Smirnov is the largest difference at the points of :func:`distribution`; Massart's
    bound, 2 exp(-2nd²), holds for the largest of all.
    """
    x = draws.detach().to("cpu", torch.float64).flatten().contiguous()
    n, (mean, var, fourth) = x.numel(), cumulants(b, z)
    sigmas = NormalDist().inv_cdf(1 - FALSE_ALARM / 2)
    off = {
        "mean": (float(x.mean()) - mean) / math.sqrt(var / n),
        "variance": (float((x - mean).square().mean()) - var) / math.sqrt((fourth + 2 * var**2) / n),
    }
    found = [f"{what}: {value:.2f} standard errors, allowed {sigmas:.2f}" for what, value in off.items()]
    failed = [abs(value) > sigmas for value in off.values()]
    points, probabilities = distribution(b, z)
    counts = torch.bincount(torch.bucketize(x, torch.from_numpy(points)), minlength=points.size + 1)
    below = counts.cumsum(0)[:-1].double().numpy() / n
    distance, allowed = float(np.abs(below - probabilities).max()), math.sqrt(math.log(2 / FALSE_ALARM) / (2 * n))
    found.append(f"Kolmogorov-Smirnov: {distance:.2e}, allowed {allowed:.2e}")
    failed.append(distance > allowed)
    return [f"PG({b}, {z:g}), {n} draws, {line}" for line, bad in zip(found, failed, strict=True) if bad]
