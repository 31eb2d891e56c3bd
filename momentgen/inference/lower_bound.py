"""The evidence lower bound of a Bayesian network: what variational inference maximises.

    log p(data) >= Σ_n E_q log p(y_n | f(x_n)) - KL(q || prior)

The expectation is the likelihood's, of the output's moments by the method in force.  Under ``ap2`` it is deterministic:
variance back-propagation (Haussmann, Hamprecht & Kandemir 2019, section 2.3).  Under ``sample`` it is estimated by a
draw of the parameters per batch: Bayes by Backprop (Blundell et al. 2015), and correlated parameters (Posch & Pilz,
section II).  Under ``local`` it is estimated by a draw of what linear maps make of the parameters, per example (Kingma,
Salimans & Welling 2015).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.inference.bayesian_network import BayesianNetwork
from momentgen.inference.likelihood import Likelihood
from momentgen.laws.methods import ALL, current_method
from momentgen.runtime import Moments
from momentgen.runtime.inputs import readable

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped


def elbo(
    network: torch.nn.Module,
    likelihood: Likelihood,
    x: Any,
    y: Shaped[Tensor, "batch ..."],
    *,
    size: int,
    kl_weight: float = 1.0,
    samples: int = 1,
    weights: Float[Tensor, "*example"] | None = None,
) -> Float[Tensor, ""]:
    """The evidence lower bound of a data set *per example*, from one batch; its negative is a loss.

    Args:
        network: made by :func:`~momentgen.inference.randomise`, or wrapped by ``torch.compile`` or
            ``DistributedDataParallel``.
        likelihood: of the output's moments, which it takes with ``y``.
        x: the network's input, or a tuple of its positional arguments.
        y: what was observed, as the likelihood takes it.
        size: how many examples the data set has, for which the divergence counts once.  Each term of the likelihood is
            one: of outputs ``(batch, positions, k)``, each position of each member of the batch.
        kl_weight: factor on the divergence; 1 for the bound, the paper's ν times ``size`` for correlated parameters.
        samples: runs of the network that are averaged, under ``sample`` and ``local``.
        weights: how often each example of the batch counts, of the shape of the likelihood's terms; None for once.

    Returns:
        A scalar: the mean expected log likelihood of the batch, less ``kl_weight * KL / size``.

    Raises:
        InputError: for a size or number of samples below 1, a batch larger than ``size``, or a negative weight.  Also
            for a network that is not Bayesian or does not return moments.

    >>> from momentgen.inference import Gaussian, MeanField, randomise
    >>> bayes = randomise(torch.nn.Linear(2, 1), MeanField(std=0.1))
    >>> optimizer = torch.optim.Adam(bayes.parameters(), lr=0.01)
    >>> x, y = torch.randn(8, 2), torch.randn(8, 1)
    >>> loss = -elbo(bayes, Gaussian(var=0.1), x, y, size=8)
    >>> loss.backward()
    >>> optimizer.step()
    """
    if size < 1 or samples < 1:
        raise InputError(f"elbo: expected a size and a number of samples of at least 1, got {size} and {samples}")
    if not 0 <= kl_weight < math.inf:
        raise InputError(f"elbo: expected a kl_weight of at least 0, got {kl_weight}")
    bayes: Any = _bayesian(network)
    args = x if type(x) is tuple else (x,)
    fits = []  # mean expected log likelihoods of the batch
    for _ in range(samples):
        output = network(*args)
        if not isinstance(output, Moments):
            raise InputError(
                f"elbo: expected a network that returns one tensor, hence Moments, got {type(output).__name__}; "
                "wrap it in a module that returns the output to be observed"
            )
        drawn = not ALL[current_method(bayes.network.propagation)].is_distribution
        if drawn and output.mean.dtype in (torch.float16, torch.bfloat16):  # under autocast
            output = Moments(output.mean.float(), output.var)
        terms = likelihood.log_prob(output.mean, y) if drawn else likelihood.expected_log_prob(output, y)
        if terms.numel() > size:
            raise InputError(f"elbo: expected a size of the whole data set, got {size} for a batch of {terms.numel()}")
        fits.append((terms if weights is None else terms * _fitting(weights, terms)).mean())
    fit = fits[0] if samples == 1 else torch.stack(fits).mean()
    return fit - kl_weight / size * bayes.kl()


def _fitting(weights: Tensor, terms: Tensor) -> Tensor:
    """``weights``, one for each term, not negative."""
    if weights.shape != terms.shape:
        raise InputError(
            f"elbo: expected weights of shape {tuple(terms.shape)}, one per example, got {tuple(weights.shape)}"
        )
    if readable(weights) and not bool((weights >= 0).all()):
        raise InputError("elbo: expected weights that are not negative, got a negative one, or NaN")
    return weights


def _bayesian(network: torch.nn.Module) -> BayesianNetwork:
    for candidate in (network, getattr(network, "module", None), getattr(network, "_orig_mod", None)):
        if isinstance(candidate, BayesianNetwork):
            return candidate
    raise InputError(f"elbo: expected a network made by randomise, got {type(network).__name__}")
