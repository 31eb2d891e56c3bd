"""Maxima of ``Adjoint``: a tree of maxima of two, whose derivatives take a small part of the exact maximum's time."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.activations import generated_op
from momentgen.laws.adjoint import Adjoint, shifted_law
from momentgen.laws.arguments import tensor_of
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.probes import Probes, probes_of
from momentgen.laws.recognise import combined
from momentgen.laws.rules.maxima import by_form, is_monotone, table_of
from momentgen.laws.sources import SOURCES, constant
from momentgen.laws.table import Entry

__all__ = ["maximum"]

#: mean of what is outside a window, of variance 0: below all else, and finite
_OUTSIDE = -1e30
#: a value as its mean, its *variance* and its probes, whose dimension stands before those of the mean
Parts = tuple[Tensor, ...]


def maximum(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tree of pairs: its derivatives take a small part of the exact maximum's time.

    A pool of a monotone function is that function of the pool, the same number but nearer to normal values.
    """
    x = args[0]
    if "pool" in entry.name and isinstance(x, Diagonal) and (made := x._made) is not None and is_monotone(*made):
        before, (source, *rest), named = made
        return before.call(maximum(entry, (source, *args[1:]), kwargs), *rest, **named)
    return by_form(entry, args, kwargs, _pool, _over, functools.partial(_of_two, entry))


def _pool(x: Any, places: list[list[list[int]]]) -> Any:
    own, dims, rank = _parts_of(x, x), len(places), x.dim()
    table = table_of(places, x.shape[rank - dims :], x.device).mT
    counts = [len(windows) for windows in places]
    windows = []
    for part, fill in zip(own, (_OUTSIDE, 0.0, 0.0), strict=True):
        values = part.flatten(-dims)[..., table.clamp_min(0)]
        values = torch.where(table < 0, fill, values) if bool((table < 0).any()) else values
        windows.append(values.movedim(-2, -1 - rank + dims - 1).unflatten(-1, counts))
    return _of_parts(_tree(tuple(windows)))


def _over(x: Any, dim: Any, keepdim: bool, lower: bool) -> Any:
    parts = _parts_of(x, x)
    n, shape = parts[0].dim(), parts[0].shape
    if not n:
        return _of_parts(parts)
    dims = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(n))
    dims = tuple(sorted(d % n for d in dims))
    starts = list(range(-n, len(dims) - n))
    moved = [part.movedim([d - n for d in dims], starts) for part in parts]
    moved = [part.flatten(part.dim() - n, part.dim() - n + len(dims) - 1) for part in moved]
    found = _turned(_tree(_turned(tuple(moved), lower)), lower)
    if keepdim:
        kept = [1 if d in dims else size for d, size in enumerate(shape)]
        found = tuple(part.reshape(*part.shape[: part.dim() - found[0].dim()], *kept) for part in found)
    return _of_parts(found)


def _of_two(entry: Entry, x: Any, y: Any, lower: bool) -> Any:
    if isinstance(x, Diagonal) and isinstance(y, Diagonal):
        found = combined(Entry(entry.name, "arithmetic", entry.call), x, y, {})
        if found is not None:
            return found
    like = x if isinstance(x, Diagonal) else y
    both = [_parts_of(value, like) for value in (x, y)]
    shape = torch.broadcast_shapes(*[parts[0].shape for parts in both])
    first, other = (_turned(tuple(_expanded(part, parts[0].dim(), shape) for part in parts), lower) for parts in both)
    return _of_parts(_turned(_larger(first, other), lower))


def _expanded(part: Tensor, dims: int, shape: torch.Size) -> Tensor:
    """Its last ``dims`` dimensions expanded to ``shape``."""
    more, own = part.shape[: part.dim() - dims], part.shape[part.dim() - dims :]
    return part.view(*more, *[1] * (len(shape) - dims), *own).expand(*more, *shape)


def _of_parts(parts: Parts) -> Adjoint:
    law = shifted_law(*parts[:2])
    law._joint = Probes(parts[2])
    return law


def _parts_of(value: Any, like: Diagonal) -> Parts:
    """Mean, *variance* and probes."""
    if isinstance(value, Diagonal):
        return *value._parts(), probes_of(value).rows
    mean = tensor_of(value)
    mean = torch.as_tensor(mean, dtype=like.dtype, device=like.device)
    zero = torch.zeros_like(mean)
    return mean, zero, zero.expand(len(probes_of(like).rows), *zero.shape)


def _larger(a: Parts, b: Parts) -> Parts:
    (m1, v1, rows1), (m2, v2, rows2) = a, b
    op = generated_op("maximum", "a maximum of random values")
    given = constant(m1), constant(v1), constant(m2), constant(v2)
    (mean, var), share = op(*given), op.mean_gradients(*given)[0]
    # Written as linear in the input, so that a derivative is one product for each output.
    off = m2 - given[2]
    mean = mean + (off + share * (m1 - given[0] - off))

    sources, left = SOURCES.get(), at_least(var - share.square() * v1 - (1 - share).square() * v2, 0)
    return sources.shifted(mean, left), var, torch.lerp(rows2, rows1, share) + sources.moved(constant(left))


def _turned(parts: Parts, lower: bool) -> Parts:
    """Of the value with the other sign, for minima."""
    mean, var, *more = parts
    return (-mean, var, *[-part for part in more]) if lower else parts


def _tree(parts: Parts) -> Parts:
    """The maximum over the first dimension of the mean, which further dimensions of other parts stand before."""
    dim = -parts[0].dim()
    while (n := parts[0].shape[dim]) > 1:
        # Split, not sliced: the derivative of a slice is a whole tensor, mostly of zeros.
        first, second, *odd = zip(*[part.split([n // 2, n // 2] + [1] * (n % 2), dim) for part in parts], strict=True)
        parts = _larger(first, second)
        if odd:
            parts = tuple(torch.cat(both, dim) for both in zip(parts, odd[0], strict=True))
    return tuple(part.squeeze(dim) for part in parts)
