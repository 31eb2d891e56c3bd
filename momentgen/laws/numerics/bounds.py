"""Values held within bounds, with the derivative 1 at the bound itself.

Variances of certain values are exactly 0, and rounding makes some negative.  They are held at 0, and the derivative at
exactly 0 must stay.  That of ``torch.clamp`` at its bound is 1 before torch 2.14 and 0 since.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["at_least", "at_most"]


def at_least(x: Tensor, bound: float) -> Tensor:
    """``x`` where it is at least ``bound``, and the bound elsewhere; NaN stays NaN.

    >>> x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    >>> at_least(x, 0).tolist(), torch.autograd.grad(at_least(x, 0).sum(), x)[0].tolist()
    ([0.0, 0.0, 2.0], [0.0, 1.0, 1.0])
    """
    return torch.where(x < bound, bound, x)


def at_most(x: Tensor, bound: float) -> Tensor:
    """``x`` where it is at most ``bound``, and the bound elsewhere; NaN stays NaN.

    >>> at_most(torch.tensor([0.0, 2.0]), 1)
    tensor([0., 1.])
    """
    return torch.where(x > bound, bound, x)
