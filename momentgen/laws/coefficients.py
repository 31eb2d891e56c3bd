"""What the noise of a linear map's or convolution's own coefficients does to its output, on plain tensors.

For y = Σ_k W_k x_k with independent weights, Var y = Σ W_m² v + Σ W_v (v + m²).  The second sum is the weights' noise,
which this module computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.table import names

__all__ = ["bind", "bind_norm", "for_each", "is_linear_map", "noise_of_weight"]


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
    call: Callable[..., Any], mean: Tensor, var: Tensor | None, weight_var: Tensor, options: dict[str, Any]
) -> Tensor:
    """Variances of the outputs that come of the weight's noise.

    They are outputs of ``call(mean, weight, **options)``, for inputs of that mean and *variance* (None: certain).

    Returns:
        Of the output's shape; in float32 under float16 autocast, where terms would vanish.
    """
    kind = mean.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.float16:
        with torch.autocast(kind, enabled=False):
            wide = None if var is None else var.float()
            return noise_of_weight(call, mean.float(), wide, weight_var.float(), options)
    found: Tensor = call(mean.square() if var is None else mean.square() + var, weight_var, None, **options)
    return found
