"""What the noise of a linear map's or convolution's own coefficients does to its output, on plain tensors.

For y = Σ_k W_k x_k with weights independent of the input, Var y = Σ W_m² v + Σ W_v (v + m²).  The second sum is the
weights' noise, which this module computes.  Neighbours in the weight's flattened order may have covariances C_k (the
tridiagonal posterior of Zheng et al., correlated-parameters).  Then the noise is larger by 2 Σ C_k m_k m_{k+1}, over
the neighbours that belong to one output.  Neighbours of two outputs make these outputs correlated, and no variance
larger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import UnsupportedError
from momentgen.laws.numerics.root import at_least
from momentgen.laws.table import names
from momentgen.runtime.inputs import HALVES

__all__ = ["bind", "bind_norm", "for_each", "is_linear_map", "neighbours", "noise_of_weight"]


_CONV = names("weight bias stride padding dilation groups")
_TRANSPOSED = names("weight bias stride padding output_padding groups dilation")
_AVERAGE = names("kernel_size stride padding ceil_mode count_include_pad divisor_override")
#: names of the arguments after the first
SIGNATURES: dict[str, tuple[str, ...]] = {
    **{f"conv{d}d": _CONV for d in (1, 2, 3)}, **{f"conv_transpose{d}d": _TRANSPOSED for d in (1, 2, 3)},
    **{f"avg_pool{d}d": _AVERAGE for d in (1, 2, 3)}, **{f"adaptive_avg_pool{d}d": ("output_size",) for d in (1, 2, 3)},
    "linear": names("weight bias"), "mean": names("dim keepdim"), "sum": names("dim keepdim"), "cumsum": ("dim",),
    "interpolate": names("size scale_factor mode align_corners recompute_scale_factor antialias"),
    "pad": names("pad mode value"), "fold": names("output_size kernel_size dilation padding stride"),
    "layer_norm": names("normalized_shape weight bias eps"), "rms_norm": names("normalized_shape weight eps"),
    "group_norm": names("num_groups weight bias eps"),
}  # fmt: skip


def bind(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments after the first, by name."""
    return {**dict(zip(SIGNATURES[name], args, strict=False)), **kwargs}


