"""Numbers that a kernel needs near the sign change of a mean, computed on the host from the rule's parameters.

A mean such as leaky ReLU's, sigma·F(t) with t = |mu|/sigma, is 0 at one t0 that depends on the parameters.  Near it
no float32 formula for F is relatively accurate, but sigma·(t - t0)·P(t - t0) is, with P the Taylor polynomial of F
about t0.  Both the compiler (to certify) and generated code (to run) call this module, so that the numbers are the
same; it needs mpmath alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

__all__ = ["NAMES", "TERMS", "expand", "truncated_moment"]

#: coefficients of the Taylor polynomial P
TERMS = 10
#: the derived scalars, in the order of :func:`expand`; kernels take each as hi and lo
NAMES = ("sign_width", "sign_at", "sign_square", "sign_square_rest", *(f"sign_taylor{k}" for k in range(TERMS)))
_BEYOND = 40.0  # no float32 input reaches a sign change out there with a normal result


def truncated_moment(n: int, t: Any) -> Any:
    """J_n(t) = ∫_0^∞ x^n exp(-t x - x²/2) dx / n!, J_{-1} = 1, in mpmath, for 0 <= t <= 40.

    >>> print(mpmath.nstr(truncated_moment(0, 0), 10))
    1.253314137
    """
    with mpmath.workdps(mpmath.mp.dps + 10 * (n + 2)):
        t = mpmath.mpf(t)
        before, value = (
            mpmath.mpf(1),
            mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(t**2 / 2) * mpmath.erfc(t / mpmath.sqrt(2)),
        )
        if n < 0:
            return before
        for k in range(1, n + 1):
            before, value = value, (before - t * value) / k
        return value


def expand(function: Callable[[Any], Any], other: Callable[[Any], Any] | None = None) -> tuple[float, ...]:
    """Where ``function`` changes sign on t > 0, and its Taylor polynomial there.

    Args:
        function: F(t), mpmath to mpmath, monotone where it changes sign; its constants must be mpmath numbers.
        other: F on the other side of the kink, at mu = sigma·t, which is taken where ``function`` does not change sign.

    Returns:
        hi and lo words of the scalars in :data:`NAMES`: the half-width of the interval on which P serves (-1 if F
        does not change sign), t0 (-t0 where it is ``other`` that changes sign), t0² in two pairs, and P's coefficients,
        lowest first.

    >>> values = expand(lambda t: 2 - t * t)
    >>> abs(values[2] + values[3] - 2**0.5) < 1e-14
    True
    """
    with mpmath.workdps(50):
        low, high = mpmath.mpf(0), mpmath.mpf(_BEYOND)
        at_low, at_high = function(low), function(high)
        if at_low == 0 or at_high == 0 or (at_low > 0) == (at_high > 0):
            if other is not None:
                words = list(expand(other))
                words[2:4] = [-words[2], -words[3]]
                return tuple(words)
            return _words([-1.0, *[0.0] * (len(NAMES) - 1)])
        root = mpmath.findroot(
            function, (low, high), solver="illinois", tol=mpmath.mpf(10) ** -90, maxsteps=400, verify=False
        )
        # F varies over a length of about 1/t0 in the tail.
        width = mpmath.mpf(1) / 4 / max(1, root)
        taylor = mpmath.taylor(function, root, TERMS)[1:]
        square = root**2
        head = sum(map(mpmath.mpf, _split(square)))
        return _words([width, root, square, square - head, *taylor])


def _words(values: list[Any]) -> tuple[float, ...]:
    return tuple(word for value in values for word in _split(value))


def _split(value: Any) -> tuple[float, float]:
    # Through float64 a tie could round twice; its effect, 2^-54, is far below what a pair of words holds.
    hi = float(np.float32(float(value)))
    return hi, float(np.float32(float(mpmath.mpf(value) - mpmath.mpf(hi))))
