"""Pruning by log α: removes weights whose posterior is close to 0, and counts the rest.

α is variance/mean² of a weight's posterior.  Under a log-uniform prior it grows without bound for superfluous weights.

Sources: Molchanov, Ashukha & Vetrov 2017; Haussmann et al. 2019, section 4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from momentgen.errors import InputError
from momentgen.inference.bayesian_network import BayesianNetwork
from momentgen.inference.posterior import MeanField
from momentgen.nn.summary import Table

#: log α above which Molchanov et al. remove a weight: a rate of binary dropout above 0.95
FIXED_THRESHOLD = 3.0


class Sparsity(NamedTuple):
    """What pruning has left.

    Attributes:
        threshold: log α above which weights were removed.
        kept: parameter -> (how many weights are left, of how many).
    """

    threshold: float
    kept: dict[str, tuple[int, int]]

    @property
    def pruned(self) -> float:
        """Share of the weights that were removed, all parameters together."""
        return 1 - sum(left for left, _ in self.kept.values()) / sum(count for _, count in self.kept.values())

    def __str__(self) -> str:
        table = Table(["parameter", "kept", "of", "pruned"], words=1, title=f"log α at most {self.threshold:.3g}")
        for name, (left, count) in self.kept.items():
            table.add_row(name, f"{left:,}", f"{count:,}", f"{1 - left / count:.2%}")
        return str(table)


def _of_weights(network: BayesianNetwork) -> dict[str, MeanField]:
    """Mean-field posteriors of weights; biases, of one dimension, are not pruned."""
    found = {
        name.replace("/", "."): one
        for name, one in network.posteriors.items()
        if isinstance(one, MeanField) and one.mean.dim() > 1
    }
    if not found:
        raise InputError("pruning: expected a network with mean-field posteriors of weights, found none")
    return found


@torch.no_grad()
def log_alpha(network: BayesianNetwork) -> torch.Tensor:
    """log α of all weights with a mean-field posterior, in one vector; +inf where the mean is 0."""
    return torch.cat([one.log_alpha().flatten() for one in _of_weights(network).values()])


@torch.no_grad()
def prune(network: BayesianNetwork, threshold: float = FIXED_THRESHOLD) -> Sparsity:
    """Set weights of log α above a threshold to 0, with next to no variance, in place.

    Args:
        network: with mean-field posteriors; biases are left as they are.
        threshold: for log α.

    Raises:
        InputError: for a network without mean-field posteriors of weights, or a threshold that is no number.

    >>> from momentgen.inference import randomise
    >>> bayes = randomise(torch.nn.Linear(4, 2), MeanField(std=0.1), only="weight")
    >>> bayes.posteriors["weight"].mean.data[:] = torch.tensor([1.0, 0.001, 1.0, 1.0])
    >>> prune(bayes).kept
    {'weight': (6, 8)}
    """
    if threshold is None or threshold != threshold:
        raise InputError(f"prune: expected a threshold for log α, got {threshold}")
    kept: dict[str, tuple[int, int]] = {}
    for name, one in _of_weights(network).items():
        gone = one.log_alpha() > threshold
        one.mean[gone] = 0
        one.log_var[gone] = _CERTAIN
        kept[name] = (int((~gone).sum()), gone.numel())
    return Sparsity(threshold, kept)


#: log variance of a weight that was removed: a standard deviation of 1e-20
_CERTAIN = -92.1
