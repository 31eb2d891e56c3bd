"""Gates and weights of the topmost hidden layer, drawn with that layer's activations integrated out.

Beside :mod:`momentgen.inference.bowtie.conditionals`, whose conditionals are given the activations; not in the paper.
Gates are drawn one unit after the other, in C (``collapsed_gates.c``, compiled on first use).
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Generator, Tensor

from momentgen.inference.bowtie.conditionals import NormalConditional, factor, gram_of_units
from momentgen.inference.bowtie.model import BowTieModel, Data, State, inputs, preactivations
from momentgen.inference.compiled import library
from momentgen.native import c_sources


def _targets_without_activations(model: BowTieModel, state: State, data: Data) -> tuple[Tensor, Tensor]:
    """Of y ~ N(W(z·u) + b, Σ + WΣ_LWᵀ), topmost activations integrated out: W and y − b with unit covariance."""
    weights = state.weights[-1]
    matrix = weights[:, :, :-1]
    cov = torch.diag_embed(state.precisions[-1].reciprocal()) + matrix / state.precisions[-2][:, None] @ matrix.mT
    root = factor(cov, "targets without activations")
    residual = torch.linalg.solve_triangular(root, (data.y - weights[:, None, :, -1]).mT, upper=False)
    return torch.linalg.solve_triangular(root, matrix, upper=False), residual


def draw_collapsed_gates(model: BowTieModel, state: State, data: Data, generator: Generator | None) -> Tensor:
    """Gates of the topmost hidden layer, one unit after the other, with that layer's activations integrated out.

    Given the activations a gate hardly ever flips where the noise is small; without them it does wherever unit and
    targets allow it.  The activations must be drawn anew next.
    """
    matrix, residual = _targets_without_activations(model, state, data)  # (chains, outputs, units), (..., outputs, n)
    layer = model.depth - 1
    u = preactivations(state, data, layer).permute(2, 0, 1).contiguous()
    before = state.gates[layer].permute(2, 0, 1).contiguous()
    uniform = torch.empty_like(u).uniform_(generator=generator)
    columns = matrix.permute(2, 0, 1).contiguous()  # (units, chains, outputs)
    # The logit, less the threshold of the draw, but for u·wᵀ(residual with this unit as it was).
    known = u / model.tau + columns.square().sum(-1, keepdim=True) * (before - 0.5) * u.square() - uniform.logit()
    residual = residual - matrix @ (before * u).transpose(0, 1)
    (chains, outputs, n), after = residual.shape, torch.empty_like(u, device="cpu")
    given = [part.cpu().contiguous() for part in (known, before, u, columns, residual)]
    tensors = [*given, after.new_empty(n), after]
    _gates()(chains, len(u), outputs, n, *(part.data_ptr() for part in tensors))
    return after.to(u.device).permute(1, 2, 0).contiguous()


@functools.cache
def _gates() -> Any:
    """Gates ``(units, chains, n)``: of each unit given those before it as they are now, those after as they were."""
    function = library("bow tie networks", "collapsed_gates", c_sources.collapsed_gates()).collapsed_gates
    function.argtypes, function.restype = [ctypes.c_int64] * 4 + [ctypes.c_void_p] * 7, None
    return function


def collapsed_weights_conditional(model: BowTieModel, state: State, data: Data) -> NormalConditional:
    """All rows of the topmost hidden layer's weights at once, that layer's activations integrated out.

    Vectors ``(chains, 1, units·(inputs + 1))``.  The activations must be drawn anew next.
    """
    layer = model.depth - 1
    matrix, residual = _targets_without_activations(model, state, data)
    below = inputs(state, data, layer).expand(len(matrix), -1, -1)
    gate = state.gates[layer]
    units, size = gate.shape[-1], below.shape[-1]
    # y − b = Φw + noise; a row of Φ for each target and row of data.
    design = ((gate[:, None] * matrix[:, :, None])[..., None] * below[:, None, :, None]).flatten(3).flatten(1, 2)
    information = design.mT @ design
    blocks = information.view(-1, units, size, units, size).diagonal(dim1=1, dim2=3)
    blocks += gram_of_units(state.gamma[layer] / model.tau**2, state, data, layer).permute(0, 2, 3, 1)
    linear = (((gate - 0.5) / model.tau).mT @ below).flatten(1) + (residual.flatten(1)[:, None] @ design)[:, 0]
    mean, root = model.weight_prior(layer, data.y.device)
    root = root.reshape(1, -1) if root.shape[-2] == 1 else torch.block_diag(*root)
    centre = mean.reshape(1, -1).expand(len(matrix), 1, -1)
    return NormalConditional.of(
        centre, root, information, linear[:, None] - centre @ information, f"weights of layer {layer}"
    )
