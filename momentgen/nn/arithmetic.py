"""Sums, products, joins and reductions of random values, taken as independent.

A value met with itself is seen (``add(x, x)`` is 2x, ``mul(x, x)`` is X²).  Values
that depend on one another in another way, as the branches of a residual block do,
are taken as independent: that is what diagonal propagation ignores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.nn.layer import Layer, as_moments, certain, is_certain, known
from momentgen.runtime import Moments

__all__ = ["Add", "Cat", "Mul", "add", "cat", "div", "matmul", "mean", "mul", "neg", "stack", "sub", "sum"]

Value = Moments | Tensor | float


def _same(x: object, y: object) -> bool:
    return isinstance(x, Moments) and isinstance(y, Moments) and x.mean is y.mean and x.var is y.var


def _pair(where: str, value: Value) -> tuple[Any, Any]:
    """Mean and variance; the variance of what is certain is None."""
    if isinstance(value, Moments):
        value = as_moments(where, value)
        return value.mean, None if is_certain(value) else value.var
    return value, None


def _made(mean: Tensor, var: Tensor | None) -> Moments:
    return certain(mean) if var is None else known(mean, var.to(mean.dtype).expand(mean.shape))


def add(x: Value, y: Value, *, alpha: float = 1) -> Moments:
    """``x + alpha y`` for independent x and y, broadcast; ``add(x, x)`` is (1 + alpha) x.

    >>> x = Moments(torch.tensor([1.0]), torch.tensor([2.0]))
    >>> add(x, Moments(torch.tensor([1.0]), torch.tensor([3.0]))).var, add(x, x).var
    (tensor([5.]), tensor([8.]))
    """
    (m1, v1), (m2, v2) = _pair("add", x), _pair("add", y)
    total = m1 + m2 if alpha == 1 else m1 + alpha * m2
    if v2 is not None and _same(x, y):
        return _made(total, (1 + alpha) ** 2 * v1)
    if v2 is not None and alpha not in (1, -1):
        v2 = alpha**2 * v2
    return _made(total, v1 if v2 is None else v2 if v1 is None else v1 + v2)


def sub(x: Value, y: Value, *, alpha: float = 1) -> Moments:
    """``x - alpha y`` for independent x and y, broadcast."""
    (m1, v1), (m2, v2) = _pair("sub", x), _pair("sub", y)
    total = m1 - m2 if alpha == 1 else m1 - alpha * m2
    if v2 is not None and _same(x, y):
        return _made(total, (1 - alpha) ** 2 * v1)
    if v2 is not None and alpha not in (1, -1):
        v2 = alpha**2 * v2
    return _made(total, v1 if v2 is None else v2 if v1 is None else v1 + v2)


def neg(x: Moments) -> Moments:
    """``-x``."""
    m, v = _pair("neg", x)
    return _made(-m, v)


def mul(x: Value, y: Value) -> Moments:
    """Product of independent values, broadcast; ``mul(x, x)`` is X² of a normal X.

    Mean m1 m2, variance v1 v2 + v1 m2² + m1² v2 (Shekhovtsov & Flach 2018, (8)); for X², m² + v and 2v² + 4m²v.
    """
    (m1, v1), (m2, v2) = _pair("mul", x), _pair("mul", y)
    product = m1 * m2
    if v1 is None and v2 is None:
        return certain(product)
    if _same(x, y):
        return known(product + v1, 2 * v1 * (v1 + 2 * m1 * m1))
    if v1 is None or v2 is None:
        factor, var = (m1, v2) if v1 is None else (m2, v1)
        return _made(product, factor * factor * var)
    return _made(product, v1 * (v2 + m2 * m2) + m1 * m1 * v2)


def div(x: Value, y: Value) -> Moments:
    """``x / y`` for a certain y.

    Raises:
        InputError: for a random y: the quotient of normal variables has no mean.
    """
    (m1, v1), (m2, v2) = _pair("div", x), _pair("div", y)
    if v2 is not None:
        raise InputError("div: the denominator is random, and a quotient of normal variables has no moments")
    return _made(m1 / m2, None if v1 is None else v1 / (m2 * m2))


def matmul(x: Value, y: Value) -> Moments:
    """``x @ y`` for independent x and y, either of which may be certain; exact."""
    (m1, v1), (m2, v2) = _pair("matmul", x), _pair("matmul", y)
    product = m1 @ m2
    if v1 is None and v2 is None:
        return certain(product)
    if _same(x, y):
        raise InputError("matmul: a random matrix times itself has no rule")
    if v2 is None:
        return known(product, v1 @ m2.square())
    if v1 is None:
        return known(product, m1.square() @ v2)
    return known(product, v1 @ (v2 + m2.square()) + m1.square() @ v2)


def mean(x: Moments, dim: Any = None, keepdim: bool = False) -> Moments:
    """Average over ``dim`` of values taken as independent; its variance is that of each over their number."""
    m, v = _pair("mean", x)
    dims = _dims(m, dim)
    n = torch.Size([m.shape[d] for d in dims]).numel()
    return _made(m.mean(dims, keepdim), None if v is None else v.mean(dims, keepdim) / n)


def sum(x: Moments, dim: Any = None, keepdim: bool = False) -> Moments:
    """The sum of independent values over ``dim``."""
    m, v = _pair("sum", x)
    dims = _dims(m, dim)
    return _made(m.sum(dims, keepdim), None if v is None else v.sum(dims, keepdim))


def _dims(x: Tensor, dim: Any) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(x.dim()))
    return tuple(dim) if isinstance(dim, tuple | list) else (dim,)


def _join(join: Any, values: Sequence[Moments | Tensor], dim: int) -> Moments:
    parts = [as_moments(join.__name__, value) for value in values]
    means = join([part.mean for part in parts], dim)
    return certain(means) if all(map(is_certain, parts)) else known(means, join([part.var for part in parts], dim))


def cat(values: Sequence[Moments | Tensor], dim: int = 0) -> Moments:
    """:func:`torch.cat` of moments and tensors (which are certain)."""
    return _join(torch.cat, values, dim)


def stack(values: Sequence[Moments | Tensor], dim: int = 0) -> Moments:
    """:func:`torch.stack` of moments and tensors (which are certain)."""
    return _join(torch.stack, values, dim)


class Add(Layer):
    """``x + y`` of independent inputs: the end of a residual block."""

    arity = 2
    elementwise = True

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def moments(self, x: Moments, y: Moments) -> Moments:
        return add(x, y)

    def statistics(self, x: Moments, y: Moments) -> Moments:  # type: ignore[override]
        return add(x, y)


class Mul(Layer):
    """``x y`` of independent inputs: gates."""

    arity = 2

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def moments(self, x: Moments, y: Moments) -> Moments:
        return mul(x, y)

    def statistics(self, x: Moments, y: Moments) -> Moments:  # type: ignore[override]
        return mul(x, y)


class Cat(Layer):
    """:func:`torch.cat` of two inputs or more.

    Args:
        dim: the dimension along which they are joined.
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    @property
    def arity(self) -> int:  # type: ignore[override]
        return 1 << 30

    def plain(self, *values: Tensor) -> Tensor:
        return torch.cat(values, self.dim)

    def moments(self, *values: Moments) -> Moments:
        return cat(values, self.dim)

    def statistics(self, *values: Moments) -> Moments:
        return cat(values, 0)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
