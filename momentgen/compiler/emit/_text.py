"""What the renderers share: the head of a file, and numbers, comments and long lines as text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from momentgen.compiler.toolchain.float32 import LARGEST

LINE_LENGTH = 119


def plain_decimal(value: float) -> str | None:
    """``value`` in a few decimal digits, if they give it exactly.

    >>> plain_decimal(0.25), plain_decimal(-0.0), plain_decimal(2.0**-40)
    ('0.25', '-0.0', None)
    """
    text = repr(value)
    if len(text) > 8 or "e" in text or "n" in text or Decimal(text) != Decimal(value):
        return None
    return text


def short_decimal(value: float) -> str | None:
    """The shortest decimal number that is ``value`` once rounded to float32, also by way of float64.

    None below the normal range, where compilers warn and Triton takes a literal for float64, and of infinity and NaN.

    >>> short_decimal(0.10000000149011612), short_decimal(2.0**24), short_decimal(-0.0), short_decimal(2.0**-130)
    ('0.1', '16777216.0', '-0.0', None)
    >>> short_decimal((2 - 2.0**-23) * 2.0**127)  # 3.4028235e38 would be larger before it is rounded
    '3.4028234663852886e+38'
    """
    if not (value == 0 or 2.0**-126 <= abs(value) < 2.0**128):
        return None
    single = np.float32(value)
    if value == 0 or 1e-4 <= abs(value) < 1e9:
        text = np.format_float_positional(single, unique=True, trim="0")
    else:
        text = np.format_float_scientific(single, unique=True, trim="-", exp_digits=1)
    # Triton makes float64 of a literal that is beyond float32's largest number before it is rounded.
    if not (value == 0 or 2.0**-126 <= abs(float(text)) <= LARGEST):
        text = repr(value)
    return text if np.float32(float(text)) == value else None


def whole_numbers(rows: Sequence[Sequence[float]]) -> tuple[list[list[int]] | Sequence[Sequence[float]], float]:
    """Decimal fractions as whole numbers, and what they are times; numbers of too many digits as they are, times 1.

    >>> whole_numbers([[0.25, -3e-05], [1.0]])
    ([[25000, -3], [100000]], 1e-05)
    """
    digits = [[Decimal(repr(value)) for value in row] for row in rows]
    least = min((int(d.normalize().as_tuple().exponent) for row in digits for d in row if d), default=0)
    if least >= 0 or any(abs(d.scaleb(-least)) >= 2**53 for row in digits for d in row):
        return rows, 1.0
    return [[int(d.scaleb(-least)) for d in row] for row in digits], float(f"1e{least}")


def _with_commas(pieces: Sequence[str], end: str) -> list[str]:
    return [*(f"{piece}," for piece in pieces[:-1]), pieces[-1] + end] if pieces else []


def _lines(pieces: Sequence[str], indent: str, between: str = " ") -> list[str]:
    """Pieces side by side, as many as a line takes; one of several lines begins in a line of its own."""
    lines, line = list[str](), indent
    for piece in pieces:
        if line != indent and (len(line) + len(between) + len(piece) > LINE_LENGTH or "\n" in piece):
            lines.append(line)
            line = indent
        line += piece if line == indent else between + piece
    return [*lines, line]


def table_lines(values: Sequence[str]) -> list[str]:
    """Numbers with commas and no spaces, in lines."""
    return _lines(_with_commas(values, ""), "    ", "")


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
    """Code with its comment behind it, or above it where the line would grow too long; long code goes on indented."""
    lines = textwrap.wrap(
        code,
        LINE_LENGTH,
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    if not comment:
        return lines
    text = comment_text(comment)
    line = f"{lines[0]}  {mark} {text}"
    if len(lines) == 1 and len(line) <= LINE_LENGTH:
        return [line]
    above = textwrap.wrap(text, LINE_LENGTH - len(indent) - len(mark) - 1)
    return [*(f"{indent}{mark} {part}" for part in above), *lines]


def with_arguments(head: str, arguments: Sequence[str], end: str = ")") -> list[str]:
    """``head(arguments)``, the arguments on lines of their own where it is too long for one."""
    one_line = f"{head}({', '.join(arguments)}{end}"
    if len(one_line) <= LINE_LENGTH:
        return [one_line]
    indent = " " * (len(head) - len(head.lstrip()) + 4)
    return [f"{head}(", *_lines(_with_commas(arguments, end), indent)]


def json_text(value: object, indent: int = 0) -> str:
    """JSON with what fits in a line in one, and items side by side.

    >>> print(json_text({"a": [1, 2], "b": {"c": "d"}}))
    {"a": [1, 2], "b": {"c": "d"}}
    """
    line = json.dumps(value)
    if indent + len(line) <= LINE_LENGTH or not isinstance(value, dict | list) or not value:
        return line
    if isinstance(value, dict):
        pieces = [f"{json.dumps(key)}: {json_text(item, indent + 1)}" for key, item in value.items()]
    else:
        pieces = [json_text(item, indent + 1) for item in value]
    lines = _lines(_with_commas(pieces, ""), " " * (indent + 1))
    return "\n".join([line[0], *lines, " " * indent + line[-1]])


# --- the head of a file ---------------------------------------------------------
_WIDTH = 116


@dataclass(frozen=True)
class Header:
    """What a generated file says of itself; holds nothing that changes from build to build.

    Attributes:
        rule: name of the rule.
        variant: name of the variant, whose certificate has the citation, what it costs and how exact it is.
        summary: what the rule computes, such as its formula; one string a line.
        program: digest of the programs that the file is made of, where it is to be known by them.

    >>> print(Header("relu", "exact", ("f(x) = Max(0, x)",)).python())
    # relu, variant exact. Generated by momentgen; do not edit. Documented in exact.json
    #
    # f(x) = Max(0, x)
    """

    rule: str
    variant: str
    summary: tuple[str, ...] = ()
    program: str = ""

    def lines(self) -> list[str]:
        """The text, without comment marks; no line longer than 116 characters."""
        generated = "Generated by momentgen; do not edit. Documented in"
        # The second line is empty, since Python looks for an encoding there.
        lines = [f"{self.rule}, variant {self.variant}. {generated} {self.variant}.json", "", *self.summary]
        lines += [f"program {self.program}"] if self.program else []
        wrapped = (textwrap.wrap(" ".join(line.split()), _WIDTH, subsequent_indent="    ") or [""] for line in lines)
        return [line.rstrip() for of in wrapped for line in of]

    def c(self) -> str:
        # No line may end in a backslash or the trigraph for one, which would carry the comment on.
        return "\n".join(f"// {line}".replace("??/", "? ?/").rstrip("\\ ") for line in self.lines())

    def python(self) -> str:
        return "\n".join(f"# {line}".rstrip() for line in self.lines())
