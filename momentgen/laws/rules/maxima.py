"""Maxima of random values: over dimensions, of two values, and max pools.

``Diagonal`` has the exact maximum of independent values: the accuracy that :mod:`momentgen.laws.numerics.maximum`
promises is kept.  ``Adjoint`` has a tree of maxima of two, whose derivatives take a small part of that time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.activations import generated_op
from momentgen.laws.affine import adaptive_edges, for_each, window_starts
from momentgen.laws.arguments import tensor_of
from momentgen.laws.covariance import Covariance, covariance
from momentgen.laws.covariance_functions import (
    by_jacobian,
    certain_as_tensor,
    function_of,
    joint,
    linear_of,
    room,
    start_together,
    times,
)
from momentgen.laws.covariance_graph import Node, current
from momentgen.laws.diagonal import Diagonal, made, pair
from momentgen.laws.history import start_of
from momentgen.laws.law import Law, laws_in, remember, rule
from momentgen.laws.numerics import maximum as maxima
from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.recognise import combined
from momentgen.laws.table import Entry, names
from momentgen.laws.unsupported import unsupported

__all__ = ["by_form", "is_monotone", "table_of"]


class Extremum(NamedTuple):
    """What ``max(x, dim)`` returns: which of random values is the largest is a decision, so that it has no indices."""

    values: Any
    indices: Any


class _NoIndices:
    """Raises where somebody asks which of random values was the largest."""

    def __init__(self, error: Exception) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, *_: Any) -> Any:
        raise object.__getattribute__(self, "_error")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise next(object.__getattribute__(value, "_error") for value in args if isinstance(value, cls))


for _operator in names(
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror "
    "xor rxor neg pos abs invert eq ne lt le gt ge getitem setitem len iter contains bool int float index complex array"
):
    setattr(_NoIndices, f"__{_operator}__", _NoIndices.__getattr__)


def by_form(
    entry: Entry,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    pool: Callable[[Any, list[list[list[int]]]], Any],
    over: Callable[[Any, Any, bool, bool], Any],
    of_two: Callable[[Any, Any, bool], Any],
) -> Any:
    """A maximum or minimum by its form: of the windows of :func:`pool_places`, over dimensions (all for none), of two.

    Raises:
        UnsupportedError: if the place of the largest value is asked for.
    """
    x, lower = args[0], "min" in entry.name
    if "pool" in entry.name:
        return pool(x, pool_places(entry, args, kwargs))
    second = kwargs.get("other", kwargs.get("dim", args[1] if len(args) > 1 else None))
    if isinstance(second, Law | Tensor):
        return of_two(*_of_one_dtype(x, second), lower)
    dim = () if second is None else second
    values = over(x, dim, kwargs.get("keepdim", args[2] if len(args) > 2 else False), lower)
    if entry.name in ("amax", "amin") or second is None:
        return values
    return Extremum(values, _NoIndices(unsupported(_DECISION, x)))


def _of_one_dtype(x: Any, y: Any) -> tuple[Any, Any]:
    """Two laws or tensors in the dtype of what torch computes of both."""
    if x.dtype is y.dtype:
        return x, y
    dtype = torch.result_type(tensor_of(x), tensor_of(y))
    return x.to(dtype), y.to(dtype)


@rule(Diagonal, "maximum")
def _maximum(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return by_form(entry, args, kwargs, _max_pool, _over, functools.partial(_of_two, entry))


_DECISION = Entry("argmax", "decision", torch.argmax)


def _of_two(entry: Entry, x: Any, y: Any, lower: bool) -> Any:
    if isinstance(x, Diagonal) and isinstance(y, Diagonal):
        pointwise = Entry(entry.name, "arithmetic", entry.call)
        found = combined(pointwise, x, y, {})
        if found is not None:
            return found
    (m1, v1), (m2, v2) = pair(x), pair(y)
    if lower:
        m1, m2 = -m1, -m2
    if v1 is not None and v2 is not None:
        m1, v1, m2, v2 = torch.broadcast_tensors(m1, v1, m2, v2)
        mean, var = generated_op("maximum", "a maximum of random inputs")(m1, v1, m2, v2)
    else:
        # a certain one: y + ReLU(x − y)
        random, spread, other = (m1, v1, m2) if v1 is not None else (m2, v2, m1)
        random, spread, other = torch.broadcast_tensors(random, spread, other)
        up, var = generated_op("relu", "a maximum")(random - other, spread)
        mean = up + other
    return made(-mean if lower else mean, var)


def _over(x: Any, dim: Any, keepdim: bool, lower: bool) -> Any:
    mean, var = pair(x)
    if not mean.dim():
        return x
    dims = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(mean.dim()))
    dims = tuple(d % mean.dim() for d in dims)
    rest = [d for d in range(mean.dim()) if d not in dims]
    m, v = (part.permute(*rest, *dims).flatten(len(rest)) for part in (-mean if lower else mean, var))
    m, v = maxima.maximum_of(m, v, -1)
    if keepdim:
        shape = [1 if d in dims else size for d, size in enumerate(mean.shape)]
        m, v = m.reshape(shape), v.reshape(shape)
    law = made(-m if lower else m, v)
    return law if lower else remember(law, _AMAX, (x, dims, keepdim), {}, x)


_AMAX = Entry("amax", "maximum", torch.amax)
_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def _max_pool(x: Any, places: list[list[list[int]]]) -> Any:
    mean, var = pair(x)
    first = mean.dim() - len(places)
    table = table_of(places, mean.shape[first:], mean.device)
    shape = (*mean.shape[:first], *(len(windows) for windows in places))
    mean, var = (part.reshape(math.prod(part.shape[:first]), math.prod(part.shape[first:])) for part in (mean, var))
    mean, var = maxima.maximum_of_windows(mean, var, table)
    return made(mean.reshape(shape), var.reshape(shape))


def table_of(places: list[list[list[int]]], sizes: Sequence[int], device: torch.device) -> Tensor:
    """Which values of a flattened image each window has, shape ``(windows, n)``; -1 is outside.

    Args:
        places: for each spatial dimension, the inputs of each window along it; -1 is outside.
        sizes: of the spatial dimensions.
        device: of the table.
    """
    table = torch.zeros(1, 1, dtype=torch.int64, device=device)
    for windows, size in zip(places, sizes, strict=True):
        own = torch.tensor(windows, device=device)[:, None]
        inner = table[:, None, :, None]
        table = torch.where((own < 0) | (inner < 0), -1, inner * size + own)
        table = table.flatten(0, 1).flatten(1)
    return table


def pool_places(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[list[list[int]]]:
    """For each dimension of space of a max pool, the inputs of each window along it; -1 is outside."""
    dims = int(entry.name[-2])
    shape = args[0].shape
    first = len(shape) - dims
    places: list[list[list[int]]] = []
    if entry.name.startswith("adaptive"):
        bound: dict[str, Any] = {**dict(zip(("output_size", "return_indices"), args[1:], strict=False)), **kwargs}
        for d, wanted in enumerate(for_each(bound["output_size"], dims)):
            starts, lengths = adaptive_edges(shape[first + d], wanted)
            pairs = zip(starts, lengths, strict=True)
            places.append([[start + k if k < n else -1 for k in range(max(lengths))] for start, n in pairs])
    else:
        bound = {**dict(zip(_POOL, args[1:], strict=False)), **kwargs}
        kernel = for_each(bound["kernel_size"], dims)
        stride = kernel if bound.get("stride") in (None, [], ()) else for_each(bound["stride"], dims)
        padding, dilation = for_each(bound.get("padding", 0), dims), for_each(bound.get("dilation", 1), dims)
        for d in range(dims):
            size, ceil = shape[first + d], bool(bound.get("ceil_mode", False))
            starts = window_starts(size, kernel[d], stride[d], padding[d], dilation[d], ceil)
            offsets = [dilation[d] * k for k in range(kernel[d])]
            places.append([[start + k if 0 <= start + k < size else -1 for k in offsets] for start in starts])
    if bound.get("return_indices"):
        raise unsupported(entry, args[0], "a maximum of random inputs has no indices to return")
    return places


# ----------------------------------------------------- functions before a maximum


#: functions that keep the order of values, so that the largest stays the largest
_MONOTONE = frozenset(
    names(
        "relu leaky_relu elu celu selu sigmoid tanh softplus hardtanh relu6 clamp clamp_min clamp_max softsign "
        "logsigmoid hardsigmoid erf atan exp normal_cdf"
    )
)


def is_monotone(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is a function of its first argument that does not change the order of its values."""
    if entry.kind != "pointwise" or entry.name not in _MONOTONE or laws_in(args[1:]) or laws_in(kwargs.values()):
        return False
    if entry.name == "leaky_relu":
        return bool(kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01) >= 0)
    if entry.name in ("elu", "celu"):
        return bool(kwargs.get("alpha", args[1] if len(args) > 1 else 1.0) > 0)
    return not any(isinstance(value, Tensor) and value.dim() for value in (*args[1:], *kwargs.values()))


