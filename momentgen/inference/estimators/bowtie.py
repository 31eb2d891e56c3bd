"""Regression by a bow tie network, for scikit-learn, over :mod:`momentgen.inference.bowtie`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from momentgen.inference.bowtie import BowTieModel, Chains, ConjugatePrior
from momentgen.inference.bowtie.chains import split_r_hat
from momentgen.inference.bowtie.prediction import Predictive
from momentgen.inference.estimators.base import parameters
from momentgen.inference.estimators.held_out import Calibration, Parts
from momentgen.inference.estimators.regressor import BayesianRegressor

#: rows whose predictions are judged, and the largest R̂ in the median that is no reason to warn
_JUDGED_ROWS, _MOST_R_HAT = 200, 1.2


@parameters
class BowTieRegressor(BayesianRegressor):
    """Regression by a bow tie network, its posterior sampled by block Gibbs.

    Features and targets are brought to mean 0 and variance 1; the priors are of these units.

    Args:
        hidden: widths of the hidden layers.
        tau: temperature of the gates.
        chains: Markov chains, whose draws predictions average over.
        burn_in: sweeps of each chain of which nothing is kept.
        draws: states kept of each.
        thin: sweeps a kept state.
        weight_var: prior *variance* of each weight and bias, about 0.
        noise_shape, noise_rate: of the gamma prior of all inverse noise variances.
        start: where chains start: ``relu``, at trained ReLU networks, or ``random``.
        anneal_from: a first temperature from which to cool in the first half of ``burn_in``, or None.
        collapsed: see :class:`~momentgen.inference.bowtie.Chains`.
        calibrate: as for :class:`~momentgen.inference.PBPRegressor`.
        progress: show a bar.
        random_state: a seed, a ``RandomState`` or None.

    Attributes:
        chains_: the :class:`~momentgen.inference.bowtie.Chains`, for ``chains_.draws`` and ``chains_.to_arviz()``.

    Source: Smith, Lawson & Linderman, Bayesian Inference in Augmented Bow Tie Networks.  The paper takes one hidden
    layer of 50 units, tau 0.1, and 1,000 draws after 26,000 sweeps of one chain.

    >>> import numpy as np
    >>> X = np.linspace(-1, 1, 40)[:, None]
    >>> model = BowTieRegressor(hidden=(10,), burn_in=50, draws=50, random_state=0).fit(X, np.abs(X[:, 0]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> mean.shape, std.shape
    ((40,), (40,))
    """

    hidden: int | Sequence[int] = (50,)
    tau: float = 0.1
    chains: int = 2
    burn_in: int = 2000
    draws: int = 500
    thin: int = 1
    weight_var: float = 1.0
    noise_shape: float = 1.0
    noise_rate: float = 0.01
    start: str = "relu"
    anneal_from: float | None = None
    collapsed: Sequence[str] = ("gates",)
    calibrate: Calibration | None = "split"
    progress: bool = False
    random_state: Any = None

    _goes_on = False

    def _start(self, x: Tensor, y: Tensor) -> None:
        prior = ConjugatePrior(var=self.weight_var, shape=self.noise_shape, rate=self.noise_rate)
        targets = y.reshape(len(y), -1)
        model = BowTieModel((x.shape[1], *(self._widths or ()), targets.shape[1]), self.tau, prior)
        self.chains_ = Chains(
            model, x, targets, chains=self.chains, burn_in=self.burn_in, draws=self.draws, thin=self.thin,
            seed=self._seed(), start=self.start, anneal_from=self.anneal_from, collapsed=self.collapsed,
        )  # fmt: skip

    def _train(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        self.chains_.run(progress=self.progress)

    def fit(self, X: ArrayLike, y: ArrayLike) -> BowTieRegressor:  # type: ignore[override]
        """Fit anew to features ``(n, features)`` and targets ``(n,)`` or ``(n, outputs)``; all rows count alike."""
        return super().fit(X, y)

    def _diagnose(self) -> dict[str, Any]:
        found = self._mixture(self.chains_.data.x[:_JUDGED_ROWS, :-1]).expected
        draws = found.unflatten(0, self.chains_.draws.log_joint.shape).flatten(2)
        r_hat = split_r_hat(draws)
        return {"draws": draws.shape[1], "r_hat": r_hat.median().item(), "r_hat_worst": r_hat.max().item()}

    def _complaint(self) -> str | None:
        found = self._diagnose()
        if found["r_hat"] <= _MOST_R_HAT:
            return None
        return (
            f"chains disagree: R̂ of the predictions is {found['r_hat']:.3g} in the median, above {_MOST_R_HAT}; more "
            "burn_in and draws, or more chains, may help"
        )

    def _mixture(self, x: Tensor) -> Predictive:
        return self.chains_.predict(x)

    def _parts(self, x: Tensor) -> Parts:
        mixture = self._mixture(x)
        return Parts(mixture.expected.mean(0), mixture.expected.var(0, correction=0), mixture.spread.mean(0))

    def _log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        return self._mixture(x).log_prob(y)

    def _quantile(self, x: Tensor, level: float) -> Tensor:
        return self._mixture(x).quantile(level)

    def _sample(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        return self._mixture(x).sample(count, generator)
