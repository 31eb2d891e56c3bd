"""Matrix products of values that are nothing beside others of their layer, taken as 0.

A unit some thirteen standard deviations on the off side of a ReLU has moments and a slope below the normal range of
float32.  Many processors compute up to a hundred times more slowly there.  A product adds such values to others, and
rounds them away.  So :func:`product` takes them as 0 in its arguments, and again in the gradient of its derivatives.
The values themselves stay what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.runtime.autograd import transformed

__all__ = ["gradient_of_weight", "product", "without_dust"]

#: this share of the largest is nothing: float32 keeps 2^-24 of a sum
_NOTHING: Final = 2.0**-100
#: the same in a product of two such factors, which would else go down to 2^-200
_NOTHING_OF_TWO: Final = 2.0**-60

_WITH_VALUES: Final = (Tensor, torch.nn.Parameter)
#: the mode of that kind which is active; private in torch, and without it nothing is known to trace
_mode: Callable[[Any], Any] = getattr(torch._C, "_get_dispatch_mode", lambda key: None)
_KINDS: Any = getattr(torch._C, "_TorchDispatchModeKey", None)
_TRACING: Final = tuple(_KINDS.__members__.values()) if _KINDS is not None else ()


def product(call: Callable[..., Any], values: Tensor, *rest: Any, **options: Any) -> Tensor:
    """``call(values, *rest, **options)``, a matrix product or convolution of values, gradients and all without dust.

    Args:
        call: the function of torch.
        values: its first argument, any shape.
        rest: its other arguments.
        options: likewise, by name.
    """
    out: Tensor = call(without_dust(values), *rest, **options)
    if not _has_dust(out) or not torch.is_grad_enabled() or not out.requires_grad:
        return out
    if torch.compiler.is_compiling():
        return out if transformed() else cast(Tensor, _Behind.apply(out))
    if not transformed():
        out.register_hook(without_dust)
    return out


def gradient_of_weight(grad: Tensor, values: Tensor) -> Tensor:
    """``gradᵀ @ values`` over all dimensions but the last, the gradient of a linear map's weight.

    Args:
        grad: of the map's output, shape ``(..., outputs)``.
        values: the map's input, shape ``(..., inputs)``.
    """
    rows = without_dust(grad, _NOTHING_OF_TWO).reshape(-1, grad.shape[-1])
    columns = without_dust(values, _NOTHING_OF_TWO).reshape(-1, values.shape[-1])
    # An outer product is a slow matrix product.
    return rows.t() @ columns if len(rows) > 1 else torch.outer(rows[0], columns[0])


def without_dust(values: Tensor, nothing: float = _NOTHING) -> Tensor:
    """Values of one layer, those as 0 that are less than 2^-100 and less than 2^-100 of the largest.

    Only of float32 on a CPU: elsewhere there is no need.  The derivative is 1 everywhere.  Nothing is 0 beside what is
    not finite.

    >>> without_dust(torch.tensor([1.0, -1e-20, 1e-35]))
    tensor([ 1.0000e+00, -1.0000e-20,  0.0000e+00])
    """
    if not _has_dust(values):
        return values
    if _is_traced(values) or transformed():
        size = values.abs()
        largest = size.amax()
        limit = torch.where(largest.isfinite(), nothing * largest.clamp_max(1), 0)
        return values - torch.where(size <= limit, values, 0).detach()
    if torch.is_grad_enabled() and values.requires_grad:
        return cast(Tensor, _WithoutDust.apply(values, nothing))
    return _cut(values, nothing)


def _is_traced(values: Tensor) -> bool:
    """Whether no number can be read from values, since a compiler, ``torch.export`` or ``make_fx`` records them."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or type(values) not in _WITH_VALUES:
        return True
    return any(_mode(key) is not None for key in _TRACING)


def _has_dust(values: Tensor) -> bool:
    return values.device.type == "cpu" and values.dtype == torch.float32 and values.numel() > 0


def _cut(values: Tensor, nothing: float) -> Tensor:
    """In two passes, which take a third of the time that ``where`` takes."""
    low, high = torch.aminmax(values)
    largest = max(-low.item(), high.item())
    return F.hardshrink(values, nothing * min(largest, 1.0) if math.isfinite(largest) else 0.0)


class _WithoutDust(torch.autograd.Function):
    """Without dust, and with the derivative 1 all the same: a mean of 0 has one, too."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, nothing: float) -> Tensor:
        return _cut(values, nothing)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


class _Behind(torch.autograd.Function):
    """The same values, with gradients without dust: what a hook is, in a form that torch.compile takes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return without_dust(grads[0])
