"""``Diagonal``: mean and variance of each value, taken as independent and, where a function is not affine, normal.

This is AP2 (Shekhovtsov & Flach 2018).  The rules are in :mod:`momentgen.laws.rules`; variances there are sums of
non-negative terms.  A value met with itself, or with a function of itself, is not taken as independent: see
:mod:`~momentgen.laws.expressions` and :mod:`~momentgen.laws.recognise`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from momentgen.laws.arguments import tensor_of
from momentgen.laws.law import Law, MomentsOf, new_law
from momentgen.laws.point import Point
from momentgen.laws.pytrees import register_pytree
from momentgen.runtime import Moments
from momentgen.runtime.inputs import HALVES

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["Diagonal", "diagonal", "is_random", "made", "mean_of", "pair", "var_of"]


@register_pytree
class Diagonal(Law):
    """Mean and variance of independent values.

    >>> x = diagonal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    >>> (2 * x + 1).moments().var
    tensor([4., 0.])
    """

    __slots__ = ()
    RANK = 1

    def moments(self) -> Moments:
        """Mean and variance."""
        return Moments(*pair(self))

    def _form(self) -> Tensor:
        if self._view is not None:
            self._refresh()
        return self._mean if self._mean is not None else cast(Any, self._history).later.form

    def _parts(self) -> tuple[Tensor, ...]:
        if self._view is not None:
            self._refresh()
        if self._mean is None:
            self._mean, self._var = cast(Any, self._history).later.moments()
        return (self._mean, self._var)

    def by_moments(self, function: MomentsOf) -> Diagonal:
        """A function of one value at a time, given by its mean and variance from those of the value."""
        return made(*function(*self._parts()))


def diagonal(mean: Float[Tensor, "*shape"], var: Float[Tensor, "*shape"]) -> Diagonal:
    """Independent values of that mean and variance, two tensors of one shape, dtype and device; halves as float32."""
    if mean.dtype in HALVES:
        mean, var = mean.float(), var.float()
    law: Diagonal = new_law(Diagonal, mean, var)
    law._noise = Diagonal
    return law


def pair(value: Any) -> tuple[Any, Any]:
    """Mean and variance of a law, a tensor or a number; certain values have the variance None."""
    if isinstance(value, Diagonal):
        parts = value._parts()
        return parts[0], parts[1]
    if isinstance(value, Point):
        return value._form(), None
    return value, None


def mean_of(value: Any) -> Any:
    """The mean; tuples and lists item by item."""
    if isinstance(value, Diagonal):
        return value._parts()[0]
    if type(value) in (tuple, list):
        return type(value)([mean_of(item) for item in value])
    return tensor_of(value)


def var_of(value: Any) -> Any:
    """The variance, 0 of what is certain; tuples and lists item by item."""
    if isinstance(value, Diagonal):
        return value._parts()[1]
    if type(value) in (tuple, list):
        return type(value)([var_of(item) for item in value])
    mean = tensor_of(value)
    return torch.zeros_like(mean) if isinstance(mean, Tensor) else 0.0


def made(mean: Tensor, var: Tensor) -> Diagonal:
    """A law of an output: the variance in the mean's dtype and shape."""
    if var.dtype is not mean.dtype:
        var = var.to(mean.dtype)
    if var.shape != mean.shape:
        var = var.expand(mean.shape)
    return diagonal(mean, var)


def is_random(value: Any) -> bool:
    """Whether there is anything uncertain in an argument."""
    if type(value) in (tuple, list):
        return any(is_random(item) for item in value)
    return isinstance(value, Law) and value.RANK > 0
