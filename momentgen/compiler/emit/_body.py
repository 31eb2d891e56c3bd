"""What the renderers write: bodies of programs, and their statements.

A body is a program in which a chain of multiply-adds by one value, whose addends are constants, is one polynomial.  The
renderers share which values have a line of their own, and which stand where they are used.  A value that is used once
is written in its place if the operations then still come in the body's order, operands from left to right.  So what a
compiler sees is the same sequence of operations.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from momentgen.compiler.ir.graph import reached
from momentgen.compiler.ir.op import CONSTANTS, Op
from momentgen.compiler.ir.program import Instruction, Program, verify

_SHORTEST_POLYNOMIAL, _LONGEST_POLYNOMIAL = 3, 40  # multiply-adds; the longest is that of momentgen/native/both.h


class Polynomial(Instruction):
    """Multiply-adds by x: of x, what they begin with, and what each adds."""

    @property
    def degree(self) -> int:
        """How many there are."""
        return len(self.args) - 2


@dataclass
class Body:
    """What a program computes from its inputs, in order.

    Attributes:
        inputs: names of what it is given, parameters included.
        steps: by number, each after its operands.
        outputs: numbers of its results.
        comments: number -> what the value is.
    """

    inputs: tuple[str, ...]
    steps: dict[int, Instruction]
    outputs: tuple[int, ...]
    comments: Mapping[int, str] = field(default_factory=dict)

    def uses(self) -> Counter[int]:
        """How often each value is read."""
        found = Counter(self.outputs)
        for step in self.steps.values():
            found.update(step.args)
        return found

    def tidy(self) -> None:
        """Leave out what no output needs."""
        needed = set(reached(self.outputs, lambda index: self.steps[index].args))
        self.steps = {index: step for index, step in self.steps.items() if index in needed}

    def settle(self) -> None:
        """Bring what is read once right before what reads it, so that it can be written in its place."""
        uses, order = self.uses(), dict[int, Instruction]()

        def once(index: int) -> bool:
            return uses[index] == 1 and bool(self.steps[index].args) and index not in self.outputs

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
    """A program as a body, chains of multiply-adds in it being polynomials.

    Raises:
        ProgramError: if the program is not well formed.

    >>> from momentgen.compiler.ir.program import Builder
    >>> b = Builder("cubic", inputs=("x",))
    >>> x = b.input("x")
    >>> b.output("y", b.fma(x, b.fma(x, b.fma(x, b.f32(4), b.f32(3)), b.f32(2)), b.f32(1)))
    >>> [type(step).__name__ for step in body_of(b.build()).steps.values() if step.args]
    ['Polynomial']
    """
    body = plain_body(program)
    _find_polynomials(body)
    return body


def plain_body(program: Program) -> Body:
    """A program as a body, an operation a step, without what no output needs."""
    verify(program)
    outputs = tuple(index for _, index in program.outputs)
    steps = dict(enumerate(program.instructions))
    body = Body((*program.inputs, *program.params), steps, outputs, program.comments)
    body.tidy()
    return body


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
            steps[index] = Polynomial(Op.FMA, (x, first, *added), steps[index].type)
    body.tidy()


def _adds_constant(body: Body, index: int) -> bool:
    step = body.steps[index]
    return step.op is Op.FMA and body.steps[step.args[2]].op in CONSTANTS


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


# --- statements -----------------------------------------------------------------
#: expressions within each other; parsers stop at about a hundred brackets, and readers sooner
_DEEPEST = 24
_CALL = re.compile(r"[\w.]+\(.*\)")


@dataclass(frozen=True)
class Statement:
    """A value with a line of its own.

    Attributes:
        index: of its step.
        name: of the value.
        expression: its text; empty for a constant, which renderers write in their own way.
        depth: of the expressions within each other.
    """

    index: int
    name: str
    expression: str
    depth: int = 0


def statements(
    body: Body,
    form: Callable[[Instruction], str],
    literals: Mapping[int, str],
    apart: Callable[[Instruction], Sequence[int]] = lambda step: (),
) -> tuple[list[Statement], list[str]]:
    """The lines of a body, and the names of its outputs.

    Args:
        body: of a program.
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

    def operand(index: int, brackets: bool) -> str:
        text = placed[index].expression if index in placed else texts[index]
        bare = text.startswith("-") if index not in placed else not _is_call(text)
        return f"({text})" if brackets and bare else text

    for index, step in steps.items():
        if step.name is not None:
            texts[index] = step.name
        elif step.op in CONSTANTS:
            if index not in texts:
                texts[index] = next(fresh["c"])
                lines.append(Statement(index, texts[index], ""))
        else:
            depth = 0
            for a in reversed(step.args):
                last = lines[-1] if lines else None
                if a in apart(step):
                    continue
                if last is None or last.index != a or uses[a] > 1 or a in body.outputs or a in body.comments:
                    continue
                if last.expression and last.depth < _DEEPEST:
                    placed[a] = lines.pop()
                    depth = max(depth, last.depth + 1)
            text = form(step)
            expression = text.format(*(operand(a, not _is_call(text)) for a in step.args))
            lines.append(Statement(index, "", expression, depth))
        # Names are given in the end: until then a value is its number between two marks.
        texts.setdefault(index, f"\0{index}\0")
    names = {line.index: line.name or next(fresh["t"]) for line in lines}
    named = [Statement(line.index, names[line.index], _with_names(line.expression, names)) for line in lines]
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
