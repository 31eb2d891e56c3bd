"""Moments of any elementwise function of one normal value, by quadrature, and quasi-random points of several values.

Quadrature serves functions without a generated op and without a closed form.  The function is called once per node, on
tensors of the input's own shape, and the moments are updated after each call.  So without a gradient no more than a
handful of tensors are alive.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.numerics.root import square_root
from momentgen.runtime.dynamo import constant_result

#: graded nodes reach from minus to plus so many standard deviations: exponentials of wide inputs have their mass there
_REACH = 11.0
#: graded nodes of a smooth function, and the nodes of each piece between two cuts
GRADED, _PIECE = 56, 28


@functools.cache
def _gauss(nodes: int, normal: bool) -> tuple[tuple[float, float], ...]:
    make = np.polynomial.hermite_e.hermegauss if normal else np.polynomial.legendre.leggauss
    return _by_weight(*make(nodes))


@functools.cache
def _midpoints(nodes: int) -> tuple[tuple[float, float], ...]:
    t = (2 * np.arange(nodes) + 1) / nodes - 1
    places = _REACH * (t + t**3) / 2
    return _by_weight(places, np.exp(-places * places / 2) * (1 + 3 * t * t))


def _by_weight(places: Any, weights: Any) -> tuple[tuple[float, float], ...]:
    """Places with weights of sum 1, the heaviest first."""
    weights = weights / weights.sum()
    return tuple((float(places[k]), float(weights[k])) for k in np.argsort(-weights, kind="stable"))


@constant_result
def _fixed(kind: str, nodes: int) -> tuple[tuple[float, float], ...]:
    """Nodes of a Gauss rule (``hermite``, ``legendre``), or four times as close at 0 as at the ends (``graded``)."""
    return _midpoints(nodes) if kind == "graded" else _gauss(nodes, kind == "hermite")


def _between(cuts: Sequence[float | Tensor], mean: Tensor, std: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Nodes and weights of the pieces between cuts, Gauss and Legendre's in t for z = 11 (t + t³)/2."""
    edges = []
    for cut in cuts:
        q = 2 / _REACH * ((cut - mean) / std).clamp(-_REACH, _REACH)
        edges.append(2 / math.sqrt(3) * torch.sinh(torch.asinh(q * (1.5 * math.sqrt(3))) / 3))
    if any(isinstance(cut, Tensor) for cut in cuts):
        edges = list(torch.stack(edges).sort(0).values)
    one = torch.ones_like(mean)
    for low, high in itertools.pairwise([-one, *edges, one]):
        for place, weight in _fixed("legendre", _PIECE):
            t = (low + high) / 2 + (high - low) / 2 * place
            z = _REACH / 2 * (t + t * t * t)
            yield z, weight * (high - low) * (-z * z / 2).exp() * (1 + 3 * t * t)


