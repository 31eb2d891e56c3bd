"""Affine functions: linear maps, convolutions, averages, sums, padding; what each does to variances.

``VARIANCE`` maps the name of an affine function to a function of its callable, the variance and the remaining
arguments.  That has the squares of the coefficients.  Exact where the inputs are independent (Shekhovtsov & Flach 2018,
(7a), (7b)), also if coefficients are random.

For y = Σ_k W_k x_k with weights independent of the input, Var y = Σ W_m² v + Σ W_v (v + m²).  The second sum is the
weights' noise.  Neighbours in the weight's flattened order may have covariances C_k (the tridiagonal posterior of Zheng
et al., correlated-parameters).  Then the noise is larger by 2 Σ C_k m_k m_{k+1}, over the neighbours that belong to one
output.  Neighbours of two outputs make these outputs correlated, and no variance larger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError, UnsupportedError
from momentgen.laws.diagonal import Diagonal, dims_of, made, pair
from momentgen.laws.law import laws_in, remember, rule
from momentgen.laws.notes import place, unsupported
from momentgen.laws.numerics.root import at_least
from momentgen.laws.patterns import variance
from momentgen.laws.table import Entry, names
from momentgen.runtime.inputs import HALVES

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


def _check(name: str, mean: Tensor, bound: dict[str, Any]) -> None:
    """Whether the weight of a linear map or convolution fits its input.

    Raises:
        InputError: if not; names the function, the shapes and the place.
    """
    weight = bound.get("weight")
    if weight is None:
        return
    if name == "linear":
        if mean.shape[-1:] != weight.shape[-1:]:
            raise InputError(f"linear: expected (..., {weight.shape[-1]}), got {tuple(mean.shape)}{place()}")
        return
    dims = weight.dim()
    channels = weight.shape[0] if "transpose" in name else weight.shape[1] * bound.get("groups", 1)
    if mean.dim() not in (dims, dims - 1) or mean.shape[1 - dims] != channels:
        raise InputError(
            f"{name}: expected {channels} channels and {dims - 2} dimensions of space, got shape "
            f"{tuple(mean.shape)}{place()}"
        )


# ------------------------------------------------------------------- squares


def squared(value: Tensor) -> Tensor:
    """``value∘value``, of a sparse matrix too; torch has it of those by coordinates alone."""
    if value.layout not in (torch.strided, torch.sparse_coo):
        value = value.to_sparse(layout=torch.sparse_coo)
    return value.square()


def bilinear_moments(
    run: Callable[[Any, Any], Tensor], m1: Any, v1: Tensor | None, m2: Any, v2: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Moments of sums of products of independent values, each pair met once: V₁ m₂² + m₁² V₂ + V₁ V₂.

    Exact for each output; covariances between outputs are not carried on.
    """
    out = run(m1, m2)
    if v1 is None:
        return out, run(squared(m1), v2)
    if v2 is None:
        return out, run(v1, squared(m2))
    return out, run(v1, v2 + m2.square()) + run(m1.square(), v2)


# ------------------------------------------------------- variances, by function


