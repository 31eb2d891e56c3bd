"""Proofs of what fits are off by: how large a smooth function gets on an interval, by Taylor models in ball arithmetic.

On a piece c +- r the function is its Taylor polynomial at c, with balls for coefficients, plus one more coefficient
taken over the whole piece: that encloses it rigorously (Taylor's theorem), and tightly as soon as r is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from flint import arb, arb_series, ctx
from mpmath import mp, mpf
from mpmath.libmp import MPZ, from_man_exp

from momentgen.compiler.fit.special import Number, _values, to_ball, to_mpf
from momentgen.errors import BuildError

#: A function of a power series with ball coefficients: the argument's length is the length wanted.
BallFunction: TypeAlias = Callable[[arb_series], arb_series]
_MOST = 20  # halvings of a piece on which a divisor may be 0


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


def proven_maximum(
    function: BallFunction,
    interval: tuple[Number, Number],
    *,
    pieces: int = 256,
    order: int = 10,
    bits: int = 192,
    what: str = "f",
) -> mpf:
    """A number that |function| nowhere exceeds on an interval, rigorously; the more pieces, the nearer to its maximum.

    Args:
        function: takes a series ``x0 + h + O(h^k)`` with ball coefficients, returns that of the function; k times
            differentiable wherever the ball ``x0`` reaches.
        interval: (low, high), finite.
        pieces: into which it is cut.
        order: number of Taylor coefficients of a piece.
        bits: working precision.
        what: what the function is, for messages.

    Raises:
        BuildError: stage ``approximate``, if the function has no bound near a point.

    >>> print(mp.nstr(proven_maximum(lambda x: x * (1 - x), (0, 1)), 3))
    0.25
    """
    with mp.workprec(bits), _series_context(bits, order + 1):
        low, high = to_mpf(interval[0]), to_mpf(interval[1])
        cuts = [to_ball(low + (high - low) * i / pieces) for i in range(pieces)]
        waiting = [(a, b, 0) for a, b in zip(cuts, [*cuts[1:], to_ball(high)], strict=True)]
        most = mpf(0)
        while waiting:
            a, b, halved = waiting.pop()
            found = _piece(function, a, b, order)
            if found is not None:
                most = max(most, found)
                continue
            if halved == _MOST:
                raise BuildError(what, "approximate", f"expected a bounded function, got none near {a.str(8)}")
            middle = ((a + b) / 2).mid()
            waiting += [(a, middle, halved + 1), (middle, b, halved + 1)]
        return most


def _piece(function: BallFunction, a: arb, b: arb, order: int) -> mpf | None:
    """A bound on |function| on [a, b]; None where none is found, as where a divisor may be 0."""
    centre = ((a + b) / 2).mid()
    radius = (b - centre).union(centre - a).upper()
    try:
        at, over = (function(arb_series([x, arb(1)], n)) for x, n in ((centre, order), (a.union(b), order + 1)))
    except (ValueError, ZeroDivisionError):  # python-flint's word for a divisor that may be 0
        return None
    total, power = arb(0), arb(1)
    for k in range(order):
        total += abs(at[k]) * power
        power *= radius
    total += abs(over[order]) * power
    return upper(total) if total.is_finite() else None


def upper(ball: arb) -> mpf:
    """A number no smaller than anything in a finite ball."""
    man, exp = ball.upper().man_exp()
    return mp.make_mpf(from_man_exp(MPZ(int(man)), int(exp)))


def _range(count: int, t: arb) -> list[arb]:
    """Enclosures of J_0 .. J_{count-1} over a ball: tight, because each is positive and decreasing."""
    bits = ctx.prec
    low = _values(count, t.lower(), bits)
    if t.is_exact():
        return low
    return [a.union(b) for a, b in zip(low, _values(count, t.upper(), bits), strict=True)]


def J_series(n: int, t: arb | arb_series, length: int | None = None) -> arb_series:  # noqa: N802
    """J_n of a power series with ball coefficients, for proofs.

    The coefficients in h of J_n(t0 + h) are (-1)^k C(n+k, k) J_{n+k}(t0): no cancellation, and over a
    ball of positive radius each is enclosed by its values at the two ends.

    Args:
        n: order, 0 or more.
        t: the argument.
        length: number of coefficients wanted; that of ``t`` by default.

    Returns:
        A series with ``length`` coefficients.

    >>> J_series(0, arb_series([arb(2), arb(1)], 3))[1].overlaps(arb("-0.157261541423891 +/- 1e-12"))
    True
    """
    series = t if isinstance(t, arb_series) else arb_series([t, arb(1)], length or 2)
    length = length or series.prec
    coefficients, binomial = [], 1
    for k, value in enumerate(_range(n + length, series[0])[n:]):
        coefficients.append((-1) ** k * binomial * value)
        binomial = binomial * (n + k + 1) // (k + 1)
    outer = arb_series(coefficients, length)
    inner = arb_series([arb(0)] + [series[k] for k in range(1, length)], length)
    return outer(inner)
