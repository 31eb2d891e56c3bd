"""Regression estimators: predictive mean, σ and its parts, intervals that hold, quantiles, draws, densities.

Their fit and its calibration are those of :mod:`~momentgen.inference.estimators.held_out`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm
from sklearn.utils import check_random_state
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.estimators.held_out import CalibratedFit, Parts, PartsOfUncertain
from momentgen.inference.estimators.uncertain_features import mixture_quantile


class BayesianRegressor(CalibratedFit):
    """Regression with a predictive distribution; parameters and attributes are those of :class:`CalibratedFit`."""

    def _log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """Log density of y ``(n, outputs)`` in standard units, before calibration, ``(n,)``: of a normal here."""
        mean, var = (part.reshape(len(y), -1) for part in self._moments(x))
        return -0.5 * ((y - mean).square() / var + var.log() + math.log(2 * math.pi)).sum(1)

    def _quantile(self, x: Tensor, level: float) -> Tensor:
        """Quantile of y in standard units, before calibration: that of a normal here."""
        mean, var = self._moments(x)
        reach = torch.special.ndtri(torch.tensor(level, dtype=torch.float64)).item()
        return mean + reach * var.sqrt()

    def _sample(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Draws of y in standard units, before calibration, ``(count, n, ...)``: of a normal here."""
        mean, var = (part.double().cpu() for part in self._moments(x))
        return mean + var.sqrt() * torch.randn(count, *mean.shape, generator=generator, dtype=torch.float64)

    def _mean(self, mean: Tensor) -> NDArray[Any]:
        return self._from_standard(self._shaped(mean))

    @torch.no_grad()
    def predict(
        self, X: ArrayLike, return_std: bool = False, x_std: ArrayLike | None = None, x_cov: ArrayLike | None = None
    ) -> Any:
        """Predictive mean, in the targets' unit; with ``return_std`` also the standard deviation, noise included.

        Args:
            X: features, shape ``(n, features)``.
            return_std: whether to return the standard deviation too.
            x_std: standard deviation of independent normal errors of X, in its units; a number, one per feature, or
                ``(n, features)``.  Mean and σ are then averages over the features' normal distribution.  Up to three
                uncertain features have a grid; more have 256 quasi-random points, and σ some percent of error.
            x_cov: their *covariance* ``(features, features)``, or one per row, in place of ``x_std``.

        Raises:
            InputError: for both, other shapes, or deviations that are negative or not finite.

        >>> from momentgen.inference import PBPRegressor
        >>> x = np.linspace(-2, 2, 40)[:, None]
        >>> model = PBPRegressor(hidden=(), calibrate=None).fit(x, 3 * x[:, 0])
        >>> model.predict([[0.0]], return_std=True, x_std=0.5)[1].round(1).tolist()
        [1.5]
        """
        x = self._features(X)
        mean, std = self._predicted_std(x)
        if x_std is not None or x_cov is not None:
            weights, means, stds = self._at_points(self._predicted_std, x, x_std, x_cov)
            mean = np.tensordot(weights, means, 1)
            std = np.sqrt(np.tensordot(weights, stds**2 + (means - mean) ** 2, 1))
        return (mean, std) if return_std else mean

    def _at_points(
        self, predict: Callable[[Tensor], Any], x: Tensor, x_std: ArrayLike | None, x_cov: ArrayLike | None
    ) -> list[NDArray[Any]]:
        """Weights of the points of uncertain features, and what is predicted there, each ``(points, n, ...)``."""
        rows, weights = self._scattered(x, x_std, x_cov)
        parts = zip(*(predict(some) for some in rows), strict=True)
        return [weights, *(np.concatenate(part).reshape(-1, len(x), *self._y_shape) for part in parts)]

    def _predicted_std(self, x: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
        mean, var = self._moments(x)
        return self._mean(mean), self._wide(x, mean, var) * self._deviation()

    def _wide(self, x: Tensor, mean: Tensor, var: Tensor) -> NDArray[Any]:
        """Scale of the errors' law for each row, in the targets' unit."""
        return np.asarray(np.sqrt(self._shaped(var)) * self._unit * self._scales(x, mean))

    @torch.no_grad()
    def predict_parts(self, X: ArrayLike, x_std: ArrayLike | None = None, x_cov: ArrayLike | None = None) -> Any:
        """Predictive mean, and the standard deviations of the network's output and of the noise, in the targets' unit.

        Their squares add up to the square of what :meth:`predict` returns.

        Args:
            X: features, shape ``(n, features)``.
            x_std: as in :meth:`predict`.  The standard deviation that uncertain features cause is then a further part;
                the other two are roots of variances averaged over the features' distribution.
            x_cov: likewise.

        Returns:
            :class:`Parts` ``(mean, epistemic, aleatoric)``.  With ``x_std`` or ``x_cov`` :class:`PartsOfUncertain`,
            which also has ``features``.

        Raises:
            InputError: as :meth:`predict`.

        >>> from momentgen.inference import PBPRegressor
        >>> x = np.linspace(-2, 2, 40)[:, None]
        >>> model = PBPRegressor(hidden=(), calibrate=None).fit(x, 3 * x[:, 0])
        >>> model.predict_parts([[0.0]], x_std=0.5).features.round(1).tolist()
        [1.5]
        """
        x = self._features(X)
        if x_std is None and x_cov is None:
            return Parts(*self._predicted_parts(x))
        weights, means, *stds = self._at_points(self._predicted_parts, x, x_std, x_cov)
        mean = np.tensordot(weights, means, 1)
        squares = (*(std**2 for std in stds), (means - mean) ** 2)
        return PartsOfUncertain(mean, *(np.sqrt(np.tensordot(weights, square, 1)) for square in squares))

    def _predicted_parts(self, x: Tensor) -> list[NDArray[Any]]:
        mean, *parts = self._parts(x)
        return [self._mean(mean), *(self._wide(x, mean, var) * self._deviation() for var in parts)]

    @torch.no_grad()
    def predict_interval(
        self, X: ArrayLike, coverage: float = 0.95, x_std: ArrayLike | None = None, x_cov: ArrayLike | None = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Lower and upper ends of intervals that hold a target with this probability, in the targets' unit.

        With ``calibrate`` they are conformal: about the mean, as wide as held-out errors ask for.  Their coverage holds
        for rows from where the data came from, on average over rows.  Below 60 held-out rows, and for a coverage above
        what these can show, they are as wide as the Student law of the errors.  Else they are quantiles of the
        predictive distribution.

        Args:
            X: features, shape ``(n, features)``.
            coverage: the probability.
            x_std: as in :meth:`predict`.  Intervals then are quantiles of the mixture over the features' distribution.
            x_cov: likewise.

        Raises:
            InputError: for a coverage that is not between 0 and 1, and as :meth:`predict`.
        """
        if not 0 < coverage < 1:
            raise InputError(f"predict_interval: expected a coverage between 0 and 1, got {coverage}")
        tails = (0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage)
        if x_std is not None or x_cov is not None:
            low, high = self._uncertain_quantiles(self._features(X), x_std, x_cov, tails)
        elif self._laws:
            x = self._features(X)
            mean, var = self._moments(x)
            centre, half = self._mean(mean), self._wide(x, mean, var) * self._reach(coverage)
            low, high = centre - half, centre + half
        else:
            low, high = self.predict_quantiles(X, tails)
        return low, high

    def _uncertain_quantiles(
        self, x: Tensor, x_std: ArrayLike | None, x_cov: ArrayLike | None, levels: tuple[float, float]
    ) -> list[NDArray[Any]]:
        """Quantiles of the mixture over uncertain features; of the law of errors, scaled to the width of intervals."""
        shape = (len(x), *self._y_shape)
        weights, means, stds = self._at_points(self._predicted_std, x, x_std, x_cov)
        centres, scales = (part.reshape(len(weights), len(x), -1) for part in (means, stds / self._deviation()))
        found = np.empty((len(levels), *centres.shape[1:]))
        for k in range(found.shape[2]):
            law = self._laws[k].law if self._laws else norm
            wide = self._laws[k].reach(levels[1] - levels[0]) / law.ppf(levels[1]) if self._laws else 1.0
            for place, level in enumerate(levels):
                found[place, :, k] = mixture_quantile(law.cdf, level, centres[..., k], wide * scales[..., k], weights)
        return list(found.reshape(len(levels), *shape))

    @torch.no_grad()
    def predict_quantiles(self, X: ArrayLike, levels: ArrayLike = (0.025, 0.5, 0.975)) -> NDArray[Any]:
        """Predictive quantiles, in the targets' unit, shape ``(levels, n)`` or ``(levels, n, outputs)``.

        Raises:
            InputError: for levels that are not between 0 and 1.
        """
        wanted = np.atleast_1d(np.asarray(levels, dtype=np.float64))
        if wanted.ndim != 1 or not len(wanted) or not ((wanted > 0) & (wanted < 1)).all():
            raise InputError(f"predict_quantiles: expected levels between 0 and 1, got {levels!r}")
        x = self._features(X)
        if not self._laws:
            return self._from_standard(np.stack([self._shaped(self._quantile(x, float(level))) for level in wanted]))
        mean, var = self._moments(x)
        centre, wide = self._mean(mean), self._wide(x, mean, var)
        return np.stack([centre + wide * self._each(lambda law: law.law.ppf(level)) for level in wanted.tolist()])  # noqa: B023

    def _from_standard(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(values * self._unit + self._centre)

    @torch.no_grad()
    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> NDArray[Any]:
        """Draws of the targets from the predictive distribution, rows independent, in the targets' unit.

        Args:
            X: features, shape ``(n, features)``.
            n_samples: draws per row.
            random_state: of the draws.

        Returns:
            Shape ``(n, n_samples)`` or ``(n, outputs, n_samples)``.

        Raises:
            InputError: for less than one draw.
        """
        if n_samples < 1:
            raise InputError(f"sample_y: expected n_samples of at least 1, got {n_samples}")
        x = self._features(X)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        if not self._laws:
            drawn = self._sample(x, n_samples, torch.Generator().manual_seed(seed)).double().cpu().numpy()
            return np.moveaxis(self._from_standard(drawn.reshape(n_samples, -1, *self._y_shape)), 0, -1)
        mean, var = self._moments(x)
        draw = np.random.default_rng(seed)
        errors = np.stack([law.law.rvs(size=(len(x), n_samples), random_state=draw) for law in self._laws], 1)
        centre, wide = self._mean(mean)[..., None], self._wide(x, mean, var)[..., None]
        return np.asarray(centre + wide * errors.reshape(*wide.shape[:-1], n_samples))

    @torch.no_grad()
    def log_prob(self, X: ArrayLike, y: ArrayLike) -> NDArray[Any]:
        """Predictive log density of each target, in the targets' unit, shape ``(n,)``.

        Raises:
            InputError: for targets that are not finite, or of another number than rows.
        """
        x = self._features(X)
        y = np.atleast_1d(np.asarray(y, dtype=np.float64))
        if not np.isfinite(y).all():
            raise InputError(f"{type(self).__name__}.log_prob: expected finite targets")
        targets = self._standard_targets(y, False)
        if len(targets) != len(x):
            raise InputError(f"{type(self).__name__}: expected {len(x)} targets, got {len(targets)}")
        targets = targets.reshape(len(x), -1)
        if not self._laws:
            found: NDArray[Any] = self._log_prob(x, targets).double().cpu().numpy()
            return found - float(np.log(self.y_scaler_.scale_).sum())
        mean, var = self._moments(x)
        wide = self._wide(x, mean, var).reshape(len(x), -1)
        z = (y - self._mean(mean)).reshape(len(x), -1) / wide
        logs = [law.law.logpdf(z[:, k]) for k, law in enumerate(self._laws)]
        return np.asarray(np.stack(logs, 1).sum(1) - np.log(wide).sum(1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
