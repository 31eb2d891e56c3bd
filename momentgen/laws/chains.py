"""Chains: pointwise functions of one value, one after another, are one function of that value.

``relu(x) ** 2`` closed function by function takes ``relu(x)`` for a normal value, which it is not.  A pointwise
function of a value that is a curved function of another is therefore put off as an expression of the latter
(:mod:`~momentgen.laws.source`), and becomes a generated op or an integral.  A single function keeps its op.

A function with poles or an end to its domain (a root, a quotient) starts anew, unless the bounds of its argument keep
away from them: an integral would meet values that its argument does not take.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws import source
from momentgen.laws.activations import UNDEFINED
from momentgen.laws.bounds import is_inside
from momentgen.laws.law import Law, dispatch, laws_in
from momentgen.laws.table import Entry, names

__all__ = ["chained", "leads_to_chain", "start_of"]

#: pointwise functions that have rules of their own for arguments of one sign, or are refused
_OWN = frozenset((*names("sqrt rsqrt reciprocal"), *UNDEFINED))
#: movements that put other values beside those that they move
_FILLING = frozenset(names("tril triu diag_embed diag diagflat unfold"))


def start_of(law: Law) -> Law | None:
    """The value that ``law`` is a nonlinear function of, element by element; None if there is none.

    >>> from momentgen.laws import diagonal
    >>> x = diagonal(torch.zeros(2), torch.ones(2))
    >>> start_of(2 * torch.tanh(x)) is x, start_of(2 * x)
    (True, None)
    """
    found: Law | None = None
    while (made := law._made) is not None:
        entry, args, _ = made
        of = law._of
        if of is None or of.shape != law.shape:
            break
        if not source.is_by_value(entry) or source.is_closed(law):
            break
        laws = laws_in(args)
        if entry.kind == "pointwise" or len(laws) > 1 or laws[0] is not of:
            found = of
        law = of
    return found


def chained(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], make: Any = source.pending) -> Any:
    """A pointwise function of a chain, or of a chain that was moved, as a function of the chain's start; else None.

    Args:
        entry: of the function.
        args: of the call, the first the only law.
        kwargs: of the call.
        make: a law of a function of a value: of these three, and the value.
    """
    x = args[0]
    if x._call is None or any(isinstance(value, Tensor) for value in kwargs.values()):
        return None
    if entry.name in _OWN and not is_inside(entry.name, x):
        return None
    if entry.name == "pow" and not _is_polynomial((*args[1:], *kwargs.values())[0]):
        return None
    if entry.name == "square" or (entry.name == "pow" and args[1:] == (2,)):
        under = source.operand(x, "sqrt")
        if under is not None:
            return under  # which is not negative
    if entry.name == "exp" and (found := _exp_of_sum(x)) is not None:
        return found
    start = start_of(x)
    if start is not None:
        return None if source.expression(x, start) is None else make(entry, args, kwargs, start)
    if any(isinstance(value, Tensor) for value in (*args[1:], *kwargs.values())):
        return None
    place = _moved(x)
    if place is None or not leads_to_chain(place):
        return None
    move, (inner, *rest), options = cast(Any, place._made)
    below = source.out_of_place(entry, (source.value_at(x, place, inner), *args[1:]), kwargs)
    found = dispatch(move, move.call, (below, *rest[:-1]), options)
    return found if rest[-1] is None else found[rest[-1]]


def _exp_of_sum(x: Law) -> Any:
    """``exp(a Σ u + b)`` of curved u, as the product of ``exp(a u)`` times ``exp(b)``; None for another power."""
    total = x
    while (made := total._made) is not None and made[0].kind == "arithmetic" and len(laws_in(made[1])) == 1:
        if made[0].name == "rdiv" or total._of is None or (made[0].name == "div" and isinstance(made[1][1], Law)):
            return None
        total = total._of
    if made is None or made[0].name not in ("sum", "mean") or total.shape != x.shape:
        return None
    _, (summed, *rest), kwargs = made
    if not leads_to_chain(summed):
        return None
    dims = kwargs.get("dim", rest[0] if rest else None)
    dims = range(summed.ndim) if dims is None else (dims,) if isinstance(dims, int) else dims
    dims = sorted(d % summed.ndim for d in dims) if summed.ndim else []
    zero = torch.zeros(total.shape, dtype=total.dtype, device=total.device)
    shift = source.value_at(x, total, zero)
    scale = source.value_at(x, total, zero + 1) - shift
    if made[0].name == "mean":
        scale = scale / math.prod(summed.shape[d] for d in dims)
    if not kwargs.get("keepdim", rest[1] if len(rest) > 1 else False):
        for d in dims:
            scale = scale.unsqueeze(d)
    product = _exp_of(summed, scale)
    for d in dims:
        product = product.prod(d, keepdim=True)
    return product.reshape(x.shape) * shift.exp()


def _exp_of(law: Any, scale: Tensor) -> Any:
    """``exp(scale · law)``; a scale that is one number is passed as a number, for which closed forms exist."""
    flat = scale.reshape(-1)
    fixed = not torch.compiler.is_compiling() and not scale.requires_grad
    if fixed and flat.numel() and not torch._C._functorch.is_batchedtensor(scale) and bool((flat == flat[0]).all()):
        return torch.exp(law * flat[0].item())
    return torch.exp(law * scale)


def _is_polynomial(exponent: Any) -> bool:
    return isinstance(exponent, int | float) and exponent == int(exponent) and exponent >= 0


def _moved(law: Law) -> Law | None:
    """The moved law that ``law`` is, times a number and plus a number; None if there is none."""
    while (made := law._made) is not None:
        entry, args, _ = made
        if entry.kind == "movement" and entry.name not in source.IDENTITIES:
            return law
        if law._of is None or (entry.kind != "arithmetic" and entry.name not in source.IDENTITIES):
            return None
        if entry.name in ("rdiv",) or any(isinstance(value, Tensor) for value in args):
            return None
        if len(laws_in(args)) != 1 or not isinstance(args[0] if entry.name == "div" else law._of, Law):
            return None
        law = law._of
    return None


def leads_to_chain(law: Law) -> bool:
    """Whether ``law``, moved or not, is a chain."""
    while start_of(law) is None:
        place = _moved(law)
        if place is None or cast(Any, place._made)[0].name in _FILLING:
            return False
        law = cast(Any, place._made)[1][0]
    return True
