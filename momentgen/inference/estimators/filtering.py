"""What the estimators of assumed density filtering share; ``estimators/adf.py`` has their names and arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import KFold
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.distributions import Normal

from momentgen.errors import InputError
from momentgen.inference.adf import DensityFilter
from momentgen.inference.adf.network import count_weights
from momentgen.inference.estimators.base import Bayesian, BayesianClassifier, ClassWeight, parameters
from momentgen.inference.estimators.held_out import Calibration, Parts
from momentgen.inference.estimators.passes import Chosen, choose
from momentgen.inference.estimators.regressor import BayesianRegressor
from momentgen.inference.estimators.rivals import Folds, lead, log_densities, rivals
from momentgen.inference.gamma import Gamma
from momentgen.inference.likelihood import Categorical, Gaussian, Likelihood, Probit
from momentgen.inference.linear import LinearPosterior
from momentgen.runtime import Moments

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
#: rows times samples times outputs that a class posterior computes at once
_VALUES = 2**22
#: passes that few rows want, how many rows are not few, and the part of all updates that may be skipped
_LEAST_PASSES, _MANY_ROWS, _SKIPPED = 5, 10_000, 1e-4
#: last rows by which divergence is judged
_JUDGED_ROWS = 100
#: rows by which the share of a row in the posterior is judged
_LEVERAGE_ROWS = 1000
#: widths that are compared, those and the passes where too few rows could compare them, and how many are too few
_WIDTHS, _PASSES, _FEW_ROWS = ((50, 50), ()), 40, 10
#: updates of a weight that a draw of the outputs costs, about
_DRAW = 100


@parameters
class _Filtering(Bayesian):
    """What the four share: the networks, their passes over the data, and what was skipped."""

    _rule: ClassVar[Literal["pbp", "ebp"]]
    hidden: int | Sequence[int] | None = None
    passes: int | None = None
    _: KW_ONLY
    members: int = 3
    prior: tuple[float, float] = (6.0, 6.0)
    learn_prior: bool = True
    spread: float | None = None
    dtype: str = "float64"
    progress: bool = False
    random_state: Any = None

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        if self.dtype not in _DTYPES:
            raise InputError(f"{type(self).__name__}: expected a dtype of {', '.join(_DTYPES)}, got {self.dtype!r}")
        return torch.as_tensor(np.ascontiguousarray(array), dtype=_DTYPES[self.dtype])

    def _begin(self, features: int, outputs: int, likelihood: Likelihood, seed: int, samples: int = 1) -> None:
        self._updates = 0.0
        self.filter_ = DensityFilter(
            (features, *self.hidden_, outputs),
            likelihood,
            rule=self._rule,
            samples=samples,
            replicates=self.members,
            prior=self.prior,
            learn_prior=self.learn_prior,
            spread=self.spread if self.hidden_ else 0.0,  # without symmetric units there is nothing to break
            seed=seed,
            dtype=_DTYPES[self.dtype],
        )

    def _row_parts(self, y: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Rows to fit and rows to predict, by which widths and passes are chosen."""
        raise NotImplementedError

    def _told(self, x: NDArray[Any], y: NDArray[Any], test: NDArray[Any]) -> Any:
        """Predictions for :meth:`_judge`, by a network that did not see the rows ``test``."""
        raise NotImplementedError

    def _judge(self, y: NDArray[Any], parts: Any, predictions: list[Any]) -> float:
        """Mean log density of the rows that were held out."""
        raise NotImplementedError

    def _floor(self, x: Tensor, y: Tensor, parts: Folds) -> float:
        """What :meth:`_judge` would say of a constant or a line."""
        raise NotImplementedError

    def _pick(self, found: list[Chosen], y: NDArray[Any], parts: Folds) -> Chosen:
        """The widths to take."""
        return max(found, key=lambda one: one.score)

    def _prepare(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        for count in (1 if self.passes is None else self.passes, self.members):
            if not isinstance(count, int | np.integer) or count < 1:
                name, given = type(self).__name__, f"{self.passes}, {self.members}"
                raise InputError(f"{name}: expected passes and members of at least 1, got {given}")
        self.hidden_ = _WIDTHS[0] if self._widths is None else self._widths
        self.passes_ = _PASSES if self.passes is None else self.passes
        self._chosen: Chosen | None = None
        known = (self.hidden is not None and self.passes is not None) or bool((y == y[:1]).all())
        if known or passes is not None or len(x) < _FEW_ROWS:
            return
        rows, targets, counts = x.cpu().numpy(), y.cpu().numpy(), self._counts(len(x))
        #: a second call would divide the rows anew where ``random_state`` is None or a ``RandomState``
        parts = self._divided = self._row_parts(targets)

        def begin(hidden: tuple[int, ...]) -> list[Any]:
            fixed = {"calibrate": None} if hasattr(self, "calibrate") else {}
            return [clone(self).set_params(hidden=hidden, passes=1, progress=False, **fixed) for _ in parts]

        def work(hidden: tuple[int, ...]) -> int:
            weights = count_weights((x.shape[1], *hidden, 1)) + _DRAW * getattr(self, "samples", 0)
            return round(self.members * (counts.sum() + sum(counts[train].sum() for train, _ in parts)) * weights)

        shortest = min(len(train) for train, _ in parts)
        # The labels here are places in classes_; a part may lack some.
        labels = np.arange(len(self.classes_)) if hasattr(self, "classes_") else None

        def predict(networks: list[Any], more: int) -> list[Any]:
            found = []
            for network, (train, test) in zip(networks, parts, strict=True):
                network._weights = None if self._weights is None else self._weights[train]
                network._fit(rows[train], targets[train], more, not network._ready, classes=labels)
                found.append(network._told(rows, targets, test))
            return found

        judge, floor = functools.partial(self._judge, targets, parts), self._floor(x, y, parts)
        found, failure = [], FloatingPointError()
        for hidden in _WIDTHS if self.hidden is None else (self.hidden_,):
            search = (begin(hidden), predict, judge, shortest, floor, self.progress)
            try:
                found.append(choose(hidden, self.passes, work(hidden), *search))
            except FloatingPointError as reason:
                failure = reason
        if not found:
            raise failure
        self._chosen = self._pick(found, targets, parts)
        self.hidden_, self.passes_ = self._chosen.hidden, self._chosen.passes

    def _train(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        passes = self.passes_ if passes is None else passes
        counts = None if self._weights is None else torch.as_tensor(self._weights)
        log_z = self.filter_.fit(x[None], y[None], passes, self.progress, counts)
        self._updates += passes * self._counts(len(x)).sum()
        self._log_z = log_z.mean(0)[-1].item()
        #: of what the data say, the part by which they say it once, per member
        self._power = torch.full_like(self.filter_.information, min(1.0, self._all / self._updates))
        self._check_fit(log_z[:, -1], y)

    @property
    def _all(self) -> float:
        """How many rows the whole data set counts for."""
        return self._size * (1.0 if self._weights is None else float(self._weights.mean()))

    def _diagnose(self) -> dict[str, Any]:
        return {
            "passes": self.filter_.passes,
            "log_z": self._log_z,
            "skipped": self.skipped_,
            "power": self._power.mean().item(),
        }

    def _complaint(self) -> str | None:
        left_out = sum(self.skipped_[name] for name in ("weights", "noise"))
        updates = self._updates * self.members * self.filter_.weights.mean.shape[1]
        if self.filter_.passes < _LEAST_PASSES and self._size < _MANY_ROWS:
            return (
                f"{self.filter_.passes} passes over {self._size} rows are few; passes of {_LEAST_PASSES} or more help"
            )
        if left_out > _SKIPPED * updates:
            return f"{left_out} updates of weights and noise were skipped; fewer hidden layers may help"
        return None

    def _check_fit(self, log_z: Tensor, y: Tensor) -> None:
        """Refuse a fit whose last pass has these mean log Z, ``(members,)``."""

    @property
    def skipped_(self) -> dict[str, int]:
        """Updates that were skipped, since they would have made a variance non-positive or a number infinite."""
        check_is_fitted(self)
        names = ("weights", "noise", "prior")
        if not hasattr(self, "filter_"):  # an exact posterior
            return dict.fromkeys(names, 0)
        return dict(zip(names, self.filter_.skipped.sum(0).tolist(), strict=True))


class _Left(NamedTuple):
    """What the last pass over a chunk left.

    Attributes:
        rows: of the chunk, as often as they count.
        log_z: per row, ``(members,)``.
        least: what ``log_z`` should exceed.
        noise: *variance* of the targets about the outputs, in standard units, ``(members, outputs)``.
    """

    rows: float
    log_z: Tensor
    least: float
    noise: Tensor


@parameters
class FilterRegressor(_Filtering, BayesianRegressor):
    """Regression by a density filter."""

    _: KW_ONLY
    noise: tuple[float, float] = (6.0, 6.0)
    calibrate: Calibration | None = "cv"

    def _row_parts(self, y: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        return self._folds(len(y))

    def _folds(self, rows: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        return super()._folds(rows) if self._chosen is None else self._divided

    def _told(self, x: NDArray[Any], y: NDArray[Any], test: NDArray[Any]) -> Any:
        return self.predict(x, return_std=True)

    def _judge(self, y: NDArray[Any], parts: Any, predictions: list[Any]) -> float:
        """Of a normal law whose σ was calibrated: as a whole, by all rows that were held out."""
        logs, weights = self._densities(y, parts, predictions)
        return float(np.average(logs, weights=weights))

    def _densities(self, y: NDArray[Any], parts: Folds, predictions: list[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Log density of each held-out row, per target, and weights."""
        pairs = list(zip(predictions, parts, strict=True))
        off = np.concatenate([(y[test] - mean[test]).reshape(len(test), -1) for (mean, _), (_, test) in pairs])
        std = np.concatenate([std[test].reshape(len(test), -1) for (_, std), (_, test) in pairs])
        weights = self._counts(len(y))[np.concatenate([test for _, test in parts])]
        return log_densities((off, std), weights) / off.shape[1], weights

    def _floor(self, x: Tensor, y: Tensor, parts: Folds) -> float:
        weights = self._counts(len(y))[np.concatenate([test for _, test in parts])]
        found = rivals(x, y.reshape(len(y), -1), parts, self._counts(len(y))).values()
        return max(float(np.average(log_densities(one, weights), weights=weights)) / one[0].shape[1] for one in found)

    def _pick(self, found: list[Chosen], y: NDArray[Any], parts: Folds) -> Chosen:
        """A line, unless a network is ahead of it by more than a standard error."""
        best, lines = super()._pick(found, y, parts), [one for one in found if not one.hidden]
        if not lines or not best.hidden:
            return best
        (own, weights), (other, _) = (self._densities(y, parts, one.held_out) for one in (best, lines[0]))
        ahead, two_errors = lead(own, other, weights)
        return best if 2 * ahead > two_errors else lines[0]

    def _held_out(self, X: NDArray[Any], y: NDArray[Any], folds: Any) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        if self._chosen is None:
            yield from super()._held_out(X, y, folds)
            return
        for mean, std in self._chosen.held_out:  # of the same folds, in standard units
            yield mean * self._unit + self._centre, std * self._unit

    def _start(self, x: Tensor, y: Tensor) -> None:
        outputs = y.shape[1] if y.dim() == 2 else 1
        self._left: dict[bytes, _Left] = {}
        #: with hidden layers None
        self.line_: LinearPosterior | None = None
        if not self.hidden_:
            shape, rate = self.prior
            fixed = None if self.learn_prior else rate / (shape - 1) / (x.shape[1] + 1)
            self.line_ = LinearPosterior(fixed)
            self._known: set[bytes] = set()
        self._begin(x.shape[1], outputs, Gaussian(precision=Gamma(*self.noise)), self._seed())
        if self.line_ is not None:
            del self.filter_  # nothing goes through it

    def _train(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        y = y.reshape(len(y), -1)
        if self.line_ is None:
            super()._train(x, y, passes)
            self._recount(x, y)
        elif (key := next(reversed(self._chunks))) not in self._known:  # a further pass is no more data
            self._known.add(key)
            self.line_.add(x, y, torch.as_tensor(self._counts(len(x))))

    def _recount(self, x: Tensor, y: Tensor) -> None:
        """The noise that the last pass left, and the power of the data at which the posterior counts them once.

        The filter's own noise has the errors of all passes, the first ones too, and its weights count a row per pass.
        A posterior of n rows has leverages (epistemic over noise variance) that add up to n at most.  Those of
        independent weights exceed this where weights outnumber rows; then the power that meets it is taken.
        """
        mean, var = self.filter_.output(x[None])
        found = self._average(((y.to(mean) - mean).square() + var).double().transpose(0, 1))
        key = next(reversed(self._chunks))
        self._left[key] = self._left[key]._replace(noise=found)
        every = self._left.values()
        sums: Any = sum(left.rows * left.noise for left in every)
        self._noise = sums / sum(left.rows for left in every)
        noise = self._noise.mean(1)
        self._power = (self._all / noise / self.filter_.information).clamp(max=1)
        some, shares = x[None, :_LEVERAGE_ROWS], torch.as_tensor(self._counts(len(x))[:_LEVERAGE_ROWS])
        shares = (shares / shares.sum() / y.shape[1]).to(mean.device)

        def leverage(power: Tensor) -> Tensor:
            return shares @ (self.filter_.output(some, power).var.double() / self._noise[:, None]).sum(2).mT

        if bool((leverage(self._power) <= 1).all()):
            return
        low, high = self._power.log(), torch.zeros_like(noise)
        for _ in range(8):
            middle = 0.5 * (low + high)
            over = leverage(middle.exp()) > 1
            low, high = torch.where(over, middle, low), torch.where(over, high, middle)
        self._power = torch.where(leverage(self._power) > 1, high.exp(), self._power)

    def _check_fit(self, log_z: Tensor, y: Tensor) -> None:
        # Per datum, less what a standard normal distribution has, which knows no features.
        least = self._average(Normal(0.0, 1.0).log_prob(y.double()).sum(1)).item() - y.shape[1]
        key = next(reversed(self._chunks))
        self._left.pop(key, None)
        rows = float(self._counts(len(y)).sum())
        self._left[key] = _Left(rows, log_z, least, log_z.new_zeros(len(log_z), y.shape[1], dtype=torch.float64))
        rows, log_z, least = 0.0, torch.zeros_like(log_z), 0.0
        for left in reversed(self._left.values()):  # a single row may be far off
            rows, log_z, least = rows + left.rows, log_z + left.rows * left.log_z, least + left.rows * left.least
            if rows >= _JUDGED_ROWS:
                break
        log_z, least = log_z / rows, least / rows
        if bool((log_z < least).any()):
            raise FloatingPointError(
                f"{type(self).__name__}: the filter has diverged. Expected a log Z per datum of at least {least:.4g} "
                f"after {self.filter_.passes} passes (a standard normal distribution, less one per target), got "
                f"{log_z.min().item():.4g}. Fewer than {len(self.hidden_)} hidden layers, or PBP in place of EBP, "
                "may help"
            )

    def _diagnose(self) -> dict[str, Any]:
        if self.line_ is None:
            return super()._diagnose()
        return {"passes": 1, "log_z": self.line_.log_z / self.line_.rows, "skipped": self.skipped_, "power": 1.0}

    def _complaint(self) -> str | None:
        return super()._complaint() if self.line_ is None else None

    def _parts(self, x: Tensor) -> Parts:
        if self.line_ is not None:
            mean, var = self.line_(x)
            return Parts(mean, var, self.line_.noise.expand_as(mean))
        mean, var = (part.double().cpu() for part in self.filter_.output(x[None], self._power))
        # A mixture of the members, by the law of total variance.
        noise = self._noise.mean(0).cpu().expand_as(mean[0])
        return Parts(mean.mean(0), var.mean(0) + mean.var(0, correction=0), noise)


@parameters
class FilterClassifier(_Filtering, BayesianClassifier):
    """Classification by a density filter."""

    _: KW_ONLY
    likelihood: Literal["auto", "probit", "sampled", "bound"] = "auto"
    samples: int = 100
    learn_prior: bool = False
    spread: float | None = 1.0
    class_weight: ClassWeight = None

    def _row_parts(self, y: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        return list(KFold(5, shuffle=True, random_state=self._seed()).split(y))

    def _told(self, x: NDArray[Any], y: NDArray[Any], test: NDArray[Any]) -> Any:
        return self.log_prob(x[test], y[test])

    def _judge(self, y: NDArray[Any], parts: Any, predictions: list[Any]) -> float:
        held_out = np.concatenate([test for _, test in parts])
        return float(np.average(np.concatenate(predictions), weights=self._counts(len(y))[held_out]))

    def _floor(self, x: Tensor, y: Tensor, parts: Folds) -> float:
        return float(np.average(self._log_shares(y.cpu().numpy()), weights=self._counts(len(y))))

    def _learns_nothing(self, x: Tensor, y: Tensor) -> str | None:
        if self._chosen is None:
            return super()._learns_nothing(x, y)
        held_out = np.concatenate([test for _, test in self._divided])
        return self._beside_shares(np.concatenate(self._chosen.held_out), y.cpu().numpy(), held_out)

    def _start(self, x: Tensor, y: Tensor) -> None:
        classes, name = len(self.classes_), self.likelihood
        if name not in ("auto", "probit", "sampled", "bound") or (name == "probit" and classes > 2):
            raise InputError(
                f"{type(self).__name__}: expected a likelihood of auto, probit (two classes only), sampled or bound, "
                f"got {name!r} for {classes} classes"
            )
        if self.samples < 1:
            raise InputError(f"{type(self).__name__}: expected at least one sample, got {self.samples}")
        seed = self._seed()
        if name == "probit" or (name == "auto" and classes == 2):
            self._begin(x.shape[1], 1, Probit(), seed)
            return
        self._begin(x.shape[1], classes, Categorical("bound" if name == "bound" else "quadrature"), seed, self.samples)
        # The same draws for every row: a row's posterior does not depend on the rows beside it.
        generator = torch.Generator().manual_seed(seed)
        self._draws = torch.randn(self.samples, classes, generator=generator, dtype=torch.float64)

    def _log_posterior(self, x: Tensor) -> Tensor:
        mean, var = (part.double().cpu() for part in self.filter_.output(x[None], self._power))
        members = math.log(len(mean))
        if isinstance(self.filter_.likelihood, Probit):
            return self.filter_.likelihood.log_predictive(Moments(mean, var))[:, :, 0].logsumexp(0) - members
        rows = max(1, _VALUES // (mean.shape[0] * self._draws.numel()))
        parts = []
        for m, v in zip(mean.split(rows, 1), var.split(rows, 1), strict=True):
            drawn = m.unsqueeze(2) + v.sqrt().unsqueeze(2) * self._draws
            parts.append(drawn.log_softmax(3).logsumexp((0, 2)) - members - math.log(len(self._draws)))
        return torch.cat(parts)
