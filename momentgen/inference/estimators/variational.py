"""Variational inference as scikit-learn estimators: variance back-propagation, and correlated parameters.

Each is a ReLU network trained by its evidence lower bound.  ``VBP...`` has independent normal parameters and propagates
moments, so that training draws no random numbers but the order of the data (Haussmann, Hamprecht & Kandemir 2019).
``Correlated...`` has parameters whose neighbours are correlated, and draws them (Posch & Pilz).
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from momentgen.inference.bayesian_network import BayesianNetwork, randomise
from momentgen.inference.credible import Prediction, credible_prediction, sampled_outputs
from momentgen.inference.estimators.base import Bayesian, BayesianClassifier, BayesianRegressor
from momentgen.inference.likelihood import Bernoulli, Categorical, Gaussian, Likelihood
from momentgen.inference.posterior import MeanField, Posterior
from momentgen.inference.prior import Normal
from momentgen.inference.training import Trainer, seeded
from momentgen.inference.tridiagonal import Tridiagonal
from momentgen.laws.border import Method, method
from momentgen.runtime import Moments

__all__ = ["CorrelatedClassifier", "CorrelatedRegressor", "VBPClassifier", "VBPRegressor"]

#: rows of which predictions are made at once
_ROWS = 1024


class _Variational(Bayesian):
    """A ReLU network with posteriors; subclasses say which, and how they are trained and predict."""

    hidden: tuple[int, ...]
    epochs: int
    batch_size: int
    lr: float
    prior_std: float
    progress: bool
    device: str

    def _family(self) -> Posterior:
        raise NotImplementedError

    def _how(self) -> Method:
        """The method of training."""
        raise NotImplementedError

    def _outputs(self, x: Tensor) -> Any:
        """What predictions are made of, for up to 1,024 rows."""
        raise NotImplementedError

    def _likelihood(self, y: Tensor) -> tuple[Likelihood, int]:
        """The likelihood of targets, and how many outputs it takes."""
        raise NotImplementedError

    def _observed(self, y: Tensor) -> Tensor:
        """Targets as the likelihood takes them."""
        raise NotImplementedError

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return super()._tensor(array).to(self.device)

    def _start(self, x: Tensor, y: Tensor) -> None:
        seed = self._seed()
        likelihood, outputs = self._likelihood(y)
        with seeded(seed, x.device):
            network = relu_network((x.shape[1], *self.hidden, outputs)).to(x)
        self.network_: BayesianNetwork = randomise(network, self._family(), prior=Normal(std=self.prior_std))
        self.likelihood_: Any = likelihood.to(x.device)
        self.trainer_ = Trainer(
            self.network_,
            likelihood,
            propagation=self._how(),
            lr=self.lr,
            batch_size=self.batch_size,
            seed=seed,
        )

    def _train(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        epochs = self.epochs if passes is None else passes
        self.trainer_.run(x, self._observed(y.to(x.device)), epochs, progress=self.progress)
        self.n_iter_ = len(self.trainer_.history)

    def _predicted(self, x: Tensor) -> list[Any]:
        return [self._outputs(rows) for rows in x.split(_ROWS)]


def relu_network(widths: tuple[int, ...]) -> torch.nn.Sequential:
    """A multilayer perceptron with ReLU between its linear maps."""
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class _Regression:
    """Targets with normal noise, whose variance is learnt, one for each column."""

    def _likelihood(self, y: Tensor) -> tuple[Likelihood, int]:
        columns = y.reshape(len(y), -1).shape[1]
        return Gaussian(var=torch.full((columns,), 0.1), learn=True).to(y.dtype), columns

    def _observed(self, y: Tensor) -> Tensor:
        return y.reshape(len(y), -1)


class _Classification:
    """Labels: one logit for two classes, else one logit for each."""

    classes_: Any
    likelihood_: Any

    def _likelihood(self, y: Tensor) -> tuple[Likelihood, int]:
        count = len(self.classes_)
        return (Bernoulli(), 1) if count == 2 else (Categorical(), count)

    def _observed(self, y: Tensor) -> Tensor:
        return y[:, None] if len(self.classes_) == 2 else y

    def _log_classes(self, output: Moments | Tensor) -> Tensor:
        """Log probabilities ``(..., classes)`` of all classes, for outputs that are random or drawn."""
        found: Tensor = self.likelihood_.log_predictive(output)
        return found[..., 0, :] if len(self.classes_) == 2 else found


class _VBP(_Variational):
    """Independent normal parameters, moments propagated."""

    def __init__(
        self,
        hidden: tuple[int, ...] = (50,),
        epochs: int = 200,
        batch_size: int = 128,
        lr: float = 0.01,
        prior_std: float = 1.0,
        initial_std: float = 0.05,
        propagation: Literal["controlled", "adjoint", "ap2"] = "controlled",
        device: str = "cpu",
        progress: bool = False,
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.prior_std = prior_std
        self.initial_std = initial_std
        self.propagation = propagation
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def _family(self) -> Posterior:
        return MeanField(std=self.initial_std)

    def _how(self) -> Method:
        return "ap2"

    def _outputs(self, x: Tensor) -> Any:
        with method(self.propagation):
            return self.network_(x)


class _Correlated(_Variational):
    """Parameters whose neighbours are correlated, drawn anew at each step."""

    def __init__(
        self,
        hidden: tuple[int, ...] = (50,),
        epochs: int = 200,
        batch_size: int = 128,
        lr: float = 0.01,
        prior_std: float = 1.0,
        initial_tau: float = 0.05,
        initial_rho: float = 0.01,
        rho_rate: float = 10.0,
        samples: int = 100,
        device: str = "cpu",
        progress: bool = False,
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.prior_std = prior_std
        self.initial_tau = initial_tau
        self.initial_rho = initial_rho
        self.rho_rate = rho_rate
        self.samples = samples
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def _family(self) -> Posterior:
        return Tridiagonal(tau=self.initial_tau, rho=self.initial_rho, rate=self.rho_rate)

    def _how(self) -> Method:
        return "sample"

    def _start(self, x: Tensor, y: Tensor) -> None:
        super()._start(x, y)
        self._draws_from = self._seed()

    def _outputs(self, x: Tensor) -> Any:
        # The same draws for every row and every call.
        with seeded(self._draws_from, x.device):
            return sampled_outputs(self.network_, x, self.samples)


class VBPRegressor(_Regression, _VBP, BayesianRegressor):
    """Regression by variance back-propagation: independent normal parameters, moments propagated.

    Args:
        hidden: widths of the hidden layers.
        epochs: passes over the data that ``fit`` makes.
        batch_size: rows per step.
        lr: learning rate of Adam.
        prior_std: standard deviation of the normal prior of each parameter, around 0.
        initial_std: standard deviation with which each parameter's posterior begins.
        propagation: how moments propagate in predictions: ``controlled``, ``adjoint`` or ``ap2``; in training it is
            ``ap2``, which takes the values of a layer as independent.
        random_state: seed of the initial means and of the order of the data.
        device: where tensors are: ``cpu`` or ``cuda``.
        progress: show a bar while training.

    >>> import numpy as np
    >>> X = np.linspace(-2, 2, 60)[:, None]
    >>> model = VBPRegressor(epochs=100, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> model.score(X, np.sin(X[:, 0])) > 0.9, mean.shape, bool((std > 0).all())
    (True, (60,), True)
    """

    def _predictive(self, x: Tensor) -> Moments:
        parts = [self.likelihood_.predictive(output) for output in self._predicted(x)]
        return Moments(torch.cat([part.mean for part in parts]), torch.cat([part.var for part in parts]))


class VBPClassifier(_Classification, _VBP, BayesianClassifier):
    """Classification by variance back-propagation; arguments are those of :class:`VBPRegressor`."""

    def _log_posterior(self, x: Tensor) -> Tensor:
        return torch.cat([self._log_classes(output) for output in self._predicted(x)])


class CorrelatedRegressor(_Regression, _Correlated, BayesianRegressor):
    """Regression with parameters whose neighbours are correlated, drawn anew at each step.

    Args:
        hidden: widths of the hidden layers.
        epochs: passes over the data that ``fit`` makes.
        batch_size: rows per step.
        lr: learning rate of Adam.
        prior_std: standard deviation of the normal prior of each parameter, around 0: the paper's ζ.
        initial_tau: τ with which each posterior begins: standard deviation over the mean's absolute value.
        initial_rho: correlation of neighbours with which each posterior begins.
        rho_rate: factor on the learning rate of ρ's parameter: the paper's κ.
        samples: draws of the parameters that predictions average.
        random_state: seed of the initial means, the order of the data, and all draws.
        device: where tensors are: ``cpu`` or ``cuda``.
        progress: show a bar while training.
    """

    def _predictive(self, x: Tensor) -> Moments:
        draws = torch.cat(self._predicted(x), 1)
        return self.likelihood_.predictive(Moments(draws.mean(0), draws.var(0, correction=0)))

    def _log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        draws = torch.cat(self._predicted(x), 1)
        return self.likelihood_.log_prob(draws, self._observed(y)).logsumexp(0) - math.log(len(draws))


class CorrelatedClassifier(_Classification, _Correlated, BayesianClassifier):
    """Classification with correlated parameters; arguments are those of :class:`CorrelatedRegressor`."""

    def _log_posterior(self, x: Tensor) -> Tensor:
        draws = torch.cat(self._predicted(x), 1)
        return self._log_classes(draws).logsumexp(0) - math.log(len(draws))

    @torch.no_grad()
    def predict_credible(self, X: ArrayLike, level: float = 0.95) -> Prediction:
        """Class probabilities with credible intervals, and which predictions are quite certain.

        Args:
            X: features, shape ``(n, features)``.
            level: of the intervals.

        Returns:
            Tensors over ``(n, classes)`` or ``(n,)``; ``label`` indexes ``classes_``.
        """
        draws = torch.cat(self._predicted(self._features(X)), 1)
        return credible_prediction(self._log_classes(draws).exp(), level)
