"""The derivative of a convolution by an image of one channel, as the convolution that it is.

oneDNN's own takes up to four times as long where the input has one channel and the layer few outputs.  In the first
layer of LeNet it was the largest single part of the directions' cost.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["slope_of_one_channel"]


def slope_of_one_channel(x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
    """Zeros in the shape of ``conv2d(x, weight, padding=padding)`` with its derivative by ``x``.

    Args:
        x: images of shape ``(N, 1, H, W)``.
        weight: of shape ``(C, 1, h, w)``.
        padding: at most ``h - 1`` and ``w - 1``.
    """
    return _OneChannel.apply(x, weight, padding)


class _OneChannel(torch.autograd.Function):
    """See :func:`slope_of_one_channel`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
        space = [n + 2 * pad - size + 1 for n, pad, size in zip(x.shape[2:], padding, weight.shape[2:], strict=True)]
        return x.new_zeros(x.shape[0], weight.shape[0], *space)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, weight, ctx.padding = inputs
        ctx.save_for_backward(weight)
        ctx.save_for_forward(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        rest = [size - 1 - pad for size, pad in zip(weight.shape[2:], ctx.padding, strict=True)]
        return F.conv2d(grads[0], weight.flip(2, 3).transpose(0, 1), padding=rest), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (weight,) = ctx.saved_tensors
        return F.conv2d(tangents[0], weight, padding=ctx.padding)