# ------------------------------------------------------------ Covariance


@joint("maximum")
def _maximum_jointly(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    second = kwargs.get("other", args[1] if len(args) > 1 else None)
    if "pool" in entry.name or not isinstance(second, Law | Tensor) or entry.name in ("amax", "amin"):
        return by_jacobian(entry, args, kwargs)
    x, y = _of_one_dtype(*map(certain_as_tensor, (args[0], second)))
    lower = "min" in entry.name
    start = start_together(entry, x, y)
    if start is not None and (start_of(x) is not None or start_of(y) is not None):
        return function_of(Entry(entry.name, "arithmetic", entry.call), (x, y), {}, start)
    if not isinstance(x, Covariance) or not isinstance(y, Covariance):
        law, other = (x, y) if isinstance(x, Covariance) else (y, x)
        return other - torch.relu(other - law) if lower else other + torch.relu(law - other)
    if lower:
        return -_larger_jointly(entry, -x, -y)  # type: ignore[operator]
    return _larger_jointly(entry, x, y)


def _larger_jointly(entry: Entry, x: Any, y: Any) -> Any:
    """The larger of two jointly normal values: mean and variance exactly, covariances by the expected slopes."""
    shape = torch.broadcast_shapes(x.shape, y.shape)
    room(entry, x._mean.expand(shape))
    x, y = (law if law.shape == shape else law.expand(shape) for law in (x, y))
    both = current().cross(x.node, y.node)
    together = torch.zeros_like(x._mean) if both is None else both.diagonal().view(shape)
    op = generated_op("maximum_correlated", entry.name)
    vjp: Any = torch.func.vjp
    mean, pull, var = vjp(lambda m1, m2: tuple(op(m1, x._var, m2, y._var, together)), x._mean, y._mean, has_aux=True)
    slopes = pull(torch.ones_like(mean))
    law = linear_of(entry, mean, [(x, times(slopes[0])), (y, times(slopes[1]))])
    rest = at_least(var.reshape(-1) - law.cov.diagonal(), 0)
    node = Node(law.cov + torch.diag_embed(rest), law.node.parents)
    return covariance(mean, node)
