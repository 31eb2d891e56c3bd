"""What a network writes by hand over several values of one source: centring, norms, softmax, attention.

:mod:`~momentgen.laws.source` asks here when two laws of one source meet that are not pointwise functions of it.  A
pattern that is recognised is computed by the rule of the function that it is; what is not is taken as independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws import source
from momentgen.laws.law import Law, remember
from momentgen.laws.numerics import normalise
from momentgen.laws.table import TABLE, Entry

__all__ = ["attention", "below_maximum", "combined", "einsum_attention", "gram"]

#: functions that change a shape and leave the order of the values
_RESHAPES = frozenset(("view", "reshape", "view_as", "reshape_as", "unsqueeze", "squeeze", "flatten", "unflatten"))
#: functions that change a dtype
_CASTS = frozenset(("to", "float", "double", "half", "bfloat16", "type_as", "type"))


def combined(entry: Entry, a: Any, b: Any) -> Any:
    """``a`` and ``b`` combined by arithmetic, if a pattern is recognised; else None."""
    if entry.name == "sub":
        found = _centred(a, b)
        if found is None:
            found = below_maximum(a, b)
        if found is None:
            found = _centred(b, a)
            found = None if found is None else -found
        return found
    if entry.name in ("div", "mul"):
        found = _normalised(entry.name, a, b)
        return _softmax(a, b) if found is None and entry.name == "div" else found
    return None


def _name(law: Any) -> str:
    """The function of which ``law`` is the result; empty if that is not known."""
    return "" if not isinstance(law, Law) or law._made is None else law._made[0].name


def _dims(law: Law, given: Any) -> tuple[int, ...]:
    dims = (given,) if isinstance(given, int) else tuple(given)
    return tuple(sorted(d % law.ndim for d in dims))


class _Reduction(NamedTuple):
    """A law that is a mean, a sum or a maximum of another over some dimensions, which are kept."""

    name: str
    of: Law
    dims: tuple[int, ...]


def _reduction(law: Any) -> _Reduction | None:
    """What ``law`` is a reduction of, whichever way its dimensions are kept."""
    if not isinstance(law, Law):
        return None
    shape = law.shape
    law = source.scaled(law)
    if _name(law) in ("expand", "expand_as", "broadcast_to"):
        law = source.scaled(law._made[1][0])
        shape = law.shape
    while _name(law) in _RESHAPES or (_name(law) == "getitem" and _only_adds(law._made[1][1])):
        law = source.scaled(law._made[1][0])
    if _name(law) not in ("mean", "sum", "amax"):
        return None
    entry, args, kwargs = law._made
    of, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
    if dim is None or not isinstance(of, Law):
        return None
    dims = _dims(of, dim)
    if tuple(shape) != tuple(1 if d in dims else size for d, size in enumerate(of.shape)):
        return None
    return _Reduction(entry.name, of, dims)


def _only_adds(index: Any) -> bool:
    """Whether an index does nothing but add dimensions."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts)


def _centred(a: Any, b: Any) -> Any:
    """``x − x.mean(dims, keepdim=True)``."""
    from momentgen.laws.diagonal import made, pair

    average = _reduction(b)
    if average is None or average.name != "mean" or not source.same_value(source.scaled(average.of), source.scaled(a)):
        return None
    mean, var = pair(a)
    law = made(mean - b._parts()[0], normalise.centred(mean, var, average.dims))
    return remember(law, Entry("centred", "statistic", torch.sub), (a, average.dims), {}, a)


def _centring(law: Law) -> tuple[Law, tuple[int, ...]] | None:
    law = source.scaled(law)
    return (law._made[1][0], law._made[1][1]) if _name(law) == "centred" else None  # type: ignore[index]


def below_maximum(a: Any, b: Any) -> Any:
    """``x − x.amax(dims, keepdim=True)``: Cov(x, max) = Var x · P(x is the largest), by Stein's lemma."""
    from momentgen.laws.diagonal import made, pair
    from momentgen.laws.numerics.maximum import maximum_of

    top = _reduction(b)
    if top is None or top.name != "amax" or not source.same_value(source.scaled(top.of), source.scaled(a)):
        return None
    mean, var = pair(a)
    rest = [d for d in range(mean.dim()) if d not in top.dims]
    order = (*rest, *top.dims)
    with torch.enable_grad():
        place = mean.detach().permute(order).flatten(len(rest)).requires_grad_()
        largest, _ = maximum_of(place, var.detach().permute(order).flatten(len(rest)), -1)
        (chance,) = torch.autograd.grad(largest.sum(), place)
    chance = chance.reshape([mean.shape[d] for d in order]).permute([order.index(d) for d in range(mean.dim())])
    m, v = pair(b)
    law = made(mean - m, (var + v - 2 * chance * var).clamp_min(0))
    return remember(law, Entry("below_maximum", "statistic", torch.sub), (a, top.dims), {}, a)


