"""``Point``: a value that is certain.  The rule of every function is the function itself, bit for bit.

A point also decides what becomes of it where the network itself is random (dropout in training, injected noise).
Under AP2 it becomes a :class:`~momentgen.laws.diagonal.Diagonal`.  Under AP1 noise is taken at its mean, so that a
point stays one.
"""

from __future__ import annotations

from torch import Tensor

from momentgen.laws.law import Law, new_law
from momentgen.laws.pytrees import register_pytree
from momentgen.runtime.inputs import HALVES

__all__ = ["Point", "point"]


@register_pytree
class Point(Law):
    """A certain value.

    >>> import torch
    >>> x = point(torch.tensor([-1.0, 2.0]))
    >>> x.shape, x.value
    (torch.Size([2]), tensor([-1.,  2.]))
    """

    __slots__ = ()
    RANK = 0

    @property
    def value(self) -> Tensor:
        """The value itself."""
        return self._form()


def point(value: Tensor, noise: type[Law] | None = None) -> Point:
    """A certain value.

    Args:
        value: any tensor.
        noise: the class of laws that noise of the network's own makes of it; None takes noise at its mean.  With a
            class, half precision becomes float32.
    """
    if noise is not None and value.dtype in HALVES:
        value = value.float()
    law: Point = new_law(Point, value)
    law._noise = noise
    return law
