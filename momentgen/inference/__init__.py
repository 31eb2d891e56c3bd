"""Bayesian methods on the laws: variational inference, density filtering and Gibbs sampling.

The layer above :mod:`momentgen.nn`: it may import the laws, nn and the runtime, and nothing imports it but the command
line.  Names load on first use, so that scikit-learn is imported for the estimators only.

* Posteriors and priors of parameters, and :func:`randomise`, which puts them into a plain network: ``posterior``,
  ``tridiagonal``, ``prior``, ``bayesian_network``.
* Likelihoods of data given a random output, shared by all methods: ``likelihood``.
* Variational inference: ``lower_bound``, ``training``, ``pruning``, ``credible``.
* Assumed density filtering, probabilistic and expectation backpropagation: ``adf``.
* Bow tie networks by block Gibbs sampling, and the Pólya-gamma distribution: ``bowtie``,
  ``polya_gamma_sampler``.
* scikit-learn estimators over all of these: ``estimators``.
"""

from __future__ import annotations

import importlib
from typing import Any

#: public name -> the module of this package that defines it
_HOMES: dict[str, str] = {
    "BayesianNetwork": "bayesian_network",
    "Bernoulli": "likelihood",
    "Categorical": "likelihood",
    "CorrelatedClassifier": "estimators.variational",
    "CorrelatedRegressor": "estimators.variational",
    "Gamma": "gamma",
    "Gaussian": "likelihood",
    "Horseshoe": "prior",
    "Likelihood": "likelihood",
    "LogUniform": "prior",
    "MeanField": "posterior",
    "Normal": "prior",
    "NormalMixture": "prior",
    "Posterior": "posterior",
    "Prediction": "credible",
    "Prior": "prior",
    "Probit": "likelihood",
    "Sparsity": "pruning",
    "Trainer": "training",
    "Tridiagonal": "tridiagonal",
    "VBPClassifier": "estimators.variational",
    "VBPRegressor": "estimators.variational",
    "credible_prediction": "credible",
    "elbo": "lower_bound",
    "histogram_threshold": "pruning",
    "log_alpha": "pruning",
    "polya_gamma": "polya_gamma_sampler",
    "prune": "pruning",
    "randomise": "bayesian_network",
    "sampled_outputs": "credible",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"momentgen.inference.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
