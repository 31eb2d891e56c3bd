"""Regression estimators: predictive mean, σ and its parts, intervals that hold, quantiles, draws, densities.

Predictions are calibrated on held-out data: models that were fitted without these rows predict them.  The law of their
standardised errors, of :mod:`~momentgen.inference.estimators.calibration`, is that of the predictions from then on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.estimators.base import Bayesian
from momentgen.inference.estimators.calibration import ErrorLaw, beside_known_noise, fit_error_law
from momentgen.runtime import Moments

__all__ = ["BayesianRegressor", "Calibration", "Parts"]

#: how predictions are calibrated: by five folds, by the first of them, or not
Calibration = Literal["cv", "split"]
_FOLDS, _LEAST_ROWS = 5, 20
#: held-out rows that are enough: no further fold is fitted then
_ENOUGH = {"cv": 1000, "split": 200}


class Parts(NamedTuple):
    """A prediction whose standard deviation is told apart.

    Attributes:
        mean: predictive mean.
        epistemic: *standard deviation* of the network's output: what more data would reduce.
        aleatoric: *standard deviation* of a target about the network's output: what more data would not reduce.
    """

    mean: Any
    epistemic: Any
    aleatoric: Any


class BayesianRegressor(RegressorMixin, Bayesian):  # type: ignore[misc]
    """Regression with a predictive distribution.

    Subclasses have at least the parameters ``random_state`` and ``calibrate``.

    Attributes:
        y_scaler_: mean and standard deviation of the targets of the first fit.
        sigma_scale_: factor on σ that calibration found, one per target, in the root mean square over held-out rows; 1
            where there was none.
    """

    calibrate: Calibration | None

    def _parts(self, x: Tensor) -> Parts:
        """Mean and *variances* in standard units, before calibration: each ``(n,)`` or ``(n, outputs)``."""
        raise NotImplementedError

    def _rows(self, rows: Any) -> dict[str, Any]:
        """What ``fit`` was told of these rows besides features and targets."""
        return {}

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

    def _moments(self, x: Tensor) -> Moments:
        mean, epistemic, aleatoric = self._parts(x)
        return Moments(mean, epistemic + aleatoric)

    def _standard_targets(self, y: NDArray[Any], reset: bool, classes: ArrayLike | None = None) -> Tensor:
        columns = y.reshape(len(y), -1).astype(np.float64)  # half precision cannot hold what is subtracted
        if reset:
            self._y_shape = y.shape[1:]
            self.y_scaler_ = StandardScaler().fit(columns, sample_weight=self._weights)
            self._uncalibrated()
        elif y.shape[1:] != self._y_shape:
            raise InputError(f"{type(self).__name__}: expected targets of shape (n, {self._y_shape}), got {y.shape}")
        return self._tensor(self.y_scaler_.transform(columns)).reshape(len(y), *self._y_shape)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit anew to features ``(n, features)`` and targets ``(n,)`` or ``(n, outputs)``.

        Raises:
            ValueError: for data that are not finite, of other shapes, or empty.
        """
        if self.calibrate not in ("cv", "split", None):
            raise InputError(f"{type(self).__name__}: expected calibrate of cv, split or None, got {self.calibrate!r}")
        self._fit(X, y, None, True, multi_output=True, y_numeric=True)
        if self.calibrate is not None:
            try:
                self._calibrate(X, y)
            except BaseException:
                self._ready = False
                raise
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, passes: int = 1, n_total: int | None = None) -> Self:
        """Go on with these data; scales of features and targets stay those of the first call.

        Nothing is calibrated: no data are held out.

        Args:
            X: features, shape ``(n, features)``.
            y: targets, shape ``(n,)`` or ``(n, outputs)``.
            passes: how often to go over these data.
            n_total: rows of the whole data set.  None counts the rows of all calls; a repeated chunk counts once.
        """
        self._fit(X, y, passes, not self._ready, n_total, multi_output=True, y_numeric=True)
        self._uncalibrated()
        return self

    # ------------------------------------------------------------------ calibration

    def _uncalibrated(self) -> None:
        self.sigma_scale_: NDArray[Any] = np.ones(self.y_scaler_.n_features_in_)
        #: of held-out errors, one per target
        self._laws: list[ErrorLaw] = []

    def _held_out_settings(self) -> dict[str, Any]:
        """Parameters of the models without held-out rows that are not those of this one."""
        return {}

    def _folds(self, rows: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Rows to fit and rows to predict, of each fold that is needed."""
        every = list(KFold(_FOLDS, shuffle=True, random_state=self._seed()).split(np.empty(rows)))
        wanted = math.ceil(_ENOUGH[self.calibrate or "split"] / (rows / _FOLDS))
        return every[:wanted]

    def _held_out(self, X: NDArray[Any], y: NDArray[Any], folds: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Mean and σ of all rows, in the targets' unit, by a model that was fitted without the rows of each fold."""
        for train, _ in folds:
            other = clone(self).set_params(calibrate=None, **self._held_out_settings())
            with warnings.catch_warnings():  # this fit has warned itself
                warnings.simplefilter("ignore", ConvergenceWarning)
                other.fit(X[train], y[train], **self._rows(train))
            yield other.predict(X, return_std=True)

    def _calibrate(self, X: ArrayLike, y: ArrayLike) -> None:
        """Learn the law of errors from models that were fitted without the rows that they predict."""
        features, targets = np.asarray(X), np.asarray(y)
        if len(targets) < _LEAST_ROWS:
            return
        folds = self._folds(len(targets))
        standard = self._features(X)
        with torch.no_grad():
            own = np.sqrt(self._shaped(self._moments(standard).var)) * self._unit
        off, wide, means = [], [], []
        for (_, test), (mean, std) in zip(folds, self._held_out(features, targets, folds), strict=True):
            # Fits differ in how large their σ is as a whole; that of this one is what will be scaled.
            std = std[test] * np.exp(np.mean(np.log(own) - np.log(std), 0))
            wide.append(std.reshape(len(test), -1))
            off.append((targets[test].reshape(std.shape).astype(np.float64) - mean[test]).reshape(len(test), -1))
            means.append(((mean[test] - self._centre) / self._unit).reshape(len(test), -1))
        held_out = np.concatenate([test for _, test in folds])
        places = standard.double().cpu().numpy()[held_out]
        weights = np.ones(len(held_out)) if self._weights is None else self._weights[held_out]
        known = self._rows(held_out).get("y_std")
        parts = (np.concatenate(part).T for part in (off, wide, means))
        self._laws = []
        for k, (error, std, centre) in enumerate(zip(*parts, strict=True)):
            factor, counts = 1.0, weights
            if known is not None:
                noise = known.reshape(len(known), -1)[:, k]
                factor, counts = beside_known_noise(error, std, noise, weights)
                std = np.hypot(factor * std, noise)
            law = fit_error_law(error / std, places, centre, counts)
            root_mean_square = factor * law.root_mean_square
            self._laws.append(law._replace(size=factor * law.size, root_mean_square=root_mean_square))
        self.sigma_scale_ = np.array([law.root_mean_square for law in self._laws])

    def _scales(self, x: Tensor, mean: Tensor) -> NDArray[Any]:
        """Scale of the errors' law over the model's own σ, for each row and target, ``(n, ...)``."""
        if not self._laws:
            return np.ones((len(x), *self._y_shape))
        features, centre = x.double().cpu().numpy(), mean.double().cpu().numpy().reshape(len(x), -1)
        found = np.stack([law.scale(features, centre[:, k]) for k, law in enumerate(self._laws)], 1)
        return found.reshape(len(x), *self._y_shape)

    def _each(self, value: Callable[[ErrorLaw], float]) -> NDArray[Any]:
        """A number per target."""
        return np.reshape([value(law) for law in self._laws], self._y_shape)

    def _deviation(self) -> NDArray[Any]:
        return self._each(lambda law: law.deviation) if self._laws else np.ones(self._y_shape)

    def _reach(self, coverage: float) -> NDArray[Any]:
        """Half-widths of intervals over the scale, one per target."""
        count = min(float(law.counts[-1]) for law in self._laws)
        if (count + 1) * coverage > count:
            raise InputError(
                f"{type(self).__name__}.predict_interval: expected a coverage that {count:.6g} held-out rows can show, "
                f"at most {count / (count + 1):.4g}, got {coverage}"
            )
        return self._each(lambda law: float(law.errors[np.searchsorted(law.counts, (law.counts[-1] + 1) * coverage)]))

    # ------------------------------------------------------------------ predictions

    def _shaped(self, values: Tensor) -> NDArray[Any]:
        return np.asarray(values.double().cpu().numpy().reshape(-1, *self._y_shape))

    @property
    def _unit(self) -> NDArray[Any]:
        return np.asarray(np.reshape(self.y_scaler_.scale_, self._y_shape))

    @property
    def _centre(self) -> NDArray[Any]:
        return np.asarray(np.reshape(self.y_scaler_.mean_, self._y_shape))

    def _mean(self, mean: Tensor) -> NDArray[Any]:
        return self._from_standard(self._shaped(mean))

    @torch.no_grad()
    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Predictive mean, in the targets' unit; with ``return_std`` also the standard deviation, noise included."""
        x = self._features(X)
        mean, var = self._moments(x)
        centre = self._mean(mean)
        return (centre, self._wide(x, mean, var) * self._deviation()) if return_std else centre

    def _wide(self, x: Tensor, mean: Tensor, var: Tensor) -> NDArray[Any]:
        """Scale of the errors' law for each row, in the targets' unit."""
        return np.asarray(np.sqrt(self._shaped(var)) * self._unit * self._scales(x, mean))

    @torch.no_grad()
    def predict_parts(self, X: ArrayLike) -> Parts:
        """Predictive mean, and the standard deviations of the network's output and of the noise, in the targets' unit.

        Their squares add up to the square of what :meth:`predict` returns.
        """
        x = self._features(X)
        mean, *parts = self._parts(x)
        return Parts(self._mean(mean), *(self._wide(x, mean, var) * self._deviation() for var in parts))

    @torch.no_grad()
    def predict_interval(self, X: ArrayLike, coverage: float = 0.95) -> tuple[NDArray[Any], NDArray[Any]]:
        """Lower and upper ends of intervals that hold a target with this probability, in the targets' unit.

        With ``calibrate`` they are conformal: about the mean, as wide as held-out errors ask for.  Their coverage holds
        for rows from where the data came from, on average over rows.  Else they are quantiles of the predictive
        distribution.

        Raises:
            InputError: for a coverage that is not between 0 and 1, or above what the held-out rows can show.
        """
        if not 0 < coverage < 1:
            raise InputError(f"predict_interval: expected a coverage between 0 and 1, got {coverage}")
        x = self._features(X)
        if not self._laws:
            low, high = self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])
            return low, high
        reach = self._reach(coverage)
        mean, var = self._moments(x)
        centre, half = self._mean(mean), self._wide(x, mean, var) * reach
        return centre - half, centre + half

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
