"""Variational inference as scikit-learn estimators: variance back-propagation, and correlated parameters.

Each is a ReLU network trained by its evidence lower bound.  ``VBP...`` has independent normal parameters and propagates
moments, so that training draws no random numbers but the order of the data (Haussmann, Hamprecht & Kandemir 2019).
``Correlated...`` has parameters whose neighbours are correlated, and draws them (Posch & Pilz).
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from momentgen.inference.bayesian_network import BayesianNetwork, randomise
from momentgen.inference.credible import Prediction, credible_prediction, sampled_outputs
from momentgen.inference.estimators.base import Bayesian, BayesianClassifier
from momentgen.inference.estimators.regressor import BayesianRegressor, Calibration, Parts
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
    epochs: int | None
    max_steps: int
    batch_size: int
    lr: float
    prior_std: float
    kl_weight: float
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

    def _likelihood(self, x: Tensor, y: Tensor) -> tuple[Likelihood, int]:
        """The likelihood of targets, and how many outputs it takes."""
        raise NotImplementedError

    def _observed(self, y: Tensor) -> Tensor:
        """Targets as the likelihood takes them."""
        raise NotImplementedError

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return super()._tensor(array).to(self.device)

    def _start(self, x: Tensor, y: Tensor) -> None:
        seed = self._seed()
        likelihood, outputs = self._likelihood(x, y)
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
            kl_weight=self.kl_weight,
            seed=seed,
        )

    def _train(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        epochs, observed = self.epochs if passes is None else passes, self._observed(y.to(x.device))
        if epochs is None:
            settled = self.trainer_.settle(x, observed, steps=self.max_steps, size=self._size, progress=self.progress)
            self._settled: bool | None = settled
        else:
            self.trainer_.run(x, observed, epochs, size=self._size, progress=self.progress)
            self._settled = None
        self.n_iter_ = len(self.trainer_.history)

    def _diagnose(self) -> dict[str, Any]:
        history = self.trainer_.history
        last = max(1, len(history) // 4)
        rise = float(np.mean(history[-last:]) - np.mean(history[-2 * last : -last])) if len(history) > 1 else math.nan
        # Of a bound that rises ever slower: what settles says so itself.
        settled = self._settled if self._settled is not None else bool(len(history) >= 8 and rise < 0.02)
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
        return (
            f"the bound still rises, by {found['rise']:.2g} per example in the last quarter of {found['epochs']} "
            f"epochs; {more}, may help"
        )

    def _predicted(self, x: Tensor) -> list[Any]:
        return [self._outputs(rows) for rows in x.split(_ROWS)]


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
    nearest = torch.cdist(x, x).fill_diagonal_(math.inf).argmin(1)
    return (0.5 * (y - y[nearest]).square().mean(0)).clamp(1e-4, 1.0)


class _Regression:
    """Targets with normal noise, whose variance is learnt, one for each column."""

    def _likelihood(self, x: Tensor, y: Tensor) -> tuple[Likelihood, int]:
        rough = rough_noise(x, y.to(x.device).reshape(len(y), -1))
        return Gaussian(var=rough, learn=True).to(y.dtype), len(rough)

    def _observed(self, y: Tensor) -> Tensor:
        return y.reshape(len(y), -1)


class _Classification:
    """Labels: one logit for two classes, else one logit for each."""

    classes_: Any
    likelihood_: Any

    def _likelihood(self, x: Tensor, y: Tensor) -> tuple[Likelihood, int]:
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
        epochs: int | None = None,
        batch_size: int = 128,
        lr: float = 0.01,
        prior_std: float = 1.0,
        kl_weight: float = 1.0,
        initial_std: float = 0.01,
        propagation: Literal["controlled", "adjoint", "ap2"] = "controlled",
        max_steps: int = 10_000,
        device: str = "cpu",
        progress: bool = False,
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.prior_std = prior_std
        self.kl_weight = kl_weight
        self.max_steps = max_steps
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
        epochs: int | None = 200,
        batch_size: int = 128,
        lr: float = 0.01,
        prior_std: float = 1.0,
        kl_weight: float = 1.0,
        initial_tau: float = 0.05,
        initial_rho: float = 0.01,
        rho_rate: float = 10.0,
        samples: int = 100,
        max_steps: int = 10_000,
        device: str = "cpu",
        progress: bool = False,
        random_state: Any = None,
    ) -> None:
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.prior_std = prior_std
        self.kl_weight = kl_weight
        self.max_steps = max_steps
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
        epochs: passes over the data that ``fit`` makes; None trains until the bound stays where it is.
        batch_size: rows per step.
        lr: learning rate of Adam; it falls to a ninth as the bound settles.
        prior_std: standard deviation of the normal prior of each parameter, around 0.
        kl_weight: factor on the divergence; 1 is the evidence lower bound.
        initial_std: standard deviation with which each parameter's posterior begins.
        propagation: how moments propagate in predictions: ``controlled``, ``adjoint`` or ``ap2``; in training it is
            ``ap2``, which takes the values of a layer as independent.
        max_steps: of training until the bound settles.
        random_state: seed of the initial means and of the order of the data.
        device: where tensors are: ``cpu`` or ``cuda``.
        progress: show a bar while training.
        calibrate: as for :class:`~momentgen.inference.PBPRegressor`.

    >>> import numpy as np
    >>> X = np.linspace(-2, 2, 60)[:, None]
    >>> model = VBPRegressor(epochs=100, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> model.score(X, np.sin(X[:, 0])) > 0.9, mean.shape, bool((std > 0).all())
    (True, (60,), True)
    """

    def __init__(
        self,
        hidden: tuple[int, ...] = (50,),
        epochs: int | None = None,
        batch_size: int = 128,
        lr: float = 0.01,
        prior_std: float = 1.0,
        kl_weight: float = 1.0,
        initial_std: float = 0.01,
        propagation: Literal["controlled", "adjoint", "ap2"] = "controlled",
        max_steps: int = 10_000,
        device: str = "cpu",
        progress: bool = False,
        random_state: Any = None,
        calibrate: Calibration | None = "split",
    ) -> None:
        super().__init__(
            hidden=hidden,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            prior_std=prior_std,
            kl_weight=kl_weight,
            initial_std=initial_std,
            propagation=propagation,
            max_steps=max_steps,
            device=device,
            progress=progress,
            random_state=random_state,
        )
        self.calibrate = calibrate

    def _parts(self, x: Tensor) -> Parts:
        outputs = self._predicted(x)
        mean, var = (torch.cat([getattr(part, name) for part in outputs]) for name in ("mean", "var"))
        return Parts(mean, var, self.likelihood_.var.expand_as(mean))


