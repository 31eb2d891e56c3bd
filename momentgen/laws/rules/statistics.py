"""Sample statistics of random values: variances, norms, power averages."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from momentgen.errors import InputError
from momentgen.laws.affine import VARIANCE
from momentgen.laws.diagonal import Diagonal, made, pair
from momentgen.laws.law import remember, rule
from momentgen.laws.movement import of_numbers
from momentgen.laws.numerics.root import root_of
from momentgen.laws.table import Entry
from momentgen.laws.unsupported import unsupported

__all__ = []


@rule(Diagonal, "statistic")
@of_numbers
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
        raise unsupported(entry, x, None)
    p = kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else None if entry.call is torch.linalg.norm else 2))
    if p not in (2, 2.0, "fro", None):
        raise unsupported(entry, x, f"the norm 2 has a rule, got {p!r}")
    dim = kwargs.get("dim", args[2] if len(args) > 2 else None)
    keepdim = kwargs.get("keepdim", args[3] if len(args) > 3 else False)
    if entry.call is torch.linalg.norm and p == 2 and (x.ndim == 2 if dim is None else isinstance(dim, tuple | list)):
        raise unsupported(entry, x, "a largest singular value has no rule")
    # torch.norm takes it by place, too
    dtype = kwargs.get("dtype", next((value for value in args[4:] if isinstance(value, torch.dtype)), None))
    square = (x if dtype is None else x.to(dtype)).square()
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
            f"{entry.name}: a rule for the norms 1 and 2 only, got norm_type={norm}. A normal "
            "variable to another power, summed and rooted, has no moments in closed form"
        )
    kernel = bound["kernel_size"]
    size = math.prod(kernel) if isinstance(kernel, tuple | list) else kernel**dims
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


@rule(Diagonal, "prod")
@of_numbers
def _prod(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A product of independent values: in pairs, each of variance V₁ (V₂ + m₂²) + m₁² V₂, where nothing cancels."""
    bound = {**dict(zip(("input", "dim", "keepdim"), args, strict=False)), **kwargs}
    mean, var = pair(bound["input"])
    dim, keepdim = bound.get("dim"), bound.get("keepdim", False)
    if (dtype := bound.get("dtype")) is not None:
        mean, var = mean.to(dtype), var.to(dtype)
    if dim is None:
        mean, var, dim = mean.reshape(-1), var.reshape(-1), 0
    while (n := mean.shape[dim]) > 1:
        m1, m2, *odd = mean.split([n // 2, n // 2] + [1] * (n % 2), dim)
        v1, v2, *odd_var = var.split([n // 2, n // 2] + [1] * (n % 2), dim)
        mean, var = m1 * m2, v1 * (v2 + m2 * m2) + m1 * m1 * v2
        if odd:
            mean, var = torch.cat([mean, *odd], dim), torch.cat([var, *odd_var], dim)
    return made(*((mean, var) if keepdim else (mean.squeeze(dim), var.squeeze(dim))))
