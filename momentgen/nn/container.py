"""Containers: torch's own, drawing a random input once under ``sample``."""

from __future__ import annotations

from typing import Any

import torch

from momentgen.nn.layer import Module

__all__ = ["ModuleDict", "ModuleList", "Sequential"]


class Sequential(Module, torch.nn.Sequential):
    """:class:`torch.nn.Sequential` of layers over moments."""

    def forward(self, x: Any) -> Any:
        """Pass ``x``, a tensor or moments, through every layer."""
        for layer in self:
            x = layer(x)
        return x


ModuleList = torch.nn.ModuleList
ModuleDict = torch.nn.ModuleDict
