"""Variance back-propagation as scikit-learn estimators (Haussmann, Hamprecht & Kandemir 2019).

A ReLU network with independent normal parameters is trained by its evidence lower bound.  Moments are propagated, so
that training draws no random numbers but the order of the data.
"""

from __future__ import annotations

import warnings
from typing import Any, Final, Literal

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.estimators.base import BayesianClassifier, ClassWeight, parameters
from momentgen.inference.estimators.held_out import Calibration, Parts
from momentgen.inference.estimators.network import Classification, Regression, Variational
from momentgen.inference.estimators.regressor import BayesianRegressor
from momentgen.inference.posterior import MeanField, Posterior
from momentgen.laws.methods import Method, accuracy, method
from momentgen.laws.notes import AccuracyWarning
from momentgen.runtime import Moments

#: a relative error of σ below which draws would be for nothing
_EXACT = 1e-9
#: factor on the divergence where a whole one outweighs the rows
_LIGHT = 0.1
_PROPAGATIONS: Final = ("controlled", "ap2")


@parameters
class _VBP(Variational):
    """Independent normal parameters, moments propagated."""

    initial_std: float = 0.01
    propagation: Literal["controlled", "ap2"] = "controlled"

    def _prepare(self, x: Tensor, y: Tensor, passes: int | None) -> None:
        if self.propagation not in _PROPAGATIONS:
            raise InputError(
                f"{type(self).__name__}: expected a propagation of {' or '.join(_PROPAGATIONS)}, got "
                f"{self.propagation!r}"
            )

    def _family(self) -> Posterior:
        return MeanField(std=self.initial_std)

    def _how(self) -> Method:
        return "ap2"

    def _evidence(self, output: Any, y: Tensor) -> Tensor:
        found: Tensor = self.likelihood_.log_z(output, y)
        return found

    def _score(self, x: Tensor, y: Tensor) -> Tensor:
        with method("ap2"), torch.no_grad():
            return self._evidence(self.network_(x), y)

    def _output(self, x: Tensor) -> Moments:
        outputs = self._predicted(x)
        return Moments(*(torch.cat([getattr(part, name) for part in outputs]) for name in ("mean", "var")))

    def _drawn(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        mean, var = self._output(x)
        return mean + var.sqrt() * torch.randn(count, *mean.shape, generator=generator, dtype=mean.dtype).to(mean)

    def _outputs(self, x: Tensor) -> Any:
        if self.propagation != "controlled":
            with method(self.propagation):
                return self.network_(x)
        # As many draws for any rows: how many a tolerance takes depends on the rows beside one.
        # A single row has a linear part of its own, so it goes in twice.
        asked, alone = accuracy(), len(x) == 1
        with method("controlled", rtol=_EXACT, max_rows=asked.max_rows, seed=asked.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore", AccuracyWarning)  # nobody asked for this tolerance
            found = self.network_(x.expand(2, -1) if alone else x)
        return found[:1] if alone else found


@parameters
class VBPRegressor(_VBP, Regression, BayesianRegressor):
    """Regression by variance back-propagation: independent normal parameters, moments propagated.

    Args:
        hidden: widths of the hidden layers; a number is the width of one.
        epochs: passes over the data that ``fit`` makes; None trains until the bound stays where it is.
        batch_size: rows per step.
        lr: learning rate of Adam.  It falls to a ninth as the bound settles, or to 0 in the last half of ``epochs``.
        prior_std: standard deviation of the normal prior of each parameter, around 0.
        kl_weight: factor on the divergence; 1 is the evidence lower bound.  None takes 1.  Where held-out rows show
            that 1 predicts no better than a line, it takes 0.1: the divergence outweighs few rows.
        initial_std: standard deviation with which each parameter's posterior begins.
        propagation: how moments propagate in predictions: ``controlled`` or ``ap2``; in training it is
            ``ap2``, which takes the values of a layer as independent.
        max_steps: of training until the bound settles.
        module: the plain network in the place of ``hidden``: a torch module, or a function of the number of features
            that makes one.  It takes features in standard units.
        likelihood: in the place of normal noise, such as :class:`~momentgen.inference.HeteroscedasticGaussian`.  It is
            of targets in standard units, with mean 0 and variance 1, and so is the ``var`` of a ``Gaussian``.
            ``Poisson()`` and ``NegativeBinomial()`` are of counts as they are; predictions then have its law, without
            calibration.
        validation_fraction: the part of the rows to hold out for early stopping: the network that predicts them best is
            kept.  It needs ``epochs=None``.
        callback: called with the :class:`~momentgen.inference.Trainer` after each epoch; True ends training.  Networks
            that calibrate are trained for as many epochs, without it.
        random_state: seed of the initial means and of the order of the data.
        device: where tensors are: ``cpu`` or ``cuda``.
        progress: show a bar while training.
        calibrate: as for :class:`~momentgen.inference.PBPRegressor`.
        noise: ``constant``, or ``input`` for a second head of the network that says the noise of each row.

    >>> import numpy as np
    >>> X = np.linspace(-2, 2, 60)[:, None]
    >>> model = VBPRegressor(epochs=100, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> model.score(X, np.sin(X[:, 0])) > 0.9, mean.shape, bool((std > 0).all())
    (True, (60,), True)
    """

    calibrate: Calibration | None = "split"
    noise: Literal["constant", "input"] = "constant"

    _advice = "kl_weight below 1, PBPRegressor, or more rows"

    def _held_out_settings(self) -> dict[str, Any]:
        # A network without a fold is of the posterior that is judged: it does not retreat on its own.
        return super()._held_out_settings() | ({"kl_weight": 1.0} if self.kl_weight is None else {})

    @property
    def _retreat(self) -> dict[str, Any]:
        return {"kl_weight": _LIGHT} if self.kl_weight is None else {}

    def _parts(self, x: Tensor) -> Parts:
        output = self._output(x)
        mean, total = self.likelihood_.predictive(output)
        epistemic = self.likelihood_.expected(output).var
        return Parts(mean, epistemic, (total - epistemic).clamp_min(0))


@parameters
class VBPClassifier(_VBP, Classification, BayesianClassifier):
    """Classification by variance back-propagation; other arguments are those of :class:`VBPRegressor`.

    Args:
        class_weight: label -> how often its rows count, or ``balanced``; None for once.
    """

    class_weight: ClassWeight = None

    def _log_posterior(self, x: Tensor) -> Tensor:
        return torch.cat([self._log_classes(output) for output in self._predicted(x)])
