"""Bounds: between which numbers an expression lies whatever its value is, so that roots and quotients are defined."""

from __future__ import annotations

import math
from typing import Any

from momentgen.laws.law import Law, laws_in
from momentgen.laws.table import Entry, names

__all__ = ["bounds", "is_inside"]

Interval = tuple[float, float]
_ALL: Interval = (-math.inf, math.inf)
_POSITIVE: Interval = (0.0, math.inf)
#: ranges of functions of one value, with their default arguments
_RANGES: dict[str, Interval] = {
    **dict.fromkeys(names("exp exp2 square abs relu softplus"), _POSITIVE),
    **dict.fromkeys(names("sigmoid normal_cdf hardsigmoid"), (0.0, 1.0)),
    **dict.fromkeys(names("tanh erf sin cos softsign hardtanh"), (-1.0, 1.0)),
    "relu6": (0.0, 6.0), "cosh": (1.0, math.inf), "erfc": (0.0, 2.0), "silu": (-0.28, math.inf),
    "gelu": (-0.18, math.inf), "elu": (-1.0, math.inf), "expm1": (-1.0, math.inf), "logsigmoid": (-math.inf, 0.0),
    "atan": (-math.pi / 2, math.pi / 2),
}  # fmt: skip
#: where functions are defined and finite; the ends are not
_DOMAINS: dict[str, Interval] = {
    **dict.fromkeys(names("sqrt rsqrt reciprocal rdiv div log log2 log10 lgamma digamma"), _POSITIVE),
    **dict.fromkeys(names("acos asin atanh erfinv"), (-1.0, 1.0)),
    "log1p": (-1.0, math.inf), "acosh": (1.0, math.inf), "tan": (-math.pi / 2, math.pi / 2), "logit": (0.0, 1.0),
}  # fmt: skip


def is_inside(name: str, law: Any) -> bool:
    """Whether the function is defined and finite for every number that ``law`` may be.

    >>> import torch
    >>> from momentgen.laws import diagonal
    >>> x = diagonal(torch.zeros(2), torch.ones(2))
    >>> is_inside("sqrt", x * x + 1), is_inside("log", x)
    (True, False)
    """
    domain = _DOMAINS.get(name)
    if domain is None:
        return False
    low, high = bounds(law)
    return low > domain[0] and (high < domain[1] or domain[1] == math.inf)


def bounds(value: Any) -> Interval:
    """The least and the largest number that an expression may be, as far as its functions tell."""
    if isinstance(value, bool) or not isinstance(value, Law | int | float):
        return _ALL
    if not isinstance(value, Law):
        return float(value), float(value)
    if value._made is None:
        return _ALL
    entry, args, kwargs = value._made
    if entry.kind == "arithmetic" and not kwargs:
        return _of_arithmetic(entry, args)
    if entry.kind == "pointwise":
        if entry.name == "pow" and isinstance(args[1], int) and args[1] % 2 == 0 and args[1] > 0:
            return _POSITIVE
        return _RANGES.get(entry.name, _ALL) if len(args) == 1 and not kwargs else _ALL
    if entry.name in ("clone", "contiguous", "detach", "positive", "data"):
        return bounds(args[0])
    return _ALL


def _of_arithmetic(entry: Entry, args: tuple[Any, ...]) -> Interval:
    first = bounds(args[0])
    if entry.name == "neg":
        return -first[1], -first[0]
    second = bounds(args[1])
    if entry.name == "add":
        return first[0] + second[0], first[1] + second[1]
    if entry.name in ("sub", "rsub"):
        first, second = (first, second) if entry.name == "sub" else (second, first)
        return first[0] - second[1], first[1] - second[0]
    if entry.name == "mul" and len({id(law) for law in laws_in(args)}) == 1 and len(laws_in(args)) == 2:
        return _POSITIVE
    if entry.name == "div" and not isinstance(args[1], Law) and second[0] != 0:
        second = (1 / second[0], 1 / second[1])
    elif entry.name != "mul":
        return _ALL
    ends = [a * b if a and b else 0.0 for a in first for b in second]
    return min(ends), max(ends)