# --------------------------------------------------------------------- norms


def _shifted(law: Law) -> tuple[Law, float] | None:
    """``law`` as another plus a number."""
    shift = 0.0
    while _name(law) in ("add", "clamp", "clamp_min"):
        entry, args, kwargs = law._made  # type: ignore[misc]
        if entry.name == "add":
            first, second = args[0], args[1]
            inner, number = (first, second) if isinstance(first, Law) else (second, first)
            number = number if kwargs.get("alpha", 1) == 1 else None
        else:  # kept above a small number: as if that were added
            inner, number = args[0], kwargs.get("min", args[1] if len(args) > 1 else None)
            if entry.name == "clamp" and kwargs.get("max", args[2] if len(args) > 2 else None) is not None:
                return None
        number = _number(number)
        if number is None or not isinstance(inner, Law):
            return None
        law, shift = source.scaled(inner), shift + number
    return law, shift


def _number(value: Any) -> float | None:
    """A number, also of a tensor of one element; None for anything else."""
    if (
        isinstance(value, Tensor)
        and value.numel() == 1
        and not torch.compiler.is_compiling()
        and not value.requires_grad
    ):
        return float(value)
    return value if isinstance(value, int | float) else None


def _times(law: Law) -> tuple[Law, float]:
    """``law`` as another times a number."""
    factor = 1.0
    while _name(law) in ("mul", "div"):
        name, (first, second, *_) = law._made[0].name, law._made[1]  # type: ignore[index]
        inner, number = (first, second) if isinstance(first, Law) else (second, first)
        number = _number(number)
        if number is None or not isinstance(inner, Law) or (name == "div" and inner is second):
            break
        law, factor = source.scaled(inner), factor * (number if name == "mul" else 1 / number)
    return law, factor


def _without_factors(law: Law) -> tuple[Law, list[Callable[[Any], Any]]]:
    """What a product with certain factors is a product of, and the factors as functions."""
    factors: list[Callable[[Any], Any]] = []
    law = source.scaled(law)
    while _name(law) in ("mul", "div"):
        name, (first, second, *_) = law._made[0].name, law._made[1]  # type: ignore[index]
        inner, factor = (first, second) if isinstance(first, Law) else (second, first)
        if not isinstance(inner, Law) or isinstance(factor, Law) or inner.shape != law.shape:
            break
        if name == "div" and inner is second:
            break
        factors.append(_by(factor, name == "div"))
        law = source.scaled(inner)
    return law, factors


def _by(factor: Any, under: bool) -> Callable[[Any], Any]:
    return (lambda value: value / factor) if under else (lambda value: value * factor)


#: a summand behind the root, s + e, counts as √(s² + e²) if it is no more than this
_SMALL = 1e-3


def _root(name: str, b: Law) -> tuple[Law, float, float, float] | None:
    """A denominator, or one over a factor, as c (√(spread + eps) + e): spread, eps, e and c."""
    b = source.scaled(b)
    b, factor = _times(b)
    behind = 0.0
    if name == "mul":
        if _name(b) in ("rdiv", "div"):  # 1 / root
            first, second = b._made[1][:2]  # type: ignore[index]
            over, under = (first, second) if _name(b) == "div" else (second, first)
            number = _number(over)
            if number is None or not isinstance(under, Law) or (found := _root("div", under)) is None:
                return None
            return (*found[:3], found[3] / (factor * number))
        is_root = _name(b) == "rsqrt" or (_name(b) == "pow" and b._made[1][1] == -0.5)  # type: ignore[index]
        factor = 1 / factor
    else:
        outside = _shifted(b)
        if outside is None or not 0 <= outside[1] <= _SMALL:
            return None
        # c (k s + e) is c k (s + e/k)
        b, inside = _times(outside[0])
        behind, factor = outside[1] / inside, factor * inside
        is_root = _name(b) == "sqrt" or (_name(b) == "pow" and b._made[1][1] == 0.5)  # type: ignore[index]
    shifted = _shifted(source.scaled(b._made[1][0])) if is_root else None  # type: ignore[index]
    return None if shifted is None else (*shifted, behind, factor)


