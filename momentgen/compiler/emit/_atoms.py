"""Atoms of a program: parts with several results, of the same expressions as others but for constants.

A sum of atoms takes a handful of values of each, in several sums.  They are found by the expressions of values: those
that many share but for constants belong to atoms, and what hangs together of them is one.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from momentgen.compiler.emit._body import COMMUTATIVE, Body
from momentgen.compiler.emit._parts import Leaf, Part, call, saved


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


_SMALLEST = 4  # operations
_LEAST_SAVED = 300  # characters, about
_ROUNDS = 5  # of telling values apart by their neighbours


def call_atoms(bodies: Sequence[Body], number: int) -> list[Body]:
    """Functions for the atoms of ``bodies``, which call them from then on; none if none is worth it.

    Args:
        bodies: of programs and of functions found before.
        number: of the first function that is made.
    """
    made: list[Body] = []
    for body in bodies:
        classes = _classes(body)
        best: tuple[float, list[list[Part]]] = (0.0, [])
        for least in sorted({len(members) for members in classes if len(members) > 1}, reverse=True):
            groups = _alike(body, {index for members in classes if len(members) >= least for index in members})
            if (gain := sum(map(saved, groups))) > best[0]:
                best = gain, groups
        made += [call(group, f"atom{number + len(made) + k}") for k, group in enumerate(best[1])]
        if best[1]:
            body.tidy()
    return made


def _classes(body: Body) -> list[list[int]]:
    """Operations by their whole expressions, whatever constants these have."""
    shapes: dict[Any, int] = {}
    shape: dict[int, int] = {}
    classes: dict[int, list[int]] = defaultdict(list)
    for index, step in body.steps.items():
        read = [shape[a] for a in step.args]
        if step.op in COMMUTATIVE:
            read[:2] = sorted(read[:2])
        key: Any = "number" if step.is_constant else (step.op, step.name, tuple(read))
        shape[index] = shapes.setdefault(key, len(shapes))
        if step.is_operation:
            classes[shape[index]].append(index)
    return list(classes.values())


def _alike(body: Body, chosen: set[int]) -> list[list[Part]]:
    """What hangs together of the chosen values, where there are several that are alike and a function is worth it."""
    uses, groups = body.uses(), defaultdict[Any, list[Part]](list)
    for inside in connected(chosen, lambda index: body.steps[index].args):
        if len(inside) >= _SMALLEST:
            key, part = _part(body, inside, uses)
            groups[key].append(part)
    place = {index: number for number, index in enumerate(body.steps)}
    found: list[list[Part]] = []
    for parts in groups.values():
        if len(parts) > 1 and saved(parts) >= _LEAST_SAVED:
            whole = [part for part in parts if not _returns(body, place, part)]
            if len(whole) == len(parts) or (len(whole) > 1 and saved(whole) >= _LEAST_SAVED):
                found.append(whole)
    return found


def _returns(body: Body, place: Mapping[int, int], part: Part) -> bool:
    """Whether something inside needs a value from outside that needs one from inside: then it is no one call."""
    inside, order = set(part.inside), list(body.steps)
    places = [place[index] for index in part.inside]
    beyond: set[int] = set()
    for index in order[min(places) : max(places) + 1]:
        args = body.steps[index].args
        after = not beyond.isdisjoint(args)
        if index in inside:
            if after:
                return True
        elif after or not inside.isdisjoint(args):
            beyond.add(index)
    return False


def _part(body: Body, inside: set[int], uses: Mapping[int, int]) -> tuple[Any, Part]:
    """The part, its operations in an order by what they are; and what is the same for parts that are alike."""
    steps = body.steps
    read = Counter(a for index in inside for a in steps[index].args)
    results = {index for index in inside if uses[index] != read[index]}
    readers = _readers(body, inside)
    color = _colors(body, inside, results, readers)
    order, places, key, leaves = list[int](), dict[int, int](), list[Any](), list[Leaf]()
    waiting = {index: len({a for a in steps[index].args if a in inside}) for index in inside}
    ready = [(color[index], index) for index in inside if not waiting[index]]
    heapq.heapify(ready)
    while ready:
        _, index = heapq.heappop(ready)
        step = steps[index]
        operands = list(range(len(step.args)))
        if step.op in COMMUTATIVE:
            marks = [color.get(a, "1" if steps[a].is_constant else "0") for a in step.args[:2]]
            operands[:2] = sorted(operands[:2], key=marks.__getitem__)
        described: list[Any] = []
        for k in operands:
            a = step.args[k]
            if a not in places:
                leaves.append(Leaf(a, index, k))
                described.append((steps[a].type, steps[a].is_constant))
                if not steps[a].is_constant:
                    places[a] = -len(leaves)
            else:
                described.append(places[a])
        places[index] = len(order)
        order.append(index)
        comment = body.comments.get(index) if index not in results else None
        key.append((step.op, tuple(described), index in results, comment))
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (color[reader], reader))
    return tuple(key), Part(body, tuple(order), tuple(i for i in order if i in results), tuple(leaves))


def _readers(body: Body, inside: set[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {index: [] for index in inside}
    for index in sorted(inside):
        for a in {a for a in body.steps[index].args if a in inside}:
            found[a].append(index)
    return found


def _colors(body: Body, inside: set[int], results: set[int], readers: Mapping[int, Sequence[int]]) -> dict[int, str]:
    """What tells each value from the others of its part, the same in parts that are alike: by what it is, and by what
    its operands and readers are, and theirs.
    """
    color: dict[int, str] = {}
    for index in inside:
        step = body.steps[index]
        outside = ["number" if body.steps[a].is_constant else "value" for a in step.args if a not in inside]
        color[index] = _digest(str(step.op), step.type.value, str(index in results), *sorted(outside))
    for _ in range(_ROUNDS):
        last = color
        color = {}
        for index in inside:
            operands = [last.get(a, "") for a in body.steps[index].args]
            if body.steps[index].op in COMMUTATIVE:
                operands[:2] = sorted(operands[:2])
            color[index] = _digest(last[index], *operands, "read by", *sorted(last[r] for r in readers[index]))
    return color


def _digest(*words: str) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:24]
