"""Maxima of ``Correlated`` values: pairs by the op of two jointly normal values, and windows as a tree of pairs.

The covariance of two values is that of their tangents plus what the samples' remainders have in common, one correlation
for the whole layer.  A max pool of a monotone function is that function of the max pool, the same number but nearer to
normal values: ReLU and pool are exchanged.  Where the largest is mostly a certain negative value and seldom a positive
one, it is not normal, and its ReLU's variance would come out as 0: the bounds that each value of the window sets hold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from momentgen.laws import correlated as laws
from momentgen.laws.activations import generated_op
from momentgen.laws.law import tensor_of
from momentgen.laws.maxima import tree_of_pairs
from momentgen.laws.numerics.root import square_root
from momentgen.laws.table import Entry, names

__all__ = ["maximum"]

#: correlations are kept below this, where the op still has digits
_MOST = 0.999

#: samples that the correlation of remainders, one number for a layer, is read from
_ENOUGH = 8

#: monotone functions without negative values
_NOT_NEGATIVE = frozenset(names("relu relu6 sigmoid softplus hardsigmoid exp normal_cdf"))

#: by how much a second moment must exceed what was found: differences of squares lose digits
_CLEARLY = 1.01

#: mean, variance, tangents, deviations, what the tangents explain, and third cumulants where there are any
Parts = tuple[Tensor, ...]


def maximum(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The rule of maxima and minima, over dimensions, of two values, and of windows."""
    x = args[0]
    if "pool" in entry.name and x._joint.monotone is not None:
        before, rest, named, source = x._joint.monotone
        pooled = maximum(entry, (source, *args[1:]), kwargs)
        found = laws.Correlated.RULES["pointwise"](before, (pooled, *rest), named)
        return _at_least(found, entry, args, kwargs) if before.name in _NOT_NEGATIVE else found
    return tree_of_pairs(entry, args, kwargs, _parts_of, _larger, _law_of)


def _at_least(found: laws.Correlated, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> laws.Correlated:
    """The pool of values that are not negative: its mean and second moment are no less than those of any in its window.

    Args:
        found: the pool as it was found.
        entry: of the pool.
        args: of the call, the values first, whose own means and variances are exact for normal inputs.
        kwargs: of the call.
    """
    x = args[0]
    mean = torch.maximum(found._mean, entry.call(x._mean, *args[1:], **kwargs))
    second = entry.call(x._var + x._mean.square(), *args[1:], **kwargs)
    short = second > _CLEARLY * (found._var + mean.square())
    var = torch.where(short, second - mean.square(), found._var)
    known = found._joint
    deviations = known.deviations + (found._mean - mean)
    return laws.correlated(mean, var, known.tangents, deviations, known.explained, third=known.third)


def _law_of(parts: Parts) -> laws.Correlated:
    return laws.correlated(*parts[:5], third=parts[5] if len(parts) > 5 else None)


def _parts_of(value: Any, like: laws.Correlated) -> Parts:
    if isinstance(value, laws.Correlated):
        known = value._joint
        third = () if known.third is None else (known.third,)
        return value._mean, value._var, known.tangents, known.deviations, known.explained, *third
    mean = torch.as_tensor(tensor_of(value), dtype=like.dtype, device=like.device)
    zero = torch.zeros_like(mean)
    rows = (like._joint.tangents, like._joint.deviations)
    return mean, zero, *[zero.expand(len(part), *mean.shape) for part in rows], zero


def _larger(a: Parts, b: Parts) -> Parts:
    """The larger of two values, elementwise; its third cumulant is theirs, each as likely as it is the larger."""
    (m1, v1, s1, e1, h1, *third1), (m2, v2, s2, e2, h2, *third2) = a, b
    d1, d2 = ((v - h).clamp_min(0) for v, h in ((v1, h1), (v2, h2)))
    # Residuals are of the size of a standard deviation at most, and their squares then neither under- nor overflow.
    r1, r2 = (laws.deflated(e[:_ENOUGH], s) / _size(v) for e, s, v in ((e1, s1, v1), (e2, s2, v2)))
    alike = _cosine(r1, r2)
    # Roots before products, which may be too small for the dtype.
    covariance = (s1 * s2).sum(0) + alike * square_root(d1) * square_root(d2)
    most = _MOST * square_root(v1) * square_root(v2)
    covariance = torch.minimum(torch.maximum(covariance, -most), most)
    op = generated_op("maximum_correlated", "a maximum of correlated values")
    # From the larger mean on, so that noise below the rounding of the means keeps its digits.
    largest = torch.maximum(m1, m2)
    m1, m2 = m1 - largest, m2 - largest
    excess, var = op(m1, v1, m2, v2, covariance)
    share = op.mean_gradients(m1, v1, m2, v2, covariance)[0]
    mean = largest + excess
    tangents = torch.lerp(s2, s1, share)
    deviations = torch.maximum(m1 + e1, m2 + e2).sub_(excess)
    explained = laws.squared_length(tangents)
    third = [torch.lerp(two, one, share) for one, two in zip(third1, third2, strict=False)]
    return mean, torch.maximum(var, explained), tangents, deviations, explained, *third


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of two tensors over their lengths, 0 where one is 0."""
    length = square_root(a.square().sum()) * square_root(b.square().sum())
    return torch.where(length > 0, (a * b).sum() / length.where(length > 0, 1), 0).clamp(-1, 1)


def _size(var: Tensor) -> Tensor:
    """The largest standard deviation, a constant to autograd; 1 where there is none."""
    most = square_root(var.detach().amax())
    return most.where(most > 0, 1)
