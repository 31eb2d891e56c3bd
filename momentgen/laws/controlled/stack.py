"""Rows that go together through one call of the network, one after another in its batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Stack", "UnstackedError", "pieces"]


class UnstackedError(Exception):
    """The network does what rows cannot do together."""


class Stack(NamedTuple):
    """Rows that go together.

    Attributes:
        rows: how many; 1 for a call as the user made it.
        batch: examples of each.

    >>> stack = Stack(rows=2, batch=3)
    >>> stack.of_row(torch.Size([5, 6]))
    torch.Size([5, 3])
    >>> stack.total(torch.arange(6.0), 2)
    tensor([3., 5., 7.])
    """

    rows: int
    batch: int

    def dimension(self, shape: torch.Size) -> int | None:
        """Which dimension counts rows, and in each what one row has; None for what all have in common."""
        if self.rows == 1:
            return None
        whole = self.rows * self.batch
        return next((place for place, size in enumerate(shape) if size and size % whole == 0), None)

    def of_row(self, shape: torch.Size) -> torch.Size:
        """The shape that one row has."""
        place = self.dimension(shape)
        if place is None:
            return shape
        return torch.Size([*shape[:place], shape[place] // self.rows, *shape[place + 1 :]])

    def total(self, value: Tensor, count: int) -> Tensor:
        """The sum of the parts of the first ``count`` rows."""
        place = self.dimension(value.shape)
        if place is None:
            return value * count
        shape = value.shape  # not unflatten, which torch.vmap has no rule for
        parts = value.reshape(*shape[:place], self.rows, shape[place] // self.rows, *shape[place + 1 :])
        return parts.narrow(place, 0, count).sum(place)

    def parts(self, value: Tensor) -> list[Tensor]:
        """The rows of a value with the batch in front."""
        return [value] if self.rows == 1 else list(value.unflatten(0, (self.rows, -1)).unbind())


def pieces(count: int, most: int) -> Iterator[int]:
    """Stacks of at most so many rows.

    >>> list(pieces(11, 4))
    [4, 4, 3]
    """
    while count > 0:
        yield min(count, most)
        count -= most
