"""Variational inference with correlated parameters as scikit-learn estimators (Posch & Pilz).

Parameters whose neighbours are correlated are drawn anew at each step, and training follows the evidence lower bound.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from momentgen.inference.credible import sampled_outputs
from momentgen.inference.estimators.base import BayesianClassifier, ClassWeight, parameters
from momentgen.inference.estimators.held_out import Calibration, Parts
from momentgen.inference.estimators.network import Classification, Regression, Variational
from momentgen.inference.estimators.regressor import BayesianRegressor
from momentgen.inference.posterior import Posterior
from momentgen.inference.training import seeded
from momentgen.inference.tridiagonal import Tridiagonal
from momentgen.laws.methods import Method
from momentgen.runtime import Moments


@parameters
class _Correlated(Variational):
    """Parameters whose neighbours are correlated, drawn anew at each step."""

    epochs: int | None = 200
    batch_size: int = 128
    kl_weight: float | None = 0.1
    initial_tau: float = 0.05
    initial_rho: float = 0.01
    rho_rate: float = 10.0
    samples: int = 100

    def _family(self) -> Posterior:
        return Tridiagonal(tau=self.initial_tau, rho=self.initial_rho, rate=self.rho_rate)

    def _how(self) -> Method:
        return "sample"

    def _evidence(self, output: Any, y: Tensor) -> Tensor:
        logs: Tensor = self.likelihood_.log_prob(output, y)
        return logs.logsumexp(0) - math.log(len(logs))

    def _drawn(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        draws = torch.cat(self._predicted(x), 1)
        return draws[torch.randint(len(draws), (count,), generator=generator).to(draws.device)]

    def _start(self, x: Tensor, y: Tensor) -> None:
        super()._start(x, y)
        self._draws_from = self._seed()

    def _outputs(self, x: Tensor) -> Any:
        # The same draws for every row and every call.
        with seeded(self._draws_from, x.device):
            return sampled_outputs(self.network_, x, self.samples)


@parameters
class CorrelatedRegressor(_Correlated, Regression, BayesianRegressor):
    """Regression with parameters whose neighbours are correlated, drawn anew at each step.

    Arguments without a word here are those of :class:`~momentgen.inference.VBPRegressor`.

    Args:
        kl_weight: factor on the divergence, the paper's ν times the rows.  At 1, the evidence lower bound, long fits
            underfit.  At 0.1 they learn too small a noise, which calibration mends, and overfit targets that are
            half noise.
        initial_tau: τ with which each posterior begins: standard deviation over the mean's absolute value.
        initial_rho: correlation of neighbours with which each posterior begins.
        rho_rate: factor on the learning rate of ρ's parameter: the paper's κ.
        samples: draws of the parameters that predictions average.
        random_state: seed of the initial means, the order of the data, and all draws.
    """

    calibrate: Calibration | None = "split"
    noise: Literal["constant", "input"] = "constant"

    def _parts(self, x: Tensor) -> Parts:
        draws = torch.cat(self._predicted(x), 1)
        means, noise = self.likelihood_.predictive(Moments(draws, torch.zeros_like(draws)))
        return Parts(means.mean(0), means.var(0, correction=0), noise.mean(0))


@parameters
class CorrelatedClassifier(_Correlated, Classification, BayesianClassifier):
    """Classification with correlated parameters; arguments are those of the regressor and of VBPClassifier."""

    class_weight: ClassWeight = None

    def _log_posterior(self, x: Tensor) -> Tensor:
        draws = torch.cat(self._predicted(x), 1)
        return self._log_classes(draws).logsumexp(0) - math.log(len(draws))