def _normalised(name: str, a: Any, b: Any) -> Any:
    """``a/√(mean(a²) + eps)`` and its like, by ``/ sqrt``, ``/ norm``, ``/ std`` or ``* rsqrt``."""
    if name == "div" and _name(source.scaled(b)) in ("expand", "expand_as", "broadcast_to"):
        b = source.scaled(b)._made[1][0]  # type: ignore[index]
    root = _root(name, b)
    if root is None and name == "mul":
        a, b = b, a
        root = _root(name, b)
    if root is None:
        return None
    spread, eps, behind, over = root
    numerator, factors = _without_factors(a)
    centring = _centring(numerator)
    eps += behind * behind
    if _name(spread) == "var":
        of, dims, correction, _ = spread._made[1]  # type: ignore[index]
        if centring is None or not source.same_value(source.scaled(centring[0]), source.scaled(of)):
            return None
        if _dims(of, dims) != centring[1] or not _is_kept(b, of, centring[1]):
            return None
        n = math.prod(of.shape[d] for d in centring[1])
        # s²·n/(n − c) + eps: a layer norm with another eps, times a number
        share = (n - correction) / n
        found = _over(of, centring[1], F.layer_norm, eps * share) * (share**0.5 / over)
    else:
        reduced = _reduction(spread)
        squared = None if reduced is None else _squared(source.scaled(reduced.of))
        if reduced is None or squared is None or reduced.name == "amax" or not _is_kept(b, reduced.of, reduced.dims):
            return None
        n = math.prod(reduced.of.shape[d] for d in reduced.dims) if reduced.name == "sum" else 1
        own = _centring(squared)
        if own is not None and centring is not None:
            if own[1] != centring[1] or own[1] != reduced.dims or not source.same_value(own[0], centring[0]):
                return None
            found = _over(own[0], own[1], F.layer_norm, eps / n) / (n**0.5 * over)
        elif source.same_value(squared, numerator):
            found = _over(numerator, reduced.dims, F.rms_norm, eps / n) / (n**0.5 * over)
        else:
            return None
    for factor in reversed(factors):
        found = factor(found)
    return found


def _is_kept(law: Law, of: Law, dims: tuple[int, ...]) -> bool:
    """Whether ``law`` has the shape of a reduction over these dimensions that keeps them."""
    return tuple(law.shape) == tuple(1 if d in dims else size for d, size in enumerate(of.shape))


def _squared(law: Law) -> Law | None:
    """What ``law`` is the square of."""
    if _name(law) not in ("square", "pow", "mul"):
        return None
    args = law._made[1]  # type: ignore[index]
    if _name(law) == "pow" and args[1] != 2:
        return None
    if _name(law) == "mul" and not (isinstance(args[1], Law) and args[0] is args[1]):
        return None
    return source.scaled(args[0]) if isinstance(args[0], Law) else None


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
    """``exp(x) / exp(x).sum(dim, keepdim=True)``, whatever is subtracted from x along the dimension."""
    total = _reduction(b)
    if total is None or total.name != "sum" or not source.same_value(total.of, a) or len(total.dims) != 1:
        return None
    logits = source.operand(source.scaled(a), "exp")
    if logits is None:
        return None
    shift = source.scaled(logits)
    if _name(shift) in ("below_maximum", "centred") and shift._made[1][1] == total.dims:  # type: ignore[index]
        logits = shift._made[1][0]  # type: ignore[index]
    return torch.softmax(logits, total.dims[0])  # type: ignore[arg-type]


# ----------------------------------------------------------------- attention


class _Weights(NamedTuple):
    """Weights ``softmax(scale · q kᵀ + bias)``, with dropout or not.

    Args:
        query: shape ``(..., L, E)``.
        key: shape ``(..., S, E)``.
        scale: of the products.
        bias: a certain summand, or None.
        drop: probability with which a weight is dropped.
        batch: leading dimensions of the product.
    """

    query: Any
    key: Any
    scale: Any
    bias: Any
    drop: float
    batch: tuple[int, ...]


def _bare(law: Law) -> Law:
    """``law`` without what leaves its values, but for their dtype."""
    law = source.scaled(law)
    while _name(law) in _CASTS and isinstance(law._made[1][0], Law):  # type: ignore[index]
        law = source.scaled(law._made[1][0])  # type: ignore[index]
    return law


