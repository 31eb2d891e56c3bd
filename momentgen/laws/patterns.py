"""Norms and softmax written by hand, found from the calls that laws remember.

Means over dimensions are remembered, so that ``x - x.mean(dim)`` is exact.  A layer norm, an RMS norm or a softmax
written by hand is computed by its own rule.  Other values that depend on one value in two ways are taken as
independent.  Such are the branches of a residual block around a linear layer.  Diagonal propagation means just that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F

from momentgen.laws.diagonal import made, pair
from momentgen.laws.law import Law, remember
from momentgen.laws.numerics import normalise
from momentgen.laws.numerics.maximum import maximum_of
from momentgen.laws.numerics.root import at_least
from momentgen.laws.programs import IDENTITIES, affine_in, is_curved, number_of, reshapes, same_value
from momentgen.laws.table import Entry

__all__ = ["CASTS", "exp_of_sum", "made_by", "operation", "pattern", "scaled", "variance"]

#: functions that change a dtype
CASTS = frozenset(("to", "float", "double", "half", "bfloat16", "type_as", "type"))


def pattern(entry: Entry, a: Any, b: Any) -> Any:
    """``a`` and ``b`` combined by arithmetic, if a pattern is recognised; else None."""
    if entry.name == "sub":
        for found in (_centred(a, b), _below_maximum(a, b)):
            if found is not None:
                return found
        found = _centred(b, a)
        return None if found is None else -found
    if entry.name in ("div", "mul"):
        found = _normalised(entry.name, a, b)
        return _softmax(a, b) if found is None and entry.name == "div" else found
    return None


def scaled(law: Law) -> Law:
    """``law`` without movements that leave values in place."""
    while law._made is not None and law._made[0].name in IDENTITIES and isinstance(law._made[1][0], Law):
        law = law._made[1][0]
    return law


def made_by(law: Any) -> str:
    """The function of which ``law`` is the result; empty if that is not known."""
    return "" if not isinstance(law, Law) or law._made is None else law._made[0].name


def operation(law: Law) -> tuple[str, Law, Any] | None:
    """The sum, difference, product or quotient that ``law`` is, of a law of its shape and a certain value in order."""
    if made_by(law) not in ("add", "sub", "mul", "div"):
        return None
    entry, (first, second, *_), kwargs = law._made  # type: ignore[misc]
    inner, other = (first, second) if isinstance(first, Law) else (second, first)
    if kwargs.get("alpha", 1) != 1 or not isinstance(inner, Law) or isinstance(other, Law) or inner.shape != law.shape:
        return None
    return None if inner is second and entry.name in ("sub", "div") else (entry.name, inner, other)


def _dims(law: Law, given: Any) -> tuple[int, ...]:
    dims = (given,) if isinstance(given, int) else tuple(given)
    return tuple(sorted(d % law.ndim for d in dims)) if law.ndim else ()  # a number's dimension 0 is none


class _Reduction(NamedTuple):
    """A law that is a mean, a sum or a maximum of another over some dimensions, which are kept."""

    name: str
    of: Law
    dims: tuple[int, ...]


def _reduction(law: Any) -> _Reduction | None:
    """What ``law`` is a reduction of, whichever way its dimensions are kept."""
    if not isinstance(law, Law):
        return None
    found = _bare(law)
    if made_by(found) not in ("mean", "sum", "amax"):
        return None
    entry, args, kwargs = found._made  # type: ignore[misc]
    of, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
    if dim is None or not isinstance(of, Law):
        return None
    dims = _dims(of, dim)
    return _Reduction(entry.name, of, dims) if _is_kept(law, of, dims) else None


def _bare(law: Law) -> Law:
    """``law`` without reshapes and expansions."""
    law = scaled(law)
    while law._made is not None and (law._made[0].name in _EXPANSIONS or reshapes(law._made)):
        law = scaled(law._made[1][0])
    return law


_EXPANSIONS = ("expand", "expand_as", "broadcast_to")


def _is_kept(law: Law, of: Law, dims: tuple[int, ...]) -> bool:
    """Whether ``law`` has the shape of a reduction over these dimensions that keeps them, expanded or not."""
    return law.shape == of.shape or tuple(law.shape) == tuple(1 if d in dims else n for d, n in enumerate(of.shape))


def _centred(a: Any, b: Any) -> Any:
    """``x − x.mean(dims, keepdim=True)``."""
    average = _reduction(b)
    if average is None or average.name != "mean" or not same_value(scaled(average.of), scaled(a)):
        return None
    mean, var = pair(a)
    law = made(mean - b._parts()[0], normalise.centred(var, average.dims))
    return remember(law, Entry("centred", "statistic", torch.sub), (a, average.dims), {}, a)


def _centring(law: Law) -> tuple[Law, tuple[int, ...]] | None:
    law = scaled(law)
    return (law._made[1][0], law._made[1][1]) if made_by(law) == "centred" else None  # type: ignore[index]


def _below_maximum(a: Any, b: Any) -> Any:
    """``x − x.amax(dims, keepdim=True)``: Cov(x, max) = Var x · P(x is the largest), by Stein's lemma."""
    top = _reduction(b)
    if top is None or top.name != "amax" or not same_value(scaled(top.of), scaled(a)):
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
    law = made(mean - m, at_least(var + v - 2 * chance * var, 0))
    return remember(law, Entry("below_maximum", "statistic", torch.sub), (a, top.dims), {}, a)


