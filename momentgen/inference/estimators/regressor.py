"""Regression estimators: predictive mean, σ and its parts, intervals that hold, quantiles, draws, densities.

Predictions are calibrated on held-out data: models that were fitted without these rows predict them, and their
standardised errors z give two things.  σ is multiplied by the root mean square of z.  An interval's half-width is the
quantile of |z| that split conformal prediction takes (Lei et al. 2018), times the row's own σ.
"""

from __future__ import annotations

import math
import warnings
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
from momentgen.runtime import Moments

__all__ = ["BayesianRegressor", "Calibration", "Parts"]

#: how predictions are calibrated: by five folds, by one of them, or not
Calibration = Literal["cv", "split"]
_FOLDS, _LEAST_ROWS = 5, 20


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
        sigma_scale_: factor on σ that calibration found, one per target; 1 where there was none.
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
        reach = math.sqrt(2) * torch.erfinv(torch.tensor(2 * level - 1, dtype=torch.float64)).item()
        return mean + reach * var.sqrt()

    def _sample(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Draws of y in standard units, before calibration, ``(count, n, ...)``: of a normal here."""
        mean, var = (part.double().cpu() for part in self._moments(x))
        return mean + var.sqrt() * torch.randn(count, *mean.shape, generator=generator, dtype=torch.float64)

    def _moments(self, x: Tensor) -> Moments:
        mean, epistemic, aleatoric = self._parts(x)
        return Moments(mean, epistemic + aleatoric)

    def _standard_targets(self, y: NDArray[Any], reset: bool) -> Tensor:
        columns = y.reshape(len(y), -1)
        if reset:
            self._y_shape = y.shape[1:]
            self.y_scaler_ = StandardScaler().fit(columns)
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
            self._learn_scale(X, y)
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, passes: int = 1, n_total: int | None = None) -> Self:
        """Go on with these data; scales of features and targets stay those of the first call.

        Nothing is calibrated: no data are held out.

        Args:
            X: features, shape ``(n, features)``.
            y: targets, shape ``(n,)`` or ``(n, outputs)``.
            passes: how often to go over these data.
            n_total: rows of the whole data set.  None counts the rows of all calls, the same data once.
        """
        reset = not hasattr(self, "x_scaler_")
        self._fit(X, y, passes, reset, n_total, multi_output=True, y_numeric=True)
        self._uncalibrated()
        return self

    # ------------------------------------------------------------------ calibration

    def _uncalibrated(self) -> None:
        self.sigma_scale_: NDArray[Any] = np.ones(self.y_scaler_.n_features_in_)
        #: |z| of held-out rows in order, ``(rows, outputs)``
        self._errors: NDArray[Any] | None = None

    def _learn_scale(self, X: ArrayLike, y: ArrayLike) -> None:
        """Calibrate by models that were fitted without the rows that they predict."""
        features, targets = np.asarray(X), np.asarray(y)
        if len(targets) < _LEAST_ROWS:
            return
        folds = list(KFold(_FOLDS, shuffle=True, random_state=self._seed()).split(features))
        found = []
        own = self.predict(features, return_std=True)[1]
        for train, test in folds if self.calibrate == "cv" else folds[:1]:
            other = clone(self).set_params(calibrate=None)
            with warnings.catch_warnings():  # this fit has warned itself
                warnings.simplefilter("ignore", ConvergenceWarning)
                other.fit(features[train], targets[train], **self._rows(train))
            mean, std = other.predict(features, return_std=True)
            # Fits differ in how large their σ is as a whole; that of this one is what will be scaled.
            std = std[test] * np.exp(np.mean(np.log(own) - np.log(std), 0))
            if (known := self._rows(test).get("y_std")) is not None:
                std = np.hypot(std, known.reshape(std.shape))
            off = targets[test].reshape(std.shape).astype(np.float64) - mean[test]
            found.append((off / std).reshape(len(test), -1))
        errors = np.concatenate(found)
        self._errors = np.sort(np.abs(errors), 0)
        self.sigma_scale_ = np.sqrt(np.mean(errors**2, 0))
        # Targets that are all alike leave no error.
        self.sigma_scale_[~(self.sigma_scale_ > 1e-6)] = 1.0

    def _reach(self, coverage: float) -> NDArray[Any] | None:
        """Half-widths of intervals in uncalibrated σ, one per target; None where nothing was held out."""
        if self._errors is None:
            return None
        rank = math.ceil((len(self._errors) + 1) * coverage)
        if rank > len(self._errors):
            raise InputError(
                f"{type(self).__name__}.predict_interval: expected a coverage that {len(self._errors)} held-out rows "
                f"can show, at most {len(self._errors) / (len(self._errors) + 1):.4g}, got {coverage}"
            )
        return np.asarray(self._errors[rank - 1])

    # ------------------------------------------------------------------ predictions

    def _shaped(self, values: Tensor) -> NDArray[Any]:
        return np.asarray(values.double().cpu().numpy().reshape(-1, *self._y_shape))

    @property
    def _unit(self) -> NDArray[Any]:
        return np.asarray(np.reshape(self.y_scaler_.scale_, self._y_shape))

    @property
    def _stretch(self) -> NDArray[Any]:
        return np.asarray(np.reshape(self.sigma_scale_, self._y_shape))

    def _mean(self, mean: Tensor) -> NDArray[Any]:
        return self._from_standard(self._shaped(mean))

    @torch.no_grad()
    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Predictive mean, in the targets' unit; with ``return_std`` also the standard deviation, noise included."""
        mean, var = self._moments(self._features(X))
        centre = self._mean(mean)
        return (centre, np.sqrt(self._shaped(var)) * self._unit * self._stretch) if return_std else centre

    @torch.no_grad()
    def predict_parts(self, X: ArrayLike) -> Parts:
        """Predictive mean, and the standard deviations of the network's output and of the noise, in the targets' unit.

        Their squares add up to the square of what :meth:`predict` returns.
        """
        mean, *parts = self._parts(self._features(X))
        return Parts(self._mean(mean), *(np.sqrt(self._shaped(var)) * self._unit * self._stretch for var in parts))

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
        reach = self._reach(coverage)
        if reach is None:
            low, high = self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])
            return low, high
        mean, var = self._moments(x)
        centre, half = self._mean(mean), np.sqrt(self._shaped(var)) * self._unit * np.reshape(reach, self._y_shape)
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
        centre = self._shaped(self._moments(x).mean)
        found = np.stack([self._shaped(self._quantile(x, float(level))) for level in wanted])
        return np.asarray(self._from_standard(centre + (found - centre) * self._stretch))

    def _from_standard(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(values * self._unit + np.reshape(self.y_scaler_.mean_, self._y_shape))

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
        drawn = self._sample(x, n_samples, torch.Generator().manual_seed(seed)).double().cpu().numpy()
        drawn = drawn.reshape(n_samples, -1, *self._y_shape)
        centre = self._shaped(self._moments(x).mean)
        return np.moveaxis(self._from_standard(centre + (drawn - centre) * self._stretch), 0, -1)

    @torch.no_grad()
    def log_prob(self, X: ArrayLike, y: ArrayLike) -> NDArray[Any]:
        """Predictive log density of each target, in the targets' unit, shape ``(n,)``."""
        x = self._features(X)
        targets = self._standard_targets(np.asarray(y, dtype=np.float64), False)
        if len(targets) != len(x):
            raise InputError(f"{type(self).__name__}: expected {len(x)} targets, got {len(targets)}")
        targets = targets.reshape(len(x), -1)
        if self._errors is not None:  # the density of a variable that is stretched about its mean
            centre = self._moments(x).mean.reshape(len(x), -1).to(targets)
            targets = centre + (targets - centre) / torch.as_tensor(self.sigma_scale_).to(targets)
        found: NDArray[Any] = self._log_prob(x, targets).double().cpu().numpy()
        return found - float(np.log(self.y_scaler_.scale_ * self.sigma_scale_).sum())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
