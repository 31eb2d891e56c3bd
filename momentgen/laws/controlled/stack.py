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
    >>> stack.total(torch.arange(6.0), [0, 1])
    tensor([3., 5., 7.])
    >>> stack.each(torch.arange(3.0), torch.Size([6]))
    tensor([0., 1., 2., 0., 1., 2.])
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

    def total(self, value: Tensor, counted: list[int]) -> Tensor:
        """The sum of some rows' parts, by their place in the stack."""
        place = self.dimension(value.shape)
        if place is None:
            return value if len(counted) == 1 else value * len(counted)
        shape = value.shape  # not unflatten, which torch.vmap has no rule for
        parts = value.reshape(*shape[:place], self.rows, shape[place] // self.rows, *shape[place + 1 :])
        if len(counted) < self.rows:
            parts = parts.index_select(place, torch.tensor(counted, device=value.device))
        return parts.sum(place)

    def each(self, value: Tensor, shape: torch.Size) -> Tensor:
        """A value of one row for every row, of the stack's ``shape``."""
        place = self.dimension(shape)
        if place is None:
            return value * self.rows
        size = [*shape[:place], self.rows, shape[place] // self.rows, *shape[place + 1 :]]
        return value.unsqueeze(place).expand(size).reshape(shape)

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
