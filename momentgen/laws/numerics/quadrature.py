"""Moments of any elementwise function of one normal value, by quadrature.

It serves functions without a generated op: an expression written out by hand, or two random values that come from one
root.  The function is called once per node, on tensors of the input's own shape, and the moments are updated after
each call.  So without a gradient no more than a handful of tensors are alive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

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
def _midpoints(nodes: int) -> tuple[tuple[float, float], ...]:
    t = (2 * np.arange(nodes) + 1) / nodes - 1
    places = _REACH * (t + t**3) / 2
    weights = np.exp(-places * places / 2) * (1 + 3 * t * t)
    weights = weights / weights.sum()
    order = np.argsort(-weights, kind="stable")
    return tuple((float(places[k]), float(weights[k])) for k in order)


@constant_result
def _graded(nodes: int) -> tuple[tuple[float, float], ...]:
    """Nodes that lie four times as close at 0 as at the ends, with their weights, the heaviest first."""
    return _midpoints(nodes)


#: graded nodes reach from minus to plus so many standard deviations: exponentials of wide inputs have their mass there
_REACH = 11.0


def quadrature(
    function: Callable[[Tensor], Tensor],
    mean: Tensor,
    var: Tensor,
    nodes: int = 24,
    graded: bool = False,
    sharp: bool = False,
) -> tuple[Tensor, Tensor]:
    """Moments of ``function(X)`` for normal X, elementwise.

    ξ_k and w_k are the Gauss–Hermite nodes and weights of the standard normal distribution, and f_k = f(m + s ξ_k).
    The mean is Σ w f and the variance Σ w (f - mean)², which is never negative.  Both are updated node by node (West
    1979, Updating mean and variance estimates: an improved method, Communications of the ACM 22).  The sum is exact for
    polynomials of degree below ``nodes``, and converges faster than any power of ``nodes`` for entire functions.  At a
    kink within the spread of X the error falls as 1/nodes.

    Graded nodes serve functions with bends and kinks.  They are the midpoint rule in t for z = 11 (t + t³)/2.  Their
    error falls as 1/nodes² at a kink, and as 1/nodes at a jump.

    Derivatives with respect to mean and variance are sums of the function's own at the nodes.  Such a sum misses what
    is at a jump of the slope.  Of a sharp function the nodes stay, and their weights move with the density instead.

    Where the variance is 0 the result is ``function(mean)`` and exactly 0, and the derivative with respect to the
    variance is 0.  There the function is called at its argument alone, since it may be undefined beside it.

    Args:
        function: acts on each element alone; called on tensors of the shape of ``mean``, in float32 or float64.  One
            that returns another shape has the moments of one normal number that all elements move along.
        mean: means of X, of any shape.
        var: variances of X, of the same shape, not negative.
        nodes: number of nodes, at least 1.
        graded: whether nodes are graded, over 22 standard deviations, and not those of Gauss and Hermite.
        sharp: whether slopes of the function may jump, so that derivatives are taken of the weights.

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
        random, sharp = torch.ones((), dtype=torch.bool, device=m.device), False
    at, std = (m.detach(), s.detach()) if sharp else (m, s)
    divisor = torch.where(random, s, 1)
    average, squares, total = centre, torch.zeros_like(centre), cast("float | Tensor", 0.0)
    for number, (place, weight) in enumerate(_graded(nodes) if graded else _hermite(nodes)):
        value, mass = function(at + std * place), cast("float | Tensor", weight)
        if sharp:  # the density at the node over what it was, but for a factor that the sum of weights divides by
            moved = (at - m + std * place) / divisor
            mass = weight * ((place * place - moved * moved) / 2).exp()
        total = total + mass
        if number == 0:
            average = value
            continue
        share = mass / total
        step = value - average
        average = average + share * step
        squares = squares + (mass * (1 - share)) * step * step
    squares = squares / total
    # A certain value is the function's own, even where that is infinite; the differences are not a number there.
    return (
        torch.where(random, average, centre).to(dtype),
        torch.where(random, squares, 0).to(dtype),
    )
