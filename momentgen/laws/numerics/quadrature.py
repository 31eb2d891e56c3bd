"""Moments of any elementwise function of one normal value, by Gauss–Hermite quadrature.

It serves functions without a generated op: an expression written out by hand, or two random values that come from one
root.  The function is called once per node, on tensors of the input's own shape, and the moments are updated after
each call.  So without a gradient no more than a handful of tensors are alive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.numerics.root import square_root
from momentgen.runtime.dynamo import constant_result

__all__ = ["quadrature"]


@functools.cache
def _computed(nodes: int) -> tuple[tuple[float, float], ...]:
    places, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    order = np.argsort(-weights, kind="stable")
    return tuple((float(places[k]), float(weights[k])) for k in order)


@constant_result
def _hermite(nodes: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights of the standard normal distribution, the heaviest first."""
    return _computed(nodes)


@functools.cache
def _equal_cells(nodes: int) -> tuple[tuple[float, float], ...]:
    places = _REACH * ((2 * np.arange(nodes) + 1) / nodes - 1)
    weights = np.exp(-places * places / 2)
    weights = weights / weights.sum()
    order = np.argsort(-weights, kind="stable")
    return tuple((float(places[k]), float(weights[k])) for k in order)


@constant_result
def _even(nodes: int) -> tuple[tuple[float, float], ...]:
    """Nodes in the middle of equal cells, with their weights, the heaviest first."""
    return _equal_cells(nodes)


#: equal cells reach from minus to plus so many standard deviations
_REACH = 7.0


def quadrature(
    function: Callable[[Tensor], Tensor], mean: Tensor, var: Tensor, nodes: int = 24, even: bool = False
) -> tuple[Tensor, Tensor]:
    """Moments of ``function(X)`` for normal X, elementwise.

    ξ_k and w_k are the Gauss–Hermite nodes and weights of the standard normal distribution, and f_k = f(m + s ξ_k).
    The mean is Σ w f and the variance Σ w (f - mean)², which is never negative.  Both are updated node by node (West
    1979, Updating mean and variance estimates: an improved method, Communications of the ACM 22).  The sum is exact for
    polynomials of degree below ``nodes``, and converges faster than any power of ``nodes`` for entire functions.  At a
    kink within the spread of X the error falls as 1/nodes.  Evenly spaced nodes serve functions with kinks: their error
    falls as 1/nodes² at a kink, and as 1/nodes at a jump.

    Where the variance is 0 the result is ``function(mean)`` and exactly 0, and the derivative with respect to the
    variance is 0.  There the function is called at its argument alone, since it may be undefined beside it.

    Args:
        function: acts on each element alone; called on tensors of the shape of ``mean``, in float32 or float64.  One
            that returns another shape has the moments of one normal number that all elements move along.
        mean: means of X, of any shape.
        var: variances of X, of the same shape, not negative.
        nodes: number of nodes, at least 1.
        even: whether nodes are evenly spaced, over 14 standard deviations, and not those of Gauss and Hermite.

    Returns:
        Mean and variance, of the shape of ``function(mean)`` and the dtype of ``mean``.

    Raises:
        InputError: if ``nodes`` is not positive.

    Example:
        >>> quadrature(torch.exp, torch.zeros(2), torch.tensor([0.0, 1.0]))
        (tensor([1.0000, 1.6487]), tensor([0.0000, 4.6708]))
    """
    if nodes < 1:
        raise InputError(f"quadrature: expected at least one node, got {nodes}")
    dtype = mean.dtype
    wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    m, v = mean.to(wide), var.to(wide)
    random = ~(v <= 0)  # also where it is NaN
    s = square_root(v)
    centre = function(m)
    if centre.shape != random.shape:  # values are put together: where all nodes are one, they are as good as it
        random = torch.ones((), dtype=torch.bool, device=m.device)
    total = 0.0
    average, squares = centre, torch.zeros_like(centre)
    for place, weight in _even(nodes) if even else _hermite(nodes):
        value = function(m + s * place)
        total += weight
        if total == weight:
            average = value
            continue
        share = weight / total
        step = value - average
        average = average + share * step
        squares = squares + (weight * (1 - share)) * step * step
    # A certain value is the function's own, even where that is infinite; the differences are not a number there.
    return (
        torch.where(random, average, centre).to(dtype),
        torch.where(random, squares, 0).to(dtype),
    )
