"""What the renderers write: bodies of programs and of the functions that these call, and their statements.

:mod:`momentgen.compiler.emit._outline` makes bodies of programs.  The renderers share which values have a line of their
own, and which stand where they are used.  A value that is used once is written in its place if the operations then
still come in the body's order, operands from left to right.  So what a compiler sees is the same sequence of
operations, and a chain of multiply-adds reads as the polynomial that it is.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
    """Split a body into pieces of about ``longest`` operations; outputs of a piece are inputs of later ones.

    A body of less than twice that stays whole, since carrying values then costs more than it saves.  Truth values are
    not carried: each piece computes those that it reads.

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
    if total < 2 * longest:
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


# --- statements -----------------------------------------------------------------
#: expressions within each other; parsers stop at about a hundred brackets, and readers sooner
_DEEPEST = 24
_CALL = re.compile(r"[\w.]+\(.*\)")


@dataclass(frozen=True)
class Statement:
    """A value with a line of its own, or a call that has several.

    Attributes:
        index: of its step.
        name: of the value; of a call with several, empty.
        expression: its text; empty for a constant, which renderers write in their own way.
        depth: of the expressions within each other.
        results: of a call with several values, the step and the name of each.
    """

    index: int
    name: str
    expression: str
    depth: int = 0
    results: tuple[tuple[int, str], ...] = ()


def statements(
    body: Body,
    form: Callable[[Step], str],
    literals: Mapping[int, str],
    apart: Callable[[Step], Sequence[int]] = lambda step: (),
) -> tuple[list[Statement], list[str]]:
    """The lines of a body, and the names of its outputs.

    Args:
        body: of a program or a function.
        form: text of an operation, with ``{}`` for each operand.  Where it is not a call, operands that are operations
            are put in brackets.
        literals: constants that are written where they are used.
        apart: operands of an operation that are not to be written in their place.
    """
    steps, uses = body.steps, body.uses()
    taken = {*body.inputs}
    fresh = {letter: _fresh(letter, taken) for letter in "ct"}
    texts = {index: text for index, text in literals.items() if index not in body.outputs}
    lines: list[Statement] = []
    placed: dict[int, Statement] = {}  # values that stand where they are used
    results: dict[int, dict[int, int]] = {}  # of a call with several: number -> step

    def operand(index: int, brackets: bool) -> str:
        text = placed[index].expression if index in placed else texts[index]
        bare = text.startswith("-") if index not in placed else not _is_call(text)
        return f"({text})" if brackets and bare else text

    for index, step in steps.items():
        if step.name is not None:
            texts[index] = step.name
        elif step.is_constant:
            if index not in texts:
                texts[index] = next(fresh["c"])
                lines.append(Statement(index, texts[index], ""))
        elif isinstance(step.op, Result):
            results[step.args[0]][step.op.number] = index
        else:
            depth = 0
            if isinstance(step.op, Call) and step.op.results > 1:
                results[index] = {}
            for a in reversed(step.args):
                last = lines[-1] if lines else None
                if a in apart(step):
                    continue
                if last is None or last.index != a or uses[a] > 1 or a in body.outputs or a in body.comments:
                    continue
                if last.index in results:
                    continue
                if last.expression and last.depth < _DEEPEST:
                    placed[a] = lines.pop()
                    depth = max(depth, last.depth + 1)
            text = form(step)
            expression = text.format(*(operand(a, not _is_call(text)) for a in step.args))
            lines.append(Statement(index, "", expression, depth))
        # Names are given in the end: until then a value is its number between two marks.
        texts.setdefault(index, f"\0{index}\0")
    of_calls = {index: [step for _, step in sorted(found.items())] for index, found in results.items()}
    names = {index: line.name or next(fresh["t"]) for line in lines for index in of_calls.get(line.index, [line.index])}
    named = [
        Statement(
            line.index,
            names.get(line.index, ""),
            _with_names(line.expression, names),
            results=tuple((index, names[index]) for index in of_calls.get(line.index, ())),
        )
        for line in lines
    ]
    return named, [_with_names(texts[index], names) for index in body.outputs]


def _with_names(text: str, names: Mapping[int, str]) -> str:
    return re.sub("\0(\\d+)\0", lambda match: names[int(match[1])], text)


def _is_call(text: str) -> bool:
    """Whether an expression is one call, as ``f(a, b)`` is and ``f(a) + g(b)`` is not.

    >>> _is_call("tl.abs(x)"), _is_call("f(a) + g(b)"), _is_call("f({})")
    (True, False, True)
    """
    if not _CALL.fullmatch(text):
        return False
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and not depth:
            return place == len(text) - 1
    return False


def _fresh(letter: str, taken: Container[str]) -> Iterator[str]:
    """Names not ``taken``: c0, c1, ..."""
    return (name for number in itertools.count() if (name := f"{letter}{number}") not in taken)
