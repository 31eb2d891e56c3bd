"""What a network writes by hand over several values of one source: centring, norms, softmax, attention.

:mod:`~momentgen.laws.source` asks here when two laws of one source meet that are not pointwise functions of it.  A
pattern that is recognised is computed by the rule of the function that it is; what is not is taken as independent.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws import source
from momentgen.laws.law import Law, remember
from momentgen.laws.numerics import normalise
from momentgen.laws.table import TABLE, Entry

__all__ = ["attention", "combined", "einsum_attention"]


def combined(entry: Entry, a: Any, b: Any) -> Any:
    """``a`` and ``b`` combined by arithmetic, if a pattern is recognised; else None."""
    if entry.name == "sub":
        return _centred(a, b)
    if entry.name in ("div", "mul"):
        found = _normalised(entry.name, a, b)
        return _softmax(a, b) if found is None and entry.name == "div" else found
    return None


def _dims(law: Law, given: Any) -> tuple[int, ...]:
    dims = (given,) if isinstance(given, int) else tuple(given)
    return tuple(sorted(d % law.ndim for d in dims))


def _average(law: Law) -> tuple[Law, tuple[int, ...]] | None:
    """The law and the dimensions of which ``law`` is the average, dimensions kept."""
    if law._made is None or law._made[0].name != "mean":
        return None
    _, args, kwargs = law._made
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    if dim is None or not keepdim:
        return None
    return args[0], _dims(args[0], dim)


def _centred(a: Any, b: Any) -> Any:
    """``x − x.mean(dims, keepdim=True)``."""
    from momentgen.laws.diagonal import made, pair

    average = _average(source.scaled(b))
    if average is None or average[0] is not a:
        return None
    mean, var = pair(a)
    law = made(mean - b._parts()[0], normalise.centred(mean, var, average[1]))  # type: ignore[arg-type]
    return remember(law, Entry("centred", "statistic", torch.sub), (a, average[1]), {}, a)


def _centring(law: Law) -> tuple[Law, tuple[int, ...]] | None:
    if law._made is None or law._made[0].name != "centred":
        return None
    return law._made[1][0], law._made[1][1]


def _shifted(law: Law) -> tuple[Law, float] | None:
    """``law`` as another plus a number."""
    shift = 0.0
    while law._made is not None and law._made[0].name == "add":
        first, second = law._made[1][0], law._made[1][1]
        inner, number = (first, second) if isinstance(first, Law) else (second, first)
        if not isinstance(number, int | float) or not isinstance(inner, Law):
            return None
        law, shift = inner, shift + number
    return law, shift


def _normalised(name: str, a: Any, b: Any) -> Any:
    """``a/√(mean(a²) + eps)`` and its like, by ``/ sqrt`` or ``* rsqrt``."""
    if name == "mul" and source.operand(source.scaled(a), "rsqrt") is not None:
        a, b = b, a
    b = source.scaled(b)
    root = source.operand(b, "sqrt") if name == "div" else source.operand(b, "rsqrt")
    if root is None and name == "div" and b._made is not None and b._made[0].name == "pow" and b._made[1][1] == 0.5:
        root = source.operand(b, "pow")
    if root is None or (shifted := _shifted(root)) is None:
        return None
    spread, eps = shifted
    centring = _centring(a)
    if spread._made is not None and spread._made[0].name == "var":
        of, dims, correction, keepdim = spread._made[1]
        if centring is None or centring[0] is not of or not keepdim or _dims(of, dims) != centring[1]:
            return None
        n = 1
        for d in centring[1]:
            n *= of.shape[d]
        # s²·n/(n − c) + eps: a layer norm with another eps, times a number
        factor = (n - correction) / n
        return _over(of, centring[1], F.layer_norm, eps * factor) * factor**0.5
    average = _average(spread)
    if average is None:
        return None
    squared, dims = average
    if source.operand(squared, "square") is not a and not (
        squared._made is not None
        and squared._made[0].name in ("pow", "mul")
        and squared._made[1][0] is a
        and (squared._made[1][1] is a or squared._made[1][1] == 2)
    ):
        return None
    if centring is not None and centring[1] == dims:
        return _over(centring[0], dims, F.layer_norm, eps)
    return _over(a, dims, F.rms_norm, eps)


def _over(x: Any, dims: tuple[int, ...], norm: Any, eps: float) -> Any:
    """A norm of ``x`` over ``dims``, wherever they are."""
    rest = [d for d in range(x.ndim) if d not in dims]
    order = (*rest, *dims)
    back = [order.index(d) for d in range(x.ndim)]
    shape = [x.shape[d] for d in dims]
    moved = x.permute(*order)
    found = norm(moved, shape, eps=eps) if norm is F.layer_norm else norm(moved, shape, None, eps)
    return found.permute(*back)


def _softmax(a: Any, b: Any) -> Any:
    """``exp(x) / exp(x).sum(dim, keepdim=True)``."""
    if b._made is None or b._made[0].name != "sum" or b._made[1][0] is not a:
        return None
    _, args, kwargs = b._made
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    logits = source.operand(a, "exp")
    if isinstance(dim, tuple | list) and len(dim) == 1:
        dim = dim[0]
    if logits is None or not keepdim or not isinstance(dim, int):
        return None
    return torch.softmax(logits, dim)  # type: ignore[call-overload]


# ----------------------------------------------------------------- attention


def attention(weights: Any, value: Any) -> Any:
    """``softmax(scale · q kᵀ + bias) @ v`` written by hand, by the rule of attention; None if it is not that.

    Args:
        weights: a law that may be the softmax of such logits.
        value: a law or a tensor.
    """
    if not isinstance(weights, Law) or weights._made is None:
        return None
    softmax = source.walk(weights, "softmax")
    if softmax is None or not isinstance(softmax[0], Law):
        return None
    logits, dim = softmax
    if dim % logits.ndim != logits.ndim - 1:
        return None
    scale, bias = 1.0, None
    logits = source.scaled(logits)
    while logits._made is not None and logits._made[0].name not in ("matmul", "bmm", "einsum"):
        entry, args, _ = logits._made
        if entry.name not in ("add", "sub", "mul", "div", "masked_fill", "where"):
            return None
        inner, term, factor = _step(entry.name, args, logits)
        if inner is None:
            return None
        bias = _plus(bias, term, scale)
        scale *= factor
        logits = source.scaled(inner)
    if logits._made is None:
        return None
    entry, args, _ = logits._made
    if entry.name == "einsum":
        return None
    query, key = args[0], args[1]
    from momentgen.laws.composite import attended

    return attended(query, key.transpose(-2, -1), value, scale, bias)


def _step(name: str, args: tuple[Any, ...], law: Law) -> tuple[Any, Any, float]:
    """One function between a product and its softmax: the law below, what is added, by what it is multiplied."""
    if name == "masked_fill":
        inner, mask, fill = args
        if not isinstance(inner, Law) or isinstance(fill, Tensor):
            return None, None, 1.0
        zero = torch.zeros((), dtype=law.dtype, device=law.device)
        return inner, torch.where(mask, zero + _lowest(fill), zero), 1.0
    if name == "where":
        mask, inner, fill = args
        if not isinstance(inner, Law) or isinstance(fill, Law):
            return None, None, 1.0
        zero = torch.zeros((), dtype=law.dtype, device=law.device)
        return inner, torch.where(mask, zero, zero - torch.inf), 1.0
    first, second = args[0], args[1]
    inner, other = (first, second) if isinstance(first, Law) else (second, first)
    if not isinstance(inner, Law) or isinstance(other, Law) or (inner is second and name in ("sub", "div")):
        return None, None, 1.0
    if name in ("mul", "div"):
        if not isinstance(other, int | float):
            return None, None, 1.0
        return inner, None, float(other) if name == "mul" else 1 / other
    return inner, other if name == "add" else -other, 1.0


def _lowest(fill: float) -> float:
    """A mask of any very low number is one of minus infinity."""
    return -torch.inf if fill < -1e3 else fill


def _plus(bias: Any, term: Any, scale: float) -> Any:
    if term is None:
        return bias
    own = term if scale == 1.0 else term * scale
    return own if bias is None else bias + own


def einsum_attention(weights: Any, value: Any, equation: str) -> Any:
    """Attention written with einsum, whose last two dimensions are those of matrices."""
    if not isinstance(weights, Law) or weights._made is None or source.walk(weights, "softmax") is None:
        return None
    logits = source.walk(weights, "softmax")[0]  # type: ignore[index]
    scale = 1.0
    while logits._made is not None and logits._made[0].name in ("mul", "div"):
        inner, _, factor = _step(logits._made[0].name, logits._made[1], logits)
        if inner is None:
            return None
        logits, scale = inner, scale * factor
    if logits._made is None or logits._made[0].name != "einsum":
        return None
    inside, query, key = logits._made[1]
    if _as_matrices(inside) != "qk" or _as_matrices(equation) != "av":
        return None
    from momentgen.laws.composite import attended

    return attended(query, key, value, scale, None)


def _as_matrices(equation: str) -> str:
    """``qk`` for "…ie,…je->…ij", ``av`` for "…ij,…je->…ie", else empty."""
    left, out = equation.split("->")
    a, b = left.split(",")
    if min(len(a), len(b), len(out)) < 2 or a[:-2] != b[:-2] or a[:-2] != out[:-2]:
        return ""
    (i, e), (j, f), (p, q) = a[-2:], b[-2:], out[-2:]
    if e == f and (p, q) == (i, j):
        return "qk"
    return "av" if e == j and (p, q) == (i, f) else ""


def entry_of(function: Any) -> Entry:
    """The entry of a function of torch."""
    return TABLE[function]
