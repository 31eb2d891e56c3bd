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

from momentgen.laws.analysis import root_of_affine
from momentgen.laws.diagonal import made, pair
from momentgen.laws.law import Law, remember
from momentgen.laws.numerics import normalise
from momentgen.laws.numerics.maximum import maximum_of
from momentgen.laws.numerics.root import at_least
from momentgen.laws.programs import EXPANSIONS, IDENTITIES, own_programs_of, programs_of, reshapes, same_value
from momentgen.laws.table import Entry


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


def scaled(law: Law, beside: Callable[[Any], bool] = lambda made: False) -> Law:
    """``law`` without movements that leave values in place, nor other calls that ``beside`` says."""
    while (made := law._made) is not None and isinstance(made[1][0], Law):
        if made[0].name not in IDENTITIES and not beside(made):
            break
        law = made[1][0]
    return law


def made_by(law: Any) -> str:
    """The function of which ``law`` is the result; empty if that is not known."""
    return "" if not isinstance(law, Law) or law._made is None else law._made[0].name


def _reduced(law: Any, name: str, of: Any) -> tuple[int, ...] | None:
    """The dimensions over which ``law`` is that reduction of ``of``, whichever way they are kept; None if it is not."""
    found = scaled(law, lambda made: made[0].name in EXPANSIONS or reshapes(made)) if isinstance(law, Law) else None
    if made_by(found) != name:
        return None
    inner, dims = found._made[1][:2]  # type: ignore[union-attr, index]
    is_own = isinstance(inner, Law) and same_value(scaled(inner), scaled(of)) and _is_kept(law, inner, dims)
    return dims if is_own else None


def _is_kept(law: Law, of: Law, dims: tuple[int, ...]) -> bool:
    """Whether ``law`` has the shape of a reduction over these dimensions that keeps them, expanded or not."""
    return law.shape == of.shape or tuple(law.shape) == tuple(1 if d in dims else n for d, n in enumerate(of.shape))


def _centred(a: Any, b: Any) -> Any:
    """``x − x.mean(dims, keepdim=True)``."""
    if (dims := _reduced(b, "mean", a)) is None:
        return None
    mean, var = pair(a)
    law = made(mean - b._parts()[0], normalise.centred(var, dims))
    return remember(law, Entry("centred", "statistic", torch.sub), (a, dims), {}, a)


def _centring(law: Law) -> tuple[Law, tuple[int, ...]] | None:
    law = scaled(law)
    return law._made[1] if made_by(law) == "centred" else None  # type: ignore[index]


def _below_maximum(a: Any, b: Any) -> Any:
    """``x − x.amax(dims, keepdim=True)``: Cov(x, max) = Var x · P(x is the largest), by Stein's lemma."""
    if (dims := _reduced(b, "amax", a)) is None:
        return None
    mean, var = pair(a)
    rest = [d for d in range(mean.dim()) if d not in dims]
    order = (*rest, *dims)
    with torch.enable_grad():
        place = mean.detach().permute(order).flatten(len(rest)).requires_grad_()
        largest, _ = maximum_of(place, var.detach().permute(order).flatten(len(rest)), -1)
        (chance,) = torch.autograd.grad(largest.sum(), place)
    chance = chance.reshape([mean.shape[d] for d in order]).permute([order.index(d) for d in range(mean.dim())])
    m, v = pair(b)
    law = made(mean - m, at_least(var + v - 2 * chance * var, 0))
    return remember(law, Entry("below_maximum", "statistic", torch.sub), (a, dims), {}, a)


def variance(entry: Entry, x: Any, dims: tuple[int, ...], keepdim: bool) -> Any:
    """The mean or sum of ``(x − x.mean(dims))²`` over these dimensions, by the rule of ``var``; else None."""
    squared = None if x._made is None else _squared(scaled(x))
    centring = None if squared is None else _centring(squared)
    if centring is None or dims != centring[1]:
        return None
    found: Any = torch.var(cast(Any, centring[0]), dims, correction=0, keepdim=keepdim)
    if entry.name == "sum":
        found = found * math.prod(x.shape[d] for d in dims)
    return remember(found, entry, (x, dims, keepdim), {}, x)


# --------------------------------------------------------------------- norms


class _Size(NamedTuple):
    """``scale · (mean(v²) + eps)^(power/2)`` over ``dims``, v = ``of``, or ``of`` without its mean."""

    of: Law
    centred: bool
    dims: tuple[int, ...]
    scale: float
    eps: float
    power: int


def _size(law: Any) -> _Size | None:
    """The root of a mean square that ``law`` is, or one over it; None if it is none."""
    for program in programs_of(law) if isinstance(law, Law) else ():
        known = None if program.source.history is None else program.source.history.known()
        statistic = None if known is None or not program.only_reshapes() else _mean_square(*known)
        root = None if statistic is None or program.code.tensors else root_of_affine(program.code.steps)
        if statistic is not None and root is not None:
            (of, centred, dims, share), (scale, eps, power) = statistic, root
            return _Size(of, centred, dims, scale * share ** (power / 2), eps / share, power)
    return None


def _mean_square(entry: Entry, args: Any, _: Any) -> tuple[Law, bool, tuple[int, ...], float] | None:
    """What a call takes the mean square of, whether without its mean, over which dimensions, and its factor."""
    if entry.name not in ("var", "mean", "sum"):
        return None
    x, dims = args[:2]
    n = math.prod(x.shape[d] for d in dims)
    if entry.name == "var":
        return x, True, dims, n / (n - args[2])
    if (squared := _squared(scaled(x))) is None:
        return None
    own, share = _centring(squared), n if entry.name == "sum" else 1
    return (own[0], True, dims, share) if own is not None and own[1] == dims else (squared, False, dims, share)


def _normalised(name: str, a: Any, b: Any) -> Any:
    """``a/√(mean(a²) + eps)`` and its like, by ``/ sqrt``, ``/ norm``, ``/ std`` or ``* rsqrt``."""
    for over, under in ((a, b), (b, a)) if name == "mul" else ((a, b),):
        size = _size(under)
        if size is None or size.power != (-1 if name == "mul" else 1) or not _is_kept(under, size.of, size.dims):
            continue
        for program in programs_of(over):
            if {step[0] for step in program.code.steps} <= {"mul", "div"} and program.is_affine:
                known = None if program.source.history is None else program.source.history.known()
                if size.centred and known is not None and known[0].name == "centred" and not program.moves:
                    is_own = known[1][1] == size.dims and same_value(scaled(known[1][0]), scaled(size.of))
                else:
                    is_own = not size.centred and any(map(program.starts_as, own_programs_of(size.of)))
                if is_own:
                    norm = F.layer_norm if size.centred else F.rms_norm
                    found = _over(size.of, size.dims, norm, size.eps) * size.scale ** (1 if name == "mul" else -1)
                    one = torch.ones((), dtype=over.dtype, device=over.device)
                    return found * program.code.value(one) if program.code.steps else found
    return None


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
    dims = _reduced(b, "sum", a)
    if dims is None or len(dims) != 1 or made_by(exp := scaled(a)) != "exp":
        return None
    logits: Any = exp._made[1][0]  # type: ignore[index]
    shift = scaled(logits)
    if made_by(shift) in ("below_maximum", "centred") and shift._made[1][1] == dims:  # type: ignore[index]
        logits = shift._made[1][0]  # type: ignore[index]
    return torch.softmax(logits, dims[0])
