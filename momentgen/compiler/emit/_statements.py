"""A body as statements: which values have a line of their own, and which stand where they are used.

The renderers share this.  A value that is used once is written in its place if the
operations then still come in the body's order, operands from left to right; so what a compiler sees is the same
sequence of operations, and a chain of multiply-adds reads as the polynomial that it is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from momentgen.compiler.emit._body import Body, Call, Result, Step

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
