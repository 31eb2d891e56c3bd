"""Random parameters of the method ``covariance``.

A weight that is used once adds noise to the outputs of its linear map or convolution that is uncorrelated with all
else.  Its covariance is written out, for outputs at all places: Σ_k W_v,k E[x_k x'_k], plus the part that neighbouring
elements share.  Here x and x' are the inputs that element k of a filter meets at two places.  It is exact where the
input's mean and covariance are.  A weight that is used more than once (tied, recurrent) is a law of its own with a
covariance matrix.  Its products are taken as all products are.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.arguments import tensor_of
from momentgen.laws.covariance import Covariance, covariance, source, symmetric
from momentgen.laws.covariance_functions import numbered
from momentgen.laws.covariance_graph import CURRENT, Narrower, Node, Run
from momentgen.laws.law import Law
from momentgen.laws.parameters import Lifted, Plan, lifted
from momentgen.laws.table import Entry

__all__ = ["random_parameter"]


def random_parameter(plan: Plan, mean: Tensor, var: Tensor, neighbour: Tensor | None) -> Law | Tensor:
    """A random parameter of the run that is under way; its mean where the network is run on certain values."""
    run = CURRENT.get(None)
    if run is None:
        return mean.clone()
    return lifted(mean, var, neighbour, _Keeper(run), plan, plan.next(run))


class _Keeper:
    """On ``Covariance`` laws; see :class:`~momentgen.laws.parameters.Keeper`."""

    keeps_pairs = True

    def __init__(self, run: Run) -> None:
        self.run = run

    def materialised(self, parameter: Lifted) -> Law:
        if parameter._joint.is_outputs:
            raise Narrower(self.run.batch)  # run again, now that it is known to be used twice
        mean, var, neighbour = parameter._mean, parameter._var, parameter.neighbour
        if neighbour is None:
            return source(mean, var, name="a random parameter")
        self.run.check_room("a random parameter", mean.numel(), mean.dtype)
        pairs = torch.diag_embed(neighbour.reshape(-1)[:-1], offset=1)
        return covariance(mean, Node(torch.diag_embed(var.reshape(-1)) + pairs + pairs.mT), var)

    def linear_map(self, entry: Entry, x: Any, weight: Lifted, options: dict[str, Any]) -> Any:
        state = weight._joint
        if not state.alone:
            return entry.call(x, weight.law(), None, **options)
        state.is_outputs = True
        out = entry.call(x, weight._mean, None, **options)
        mean = tensor_of(out)
        self.run.check_room(entry.name, mean.numel(), mean.dtype)
        noise = symmetric(_noise(entry, x, weight, options, mean))
        return out + covariance(torch.zeros_like(mean), Node(noise))

    def plus(self, y: Any, bias: Lifted, shape: list[int]) -> Any:
        return y + bias.law().view(shape)


def _noise(entry: Entry, x: Any, weight: Lifted, options: dict[str, Any], out: Tensor) -> Tensor:
    """Covariance of what a weight's noise adds to the outputs, in the order of the memory, shape ``(M, M)``."""
    mean = tensor_of(x)
    flat = mean.reshape(-1)
    second = flat[:, None] * flat
    if isinstance(x, Covariance):
        second = second + x.cov
    second = F.pad(second, (1, 0, 1, 0))  # place 0 is the padding
    places = _places(entry, mean, weight._mean, options)
    groups, count, size = places.shape
    var = _filters(entry, weight._var, groups)

    def met(first: Tensor, other: Tensor) -> Tensor:
        """E x x' of the inputs at those places, shape ``(..., P, P)``."""
        return second[first[..., :, None], other[..., None, :]]

    blocks = out.new_zeros(groups, var.shape[1], size, size)
    for k in range(count):
        blocks = blocks + var[:, :, k, None, None] * met(places[:, k], places[:, k])[:, None]
    if weight.neighbour is None:
        whole = torch.diag_embed(blocks.flatten(0, 1).permute(1, 2, 0))  # (P, P, O, O)
    else:
        shared = _filters(entry, weight.neighbour, groups)
        for k in range(count - 1):
            own = met(places[:, k], places[:, k + 1])
            blocks = blocks + shared[:, :, k, None, None] * (own + own.mT)[:, None]
        whole = torch.diag_embed(blocks.flatten(0, 1).permute(1, 2, 0))
        # The last element of an output's filter and the first of the next one's.
        group = torch.arange(groups, device=out.device).repeat_interleave(var.shape[1])
        ends = met(places[group[:-1], -1], places[group[1:], 0]) * shared.flatten(0, 1)[:-1, -1, None, None]
        between = torch.diag_embed(ends.permute(1, 2, 0), offset=1)
        whole = whole + between + between.permute(1, 0, 3, 2)
    order = (0, 2, 1, 3) if entry.name == "linear" else (2, 0, 3, 1)
    return whole.permute(order).reshape(out.numel(), out.numel())


def _places(entry: Entry, mean: Tensor, weight: Tensor, options: dict[str, Any]) -> Tensor:
    """Which input element k of a filter meets at each place, from 1, shape ``(groups, K, P)``; 0 is none."""
    if entry.name == "linear":
        return numbered(mean).reshape(1, -1, weight.shape[-1]).mT.long()
    groups = options.get("groups", 1)
    transposed = "transpose" in entry.name
    inputs = weight.shape[0] // groups if transposed else weight.shape[1]
    kernel = weight.shape[2:]
    count = inputs * kernel.numel()
    unit = torch.eye(count, dtype=torch.float64, device=mean.device).view(count, inputs, *kernel)
    unit = unit.movedim(0, 1) if transposed else unit
    found = entry.call(numbered(mean), unit.repeat(groups, *[1] * (unit.dim() - 1)), None, **options)
    return found.round().long().reshape(groups, count, -1)


def _filters(entry: Entry, coefficients: Tensor, groups: int) -> Tensor:
    """Elements of the filters, shape ``(groups, outputs of each, K)``."""
    if "transpose" in entry.name:
        inputs = coefficients.shape[0] // groups
        parts = coefficients.view(groups, inputs, coefficients.shape[1], -1)
        return parts.transpose(1, 2).flatten(2)
    return coefficients.reshape(groups, coefficients.shape[0] // groups, -1)
