"""Functions of several random values, for ``Diagonal``: products, maxima, norms, softmax, statistics.

The moments themselves are computed in :mod:`momentgen.laws.numerics`, on plain tensors; what is exact and what is an
approximation is said there.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws import recognise
from momentgen.laws.affine import VARIANCE, adaptive_edges, window_starts
from momentgen.laws.diagonal import Diagonal, made, mean_of, pair
from momentgen.laws.law import Rule, laws_in, remember, tensor_of
from momentgen.laws.numerics import maximum as maxima
from momentgen.laws.numerics import normalise, softmax
from momentgen.laws.numerics.root import root_of
from momentgen.laws.table import Entry, names
from momentgen.laws.unsupported import unsupported

__all__ = ["RULES", "Extremum", "bilinear_moments"]


# ------------------------------------------------------------------- products


def bilinear_moments(
    run: Callable[[Any, Any], Tensor], m1: Any, v1: Tensor | None, m2: Any, v2: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Moments of sums of products of independent values, each pair met once: V₁ m₂² + m₁² V₂ + V₁ V₂.

    Exact for each output; covariances between outputs are not carried on.
    """
    out = run(m1, m2)
    if v1 is None:
        return out, run(m1.square(), v2)
    if v2 is None:
        return out, run(v1, m2.square())
    return out, run(v1, v2 + m2.square()) + run(m1.square(), v2)


