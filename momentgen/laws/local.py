"""Local reparameterisation: outputs of linear maps with a random weight are drawn, in place of the weight.

Kingma, Salimans & Welling 2015 (Variational dropout and the local reparameterisation trick).  The network runs on plain
tensors.  A random parameter may be the weight or bias of a linear map or convolution.  Then each of its outputs is
drawn by itself from its mean and variance given the input.  The gradient varies less than with one drawn weight for
the whole batch.  Every example, and every place of a convolution or sequence, has noise of its own.  All other
functions take one sample of the parameter, drawn once per run.  If that is a matrix first used within a checkpoint,
torch complains that the second run of the checkpoint saved other tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws import affine
from momentgen.laws.arguments import all_replaced
from momentgen.laws.coefficients import is_linear_map, noise_of_weight
from momentgen.laws.law import Law, laws_in, new_law, rule
from momentgen.laws.numerics.root import square_root
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported

__all__ = ["Local", "local"]


class Local(Law):
    """A random parameter of the method ``local``: mean and variance; covariances of neighbours; how it is drawn."""

    __slots__ = ("draw", "neighbour", "sample")
    RANK = 5
    draw: Callable[[], Tensor]
    neighbour: Tensor | None
    sample: Tensor | None

    def drawn(self) -> Tensor:
        """The sample of this run."""
        if self.sample is None:
            self.sample = self.draw()
        return self.sample

    def _assign(self, new: Law) -> None:
        raise unsupported(Tensor.copy_, self, "a random parameter cannot be written to while the network runs")

    def _written_into(self, target: Law) -> None:
        raise unsupported(Tensor.copy_, self, "under the method local a network runs on tensors")


def local(mean: Tensor, var: Tensor, neighbour: Tensor | None, draw: Callable[[], Tensor]) -> Local:
    """A random parameter.

    Args:
        mean: any shape.
        var: *variance*, of the same shape.
        neighbour: covariance of each element with the next one in flattened order, of the same shape; or None.
        draw: one sample.
    """
    law: Local = new_law(Local, mean, var)
    # What norms take is drawn here and now: a checkpoint's second run must find the random numbers of its first.
    law.neighbour, law.draw, law.sample = neighbour, draw, draw() if mean.dim() < 2 else None
    return law


@rule(Local, "*")
def _rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for law in laws_in((*args, *kwargs.values())):
        if not isinstance(law, Local):
            raise unsupported(entry, law, "under the method local a network runs on tensors")
    if is_linear_map(entry.name) and not isinstance(args[0], Local):
        return _drawn_output(entry, args, kwargs)
    values, named = all_replaced(args, kwargs, lambda law: cast(Local, law).drawn())
    return entry.call(*values, **named)


def _drawn_output(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A linear map or convolution: one draw of each output."""
    x, bound = args[0], affine.bind(entry.name, args[1:], kwargs)
    weight, bias = bound.pop("weight"), bound.pop("bias", None)
    means = [part._mean if isinstance(part, Local) else part for part in (weight, bias)]
    mean: Tensor = entry.call(x, *means, **bound)
    var: Tensor | None = None
    if isinstance(weight, Local):
        var = noise_of_weight(entry.call, entry.name, x, None, weight._var, weight.neighbour, bound)
    if isinstance(bias, Local):
        own = bias._var if entry.name == "linear" else bias._var.view([-1] + [1] * int(entry.name[-2]))
        var = own.expand(mean.shape) if var is None else var + own
    noise = torch.randn_like(mean)
    return mean + square_root(cast(Tensor, var)).to(mean.dtype) * noise
