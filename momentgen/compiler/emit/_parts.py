"""Parts of bodies that are alike but for what they read, as calls of a function.

:mod:`momentgen.compiler.emit._outline` finds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from momentgen.compiler.emit._body import Body, Call, Result, Step
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
