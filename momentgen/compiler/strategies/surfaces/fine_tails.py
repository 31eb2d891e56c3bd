r"""An activation that nears its lines as a power of 1/x, in float64: how far out, and in which rows of the plane.

Its moments are no smooth functions of q = sqrt(c)/w about 0: E sqrt(1 + X²) has a q² log q.  They are smooth in a row
that reaches from some q to a few times that q.  Beyond some abs(x) f's lines are all that counts; where sigma is as
large as that, q counts no more.  Rows are the wider, in logarithms, the lower, because there is the less to follow.
"""

from __future__ import annotations

import numpy as np

from momentgen.compiler.function.activation import Activation
from momentgen.compiler.strategies.surfaces.surface import lines_of

_WIDENING = 1.8  # power of what is left of the row's number


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
