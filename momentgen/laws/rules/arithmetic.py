"""Sums, products and quotients of each value with another; of one source, by ``programs`` and ``patterns``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from momentgen.laws import table
from momentgen.laws.diagonal import Diagonal, made, pair
from momentgen.laws.law import laws_in, remember, rule
from momentgen.laws.notes import note
from momentgen.laws.patterns import pattern
from momentgen.laws.point import Point
from momentgen.laws.programs import applied, note_if_related
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported

__all__ = ["quotient", "reciprocal"]


@rule(Diagonal, "arithmetic")
def _arithmetic(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, x = entry.name, args[0]
    if name == "neg":
        if x._mean is None:
            return applied(entry, args, kwargs)
        mean, var = pair(x)
        return remember(made(-mean, var), entry, args, kwargs, x)
    y = args[1]
    if isinstance(x, Point) or isinstance(y, Point):  # a constant, as a tensor is
        x, y = args = (x._form() if isinstance(x, Point) else x, y._form() if isinstance(y, Point) else y)
    if kwargs.get("rounding_mode") is not None:
        raise unsupported(entry, laws_in(args)[0], "rounding is a decision on a random value")
    of_two = isinstance(x, Diagonal) and isinstance(y, Diagonal)
    if of_two or any(
        law._mean is None and isinstance(other, int | float)
        for law, other in ((x, y), (y, x))
        if isinstance(law, Diagonal)
    ):
        if (found := applied(entry, args, kwargs)) is not None:
            return found
        if of_two and (found := pattern(entry, x, y)) is not None:
            return found
        note_if_related(entry, x, y)
    (m1, v1), (m2, v2) = pair(x), pair(y)
    if (v2 is not None and name == "div") or (v1 is not None and name == "rdiv"):
        return quotient(entry, args, kwargs)
    law = made(entry.call(m1, m2, **kwargs), _combined_variance(name, m1, v1, m2, v2, kwargs.get("alpha", 1)))
    return law if v1 is not None and v2 is not None else remember(law, entry, args, kwargs, y if v1 is None else x)


def _combined_variance(name: str, m1: Any, v1: Tensor | None, m2: Any, v2: Tensor | None, alpha: float) -> Tensor:
    """Variance of a sum or product of independent values, at least one of them random."""
    if name in ("add", "sub", "rsub"):
        if alpha != 1:
            v2 = None if v2 is None else alpha * alpha * v2
            if name == "rsub":
                v1, v2 = (None if v1 is None else alpha * alpha * v1), (None if v2 is None else v2 / (alpha * alpha))
        if v1 is None or v2 is None:
            return v2 if v1 is None else v1  # type: ignore[return-value]
        return v1 + v2
    if name == "mul":
        if v1 is None:
            return m1 * m1 * v2
        if v2 is None:
            return m2 * m2 * v1
        return v1 * (v2 + m2 * m2) + m1 * m1 * v2
    return v1 / (m2 * m2) if v1 is not None else v2 / (m1 * m1)


def quotient(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A quotient with a random denominator, of independent values."""
    over, under = (args[0], args[1]) if entry.name == "div" else (args[1], args[0])
    if (found := applied(table.TABLE[torch.reciprocal], (under,), {})) is not None:
        return over * found
    note(
        "a quotient by a random value: its moments exist only where the denominator keeps away from 0. They are right "
        "to second order there, and only in size where the denominator is within some four standard deviations of 0"
    )
    m, v = reciprocal(*under._parts())
    m1, v1 = pair(over)
    law = made(m1 * m, _combined_variance("mul", m1, v1, m, v, 1))
    return law if v1 is not None else remember(law, entry, args, kwargs, under)


def reciprocal(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of 1/X, for X that keeps away from 0.

    With c = var/mean² the mean is (1 + c)/mean and the variance c (1 + 8c)/mean², to second order.  Moments of a normal
    variable's reciprocal do not exist; what is left out is 0.05 % of σ at c = 0.0025 and 1 % at 0.01.  Beyond, the two
    stay bounded by the noise: they only tell that 1/X is of the order of 1/√var there.
    """
    m, v = mean.double(), var.double()
    random = ~(v <= 0)  # also where it is NaN
    square = torch.where(random, m * m, 1)
    spread = torch.where(random, v, 0)
    about = torch.sign(m) * (square + 2.5 * spread) / (square + spread) ** 1.5
    inverse = torch.where(random, about, 1 / torch.where(random, 1.0, m))
    return inverse.to(mean.dtype), (spread * (square + 20 * spread) / (square + 4 * spread) ** 3).to(mean.dtype)
