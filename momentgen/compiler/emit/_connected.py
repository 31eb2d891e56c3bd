"""What hangs together in a graph: the float32 and the float64 renderers look for parts that are alike among it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

__all__ = ["connected"]


def connected(chosen: Iterable[int], operands: Callable[[int], Sequence[int]]) -> list[set[int]]:
    """The chosen values in sets, of which each hangs together by operands that are chosen as well.

    >>> connected([1, 2, 3, 5], {1: [], 2: [1], 3: [], 5: [3, 4]}.__getitem__)
    [{1, 2}, {3, 5}]
    """
    order = sorted(chosen)
    parent = {index: index for index in order}

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for index in order:
        for a in operands(index):
            if a in parent:
                parent[root(index)] = root(a)
    found: dict[int, set[int]] = defaultdict(set)
    for index in order:
        found[root(index)].add(index)
    return list(found.values())
