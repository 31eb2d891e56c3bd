"""Counts of one distribution: all combinations of few of them are a rule that is exact.

A count is a step function of a standard normal value, as other noise that is not normal.  Each level has one node.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from momentgen.laws.controlled.estimate import Estimate
from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.surrogates import Surrogate

#: the probability of larger counts below which they do not count: float64 does not tell their normal values apart
_SURVIVES: Final = 1e-15
#: ratio of two levels' parts from which their sum is not told, and what counts then, in the last part
_FALLS, _GROWS = 0.9, 1e3


class Rule(NamedTuple):
    """Nodes, shape ``(N, d)``, and their weights, shape ``(N,)``."""

    nodes: NDArray[np.float64]
    weight: NDArray[np.float64]


class Atoms(NamedTuple):
    """All combinations of counts.

    Attributes:
        rule: a node for each combination.
        bounds: of the levels of each count on the scale of a standard normal value, ``(L,)``.
        beyond: the probability of levels that are left out; 0 where all are there.
    """

    rule: Rule
    bounds: Tensor
    beyond: float


def atoms_of(network: Network, count: int, most: int) -> Atoms | None:
    """All combinations of so many counts, where all are of one distribution; None of others, and of too many."""
    noise = [value.noise for value in network.inputs]
    tables = [one.atoms() if one is not None and one.is_discrete else None for one in noise]
    first = tables[0]
    if first is None or not all(one is not None and torch.equal(one, first) for one in tables):
        return None
    above = first.flip(0).cumsum(0).flip(0)
    weight = first[above > _SURVIVES]
    if len(weight) ** count > most:
        return None
    below = weight.cumsum(0)
    middles = torch.special.ndtri(below - weight / 2).numpy()
    grid = np.stack(np.meshgrid(*[middles] * count, indexing="ij"), -1).reshape(-1, count)
    product = functools.reduce(np.multiply.outer, [weight.numpy()] * count).reshape(-1)
    beyond = count * _SURVIVES if len(weight) < int((first > 0).sum()) else 0.0
    return Atoms(Rule(grid, product / product.sum()), torch.special.ndtri(below.clamp_max(1)), beyond)


def with_left_out(atoms: Atoms, part: Estimate, outputs: Tensor) -> Estimate:
    """With errors that count the levels left out, whose part of the variance goes on as that of the last two levels."""
    if not atoms.beyond:
        return part
    level = torch.searchsorted(atoms.bounds, torch.from_numpy(atoms.rule.nodes)).amax(1)
    with torch.no_grad():
        weight = torch.from_numpy(atoms.rule.weight)[:, None, None]
        shares = weight * (outputs - part.mean).double().square() / part.std.double().square().clamp_min(1e-300)
        last, before = (shares[level == len(atoms.bounds) - back].sum(0) for back in (1, 2))
        ratio = last / before.clamp_min(1e-300)
        left = last * torch.where(ratio < _FALLS, ratio / (1 - ratio), _GROWS)
        std_error, mean_error = (
            size.to(part.std.dtype) * part.std for size in (left / 2, (left * atoms.beyond).sqrt())
        )
        return part._replace(std_error=std_error, mean_error=mean_error)


def of_atoms(atoms: Atoms, outputs: Tensor) -> Surrogate:
    """The surrogate of counts, by the outputs of all combinations, shape ``(L ** d, B, K)``."""
    outputs, bounds = outputs.detach().double(), atoms.bounds
    dimensions = atoms.rule.nodes.shape[1]

    def smooth(points: Tensor, uniform: Tensor) -> Tensor:
        del uniform
        levels = torch.searchsorted(bounds, points.contiguous()).clamp_max(len(bounds) - 1)
        place = sum(levels[:, d] * len(bounds) ** (dimensions - 1 - d) for d in range(dimensions))
        return outputs[place]

    return Surrogate(dimensions, smooth, None, outputs[:1] * 0, outputs, torch.zeros_like(outputs[0]))
