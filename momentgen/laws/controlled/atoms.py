"""Counts of one distribution: all combinations of few of them are a rule that is exact.

A count is a step function of a standard normal value, as other noise that is not normal.  Each level has one node.
"""

from __future__ import annotations

import functools
import math
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.surrogates import Surrogate

#: the probability of larger counts below which they do not count: float64 does not tell their normal values apart
_SURVIVES: Final = 1e-15


class Rule(NamedTuple):
    """Nodes, shape ``(N, d)``, and their weights, shape ``(N,)``."""

    nodes: NDArray[np.float64]
    weight: NDArray[np.float64]


def rule_of_atoms(network: Network, count: int, most: int) -> tuple[Tensor, Rule | None]:
    """All combinations of counts of one distribution as a rule, which is exact, and the bounds of levels; else None."""
    nothing = torch.zeros(0)
    noise = [value.noise for value in network.inputs]
    tables = [one.atoms() if one is not None and one.is_discrete else None for one in noise]
    first = tables[0]
    if first is None or not all(one is not None and torch.equal(one, first) for one in tables):
        return nothing, None
    above = first.flip(0).cumsum(0).flip(0)
    weight = first[above > _SURVIVES]
    if len(weight) ** count > most:
        return nothing, None
    below = weight.cumsum(0)
    middles = torch.special.ndtri(below - weight / 2).numpy()
    grid = np.stack(np.meshgrid(*[middles] * count, indexing="ij"), -1).reshape(-1, count)
    product = functools.reduce(np.multiply.outer, [weight.numpy()] * count).reshape(-1)
    return torch.special.ndtri(below.clamp_max(1)), Rule(grid, product / product.sum())


def of_atoms(bounds: Tensor, outputs: Tensor) -> Surrogate:
    """The surrogate of counts, whose outputs are known for each combination of levels.

    Args:
        bounds: of the levels of each value on the scale of a standard normal one, ``(L,)``.
        outputs: of all combinations, the last value's levels first, shape ``(L ** d, B, K)``.
    """
    outputs = outputs.detach().double()
    dimensions = round(math.log(len(outputs)) / math.log(max(len(bounds), 2))) if len(bounds) > 1 else 1

    def smooth(points: Tensor, uniform: Tensor) -> Tensor:
        del uniform
        levels = torch.searchsorted(bounds, points.contiguous()).clamp_max(len(bounds) - 1)
        place = sum(levels[:, d] * len(bounds) ** (dimensions - 1 - d) for d in range(dimensions))
        return outputs[place]

    return Surrogate(dimensions, smooth, None, outputs[:1] * 0, outputs, torch.zeros_like(outputs[0]))
