"""Maxima of random values, for ``Diagonal``: over dimensions, of two values, and max pools."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.affine import adaptive_edges, window_starts
from momentgen.laws.diagonal import Diagonal, made, pair
from momentgen.laws.law import Rule, remember
from momentgen.laws.numerics import maximum as maxima
from momentgen.laws.table import Entry, names
from momentgen.laws.unsupported import unsupported

__all__ = ["RULES", "Extremum"]


class Extremum(NamedTuple):
    """What ``max(x, dim)`` returns: which of random values is the largest is a decision, so that it has no indices."""

    values: Any
    indices: Any


class _NoIndices:
    """Raises where somebody asks which of random values was the largest."""

    def __init__(self, error: Exception) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, name: str) -> Any:
        raise object.__getattribute__(self, "_error")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise next(object.__getattribute__(value, "_error") for value in args if isinstance(value, cls))


def _asked(self: _NoIndices, *_: Any) -> Any:
    raise object.__getattribute__(self, "_error")


for _operator in names(
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror "
    "xor rxor neg pos abs invert eq ne lt le gt ge getitem setitem len iter contains bool int float index complex array"
):
    setattr(_NoIndices, f"__{_operator}__", _asked)


def _maximum(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, x = entry.name, args[0]
    if "pool" in name:
        return _max_pool(entry, args, kwargs)
    lower = "min" in name
    if name in ("amax", "amin"):
        dim = kwargs.get("dim", args[1] if len(args) > 1 else ())
        return _over(x, dim, kwargs.get("keepdim", args[2] if len(args) > 2 else False), lower)
    second = kwargs.get("other", kwargs.get("dim", args[1] if len(args) > 1 else None))
    if second is None:
        return _over(x, (), False, lower)
    if isinstance(second, int):
        values = _over(x, second, kwargs.get("keepdim", args[2] if len(args) > 2 else False), lower)
        return Extremum(values, _NoIndices(unsupported(entry.call, x, None, _DECISION)))
    return _of_two(entry, x, second, lower)


_DECISION = Entry("argmax", "decision", torch.argmax)


def _of_two(entry: Entry, x: Any, y: Any, lower: bool) -> Any:
    from momentgen.laws.activations import generated_op
    from momentgen.laws.source import combined

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


def _max_pool(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dims = int(entry.name[-2])
    mean, var = pair(args[0])
    first = mean.dim() - dims
    places: list[list[list[int]]] = []
    if entry.name.startswith("adaptive"):
        bound: dict[str, Any] = {**dict(zip(("output_size", "return_indices"), args[1:], strict=False)), **kwargs}
        for d, wanted in enumerate(_tuple(bound["output_size"], dims)):
            starts, lengths = adaptive_edges(mean.shape[first + d], wanted)
            pairs = zip(starts, lengths, strict=True)
            places.append([[start + k if k < n else -1 for k in range(max(lengths))] for start, n in pairs])
    else:
        bound = {**dict(zip(_POOL, args[1:], strict=False)), **kwargs}
        kernel = _tuple(bound["kernel_size"], dims)
        stride = kernel if bound.get("stride") in (None, [], ()) else _tuple(bound["stride"], dims)
        padding, dilation = _tuple(bound.get("padding", 0), dims), _tuple(bound.get("dilation", 1), dims)
        for d in range(dims):
            size, ceil = mean.shape[first + d], bool(bound.get("ceil_mode", False))
            starts = window_starts(size, kernel[d], stride[d], padding[d], dilation[d], ceil)
            offsets = [dilation[d] * k for k in range(kernel[d])]
            places.append([[start + k if 0 <= start + k < size else -1 for k in offsets] for start in starts])
    if bound.get("return_indices"):
        raise unsupported(entry.call, args[0], "a maximum of random inputs has no indices to return", entry)
    return made(*maximum_of_windows(mean, var, places))


def _tuple(value: Any, dims: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * dims


def maximum_of_windows(mean: Tensor, var: Tensor, places: list[list[list[int]]]) -> tuple[Tensor, Tensor]:
    """The maximum of each window over the last dimensions.

    Args:
        mean: means, the spatial dimensions last.
        var: *variances*, of the same shape.
        places: for each spatial dimension, the inputs of each window along it; -1 is outside.
    """
    dims = len(places)
    first = mean.dim() - dims
    outside = False
    for d, windows in enumerate(places):
        # Each dimension becomes two: windows, and places within one, which move to the end.
        index = torch.tensor([max(k, 0) for window in windows for k in window], device=mean.device)
        shape = (len(windows), len(windows[0]))
        mean, var = (part.index_select(first + d, index) for part in (mean, var))
        mean, var = (torch.unflatten(part, first + d, shape).movedim(first + d + 1, -1) for part in (mean, var))
        outside = outside or any(k < 0 for window in windows for k in window)
    mean, var = mean.flatten(first + dims), var.flatten(first + dims)
    if outside:
        valid = torch.tensor([[True]], device=mean.device)
        for d, windows in enumerate(places):
            own = torch.tensor([[k >= 0 for k in window] for window in windows], device=mean.device)
            grid = [1] * (2 * dims)
            grid[d], grid[dims + d] = own.shape
            valid = own.view(grid) if d == 0 else valid & own.view(grid)
        mask = valid.flatten(dims)
        mean, var = torch.where(mask, mean, -math.inf), torch.where(mask, var, 0)
    return maxima.maximum_of(mean, var, -1)


#: rules of Diagonal, by name and kind
RULES: dict[str, Rule] = {
    "maximum": _maximum,
}
