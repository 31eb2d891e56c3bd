"""Sums, products and quotients of each value with another; where both are of one source, by ``recognise``."""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws.arguments import tensor_of
from momentgen.laws.covariance import Covariance, covariance
from momentgen.laws.covariance_functions import (
    certain_as_tensor,
    function_of,
    joint,
    linear_of,
    note_curved,
    random_in,
    start_together,
    stretched,
    times,
)
from momentgen.laws.covariance_graph import Push
from momentgen.laws.diagonal import Diagonal, made, pair
from momentgen.laws.expressions import pending
from momentgen.laws.history import is_inside, operand, start_of
from momentgen.laws.law import laws_in, remember, rule
from momentgen.laws.notes import note
from momentgen.laws.point import Point
from momentgen.laws.recognise import combined
from momentgen.laws.rules.products import products
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported

__all__ = ["quotient", "reciprocal"]


@rule(Diagonal, "arithmetic")
def _arithmetic(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, x = entry.name, args[0]
    if name == "neg":
        if x._mean is None:
            return pending(entry, args, kwargs, x._of)
        mean, var = pair(x)
        return remember(made(-mean, var), entry, args, kwargs, x)
    y = args[1]
    if isinstance(x, Point) or isinstance(y, Point):  # a constant, as a tensor is
        x, y = args = (x._form() if isinstance(x, Point) else x, y._form() if isinstance(y, Point) else y)
    if kwargs.get("rounding_mode") is not None:
        raise unsupported(entry, laws_in(args)[0], "rounding is a decision on a random value")
    over, under = (y, x) if name == "rdiv" else (x, y)
    if name in ("div", "rdiv") and isinstance(over, int | float) and operand(under, "exp") is not None:
        return torch.reciprocal(under) * over
    for law, other in ((x, y), (y, x)):  # a pending law and a number: pending
        if isinstance(law, Diagonal) and law._mean is None and isinstance(other, int | float):
            return pending(entry, args, kwargs, law._of)  # type: ignore[arg-type]
    if isinstance(x, Diagonal) and isinstance(y, Diagonal):
        found = combined(entry, x, y, kwargs)
        if found is not None:
            return found
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
    if is_inside("reciprocal", under) and start_of(under) is not None:
        return over * torch.reciprocal(under)
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


# ------------------------------------------------------------ Covariance


@joint("arithmetic")
def _arithmetic_jointly(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args = tuple(map(certain_as_tensor, args))
    laws = random_in(args, {})
    if len(laws) == 1 and len(args) - 1 == sum(not isinstance(value, Covariance) for value in args):
        return remember(_computed(entry, args, kwargs), entry, args, kwargs, laws[0])
    start = start_together(entry, *args)
    if start is None:
        if len(laws) == 2:
            note_curved(entry, *laws)
        return _computed(entry, args, kwargs)
    curved = [start_of(value) is not None for value in args]
    if all(curved) or (any(curved) and entry.name not in ("add", "sub", "rsub")) or "div" in entry.name:
        return function_of(entry, args, kwargs, start)
    return remember(_computed(entry, args, kwargs), entry, args, kwargs, start)


def _computed(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, x = entry.name, args[0]
    if name == "neg":
        return linear_of(entry, -x._mean, [(x, torch.neg)])
    if kwargs.get("rounding_mode") is not None:
        raise unsupported(entry, random_in(args, {})[0], "rounding is a decision on a random value")
    a, b = args
    dtype = torch.result_type(tensor_of(a), tensor_of(b))
    a, b = (value.to(dtype) if isinstance(value, Covariance) else value for value in (a, b))
    if name in ("rsub", "rdiv"):
        name, a, b = name[1:], b, a
    if name == "div":
        if isinstance(b, Covariance):
            return a * torch.reciprocal(cast(Any, b))
        name, b = "mul", 1 / b
    if name == "mul":
        if isinstance(a, Covariance) and isinstance(b, Covariance):
            return products(entry, a, b)
        law: Any = a if isinstance(a, Covariance) else b
        factor: Any = b if law is a else a
        mean = law._mean * factor
        stretch = stretched(law, mean.shape)
        scale = factor.to(mean).expand(mean.shape) if isinstance(factor, Tensor) else mean.new_full((), float(factor))
        return linear_of(entry, mean, [(law, _after(stretch, times(scale)))])
    sign = kwargs.get("alpha", 1) * (1 if name == "add" else -1)
    mean = tensor_of(a) + sign * tensor_of(b)
    parts: list[tuple[Covariance, Push | None]] = []
    for value, factor in ((a, 1), (b, sign)):
        if isinstance(value, Covariance):
            stretch = stretched(value, mean.shape)
            parts.append(
                (value, stretch if factor == 1 else _after(stretch, functools.partial(torch.mul, other=factor)))
            )
    if len(parts) == 1 and parts[0][1] is None:
        return covariance(mean, parts[0][0].node, parts[0][0]._var)
    return linear_of(entry, mean, parts)


def _after(first: Push | None, second: Push) -> Push:
    return second if first is None else lambda rows: second(first(rows))
