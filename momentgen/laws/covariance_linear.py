"""What the rules of ``Covariance`` share: linear maps on rows, sums of them, and arguments with laws replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws.covariance import Covariance, covariance, symmetric
from momentgen.laws.covariance_graph import Node, Push, current
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.law import Law, Rule, laws_in
from momentgen.laws.point import Point
from momentgen.laws.table import Entry

__all__ = [
    "all_replaced", "by_rows", "certain_as_tensor", "linear_of", "numbered", "of_diagonal", "picked", "random_in",
    "room", "stretched", "times",
]  # fmt: skip


def room(entry: Entry, out: Tensor) -> None:
    """Whether there is memory for the covariance of ``out``; raises if not."""
    current().check_room(entry.name, out.numel(), out.dtype)


def linear_of(
    entry: Entry, mean: Tensor, parts: list[tuple[Covariance, Push | None]], own: Tensor | None = None
) -> Covariance:
    """A sum of linear maps of laws that may have anything to do with each other.

    Args:
        entry: the function's, for errors.
        mean: of the result.
        parts: laws and maps.
        own: *variances* of independent noise that is added, shape ``(N,)``, or its covariance, shape ``(N, N)``.
    """
    room(entry, mean)
    run = current()
    total: Tensor | None = None
    for law, push in parts:
        of_law: Tensor | None = None  # covariance of the law's values with the result
        for other, other_push in parts:
            found = run.cross(law.node, other.node)
            if found is not None:
                found = found if other_push is None else other_push(found)
                of_law = found if of_law is None else of_law + found
        back = cast(Tensor, of_law).mT
        back = back if push is None else push(back)
        total = back if total is None else total + back
    cov = symmetric(cast(Tensor, total))
    if own is not None:
        cov = cov + (own if own.dim() == 2 else torch.diag_embed(own))
    return covariance(mean, Node(cov, [(law.node, push) for law, push in parts]))


def by_rows(function: Callable[[Tensor], Tensor], shape: torch.Size, chunk: int | None = None) -> Push:
    """A linear function of tensors of that shape, on rows."""

    def one(row: Tensor) -> Tensor:
        return function(row.view(shape)).reshape(-1)

    def push(rows: Tensor) -> Tensor:
        return torch.vmap(one, chunk_size=chunk)(rows.contiguous())

    return push


def times(factor: Tensor) -> Push:
    """Each value times a number, a tensor of the values' shape or without dimensions."""
    flat = factor.reshape(-1)
    return lambda rows: rows * flat


def picked(index: Tensor) -> Push:
    """Each value of the result is a value of the argument; index 0 is the number 0, and others count from 1."""
    places, flat = (index - 1).clamp_min(0).long().reshape(-1), index.reshape(-1)

    def push(rows: Tensor) -> Tensor:
        return rows.index_select(1, places) * (flat > 0).to(rows.dtype)

    return push


def numbered(value: Tensor) -> Tensor:
    """The numbers of the places of a tensor, from 1, in its shape; a floating-point type, which all functions take."""
    return torch.arange(1, value.numel() + 1, dtype=torch.float64, device=value.device).view(value.shape)


def stretched(x: Covariance, shape: torch.Size) -> Push | None:
    """The values of ``x`` broadcast to a shape; None if that is theirs."""
    return None if x.shape == shape else picked(numbered(x._mean).expand(shape))


def _replaced(value: Any, change: Callable[[Law], Any]) -> Any:
    if isinstance(value, Law):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)([_replaced(item, change) for item in value])
    return value


def all_replaced(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Law], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with what ``change`` makes of each law in its place."""
    return tuple(_replaced(value, change) for value in args), {
        name: _replaced(value, change) for name, value in kwargs.items()
    }


def random_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Covariance]:
    """The laws among arguments that are random, each once."""
    found = [law for law in laws_in((*args, *kwargs.values())) if isinstance(law, Covariance)]
    return list({id(law): law for law in found}.values())


def of_diagonal(entry: Entry) -> Rule:
    """The rule that ``Diagonal`` has for a function."""
    return Diagonal.RULES.get(entry.name) or Diagonal.RULES[entry.kind]


def certain_as_tensor(law: Law) -> Any:
    """The tensor of a certain value, other laws as they are; for :func:`all_replaced`."""
    return law._form() if isinstance(law, Point) else law
