"""Bayesian methods on the laws: variational inference, density filtering and Gibbs sampling.

The layer above :mod:`momentgen.nn`: it may import the laws, nn and the runtime, and nothing imports it but the command
line.  Estimators load on first use, so that scikit-learn is imported for them only.

* Posteriors and priors of parameters, and :func:`randomise`, which puts them into a plain network: ``posterior``,
  ``tridiagonal``, ``affine``, ``prior``, ``bayesian_network``; those that other libraries trained: ``trained``.
* Likelihoods of data given a random output, shared by all methods: ``likelihood``, ``heteroscedastic``, ``counts``.
* Variational inference: ``lower_bound``, ``training``, ``pruning``, ``credible``.
* Assumed density filtering, probabilistic and expectation backpropagation: ``adf``.
* Bow tie networks by block Gibbs sampling, and the Pólya-gamma distribution: ``bowtie``,
  ``polya_gamma_sampler``.
* scikit-learn estimators over all of these: ``estimators``; what tells whether to believe one: ``checks``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from momentgen.inference.adf import DensityFilter
from momentgen.inference.bayesian_network import BayesianNetwork, randomise
from momentgen.inference.bowtie import BowTieModel, Chains, ConjugatePrior
from momentgen.inference.checks import crps, plot_calibration, plot_intervals, plot_parts, to_arviz
from momentgen.inference.counts import NegativeBinomial, Ordinal, Poisson
from momentgen.inference.credible import Prediction, credible_prediction, sampled_outputs
from momentgen.inference.gamma import Gamma
from momentgen.inference.heteroscedastic import Censored, HeteroscedasticGaussian
from momentgen.inference.likelihood import Bernoulli, Categorical, Gaussian, Likelihood, Probit
from momentgen.inference.lower_bound import elbo
from momentgen.inference.polya_gamma_sampler.function import polya_gamma
from momentgen.inference.posterior import MeanField, Posterior
from momentgen.inference.prior import Horseshoe, LogUniform, Normal, NormalMixture, Prior, SampledPrior
from momentgen.inference.pruning import Sparsity, log_alpha, prune
from momentgen.inference.trained import from_ivon, from_laplace, from_swag, from_vbll
from momentgen.inference.training import Trainer
from momentgen.inference.tridiagonal import Tridiagonal

if TYPE_CHECKING:
    from momentgen.inference.estimators.adf import EBPClassifier, EBPRegressor, PBPClassifier, PBPRegressor
    from momentgen.inference.estimators.bowtie import BowTieRegressor
    from momentgen.inference.estimators.correlated import CorrelatedClassifier, CorrelatedRegressor
    from momentgen.inference.estimators.vbp import VBPClassifier, VBPRegressor

__all__ = [
    "BayesianNetwork",
    "Bernoulli",
    "BowTieModel",
    "BowTieRegressor",
    "Categorical",
    "Censored",
    "Chains",
    "ConjugatePrior",
    "CorrelatedClassifier",
    "CorrelatedRegressor",
    "DensityFilter",
    "EBPClassifier",
    "EBPRegressor",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Horseshoe",
    "Likelihood",
    "LogUniform",
    "MeanField",
    "NegativeBinomial",
    "Normal",
    "NormalMixture",
    "Ordinal",
    "PBPClassifier",
    "PBPRegressor",
    "Poisson",
    "Posterior",
    "Prediction",
    "Prior",
    "Probit",
    "SampledPrior",
    "Sparsity",
    "Trainer",
    "Tridiagonal",
    "VBPClassifier",
    "VBPRegressor",
    "credible_prediction",
    "crps",
    "elbo",
    "from_ivon",
    "from_laplace",
    "from_swag",
    "from_vbll",
    "log_alpha",
    "plot_calibration",
    "plot_intervals",
    "plot_parts",
    "polya_gamma",
    "prune",
    "randomise",
    "sampled_outputs",
    "to_arviz",
]

#: method of an estimator -> the module that defines it
_HOMES = {"BowTie": "bowtie", "Correlated": "correlated", "EBP": "adf", "PBP": "adf", "VBP": "vbp"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name.removesuffix("Regressor").removesuffix("Classifier"))
    if home is None or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"momentgen.inference.estimators.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