def variance(entry: Entry, x: Any, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The mean or sum of ``(x − x.mean(dims))²`` over these dimensions, by the rule of ``var``; else None."""
    dim = kwargs.get("dim", rest[0] if rest else None)
    squared = None if dim is None or x._made is None else _squared(scaled(x))
    centring = None if squared is None else _centring(squared)
    if centring is None or _dims(x, dim) != centring[1]:
        return None
    law, dims = centring
    keepdim = kwargs.get("keepdim", rest[1] if len(rest) > 1 else False)
    found: Any = torch.var(cast(Any, law), dims, correction=0, keepdim=keepdim)
    if entry.name == "sum":
        found = found * math.prod(law.shape[d] for d in dims)
    return remember(found, entry, (x, *rest), kwargs, x)


# --------------------------------------------------------------------- norms


class _Size(NamedTuple):
    """``scale · (share · mean(v²) + eps)^power + behind``, v = ``of``, or ``of`` without its mean, over ``dims``."""

    of: Law
    centred: bool
    dims: tuple[int, ...]
    share: float
    eps: float = 0.0
    power: float = 1.0
    scale: float = 1.0
    behind: float = 0.0


#: a summand behind the root, s + e, counts as √(s² + e²) if it is no more than this
_SMALL = 1e-3
_POWERS: dict[Any, float] = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}


def _size(law: Any) -> _Size | None:
    """The power of a mean square that ``law`` is, with numbers added and multiplied; None if it is none."""
    law = _bare(law)
    if law._made is None:
        return None
    entry, args, kwargs = law._made
    name = entry.name
    if name == "var":
        dims = _dims(args[0], args[1])
        n = math.prod(args[0].shape[d] for d in dims)
        return _Size(args[0], True, dims, n / (n - args[2]))
    if name in ("mean", "sum"):
        squared = _squared(scaled(args[0]))
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if squared is None or dim is None:
            return None
        dims = _dims(squared, dim)
        share = math.prod(squared.shape[d] for d in dims) if name == "sum" else 1
        own = _centring(squared)
        if own is not None and own[1] == dims:
            return _Size(own[0], True, dims, share)
        return _Size(squared, False, dims, share)
    if name in ("clamp", "clamp_min"):  # kept above a small number: as if that were added
        bounds = {**dict(zip(("min", "max"), args[1:], strict=False)), **kwargs}
        args = args[0], bounds.get("min")
        if bounds.get("max") is not None:
            return None
    inner, other = (args[0], args[1] if len(args) > 1 else None) if isinstance(args[0], Law) else (args[1], args[0])
    found = _size(inner) if isinstance(inner, Law) and kwargs.get("alpha", 1) == 1 else None
    number = number_of(other)
    if found is None or (name not in _POWERS and number is None):
        return None
    if name in ("add", "clamp", "clamp_min"):
        field = "eps" if found.power == 1 else "behind"
        return found._replace(**{field: getattr(found, field) + number})
    over = name == "rdiv" or (name == "div" and inner is args[1])
    if name == "mul" or (name == "div" and not over):
        factor = cast(float, number) if name == "mul" else 1 / cast(float, number)
        if found.power == 1:
            return found._replace(share=found.share * factor, eps=found.eps * factor)
        return found._replace(scale=found.scale * factor, behind=found.behind * factor)
    power = -1.0 if over else _POWERS.get(name, number if name == "pow" else None)
    if power is None or found.power * power not in (0.5, -0.5):
        return None
    if found.power == 0.5:  # what is behind the root
        if not 0 <= found.behind / found.scale <= _SMALL:
            return None
        found = found._replace(eps=found.eps + (found.behind / found.scale) ** 2, behind=0.0)
    return found._replace(power=found.power * power, scale=found.scale**power * (cast(float, number) if over else 1))


def _normalised(name: str, a: Any, b: Any) -> Any:
    """``a/√(mean(a²) + eps)`` and its like, by ``/ sqrt``, ``/ norm``, ``/ std`` or ``* rsqrt``."""
    for over, under in ((a, b), (b, a)) if name == "mul" else ((a, b),):
        size = _size(under)
        if size is None or size.power != (-0.5 if name == "mul" else 0.5) or not _is_kept(under, size.of, size.dims):
            continue
        numerator, factors = _without_factors(over)
        own = _centring(numerator) if size.centred else (numerator, size.dims)
        small = size.behind / size.scale
        if (
            own is None
            or own[1] != size.dims
            or not same_value(scaled(own[0]), scaled(size.of))
            or not 0 <= small <= _SMALL
        ):
            continue
        norm = F.layer_norm if size.centred else F.rms_norm
        found = _over(own[0], size.dims, norm, (size.eps + small * small) / size.share)
        found = found * (size.share**-0.5 * (size.scale if name == "mul" else 1 / size.scale))
        for factor in reversed(factors):
            found = factor(found)
        return found
    return None


def _without_factors(law: Law) -> tuple[Law, list[Callable[[Any], Any]]]:
    """What a product with certain factors is a product of, and the factors as functions."""
    factors: list[Callable[[Any], Any]] = []
    law = scaled(law)
    while (found := operation(law)) is not None and found[0] in ("mul", "div"):
        name, inner, factor = found
        factors.append(_by(factor, name == "div"))
        law = scaled(inner)
    return law, factors


def _by(factor: Any, under: bool) -> Callable[[Any], Any]:
    return (lambda value: value / factor) if under else (lambda value: value * factor)


def _squared(law: Law) -> Law | None:
    """What ``law`` is the square of."""
    if made_by(law) not in ("square", "pow", "mul"):
        return None
    args = law._made[1]  # type: ignore[index]
    if made_by(law) == "pow" and args[1] != 2:
        return None
    if made_by(law) == "mul" and not (isinstance(args[1], Law) and args[0] is args[1]):
        return None
    return scaled(args[0]) if isinstance(args[0], Law) else None


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
    if total is None or total.name != "sum" or not same_value(total.of, a) or len(total.dims) != 1:
        return None
    if made_by(exp := scaled(a)) != "exp":
        return None
    logits: Any = exp._made[1][0]  # type: ignore[index]
    shift = scaled(logits)
    if made_by(shift) in ("below_maximum", "centred") and shift._made[1][1] == total.dims:  # type: ignore[index]
        logits = shift._made[1][0]  # type: ignore[index]
    return torch.softmax(logits, total.dims[0])


def exp_of_sum(x: Law) -> Any:
    """``exp(a Σ u + b)`` of curved u, as the product of ``exp(a u)`` times ``exp(b)``; None for another power."""
    if (found := affine_in(x)) is None:
        return None
    source, scale, shift = found
    made = None if source.history is None else source.history.known()
    if made is None or made[0].name not in ("sum", "mean") or source.parts[0].shape != x.shape:
        return None
    entry, (summed, *rest), kwargs = made
    if not is_curved(summed):
        return None
    dims = kwargs.get("dim", rest[0] if rest else None)
    dims = _dims(summed, range(summed.ndim) if dims is None else dims)
    if entry.name == "mean":
        scale = scale / math.prod(summed.shape[d] for d in dims)
    if not kwargs.get("keepdim", rest[1] if len(rest) > 1 else False):
        for d in dims:
            scale = scale.unsqueeze(d)
    flat = number_of(scale.reshape(-1)[:1])  # one number has closed forms
    product: Any = torch.exp(summed * (flat if flat is not None and bool((scale == flat).all()) else scale))
    for d in dims:
        product = product.prod(d, keepdim=True)
    return product.reshape(x.shape) * shift.exp()
