"""Linear functions of torch that are written over others: one matrix along a few dimensions, or products and sums.

:func:`along` is the mechanism.  It takes a function that is linear in its random argument, along some dimensions, and
makes its matrix from the unit vectors.  Every law has a rule for linear maps, with
squared coefficients or covariances.  So the function is exact under every method for which a linear map is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.covariance import Covariance
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.law import Law, laws_in, rule, tensor_of
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported

__all__ = ["along", "matrix_along"]

#: values that one matrix may mix; its coefficients are their square
_MOST = 4096


def matrix_along(entry: Entry, x: Any, dims: tuple[int, ...], function: Callable[[Tensor], Tensor]) -> Tensor:
    """What a linear function makes of each unit vector of some dimensions.

    Args:
        entry: of the function, for errors.
        x: a law.
        dims: of ``x`` that are mixed.
        function: of tensors whose first dimension is carried along, and whose others are ``dims``.

    Returns:
        Shape ``(N, ...)`` for N values along ``dims``.
    """
    sizes = [x.shape[d] for d in dims]
    count = math.prod(sizes)
    if count > _MOST:
        why = f"up to {_MOST} values along its dimensions have a rule, got {count}; use the method sample"
        raise unsupported(entry.call, x, why, entry)
    return function(torch.eye(count, dtype=x.dtype, device=x.device).view(count, *sizes))


def along(x: Any, dims: tuple[int, ...], matrix: Tensor) -> Any:
    """``x`` with its dimensions ``dims`` mapped by a matrix of shape ``(N, ...)``.

    As many dimensions take their place; others end up last.

    Args:
        x: a law.
        dims: of it.
        matrix: what becomes of each unit vector; its further dimensions are those of the result.
    """
    order = [d % x.ndim for d in dims]
    rest = [d for d in range(x.ndim) if d not in order]
    flat = x.permute(*rest, *order).reshape(*[x.shape[d] for d in rest], len(matrix))
    out = F.linear(flat, matrix.reshape(len(matrix), -1).T)
    out = out.reshape((*out.shape[:-1], *matrix.shape[1:]))
    if matrix.dim() - 1 != len(order):
        return out
    places = [*rest, *order]
    return out.permute(*[places.index(d) for d in range(x.ndim)])


def _only_first(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not isinstance(args[0], Law) or any(law.RANK for law in laws_in((*args[1:], *kwargs.values()))):
        law = laws_in((*args, *kwargs.values()))[0]
        raise unsupported(entry.call, law, "only its first argument may be random", entry)
    return args[0], [tensor_of(value) for value in args[1:]], {k: tensor_of(v) for k, v in kwargs.items()}


@rule(Diagonal, "trapezoid", "trapz", "cumulative_trapezoid")
@rule(Covariance, "trapezoid", "trapz", "cumulative_trapezoid")
def _trapezoid(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    y, rest, named = _only_first(entry, args, kwargs)
    dim = named.pop("dim", -1)
    x = named.pop("x", rest[0] if rest else None)
    if x is not None and x.dim() > 1:
        raise unsupported(entry.call, y, "places in one dimension have a rule", entry)
    given = (x,) if x is not None else ()
    return along(y, (dim,), matrix_along(entry, y, (dim,), lambda unit: entry.call(unit, *given, dim=-1, **named)))


@rule(Diagonal, "gradient")
@rule(Covariance, "gradient")
def _gradient(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, _, named = _only_first(entry, args, kwargs)
    dim, spacing = named.get("dim"), named.get("spacing", 1)
    dims = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    steps = list(spacing) if isinstance(spacing, tuple | list) else [spacing] * len(dims)
    order = named.get("edge_order", 1)

    def one(d: int, step: Any) -> Any:
        own = (step,) if isinstance(step, Tensor) else step
        matrix = matrix_along(
            entry, x, (d,), lambda unit: torch.gradient(unit, spacing=own, dim=1, edge_order=order)[0]
        )
        return along(x, (d,), matrix)

    return tuple(one(d, step) for d, step in zip(dims, steps, strict=True))


_GRID = ("grid", "mode", "padding_mode", "align_corners")


@rule(Diagonal, "grid_sample")
@rule(Covariance, "grid_sample")
def _grid_sample(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Images at certain places: one linear map for each example."""
    x, rest, named = _only_first(entry, args, kwargs)
    bound = {**dict(zip(_GRID, rest, strict=False)), **named}
    grids, dims = bound.pop("grid"), tuple(range(2 - x.ndim, 0))

    def one(image: Any, grid: Tensor) -> Any:
        def sampled(unit: Tensor) -> Tensor:
            return F.grid_sample(unit[None], grid[None], **bound)[0]

        return along(image, dims, matrix_along(entry, image, dims, sampled))

    return torch.stack([one(image, grid) for image, grid in zip(x.unbind(0), grids, strict=True)])


@rule(Diagonal, "affine_grid")
@rule(Covariance, "affine_grid")
def _affine_grid(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    theta, rest, named = _only_first(entry, args, kwargs)
    bound = {**dict(zip(("size", "align_corners"), rest, strict=False)), **named}
    size = bound.pop("size")

    def places(unit: Tensor) -> Tensor:
        return F.affine_grid(unit, [len(unit), *size[1:]], **bound)

    return along(theta, (-2, -1), matrix_along(entry, theta, (-2, -1), places))


@rule(Diagonal, "trace")
@rule(Covariance, "trace")
def _trace(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].diagonal().sum()


@rule(Diagonal, "linalg_vecdot")
@rule(Covariance, "linalg_vecdot")
def _vecdot(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return (args[0] * args[1]).sum(kwargs.get("dim", -1))


@rule(Diagonal, "vdot")
@rule(Covariance, "vdot")
def _vdot(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return (args[0] * args[1]).sum(-1)


@rule(Diagonal, "cross")
@rule(Covariance, "cross")
def _cross(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, y, *rest = args
    dim = kwargs.get("dim", rest[0] if rest else None)
    if dim is None:
        dim = -1 if entry.call is torch.linalg.cross else list(x.shape).index(3)
    x, y = (value.expand(torch.broadcast_shapes(x.shape, y.shape)) for value in (x, y))
    return x.roll(-1, dim) * y.roll(-2, dim) - x.roll(-2, dim) * y.roll(-1, dim)


@rule(Diagonal, "kron")
@rule(Covariance, "kron")
def _kron(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, y = args[0], args[1] if len(args) > 1 else kwargs["other"]
    most = max(x.ndim, y.ndim)
    a, b = ([1] * (most - value.ndim) + list(value.shape) for value in (x, y))
    first = x.reshape([size for n in a for size in (n, 1)])
    second = y.reshape([size for n in b for size in (1, n)])
    return (first * second).reshape([n * m for n, m in zip(a, b, strict=True)])


@rule(Diagonal, "chain_matmul", "linalg_multi_dot")
@rule(Covariance, "chain_matmul", "linalg_multi_dot")
def _chain(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Matrices in turn: certain neighbours first, so that a random matrix meets one on each side."""
    factors: list[Any] = []
    for factor in args if entry.name == "chain_matmul" else args[0]:
        if factors and not isinstance(factor, Law) and not isinstance(factors[-1], Law):
            factor = factors.pop() @ factor
        factors.append(factor)
    found = factors[0]
    for factor in factors[1:]:
        found = found @ factor
    return found