def bind_norm(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same of batch or instance norm, whose order in torch is not that of torch.nn.functional."""
    parts = [("running_mean", "running_var"), ("weight", "bias")]
    first, second = reversed(parts) if call in (torch.batch_norm, torch.instance_norm) else parts
    return {**dict(zip((*first, *second, "training", "momentum", "eps"), args, strict=False)), **kwargs}


def for_each(value: Any, dims: int) -> tuple[int, ...]:
    """An argument of torch for each of ``dims`` dimensions: one number is that of all."""
    found = tuple(value) if isinstance(value, tuple | list) else (value,)
    return found * dims if len(found) == 1 else found


def is_linear_map(name: str) -> bool:
    """Whether a function is a linear map or a convolution, whose weight and bias may be random."""
    return name.startswith(("linear", "conv"))


def noise_of_weight(
    call: Callable[..., Any],
    name: str,
    mean: Tensor,
    var: Tensor | None,
    weight_var: Tensor,
    neighbour: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """Variances of the outputs that come of the weight's noise.

    They are outputs of ``call(mean, weight, **options)``, for inputs of that mean and *variance* (None: certain).

    Args:
        neighbour: covariance of each element of the weight with the next one in flattened order, of the weight's shape.
            The last one of each output is ignored.  None for independent elements.

    Returns:
        Of the output's shape; in float32 where the inputs are of half precision and terms may cancel or vanish.

    Raises:
        UnsupportedError: for a transposed convolution with covariances of neighbours.
    """
    kind = mean.device.type
    cast = torch.is_autocast_enabled(kind)
    half = neighbour is not None or torch.get_autocast_dtype(kind) is torch.float16
    if (cast and half) or (neighbour is not None and mean.dtype in HALVES):
        with torch.autocast(kind, enabled=False):
            var, neighbour = (None if part is None else part.float() for part in (var, neighbour))
            return noise_of_weight(call, name, mean.float(), var, weight_var.float(), neighbour, options)
    second = mean.square() if var is None else mean.square() + var
    own: Tensor = call(second, weight_var, None, **options)
    if neighbour is None:
        return own
    pairs = neighbours(call, name, mean, neighbour, **options)
    # The sum is of a positive semidefinite form, and negative by rounding only.
    return own if pairs is None else at_least(own + pairs, 0)


def neighbours(call: Callable[..., Any], name: str, mean: Tensor, neighbour: Tensor, **options: Any) -> Tensor | None:
    """2 Σ C_k m_k m_{k+1}, over neighbours in the flattened order of the weights of one output.

    A linear map takes one more product, with the products of neighbouring inputs.  A convolution of d dimensions takes
    up to d + 1 convolutions, one per kind of step from one element of a filter to the next.  Such steps go within a
    row, to the next row, ..., to the next channel.  All together have as many coefficients as the filter.

    Returns:
        Of the output's shape; None where no output has two weights.
    """
    if name == "linear":
        if neighbour.shape[-1] < 2:
            return None
        return F.linear(mean[..., :-1] * mean[..., 1:], 2 * neighbour[..., :-1])
    if "transpose" in name:
        raise UnsupportedError(
            f"{name}: the covariance of neighbouring weights has no rule there; give this layer a mean-field "
            "posterior, or use the method sample"
        )
    return _of_filters(call, mean, neighbour, **options)


def _of_filters(call: Callable[..., Any], mean: Tensor, neighbour: Tensor, **options: Any) -> Tensor | None:
    dims, groups = neighbour.dim() - 2, options.get("groups", 1)
    steps, kernel = for_each(options.get("dilation", 1), dims), neighbour.shape[2:]
    edges = _edges(options.get("padding", 0), kernel, steps)
    padded = F.pad(mean, edges) if any(edges) else mean
    total: Tensor | None = None
    # The step raises the index of dimension `level`, -1 of which is the channel's, and takes later ones from last to 0.
    for level in range(dims - 1, -2, -1):
        first, second, coefficients = padded, padded, neighbour
        for d in range(max(level, 0), dims):
            place, last = d - dims, kernel[d] - 1
            shift = steps[d] * (1 if d == level else last)
            size = padded.shape[place] - shift
            low, high = (first, second) if d == level else (second, first)
            low, high = low.narrow(place, 0, size), high.narrow(place, shift, size)
            first, second = (low, high) if d == level else (high, low)
            coefficients = coefficients.narrow(place, 0, last) if d == level else coefficients.narrow(place, last, 1)
        if level < 0:
            inputs, channel = neighbour.shape[1], -dims - 1
            first, second = (part.unflatten(channel, (groups, inputs)) for part in (first, second))
            first, second = first.narrow(channel, 0, inputs - 1), second.narrow(channel, 1, inputs - 1)
            product = (first * second).flatten(channel - 1, channel)
            coefficients = coefficients[:, :-1]
        else:
            product = first * second
        if coefficients.numel():
            found: Tensor = call(product, 2 * coefficients, None, **{**options, "padding": 0})
            total = found if total is None else total + found
    return total


def _edges(padding: Any, kernel: torch.Size, steps: tuple[int, ...]) -> list[int]:
    """How much is padded before and after each dimension, from the last one on, as ``F.pad`` takes it."""
    edges: list[int] = []
    for d in range(len(kernel) - 1, -1, -1):
        whole = steps[d] * (kernel[d] - 1)
        if padding == "same":
            edges += [whole // 2, whole - whole // 2]
        elif padding == "valid":
            edges += [0, 0]
        else:
            edges += [for_each(padding, len(kernel))[d]] * 2
    return edges