def _is_batched_alike(law: Law, inner: Law) -> bool:
    return law.ndim > 1 and inner.ndim > 1 and law.shape[-2:] == inner.shape[-2:]


def _weights(law: Any) -> _Weights | None:
    """The weights that ``law`` is, if they are of attention."""
    if not isinstance(law, Law):
        return None
    law, drop = _bare(law), 0.0
    while _name(law) == "dropout" or _name(law) in _RESHAPES:
        inner = _bare(law._made[1][0])
        if not _is_batched_alike(law, inner) or (_name(law) == "dropout" and drop):
            return None
        drop = law._made[1][1] if _name(law) == "dropout" else drop
        law = inner
    if _name(law) != "softmax":
        return None
    logits, dim = law._made[1]
    if not isinstance(logits, Law) or logits.ndim < 2 or dim % logits.ndim != logits.ndim - 1:
        return None
    scale: Any = 1.0
    bias: Any = None
    logits = _bare(logits)
    while _name(logits) not in ("matmul", "rmatmul", "mm", "bmm", "einsum"):
        if _name(logits) in _RESHAPES:
            inner = _bare(logits._made[1][0])  # type: ignore[index]
            if not _is_batched_alike(logits, inner):
                return None
            if bias is not None and bias.dim() > 2:
                bias = bias.expand(logits.shape).reshape(inner.shape)
            logits = inner
            continue
        if _name(logits) not in ("add", "sub", "mul", "div", "masked_fill", "where"):
            return None
        step = _step(logits)
        if step is None:
            return None
        inner, term, factor = step
        if term is not None:
            term = term if isinstance(scale, float) and scale == 1.0 else term * scale
            bias = term if bias is None else bias + term
        scale = scale * factor
        logits = _bare(inner)
    _, args, kwargs = logits._made  # type: ignore[misc]
    batch = tuple(logits.shape[:-2])
    if _name(logits) == "einsum":
        found = _of_einsum(*args)
        return None if found is None else _Weights(*found, scale, bias, drop, batch)
    query, key = args[0], args[1]
    if kwargs or query.ndim < 2 or key.ndim < 2:
        return None
    return _Weights(query, key.transpose(-2, -1), scale, bias, drop, batch)


#: a mask by a number that is not this low is not taken for one
_LOW = -1e3


def _step(law: Law) -> tuple[Law, Any, Any] | None:
    """One function between a product and its softmax: the law below, what is added, by what it is multiplied."""
    name, args, kwargs = law._made[0].name, law._made[1], law._made[2]  # type: ignore[index]
    if name in ("masked_fill", "where"):
        if name == "masked_fill":
            inner, mask, fill = args
        elif isinstance(args[1], Law) and args[1].RANK:
            inner, mask, fill = args[1], args[0].logical_not(), args[2]
        else:
            inner, mask, fill = args[2], args[0], args[1]
        lowest = fill.flatten()[0] if isinstance(fill, Tensor) and _is_constant(fill) else fill
        number = _number(lowest)
        if not isinstance(inner, Law) or inner.shape != law.shape or number is None or number > _LOW:
            return None
        zero = torch.zeros((), dtype=law.dtype, device=law.device)
        return inner, torch.where(mask, zero + max(number, -1e9 if number > -math.inf else -math.inf), zero), 1.0
    if kwargs.get("alpha", 1) != 1:
        return None
    first, second = args[0], args[1]
    inner, other = (first, second) if isinstance(first, Law) else (second, first)
    if not isinstance(inner, Law) or isinstance(other, Law) or inner.shape != law.shape:
        return None
    if inner is second and name in ("sub", "div"):
        return None
    if name in ("mul", "div"):
        if isinstance(other, Tensor) and other.dim() and other.numel() > 1 and other.shape[-2:] != (1, 1):
            return None
        return inner, None, other if name == "mul" else 1 / other
    if not isinstance(other, Tensor):
        return inner, None, 1.0  # the same for all keys
    return inner, other if name == "add" else -other, 1.0


def _is_constant(fill: Tensor) -> bool:
    return fill.numel() == 1 or all(step == 0 for step in fill.stride())


