"""The kinds of real operations: one row each, from which the evaluators follow.

What a kind becomes in float32 takes more than a row: :mod:`momentgen.compiler.lower.words`.  In float64 it is one
primitive or two: :mod:`momentgen.compiler.lower.float64`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np


@dataclass(frozen=True)
class Kind:
    """A kind of operation.

    Attributes:
        exact: what it means, of mpmath's numbers and Python's truth values.
        lane: the text of its operands for the small machine of :mod:`momentgen.compiler.ir.lanes`: NumPy's bits, and
            truth values 0 and 1.
        array: of NumPy's float64 arrays, where that is not ``exact``.
        commutes: whether the first two operands may change places.
        is_condition: whether the result is a truth value.
    """

    exact: Callable[..., Any]
    lane: str
    array: Callable[..., Any] | None = None
    commutes: bool = False
    is_condition: bool = False


def _compared(exact: Callable[..., Any], sign: str) -> Kind:
    return Kind(exact, f"{{}} {sign} {{}} ? 1.0 : 0.0", commutes=sign == "==", is_condition=True)


KINDS: Mapping[str, Kind] = {
    "add": Kind(operator.add, "{} + {}", commutes=True),
    "sub": Kind(operator.sub, "{} - {}"),
    "mul": Kind(operator.mul, "{} * {}", commutes=True),
    "madd": Kind(lambda a, b, c: a * b + c, "{} * {} + {}", commutes=True),
    "square_difference": Kind(lambda x, w, square, rest: x * x - (square + rest) * w, "{0} * {0} - ({2} + {3}) * {1}"),
    "recip": Kind(lambda a: 1 / a, "1.0 / {}"),
    "over": Kind(operator.truediv, "{} / {}"),
    "half_square": Kind(lambda a: -a * a / 2, "-{0} * {0} / 2.0"),
    "head": Kind(lambda a: a, "{}"),
    "tail": Kind(lambda a: 0 * a, "0.0 * {}"),
    "shifted_product": Kind(lambda x, y, slope, a: x * y, "{} * {}"),
    "over_one_plus": Kind(lambda a, h: a / (1 + h), "{} / (1.0 + {})"),
    "sqrt": Kind(mpmath.sqrt, "__builtin_sqrt({})", np.sqrt),
    "neg": Kind(operator.neg, "-{}"),
    "round": Kind(mpmath.nint, "__builtin_fabs({0}) < 0x1p51 ? ({0} + 0x1.8p52) - 0x1.8p52 : {0}", np.rint),
    "abs": Kind(abs, "__builtin_fabs({})"),
    "exp_mantissa": Kind(mpmath.exp, "exponential({})", np.exp),
    "times_exp_mantissa": Kind(lambda a, x: a * mpmath.exp(x), "{} * exponential({})", lambda a, x: a * np.exp(x)),
    "lt": _compared(operator.lt, "<"),
    "le": _compared(operator.le, "<="),
    "eq": _compared(operator.eq, "=="),
    "and": Kind(operator.and_, "{} * {}", commutes=True, is_condition=True),
    "or": Kind(operator.or_, "{} + {} > 0.0 ? 1.0 : 0.0", commutes=True, is_condition=True),
    "not": Kind(operator.not_, "1.0 - {}", np.logical_not, is_condition=True),
    "select": Kind(lambda c, a, b: a if c else b, "{} != 0.0 ? {} : {}", np.where),
}

#: kinds whose value is a truth value; all others are real numbers
CONDITIONS = frozenset(name for name, kind in KINDS.items() if kind.is_condition)
