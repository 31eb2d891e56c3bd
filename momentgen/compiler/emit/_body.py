"""What the renderers write: bodies of programs and of the functions that these call.

:mod:`momentgen.compiler.emit._outline` makes them of programs.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from momentgen.compiler.ir.op import CONSTANTS, Op, Type
from momentgen.compiler.ir.program import Program, ProgramError, number_of, verify

#: operations whose first two operands may change places
COMMUTATIVE = (Op.FMA, Op.ADD, Op.MUL)


@dataclass(frozen=True)
class Call:
    """The operation that is a function's, by its name; where it has several results, :class:`Result` takes one."""

    function: str
    results: int = 1


@dataclass(frozen=True)
class Result:
    """One result of the call that is its argument."""

    number: int


@dataclass(frozen=True)
class Polynomial:
    """The operation of so many multiply-adds by x: of x, what they begin with, and what each adds."""

    degree: int


@dataclass(frozen=True)
class Step:
    """One operation of a body: as :class:`momentgen.compiler.ir.program.Instruction`, with these three more."""

    op: Op | Call | Result | Polynomial
    args: tuple[int, ...] = ()
    type: Type = Type.F32
    bits: int | None = None
    name: str | None = None

    @property
    def is_constant(self) -> bool:
        """Whether it is a number."""
        return self.op in CONSTANTS

    @property
    def value(self) -> float | int:
        """The number that a constant stands for."""
        if self.bits is None:
            raise ProgramError("an operation is no number")
        return number_of(self.bits, self.type)

    @property
    def is_operation(self) -> bool:
        """Whether it is computed, from its operands alone."""
        return (
            bool(self.args)
            and not isinstance(self.op, Result)
            and not (isinstance(self.op, Call) and self.op.results > 1)
        )


@dataclass
class Body:
    """A program or a function: what it computes from its inputs, in order.

    Attributes:
        name: of the function; empty for a program.
        inputs: names of what it is given, a program's parameters included; a function's are its steps 0, 1, ...
        steps: by number, each after its operands.
        outputs: numbers of its results.
        comments: number -> what the value is.
    """

    name: str
    inputs: tuple[str, ...]
    steps: dict[int, Step]
    outputs: tuple[int, ...]
    comments: Mapping[int, str] = field(default_factory=dict)

    def uses(self) -> Counter[int]:
        """How often each value is read."""
        found = Counter(self.outputs)
        for step in self.steps.values():
            found.update(step.args)
        return found

    def tidy(self) -> None:
        """Leave out what no output needs, and bring the steps in order: by number, but each after its operands."""
        needed: set[int] = set()
        stack = list(self.outputs)
        while stack:
            index = stack.pop()
            if index not in needed:
                needed.add(index)
                stack.extend(self.steps[index].args)
        waiting = {index: len(set(self.steps[index].args)) for index in needed}
        readers: dict[int, list[int]] = defaultdict(list)
        for index in needed:
            for a in set(self.steps[index].args):
                readers[a].append(index)
        ready = [index for index, count in waiting.items() if not count]
        heapq.heapify(ready)
        order: dict[int, Step] = {}
        while ready:
            index = heapq.heappop(ready)
            order[index] = self.steps[index]
            for reader in readers[index]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, reader)
        self.steps = order

    def settle(self) -> None:
        """Bring what is read once right before what reads it, so that it can be written in its place."""
        uses, order = self.uses(), dict[int, Step]()

        def once(index: int) -> bool:
            return uses[index] == 1 and self.steps[index].is_operation and index not in self.outputs

        for index in self.steps:
            if once(index):
                continue
            stack = [(index, iter(self.steps[index].args))]
            while stack:
                at, rest = stack[-1]
                before = next((a for a in rest if once(a)), None)
                if before is None:
                    order[at] = self.steps[at]
                    stack.pop()
                else:
                    stack.append((before, iter(self.steps[before].args)))
        self.steps = order


def body_of(program: Program) -> Body:
    """A program as a body, without what no output needs.

    Raises:
        ProgramError: if the program is not well formed.
    """
    verify(program)
    steps = {i: Step(ins.op, ins.args, ins.type, ins.bits, ins.name) for i, ins in enumerate(program.instructions)}
    outputs = tuple(index for _, index in program.outputs)
    body = Body("", (*program.inputs, *program.params), steps, outputs, program.comments)
    body.tidy()
    return body


# --- long bodies -----------------------------------------------------------------
def carried(index: int) -> str:
    """The name of a value that one piece of a body gives to others."""
    return f"b{index}"


def cut(body: Body, functions: Iterable[Body], longest: int) -> list[Body]:
    """A body as several, of about ``longest`` operations each: their outputs are inputs of those that follow.

    Truth values are no outputs: each piece computes those that it reads.

    Args:
        body: of a program in float64.
        functions: those that it calls, each after those that it calls itself.
        longest: as above; those of functions count wherever they are called.
    """
    sizes: dict[str, int] = {}

    def size(step: Step) -> int:
        if isinstance(step.op, Polynomial):
            return step.op.degree
        return sizes[step.op.function] if isinstance(step.op, Call) else int(bool(step.args))

    for function in functions:
        sizes[function.name] = sum(map(size, function.steps.values()))
    piece_of: dict[int, int] = {}
    total = 0
    for index, step in body.steps.items():
        total += size(step)
        piece_of[index] = piece_of[step.args[0]] if isinstance(step.op, Result) else total // longest
    if total < longest:
        return [body]
    wanted = [set[int]() for _ in range(total // longest + 1)]
    pieces: list[Body] = []
    for number in reversed(range(len(wanted))):
        outputs = tuple(sorted(wanted[number])) if pieces else body.outputs
        found: dict[int, Step] = {}
        stack = list(outputs)
        while stack:
            index = stack.pop()
            step = body.steps[index]
            is_number = step.type is Type.F64 and (step.is_operation or isinstance(step.op, Result))
            if is_number and piece_of[index] < number:
                wanted[piece_of[index]].add(index)
                step = Step(Op.INPUT, type=Type.F64, name=carried(index))
            found[index] = step
            stack += [a for a in step.args if a not in found]
        steps = {index: found[index] for index in body.steps if index in found}
        inputs = tuple(step.name for step in steps.values() if step.name is not None)
        pieces += [replace(body, inputs=inputs, steps=steps, outputs=outputs)] if outputs else []
    return pieces[::-1]
