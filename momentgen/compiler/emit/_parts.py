"""Parts of bodies that are alike but for what they read, as calls of a function.

:mod:`momentgen.compiler.emit._outline` finds those of one result.  Atoms have several, of the same expressions as
others but for constants: a sum of atoms takes a handful of values of each, in several sums.  They are found here, by
the expressions of values: those that many share but for constants belong to atoms, and what hangs together of them is
one.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from momentgen.compiler.emit._body import COMMUTATIVE, Body, Call, Result, Step
from momentgen.compiler.ir.op import Op, Type

_MOST_GIVEN = 20  # arguments of a function
#: about how many characters a name, a number, an operation, a line of its own, a call and a function's frame take
_NAME, _NUMBER, _OPERATION, _LINE, _CALL, _FRAME = 5, 13, 5, 24, 24, 120


@dataclass(frozen=True)
class Leaf:
    """What a part reads and does not compute, and which operand of which operation it is."""

    index: int
    reader: int
    operand: int


@dataclass(frozen=True)
class Part:
    """Some operations of a body.

    Attributes:
        body: whose they are.
        inside: the operations, each after its operands; in parts that are alike, like ones have the same place.
        results: those that others read.
        leaves: what they read: a value once, numbers each time; in parts that are alike in the same order.
    """

    body: Body
    inside: tuple[int, ...]
    results: tuple[int, ...]
    leaves: tuple[Leaf, ...]

    def leaf(self, place: int) -> Step:
        """What stands at a leaf."""
        return self.body.steps[self.leaves[place].index]


def _given(parts: Sequence[Part]) -> tuple[list[int], dict[int, int]]:
    """Which leaves a function of these parts has to be given, and for each leaf which of them it is.

    A number that is the same in all parts is none of them, and what is the same as another leaf in all is given once.
    """
    found: dict[tuple[object, ...], int] = {}
    stands: dict[int, int] = {}
    for place in range(len(parts[0].leaves)):
        read = [part.leaf(place) for part in parts]
        column: tuple[object, ...]
        if read[0].is_constant:
            column = (read[0].type, *(step.bits for step in read))
            if len(set(column[1:])) == 1:
                continue
        else:
            column = (None, *(part.leaves[place].index for part in parts))
        stands[place] = found.setdefault(column, place)
    given = list(found.values())
    return given, {place: given.index(of) for place, of in stands.items()}


def saved(parts: Sequence[Part]) -> float:
    """How many characters a function of these parts saves, about; 0 where there is to be none.

    None takes too many arguments, and none takes or returns a truth value: gcc would make branches of its selects, and
    then cannot vectorise the loop.
    """
    first, steps = parts[0], parts[0].body.steps
    given, _ = _given(parts)
    types = [first.leaf(place).type for place in given] + [steps[index].type for index in first.results]
    if len(given) > _MOST_GIVEN or Type.BOOL in types:
        return 0.0
    inside = set(first.inside)
    inner = Counter(a for index in inside for a in steps[index].args if a in inside)
    lines = sum(count > 1 or index in first.results for index, count in inner.items())
    code = _OPERATION * len(inside) + _LINE * lines
    code += sum(_length(steps[a]) for index in inside for a in steps[index].args)
    each = _CALL + sum(_length(first.leaf(place)) for place in given)
    frame = _FRAME + 2 * _NAME * len(given)
    if (more := len(first.results) - 1) > 0:
        code += _LINE * (more + 1 - sum(index in inner for index in first.results))
        each += 3 * _NAME * more
        frame += 6 * _NAME * more
    return (len(parts) - 1) * code - len(parts) * each - frame


def _length(step: Step) -> int:
    return _NUMBER if step.op in (Op.CONST_F32, Op.CONST_F64) else _NAME


def call(parts: Sequence[Part], name: str) -> Body:
    """The function of these parts, each of which becomes a call of it; their bodies are to be tidied then."""
    first = parts[0]
    given, stands = _given(parts)
    names = tuple(f"p{number}" for number in range(len(given)))
    steps = {
        number: Step(Op.INPUT, type=first.leaf(place).type, name=names[number]) for number, place in enumerate(given)
    }
    numbers: dict[int, int] = {}  # step of the body -> of the function
    constants: dict[tuple[int, int], int] = {}  # the same of an operand that is a number
    for place, leaf in enumerate(first.leaves):
        number = stands.get(place, len(steps))
        if number == len(steps):
            steps[number] = first.leaf(place)
        if first.leaf(place).is_constant:
            constants[leaf.reader, leaf.operand] = number
        else:
            numbers[leaf.index] = number
    for index in first.inside:
        step = first.body.steps[index]
        args = tuple(constants[index, k] if (index, k) in constants else numbers[a] for k, a in enumerate(step.args))
        numbers[index] = len(steps)
        steps[numbers[index]] = Step(step.op, args, step.type)
    for part in parts:
        _replace(part, Call(name, len(first.results)), tuple(part.leaves[place].index for place in given))
    inner = {
        numbers[i]: text for i, text in first.body.comments.items() if i in first.inside and i not in first.results
    }
    return Body(name, names, steps, tuple(numbers[index] for index in first.results), inner)


def _replace(part: Part, op: Call, args: tuple[int, ...]) -> None:
    steps = part.body.steps
    if op.results == 1:
        (root,) = part.results
        steps[root] = Step(op, args, steps[root].type)
        return
    # The call takes the number of the first operation, so that it comes where that stood.
    home = min(set(part.inside) - set(part.results), default=max(steps) + 1)
    for number, index in enumerate(part.results):
        steps[index] = Step(Result(number), (home,), steps[index].type)
    steps[home] = Step(op, args)


# --- atoms ----------------------------------------------------------------------
def connected(chosen: Iterable[int], operands: Callable[[int], Sequence[int]]) -> list[set[int]]:
    """Group the chosen values into sets that are connected through chosen operands.

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
