"""Places: which values of two laws are one and the same value of their source.

``x[:, :, None] * x[:, None]`` multiplies values with others, and on its diagonal with themselves.  A law that was moved
from another can be followed back, value by value: numbered places of the source follow its values.  Where
two that meet have one number, their combination is a function of one value, integrated; elsewhere they are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.diagonal import diagonal, made, pair
from momentgen.laws.dispatch import dispatch
from momentgen.laws.expressions import nodes_for
from momentgen.laws.history import CHOICES, IDENTITIES, common_source, is_closed, same_value, start_of
from momentgen.laws.law import Law, laws_in
from momentgen.laws.movement import moved_part
from momentgen.laws.notes import note
from momentgen.laws.numerics.quadrature import quadrature
from momentgen.laws.table import TABLE, Entry, names
from momentgen.laws.unsupported import unsupported

__all__ = ["Common", "common", "met"]

#: functions that put other values beside those that they move, by their arguments and not by their results' places
_OTHERS = CHOICES
#: functions that change no value's place
_IN_PLACE = IDENTITIES | frozenset(names("to float double half bfloat16 type_as type cpu cuda real"))
#: functions that cut a value into pieces
_CUTS = frozenset(names("chunk split split_with_sizes tensor_split unbind hsplit vsplit dsplit"))

_UNSEEN = (
    "values moved from one meet, and under torch.compile it is not seen which are the same; it runs without "
    "fullgraph=True, which leaves this function to eager mode"
)
#: values beyond which places are not followed
_MOST = 2**24


class Common(NamedTuple):
    """Two laws of one source.

    Attributes:
        source: the law.
        first: the number of the place that each value of the first law comes from, 0 for a certain one.
        second: of the second.
    """

    source: Law
    first: Tensor
    second: Tensor


def common(entry: Entry, a: Any, b: Any, noted: bool = False) -> Common | None:
    """What two laws are moved from, or functions of what is moved; None for other laws, or if they share no value.

    Laws that were moved by indices of a batch count as others.

    Args:
        entry: of the function in which they meet.
        a: a law.
        b: another.
        noted: whether a note says that they are taken as independent if it is not known where their values come from.

    Raises:
        UnsupportedError: under ``torch.compile``, which cannot look at numbers.
    """
    source = common_source(a, b)
    if source is None or _cut_apart(a, b):
        return None
    start = start_of(source)
    source = source if start is None else start
    if source.numel() > _MOST:
        note("two values moved from one: too many to see which are the same; taken as independent")
        return None
    every = torch.arange(1, source.numel() + 1, dtype=torch.float64, device=source.device).view(source.shape)
    first, second = (_followed(law, source, every, _number) for law in (a, b))
    if first is None or second is None:
        if noted:
            note(f"{entry.name}: a value and a function of several values, itself among them: taken as independent")
        return None
    if torch.compiler.is_compiling():
        raise unsupported(entry, a, _UNSEEN)
    if any(map(torch._C._functorch.is_batchedtensor, (first, second))):
        return None
    met_first = torch.zeros(source.numel() + 1, dtype=torch.bool, device=source.device)
    met_first[first.reshape(-1).long()] = True
    met_first[0] = False
    return Common(source, first, second) if bool(met_first[second.reshape(-1).long()].any()) else None


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


def _followed(law: Law, source: Law, x: Tensor, compute: Callable[..., Any]) -> Tensor | None:
    """``x`` in the place of ``source``, moved as its values are on the way to ``law``; None if that is no such way.

    Args:
        law: where to.
        source: where from.
        x: of the shape of ``source``.
        compute: what a pointwise function makes of such tensors: of its entry, arguments and shape.
    """
    known: dict[int, Tensor | None] = {}

    def value(given: Law) -> Tensor | None:
        if id(given) not in known:
            known[id(given)] = x if same_value(given, source) else made_of(given)
        return known[id(given)]

    def made_of(given: Law) -> Tensor | None:
        if given._made is None:
            return None
        entry, args, kwargs = given._made
        if entry.kind == "movement" and entry.name not in _OTHERS and isinstance(args[0], Law):
            first = value(args[0])
            if first is None or entry.name in _IN_PLACE:
                return first
            *rest, place = args[1:]
            found = moved_part(entry, first, tuple(rest), kwargs)
            return found if place is None else found[place]
        if entry.kind not in ("pointwise", "arithmetic") or is_closed(given):
            return None
        own = {id(part): value(part) for part in laws_in((*args, *kwargs.values()))}
        if any(part is None for part in own.values()):
            return None
        return compute(
            entry,
            [own[id(arg)] if isinstance(arg, Law) else arg for arg in args],
            {name: own[id(arg)] if isinstance(arg, Law) else arg for name, arg in kwargs.items()},
            [part for part in own.values() if part is not None],
            given.shape,
        )

    return value(law)


def _number(entry: Entry, args: list[Any], kwargs: dict[str, Any], own: list[Tensor], shape: Any) -> Tensor | None:
    """The number of a function's values, if all its arguments have one and the same."""
    numbers = [part.expand(shape) for part in own]
    if torch.compiler.is_compiling():
        return numbers[0]  # no number is looked at
    return numbers[0] if all(torch.equal(numbers[0], other) for other in numbers[1:]) else None


def met(entry: Entry, a: Any, b: Any, kwargs: dict[str, Any]) -> Any:
    """Two laws combined, value by value, some of which are functions of one value; None if none are.

    Args:
        entry: of the function.
        a: a law of ``Diagonal``, or of a class of it.
        b: likewise.
        kwargs: of the call.
    """
    found = common(entry, a, b, noted=True)
    if found is None:
        return None
    source, first, second = found
    same = (first == second) & (first > 0)
    if not bool(same.any()):
        return None
    used: set[str] = set()

    def together(x: Tensor) -> Tensor:
        def compute(own: Entry, args: list[Any], kwargs: dict[str, Any], *_: Any) -> Tensor:
            used.add(own.name)
            return own.call(*args, **kwargs)

        return entry.call(*[_followed(law, source, x, compute) for law in (a, b)], **kwargs)

    (mean, var), own_entry = pair(source), TABLE.get(entry.call, entry)
    together(mean)
    # 3 nodes are exact for a product of two
    few = not used and entry.name == "mul"
    nodes = {"nodes": 3} if few else nodes_for(used | {"rdiv" if entry.name == "div" else entry.name})

    def of_one(at: Tensor) -> tuple[Tensor, Tensor]:
        return quadrature(together, at, var, **nodes)

    def of_two(*means: Tensor) -> tuple[Tensor, Tensor]:
        alone = [diagonal(mean, law._parts()[1]) for mean, law in zip(means, (a, b), strict=True)]
        return dispatch(own_entry, own_entry.call, tuple(alone), kwargs)._parts()

    own, other = of_one(mean), of_two(*[law._parts()[0] for law in (a, b)])
    parts = [torch.where(same, part, rest.expand(same.shape)) for part, rest in zip(own, other, strict=True)]
    return made(*parts)
