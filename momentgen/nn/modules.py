"""``moments``: mean and variance of every module's output, by the method in force."""

from __future__ import annotations

from typing import Any

import torch

from momentgen.laws.border import Method
from momentgen.laws.convert import convert
from momentgen.nn.monte_carlo import each_layer
from momentgen.runtime import Moments

__all__ = ["moments"]


class _Modules(torch.nn.Module):
    """Calls a network, and returns the output of each of its modules by name."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network
        self.train(network.training)

    def forward(self, *inputs: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with each_layer(self.network, found.__setitem__, parents=True):
            found["output"] = self.network(*inputs)
        return found


def moments(network: torch.nn.Module, *inputs: Any, method: Method | None = None) -> dict[str, Moments]:
    """Mean and *variance* of every module's output, all of one call.

    Of a sigmoid belief network the means of Bernoulli units are the probabilities of its hidden units.

    Args:
        network: over moments, or a plain one.
        inputs: its arguments, tensors or :class:`~momentgen.Moments`, batch first.
        method: as for :func:`momentgen.convert`; None for the method in force.  ``sample`` gives one draw.

    Returns:
        The moments by the module's name in the network, shaped as its output.  A module that is called more than once
        has its later calls as ``NAME:1``, ``NAME:2``.  ``output`` is the network's own.

    Raises:
        InputError: for another method.
        UnsupportedError: at a function that the method has no rule for.

    >>> from momentgen import nn
    >>> network = nn.Sequential(nn.Linear(2, 3), nn.LogisticBernoulli(), nn.Linear(3, 1))
    >>> list(moments(network, torch.zeros(1, 2), method="ap2"))
    ['0', '1', '2', 'output']
    """
    found: dict[str, Moments] = convert(_Modules(network), method)(*inputs)
    return found
