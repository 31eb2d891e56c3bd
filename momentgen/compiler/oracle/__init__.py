"""Truth: what every other stage is measured against.

Two independent sources.  :func:`moments` and :func:`partials` integrate f
itself, by mpmath quadrature on intervals chosen by where the integrand lives.
:class:`BallFunction` evaluates a closed form in ball arithmetic (python-flint),
with a proven radius; :func:`rigorous_integral` integrates f in it.  No float64
arithmetic enters a result before its last rounding.
"""

from __future__ import annotations

from momentgen.compiler.oracle.balls import BallFunction, Certified, Scaled, ball_function, evaluate, evaluate_scaled
from momentgen.compiler.oracle.integral import rigorous_integral
from momentgen.compiler.oracle.quadrature import moments, partials

__all__ = [
    "BallFunction",
    "Certified",
    "Scaled",
    "ball_function",
    "evaluate",
    "evaluate_scaled",
    "moments",
    "partials",
    "rigorous_integral",
]
