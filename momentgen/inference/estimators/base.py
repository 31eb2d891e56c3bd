"""What the estimators share: validated data in standard units, seeds, judgement of a fit, class probabilities.

An estimator of one method derives from :class:`BayesianClassifier` or from ``BayesianRegressor`` of
:mod:`~momentgen.inference.estimators.regressor`.  It defines how to fit tensors (``_start``, ``_train``) and what to
predict for tensors (``_log_posterior``, ``_parts``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self, TypeVar, dataclass_transform

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.estimators.rivals import lead
from momentgen.inference.estimators.uncertain_features import normal_points
from momentgen.inference.training import warn_of_fit

_Class = TypeVar("_Class")
#: how often rows of each class count: label -> weight, or so that all classes count alike
ClassWeight = dict[Any, float] | Literal["balanced"] | None

#: standard deviations within which no half of a column's values may lie, unless most of them are equal
_SQUEEZED: Final = 0.05
#: rows at points of uncertain features that are predicted at once
_AT_ONCE = 2**14
#: rows that weights must add up to
_FEWEST = 2
#: rows of the fit by which a classifier is compared with a constant
_COMPARED = 1000


@dataclass_transform()
def parameters(cls: type[_Class]) -> type[_Class]:
    """Make a class's annotated names the parameters of its estimator: ``__init__`` takes and keeps them, in order."""
    return dataclass(eq=False, repr=False)(cls)


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
    #: how often each row of this fit counts, ``(n,)``; None for once
    _weights: NDArray[np.float64] | None = None
    #: which of the rows that ``fit`` was given these are; None for all
    _kept: NDArray[Any] | None = None
    #: of ``validate_data`` for the targets
    _checks: ClassVar[dict[str, bool]] = {}
    #: whether there is a model: none before the first fit, and none after one that was broken off
    _ready: bool = False

    def __sklearn_is_fitted__(self) -> bool:
        return self._ready

    def _prepare(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        """Choose what is left to the data; called once before :meth:`_start`, with the passes of :meth:`_train`."""

    def _start(self, x: Tensor, y: Tensor) -> None:
        """Make a model for data of this shape; called once before the first :meth:`_train`."""
        raise NotImplementedError

    def _train(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        """Fit the model to data, going on from where it is; ``passes`` over them, None for the estimator's own."""
        raise NotImplementedError

    def _diagnose(self) -> dict[str, Any]:
        """What tells whether the fit can be relied on."""
        raise NotImplementedError

    def _complaint(self) -> str | None:
        """Why the fit cannot be relied on, with what may help; None if nothing speaks against it."""
        return None

    def _learns_nothing(self, x: Tensor, y: Tensor) -> str | None:
        """That a constant predicts the data as well; None where it does not, or rows that were held out will tell."""
        return None

    @property
    def diagnostics_(self) -> dict[str, Any]:
        """Numbers by which to judge the fit; ``fit`` warns by ``ConvergenceWarning`` where they are bad."""
        check_is_fitted(self)
        return self._diagnose()

    @property
    def _widths(self) -> tuple[int, ...] | None:
        """Widths of the hidden layers; None where the data choose them."""
        hidden = getattr(self, "hidden", None)
        if hidden is None:
            return None
        widths = tuple(hidden) if np.iterable(hidden) else (hidden,)
        if not all(isinstance(width, int | np.integer) and width >= 1 for width in widths):
            raise InputError(
                f"{type(self).__name__}: expected hidden to be the widths of the hidden layers, such as (50,), or the "
                f"width of one, got {hidden!r}"
            )
        return tuple(map(int, widths))

    def _take_weights(self, sample_weight: ArrayLike | None, X: Any, *others: Any) -> list[Any]:
        """Keep the weights, and return X and the others without the rows of weight 0.

        Raises:
            ValueError: for weights that are negative, all 0, or not one for each row.
        """
        self._weights = self._kept = None
        if sample_weight is None:
            return [X, *others]
        found = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        check_consistent_length(X, *others)
        kept = found > 0
        self._weights = None if (found[kept] == 1).all() else found[kept]
        if found.sum() < min(_FEWEST, len(found)):
            raise InputError(
                f"{type(self).__name__}: the sample_weight of {len(found)} rows adds up to {found.sum():.3g} rows. A "
                "weight is how often a row counts; divide the weights by their mean to count as many rows as there are"
            )
        if kept.all():
            return [X, *others]
        self._kept = kept
        return [part if part is None else _safe_indexing(part, np.flatnonzero(kept)) for part in (X, *others)]

    def _counts(self, rows: int) -> NDArray[np.float64]:
        """How often each row of this fit counts."""
        return np.ones(rows) if self._weights is None else self._weights

    def _average(self, values: Tensor) -> Tensor:
        """Mean over the rows of this fit, as often as they count, of values ``(n, ...)``."""
        if self._weights is None:
            return values.mean(0)
        weights = torch.as_tensor(self._weights / self._weights.sum()).to(values)
        return torch.tensordot(weights, values, 1)

    def _rows(self, rows: Any) -> dict[str, Any]:
        """What ``fit`` was told of these rows besides features and targets."""
        return {} if self._weights is None else {"sample_weight": self._weights[rows]}

    def _seed(self) -> int:
        """A seed from ``random_state``, a number, a ``RandomState`` or None."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(array), dtype=self._dtype)

    def _features(self, X: ArrayLike) -> Tensor:
        """Checked features in standard units, shape ``(n, n_features_in_)``."""
        check_is_fitted(self)
        found = self._tensor(self.x_scaler_.transform(validate_data(self, X, reset=False, dtype=np.float64)))
        if not bool((found.abs() < torch.finfo(found.dtype).max ** 0.25).all()):  # squares of products are finite
            raise InputError(f"{type(self).__name__}: a feature in standard units is too large for {found.dtype}")
        return found

    def _scattered(
        self, x: Tensor, x_std: ArrayLike | None, x_cov: ArrayLike | None
    ) -> tuple[Iterator[Tensor], NDArray[Any]]:
        """Points of uncertain features about x, in standard units, point by point, and the points' weights.

        The first are parts of ``(points * n, features)``.
        """
        n, d = x.shape
        given = np.asarray(x_std if x_cov is None else x_cov, dtype=np.float64)
        shapes = [(), (d,), (n, d)] if x_cov is None else [(d, d), (n, d, d)]
        if (x_std is not None and x_cov is not None) or given.shape not in shapes or not np.isfinite(given).all():
            raise InputError(
                f"{type(self).__name__}: expected a finite x_std or x_cov, and not both. x_std is a number or of shape "
                f"({d},) or ({n}, {d}), x_cov of ({d}, {d}) or ({n}, {d}, {d}); got {np.shape(np.asarray(x_std))} and "
                f"{np.shape(np.asarray(x_cov))}"
            )
        if x_cov is None:
            least, root = given.min(initial=0.0), np.broadcast_to(given, (n, d))[:, None] * np.eye(d)
        else:
            values, axes = np.linalg.eigh(0.5 * (given + np.swapaxes(given, -1, -2)))
            symmetric = np.allclose(given, np.swapaxes(given, -1, -2), rtol=1e-6, atol=1e-12 * np.abs(given).max())
            size = np.abs(values).max(-1, keepdims=True)
            least = min(0.0, float((values + 1e-9 * size).min())) if symmetric else -math.inf
            root = axes * np.sqrt(np.where(values > 1e-9 * size, values, 0))[..., None, :]
        if least < 0:
            raise InputError(
                f"{type(self).__name__}: expected an x_std that is not negative, or an x_cov that is symmetric and "
                "positive semidefinite"
            )
        root = root[..., (root != 0).reshape(-1, d).any(0)] / self.x_scaler_.scale_[:, None]
        points, weights = normal_points(root.shape[-1])

        def parts() -> Iterator[Tensor]:
            for some in np.array_split(points, max(1, min(len(points), len(points) * n // _AT_ONCE))):
                off = np.einsum("...ij,sj->s...i", root, some)
                yield (x + self._tensor(off if off.ndim == 3 else off[:, None])).reshape(-1, d)

        return parts(), weights

    def _standard_targets(self, y: NDArray[Any], reset: bool, classes: ArrayLike | None = None) -> Tensor:
        """Targets in standard units, or the numbers of labels among ``classes``, by default those of ``y``."""
        raise NotImplementedError

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        passes: int | None,
        reset: bool,
        n_total: int | None = None,
        classes: ArrayLike | None = None,
    ) -> Self:
        if reset:
            self._ready = False
        _ = self._widths
        if passes is not None and passes < 1:
            raise InputError(f"{type(self).__name__}: expected passes of at least 1, got {passes}")
        X, y = validate_data(self, X, y, reset=reset, dtype=np.float64, **self._checks)
        if reset:
            self.x_scaler_ = StandardScaler().fit(X, sample_weight=self._weights)
            self._chunks: dict[bytes, int] = {}
        targets = self._standard_targets(np.asarray(y), reset, classes)
        features = self._tensor(self.x_scaler_.transform(X))
        key = hashlib.blake2b(features.cpu().numpy().tobytes() + targets.cpu().numpy().tobytes()).digest()
        #: rows of each chunk, the last one last; a further pass over one is not more data
        self._chunks.pop(key, None)
        self._chunks[key] = len(features)
        seen = sum(self._chunks.values())
        if n_total is not None and n_total < len(features):
            raise InputError(f"{type(self).__name__}: expected n_total of at least {len(features)} rows, got {n_total}")
        #: rows of the whole data set
        self._size = seen if n_total is None else n_total
        if reset:
            self._prepare(features, targets, passes)
            self._start(features, targets)
        self._ready = True  # a callback may predict
        try:
            self._train(features, targets, passes)
        except BaseException:
            self._ready = not reset
            raise
        if passes is None:
            self._say(
                self._few_set_the_unit(features, targets), self._complaint(), self._learns_nothing(features, targets)
            )
        return self

    def _say(self, *reasons: str | None) -> None:
        """Warn of what speaks against a fit."""
        for reason in filter(None, reasons):
            warn_of_fit(f"{type(self).__name__}: {reason}")

    def _few_set_the_unit(self, features: Tensor, targets: Tensor) -> str | None:
        """Which columns, in standard units, have nearly all of their variance from a few rows; None for none."""
        counted = slice(None) if self._weights is None else np.asarray(self._weights) > 0

        def squeezed(columns: Tensor) -> list[int]:
            first, third = np.quantile(columns.cpu().numpy().reshape(len(columns), -1)[counted], (0.25, 0.75), axis=0)
            found: list[int] = np.flatnonzero((third > first) & (third - first < _SQUEEZED)).tolist()
            return found

        names = getattr(self, "feature_names_in_", None)
        found = [f"feature {place if names is None else names[place]}" for place in squeezed(features)]
        if targets.is_floating_point() and squeezed(targets):
            found = ["the targets", *found]
        if not found:
            return None
        return (
            f"half of the values of {', '.join(found[:5])} lie within {_SQUEEZED} standard deviations; a few outliers "
            "set the unit, in which the others are hardly told apart. Remove them, or take logarithms"
        )


class BayesianClassifier(ClassifierMixin, Bayesian):  # type: ignore[misc]
    """Classification with a class posterior.

    Attributes:
        classes_: the labels, sorted.
    """

    class_weight: ClassWeight

    def _log_posterior(self, x: Tensor) -> Tensor:
        """Log probabilities of the classes, finite for finite outputs: shape ``(n, classes)``."""
        raise NotImplementedError

    @torch.no_grad()
    def _log_probabilities(self, X: ArrayLike) -> NDArray[Any]:
        found: NDArray[Any] = self._log_posterior(self._features(X)).double().cpu().numpy()
        return found

    def _standard_targets(self, y: NDArray[Any], reset: bool, classes: ArrayLike | None = None) -> Tensor:
        if reset:
            check_classification_targets(y)
            self.classes_ = np.unique(y if classes is None else np.asarray(classes))
        if len(self.classes_) < 2:
            raise ValueError(f"{type(self).__name__}: expected at least 2 classes, got one class")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"{type(self).__name__}: expected labels of {self.classes_}, got {unknown}")
        return torch.as_tensor(np.searchsorted(self.classes_, y))

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit anew to features ``(n, features)`` and labels ``(n,)``; ``sample_weight`` is how often each row counts.

        Raises:
            ValueError: for data that are not finite, of other shapes, empty, or of one class.
        """
        if self.class_weight is not None:
            own = compute_sample_weight(self.class_weight, y)
            sample_weight = own if sample_weight is None else own * _check_sample_weight(sample_weight, X)
        labels = None if sample_weight is None else np.unique(column_or_1d(y))  # those of rows of weight 0 too
        X, y = self._take_weights(sample_weight, X, y)
        return self._fit(X, y, None, True, classes=labels)

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        passes: int = 1,
        n_total: int | None = None,
    ) -> Self:
        """Go on with these data; ``classes`` names all labels where the first data may lack some.

        Args:
            X: features, shape ``(n, features)``.
            y: labels, shape ``(n,)``.
            classes: all labels, for the first call.
            passes: how often to go over these data.
            n_total: rows of the whole data set.  None counts the rows of all calls; a repeated chunk counts once.
        """
        self._take_weights(None, X)
        return self._fit(X, y, passes, not self._ready, n_total, classes)

    def predict_proba(
        self, X: ArrayLike, x_std: ArrayLike | None = None, x_cov: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Posterior probabilities of ``classes_``, shape ``(n, classes)``.

        Args:
            X: features, shape ``(n, features)``.
            x_std: standard deviation of normal errors of X, as for a regressor's ``predict``.
            x_cov: their *covariance*, in place of ``x_std``.
        """
        if x_std is None and x_cov is None:
            return np.asarray(np.exp(self._log_probabilities(X)))
        x = self._features(X)
        parts, weights = self._scattered(x, x_std, x_cov)
        with torch.no_grad():
            found = torch.cat([self._log_posterior(rows).double() for rows in parts])
        return np.tensordot(weights, found.exp().reshape(-1, len(x), found.shape[1]).cpu().numpy(), 1)

    def predict(self, X: ArrayLike, x_std: ArrayLike | None = None, x_cov: ArrayLike | None = None) -> NDArray[Any]:
        """The most probable label of each row; arguments are those of :meth:`predict_proba`."""
        places = self.predict_proba(X, x_std, x_cov).argmax(1)
        found: NDArray[Any] = self.classes_[places]
        return found

    @torch.no_grad()
    def _learns_nothing(self, x: Tensor, y: Tensor) -> str | None:
        labels, rows = y.cpu().numpy(), np.arange(min(len(y), _COMPARED))
        logs = self._log_posterior(x[:_COMPARED]).double().cpu().numpy()[rows, labels[rows]]
        return self._beside_shares(logs, labels, rows)

    def _log_shares(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Log of the share that the class of each row of this fit has, as often as rows count, ``(n,)``."""
        shares = np.bincount(labels, self._weights)
        return np.asarray(np.log(shares[labels] / shares.sum()))

    def _beside_shares(self, logs: NDArray[Any], labels: NDArray[Any], rows: NDArray[Any]) -> str | None:
        """That log probabilities of the labels of these rows exceed the classes' shares by no more than chance."""
        weights = None if self._weights is None else self._weights[rows]
        ahead, chance = lead(logs, self._log_shares(labels)[rows], weights)
        if ahead > chance:
            return None
        return (
            f"probabilities are hardly better than the shares of the classes, by {ahead:.2g} nats per row. Either the "
            "features say little of the classes, or the fit has failed; fewer features or more rows may help"
        )

    def log_prob(self, X: ArrayLike, y: ArrayLike) -> NDArray[Any]:
        """Log probability of each label, shape ``(n,)``."""
        logs = self._log_probabilities(X)
        places = self._standard_targets(column_or_1d(y), False).numpy()
        if len(places) != len(logs):
            raise InputError(f"{type(self).__name__}: expected {len(logs)} labels, got {len(places)}")
        found: NDArray[Any] = logs[np.arange(len(places)), places]
        return found
