"""Exact conversions between mpmath numbers and python-flint balls."""

from __future__ import annotations

from typing import TypeAlias

from flint import arb
from mpmath import mp, mpf
from mpmath.libmp import MPZ, from_man_exp

#: What an interval end or a centre may be given as; strings keep decimal fractions exact to the working precision.
Number: TypeAlias = int | float | str | mpf


def to_mpf(value: Number) -> mpf:
    """``value`` as an mpf, rounded to the working precision of mpmath only where it is a string."""
    return mpf(value) if isinstance(value, str) else mp.convert(value)


def to_ball(value: mpf) -> arb:
    """The ball of radius zero at a finite mpf.

    >>> to_ball(mpf(0.1)).is_exact()
    True
    """
    sign, man, exp, _ = value._mpf_
    if not man and exp:
        raise ValueError(f"expected a finite number, got {value}")
    return arb((-int(man) if sign else int(man), int(exp)))


def midpoint(ball: arb) -> mpf:
    """The midpoint of a finite ball, exactly."""
    man, exp = ball.mid().man_exp()
    return mp.make_mpf(from_man_exp(MPZ(int(man)), int(exp)))
