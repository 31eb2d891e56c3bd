"""Values that are nothing beside the others of their layer, taken as 0.

A unit some thirteen standard deviations on the off side of a ReLU has a mean, a variance and a slope below the normal
range of float32, with which many processors compute much more slowly: docs/developer-notes.md has what networks at
little noise lose by them.  A linear map that adds such values to others rounds them away by far; one that takes them
alone has an output without variance.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

__all__ = ["without_dust"]

#: this share of the largest is nothing: float32 keeps 2^-24 of a sum
_NOTHING: Final = 2.0**-100


def without_dust(values: Tensor) -> Tensor:
    """Values of one layer, those as 0 that are less than 2^-100 of the largest.

    Only of float32 on a CPU: elsewhere there is no need.

    >>> without_dust(torch.tensor([1.0, -1e-20, 1e-35]))
    tensor([ 1.0000e+00, -1.0000e-20,  0.0000e+00])
    """
    if values.device.type != "cpu" or values.dtype != torch.float32 or not values.numel():
        return values
    size = values.abs()
    return torch.where(size < _NOTHING * size.amax(), 0, values)
