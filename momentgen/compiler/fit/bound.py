"""Proofs: how large a smooth function gets on an interval, by Taylor models in ball arithmetic.

The interval is bisected where it matters.  On a piece c +- r the function is its Taylor polynomial at c,
with balls for coefficients, plus one more coefficient taken over the whole piece: that encloses it
rigorously (Taylor's theorem), and tightly as soon as r is small.  Branch and bound then goes on until the
proven maximum is within a tolerance of a value that is certainly reached.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from flint import arb, arb_series, ctx
from mpmath import mp, mpf

from momentgen.compiler.fit._convert import Number, lower, to_ball, to_mpf, upper
from momentgen.compiler.fit.remez import Polynomial
from momentgen.errors import BuildError

#: A function of a power series with ball coefficients: the argument's length is the length wanted.
BallFunction: TypeAlias = Callable[[arb_series], arb_series]


@dataclass(frozen=True)
class Maximum:
    """An enclosure of max |f| on an interval: ``lower <= max |f| <= upper``, both proven.

    Attributes:
        lower: a value that |f| certainly reaches, at ``where``.
        upper: a value that |f| certainly does not exceed.
        where: the point at which ``lower`` is reached.
        pieces: number of pieces the proof needed.
    """

    lower: mpf
    upper: mpf
    where: mpf
    pieces: int


@contextmanager
def _series_context(bits: int, length: int) -> Iterator[None]:
    """Working precision and series length of python-flint; the latter is global and has no context manager."""
    before = ctx.cap
    ctx.cap = length
    try:
        with ctx.workprec(bits):
            yield
    finally:
        ctx.cap = before


def prove_maximum(
    function: BallFunction,
    interval: tuple[Number, Number],
    *,
    tolerance: float = 0.01,
    floor: Number = 0,
    order: int = 10,
    bits: int = 192,
    pieces: int = 32,
    max_pieces: int = 20000,
    what: str = "f",
) -> Maximum:
    """Enclose the maximum of |function| on an interval, rigorously.

    Args:
        function: takes a series ``x0 + h + O(h^k)`` with ball coefficients, returns that of the function; k times
            differentiable wherever the ball ``x0`` reaches.
        interval: (low, high), finite.
        tolerance: stop when upper <= (1 + tolerance) lower,
        floor: or when upper <= floor (for a function that may be zero, or only needs to be below something).
        order: number of Taylor coefficients of a piece.
        bits: working precision.
        pieces: number of pieces to begin with.
        max_pieces: give up beyond.
        what: what the function is, for messages.

    Raises:
        BuildError: stage ``approximate``, if the tolerance is not reached.

    >>> m = prove_maximum(lambda x: x * (1 - x), (0, 1))
    >>> print(mp.nstr(m.lower, 3), m.upper < 0.2526)
    0.25 True
    """
    with mp.workprec(bits), _series_context(bits, order + 1):
        ends = [to_mpf(interval[0]), to_mpf(interval[1])]
        edges = [to_ball(ends[0] + (ends[1] - ends[0]) * i / pieces) for i in range(pieces + 1)]
        edges[0], edges[-1] = to_ball(ends[0]), to_ball(ends[1])  # never rounded inwards
        least, reached, where = to_mpf(floor), mpf(0), ends[0]
        heap: list[tuple[mpf, int, arb, arb]] = []
        waiting = list(pairwise(edges))
        count = 0
        while True:
            for a, b in waiting:
                most, certain, c = _piece(function, a, b, order)
                if certain > reached:
                    reached, where = certain, upper(c)
                heapq.heappush(heap, (-most, count, a, b))
                count += 1
            worst = -heap[0][0]
            if worst <= max(least, reached * (1 + mpf(tolerance))):
                return Maximum(reached, worst, where, count)
            if count >= max_pieces:
                raise BuildError(
                    what,
                    "approximate",
                    f"expected to bound the maximum within {tolerance:g}, but after {count} pieces it lies "
                    f"between {mp.nstr(reached, 6)} and {mp.nstr(worst, 6)} "
                    f"(worst on [{heap[0][2].str(8, radius=False)}, {heap[0][3].str(8, radius=False)}])",
                )
            _, _, a, b = heapq.heappop(heap)
            middle = ((a + b) / 2).mid()
            waiting = [(a, middle), (middle, b)]


def _piece(function: BallFunction, a: arb, b: arb, order: int) -> tuple[mpf, mpf, arb]:
    """On [a, b]: a bound on |function|, a value certainly reached, and the point where it is."""
    centre = ((a + b) / 2).mid()
    radius = (b - centre).union(centre - a).upper()
    at = function(arb_series([centre, arb(1)], order))
    value = at[0]
    try:
        over = function(arb_series([a.union(b), arb(1)], order + 1))
    except (ValueError, ZeroDivisionError):
        # python-flint's word for a divisor that may be zero somewhere in the ball: nothing is known on this piece.
        # A smaller piece decides; if none does, the search ends in a BuildError.
        return mpf("inf"), (max(mpf(0), lower(abs(value))) if value.is_finite() else mpf(0)), centre
    if not value.is_finite():
        return mpf("inf"), mpf(0), centre
    total, power = arb(0), arb(1)
    for k in range(order):
        total += abs(at[k]) * power
        power *= radius
    total += abs(over[order]) * power
    # The plain enclosure is the better one on a piece where the remainder has not settled yet.
    most = total if total.is_finite() else abs(over[0])
    return (upper(most) if most.is_finite() else mpf("inf")), max(mpf(0), lower(abs(value))), centre


def prove(
    polynomial: Polynomial,
    ball_function: BallFunction,
    *,
    weight: BallFunction | None = None,
    tolerance: float = 0.01,
    order: int | None = None,
) -> Polynomial:
    """The same polynomial with ``bound``, a proven maximum of its weighted error on its interval.

    The coefficients are taken as they are: replace them first (``dataclasses.replace``) by the rounded ones that a
    program will hold, and the bound is that of the rounded polynomial.  ``error`` is measured anew.

    Args:
        polynomial: what to prove.
        ball_function: the function it stands for, on power series with ball coefficients (see
            :func:`prove_maximum`); ``arb_series`` methods such as ``exp`` and ``erfc``, and
            :func:`~momentgen.compiler.fit.special.J_series`, are such functions.
        weight: of the error, alike; 1/ball_function (relative error) by default. Use ``lambda x: arb_series([1])``
            for the absolute error.
        tolerance: the bound is at most this much above the true maximum, relatively.
        order: number of Taylor coefficients of a piece; chosen from the size of the error by default.

    Raises:
        BuildError: stage ``approximate``, if no bound within the tolerance is found.

    >>> from momentgen.compiler.fit import remez
    >>> p = prove(remez(mp.exp, (-1, 1), 8), lambda x: x.exp())
    >>> print(mp.nstr(p.error, 3), p.error <= p.bound <= 1.01 * p.error)
    1.05e-8 True
    """
    size = max(0, -int(mp.frexp(polynomial.error)[1])) if polynomial.error else 200
    coefficients = [to_ball(c) for c in polynomial.coefficients]
    centre = to_ball(polynomial.centre)

    def error(x: arb_series) -> arb_series:
        value = _horner(coefficients, x - centre)
        truth = ball_function(x)
        return (value - truth) * weight(x) if weight is not None else (value - truth) / truth

    found = prove_maximum(
        error,
        polynomial.interval,
        tolerance=tolerance,
        floor=mpf(2) ** (-3 * size - 100),  # an exact fit has no relative accuracy to reach
        order=order or 8 + size // 12,
        bits=128 + 3 * size,
        pieces=4 * len(coefficients),
        what=polynomial.what,
    )
    return replace(polynomial, error=found.lower, bound=found.upper)


def _horner(coefficients: list[arb], z: arb_series) -> arb_series:
    value = arb_series([arb(0)])
    for c in reversed(coefficients):
        value = value * z + c
    return value
