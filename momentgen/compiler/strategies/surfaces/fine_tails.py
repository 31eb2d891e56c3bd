r"""An activation that nears its lines as a power of 1/x, in float64: how far out, and in which rows of the plane.

Its moments are no smooth functions of q = sqrt(c)/w about 0: E sqrt(1 + X²) has a q² log q.  They are smooth in a row
that reaches from some q to a few times that q.  Beyond some abs(x) f's lines are all that counts; where sigma is as
large as that, q counts no more.  Rows are the wider, in logarithms, the lower, because there is the less to follow.

In x = s/largest infinity is a point like any other, s = t/sqrt(kappa² + t²) being 1 there, if there are only even
powers of 1/t: as of an odd f between two levels that nears them by even powers, or of an even f between lines that it
nears by odd ones, times s/t.  Others are left to :mod:`momentgen.compiler.strategies.smooth.ladder`.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from flint import arb, ctx

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.strategies.surfaces.surface import lines_of, steps

_WIDENING = 1.8  # power of what is left of the row's number
_NEAR, _FAR = (0.3, 1.0, 3.0, 10.0), (1e3, 2e3, 4e3)  # lengths, where f's symmetry is looked at, and its power of 1/x
_CLOSE = 0.01  # of a whole number
_BITS = 640
_SAME = 1e-12  # of two slopes or offsets


def fades(f: Activation, name: str) -> bool:
    """Whether an output less its plain part vanishes as 1/|mu|."""
    return f.algebraic and name == "mean" and steps(f)


def follows_even_powers(f: Activation) -> bool:
    """Whether f is odd between levels that it nears by an even power of 1/x, or even between lines by an odd one."""
    if f.kinks or f.centre or not f.algebraic:
        return False
    a, b, a2, b2 = lines_of(f)
    odd = abs(a) + abs(a2) == 0.0 and b2 != 0.0 and abs(b + b2) <= _SAME * abs(b2)
    even = a2 != 0.0 and abs(a + a2) <= _SAME * abs(a2) and abs(b2 - b) <= _SAME * max(1.0, abs(b))
    if not (odd or even):
        return False
    sign, near, far = -1 if odd else 1, [f.length * share for share in _NEAR], [f.length * share for share in _FAR]
    with ctx.workprec(_BITS):
        right, left = (f.values(0, [arb(side * point) for point in near]) for side in (1, -1))
        if any(abs(float(p - sign * q)) > _SAME * f.lipschitz * f.length for p, q in zip(right, left, strict=True)):
            return False
        gaps = [
            float(p - arb(a2) * arb(at) - arb(b2))
            for at, p in zip(far, f.values(0, [arb(at) for at in far]), strict=True)
        ]
    if 0.0 in gaps:
        return False
    powers = [math.log2(abs(p / q)) for p, q in itertools.pairwise(gaps)]
    return round(powers[-1]) % 2 == int(even) and all(abs(p - round(powers[-1])) <= _CLOSE for p in powers)


def far_out(f: Activation, mean: float, var: float) -> float:
    """abs(x - centre) beyond which f is its lines but for so much of max(1, |f|), and f'² but for that of L²."""
    away = f.length * np.geomspace(1.0, 1e12, 241)
    end = 0.0
    a, b, a2, b2 = lines_of(f)
    for sign, slope, offset in ((-1, a, b), (1, a2, b2)):
        jet, line = f.jet(f.centre + sign * away, 2), slope * sign * away + offset
        value = np.abs(jet[:, 0] - line) > mean * np.maximum(1.0, np.abs(line))
        steep = np.abs(jet[:, 1] ** 2 - slope**2) > var * f.lipschitz**2
        end = max(end, *(float(away[mask].max(initial=0.0)) for mask in (value, steep)))
    return end


def slow_rows(count: int, least: float) -> tuple[float, ...]:
    """Cuts in q, from low to high, between as many rows from ``least`` to 1.

    >>> [round(q, 3) for q in slow_rows(3, 1e-3)]
    [0.036, 0.384]
    """
    return tuple(float(least ** ((k / count) ** _WIDENING)) for k in range(count - 1, 0, -1))
