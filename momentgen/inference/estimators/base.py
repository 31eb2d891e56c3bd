"""What the estimators share: validated data in standard units, seeds, predictions in the user's units.

An estimator of one method derives from :class:`BayesianRegressor` or :class:`BayesianClassifier`.  It defines how to
fit tensors (``_start``, ``_train``) and what to predict for tensors (``_predictive``, ``_log_posterior``).
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from momentgen.errors import InputError
from momentgen.runtime import Moments

__all__ = ["Bayesian", "BayesianClassifier", "BayesianRegressor"]


class Bayesian(BaseEstimator):  # type: ignore[misc]
    """Data of an estimator as tensors: features, and a regression's targets, with mean 0 and variance 1.

    Subclasses have at least the parameter ``random_state``.  Tensors are float64, as scikit-learn's arrays are.

    Attributes:
        n_features_in_: columns of the data of the first fit.
        x_scaler_: mean and standard deviation of each feature in the data of the first fit; a constant feature is
            divided by 1.
    """

    random_state: Any
    #: of the tensors that the method computes with
    _dtype: torch.dtype = torch.float64

    def _start(self, x: Tensor, y: Tensor) -> None:
        """Make a model for data of this shape; called once before the first :meth:`_train`."""
        raise NotImplementedError

    def _train(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        """Fit the model to data, going on from where it is; ``passes`` over them, None for the estimator's own."""
        raise NotImplementedError

    def _seed(self) -> int:
        """A seed from ``random_state``, a number, a ``RandomState`` or None."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(array), dtype=self._dtype)

    def _features(self, X: ArrayLike) -> Tensor:
        """Checked features in standard units, shape ``(n, n_features_in_)``."""
        check_is_fitted(self)
        return self._tensor(self.x_scaler_.transform(validate_data(self, X, reset=False, dtype=np.float64)))

    def _standard_targets(self, y: NDArray[Any], reset: bool) -> Tensor:
        raise NotImplementedError

    def _fit(self, X: ArrayLike, y: ArrayLike, passes: int | None, reset: bool, **options: Any) -> Self:
        X, y = validate_data(self, X, y, reset=reset, dtype=np.float64, **options)
        if reset:
            self.x_scaler_ = StandardScaler().fit(X)
        targets = self._standard_targets(np.asarray(y), reset)
        features = self._tensor(self.x_scaler_.transform(X))
        if reset:
            self._start(features, targets)
        self._train(features, targets, passes)
        return self


class BayesianRegressor(RegressorMixin, Bayesian):  # type: ignore[misc]
    """Regression with a predictive distribution.

    Attributes:
        y_scaler_: mean and standard deviation of the targets of the first fit.
    """

    def _predictive(self, x: Tensor) -> Moments:
        """Mean and *variance* of y, noise included, in standard units: shape ``(n,)`` or ``(n, outputs)``."""
        raise NotImplementedError

    def _log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """Log density of y in standard units, shape ``(n,)``; that of a normal with the predictive moments."""
        mean, var = (part.reshape(len(y), -1) for part in self._predictive(x))
        off = (y.reshape(len(y), -1) - mean).square() / var
        return -0.5 * (off + var.log() + math.log(2 * math.pi)).sum(1)

    def _standard_targets(self, y: NDArray[Any], reset: bool) -> Tensor:
        columns = y.reshape(len(y), -1)
        if reset:
            self._y_shape = y.shape[1:]
            self.y_scaler_ = StandardScaler().fit(columns)
        elif y.shape[1:] != self._y_shape:
            raise InputError(f"{type(self).__name__}: expected targets of shape (n, {self._y_shape}), got {y.shape}")
        return self._tensor(self.y_scaler_.transform(columns)).reshape(len(y), *self._y_shape)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit anew to features ``(n, features)`` and targets ``(n,)`` or ``(n, outputs)``.

        Raises:
            ValueError: for data that are not finite, of other shapes, or empty.
        """
        return self._fit(X, y, None, True, multi_output=True, y_numeric=True)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, passes: int = 1) -> Self:
        """Go on with these data; scales of features and targets stay those of the first call."""
        return self._fit(X, y, passes, not hasattr(self, "x_scaler_"), multi_output=True, y_numeric=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @torch.no_grad()
    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Predictive mean, in the targets' unit; with ``return_std`` also the standard deviation, noise included."""
        mean, var = (part.double().cpu().numpy() for part in self._predictive(self._features(X)))
        scale, shift = (np.reshape(value, self._y_shape) for value in (self.y_scaler_.scale_, self.y_scaler_.mean_))
        mean = mean.reshape(-1, *self._y_shape) * scale + shift
        return (mean, np.sqrt(var.reshape(mean.shape)) * scale) if return_std else mean

    @torch.no_grad()
    def log_prob(self, X: ArrayLike, y: ArrayLike) -> NDArray[Any]:
        """Predictive log density of each target, in the targets' unit, shape ``(n,)``."""
        features = self._features(X)
        targets = self._standard_targets(np.asarray(y, dtype=np.float64), False)
        if len(targets) != len(features):
            raise InputError(f"{type(self).__name__}: expected {len(features)} targets, got {len(targets)}")
        found: NDArray[Any] = self._log_prob(features, targets).double().cpu().numpy()
        return found - float(np.log(self.y_scaler_.scale_).sum())


class BayesianClassifier(ClassifierMixin, Bayesian):  # type: ignore[misc]
    """Classification with a class posterior.

    Attributes:
        classes_: the labels, sorted.
    """

    def _log_posterior(self, x: Tensor) -> Tensor:
        """Log probabilities of the classes, finite for finite outputs: shape ``(n, classes)``."""
        raise NotImplementedError

    @torch.no_grad()
    def _log_probabilities(self, X: ArrayLike) -> NDArray[Any]:
        found: NDArray[Any] = self._log_posterior(self._features(X)).double().cpu().numpy()
        return found

    def _standard_targets(self, y: NDArray[Any], reset: bool) -> Tensor:
        if reset:
            check_classification_targets(y)
            self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__}: expected at least 2 classes, got one class")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"{type(self).__name__}: expected labels of {self.classes_}, got {unknown}")
        return torch.as_tensor(np.searchsorted(self.classes_, y))

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit anew to features ``(n, features)`` and labels ``(n,)``.

        Raises:
            ValueError: for data that are not finite, of other shapes, empty, or of one class.
        """
        return self._fit(X, y, None, True)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None, passes: int = 1) -> Self:
        """Go on with these data; ``classes`` names all labels where the first data may lack some."""
        reset = not hasattr(self, "x_scaler_")
        if not reset or classes is None:
            return self._fit(X, y, passes, reset)
        known = np.unique(np.asarray(classes))
        X, y = validate_data(self, X, y, reset=True, dtype=np.float64)
        self.x_scaler_, self.classes_ = StandardScaler().fit(X), known
        targets, features = self._standard_targets(np.asarray(y), False), self._tensor(self.x_scaler_.transform(X))
        self._start(features, targets)
        self._train(features, targets, passes)
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Posterior probabilities of ``classes_``, shape ``(n, classes)``."""
        found: NDArray[Any] = np.exp(self._log_probabilities(X))
        return found

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable label of each row."""
        places = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[places]
        return found

    def log_prob(self, X: ArrayLike, y: ArrayLike) -> NDArray[Any]:
        """Log probability of each label, shape ``(n,)``."""
        logs = self._log_probabilities(X)
        places = self._standard_targets(np.asarray(y), False).numpy()
        if len(places) != len(logs):
            raise InputError(f"{type(self).__name__}: expected {len(logs)} labels, got {len(places)}")
        found: NDArray[Any] = logs[np.arange(len(places)), places]
        return found