def quadrature(
    function: Callable[[Tensor], Tensor],
    mean: Tensor,
    var: Tensor,
    nodes: int = 24,
    cuts: Sequence[float | Tensor] | None = None,
    wide: bool = False,
) -> tuple[Tensor, Tensor]:
    """Moments of ``function(X)`` for normal X, elementwise.

    ξ_k and w_k are nodes and weights of the standard normal distribution, and f_k = f(m + s ξ_k).  The mean is Σ w f
    and the variance Σ w (f - mean)², which is never negative.  Both are updated node by node (West 1979, Updating mean
    and variance estimates: an improved method, Communications of the ACM 22).

    Without cuts the nodes are those of Gauss and Hermite: exact for polynomials of degree below ``nodes``.  They lie
    too far apart for an input that is wider than a bend of the function.  With cuts nodes are graded over 22 standard
    deviations, in t for z = 11 (t + t³)/2.  No cut gives the midpoint rule, others a Gauss rule on each piece.
    A cut where the function or its slope jumps keeps full accuracy there, also of derivatives.

    Where the variance is 0 the result is ``function(mean)`` and exactly 0, and the derivative with respect to the
    variance is 0.  There the function is called at its argument alone, since it may be undefined beside it.

    Args:
        function: acts on each element alone; called on tensors of the shape of ``mean``.
        mean: means of X, of any shape.
        var: variances of X, of the same shape, not negative.
        nodes: number of nodes, at least 1, where there are no pieces.
        cuts: where pieces end, ascending numbers or tensors that broadcast to ``mean``; None for Gauss and Hermite.
        wide: whether to compute in float64, which differences of large values need.

    Returns:
        Mean and variance, of the shape and dtype of ``mean``.

    Raises:
        InputError: if ``nodes`` is not positive.

    Example:
        >>> quadrature(torch.exp, torch.zeros(2), torch.tensor([0.0, 1.0]))
        (tensor([1.0000, 1.6487]), tensor([0.0000, 4.6708]))
    """
    if nodes < 1:
        raise InputError(f"quadrature: expected at least one node, got {nodes}")
    dtype = torch.float64 if wide else mean.dtype
    m, v = mean.to(dtype), var.to(dtype)
    random = ~(v <= 0)  # also where it is NaN
    std = square_root(v)
    if cuts:
        points: Any = _between(cuts, m, torch.where(random, std, 1))
    else:
        points = _fixed("hermite" if cuts is None else "graded", nodes)
    average = first = total = squares = cast(Any, 0.0)
    for number, (place, mass) in enumerate(points):
        value = function(m + std * place)
        total = total + mass
        if number == 0:
            average = first = value
            squares = torch.zeros_like(value)
            continue
        # an empty piece has nodes without a mass, also before the first that has one
        share = mass / (total.clamp_min(torch.finfo(dtype).tiny) if isinstance(total, Tensor) else total)
        step = value - average
        average = average + share * step
        squares = squares + (mass * (1 - share)) * step * step
    # A certain value is the function's own, even where that is infinite; the differences are not a number there.
    return (torch.where(random, average, first).to(mean.dtype), torch.where(random, squares / total, 0).to(mean.dtype))


# ------------------------------------------------------------ several values

#: how many points are enough for a class posterior or the moments of a softmax
POINTS = 512
#: how far such points are from the ends of the unit interval at least
_EDGE = 1e-12


@functools.lru_cache(maxsize=16)
def normal_points(dimensions: int, count: int = POINTS) -> Tensor:
    """A fixed quasi-random set of standard normal points, symmetric about 0, shape ``(count, dimensions)``, float64.

    >>> normal_points(3).shape, bool(normal_points(3).sum().abs() < 1e-9)
    (torch.Size([512, 3]), True)
    """
    return elsewhere(_drawn, dimensions, count)


@functools.lru_cache(maxsize=16)
def standard_points(dimensions: int, count: int = POINTS) -> Tensor:
    """The same, turned and scaled so that their covariance is the identity: linear functions have exact moments.

    Args:
        dimensions: fewer than half of ``count``.
        count: of the points, even.
    """
    return elsewhere(_whitened, normal_points(dimensions, count))


def elsewhere(make: Any, *args: Any) -> Tensor:
    """The result of ``make`` outside of the active transforms of ``torch.func``, which belong to a thread."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(make, *args).result()


def sobol(dimensions: int, count: int, seed: int) -> Tensor:
    """Points of a scrambled Sobol sequence within the unit cube, shape ``(count, dimensions)``, float64."""
    engine: Any = torch.quasirandom.SobolEngine
    found: Tensor = engine(dimensions, scramble=True, seed=seed % 2**62).draw(count, dtype=torch.float64)
    return found.clamp(_EDGE, 1 - _EDGE)


def rotation(dimensions: int, seed: int, *batch: int) -> Tensor:
    """Random rotations or reflections, which make other points of quasi-random ones, float64."""
    generator = torch.Generator().manual_seed(seed % 2**62)
    drawn = torch.randn(*batch, dimensions, dimensions, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(drawn).Q * torch.randint(2, (*batch, 1, dimensions), generator=generator).mul(2).sub(1)


def _drawn(dimensions: int, count: int) -> Tensor:
    half = torch.special.ndtri(sobol(dimensions, count // 2, 0))
    return torch.cat([half, -half])


def _whitened(points: Tensor) -> Tensor:
    root = torch.linalg.cholesky(points.T @ points / len(points))
    return torch.linalg.solve_triangular(root, points.T, upper=False).T.contiguous()
