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


def kl_normal(mean: F64, var: F64, other_mean: F64, other_var: F64) -> F64:
    """KL(N(mean, var) || N(other_mean, other_var)) in nats; infinite where ``other_var`` is 0.

    >>> kl_normal(np.array([0.0]), np.array([1.0]), np.array([1.0]), np.array([1.0]))
    array([0.5])
    """
    with np.errstate(all="ignore"):
        excess = var / other_var - 1
        divergence = (excess - np.log1p(excess) + (mean - other_mean) ** 2 / other_var) / 2
    return np.where(other_var > 0, divergence, np.inf)


@dataclass(frozen=True)
class Curves:
    """How one variant's moments differ from f's, point by point.

    Attributes:
        mu, sigma: of the input.
        mean_error: (mean - exact mean) / exact sigma'.
        sigma_ratio: sigma' / exact sigma'.
        kl: KL(N(exact moments) || N(the variant's)), nats.
    """

    mu: F64
    sigma: F64
    mean_error: F64
    sigma_ratio: F64
    kl: F64


@dataclass(frozen=True)
class Comparison:
    """One variant beside the exact moments of f: the extremes of :class:`Curves`, and where they are.

    Attributes:
        variant: its name.
        mean_error, mean_at: largest |mean error| in units of sigma', and the (mu, sigma) where.
        sigma_low, sigma_high: range of sigma' over the exact one.
        var_error, var_at: largest |var / exact var - 1|, and where.
        kl, kl_at: largest KL divergence, and where.
    """

    variant: str
    mean_error: float
    mean_at: tuple[float, float]
    sigma_low: float
    sigma_high: float
    var_error: float
    var_at: tuple[float, float]
    kl: float
    kl_at: tuple[float, float]


def compare_curves(subject: Subject, mu: F64, sigma: F64) -> dict[str, Curves]:
    """Every variant against the exact moments at the given points, those left out where f is as good as known.

    Args:
        subject: the rule.
        mu, sigma: arrays of one shape.
    """
    mean, var = mu.astype(np.float32), (sigma**2).astype(np.float32)
    exact = subject.truth(mean, var)
    kept = exact["var"] > _CERTAIN**2 * var
    mean, var = mean[kept], var[kept]
    true_mean, true_var = exact["mean"][kept], exact["var"][kept]
    curves = {}
    for name, kernel in subject.kernels.items():
        outputs = kernel.outputs(mean, var)
        m, w = outputs["mean"].astype(np.float64), outputs["var"].astype(np.float64)
        curves[name] = Curves(
            mu[kept],
            sigma[kept],
            (m - true_mean) / np.sqrt(true_var),
            np.sqrt(w / true_var),
            kl_normal(true_mean, true_var, m, w),
        )
    return curves


def compare(subject: Subject) -> list[Comparison]:
    """Every variant against the exact moments, for |mu| <= 6 and sigma from 0.1 to 10."""
    mu, sigma = np.meshgrid(np.linspace(-6, 6, 25), np.geomspace(0.1, 10, 9))
    result = []
    for name, c in compare_curves(subject, mu.ravel(), sigma.ravel()).items():
        worst = [int(np.argmax(array)) for array in (abs(c.mean_error), abs(c.sigma_ratio**2 - 1), c.kl)]
        mean_at, var_at, kl_at = ((float(c.mu[i]), float(c.sigma[i])) for i in worst)
        result.append(
            Comparison(
                variant=name,
                mean_error=float(abs(c.mean_error[worst[0]])),
                mean_at=mean_at,
                sigma_low=float(c.sigma_ratio.min()),
                sigma_high=float(c.sigma_ratio.max()),
                var_error=float(abs(c.sigma_ratio[worst[1]] ** 2 - 1)),
                var_at=var_at,
                kl=float(c.kl[worst[2]]),
                kl_at=kl_at,
            )
        )
    return result