def _product(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if entry.name == "einsum":
        return _einsum(entry, args)
    for name in _SECOND:
        if name in kwargs:
            args, kwargs = (*args, kwargs[name]), {key: value for key, value in kwargs.items() if key != name}
    if entry.name == "bilinear":
        return _bilinear(entry, args)
    x, y, *rest = args
    if entry.name == "rmatmul":
        x, y = y, x
    if x is y:
        raise unsupported(entry.call, x, "a random matrix times itself has no rule", entry)
    if entry.name in ("matmul", "mm", "bmm", "rmatmul"):
        found = recognise.attention(x, y)
        if found is not None:
            return found
    call = torch.matmul if entry.name == "rmatmul" else entry.call
    mean, var = bilinear_moments(lambda a, b: call(a, b, *rest, **kwargs), *pair(x), *pair(y))
    if entry.name in ("matmul", "mm", "bmm", "rmatmul") and (more := recognise.gram(x, y)) is not None:
        mean, var = mean + more[0], var + more[1]
    of = x if isinstance(x, Diagonal) else y
    return remember(made(mean, var), entry, (x, y, *rest), kwargs, of)


#: names of the second factor
_SECOND = ("other", "mat2", "vec", "vec2", "tensor", "input2", "weight", "bias")


def _spelled(equation: str, operands: list[Any]) -> tuple[list[str], str]:
    """The indices of each operand and of the result, without an ellipsis."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    sizes = [x.ndim - len(part.replace("...", "")) for x, part in zip(operands, parts, strict=True)]
    most = max((size for size, part in zip(sizes, parts, strict=True) if "..." in part), default=0)
    dots = "".join(spare[:most])
    if not arrow:
        named = "".join(parts).replace(".", "")
        out = "..." + "".join(letter for letter in sorted(set(named)) if named.count(letter) == 1)
    parts = [part.replace("...", dots[most - size :]) for size, part in zip(sizes, parts, strict=True)]
    return parts, out.replace("...", dots)


def _einsum(entry: Entry, args: tuple[Any, ...]) -> Any:
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = list(operands[0])
    if len(operands) == 1:
        mean, var = pair(operands[0])
        return made(torch.einsum(equation, mean), torch.einsum(equation, var))
    random = [k for k, operand in enumerate(operands) if isinstance(operand, Diagonal)]
    if not isinstance(equation, str) or (len(operands) > 2 and len(random) > 1):
        raise unsupported(
            entry.call, laws_in(operands)[0], "an equation of up to two random operands has a rule", entry
        )
    parts, out = _spelled(equation, operands)
    if len(operands) > 2:  # all but the random one first
        (k,) = random
        rest = [part for n, part in enumerate(parts) if n != k]
        kept = "".join(letter for letter in sorted(set("".join(rest))) if letter in out or letter in parts[k])
        certain = [mean_of(operand) for n, operand in enumerate(operands) if n != k]
        operands = [operands[k], torch.einsum(f"{','.join(rest)}->{kept}", *certain)]
        parts = [parts[k], kept]
    (a, b), (x, y) = parts, operands
    if a == b and isinstance(x, Diagonal) and isinstance(y, Diagonal):
        return _einsum(entry, (f"{a}->{out}", x * y))  # type: ignore[operator]
    if x is y:
        raise unsupported(entry.call, x, "a random matrix times itself has no rule", entry)
    # An index of one operand alone that is summed over would let the other's values meet many of its values.
    for alone in set(a) - set(b) - set(out):
        x, a = x.sum(a.index(alone)), a.replace(alone, "")
    for alone in set(b) - set(a) - set(out):
        y, b = y.sum(b.index(alone)), b.replace(alone, "")
    reduced = f"{a},{b}->{out}"
    if len(set(a)) == len(a) and len(set(b)) == len(b):
        found = recognise.einsum_attention(x, y, reduced)
        if found is not None:
            return found
    law = made(*bilinear_moments(lambda p, q: torch.einsum(reduced, p, q), *pair(x), *pair(y)))
    return remember(law, entry, (reduced, x, y), {}, x if isinstance(x, Diagonal) else y)


_BAG = (
    "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights",
    "include_last_offset", "padding_idx",
)  # fmt: skip


def _embedding_bag(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A bag of rows; the weights of the samples, which the mode ``sum`` takes, may be random: Σ w e has Σ v e²."""
    bound = {**dict(zip(_BAG, args[1:], strict=False)), **kwargs}
    samples = bound.pop("per_sample_weights", None)
    if not isinstance(samples, Diagonal) or isinstance(bound["weight"], Diagonal):
        law = laws_in((*args, *kwargs.values()))[0]
        raise unsupported(entry.call, law, "only the samples' weights may be random", entry)
    mean, var = pair(samples)
    indices, weight = tensor_of(args[0]), tensor_of(bound.pop("weight"))
    rest = {name: tensor_of(value) for name, value in bound.items()}
    return made(
        F.embedding_bag(indices, weight, per_sample_weights=mean, **rest),
        F.embedding_bag(indices, weight.square(), per_sample_weights=var, **rest),
    )


def _bilinear(entry: Entry, args: tuple[Any, ...]) -> Any:
    """``y_k = x1ᵀ A_k x2 + b_k``: Var = Σ v1_i (A_k m2)_i² + Σ v2_j (A_kᵀ m1)_j² + Σ A_kij² v1_i v2_j."""
    x1, x2, weight, *bias = args
    (m1, v1), (m2, v2) = pair(x1), pair(x2)
    mean = F.bilinear(m1, m2, weight, *bias)
    var: Tensor | None = None
    if v1 is not None:
        var = torch.einsum("...ki,...i->...k", torch.einsum("kij,...j->...ki", weight, m2).square(), v1)
    if v2 is not None:
        own = torch.einsum("...kj,...j->...k", torch.einsum("kij,...i->...kj", weight, m1).square(), v2)
        var = own if var is None else var + own + F.bilinear(v1, v2, weight.square())
    return made(mean, var)  # type: ignore[arg-type]


# -------------------------------------------------------------------- maxima


class Extremum(NamedTuple):
    """What ``max(x, dim)`` returns: which of random values is the largest is a decision, so that it has no indices."""

    values: Any
    indices: Any


class _NoIndices:
    """Raises where somebody asks which of random values was the largest."""

    def __init__(self, error: Exception) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, name: str) -> Any:
        raise object.__getattribute__(self, "_error")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise next(object.__getattribute__(value, "_error") for value in args if isinstance(value, cls))


def _asked(self: _NoIndices, *_: Any) -> Any:
    raise object.__getattribute__(self, "_error")


for _operator in names(
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand or ror "
    "xor rxor neg pos abs invert eq ne lt le gt ge getitem setitem len iter contains bool int float index complex array"
):
    setattr(_NoIndices, f"__{_operator}__", _asked)


