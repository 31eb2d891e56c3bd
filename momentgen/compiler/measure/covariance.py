"""What an error of a covariance of f(X1) and f(X2), and of its partials, is measured by."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.lanes import outputs_over
from momentgen.compiler.measure.ulp import LARGEST

__all__ = ["COVARIANCE", "PARTIAL", "CovarianceMeasure"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

COVARIANCE, PARTIAL = 1e-5, 1e-4
_LEAST = {True: 2.0**-126, False: 2.0**-120}  # of the covariance, of partials


class CovarianceMeasure:
    """Errors over what is allowed; survives pickling.

    Args:
        forward: the covariance, from which the variances of f are taken; None where it is measured by its terms.
        sizes: sums of the magnitudes of the terms of partials, or of all outputs.

    The covariance within 1e-5 of sqrt(V1 V2), the bound of Cauchy and Schwarz, V_i the variances of f(X_i), or where
    ``forward`` is None within 1e-5 of the sum of the magnitudes of its terms.  Partials within 1e-4 of such a sum.  At
    least 2^-126 is allowed, 2^-120 to partials, and the largest number stands for what is beyond.
    """

    def __init__(self, forward: Graph | None, sizes: Graph) -> None:
        self.forward, self.sizes = forward, sizes
        self._last: tuple[tuple[F32, ...], dict[str, F64]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

    def scales(self, points: tuple[F32, ...]) -> dict[str, F64]:
        """What an error is taken relative to, by output; kept for the points last seen."""
        if self._last is None or any(a is not b for a, b in zip(self._last[0], points, strict=True)):
            wide = [array.astype(np.float64) for array in points]
            named = dict(zip(self.sizes.inputs, wide, strict=True))
            found = {name: np.abs(value) for name, value in outputs_over(self.sizes, named).items()}
            if self.forward is not None:
                spread = np.ones_like(wide[0])
                for mean, var in (wide[:2], wide[2:4]):
                    itself = dict(zip(self.sizes.inputs, (mean, var, mean, var, var), strict=True))
                    spread = spread * np.sqrt(np.abs(outputs_over(self.forward, itself)["covariance"]))
                found["covariance"] = spread
            self._last = points, found
        return self._last[1]

    def __call__(self, output: str, computed: F32, exact: F64, *points: F32) -> F64:
        size, share = self.scales(points)[output], COVARIANCE if output == "covariance" else PARTIAL
        if self.forward is None or output != "covariance":
            size = np.maximum(size, np.abs(exact))
        with np.errstate(all="ignore"):
            error = np.abs(computed.astype(np.float64) - np.clip(exact, -LARGEST, LARGEST))
            error = error / np.maximum(share * np.minimum(size, LARGEST), _LEAST[output == "covariance"])
        return np.where(np.isfinite(computed), error, np.inf)
