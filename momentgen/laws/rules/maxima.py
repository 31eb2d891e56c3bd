"""Maxima of random values: over dimensions, of two values, and max pools.

``Diagonal`` has the exact maximum of independent values: the accuracy that :mod:`momentgen.laws.numerics.maximum`
promises is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import momentgen.generated
from momentgen.errors import InputError
from momentgen.laws.diagonal import Diagonal, dims_of, made, pair, tensor_of
from momentgen.laws.law import Law, laws_in, new_law, remember, rule
from momentgen.laws.notes import unsupported
from momentgen.laws.numerics import maximum as maxima
from momentgen.laws.programs import applied, note_if_related
from momentgen.laws.rules.linear import for_each
from momentgen.laws.table import Entry


class Extremum(NamedTuple):
    """What ``max(x, dim)`` returns: which of random values is the largest is a decision, so that it has no indices."""

    values: Any
    indices: Any


class Which(Law):
    """Which of random values was the largest: whatever is asked of it raises its error."""

    __slots__ = ("error",)
    RANK = 9
    error: Exception

    def _form(self) -> Tensor:
        raise self.error


@rule(Which, "*")
def _asked(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise next(law.error for law in laws_in((*args, *kwargs.values())) if isinstance(law, Which))


@rule(Diagonal, "maximum")
def _maximum(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A maximum or minimum by its form: of the windows of a pool, over dimensions (all for none), of two.

    Raises:
        UnsupportedError: if the place of the largest value is asked for.
    """
    x, lower = args[0], "min" in entry.name
    if "pool" in entry.name:
        return _max_pool(x, _pool_places(entry, args, kwargs))
    second = kwargs.get("other", kwargs.get("dim", args[1] if len(args) > 1 else None))
    if isinstance(second, Law | Tensor):
        if x.dtype is not second.dtype:
            dtype = torch.result_type(tensor_of(x), tensor_of(second))
            x, second = x.to(dtype), second.to(dtype)
        return _of_two(entry, x, second, lower)
    dim = () if second is None else second
    values = _over(x, dim, kwargs.get("keepdim", args[2] if len(args) > 2 else False), lower)
    if entry.name in ("amax", "amin") or second is None:
        return values
    which: Which = new_law(Which, None)  # type: ignore[arg-type]
    which.error = unsupported(_DECISION, x)
    return Extremum(values, which)


_DECISION = Entry("argmax", "decision", torch.argmax)


def _of_two(entry: Entry, x: Any, y: Any, lower: bool) -> Any:
    if isinstance(x, Diagonal) and isinstance(y, Diagonal):
        pointwise = Entry(entry.name, "arithmetic", entry.call)
        found = applied(pointwise, (x, y), {})
        if found is not None:
            return found
        note_if_related(entry, x, y)
    (m1, v1), (m2, v2) = pair(x), pair(y)
    if lower:
        m1, m2 = -m1, -m2
    if v1 is not None and v2 is not None:
        m1, v1, m2, v2 = torch.broadcast_tensors(m1, v1, m2, v2)
        mean, var = momentgen.generated.maximum(m1, v1, m2, v2)
    else:
        # a certain one: y + ReLU(x − y)
        random, spread, other = (m1, v1, m2) if v1 is not None else (m2, v2, m1)
        random, spread, other = torch.broadcast_tensors(random, spread, other)
        up, var = momentgen.generated.relu(random - other, spread)
        mean = up + other
    return made(-mean if lower else mean, var)


def _over(x: Any, dim: Any, keepdim: bool, lower: bool) -> Any:
    mean, var = pair(x)
    if not mean.dim():
        return x
    dims = dims_of(mean.dim(), dim)
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
    table = _table_of(places, mean.shape[first:], mean.device)
    shape = (*mean.shape[:first], *(len(windows) for windows in places))
    mean, var = (part.reshape(math.prod(part.shape[:first]), math.prod(part.shape[first:])) for part in (mean, var))
    mean, var = maxima.maximum_of_windows(mean, var, table)
    return made(mean.reshape(shape), var.reshape(shape))


def _table_of(places: list[list[list[int]]], sizes: Sequence[int], device: torch.device) -> Tensor:
    """Which values of a flattened image each window has, by the inputs of each window along each dimension of space.

    Of shape ``(windows, n)``; -1 is outside.
    """
    table = torch.zeros(1, 1, dtype=torch.int64, device=device)
    for windows, size in zip(places, sizes, strict=True):
        own = torch.tensor(windows, device=device)[:, None]
        inner = table[:, None, :, None]
        table = torch.where((own < 0) | (inner < 0), -1, inner * size + own)
        table = table.flatten(0, 1).flatten(1)
    return table


def _window_starts(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> list[int]:
    """Where the windows of a pool start along one dimension, as torch places them."""
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (reach + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1  # the last window must start inside the input or its left padding
    if count < 1:
        raise InputError(f"pool: a kernel of {kernel} (dilation {dilation}) does not fit an input of size {size}")
    return [place * stride - padding for place in range(count)]


def _adaptive_edges(size: int, wanted: int | None) -> tuple[list[int], list[int]]:
    """Start and length of the windows of an adaptive pool along one dimension."""
    count = size if wanted is None else wanted
    starts = [place * size // count for place in range(count)]
    return starts, [-(-(place + 1) * size // count) - start for place, start in enumerate(starts)]


def _pool_places(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[list[list[int]]]:
    """For each dimension of space of a max pool, the inputs of each window along it; -1 is outside."""
    dims = int(entry.name[-2])
    shape = args[0].shape
    first = len(shape) - dims
    places: list[list[list[int]]] = []
    if entry.name.startswith("adaptive"):
        bound: dict[str, Any] = {**dict(zip(("output_size", "return_indices"), args[1:], strict=False)), **kwargs}
        for d, wanted in enumerate(for_each(bound["output_size"], dims)):
            starts, lengths = _adaptive_edges(shape[first + d], wanted)
            pairs = zip(starts, lengths, strict=True)
            places.append([[start + k if k < n else -1 for k in range(max(lengths))] for start, n in pairs])
    else:
        bound = {**dict(zip(_POOL, args[1:], strict=False)), **kwargs}
        kernel = for_each(bound["kernel_size"], dims)
        stride = kernel if bound.get("stride") in (None, [], ()) else for_each(bound["stride"], dims)
        padding, dilation = for_each(bound.get("padding", 0), dims), for_each(bound.get("dilation", 1), dims)
        for d in range(dims):
            size, ceil = shape[first + d], bool(bound.get("ceil_mode", False))
            starts = _window_starts(size, kernel[d], stride[d], padding[d], dilation[d], ceil)
            offsets = [dilation[d] * k for k in range(kernel[d])]
            places.append([[start + k if 0 <= start + k < size else -1 for k in offsets] for start in starts])
    if bound.get("return_indices"):
        raise unsupported(entry, args[0], "a maximum of random inputs has no indices to return")
    return places