def _maximum(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, x = entry.name, args[0]
    if "pool" in name:
        return _max_pool(entry, args, kwargs)
    lower = "min" in name
    if name in ("amax", "amin"):
        dim = kwargs.get("dim", args[1] if len(args) > 1 else ())
        return _over(x, dim, kwargs.get("keepdim", args[2] if len(args) > 2 else False), lower)
    second = kwargs.get("other", kwargs.get("dim", args[1] if len(args) > 1 else None))
    if second is None:
        return _over(x, (), False, lower)
    if isinstance(second, int):
        values = _over(x, second, kwargs.get("keepdim", args[2] if len(args) > 2 else False), lower)
        return Extremum(values, _NoIndices(unsupported(entry.call, x, None, _DECISION)))
    return _of_two(entry, x, second, lower)


_DECISION = Entry("argmax", "decision", torch.argmax)


def _of_two(entry: Entry, x: Any, y: Any, lower: bool) -> Any:
    from momentgen.laws.activations import generated_op
    from momentgen.laws.source import combined

    if isinstance(x, Diagonal) and isinstance(y, Diagonal):
        pointwise = Entry(entry.name, "arithmetic", entry.call)
        found = combined(pointwise, x, y, {})
        if found is not None:
            return found
    (m1, v1), (m2, v2) = pair(x), pair(y)
    if lower:
        m1, m2 = -m1, -m2
    if v1 is not None and v2 is not None:
        m1, v1, m2, v2 = torch.broadcast_tensors(m1, v1, m2, v2)
        mean, var = generated_op("maximum", "a maximum of random inputs")(m1, v1, m2, v2)
    else:
        # a certain one: y + ReLU(x − y)
        random, spread, other = (m1, v1, m2) if v1 is not None else (m2, v2, m1)
        random, spread, other = torch.broadcast_tensors(random, spread, other)
        up, var = generated_op("relu", "a maximum")(random - other, spread)
        mean = up + other
    return made(-mean if lower else mean, var)


def _over(x: Any, dim: Any, keepdim: bool, lower: bool) -> Any:
    mean, var = pair(x)
    dims = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(mean.dim()))
    dims = tuple(d % mean.dim() for d in dims)
    rest = [d for d in range(mean.dim()) if d not in dims]
    m, v = (part.permute(*rest, *dims).flatten(len(rest)) for part in (-mean if lower else mean, var))
    m, v = maxima.maximum_of(m, v, -1)
    if keepdim:
        shape = [1 if d in dims else size for d, size in enumerate(mean.shape)]
        m, v = m.reshape(shape), v.reshape(shape)
    law = made(-m if lower else m, v)
    return law if lower else remember(law, _AMAX, (x, dims, keepdim), {}, x)


_AMAX = Entry("amax", "maximum", torch.amax)


