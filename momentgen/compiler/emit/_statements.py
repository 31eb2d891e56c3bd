"""A program as statements: which values have a line of their own, and which stand where they are used.

The C and the Triton renderer of float32 programs share this.  A value that is used once is written in its place if the
operations then still come in the program's order, operands from left to right; so what a compiler sees is the same
sequence of operations, and a chain of multiply-adds reads as the polynomial that it is.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from momentgen.compiler.program import Instruction, Op, Program, verify

__all__ = ["Statement", "is_constant", "statements"]

_CONSTANTS = (Op.CONST_F32, Op.CONST_I32)
#: expressions within each other; parsers stop at about a hundred brackets, and readers sooner
_DEEPEST = 24
_CALL = re.compile(r"[\w.]+\(.*\)")


def is_constant(ins: Instruction) -> bool:
    return ins.op in _CONSTANTS


@dataclass(frozen=True)
class Statement:
    """A value with a line of its own.

    Attributes:
        index: of its instruction.
        name: of the value.
        expression: its text; empty for a constant, which renderers write in their own way.
        depth: of the expressions within each other.
    """

    index: int
    name: str
    expression: str
    depth: int = 0


def statements(
    program: Program, form: Mapping[Op, str], literals: Mapping[int, str]
) -> tuple[list[Statement], list[str]]:
    """The lines of a program, and the names of its outputs.

    Args:
        program: any program; what no output needs is left out.
        form: text of each operation, with ``{}`` for an operand.  Where it is not a call, operands that are operations
            are put in brackets.
        literals: constants that are written where they are used.

    Raises:
        ProgramError: if the program is not well formed.
    """
    verify(program)
    instructions = program.instructions
    live = _live(program)
    uses = Counter(a for index in live for a in instructions[index].args)
    outputs = {index for _, index in program.outputs}
    taken = {*program.inputs, *program.params}
    fresh = {letter: _fresh(letter, taken) for letter in "ct"}
    texts = {index: text for index, text in literals.items() if index not in outputs}
    lines: list[Statement] = []
    placed: dict[int, Statement] = {}  # values that stand where they are used

    def operand(index: int, brackets: bool) -> str:
        text = placed[index].expression if index in placed else texts[index]
        bare = text.startswith("-") if index not in placed else not _is_call(text)
        return f"({text})" if brackets and bare else text

    for index in live:
        ins = instructions[index]
        if ins.name is not None:
            texts[index] = ins.name
        elif is_constant(ins):
            if index not in texts:
                texts[index] = next(fresh["c"])
                lines.append(Statement(index, texts[index], ""))
        else:
            depth = 0
            for a in reversed(ins.args):
                last = lines[-1] if lines else None
                if last is None or last.index != a or uses[a] > 1 or a in outputs or a in program.comments:
                    continue
                if last.expression and last.depth < _DEEPEST:
                    placed[a] = lines.pop()
                    depth = max(depth, last.depth + 1)
            text = form[ins.op]
            expression = text.format(*(operand(a, not _is_call(text)) for a in ins.args))
            lines.append(Statement(index, "", expression, depth))
        # Names are given in the end: until then a value is its number between two marks.
        texts.setdefault(index, f"\0{index}\0")
    names = {line.index: line.name or next(fresh["t"]) for line in lines}
    named = [Statement(line.index, names[line.index], _with_names(line.expression, names)) for line in lines]
    return named, [_with_names(texts[index], names) for _, index in program.outputs]


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


def _live(program: Program) -> list[int]:
    found: set[int] = set()
    pending = [index for _, index in program.outputs]
    while pending:
        index = pending.pop()
        if index not in found:
            found.add(index)
            pending.extend(program.instructions[index].args)
    return sorted(found)


def _fresh(letter: str, taken: Container[str]) -> Iterator[str]:
    """Names not ``taken``: c0, c1, ..."""
    return (name for number in itertools.count() if (name := f"{letter}{number}") not in taken)
