"""What variational estimators share: a network with random weights, trained by its bound, for targets or labels.

``vbp`` and ``correlated`` say which posterior the weights have, and how they are trained and predict.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.bayesian_network import BayesianNetwork, randomise
from momentgen.inference.counts import ByQuadrature, Ordinal
from momentgen.inference.estimators.base import Bayesian, parameters
from momentgen.inference.estimators.rivals import lead
from momentgen.inference.heteroscedastic import Censored, HeteroscedasticGaussian, KnownNoise, Told
from momentgen.inference.likelihood import Bernoulli, Categorical, Gaussian, Likelihood, Probit
from momentgen.inference.posterior import Posterior
from momentgen.inference.prior import Normal
from momentgen.inference.training import Trainer, last_rise, seeded
from momentgen.laws.methods import Method
from momentgen.runtime import Moments

#: rows of which predictions are made at once
_ROWS = 1024
#: *variance* of noise that training begins with at least, of targets in standard units
_LEAST_NOISE = 1e-4
#: draws of each target by which quantiles of a law that is not normal are found
_DRAWN = 2000
#: last part of a given number of epochs, over which the learning rate falls
_FALLING = 0.5
#: epochs that are no training whatever the bound does
_FEW_EPOCHS = 8
#: a network, or what makes one for a number of features
Module = torch.nn.Module | Callable[[int], torch.nn.Module]
#: called with the trainer after each epoch; True ends training
Callback = Callable[[Trainer], bool | None]


@parameters
class Variational(Bayesian):
    """A ReLU network with posteriors; subclasses say which, and how they are trained and predict."""

    hidden: int | tuple[int, ...] = (50,)
    epochs: int | None = None
    batch_size: int = 512
    lr: float = 0.01
    prior_std: float = 1.0
    kl_weight: float | None = None
    max_steps: int = 10_000
    module: Module | None = None
    likelihood: Likelihood | None = None
    validation_fraction: float | None = None
    callback: Callback | None = None
    device: str = "cpu"
    progress: bool = False
    random_state: Any = None

    def _family(self) -> Posterior:
        raise NotImplementedError

    def _how(self) -> Method:
        """The method of training."""
        raise NotImplementedError

    def _outputs(self, x: Tensor) -> Any:
        """What predictions are made of, for up to 1,024 rows."""
        raise NotImplementedError

    def _likelihood(self, x: Tensor, y: Tensor) -> tuple[Likelihood, int]:
        """The likelihood of targets, and how many outputs it takes."""
        raise NotImplementedError

    def _observed(self, y: Tensor) -> Tensor:
        """Targets as the likelihood takes them."""
        raise NotImplementedError

    def _evidence(self, output: Any, y: Tensor) -> Tensor:
        """Log predictive density of each observation, ``(n,)``, for what :meth:`_outputs` returns."""
        raise NotImplementedError

    @torch.no_grad()
    def _score(self, x: Tensor, y: Tensor) -> Tensor:
        """Log predictive density of each observation, ``(n,)``."""
        return self._evidence(self._outputs(x), y)

    def _drawn(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Drawn outputs, ``(count, n, outputs)``."""
        raise NotImplementedError

    def _held_out_settings(self) -> dict[str, Any]:
        # A callback may have a state, which would end the second training at once.
        return {} if self.callback is None else {"callback": functools.partial(_ended, self.n_iter_)}

    def _network(self, features: int, outputs: int) -> torch.nn.Module:
        """The plain network for so many features."""
        if self.module is None:
            return relu_network((features, *(self._widths or ()), outputs))
        made = self.module if isinstance(self.module, torch.nn.Module) else self.module(features)
        if not isinstance(made, torch.nn.Module):
            raise InputError(
                f"{type(self).__name__}: expected module to be a torch module, or a function of the number of features "
                f"that makes one, got {type(made).__name__}"
            )
        return copy.deepcopy(made)  # a function may return one network again and again

    def _check_outputs(self, network: torch.nn.Module, x: Tensor, outputs: int) -> None:
        with torch.no_grad():
            found = network.eval()(x[:2])
        if not isinstance(found, Tensor) or found.shape != (len(x[:2]), outputs):
            raise InputError(
                f"{type(self).__name__}: expected a module that makes {outputs} outputs of each row, got "
                f"{tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__} for {len(x[:2])} rows"
            )

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return super()._tensor(array).to(self.device)

    def _start(self, x: Tensor, y: Tensor) -> None:
        seed = self._seed()
        likelihood, outputs = self._likelihood(x, y)
        with seeded(seed, x.device):
            network = self._network(x.shape[1], outputs).to(x)
            self._check_outputs(network, x, outputs)
        _begin_noise(network, likelihood, x, y)
        self.network_: BayesianNetwork = randomise(network, self._family(), prior=Normal(std=self.prior_std))
        self.likelihood_: Any = likelihood.to(x.device)
        self.trainer_ = Trainer(
            self.network_,
            likelihood,
            propagation=self._how(),
            lr=self.lr,
            batch_size=self.batch_size,
            kl_weight=1.0 if self.kl_weight is None else self.kl_weight,
            seed=seed,
            callback=self.callback,
        )

    def _train(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        epochs, observed = self.epochs if passes is None else passes, self._observed(y.to(x.device))
        weights = None if self._weights is None else self._tensor(self._weights)
        if epochs is not None and epochs < 1:
            raise InputError(f"{type(self).__name__}: expected epochs of at least 1, or None, got {epochs}")
        options: dict[str, Any] = {
            "size": self._size,
            "progress": self.progress,
            "weights": weights,
            "warn": False,  # an estimator says it in its own words
        }
        if self.validation_fraction is not None and passes is None:
            if epochs is not None or not 0 < self.validation_fraction < 1:
                raise InputError(
                    f"{type(self).__name__}: expected epochs=None and a validation_fraction between 0 and 1 for early "
                    f"stopping, got {epochs} and {self.validation_fraction}"
                )
            order = np.random.default_rng(self._seed()).permutation(len(x))
            held = max(1, round(self.validation_fraction * len(x)))
            if held >= len(x):
                raise InputError(f"{type(self).__name__}: early stopping needs rows to hold out, got {len(x)}")
            test, rows = torch.as_tensor(order[:held]), torch.as_tensor(order[held:])
            of_rows = None if self._weights is None else self._weights[order[:held]]
            held_out = x[test], observed[test]
            options["score"] = lambda: float(np.average(self._score(*held_out).cpu(), weights=of_rows))
            options["weights"] = None if weights is None else weights[rows]
            options["size"] = len(rows)  # the rows held out are no data of the posterior
            x, observed = x[rows], observed[rows]
        if epochs is None:
            self._settled: bool | None = self.trainer_.settle(x, observed, steps=self.max_steps, **options)
        else:
            # A further pass goes on at the full rate: more may follow.
            self.trainer_.run(x, observed, epochs, falling=_FALLING if passes is None else 0.0, **options)
            self._settled = None
        self.n_iter_ = len(self.trainer_.history)

    def _diagnose(self) -> dict[str, Any]:
        history = self.trainer_.history
        rise, is_clear = last_rise(self.trainer_)
        # Of a bound that rises ever slower: what settles says so itself.
        settled = self._settled if self._settled is not None else len(history) >= _FEW_EPOCHS and not is_clear
        return {
            "steps": self.trainer_.steps,
            "epochs": len(history),
            "bound": history[-1],
            "rise": rise,
            "converged": settled,
        }

    def _complaint(self) -> str | None:
        found = self._diagnose()
        if found["converged"]:
            return None
        more = (
            f"max_steps above {self.max_steps}" if self.epochs is None else f"more than {self.epochs} epochs, or None"
        )
        if self.trainer_.ended:
            more = "a callback that ends training later"
        return (
            f"the bound still rises, by {found['rise']:.2g} per example in the last quarter of {found['epochs']} "
            f"epochs; {more}, may help"
        )

    def _predicted(self, x: Tensor) -> list[Any]:
        return [self._outputs(rows) for rows in x.split(_ROWS)]


def _ended(epochs: int, trainer: Trainer) -> bool:
    return len(trainer.history) >= epochs


@torch.no_grad()
def _begin_noise(network: torch.nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor) -> None:
    """Let a network whose last layer is linear begin with the noise that data show."""
    last = [part for part in network.modules() if not list(part.children())][-1]
    if isinstance(likelihood, HeteroscedasticGaussian) and isinstance(last, torch.nn.Linear) and last.bias is not None:
        rough = rough_noise(x, y.to(x.device).reshape(len(y), -1))
        if len(last.bias) == 2 * len(rough):  # else it is not both heads
            last.bias[len(rough) :] = rough.log()


def relu_network(widths: tuple[int, ...]) -> torch.nn.Sequential:
    """A multilayer perceptron with ReLU between its linear maps."""
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def rough_noise(x: Tensor, y: Tensor, rows: int = 1000) -> Tensor:
    """*Variance* of the noise of each target ``(n, outputs)``, from differences to the nearest of up to 1,000 rows.

    Half of a squared difference has the noise's variance, and what the function changes in between.
    """
    x, y = x[:rows], y[:rows]
    if len(x) < 2:
        return torch.full_like(y[0], 0.1)
    far = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    copies = (far == 0) & (y[:, None] == y).all(2)  # itself, and copies of a row, which say nothing of its noise
    nearest = far.masked_fill_(copies, math.inf).argmin(1)
    return (0.5 * (y - y[nearest]).square().mean(0)).clamp(_LEAST_NOISE, 1.0)


class Regression(Variational):
    """Targets with normal noise: of one variance per column, that is learnt, or of one that depends on the input."""

    noise: Literal["constant", "input"]
    _y_shape: tuple[int, ...]
    y_scaler_: Any
    #: *standard deviation* of the noise that each target of these data is known to have, in y's unit, ``(n, outputs)``
    _y_std: NDArray[np.float64] | None = None
    #: 0 for each target that was seen, 1 or -1 for one that is larger or smaller, ``(n, outputs)``
    _censored: NDArray[np.float64] | None = None

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        y_std: ArrayLike | None = None,
        censored: ArrayLike | None = None,
    ) -> Self:
        """Fit anew to features ``(n, features)`` and targets ``(n,)`` or ``(n, outputs)``.

        Args:
            X: features.
            y: targets.
            sample_weight: how often each row counts, ``(n,)``; None for once.
            y_std: standard deviation of the measurement of each target, of y's shape.  The noise that is learnt is what
                there is besides; predictions have this noise only.
            censored: of y's shape, 0 for targets that were seen.  1 says that the target is larger than y, such as a
                time of survival that was not over, and -1 that it is smaller.  Predictions are of the target itself.

        Raises:
            ValueError: for data that are not finite, of other shapes, or empty.
        """
        X, y, y_std, censored = self._take_weights(sample_weight, X, y, y_std, censored)
        self._take_noise(y, y_std, censored)
        try:
            return self._fit_rows(X, y)
        finally:  # of these rows alone: those of partial_fit are seen, without noise of their own
            self._y_std = self._censored = None

    def _take_noise(self, y: Any, y_std: Any, censored: Any) -> None:
        for name, given, least in (("y_std", y_std, 0), ("censored", censored, -1)):
            if given is None:
                continue
            found, shape = np.asarray(given, dtype=np.float64), np.shape(y)
            if found.shape != shape or not (np.isfinite(found) & (found >= least)).all():
                raise InputError(
                    f"{type(self).__name__}: expected {name} of y's shape {shape}, finite and at least {least}, got "
                    f"shape {found.shape}, from {found.min(initial=math.inf):.4g} to {found.max(initial=-math.inf):.4g}"
                )
            if self.noise != "constant" or self.likelihood is not None or not (y_std is None or censored is None):
                raise InputError(
                    f"{type(self).__name__}: {name} takes noise='constant', no likelihood of your own, and not both"
                )
            setattr(self, f"_{name}", found.reshape(len(found), -1))

    def _rows(self, rows: Any) -> dict[str, Any]:
        given = {"y_std": self._y_std, "censored": self._censored}
        known = {name: part[rows].reshape(-1, *self._y_shape) for name, part in given.items() if part is not None}
        return super()._rows(rows) | known

    def _likelihood(self, x: Tensor, y: Tensor) -> tuple[Likelihood, int]:
        y = y.to(x.device).reshape(len(y), -1)
        outputs = y.shape[1]
        if self.noise not in ("constant", "input"):
            raise InputError(f"{type(self).__name__}: expected noise of constant or input, got {self.noise!r}")
        if self.likelihood is not None:
            made = copy.deepcopy(self.likelihood).to(y)
            if isinstance(made, Bernoulli | Categorical | Ordinal | Probit):
                raise InputError(f"{type(self).__name__}: {type(made).__name__} is of labels, for a classifier")
            if isinstance(made, Told):
                raise InputError(
                    f"{type(self).__name__}: expected fit(..., censored= or y_std=), not {type(made).__name__}"
                )
            made.begin(y)
            heads = 2 if isinstance(made, HeteroscedasticGaussian) else 1
            if heads == 1 and self.noise == "input":
                raise InputError(
                    f"{type(self).__name__}: expected noise='input' or a likelihood of your own, got both, and the "
                    f"noise of {type(made).__name__} does not depend on the input"
                )
            return made, outputs * heads
        if self.noise == "input":
            return HeteroscedasticGaussian(), 2 * outputs
        if self._y_std is None:
            kind = Gaussian if self._censored is None else Censored
            return kind(var=rough_noise(x, y), learn=True).to(y.dtype), outputs
        known = torch.as_tensor((self._y_std / self.y_scaler_.scale_) ** 2).to(y).mean(0)
        return KnownNoise(var=(rough_noise(x, y) - known).clamp_min(_LEAST_NOISE), learn=True).to(y.dtype), outputs

    def _observed(self, y: Tensor) -> Tensor:
        y = y.reshape(len(y), -1)
        if not isinstance(self.likelihood_, Told):
            return y
        told = self._censored if self._y_std is None else (self._y_std / self.y_scaler_.scale_) ** 2
        return torch.cat([y, torch.zeros_like(y) if told is None else self._tensor(told).to(y)], 1)

    def _unit_of(self, columns: NDArray[Any]) -> tuple[NDArray[Any], Any, Any]:
        # Targets with a unit of their own stay what they are: -1 and 1 have mean 0 and deviation 1.
        own = np.array([[-1.0], [1.0]]).repeat(columns.shape[1], 1)
        return (own, None, None) if self._has_law else super()._unit_of(columns)

    @property
    def _has_law(self) -> bool:
        """Whether predictions have the likelihood's own law, which is not that of standardised errors."""
        return isinstance(self.likelihood, ByQuadrature)

    def _calibrate(self, X: ArrayLike, y: ArrayLike) -> str | None:
        if not self._has_law:
            return super()._calibrate(X, y) if self._censored is None else None
        self._leads: dict[str, float] = {}
        x, observed = self._features(X), self._observed(self._standard_targets(np.asarray(y), False))
        with torch.no_grad():
            constant = self.likelihood_.log_prob(torch.zeros_like(observed), observed)
            own = self._log_prob(x, observed)
        ahead, chance = lead(own.cpu().numpy(), constant.cpu().numpy(), self._weights)
        if ahead > chance:
            return None
        return f"its own rows are predicted hardly better than by their mean, by {ahead:.2g} nats; more rows may help"

    def _log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        if not self._has_law:
            return super()._log_prob(x, y)
        parts = zip(x.split(_ROWS), y.to(x).split(_ROWS), strict=True)
        return torch.cat([self._evidence(self._outputs(rows), own) for rows, own in parts])

    def _sample(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        if not self._has_law:
            return super()._sample(x, count, generator)
        drawn, seed = self._drawn(x, count, generator), torch.randint(2**31, (), generator=generator)
        with seeded(int(seed), x.device):
            return cast(Tensor, self.likelihood_.sample(drawn).cpu())

    def _uncertain_quantiles(
        self, x: Tensor, x_std: ArrayLike | None, x_cov: ArrayLike | None, levels: tuple[float, float]
    ) -> list[NDArray[Any]]:
        if not self._has_law:
            return super()._uncertain_quantiles(x, x_std, x_cov, levels)
        rows, weights = self._scattered(x, x_std, x_cov)
        count, generator = math.ceil(_DRAWN / len(weights)), torch.Generator().manual_seed(0)
        drawn = np.concatenate(
            [self._sample(some, count, generator).unflatten(1, (-1, len(x))).numpy() for some in rows], 1
        ).reshape(-1, len(x), *self._y_shape)
        order = drawn.argsort(0)
        shares = np.tile(weights / count, count)[order].cumsum(0)
        places = [(shares < level).sum(0, keepdims=True).clip(max=len(drawn) - 1) for level in levels]
        return [np.take_along_axis(drawn, np.take_along_axis(order, place, 0), 0)[0] for place in places]

    def _quantile(self, x: Tensor, level: float) -> Tensor:
        if not self._has_law:
            return super()._quantile(x, level)
        found = []
        for rows in x.split(_ROWS):
            drawn = self._sample(rows, _DRAWN, torch.Generator().manual_seed(0)).sort(0).values
            found.append(drawn[min(_DRAWN - 1, math.ceil(level * _DRAWN) - 1)])
        return torch.cat(found)


class Classification(Variational):
    """Labels: one logit for two classes, else one logit for each."""

    classes_: Any

    def _likelihood(self, x: Tensor, y: Tensor) -> tuple[Likelihood, int]:
        count = len(self.classes_)
        if self.likelihood is None:
            return (Bernoulli(), 1) if count == 2 else (Categorical(), count)
        made: Likelihood = copy.deepcopy(self.likelihood).to(x)
        own = {Categorical: count, Bernoulli: 2, Probit: 2, Ordinal: getattr(made, "classes", None)}
        if own.get(type(made)) != count:
            raise InputError(
                f"{type(self).__name__}: expected Categorical, Ordinal({count}), or Bernoulli or Probit for two "
                f"classes, got {type(made).__name__} for {count} classes"
            )
        if isinstance(made, Ordinal) and self.classes_.dtype.kind not in "iufb":
            raise InputError(
                f"{type(self).__name__}: Ordinal expected numbers as labels, whose order is theirs, got {self.classes_}"
            )
        made.begin(y)
        return made, count if isinstance(made, Categorical) else 1

    @property
    def _one_logit(self) -> bool:
        return not isinstance(self.likelihood_, Categorical)

    def _observed(self, y: Tensor) -> Tensor:
        return y[:, None] if self._one_logit else y

    def _log_classes(self, output: Moments | Tensor) -> Tensor:
        """Log probabilities ``(..., classes)`` of all classes, for outputs that are random or drawn."""
        found: Tensor = self.likelihood_.log_predictive(output)
        return found[..., 0, :] if self._one_logit else found
