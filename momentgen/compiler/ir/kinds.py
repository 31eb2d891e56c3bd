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
        array: of NumPy's float64 arrays, where that is not ``exact``.
        is_condition: whether the result is a truth value.
    """

    exact: Callable[..., Any]
    array: Callable[..., Any] | None = None
    is_condition: bool = False


KINDS: Mapping[str, Kind] = {
    "add": Kind(operator.add),
    "sub": Kind(operator.sub),
    "mul": Kind(operator.mul),
    "madd": Kind(lambda a, b, c: a * b + c),
    "square_difference": Kind(lambda x, w, square, rest: x * x - (square + rest) * w),
    "recip": Kind(lambda a: 1 / a),
    "over": Kind(operator.truediv),
    "half_square": Kind(lambda a: -a * a / 2),
    "head": Kind(lambda a: a),
    "tail": Kind(lambda a: 0 * a),
    "shifted_product": Kind(lambda x, y, slope, a: x * y),
    "over_one_plus": Kind(lambda a, h: a / (1 + h)),
    "sqrt": Kind(mpmath.sqrt, np.sqrt),
    "neg": Kind(operator.neg),
    "round": Kind(mpmath.nint, np.rint),
    "abs": Kind(abs),
    "exp_mantissa": Kind(mpmath.exp, np.exp),
    "times_exp_mantissa": Kind(lambda a, x: a * mpmath.exp(x), lambda a, x: a * np.exp(x)),
    "log": Kind(mpmath.log, np.log),
    "lt": Kind(operator.lt, is_condition=True),
    "le": Kind(operator.le, is_condition=True),
    "eq": Kind(operator.eq, is_condition=True),
    "and": Kind(operator.and_, is_condition=True),
    "or": Kind(operator.or_, is_condition=True),
    "not": Kind(operator.not_, np.logical_not, is_condition=True),
    "select": Kind(lambda c, a, b: a if c else b, np.where),
}

#: kinds whose value is a truth value; all others are real numbers
CONDITIONS = frozenset(name for name, kind in KINDS.items() if kind.is_condition)