class VBPClassifier(_Classification, _VBP, BayesianClassifier):
    """Classification by variance back-propagation; arguments are those of :class:`VBPRegressor`."""

    def _log_posterior(self, x: Tensor) -> Tensor:
        return torch.cat([self._log_classes(output) for output in self._predicted(x)])


class CorrelatedRegressor(_Regression, _Correlated, BayesianRegressor):
    """Regression with parameters whose neighbours are correlated, drawn anew at each step.

    Args:
        hidden: widths of the hidden layers.
        epochs: passes over the data that ``fit`` makes; None trains until the bound stays where it is.
        batch_size: rows per step.
        lr: learning rate of Adam; it falls to a ninth as the bound settles.
        prior_std: standard deviation of the normal prior of each parameter, around 0.
        kl_weight: factor on the divergence, the paper's ν times the rows.  At 1, the evidence lower bound, long fits
            underfit; 0.1 fits some data better.
        initial_tau: τ with which each posterior begins: standard deviation over the mean's absolute value.
        initial_rho: correlation of neighbours with which each posterior begins.
        rho_rate: factor on the learning rate of ρ's parameter: the paper's κ.
        samples: draws of the parameters that predictions average.
        max_steps: of training until the bound settles.
        random_state: seed of the initial means, the order of the data, and all draws.
        device: where tensors are: ``cpu`` or ``cuda``.
        progress: show a bar while training.
        calibrate: as for :class:`~momentgen.inference.PBPRegressor`.
    """

    def __init__(
        self,
        hidden: tuple[int, ...] = (50,),
        epochs: int | None = 200,
        batch_size: int = 128,
        lr: float = 0.01,
        prior_std: float = 1.0,
        kl_weight: float = 1.0,
        initial_tau: float = 0.05,
        initial_rho: float = 0.01,
        rho_rate: float = 10.0,
        samples: int = 100,
        max_steps: int = 10_000,
        device: str = "cpu",
        progress: bool = False,
        random_state: Any = None,
        calibrate: Calibration | None = "split",
    ) -> None:
        super().__init__(
            hidden=hidden,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            prior_std=prior_std,
            kl_weight=kl_weight,
            initial_tau=initial_tau,
            initial_rho=initial_rho,
            rho_rate=rho_rate,
            samples=samples,
            max_steps=max_steps,
            device=device,
            progress=progress,
            random_state=random_state,
        )
        self.calibrate = calibrate

    def _parts(self, x: Tensor) -> Parts:
        draws = torch.cat(self._predicted(x), 1)
        mean = draws.mean(0)
        return Parts(mean, draws.var(0, correction=0), self.likelihood_.var.expand_as(mean))

    def _log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        draws = torch.cat(self._predicted(x), 1)
        return self.likelihood_.log_prob(draws, y.to(draws)).logsumexp(0) - math.log(len(draws))


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
