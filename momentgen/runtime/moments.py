"""The pair that flows through a moment network: a mean and a variance."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from momentgen.errors import InputError

__all__ = ["Moments"]


class Moments(NamedTuple):
    """Mean and variance of independent random variables, elementwise.

    A named tuple, so it unpacks, and passes through ``torch.compile``,
    ``torch.func`` and pytrees as two tensors.  A tuple's ``+`` and ``*`` would join and repeat the two tensors, which
    nobody means: they raise :class:`~momentgen.errors.InputError`.  Sums and products of random values, which must know
    whether the two are one, are :func:`momentgen.nn.functional.add` and :func:`~momentgen.nn.functional.mul`.

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

    def __add__(self, other: object) -> NoReturn:
        _refuse("+", "add", self, other)

    def __radd__(self, other: object) -> NoReturn:
        _refuse("+", "add", other, self)

    def __mul__(self, other: object) -> NoReturn:
        _refuse("*", "mul", self, other)

    def __rmul__(self, other: object) -> NoReturn:
        _refuse("*", "mul", other, self)


def _refuse(operator: str, function: str, left: object, right: Any) -> NoReturn:
    raise InputError(
        f"Moments: {type(left).__name__} {operator} {type(right).__name__} has no meaning, for Moments is a tuple; use "
        f"momentgen.nn.functional.{function}, or tuple(x) for the pair of tensors"
    )
