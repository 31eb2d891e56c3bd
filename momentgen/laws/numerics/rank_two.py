"""A linear map of one input: mean and variance, with a gradient in the weight that is made in one array."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from momentgen.runtime.autograd import transformed

__all__ = ["one_input"]


class _OneInput(torch.autograd.Function):
    """``W m`` and ``(W∘W) v`` of one input; its gradient in W, of rank two, is made in one array the size of W."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        squares = weight.square()
        ctx.save_for_backward(mean, var, weight, squares)
        return torch.mv(weight, mean), torch.mv(squares, var)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        mean, var, weight, squares = ctx.saved_tensors
        again = torch.is_grad_enabled()  # to be differentiated again
        squares = weight.square() if again else squares
        of_mean = torch.mv(weight.t(), grads[0]) if ctx.needs_input_grad[0] else None
        of_var = torch.mv(squares.t(), grads[1]) if ctx.needs_input_grad[1] else None
        scaled, doubled = weight * var, (2 * grads[1])[:, None]
        if again:
            return of_mean, of_var, torch.addr(scaled * doubled, grads[0], mean)
        return of_mean, of_var, scaled.mul_(doubled).addr_(grads[0], mean)


def one_input(mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean ``W m + b`` and variance ``(W∘W) v``, what a data set's statistics become.

    Args:
        mean: shape ``(in_features,)``.
        var: *variance*, of the same shape.
        weight: shape ``(out_features, in_features)``.
        bias: shape ``(out_features,)`` or None.
    """
    if torch.compiler.is_compiling() or transformed():
        mean, var = torch.mv(weight, mean), torch.mv(weight.square(), var)
    else:
        mean, var = _OneInput.apply(mean, var, weight)
    return mean if bias is None else mean + bias, var
