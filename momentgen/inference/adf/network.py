"""A ReLU network with independent normal weights: the moments of its outputs.

A layer is z W / √(inputs + 1), z the layer's inputs and a 1 for the bias.  With W and z independent,

    mean = z̄ M / √(inputs + 1)
    var  = ((z̄² + v_z) V + v_z M²) / (inputs + 1)

elementwise in M and V, means and variances of the weights.  ReLU's moments are the generated op's.  All is batched over
replicates and data.  ``filter.c`` has the same forward pass, and the steps of the weights.

Source: Hernández-Lobato & Adams 2015, equations (14) to (17).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from momentgen.generated import relu
from momentgen.runtime import Moments


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


def propagate(mean: Sequence[Tensor], var: Sequence[Tensor], x: Tensor) -> Moments:
    """Moments of the outputs for features ``(replicates, n, features)``: ``(replicates, n, outputs)``.

    Args:
        mean: of the weights, a layer each, ``(replicates, inputs + 1, outputs)``.
        var: their *variances*.
        x: certain features.
    """
    found: Moments | None = None
    for m, v in zip(mean, var, strict=True):
        z, spread = (x, None) if found is None else relu(*found)
        z, spread = _with_one(z, 1.0), None if spread is None else _with_one(spread, 0.0)
        scale = m.shape[1]
        square = z.square() if spread is None else z.square() + spread
        total = square @ v if spread is None else square @ v + spread @ m.square()
        found = Moments(z @ m / math.sqrt(scale), total / scale)
    assert found is not None
    return found
