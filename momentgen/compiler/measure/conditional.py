"""How an output that is random beyond its input is measured: exact values and tolerance of f and of E h together.

See :mod:`momentgen.compiler.strategies.conditional`, which this is apart from so that a change of strategies leaves
what certificates say as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from momentgen.compiler.ir.stable import Errors, Truth, errors_over
from momentgen.compiler.measure.moments import MEAN

__all__ = ["ADDED", "ConditionalMeasure", "ConditionalTruth"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
#: output of Y -> what E h adds to it
ADDED = {"var": "mean", "dvar_dmu": "dmean_dmu", "dvar_dvar": "dmean_dvar"}


@dataclass(frozen=True)
class ConditionalMeasure:
    """The tolerance of f, and that of E h in the variance and its partials; survives pickling.

    Attributes:
        own, expected: the measures of f and of h.
        unit: of h.
    """

    own: Any
    expected: Any
    unit: float

    def at(self, setting: Mapping[str, float]) -> ConditionalMeasure:
        """The measure at ``setting``."""
        own, expected = (m.at(setting) if hasattr(m, "at") else m for m in (self.own, self.expected))
        unit = expected.units.scale if hasattr(expected, "units") else 1.0
        return ConditionalMeasure(own, expected, unit)

    def allowed(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """The error allowed at each point."""
        limit: F64 = self.own.allowed(output, exact, mean, var)
        if output == "var":
            return limit + MEAN * np.maximum(self.unit, np.abs(exact))
        return limit + self.expected.allowed(ADDED[output], exact, mean, var) if output in ADDED else limit

    def __call__(self, output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
        return self.over(output, exact, mean, var)(computed)

    def over(self, output: str, exact: F64, mean: F32, var: F32) -> Errors:
        """The same as a function of what was computed."""
        own = errors_over(self.own, output, exact, mean, var)
        if output not in ADDED:
            return own
        at = mean.astype(np.float64), var.astype(np.float64)
        share: F64 = self.own.allowed(output, exact, *at) / self.allowed(output, exact, *at)
        return lambda computed: own(computed) * share


@dataclass(frozen=True)
class ConditionalTruth:
    """The exact values of f, those of E h added; survives pickling."""

    own: Truth
    expected: Truth

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        values, more = dict(self.own(mean, var, params)), self.expected(mean, var, params)
        return values | {name: values[name] + more[of] for name, of in ADDED.items()}
