"""What the renderers share: which values are written, in what order, under what names."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Container, Iterator, Mapping, Sequence
from decimal import Decimal

from momentgen.compiler.program import Instruction, Op, Program, verify

__all__ = [
    "LINE_LENGTH",
    "Names",
    "comment_text",
    "docstring",
    "is_constant",
    "plain_decimal",
    "with_arguments",
    "with_comment",
]

LINE_LENGTH = 119
_CONSTANTS = (Op.CONST_F32, Op.CONST_I32)


def is_constant(ins: Instruction) -> bool:
    return ins.op in _CONSTANTS


def plain_decimal(value: float) -> str | None:
    """``value`` in a few decimal digits, if they give it exactly.

    >>> plain_decimal(0.25), plain_decimal(-0.0), plain_decimal(2.0**-40)
    ('0.25', '-0.0', None)
    """
    text = repr(value)
    if len(text) > 8 or "e" in text or "n" in text or Decimal(text) != Decimal(value):
        return None
    return text


def comment_text(text: str) -> str:
    """One line of ``text``, with no backslash (nor the trigraph for one) at its end: C would go on in the next line."""
    return " ".join(text.split()).replace("??/", "? ?/").rstrip("\\ ")


def docstring(text: str) -> str:
    """``text`` as a docstring of Python, whatever quotes and backslashes it has.

    >>> eval(docstring('says "max"')) == 'says "max"'
    True
    """
    text = text.replace("\\", "\\\\")
    if '"""' in text or text.endswith('"'):
        text = text.replace('"', r"\"")
    return f'"""{text}"""'


def with_comment(code: str, comment: str | None, mark: str, indent: str = "    ") -> list[str]:
    """A line of code with its comment behind it, or above it where the line would grow too long."""
    if not comment:
        return [indent + code]
    text = comment_text(comment)
    line = f"{indent}{code}  {mark} {text}"
    if len(line) <= LINE_LENGTH:
        return [line]
    above = textwrap.wrap(text, LINE_LENGTH - len(indent) - len(mark) - 1)
    return [*(f"{indent}{mark} {part}" for part in above), indent + code]


def with_arguments(head: str, arguments: Sequence[str], end: str = ")") -> list[str]:
    """``head(arguments)``, broken below the bracket where it is too long for a line."""
    one_line = f"{head}({', '.join(arguments)}{end}"
    if len(one_line) <= LINE_LENGTH:
        return [one_line]
    indent = " " * (len(head) + 1)
    lines, current = [], f"{head}("
    for position, argument in enumerate(arguments):
        piece = argument + (end if position == len(arguments) - 1 else ",")
        joined = current + (piece if current.endswith("(") else f" {piece}")
        if len(joined) <= LINE_LENGTH or not current.strip():
            current = joined
        else:
            lines.append(current)
            current = indent + piece
    return [*lines, current]


def _fresh(letter: str, taken: Container[str]) -> Iterator[str]:
    """Names not ``taken``: c0, c1, ..."""
    return (name for number in itertools.count() if (name := f"{letter}{number}") not in taken)


class Names:
    """Names for the values some output depends on: inputs and parameters keep theirs, the rest are t0, t1, ...

    Args:
        program: a verified program.
        inline: text of the constants that stand in expressions as they are, and so need neither name nor line.

    Attributes:
        order: indices of the live values that need a line of their own, in order.
    """

    def __init__(self, program: Program, inline: Mapping[int, str]) -> None:
        verify(program)
        live: set[int] = set()
        pending = [index for _, index in program.outputs]
        while pending:
            index = pending.pop()
            if index not in live:
                live.add(index)
                pending.extend(program.instructions[index].args)
        taken = {*program.inputs, *program.params}
        fresh = {letter: _fresh(letter, taken) for letter in "ct"}
        self.order = [
            index for index in sorted(live) if program.instructions[index].name is None and index not in inline
        ]
        self._names = dict(inline)
        for index in sorted(live):
            ins = program.instructions[index]
            if ins.name is not None:
                self._names[index] = ins.name
            elif index not in inline:
                self._names[index] = next(fresh["c" if is_constant(ins) else "t"])

    def __getitem__(self, index: int) -> str:
        """What stands for the value in an expression."""
        return self._names[index]
