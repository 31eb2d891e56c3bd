"""What counts as an example among the arguments of a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from momentgen.runtime import Moments

__all__ = ["first_tensor", "halves", "is_real"]


def is_real(value: object) -> bool:
    """Whether a value is a tensor of floating point."""
    return isinstance(value, Tensor) and value.is_floating_point()


def first_tensor(leaves: list[Any]) -> int | None:
    """The position of the argument whose first dimension is the batch: moments, else a tensor; None without any."""
    for belongs in (lambda leaf: isinstance(leaf, Moments), is_real, lambda leaf: isinstance(leaf, Tensor)):
        for place, leaf in enumerate(leaves):
            if belongs(leaf):
                return place
    return None


def halves(batch: int) -> list[Tensor]:
    """Random halves of the examples, flags of shape ``(batch,)``: of any two examples one is in some half alone."""
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(0))
    return [order >> bit & 1 > 0 for bit in range(max((batch - 1).bit_length(), 1))]