def _linear(call: Any, var: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``var @ (weight∘weight)ᵀ``; what ``var`` repeats by expansion, in rows or columns, is computed once."""
    if 0 not in var.stride():
        return F.linear(var, squared(weight))
    shape = (*var.shape[:-1], weight.shape[0])
    for dim in range(var.dim() - 1):
        if var.stride(dim) == 0 and var.shape[dim] > 1:
            var = var.narrow(dim, 0, 1)
    if var.stride(-1) == 0 and var.shape[-1] > 1:
        return (var[..., :1] * squared(weight).sum(dim=1)).expand(shape)
    return F.linear(var, squared(weight)).expand(shape)


def _conv(call: Any, var: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
    """By the squares of the weight; computed once where the whole batch has one variance, expanded."""
    squares = squared(weight)
    if var.dim() == weight.dim() and var.stride(0) == 0 and var.shape[0] > 1:
        found = call(var[:1], squares, None, **options)
        return cast(Tensor, found.expand(var.shape[0], *found.shape[1:]))
    return cast(Tensor, call(var, squares, None, **options))


def _mean(call: Any, var: Tensor, dim: Any = None, keepdim: bool = False, **options: Any) -> Tensor:
    average = call(var, **options) if dim is None else call(var, dim, keepdim, **options)
    return cast(Tensor, average * max(average.numel(), 1) / max(var.numel(), 1))


def _same(call: Any, var: Tensor, *args: Any, **options: Any) -> Tensor:
    return cast(Tensor, call(var, *args, **options))


def _pad(call: Any, var: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    return cast(Tensor, call(var, pad, mode, 0.0 if mode == "constant" else None))


def _along(var: Tensor, dims: int, weights: Callable[[int, Tensor], Tensor]) -> Tensor:
    """By the squares of weights along each of the last dimensions: of its number and unit impulses, ``(n, n)``."""
    for d in range(dims):
        moved = var.movedim(d - dims, -1)
        unit = torch.eye(moved.shape[-1], dtype=var.dtype, device=var.device)
        var = (moved @ weights(d, unit).square()).movedim(-1, d - dims)
    return var


def _avg_pool(call: Any, var: Tensor, **given: Any) -> Tensor:
    dims, divisor = int(call.__name__[-2]), given.get("divisor_override")
    sizes, steps, pads = (
        for_each(value, dims)
        for value in (given["kernel_size"], given.get("stride") or given["kernel_size"], given.get("padding", 0))
    )
    options = given.get("ceil_mode", False), given.get("count_include_pad", True), divisor and 1

    def weights(place: int, unit: Tensor) -> Tensor:
        return F.avg_pool2d(unit[:, None, None], (1, sizes[place]), (1, steps[place]), (0, pads[place]), *options)[
            :, 0, 0
        ]

    found = _along(var, dims, weights)
    return found / divisor**2 if divisor else found


def _adaptive_avg_pool(call: Any, var: Tensor, output_size: Any) -> Tensor:
    dims = int(call.__name__[-2])
    sizes = for_each(output_size, dims)
    return _along(var, dims, lambda d, unit: F.adaptive_avg_pool1d(unit, sizes[d] or len(unit)))


def _interpolate(call: Any, var: Tensor, **given: Any) -> Tensor:
    """Nearest copies.  Linear and cubic modes weigh each dimension by itself."""
    mode = given.get("mode", "nearest")
    if mode in ("nearest", "nearest-exact"):
        return F.interpolate(var, **given)
    if mode not in ("linear", "bilinear", "trilinear", "bicubic"):
        raise UnsupportedError(f"interpolate: no rule in mode {mode!r}; an adaptive average pool may be meant")
    sizes = {name: given.pop(name) for name in ("size", "scale_factor") if given.get(name) is not None}
    given["mode"] = "bicubic" if mode == "bicubic" else "bilinear"

    def weights(d: int, unit: Tensor) -> Tensor:
        own = {name: value[d] if isinstance(value, tuple | list) else value for name, value in sizes.items()}
        along = {name: (len(unit) if name == "size" else 1.0, value) for name, value in own.items()}
        return F.interpolate(unit[None, None], **{**given, **along})[0, 0]

    return _along(var, var.dim() - 2, weights)


VARIANCE: dict[str, Callable[..., Tensor]] = {
    "linear": _linear,
    **{f"conv{d}d": _conv for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": _conv for d in (1, 2, 3)},
    **{f"avg_pool{d}d": _avg_pool for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": _adaptive_avg_pool for d in (1, 2, 3)},
    "mean": _mean,
    "sum": _same,
    "cumsum": _same,
    "fold": _same,
    "pad": _pad,
    "interpolate": _interpolate,
}


@rule(Diagonal, "affine")
def _affine(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, rest = args[0], args[1:]
    if laws_in(rest) or laws_in(kwargs.values()):
        return _random_coefficients(entry, args, kwargs)
    mean, var = pair(x)
    if var is None:
        raise unsupported(entry, laws_in(args)[0], "only its first argument may be random")
    if kwargs and "dtype" in kwargs:
        mean, var = mean.to(kwargs["dtype"]), var.to(kwargs["dtype"])
        kwargs = {name: value for name, value in kwargs.items() if name != "dtype"}
    bound = bind(entry.name, rest, kwargs)
    _check(entry.name, mean, bound)
    out = entry.call(mean, *rest, **kwargs)
    if entry.name in ("mean", "sum"):
        dims, keepdim = dims_of(x.ndim, bound.get("dim")), bound.get("keepdim", False)
        if (found := variance(entry, x, dims, keepdim)) is not None:
            return found
        return remember(made(out, VARIANCE[entry.name](entry.call, var, **bound)), entry, (x, dims, keepdim), {}, x)
    return made(out, _second(entry, VARIANCE[entry.name], var, bound))


def _second(entry: Entry, function: Any, var: Tensor, bound: dict[str, Any]) -> Tensor:
    """A product of second moments, outside float16 autocast, where squares of weights underflow."""
    kind = var.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) is torch.float16:
        with torch.autocast(kind, enabled=False):
            return cast(Tensor, function(entry.call, var, **bound))
    return cast(Tensor, function(entry.call, var, **bound))


def _random_coefficients(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear map or convolution whose weight or bias is random: W_m² v + W_v (v + m²), two products."""
    if not is_linear_map(entry.name):
        raise unsupported(entry, laws_in(args)[0], "only its first argument may be random")
    bound = bind(entry.name, args[1:], kwargs)
    weight, bias = bound.pop("weight"), bound.pop("bias", None)
    (m, v), (w, w_var), (b, b_var) = pair(args[0]), pair(weight), pair(bias)
    _check(entry.name, m, {"weight": w, **bound})
    out = entry.call(m, w, b, **bound)
    var = None if v is None else _second(entry, VARIANCE[entry.name], v, {"weight": w, **bound})
    if w_var is not None:
        own = noise_of_weight(entry.call, entry.name, m, v, w_var, getattr(weight, "neighbour", None), bound)
        var = own if var is None else var + own
    if b_var is not None:
        shape = [-1] if entry.name == "linear" else [-1] + [1] * int(entry.name[-2])
        of_bias = b_var.view(shape)
        var = of_bias.expand(out.shape) if var is None else var + of_bias
    return made(out, cast(Tensor, var))
