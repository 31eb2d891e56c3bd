"""Derivatives by noise that all examples have in common: lifts by ``torch.vmap``, and noise of a linear map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.controlled.call import Call
from momentgen.laws.controlled.noise import Source, drawn_beside
from momentgen.laws.controlled.state import State
from momentgen.laws.numerics.forward import forward_derivative

__all__ = ["Lift", "Root", "lifted", "of_outputs"]

#: computes the lift of a value in common; None where it is not known
Lift = Callable[[], Tensor | None]


class Root:
    """A value in common as it was drawn: its mean and noise.

    Attributes:
        shape: of the value.
        var: computes *variances*, of this shape.
        neighbour: computes covariances of neighbours, or says None.
        draws: noise by row.
        uses: how often it has been used in the present row.
        used: how often it was in the row before.
    """

    __slots__ = ("draws", "neighbour", "shape", "used", "uses", "var")

    def __init__(
        self, shape: torch.Size, var: Callable[[], Tensor | float], neighbour: Callable[[], Tensor | None]
    ) -> None:
        self.shape, self.var, self.neighbour = shape, var, neighbour
        self.draws: dict[int, Tensor] = {}
        self.uses = self.used = 0

    def drawn(self, rows: range) -> list[Tensor]:
        """The noise of each row."""
        return [self.draws[row] if row in self.draws else drawn_beside(self.shape, self.var()) for row in rows]


def of_outputs(
    state: State, root: Root, scaled: Callable[[], Tensor] | None, mean: Tensor, out: Tensor
) -> Tensor | None:
    """The noise that a weight makes in the outputs of a linear map of one vector an example."""
    with torch.set_grad_enabled(state.keeps_graph):
        scale = None if scaled is None else scaled()
        var = torch.as_tensor(root.var(), dtype=mean.dtype, device=mean.device).expand(root.shape)
        neighbour = root.neighbour()
        var = var if scale is None else var * scale.square()
        total = F.linear(mean.square(), var.to(mean.dtype))
        between = None
        if neighbour is not None:
            if scale is not None:
                flat = scale.reshape(-1)
                neighbour = neighbour * flat[1:] * flat[:-1]
            pairs = F.pad(neighbour, (0, 1)).view(root.shape).to(mean.dtype)
            total = total + 2 * F.linear(mean[:, :-1] * mean[:, 1:], pairs[:, :-1])
            between = (mean[:, -1] * mean[:, 0])[:, None] * pairs[:-1, -1]

    def draws(rows: range) -> list[Tensor]:
        drawn = [noise if scale is None else noise * scale for noise in root.drawn(rows)]
        return [F.linear(mean, noise.to(mean.dtype)) for noise in drawn]

    def source(leaf: Tensor) -> Source:
        return Source(leaf, draws, total.clamp_min(0), None, between)

    return state.leaf((id(root), "outputs"), lambda: torch.zeros_like(out), source)


def lifted(call: Call, batch: int, common: list[Tensor], lifts: list[Lift], blocks: list[tuple[Tensor, Tensor]]) -> Any:
    """The derivative of a function along the lifts of its values in common, of each example."""
    found = [lift() for lift in lifts]
    tangents = tuple(lift for lift in found if lift is not None)
    if not tangents:
        return None
    common = [value for value, lift in zip(common, found, strict=True) if lift is not None]
    sizes = [(batch, len(value) // batch, *value.shape[1:]) for value, _ in blocks]
    folded = tuple(mean.reshape(size) for (_, mean), size in zip(blocks, sizes, strict=True))
    given = [value for value, _ in blocks]

    def of_example(parts: tuple[Tensor, ...], directions: tuple[Tensor, ...]) -> Any:
        function = call.of(common, dict(zip(map(id, given), parts, strict=True)))
        return forward_derivative(function, tuple(common), directions)

    return torch.vmap(of_example, in_dims=(0 if folded else None, 0))(folded, tangents)
