"""What the report measures about a function of one random variable; pure functions from a subject to arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from momentgen.commands.report.subject import EXACT, Subject, activation

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_SMALLEST_NORMAL = 2.0**-126
_CERTAIN = 1e-4  # where the output's sigma' is below this share of sigma, f is as good as known, and no KL is shown


@dataclass(frozen=True)
class MomentCurves:
    """The exact variant's moments over the input's mean, one row for each standard deviation of the input.

    Attributes:
        mu, f: the activation.
        sigmas: standard deviations of the input.
        means, deviations: of the output, at [sigma, mu].
    """

    mu: F64
    f: F64
    sigmas: tuple[float, ...]
    means: F64
    deviations: F64


def moment_curves(
    subject: Subject, *, sigmas: tuple[float, ...] = (0.25, 1.0, 3.0), reach: float = 6.0, points: int = 241
) -> MomentCurves:
    """Mean and standard deviation of f by the committed kernel, for |mu| up to ``reach``."""
    mu = np.linspace(-reach, reach, points)
    means, var = (a.ravel() for a in np.meshgrid(mu.astype(np.float32), np.asarray(sigmas, np.float32) ** 2))
    found = subject.kernels[EXACT].outputs(np.ascontiguousarray(means), np.ascontiguousarray(var))
    shaped = {name: values.astype(np.float64).reshape(len(sigmas), points) for name, values in found.items()}
    f = activation(subject.rule, subject.setting)(mu)
    return MomentCurves(mu, f, sigmas, shaped["mean"], np.sqrt(shaped["var"]))


@dataclass(frozen=True)
class RelativeErrors:
    """|computed / exact - 1| of the exact variant over (mu, sigma), against balls.

    Attributes:
        mu, sigma: axes of the grid.
        errors: ``mean`` and ``var`` -> relative error at [sigma, mu]; NaN where float32 has no normal number for it.
    """

    mu: F64
    sigma: F64
    errors: Mapping[str, F64]


def relative_errors(subject: Subject, *, grid: tuple[int, int] = (33, 9)) -> RelativeErrors:
    """Relative errors for |mu| <= 8 and 0.01 <= sigma <= 10, ``grid`` means and sigmas."""
    mu, sigma = np.linspace(-8, 8, grid[0]), np.geomspace(0.01, 10, grid[1])
    means, sigmas = np.meshgrid(mu.astype(np.float32), sigma)
    mean, var = np.ascontiguousarray(means.ravel()), (sigmas.ravel() ** 2).astype(np.float32)
    computed, exact = subject.kernels[EXACT].outputs(mean, var), subject.balls(mean, var)
    errors = {}
    for name in ("mean", "var"):
        normal = abs(exact[name]) >= _SMALLEST_NORMAL
        error = abs(computed[name].astype(np.float64) / np.where(normal, exact[name], 1) - 1)
        errors[name] = np.where(normal, error, np.nan).reshape(sigma.size, mu.size)
    return RelativeErrors(mu, sigma, errors)


@dataclass(frozen=True)
class Comparison:
    """One variant beside the exact moments of f: the extremes over (mu, sigma), and where they are.

    Attributes:
        variant: its name.
        mean: largest |mean - exact mean| in units of the exact sigma'.
        ratio: range of sigma' over the exact one.
        var: largest |var / exact var - 1|.
        kl: largest KL(N(exact moments) || N(the variant's)), in nats; infinite where the variant's variance is 0.
    """

    variant: str
    mean: tuple[float, tuple[float, float]]
    ratio: tuple[float, float]
    var: tuple[float, tuple[float, float]]
    kl: tuple[float, tuple[float, float]]


def compare(subject: Subject) -> list[Comparison]:
    """Every variant against the exact moments, for |mu| <= 6 and sigma from 0.1 to 10.

    Points where f is as good as known are left out.
    """
    mu, sigma = (a.ravel() for a in np.meshgrid(np.linspace(-6, 6, 25), np.geomspace(0.1, 10, 9)))
    mean, var = mu.astype(np.float32), (sigma**2).astype(np.float32)
    exact = subject.balls(mean, var)
    kept = exact["var"] > _CERTAIN**2 * var
    mu, sigma, mean, var = mu[kept], sigma[kept], mean[kept], var[kept]
    true_mean, true_var = exact["mean"][kept], exact["var"][kept]

    def largest(values: F64) -> tuple[float, tuple[float, float]]:
        i = int(np.argmax(values))
        return float(values[i]), (float(mu[i]), float(sigma[i]))

    found = []
    for name, kernel in subject.kernels.items():
        m, w = (values.astype(np.float64) for values in kernel.outputs(mean, var).values())
        off = m - true_mean
        with np.errstate(all="ignore"):
            excess = true_var / w - 1
            kl = np.where(w > 0, (excess - np.log1p(excess) + off**2 / w) / 2, np.inf)
        ratio = np.sqrt(w / true_var)
        extremes = (largest(np.abs(values)) for values in (off / np.sqrt(true_var), w / true_var - 1, kl))
        of_mean, of_var, of_kl = extremes
        found.append(Comparison(name, of_mean, (float(ratio.min()), float(ratio.max())), of_var, of_kl))
    return found