def attention(weights: Any, value: Any) -> Any:
    """``softmax(scale · q kᵀ + bias) @ v`` written by hand, by the rule of attention; None if it is not that.

    Args:
        weights: a law that may be the softmax of such logits, or a value where the other has them, transposed.
        value: a law or a tensor.
    """
    found = _weights(weights)
    if found is None:
        other = _transposed(value)
        if other is None or _weights(other) is None or not isinstance(weights, Law | Tensor) or weights.ndim < 2:
            return None
        out = attention(other, weights.transpose(-2, -1))
        return None if out is None else out.transpose(-2, -1)
    if value.ndim < 2:
        return None
    return _attended(found, tuple(weights.shape[:-2]), value)


def _attended(found: _Weights, batch: tuple[int, ...], value: Any) -> Any:
    from momentgen.laws.composite import attended

    if batch == found.batch:
        return attended(found.query, found.key, value, found.scale, found.bias, found.drop)
    value = value.expand(*batch, *value.shape[-2:]).reshape(*found.batch, *value.shape[-2:])
    out = attended(found.query, found.key, value, found.scale, found.bias, found.drop)
    return out.reshape(*batch, *out.shape[-2:])


def _transposed(law: Any) -> Law | None:
    """What ``law`` is the transpose of, in its last two dimensions."""
    if not isinstance(law, Law) or law.ndim < 2 or law._made is None:
        return None
    law = source.scaled(law)
    name, (inner, *rest), kwargs = law._made[0].name, law._made[1], law._made[2]
    last = {law.ndim - 1, law.ndim - 2}
    if kwargs or not isinstance(inner, Law):
        return None
    if name in ("transpose", "swapaxes", "swapdims"):
        return inner if {d % law.ndim for d in rest[:2]} == last else None
    if name == "permute":
        dims = rest[0] if isinstance(rest[0], tuple | list) else rest[:-1]
        order = [*range(law.ndim - 2), law.ndim - 1, law.ndim - 2]
        return inner if [d % law.ndim for d in dims] == order else None
    return inner if name in ("t", "adjoint") else None


def gram(x: Any, y: Any) -> tuple[Tensor, Tensor] | None:
    """What ``x xᵀ`` has on its diagonal beyond independent values: mean Σ v, and variance Σ (v² + 2 m² v)."""
    from momentgen.laws.diagonal import pair

    if not isinstance(x, Law) or not isinstance(y, Law):
        return None
    if not any(a is not None and a is b for a, b in ((_transposed(y), x), (_transposed(x), y))):
        return None
    mean, var = pair(x)
    own = var * (var + 2 * mean * mean)
    return torch.diag_embed(var.sum(-1)), torch.diag_embed(own.sum(-1))


# --------------------------------------------------------- attention, einsum


def _arranged(value: Any, letters: str, wanted: str) -> Any:
    """``value``, whose dimensions have these letters, with those wanted; what it has not is of size 1."""
    order = [letters.index(letter) for letter in wanted if letter in letters]
    value = value.permute(*order)
    for place, letter in enumerate(wanted):
        if letter not in letters:
            value = value.unsqueeze(place)
    return value


def _of_einsum(equation: str, x: Any, y: Any) -> tuple[Any, Any] | None:
    """Query and key, arranged as for matrices, of an einsum whose last dimensions are queries and keys."""
    (a, b), out = equation.split("->")[0].split(","), equation.split("->")[1]
    if len(out) < 2 or any(len(set(part)) != len(part) for part in (a, b, out)):
        return None
    batch, i, j = out[:-2], out[-2], out[-1]
    if i in b and j in a:
        x, y, a, b = y, x, b, a
    summed = set(a) & set(b) - set(out)
    if i not in a or i in b or j not in b or j in a or len(summed) != 1 or set(a + b) - summed - set(out):
        return None
    e = summed.pop()
    return _arranged(x, a, batch + i + e), _arranged(y, b, batch + j + e)


def einsum_attention(weights: Any, value: Any, equation: str) -> Any:
    """Attention whose second product is an einsum; None if it is not that."""
    found = _weights(weights)
    (a, b), out = equation.split("->")[0].split(","), equation.split("->")[1]
    if found is None:
        return einsum_attention(value, weights, f"{b},{a}->{out}") if _weights(value) is not None else None
    batch, i, j = a[:-2], a[-2], a[-1]
    own = set(b) - set(a)
    if j not in b or i in b or j in out or len(own) != 1 or set(out) != set(batch) | {i} | own:
        return None
    d = own.pop()
    result = _attended(found, tuple(weights.shape[:-2]), _arranged(value, b, batch + j + d))
    return _arranged(result, batch + i + d, out)


def entry_of(function: Any) -> Entry:
    """The entry of a function of torch."""
    return TABLE[function]
