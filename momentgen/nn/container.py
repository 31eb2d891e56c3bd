"""Containers: torch's own, drawing a random input once under ``sample``."""

from __future__ import annotations

from typing import Any

import torch

from momentgen.nn.layer import Module
from momentgen.nn.normalize import Normalize

__all__ = ["ModuleDict", "ModuleList", "Sequential"]


class Sequential(Module, torch.nn.Sequential):
    """:class:`torch.nn.Sequential` of layers over moments."""

    def forward(self, x: Any) -> Any:
        """Pass ``x``, a tensor or moments, through every layer; a normalisation goes into the layer before it."""
        before: torch.nn.Module | None = None
        for layer in self:
            if before is None:
                before = layer
            elif isinstance(layer, Normalize) and layer.folds(before, x):
                x, before = layer.after(before, x), None  # type: ignore[arg-type]
            else:
                x, before = before(x), layer
        return x if before is None else before(x)


ModuleList = torch.nn.ModuleList
ModuleDict = torch.nn.ModuleDict
