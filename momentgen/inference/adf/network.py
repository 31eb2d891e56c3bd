"""A ReLU network with independent normal weights: its output's moments, and their derivatives by hand.

A layer is z W / √(inputs + 1), z the layer's inputs and a 1 for the bias.  With W and z independent,

    mean = z̄ M / √(inputs + 1)
    var  = ((z̄² + v_z) V + v_z M²) / (inputs + 1)

elementwise in M and V, means and variances of the weights.  ReLU's moments and their derivatives are the generated
op's.  All is batched over replicates and data; the updates of the filter take one datum a replicate.

Sources: Hernández-Lobato & Adams 2015, equations (14) to (17); Soudry, Hubara & Meir 2014, Expectation
Backpropagation, with ReLU for their sign units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from momentgen.generated import relu
from momentgen.runtime import Moments

__all__ = ["Step", "Trace", "count_weights", "ebp_step", "pbp_step", "propagate", "unflatten"]


class Trace(NamedTuple):
    """What a pass through the network leaves: inputs of each layer (with the 1), and the last layer's outputs."""

    #: per layer, ``(replicates, n, inputs + 1)``; the variance of the first is None, being 0
    inputs: list[tuple[Tensor, Tensor | None]]
    #: of each layer before its ReLU, ``(replicates, n, outputs)``
    outputs: list[Moments]


class Step(NamedTuple):
    """How the weights' means and variances move, layer by layer, ``(replicates, inputs + 1, outputs)``."""

    mean: list[Tensor]
    var: list[Tensor]


def count_weights(sizes: Sequence[int]) -> int:
    """How many weights a network of these widths has, biases counted."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))


def unflatten(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Views of ``(replicates, weights)`` layer by layer, ``(replicates, inputs + 1, outputs)``, the bias last."""
    shapes = [(inputs + 1, outputs) for inputs, outputs in pairwise(sizes)]
    parts = flat.split([rows * columns for rows, columns in shapes], 1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


def _with_one(z: Tensor, value: float) -> Tensor:
    return torch.nn.functional.pad(z, (0, 1), value=value)


def propagate(mean: Sequence[Tensor], var: Sequence[Tensor], x: Tensor) -> Trace:
    """Moments of every layer for features ``(replicates, n, features)``.

    Args:
        mean: of the weights, a layer each, ``(replicates, inputs + 1, outputs)``.
        var: their *variances*.
        x: certain features.
    """
    trace = Trace([], [])
    z, spread = x, None
    for m, v in zip(mean, var, strict=True):
        if trace.outputs:
            z, spread = relu(*trace.outputs[-1])
        z, spread = _with_one(z, 1.0), None if spread is None else _with_one(spread, 0.0)
        scale = m.shape[1]
        square = z.square() if spread is None else z.square() + spread
        total = square @ v if spread is None else square @ v + spread @ m.square()
        trace.inputs.append((z, spread))
        trace.outputs.append(Moments(z @ m / math.sqrt(scale), total / scale))
    return trace


def pbp_step(mean: Sequence[Tensor], var: Sequence[Tensor], trace: Trace, by_mean: Tensor, by_var: Tensor) -> Step:
    """The step of probabilistic backpropagation: + v ∂logZ/∂m and − v²((∂logZ/∂m)² − 2 ∂logZ/∂v).

    Args:
        mean: of the weights, as in :func:`propagate`.
        var: their *variances*.
        trace: of one datum a replicate.
        by_mean: ∂logZ/∂m of the network's outputs, ``(replicates, 1, outputs)``.
        by_var: ∂logZ/∂v of the same.
    """
    step = Step([], [])
    for layer in reversed(range(len(mean))):
        m, v, (z, spread) = mean[layer], var[layer], trace.inputs[layer]
        by_mean, by_var = by_mean / math.sqrt(m.shape[1]), by_var / m.shape[1]
        d_mean = z.mT * by_mean
        square = z.square()
        if spread is not None:
            d_mean = torch.addcmul(d_mean, spread.mT * (2 * by_var), m)
            square = square + spread
        d_var = square.mT * by_var
        step.mean.insert(0, v * d_mean)
        step.var.insert(0, v.square() * (2 * d_var - d_mean.square()))
        if layer:
            below_mean = by_mean @ m.mT + 2 * z * (by_var @ v.mT)
            below_var = by_var @ (m.square() + v).mT
            below = below_mean[..., :-1].contiguous(), below_var[..., :-1].contiguous()
            by_mean, by_var = torch.ops.momentgen.relu_backward.exact(*trace.outputs[layer - 1], *below, [])
    return step


def ebp_step(mean: Sequence[Tensor], var: Sequence[Tensor], trace: Trace, by_mean: Tensor, curvature: Tensor) -> Step:
    """The step of expectation backpropagation: + v ∂logZ/∂m and + v² ∂²logZ/∂m², both along the means alone.

    Where log Z is exact, v + v² ∂²logZ/∂m² would be the variance of :func:`pbp_step`.  Here it is not, since
    derivatives pass through the means alone.  The variances of weights, activations and outputs are held fixed, and in
    the second derivative so are products of two different paths.  The first derivative is that of Soudry et al., with
    ReLU's slope in place of their sign units'.  Their real weights keep a variance of 1, and have no second derivative.

    Args:
        mean: of the weights, as in :func:`propagate`.
        var: their *variances*.
        trace: of one datum per replicate.
        by_mean: ∂logZ/∂m of the network's outputs, ``(replicates, 1, outputs)``.
        curvature: ∂²logZ/∂m² of the same.
    """
    step = Step([], [])
    for layer in reversed(range(len(mean))):
        m, v, (z, _) = mean[layer], var[layer], trace.inputs[layer]
        by_mean, curvature = by_mean / math.sqrt(m.shape[1]), curvature / m.shape[1]
        step.mean.insert(0, v * (z.mT * by_mean))
        step.var.insert(0, v.square() * (z.square().mT * curvature))
        if layer:
            below, bent = (by_mean @ m.mT)[..., :-1], (curvature @ m.square().mT)[..., :-1]
            # Φ(a) and φ(a)/(2σ), the derivatives of ReLU's mean by its input's mean and variance
            slope, half_bend = relu.mean_gradients(*trace.outputs[layer - 1])
            by_mean, curvature = slope * below, slope.square() * bent + 2 * half_bend * below
    return step
