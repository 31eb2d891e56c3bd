"""Another measure of error, within a variant's edge alone: beyond it nothing is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from momentgen.compiler.ir.stable import Edge, Errors, errors_over
from momentgen.compiler.toolchain.arrays import F32, F64


@dataclass(frozen=True)
class Inside:
    """Another measure, where ``edge`` has numbers; survives pickling if both do."""

    measure: Any
    edge: Edge

    def at(self, setting: Any) -> Inside:
        """The measure at a setting of the parameters."""
        at = getattr(self.measure, "at", None)
        return self if at is None else replace(self, measure=at(setting))

    def words(self) -> dict[str, Any]:
        """What is allowed, in words."""
        found: dict[str, Any] = self.measure.words()
        return found

    def __call__(self, output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
        return self.over(output, exact, mean, var)(computed)

    def over(self, output: str, exact: F64, mean: F32, var: F32) -> Errors:
        """The same as a function of what was computed."""
        inside = self.edge.inside(mean.astype(np.float64), var.astype(np.float64))
        errors = errors_over(self.measure, output, exact, mean, var)

        def within(computed: F32) -> F64:
            with np.errstate(invalid="ignore"):
                return np.where(inside, errors(computed), 0.0)

        return within
