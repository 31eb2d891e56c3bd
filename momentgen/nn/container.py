"""Containers: torch's own, behind the border."""

from __future__ import annotations

from typing import Any

import torch

from momentgen.laws.border import Border
from momentgen.nn.normalize import Normalize

__all__ = ["ModuleDict", "ModuleList", "Sequential"]


class Sequential(Border, torch.nn.Sequential):
    """:class:`torch.nn.Sequential` over moments; a normalisation goes into the weights of the layer before it."""

    def _forward_inside(self, x: Any) -> Any:
        before: torch.nn.Module | None = None
        for layer in self:
            if before is None:
                before = layer
            elif isinstance(layer, Normalize) and layer.folds(before, x):
                x, before = layer.after(before, x), None
            else:
                x, before = before(x), layer
        return x if before is None else before(x)


ModuleList = torch.nn.ModuleList
ModuleDict = torch.nn.ModuleDict