_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def _max_pool(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dims = int(entry.name[-2])
    mean, var = pair(args[0])
    first = mean.dim() - dims
    places: list[list[list[int]]] = []
    if entry.name.startswith("adaptive"):
        bound: dict[str, Any] = {**dict(zip(("output_size", "return_indices"), args[1:], strict=False)), **kwargs}
        for d, wanted in enumerate(_tuple(bound["output_size"], dims)):
            starts, lengths = adaptive_edges(mean.shape[first + d], wanted)
            pairs = zip(starts, lengths, strict=True)
            places.append([[start + k if k < n else -1 for k in range(max(lengths))] for start, n in pairs])
    else:
        bound = {**dict(zip(_POOL, args[1:], strict=False)), **kwargs}
        kernel = _tuple(bound["kernel_size"], dims)
        stride = kernel if bound.get("stride") in (None, [], ()) else _tuple(bound["stride"], dims)
        padding, dilation = _tuple(bound.get("padding", 0), dims), _tuple(bound.get("dilation", 1), dims)
        for d in range(dims):
            size, ceil = mean.shape[first + d], bool(bound.get("ceil_mode", False))
            starts = window_starts(size, kernel[d], stride[d], padding[d], dilation[d], ceil)
            offsets = [dilation[d] * k for k in range(kernel[d])]
            places.append([[start + k if 0 <= start + k < size else -1 for k in offsets] for start in starts])
    if bound.get("return_indices"):
        raise unsupported(entry.call, args[0], "a maximum of random inputs has no indices to return", entry)
    return made(*maximum_of_windows(mean, var, places))


def _tuple(value: Any, dims: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * dims


def maximum_of_windows(mean: Tensor, var: Tensor, places: list[list[list[int]]]) -> tuple[Tensor, Tensor]:
    """The maximum of each window over the last dimensions.

    Args:
        mean: means, the spatial dimensions last.
        var: *variances*, of the same shape.
        places: for each spatial dimension, the inputs of each window along it; -1 is outside.
    """
    dims = len(places)
    first = mean.dim() - dims
    outside = False
    for d, windows in enumerate(places):
        # Each dimension becomes two: windows, and places within one, which move to the end.
        index = torch.tensor([max(k, 0) for window in windows for k in window], device=mean.device)
        shape = (len(windows), len(windows[0]))
        mean, var = (part.index_select(first + d, index) for part in (mean, var))
        mean, var = (torch.unflatten(part, first + d, shape).movedim(first + d + 1, -1) for part in (mean, var))
        outside = outside or any(k < 0 for window in windows for k in window)
    mean, var = mean.flatten(first + dims), var.flatten(first + dims)
    if outside:
        valid = torch.tensor([[True]], device=mean.device)
        for d, windows in enumerate(places):
            own = torch.tensor([[k >= 0 for k in window] for window in windows], device=mean.device)
            grid = [1] * (2 * dims)
            grid[d], grid[dims + d] = own.shape
            valid = own.view(grid) if d == 0 else valid & own.view(grid)
        mask = valid.flatten(dims)
        mean, var = torch.where(mask, mean, -math.inf), torch.where(mask, var, 0)
    return maxima.maximum_of(mean, var, -1)


# --------------------------------------------------------------------- norms


def _scaled(mean: Tensor, var: Tensor, weight: Any, bias: Any, channel: int | None) -> Any:
    """``x · weight + bias``, elementwise or by channel; either may be random."""
    (w, w_var), (b, b_var) = pair(weight), pair(bias)
    if channel is not None:
        shape = [1, -1] + [1] * (mean.dim() - 2)
        w, w_var, b, b_var = (None if part is None else part.view(shape) for part in (w, w_var, b, b_var))
    if w_var is not None:
        mean, var = mean * w, var * (w_var + w * w) + mean * mean * w_var
    elif w is not None:
        mean, var = mean * w, var * (w * w)
    if b is not None:
        mean = mean + b
    return made(mean, var if b_var is None else var + b_var)


def _as_random(value: Any) -> tuple[Tensor, Tensor]:
    mean, var = pair(value)
    return mean, torch.zeros_like(mean) if var is None else var


def _layer_norm(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("normalized_shape", "weight", "bias", "eps") if entry.name == "layer_norm" else (
        "normalized_shape", "weight", "eps"
    )  # fmt: skip
    bound = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    mean, var = _as_random(args[0])
    shape = tuple(bound["normalized_shape"])
    if tuple(mean.shape[-len(shape) :]) != shape:
        raise InputError(f"{entry.name}: expected (..., {shape}), got shape {tuple(mean.shape)}")
    if entry.name == "layer_norm":
        found = normalise.layer_norm(mean, var, len(shape), bound.get("eps", 1e-5))
    else:
        found = normalise.rms_norm(mean, var, len(shape), bound.get("eps"))
    return _scaled(*found, bound.get("weight"), bound.get("bias"), None)


def _group_norm(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = {**dict(zip(("num_groups", "weight", "bias", "eps"), args[1:], strict=False)), **kwargs}
    return _grouped(args[0], bound["num_groups"], bound.get("weight"), bound.get("bias"), bound.get("eps", 1e-5))


def _grouped(x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Any:
    mean, var = _as_random(x)
    if mean.dim() < 2 or mean.shape[1] % groups:
        raise InputError(f"group_norm: expected channels in {groups} groups, got shape {tuple(mean.shape)}")
    m, v = (part.reshape(mean.shape[0], groups, -1) for part in (mean, var))
    m, v = normalise.layer_norm(m, v, 1, eps)
    return _scaled(m.reshape(mean.shape), v.reshape(mean.shape), weight, bias, 1)


_BATCH = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


#: the order of torch.batch_norm, which is not that of F.batch_norm
_BATCH_OF_TORCH = ("weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


def _instance_norm(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = {
        **dict(zip(_BATCH_OF_TORCH if entry.call is torch.instance_norm else _BATCH, args[1:], strict=False)),
        **kwargs,
    }
    own = bound.pop("use_input_stats", bound.pop("training", True))
    if not own:
        return _batch_norm(entry, args[:1], {**bound, "training": False})
    if bound.get("running_mean") is not None:
        raise unsupported(entry.call, args[0], "running statistics are not kept over random values", entry)
    return _grouped(args[0], args[0].shape[1], bound.get("weight"), bound.get("bias"), bound.get("eps", 1e-5))


def _batch_norm(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Batch norm: evaluated, affine and exact; in training by the expectations of the batch's statistics.

    Those are the mean of the means, and the mean of the variances plus the variance of the means; the running
    statistics are updated by them (the variance unbiased, as torch does).
    """
    bound = {
        **dict(zip(_BATCH_OF_TORCH if entry.call is torch.batch_norm else _BATCH, args[1:], strict=False)),
        **kwargs,
    }
    mean, var = _as_random(args[0])
    running_mean, running_var = bound.get("running_mean"), bound.get("running_var")
    weight, bias, eps = bound.get("weight"), bound.get("bias"), bound.get("eps", 1e-5)
    if mean.dim() < 2 or (running_mean is not None and running_mean.shape[0] != mean.shape[1]):
        wanted = "channels" if running_mean is None else f"{running_mean.shape[0]} channels"
        raise InputError(f"batch_norm: expected {wanted}, got shape {tuple(mean.shape)}")
    if not bound.get("training", False):
        if running_mean is None or running_var is None:
            raise InputError("batch_norm: evaluation needs running statistics")
        return _evaluated(mean, var, running_mean, running_var, weight, bias, eps)
    dims = [d for d in range(mean.dim()) if d != 1]
    centre, spread, own = mean.mean(dims), mean.var(dims, correction=0), var.mean(dims)
    n = mean.numel() // mean.shape[1]
    if n < 2:
        raise InputError(f"batch_norm: training needs more than one value a channel, got shape {tuple(mean.shape)}")
    if running_mean is not None and running_var is not None:
        momentum = bound.get("momentum", 0.1)
        with torch.no_grad():
            running_mean.lerp_(centre.to(running_mean.dtype), momentum)
            running_var.lerp_((spread * (n / (n - 1)) + own).to(running_var.dtype), momentum)
    shape = [1, -1] + [1] * (mean.dim() - 2)
    scale = (spread + own + eps).view(shape)
    return _scaled((mean - centre.view(shape)) * scale.rsqrt(), var / scale, weight, bias, 1)


def _evaluated(
    mean: Tensor, var: Tensor, running_mean: Tensor, running_var: Tensor, weight: Any, bias: Any, eps: float
) -> Any:
    if laws_in((weight, bias)):
        plain = F.batch_norm(mean, running_mean, running_var, None, None, False, 0.0, eps)
        return _scaled(plain, var / (running_var + eps).view([1, -1] + [1] * (mean.dim() - 2)), weight, bias, 1)
    out = F.batch_norm(mean, running_mean, running_var, weight, bias, False, 0.0, eps)
    scale = (running_var + eps).reciprocal()
    scale = scale if weight is None else scale * weight.square()
    factor = scale.view([1, -1] + [1] * (mean.dim() - 2))
    n = var.shape[0]
    if n > 1 and var.stride(0) == 0:  # one variance for the whole batch
        return made(out, (var[:1] * factor).expand(out.shape))
    return made(out, var * factor)


def _l2(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = {**dict(zip(("p", "dim", "eps"), args[1:], strict=False)), **kwargs}
    if bound.get("p", 2.0) != 2 or not isinstance(bound.get("dim", 1), int):
        raise unsupported(entry.call, args[0], "p = 2 over one dimension has a rule", entry)
    mean, var = pair(args[0])
    return made(*normalise.l2_normalise(mean, var, bound.get("dim", 1), bound.get("eps", 1e-12)))


# ------------------------------------------------------------------- softmax


def _softmax(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    dtype = kwargs.get("dtype", next((value for value in args[2:] if isinstance(value, torch.dtype)), None))
    if dim is None:
        raise InputError(f"{entry.name}: expected dim to be given")
    mean, var = pair(x)
    if dtype is not None:
        mean, var = mean.to(dtype), var.to(dtype)
    function = softmax.softmax if entry.name == "softmax" else softmax.log_softmax
    return remember(made(*function(mean, var, dim)), entry, (x, dim), {}, x)


# ---------------------------------------------------------------- statistics


def _statistic(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, x = entry.name, args[0]
    if name in ("var", "std", "var_mean", "std_mean"):
        law = _variance(entry, args, kwargs, x)
        if name.startswith("std"):
            law = torch.sqrt(law)
        if not name.endswith("_mean"):
            return law
        dims, keepdim, _ = _variance_arguments(args, kwargs)
        return law, x.mean(dims, keepdim=keepdim)
    if name.startswith("lp_pool"):
        return _lp_pool(entry, args, kwargs)
    if name == "logsumexp":
        raise unsupported(entry.call, x, None, entry)
    p = kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else None if entry.call is torch.linalg.norm else 2))
    if p not in (2, 2.0, "fro", None):
        raise unsupported(entry.call, x, f"the norm 2 has a rule, got {p!r}", entry)
    dim = kwargs.get("dim", args[2] if len(args) > 2 else None)
    keepdim = kwargs.get("keepdim", args[3] if len(args) > 3 else False)
    if entry.call is torch.linalg.norm and p == 2 and (x.ndim == 2 if dim is None else isinstance(dim, tuple | list)):
        raise unsupported(entry.call, x, "a largest singular value has no rule", entry)
    square = x.square()
    return torch.sqrt(square.sum() if dim is None else square.sum(dim, keepdim))


def _variance_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool, float]:
    """dim, keepdim and correction of ``var`` in all its forms."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 and not isinstance(args[1], bool) else None)
    rest = args[2:] if len(args) > 1 and not isinstance(args[1], bool) else args[1:]
    unbiased = kwargs.get("unbiased", rest[0] if rest else True)
    keepdim = kwargs.get("keepdim", rest[1] if len(rest) > 1 else False)
    correction = kwargs.get("correction", 1 if unbiased else 0)
    return dim, keepdim, 1 if correction is None else correction


def _variance(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], x: Any) -> Any:
    """The sample variance, a quadratic form xᵀAx/(n − c) with A = I − 1/n: exact mean and variance.

    E = mᵀAm + tr AV and Var = 2 tr (AV)² + 4 mᵀAVAm, with tr (AV)² = Σ v²(1 − 2/n) + (Σ v)²/n².
    """
    dim, keepdim, correction = _variance_arguments(args, kwargs)
    mean, var = pair(x)
    dims = tuple(range(mean.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    n = math.prod(mean.shape[d] for d in dims)
    centred = mean - mean.mean(dims, keepdim=True)
    divisor = n - correction
    total = var.sum(dims, keepdim=keepdim)
    expected = (centred.square().sum(dims, keepdim=keepdim) + (1 - 1 / n) * total) / divisor
    trace = (var * var).sum(dims, keepdim=keepdim) * (1 - 2 / n) + total * total / (n * n)
    spread = 2 * trace + 4 * (centred.square() * var).sum(dims, keepdim=keepdim)
    law = made(expected, spread / (divisor * divisor))
    known = Entry("var", "statistic", torch.var)
    return remember(law, known, (x, dims, correction, keepdim), {}, x)


def _lp_pool(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Power averages: torch's norm 1 is a sum, and takes no absolute values; norm 2 the root of a sum of squares."""
    dims = int(entry.name[-2])
    bound = {**dict(zip(("norm_type", "kernel_size", "stride", "ceil_mode"), args[1:], strict=False)), **kwargs}
    norm = bound["norm_type"]
    if norm not in (1, 2):
        raise InputError(
            f"{entry.name}: a rule for the norms 1 and 2 only, got norm_type={norm}; a normal "
            "variable to another power, summed and rooted, has no moments in closed form"
        )
    size = math.prod(_tuple(bound["kernel_size"], dims))
    average = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[dims]
    window: Any = (bound["kernel_size"], bound.get("stride"), 0, bool(bound.get("ceil_mode", False)))
    mean, var = pair(args[0])
    variance = VARIANCE[f"avg_pool{dims}d"]
    if norm == 1:
        return made(entry.call(mean, *args[1:], **kwargs), size**2 * variance(average, var, *window))
    m, v = mean.double(), var.double()
    square, own = m * m + v, 2 * v * (v + 2 * m * m)
    root, spread = root_of(size * average(square, *window), size**2 * variance(average, own, *window))
    return made(root.to(mean.dtype), spread.to(mean.dtype))


#: rules of Diagonal, by name and kind
RULES: dict[str, Rule] = {
    "embedding_bag": _embedding_bag,
    "product": _product,
    "maximum": _maximum,
    "softmax": _softmax,
    "statistic": _statistic,
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
    "normalize": _l2,
}
