"""Fits of regressors and their calibration, by models that were fitted without the rows that they predict.

Between :mod:`~momentgen.inference.estimators.base`, which has the data of all estimators, and
:mod:`~momentgen.inference.estimators.regressor`, which has the predictions.  Errors of rows left out have a law, of
:mod:`~momentgen.inference.estimators.calibration`, which is that of the predictions from then on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, check_cv
from sklearn.preprocessing import StandardScaler
from sklearn.utils.metaestimators import available_if
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.estimators.base import Bayesian
from momentgen.inference.estimators.calibration import ErrorLaw, beside_known_noise, fit_error_law
from momentgen.inference.estimators.rivals import Folds, lead, log_densities, rivals
from momentgen.progress import progress_bar
from momentgen.runtime import Moments


class Splitter(Protocol):
    """Divides rows, as the splitters of scikit-learn do."""

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterable[Any]: ...


#: how predictions are calibrated: by five folds, by the first of them, or as scikit-learn's ``cv`` argument says
Calibration = Literal["cv", "split"] | int | Splitter | Iterable[tuple[Any, Any]]
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


class PartsOfUncertain(NamedTuple):
    """A prediction for uncertain features; the parts are those of :class:`Parts`, and one more.

    Attributes:
        features: *standard deviation* of the predictive mean over the distribution of the features.
    """

    mean: Any
    epistemic: Any
    aleatoric: Any
    features: Any


class CalibratedFit(RegressorMixin, Bayesian):  # type: ignore[misc]
    """A regression whose held-out errors say how wide its predictions are.

    Subclasses have at least the parameters ``random_state`` and ``calibrate``.

    Attributes:
        y_scaler_: mean and standard deviation of the targets of the first fit.
        sigma_scale_: factor on σ that calibration found, one per target, in the root mean square over held-out rows; 1
            where there was none.
    """

    calibrate: Calibration | None
    _checks = {"multi_output": True, "y_numeric": True}  # noqa: RUF012
    #: whether there is a ``partial_fit``
    _goes_on: ClassVar[bool] = True
    #: what to try where a fit predicts no better than a line
    _advice: ClassVar[str] = "PBPRegressor(), which compares networks with a line,"

    def _parts(self, x: Tensor) -> Parts:
        """Mean and *variances* in standard units, before calibration: each ``(n,)`` or ``(n, outputs)``."""
        raise NotImplementedError

    def _moments(self, x: Tensor) -> Moments:
        mean, epistemic, aleatoric = self._parts(x)
        return Moments(mean, epistemic + aleatoric)

    def _standard_targets(self, y: NDArray[Any], reset: bool, classes: ArrayLike | None = None) -> Tensor:
        columns = y.reshape(len(y), -1).astype(np.float64)  # half precision cannot hold what is subtracted
        if reset:
            self._y_shape = y.shape[1:]
            self.y_scaler_ = StandardScaler().fit(*self._unit_of(columns))
            self._uncalibrated()
        elif y.shape[1:] != self._y_shape:
            raise InputError(f"{type(self).__name__}: expected targets of shape (n, {self._y_shape}), got {y.shape}")
        return self._tensor(self.y_scaler_.transform(columns)).reshape(len(y), *self._y_shape)

    def _unit_of(self, columns: NDArray[Any]) -> tuple[NDArray[Any], Any, Any]:
        """Numbers, without labels, and their weights, whose mean and deviation are the standard unit of targets."""
        return columns, None, self._weights

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit anew to features ``(n, features)`` and targets ``(n,)`` or ``(n, outputs)``.

        Args:
            X: features.
            y: targets.
            sample_weight: how often each row counts, ``(n,)``; None for once.

        Raises:
            ValueError: for data that are not finite, of other shapes, or empty.
        """
        X, y = self._take_weights(sample_weight, X, y)
        return self._fit_rows(X, y)

    def _fit_rows(self, X: Any, y: Any) -> Self:
        self._splitter()
        self._fit(X, y, None, True)
        try:
            doubt = self._calibrate(X, y)
            if doubt is not None and self._retreat and "a line" in self._leads:
                other = clone(self).set_params(**{**self._held_out_settings(), **self._retreat})
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    other.fit(X, y, **self._rows(slice(None)))
                if other._leads["own score"] > self._leads["own score"]:
                    kept = self.get_params(deep=False)
                    self.__dict__.update({name: value for name, value in other.__dict__.items() if name not in kept})
                    doubt = self._doubt()
        except BaseException:
            self._ready = False
            raise
        self._say(doubt)
        return self

    @available_if(lambda self: self._goes_on)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: ArrayLike, y: ArrayLike, passes: int = 1, n_total: int | None = None) -> Self:
        """Go on with these data; scales of features and targets stay those of the first call.

        Nothing is calibrated: no data are held out.

        Args:
            X: features, shape ``(n, features)``.
            y: targets, shape ``(n,)`` or ``(n, outputs)``.
            passes: how often to go over these data.
            n_total: rows of the whole data set.  None counts the rows of all calls; a repeated chunk counts once.
        """
        self._take_weights(None, X)
        self._fit(X, y, passes, not self._ready, n_total)
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

    @property
    def _retreat(self) -> dict[str, Any]:
        """Parameters left to the data with which to try again where the mean or a line predicts rows better."""
        return {}

    def _splitter(self) -> Any:
        """What divides rows, if it is the user's own."""
        if self.calibrate is None or (isinstance(self.calibrate, str) and self.calibrate in _ENOUGH):
            return None
        try:
            return check_cv(self.calibrate)
        except ValueError as reason:
            raise InputError(
                f"{type(self).__name__}: expected calibrate of cv, split, a splitter, pairs of rows to fit and to "
                f"predict, a number of folds, or None, got {self.calibrate!r}"
            ) from reason

    def _folds(self, rows: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Rows to fit and rows to predict, of each fold that is needed."""
        splitter = self._splitter()
        if splitter is not None:  # of the rows that fit was given
            kept = np.ones(rows, bool) if self._kept is None else self._kept
            place = np.where(kept, np.cumsum(kept) - 1, -1)
            pairs = [(place[train], place[test]) for train, test in splitter.split(place)]
            if any(np.isin(test[test >= 0], train).any() for train, test in pairs):
                raise InputError(f"{type(self).__name__}: expected calibrate to predict rows that it does not fit")
            return [(train[train >= 0], test[test >= 0]) for train, test in pairs]
        every = list(KFold(_FOLDS, shuffle=True, random_state=self._seed()).split(np.empty(rows)))
        wanted = math.ceil(_ENOUGH[str(self.calibrate or "split")] / (rows / _FOLDS))
        return every[:wanted]

    def _held_out(self, X: NDArray[Any], y: NDArray[Any], folds: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Mean and σ of all rows, in the targets' unit, by a model that was fitted without the rows of each fold."""
        shown = getattr(self, "progress", False)
        with progress_bar("calibrating: fits without a fold", len(folds), shown) as advance:
            for number, (train, _) in enumerate(folds):
                other = clone(self).set_params(calibrate=None, **self._held_out_settings())
                if shown:
                    other.set_params(progress=False)
                with warnings.catch_warnings():  # this fit has warned itself
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    other.fit(X[train], y[train], **self._rows(train))
                advance(number + 1)
                yield other.predict(X, return_std=True)

    def _calibrate(self, X: ArrayLike, y: ArrayLike) -> str | None:
        """Learn the law of errors from models that were fitted without the rows that they predict.

        Returns what speaks against the fit: rows that the targets' mean or a line predicts as well.  Where nothing is
        calibrated, predictions of the rows of the fit must be better than theirs of rows that they have not seen.
        """
        features, targets = np.asarray(X), np.asarray(y)
        self._leads = {"own score": -math.inf}
        if len(targets) < _LEAST_ROWS:
            few = f"σ and intervals are not calibrated, since {len(targets)} rows are too few to hold some out"
            return None if self.calibrate is None else f"{few}; {_LEAST_ROWS} are enough"
        folds = self._folds(len(targets))
        held_out = np.concatenate([test for _, test in folds])
        standard = self._features(X)
        if self.calibrate is None:
            error, std, centre = self._own_errors(standard[torch.as_tensor(held_out)], targets[held_out])
        else:
            with torch.no_grad():
                own = np.sqrt(self._shaped(self._moments(standard).var)) * self._unit
            parts = []
            for (_, test), (mean, std) in zip(folds, self._held_out(features, targets, folds), strict=True):
                # Fits differ in how large their σ is as a whole; that of this one is what will be scaled.
                scaled = std[test] * np.exp(np.mean(np.log(own) - np.log(std), 0))
                off = targets[test].reshape(scaled.shape).astype(np.float64) - mean[test]
                parts.append(
                    [one.reshape(len(test), -1) for one in (off, scaled, (mean[test] - self._centre) / self._unit)]
                )
            error, std, centre = (np.concatenate(part) for part in zip(*parts, strict=True))
        places = standard.double().cpu().numpy()[held_out]
        weights = self._counts(len(targets))[held_out]
        known = self._rows(held_out).get("y_std")
        noise = None if known is None else known.reshape(len(known), -1)
        self._compare(standard, targets, folds, error, std if noise is None else np.hypot(std, noise), held_out)
        if self.calibrate is not None:
            columns = zip(error.T, std.T, centre.T, repeat(None) if noise is None else noise.T, strict=False)
            self._laws = [self._law(places, weights, *column) for column in columns]
            self.sigma_scale_ = np.array([law.root_mean_square for law in self._laws])
        return self._doubt()

    @torch.no_grad()
    def _own_errors(self, x: Tensor, y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Errors of rows of the fit, σ and standardised mean, each ``(n, outputs)``."""
        mean, var = (self._shaped(part).reshape(len(x), -1) for part in self._moments(x))
        off = y.reshape(len(y), -1).astype(np.float64) - self.y_scaler_.mean_ - mean * self.y_scaler_.scale_
        return off, np.sqrt(var) * self.y_scaler_.scale_, mean

    def _law(self, places: Any, weights: Any, error: Any, std: Any, centre: Any, noise: Any) -> ErrorLaw:
        """The law of one target's errors."""
        if noise is None:
            return fit_error_law(error / std, places, centre, weights)
        factor, counts = beside_known_noise(error, std, noise, weights)
        law = fit_error_law(error / np.hypot(factor * std, noise), places, centre, counts)
        return law._replace(size=factor * law.size, root_mean_square=factor * law.root_mean_square)

    def _compare(self, x: Tensor, y: Any, folds: Folds, off: Any, std: Any, held_out: Any) -> None:
        """By how many nats per row errors ``off`` and ``std`` are better than those of rivals."""
        counts = self._counts(len(y))
        weights = counts[held_out]
        targets = self._tensor(self.y_scaler_.transform(y.reshape(len(y), -1).astype(np.float64)))
        own = log_densities((off / self.y_scaler_.scale_, std / self.y_scaler_.scale_), weights)
        self._leads = {"own score": float(np.average(own, weights=weights))}
        for name, rival in rivals(x, targets, folds, counts).items():
            ahead, chance = lead(own, log_densities(rival, weights), weights)
            self._leads |= {name: ahead, f"chance beside {name}": chance}

    def _doubt(self) -> str | None:
        """Why held-out rows speak against the fit."""
        leads, rows = self._leads, "its own rows" if self.calibrate is None else "held-out rows"
        if leads["their mean"] <= leads["chance beside their mean"]:
            found = f"{rows} are predicted hardly better than by their mean, by {leads['their mean']:.2g} nats per row"
        elif leads["a line"] < -leads["chance beside a line"] and getattr(self, "line_", None) is None:
            found = f"a line predicts {rows} better, by {-leads['a line']:.2g} nats per row"
        else:
            return None
        return f"{found}. Either the features say little of the targets, or the fit has failed; {self._advice} may help"

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
        return self._each(lambda law: law.reach(coverage))

    def _shaped(self, values: Tensor) -> NDArray[Any]:
        return np.asarray(values.double().cpu().numpy().reshape(-1, *self._y_shape))

    @property
    def _unit(self) -> NDArray[Any]:
        return np.asarray(np.reshape(self.y_scaler_.scale_, self._y_shape))

    @property
    def _centre(self) -> NDArray[Any]:
        return np.asarray(np.reshape(self.y_scaler_.mean_, self._y_shape))
