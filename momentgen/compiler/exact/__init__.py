"""Truth: what every other stage is measured against.

:class:`BallFunction` evaluates a closed form in ball arithmetic (python-flint), with a proven radius.  No float64
arithmetic enters a result before its last rounding.
"""

from __future__ import annotations

from momentgen.compiler.exact.balls import BallFunction, ClosedFormTruth, ball_function, evaluate

__all__ = ["BallFunction", "ClosedFormTruth", "ball_function", "evaluate"]
