"""What tells whether a fitted regressor can be believed: scores, leave-one-out likelihoods by ArviZ, and pictures.

Functions of a fitted regressor of :mod:`momentgen.inference.estimators` and of data.  They use its public predictions,
and for ArviZ its moments before calibration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from momentgen import pictures
from momentgen.errors import InputError
from momentgen.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from momentgen.inference.estimators.regressor import BayesianRegressor


#: quantiles of a score, and coverages of a picture
_QUANTILES, _COVERAGES = 100, np.linspace(0.05, 0.95, 19)
#: of the noise's variance, whose own variance is finite from there on
_LEAST_FREEDOM = 5


def crps(model: BayesianRegressor, X: ArrayLike, y: ArrayLike) -> NDArray[Any]:
    """Continuous ranked probability score of each target, in its unit; less is better.

    It is the integral of the squared difference of the predictive distribution function and that of ``y``, a step.
    Here it is twice the mean pinball loss over 100 quantiles, for a normal distribution within 0.1 % of σ.

    Args:
        model: fitted.
        X: features ``(n, features)``.
        y: targets ``(n,)`` or ``(n, outputs)``.

    Returns:
        Of the shape of ``y``.

    Source: Gneiting and Raftery (2007), Strictly proper scoring rules, prediction, and estimation.

    >>> import numpy as np
    >>> from momentgen.inference import PBPRegressor
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> model = PBPRegressor(hidden=(), calibrate=None).fit(x, x[:, 0])
    >>> bool(crps(model, x, x[:, 0]).mean() < 0.1)
    True
    """
    nodes, weights = np.polynomial.legendre.leggauss(_QUANTILES)
    levels = (nodes + 1) / 2
    off = np.asarray(y, dtype=np.float64) - model.predict_quantiles(X, levels)
    levels = levels.reshape(-1, *(1,) * (off.ndim - 1))
    return np.asarray(np.tensordot(weights, np.maximum(levels * off, (levels - 1) * off), 1))


def to_arviz(model: BayesianRegressor, X: ArrayLike, y: ArrayLike, draws: int = 1000, random_state: int = 0) -> Any:
    """An ``arviz.InferenceData`` for ``arviz.loo``, ``arviz.waic`` and ``arviz.plot_ppc``.

    The network's output at each row is drawn from a normal distribution with the posterior's mean and variance, before
    calibration.  Rows are drawn independently, which leaves pointwise likelihoods as they are.  All rows share a
    factor on the noise's variance: inverse χ² of mean 1, with a degree of freedom for each row of the fit.

    Args:
        model: fitted, with normal noise.
        X: features ``(n, features)``, of the fit for leave-one-out.
        y: targets ``(n,)`` or ``(n, outputs)``.
        draws: of each row.
        random_state: seed of the draws.

    Returns:
        Groups ``posterior`` (``output``), ``posterior_predictive``, ``log_likelihood`` and ``observed_data`` (``y``).

    Raises:
        InputError: for a model whose noise is not normal, or less than two draws.
        MissingExtraError: if ArviZ is not installed.
    """
    require("chains", "to_arviz")
    import arviz

    if getattr(model, "likelihood", None) is not None:
        raise InputError(f"to_arviz: expected a regressor with normal noise, got likelihood={model.likelihood!r}")
    if draws < 2:
        raise InputError(f"to_arviz: expected at least 2 draws, got {draws}")
    with torch.no_grad():
        mean, *variances = (model._shaped(part) for part in model._parts(model._features(X)))
    epistemic, aleatoric = (np.sqrt(part) * model._unit for part in variances)
    observed = np.asarray(y, dtype=np.float64).reshape(mean.shape)
    generator = np.random.default_rng(random_state)
    output = model._from_standard(mean) + epistemic * generator.standard_normal((1, draws, *mean.shape))
    freedom = max(model._size, _LEAST_FREEDOM)
    factor = (freedom - 2) / generator.chisquare(freedom, (1, draws, *(1,) * mean.ndim))
    aleatoric = aleatoric * np.sqrt(factor)
    density = -0.5 * (((observed - output) / aleatoric) ** 2 + np.log(2 * np.pi)) - np.log(aleatoric)
    return arviz.from_dict(
        posterior={"output": output},
        posterior_predictive={"y": output + aleatoric * generator.standard_normal(output.shape)},
        log_likelihood={"y": density},
        observed_data={"y": observed},
    )


def plot_intervals(model: BayesianRegressor, X: ArrayLike, y: ArrayLike, coverage: float = 0.95) -> Axes:
    """Targets and their intervals, in the order of the predicted means; targets outside are marked.

    Args:
        model: fitted, of one output.
        X: features ``(n, features)``.
        y: targets ``(n,)``.
        coverage: of the intervals.

    Raises:
        InputError: for targets that are not one per row, or a coverage that is not between 0 and 1.
        MissingExtraError: if matplotlib is not installed.
    """
    targets, mean = _one_column(y, "plot_intervals"), model.predict(X)
    low, high = model.predict_interval(X, coverage)
    return pictures.of_intervals(mean, low, high, targets, coverage)


def plot_calibration(model: BayesianRegressor, X: ArrayLike, y: ArrayLike) -> Axes:
    """Share of targets in intervals of each nominal coverage, with what chance makes of 95 of 100 right models.

    Args:
        model: fitted, of one output.
        X: features ``(n, features)``, not those of the fit.
        y: targets ``(n,)``.

    Raises:
        InputError: for targets that are not one per row.
        MissingExtraError: if matplotlib is not installed.
    """
    targets = _one_column(y, "plot_calibration")
    ends = (model.predict_interval(X, float(coverage)) for coverage in _COVERAGES)
    shares = [float(((low <= targets) & (targets <= high)).mean()) for low, high in ends]
    return pictures.of_coverage(_COVERAGES, shares, len(targets))


def plot_parts(model: BayesianRegressor, X: ArrayLike) -> Axes:
    """Epistemic and aleatoric σ of each row, in the order of their total.

    Args:
        model: fitted, of one output.
        X: features ``(n, features)``.

    Raises:
        InputError: for a model of several outputs.
        MissingExtraError: if matplotlib is not installed.
    """
    mean, epistemic, aleatoric = model.predict_parts(X)
    _one_column(mean, "plot_parts")
    return pictures.of_parts(epistemic, aleatoric)


def _one_column(values: ArrayLike, what: str) -> NDArray[Any]:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1:
        raise InputError(f"{what}: expected one output, values of shape (n,), got shape {found.shape}")
    return found
