"""Turns of the loops of float64 code: which parts of a graph do the same, or nearly, with other constants.

:mod:`momentgen.compiler.emit._loops` finds the parts.  One that does a little less than another is filled up: the same
operations, and sums that take in products by 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from momentgen.compiler.emit._form import Item

__all__ = ["Turn", "families"]

Items = Mapping[int, Item]
#: (item, the item that it comes before) -> its number
New = Callable[[Item, int], int]
_FILLED = 0.7  # of a turn at least, that others of a loop do


@dataclass(frozen=True)
class Turn:
    """What may be one turn of a loop: operations, and what they add to which sum; ``taken`` is that in the graph."""

    items: list[int]
    sums: dict[int, tuple[tuple[int, int], ...]]
    taken: dict[int, tuple[tuple[int, int], ...]]


def families(items: Items, turns: Sequence[Turn], zero: int, new: New) -> list[list[Turn]]:
    """Turns that differ in constants alone, together; what has no like stays where it is.

    A turn that does a little less than another is filled up: its like does for both, with sums of nothing.
    """
    families: list[list[tuple[Turn, dict[int, int]]]] = []
    for turn in sorted(turns, key=lambda turn: -len(turn.items)):
        for family in families:
            largest = family[0][0]
            if len(turn.items) >= _FILLED * len(largest.items) and (like := _like(items, turn, largest)) is not None:
                family.append((turn, like))
                break
        else:
            families.append([(turn, {index: index for index in turn.items})])
    return [filled for family in families if len(family) > 1 for filled in _filled(items, family, zero, new)]


def _like(items: Items, turn: Turn, largest: Turn) -> dict[int, int] | None:
    """Which operation of the largest turn each of another is; None where it is not a part of it, constants aside."""
    waiting: dict[Any, list[int]] = defaultdict(list)
    for index in reversed(largest.items):
        waiting[_described(items, index, largest.items, {})].append(index)
    like: dict[int, int] = {}
    for index in turn.items:
        candidates = waiting[_described(items, index, turn.items, like)]
        if not candidates:
            return None
        like[index] = candidates.pop()
    return like


def _described(items: Items, index: int, inside: Sequence[int], like: Mapping[int, int]) -> Any:
    """What an operation of a turn does, its constants aside; others of the turn by what they are like."""
    item, own = items[index], set(inside)
    args = tuple("#" if _const(items, a) else (like.get(a, a),) if a in own else a for a in item.args)
    return item.kind, item.payload, args


def _filled(items: Items, family: list[tuple[Turn, dict[int, int]]], zero: int, new: New) -> list[list[Turn]]:
    """The turns of a family, each doing what the first does and adding what any adds; and what falls out of it."""
    first = family[0][0]
    union: dict[tuple[int, int, int], None] = {}  # sum, value of the first turn, and weight, or -1 for a constant
    keyed: list[dict[tuple[int, int, int], int]] = []
    for turn, like in family:
        keys = {
            (root, like[v], -1 if _const(items, w) else like.get(w, w)): w
            for root, pairs in turn.sums.items()
            for v, w in pairs
        }
        if len(keys) < sum(map(len, turn.sums.values())):  # a sum takes in a value twice
            keys = {}
        keyed.append(keys)
        union |= dict.fromkeys(keys)
    kept = [
        place
        for place, keys in enumerate(keyed)
        if keys and len(keys) >= _FILLED * len(union) and all(key in keys for key in union if key[2] >= 0)
    ]
    exact: dict[Any, list[int]] = defaultdict(list)  # what is not alike in its sums may be among itself
    for place in {place for place, keys in enumerate(keyed) if keys} - set(kept):
        exact[len(family[place][0].items), tuple(keyed[place])].append(place)
    groups = [kept, *exact.values()] if 0 in kept else list(exact.values())
    return [
        _alike(items, first, [(family[p], keyed[p]) for p in group], zero, new) for group in groups if len(group) > 1
    ]


def _alike(
    items: Items,
    first: Turn,
    members: list[tuple[tuple[Turn, dict[int, int]], dict[tuple[int, int, int], int]]],
    zero: int,
    new: New,
) -> list[Turn]:
    """Turns that do the same: the operations of the first, with the constants of each."""
    union = dict.fromkeys(key for _, keys in members for key in keys)
    found: list[Turn] = []
    for (turn, like), keys in members:
        theirs = {own: index for index, own in like.items()}
        made: dict[int, int] = {}
        for index in first.items:
            item, other = items[index], items[theirs.get(index, index)]
            args = tuple(b if _const(items, b) else made.get(a, a) for a, b in zip(item.args, other.args, strict=True))
            made[index] = new(Item(item.kind, args, item.payload), first.items[0])
        sums: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for key in union:
            root, value, weight = key
            sums[root].append((made[value], keys.get(key, zero) if weight < 0 else made.get(weight, weight)))
        found.append(Turn(list(made.values()), {r: tuple(p) for r, p in sums.items()}, turn.taken))
    return found


def _const(items: Items, index: int) -> bool:
    return items[index].kind == "const"
