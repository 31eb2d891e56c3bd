"""Derivatives along a direction, by torch's forward mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["forward_derivative"]


def forward_derivative(function: Callable[..., Any], at: Sequence[Tensor], directions: Sequence[Tensor]) -> Any:
    """The derivative of a function's results, along one direction of each argument.

    >>> forward_derivative(torch.sin, [torch.zeros(1).expand(2)], [torch.ones(2)])
    tensor([1., 1.])
    """
    jvp: Any = torch.func.jvp
    return jvp(function, tuple(value.contiguous() for value in at), tuple(directions))[1]  # it writes beside them
