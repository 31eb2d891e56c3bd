"""The pair that flows through a moment network: a mean and a variance."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Moments"]


class Moments(NamedTuple):
    """Mean and variance of independent random variables, elementwise.

    A named tuple, so it unpacks, and passes through ``torch.compile``,
    ``torch.func`` and pytrees as two tensors.

    Args:
        mean: means, any shape.
        var: *variances* (not standard deviations), of the same shape, dtype and device; never negative.

    >>> import torch
    >>> x = Moments(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.0]))
    >>> x.std
    tensor([2., 0.])
    """

    mean: Tensor
    var: Tensor

    @property
    def std(self) -> Tensor:
        """Standard deviations, the square root of :attr:`var`."""
        return self.var.sqrt()
