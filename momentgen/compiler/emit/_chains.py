"""Sums of products in a float64 graph: what a loop over parts that are alike adds up to (:mod:`._loops`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from momentgen.compiler.emit._form import Item

__all__ = ["Chain", "chains_of", "is_weight"]

_LONG_SUM = 6  # products


@dataclass(frozen=True)
class Chain:
    """A sum of products: pairs, the last added first; what it begins with; the nodes that add.

    ``product`` is the node of the last pair where others read it as well.
    """

    terms: list[tuple[int, int]]
    rest: int | None
    links: set[int]
    product: int | None = None


def is_weight(items: Mapping[int, Item], index: int) -> bool:
    """Whether a value is a constant, or one on either side."""
    item = items[index]
    return item.kind == "const" or (item.kind == "select" and all(items[a].kind == "const" for a in item.args[1:]))


def chains_of(items: Mapping[int, Item], uses: Counter[int], place: Callable[[int], Any], one: int) -> dict[int, Chain]:
    """Sums of products, by where they end.

    Args:
        items: the operations.
        uses: how often each value is read.
        place: the order of operations.
        one: the constant that values are multiplied by that are added up as they are.
    """
    chains: dict[int, Chain] = {}
    inside: set[int] = set()
    for index in sorted(items, key=place, reverse=True):
        if index not in inside:
            chain = _values(items, index, uses, one) if items[index].kind == "add" else _products(items, index, uses)
            if len(chain.terms) > 1:
                chains[index] = chain
                inside |= chain.links
    return chains


def _values(items: Mapping[int, Item], index: int, uses: Counter[int], one: int) -> Chain:
    """A long sum of values; else none."""
    terms: list[tuple[int, int]] = []
    links, at = {index}, index
    while True:
        more = [a for a in items[at].args if items[a].kind == "add" and uses[a] == 1]
        terms += [(a, one) for a in items[at].args if a not in more[:1]]
        if not more:
            return Chain(terms, None, links) if len(terms) >= _LONG_SUM else Chain([], index, set())
        at = more[0]
        links.add(at)


def _products(items: Mapping[int, Item], index: int, uses: Counter[int]) -> Chain:
    """A sum of products of any values; of a short one products by constants: others belong to what is added up."""
    found = _chain(items, index, uses, of_any=True)
    return found if len(found.terms) >= _LONG_SUM else _chain(items, index, uses, of_any=False)


def _chain(items: Mapping[int, Item], index: int, uses: Counter[int], *, of_any: bool) -> Chain:
    terms: list[tuple[int, int]] = []
    links: set[int] = set()
    at: int | None = index
    while at is not None and (at == index or uses[at] == 1):
        item = items[at]
        if item.kind not in ("madd", "mul") or is_weight(items, item.args[0]):
            break
        if not (is_weight(items, item.args[1]) or of_any):
            break
        terms.append((item.args[0], item.args[1]))
        links.add(at)
        at = item.args[2] if item.kind == "madd" else None
    if of_any and at is not None and items[at].kind == "mul":  # that is read elsewhere, too
        a, b = items[at].args
        return Chain([*terms, (a, b)], None, links, at)
    return Chain(terms, at, links)
