"""Programs with functions: what they say several times, with other operands or constants, is said once.

A program is straight-line code, which says an exponential, a polynomial or an atom of a sum again and again.  Between
programs and the renderers stands this form of them, bodies that call functions:

- a chain of multiply-adds by one value, whose addends are constants, is a polynomial;
- an atom, several results of the same expressions as others' but for constants, is a call
  (:mod:`momentgen.compiler.emit._parts`);
- what one value is made of, and nothing else reads, is a call where the same is found elsewhere but for operands and
  constants.

The operations are those of the programs, and so are the bits; compilers insert the functions where they are called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from momentgen.compiler.emit._body import COMMUTATIVE, Body, Call, Polynomial, Step, body_of
from momentgen.compiler.emit._parts import Leaf, Part, call, call_atoms, saved
from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.program import Program

_SHORTEST_POLYNOMIAL, _LONGEST_POLYNOMIAL = 3, 40  # multiply-adds; the longest is that of momentgen/native/both.h
#: characters that a function saves at least, about: with less, it is a detour for the reader
_LEAST_SAVED = 200


@dataclass(frozen=True)
class Outlined:
    """Programs that call functions.

    Attributes:
        functions: each after those that it calls.
        bodies: one a program, in their order.
    """

    functions: tuple[Body, ...]
    bodies: tuple[Body, ...]

    @property
    def has_polynomials(self) -> bool:
        """Whether there is any."""
        bodies = (*self.functions, *self.bodies)
        return any(isinstance(step.op, Polynomial) for body in bodies for step in body.steps.values())


def outlined(programs: Sequence[Program]) -> Outlined:
    """The bodies of some programs, and the functions that they share.

    >>> from momentgen.compiler.ir.program import Builder
    >>> b = Builder("cubic", inputs=("x",))
    >>> x = b.input("x")
    >>> b.output("y", b.fma(x, b.fma(x, b.fma(x, b.f32(4), b.f32(3)), b.f32(2)), b.f32(1)))
    >>> [step.op for step in outlined([b.build()]).bodies[0].steps.values() if step.args]
    [Polynomial(degree=3)]
    """
    bodies = tuple(body_of(program) for program in programs)
    for body in bodies:
        _find_polynomials(body)
    functions: list[Body] = []
    while found := call_atoms((*bodies, *functions), len(functions)):
        functions += found
    while found := _call_parts((*bodies, *functions), len(functions)):
        functions += found
    return Outlined(tuple(_in_order(functions)), bodies)


# --- polynomials -----------------------------------------------------------------
def _find_polynomials(body: Body) -> None:
    uses, steps, taken = body.uses(), body.steps, set[int]()
    for index in sorted(steps, reverse=True):
        if index in taken or not _adds_constant(body, index):
            continue
        chains = [_chain(body, index, x, uses) for x in dict.fromkeys(steps[index].args[:2])]
        links, first, x = max(chains, key=lambda chain: len(chain[0]))
        if len(links) >= _SHORTEST_POLYNOMIAL:
            taken |= set(links)
            added = (steps[link].args[2] for link in reversed(links))
            steps[index] = Step(Polynomial(len(links)), (x, first, *added), steps[index].type)
    body.tidy()


def _adds_constant(body: Body, index: int) -> bool:
    step = body.steps[index]
    return step.op is Op.FMA and body.steps[step.args[2]].is_constant


def _chain(body: Body, index: int, x: int, uses: Mapping[int, int]) -> tuple[list[int], int, int]:
    """Multiply-adds by x, the last first, that are read by the next alone; what they begin with; and x."""
    links: list[int] = []
    at = index
    while _adds_constant(body, at) and x in body.steps[at].args[:2]:
        if at != index and (uses[at] > 1 or at in body.comments or len(links) == _LONGEST_POLYNOMIAL):
            break
        links.append(at)
        a, b, _ = body.steps[at].args
        at = b if a == x else a
    return links, at, x


# --- what one value is made of ---------------------------------------------------
def _call_parts(bodies: Sequence[Body], number: int) -> list[Body]:
    """Functions for what is found several times in ``bodies``, which call them from then on; none if none is worth it.

    Args:
        bodies: of programs and of functions found before.
        number: of the first that is made.
    """
    groups: dict[Any, list[Part]] = defaultdict(list)
    for body in bodies:
        for shape, part in _cones(body):
            groups[shape].append(part)
    worth = [(saved(parts), parts) for parts in groups.values() if len(parts) > 1]
    worth = sorted((pair for pair in worth if pair[0] >= _LEAST_SAVED), key=lambda pair: -pair[0])
    made: list[Body] = []
    touched: dict[int, set[int]] = defaultdict(set)  # of a body: what calls stand for already
    for most, parts in worth:
        free = [part for part in parts if touched[id(part.body)].isdisjoint(part.inside)]
        if len(free) == len(parts) or (len(free) > 1 and saved(free) >= max(most / 2, _LEAST_SAVED)):
            made.append(call(free, f"part{number + len(made)}"))
            for part in free:
                touched[id(part.body)] |= set(part.inside)
    for body in bodies if made else ():
        body.tidy()
    return made


def _cones(body: Body) -> Iterator[tuple[tuple[Any, ...], Part]]:
    """Every value of several operations that it alone is made of, and the shape, the same where those are alike."""
    steps, uses = body.steps, body.uses()
    place = {index: number for number, index in enumerate(steps)}
    for root, step in steps.items():
        if not step.is_operation:
            continue
        inside, stack, read = [root], [root], list[int]()
        while stack:
            for a in steps[stack.pop()].args:
                uses[a] -= 1
                read.append(a)
                if not uses[a] and steps[a].is_operation:
                    inside.append(a)
                    stack.append(a)
        for a in read:
            uses[a] += 1
        if len(inside) > 1:
            inside.sort(key=place.__getitem__)
            shape, leaves = _shape(body, root, set(inside))
            yield shape, Part(body, tuple(inside), (root,), leaves)


def _shape(body: Body, root: int, inside: set[int]) -> tuple[tuple[Any, ...], tuple[Leaf, ...]]:
    """What a value is made of, from the root on, and the leaves in that order."""
    steps = body.steps
    places: dict[int, int] = {}
    leaves: list[Leaf] = []
    shape: list[Any] = []
    stack = [(root, root, 0)]  # as a leaf would be
    while stack:
        at = stack.pop()
        index, step = at[0], steps[at[0]]
        if index in places:
            shape.append(places[index])
        elif index not in inside:
            constant = step.is_constant
            shape.append((step.type, constant))
            leaves.append(Leaf(*at))
            if not constant:
                places[index] = -len(leaves)
        else:
            places[index] = len(places)
            shape.append((step.op, len(step.args), body.comments.get(index) if index != root else None))
            operands: Sequence[int] = range(len(step.args) - 1, -1, -1)
            if step.op in COMMUTATIVE:  # in an order that depends on what they are
                first, second = (_kind(steps, a, inside) for a in step.args[:2])
                operands = (*operands[:-2], 0, 1) if first > second else operands
            stack += [(step.args[k], index, k) for k in operands]
    return tuple(shape), tuple(leaves)


def _kind(steps: Mapping[int, Step], index: int, inside: set[int]) -> tuple[bool, bool, str]:
    return steps[index].is_constant, index not in inside, str(steps[index].op)


def _in_order(functions: Iterable[Body]) -> list[Body]:
    """Each after those that it calls."""
    named = {function.name: function for function in functions}
    calls = {
        name: [step.op.function for step in function.steps.values() if isinstance(step.op, Call)]
        for name, function in named.items()
    }
    return [named[name] for name in TopologicalSorter(calls).static_order()]
