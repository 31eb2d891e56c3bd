"""Chains: functions of one value, one after another or met, are one function of that value.

``x * sigmoid(x)`` is not a product of independent values.  ``relu(x) ** 2`` closed function by function takes
``relu(x)`` for a normal value, which it is not.  So a pointwise function of laws that are pointwise functions of one
law (:mod:`~momentgen.laws.history`) is integrated over that law.  A function alone keeps its op, and what is affine in
one law is scaling.

A function with poles or an end to its domain (a root, a quotient) starts a new chain.  An integral would meet values
that its argument does not take.

Other values that come from one (moved to other places, summed) are taken as independent, which a note says where they
share one.  Such are a norm or a softmax written by hand; torch's own functions know better.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws.activations import UNDEFINED
from momentgen.laws.dispatch import dispatch
from momentgen.laws.history import (
    CHOICES,
    IDENTITIES,
    chain,
    common_source,
    expression,
    is_closed,
    is_pointwise,
    leads_to_chain,
    moved_law,
    out_of_place,
    same_value,
    start_of,
    start_of_both,
    value_at,
)
from momentgen.laws.law import DEPTH, Law, laws_in, remember
from momentgen.laws.movement import moved_part
from momentgen.laws.notes import note
from momentgen.laws.numerics.quadrature import quadrature
from momentgen.laws.table import Entry, names
from momentgen.laws.unsupported import unsupported

__all__ = ["INDEPENDENT", "chained", "combined", "integrand", "integrated", "nodes_for", "share_a_value"]

#: of more functions than this the result counts as a value of its own
_MOST = 24


def integrated(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], source: Any) -> Any:
    """A function of laws that are functions of ``source``, element by element, by an integral over that one value.

    Args:
        entry: of the function.
        args: of the call.
        kwargs: of the call.
        source: a law of ``Diagonal``, or of a class of it.
    """
    names_of, function = integrand(entry, args, kwargs, source)
    note(f"{entry.name}: a chain of functions of one value, integrated by quadrature; a rule of its own is faster")
    law = source.by_moments(functools.partial(quadrature, function, **nodes_for(set(names_of))))
    if len(names_of) > _MOST or source._depth >= DEPTH:
        note(f"{entry.name}: a function of many functions of one value, which is taken as normal from there on")
        return law
    return remember(law, entry, args, kwargs, source)


def integrand(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], source: Any) -> tuple[list[str], Any]:
    """The functions of a chain that ends in this call, and the chain as a function of tensors for ``source``."""
    between = {
        id(part): part for law in laws_in((*args, *kwargs.values())) for part in expression(law, source) or ()
    }.values()

    def function(x: Tensor) -> Tensor:
        known: dict[int, Any] = {}

        def of(value: Any) -> Any:
            return value_at(value, source, x, known) if isinstance(value, Law) else value

        return cast(Tensor, entry.call(*map(of, args), **{name: of(value) for name, value in kwargs.items()}))

    return [entry.name, *(cast(Any, part._call)[0].name for part in between)], function


#: functions with a jump, or a slope that is not bounded; and with a kink
_JUMPS = frozenset(names("threshold hardshrink unit_step"))
_KINKS = frozenset(
    names(
        "relu leaky_relu hardtanh relu6 hardsigmoid hardswish softshrink abs clamp clamp_min clamp_max elu celu selu "
        "softsign prelu sqrt rsqrt maximum minimum fmax fmin max min"
    )
)

#: functions of which a chain may be narrower than the nodes of Gauss and Hermite stand
_NARROW = frozenset(names("exp exp2"))


def nodes_for(used: set[str]) -> dict[str, Any]:
    """How many nodes a chain of these functions takes, and which: even ones where it has kinks or jumps."""
    if used & _JUMPS:
        return {"nodes": 140, "even": True}
    return {"nodes": 48, "even": True} if used & (_KINKS | _NARROW) else {}


# -------------------------------------------------------- one after another

#: pointwise functions that have rules of their own for arguments of one sign, or are refused
_OWN = frozenset((*names("sqrt rsqrt reciprocal"), *UNDEFINED))


def chained(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], make: Any = integrated) -> Any:
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
    if entry.name in _OWN:
        return None
    if entry.name == "pow" and not _is_polynomial((*args[1:], *kwargs.values())[0]):
        return None
    if entry.name == "square" or (entry.name == "pow" and args[1:] == (2,)):
        made = x._made
        if made is not None and made[0].name == "sqrt":
            return made[1][0]  # which is not negative
    start = start_of(x)
    if start is not None:
        return None if expression(x, start) is None else make(entry, args, kwargs, start)
    if any(isinstance(value, Tensor) for value in (*args[1:], *kwargs.values())):
        return None
    place = moved_law(x)
    if place is None or not leads_to_chain(place):
        if _is_sum_of_chains(x):
            note(f"{entry.name}: of a sum of functions of values, which is taken as normal")
        return None
    move, (inner, *rest), options = cast(Any, place._made)
    below = out_of_place(entry, (value_at(x, place, inner), *args[1:]), kwargs)
    found = dispatch(move, move.call, (below, *rest[:-1]), options)
    return found if rest[-1] is None else found[rest[-1]]


def _is_sum_of_chains(law: Law) -> bool:
    """Whether ``law`` is a sum or mean of chains, times a number and plus a number."""
    while (made := law._made) is not None and made[0].kind == "arithmetic" and law._of is not None:
        law = law._of
    return made is not None and made[0].name in ("sum", "mean") and leads_to_chain(made[1][0])


def _is_polynomial(exponent: Any) -> bool:
    return isinstance(exponent, int | float) and exponent == int(exponent) and exponent >= 0


# ------------------------------------------------------------------ two meet

#: what a note says of values that come from one
INDEPENDENT = "a value meets itself, moved or summed; taken as independent, which the method controlled does not"


def combined(entry: Entry, a: Any, b: Any, kwargs: dict[str, Any]) -> Any:
    """``a`` and ``b`` combined element by element, if they are functions of one value; None if they are not."""
    source = common_source(a, b)
    if source is None:
        return None
    if is_pointwise(a, source) and is_pointwise(b, source):
        if entry.name == "mul" and same_value(a, b):
            return torch.square(a)
        start = start_of_both(a, b, source)
        if entry.name in ("add", "sub", "rsub") and start_of(a) is None and start_of(b) is None:
            _, function = integrand(entry, (a, b), kwargs, start)
            zero = torch.zeros_like(start._form())
            shift = function(zero)
            return start * (function(zero + 1) - shift) + shift
        return integrated(entry, (a, b), kwargs, start)
    if entry.name == "div" and any(_is_sum_of(law, a) for law in chain(b)):
        why = "a value over a sum that it is part of has no rule; torch.softmax has one"
        raise unsupported(entry.call, a, why, entry)
    if share_a_value(a, b, source, in_place=True) is not False:
        note(f"{entry.name}: {INDEPENDENT}")
    return None


def _is_sum_of(law: Any, part: Any) -> bool:
    if law._made is None or law._made[0].name not in ("sum", "mean"):
        return False
    summed = law._made[1][0]
    return same_value(summed, part) or (summed._of is part._of is not None and summed._call[0] is part._call[0])


#: values beyond which places are not followed
_PLACES = 2**24
#: functions that change no value's place
_IN_PLACE = IDENTITIES | frozenset(names("to float double half bfloat16 type_as type cpu cuda real"))
#: functions that cut a value into pieces
_CUTS = frozenset(names("chunk split split_with_sizes tensor_split unbind hsplit vsplit dsplit"))


def share_a_value(a: Law, b: Law, source: Law, in_place: bool = False) -> bool | None:
    """Whether two laws of one source have a value of it in common, or in one place; None where that is not seen.

    It is not seen of functions of several values, and under ``torch.compile``.  Laws that were moved by indices of a
    batch count as others.
    """
    if _cut_apart(a, b):
        return False
    if source.numel() > _PLACES or torch.compiler.is_compiling():
        return None
    every = torch.arange(1, source.numel() + 1, dtype=torch.float64, device=source.device).view(source.shape)
    first, second = (_followed(law, source, every) for law in (a, b))
    if first is None or second is None:
        return None
    if any(map(torch._C._functorch.is_batchedtensor, (first, second))):
        return False
    if in_place:
        return bool(((first == second) & (first > 0)).any())
    met = torch.zeros(source.numel() + 1, dtype=torch.bool, device=source.device)
    met[first.reshape(-1).long()] = True
    met[0] = False
    return bool(met[second.reshape(-1).long()].any())


def _followed(law: Law, source: Law, every: Tensor) -> Tensor | None:
    """Which value of ``source`` each value of ``law`` is a function of; None if it is one of several."""
    if same_value(law, source):
        return every
    if law._made is None:
        return None
    entry, args, kwargs = law._made
    if entry.kind == "movement" and entry.name not in CHOICES and isinstance(args[0], Law):
        first = _followed(args[0], source, every)
        if first is None or entry.name in _IN_PLACE:
            return first
        *rest, place = args[1:]
        found = moved_part(entry, first, rest, kwargs)
        return found if place is None else found[place]
    laws = laws_in((*args, *kwargs.values()))
    if entry.kind not in ("pointwise", "arithmetic") or is_closed(law) or not laws:
        return None
    numbers = [_followed(part, source, every) for part in laws]
    if any(part is None for part in numbers):
        return None
    first, *others = [cast(Tensor, part).expand(law.shape) for part in numbers]
    return first if all(torch.equal(first, other) for other in others) else None


def _cut_apart(a: Law, b: Law) -> bool:
    """Whether two laws come from different pieces of one, as the halves of a gated unit or queries and keys do."""
    cuts = [_cuts(law) for law in (a, b)]
    return any(_are_apart(place, cuts[1][base]) for base, place in cuts[0].items() if base in cuts[1])


def _cuts(law: Law) -> dict[tuple[int, str], Any]:
    """Of what a law was cut off, and which piece it is."""
    found: dict[tuple[int, str], Any] = {}
    while (made := law._made) is not None and law._of is not None:
        if made[0].name in _CUTS or made[0].name == "getitem":
            found[id(law._of), made[0].name] = made[1][1] if made[0].name == "getitem" else made[1][-1]
        law = law._of
    return found


def _are_apart(first: Any, second: Any) -> bool:
    """Whether two numbers of pieces, or two indices, pick different ones."""
    one, other = (place if isinstance(place, tuple) else (place,) for place in (first, second))
    if any(part is Ellipsis or part is None for part in (*one, *other)):
        return len(one) == len(other) and one[:-1] == other[:-1] and _picks_others(one[-1], other[-1])
    return any(_picks_others(p, q) for p, q in zip(one, other, strict=False))


def _picks_others(p: Any, q: Any) -> bool:
    """Whether two numbers, or two slices from and to numbers, have no place in common."""
    if isinstance(p, int) and isinstance(q, int):
        return p != q and (p < 0) == (q < 0)
    if not isinstance(p, slice) or not isinstance(q, slice):
        return False
    if p.step == q.step and isinstance(p.step, int) and p.stop is None and q.stop is None:
        return ((p.start or 0) - (q.start or 0)) % p.step != 0
    first, second = (p, q) if (p.start or 0) <= (q.start or 0) else (q, p)
    return isinstance(first.stop, int) and isinstance(second.start, int) and 0 <= first.stop <= second.start
