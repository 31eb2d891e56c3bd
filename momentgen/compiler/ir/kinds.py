"""The kinds of real operations: one row each, from which the evaluators and the float64 renderers follow.

What a kind becomes in float32 takes more than a row: :mod:`momentgen.compiler.lower.words`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

__all__ = ["CONDITIONS", "KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """A kind of operation.

    Attributes:
        exact: what it means, of mpmath's numbers and Python's truth values.
        text: of its operands, where C and Python say the same.
        array: of NumPy's float64 arrays, where that is not ``exact``.
        c: the text in float64 C, where that is not ``text``.
        lane: the text for the small machine of :mod:`momentgen.compiler.ir.lanes`, where that is not ``text``: NumPy's
            bits, and truth values 0 and 1.
        commutes: whether the first two operands may change places.
        is_condition: whether the result is a truth value.
    """

    exact: Callable[..., Any]
    text: str = ""
    array: Callable[..., Any] | None = None
    c: str = ""
    lane: str = ""
    commutes: bool = False
    is_condition: bool = False

    @property
    def in_c(self) -> str:
        """The text in float64 C."""
        return self.c or self.text

    @property
    def in_lane(self) -> str:
        """The text for the small machine."""
        return self.lane or self.text


def _compared(exact: Callable[..., Any], sign: str) -> Kind:
    text = f"{{}} {sign} {{}}"
    return Kind(exact, text, lane=f"{text} ? 1.0 : 0.0", commutes=sign == "==", is_condition=True)


#: what combines truth values has no text that C and Python share
KINDS: Mapping[str, Kind] = {
    "add": Kind(operator.add, "{} + {}", commutes=True),
    "sub": Kind(operator.sub, "{} - {}"),
    "mul": Kind(operator.mul, "{} * {}", commutes=True),
    "madd": Kind(lambda a, b, c: a * b + c, "{} * {} + {}", c="FMA({}, {}, {})", commutes=True),
    "square_difference": Kind(
        lambda x, w, square, rest: x * x - (square + rest) * w, lane="{0} * {0} - ({2} + {3}) * {1}"
    ),
    "recip": Kind(lambda a: 1 / a, "1.0 / {}"),
    "over": Kind(operator.truediv, "{} / {}"),
    "half_square": Kind(lambda a: -a * a / 2, "-0.5 * {0} * {0}", lane="-{0} * {0} / 2.0"),
    "head": Kind(lambda a: a, lane="{}"),
    "tail": Kind(lambda a: 0 * a, lane="0.0 * {}"),
    "shifted_product": Kind(lambda x, y, slope, a: x * y, lane="{} * {}"),
    "over_one_plus": Kind(lambda a, h: a / (1 + h), "{} / (1.0 + {})"),
    "sqrt": Kind(mpmath.sqrt, array=np.sqrt, c="SQRT({})", lane="__builtin_sqrt({})"),
    "neg": Kind(operator.neg, "-{}"),
    "round": Kind(
        mpmath.nint,
        array=np.rint,
        c="({} + 0x1.8p52) - 0x1.8p52",
        lane="__builtin_fabs({0}) < 0x1p51 ? ({0} + 0x1.8p52) - 0x1.8p52 : {0}",
    ),
    "abs": Kind(abs, c="ABS({})", lane="__builtin_fabs({})"),
    "exp_mantissa": Kind(mpmath.exp, array=np.exp, c="exp64({})", lane="exponential({})"),
    "times_exp_mantissa": Kind(
        lambda a, x: a * mpmath.exp(x),
        array=lambda a, x: a * np.exp(x),
        c="{} * exp64({})",
        lane="{} * exponential({})",
    ),
    "lt": _compared(operator.lt, "<"),
    "le": _compared(operator.le, "<="),
    "eq": _compared(operator.eq, "=="),
    "and": Kind(operator.and_, c="{} & {}", lane="{} * {}", commutes=True, is_condition=True),
    "or": Kind(operator.or_, c="{} | {}", lane="{} + {} > 0.0 ? 1.0 : 0.0", commutes=True, is_condition=True),
    "not": Kind(operator.not_, array=np.logical_not, c="!{}", lane="1.0 - {}", is_condition=True),
    "select": Kind(lambda c, a, b: a if c else b, array=np.where, c="{} ? {} : {}", lane="{} != 0.0 ? {} : {}"),
}

#: kinds whose value is a truth value; all others are real numbers
CONDITIONS = frozenset(name for name, kind in KINDS.items() if kind.is_condition)
