"""What float64 truths of an activation share: values of the points last seen, and outputs from six expectations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from momentgen.compiler.function.activation import Activation

__all__ = ["ActivationTruth", "from_expectations"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_SETS = 8  # of points whose values are cached


class ActivationTruth:
    """The outputs of an activation at float32 points; survives pickling, without what it has cached."""

    def __init__(self, f: Activation) -> None:
        self.f = f
        self._cache: dict[tuple[bytes, bytes], dict[str, F64]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.f,)

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        key = (np.asarray(mean).tobytes(), np.asarray(var).tobytes())
        if key not in self._cache:
            if len(self._cache) >= _SETS:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = self.outputs(np.asarray(mean, np.float64), np.asarray(var, np.float64))
        return self._cache[key]

    def outputs(self, mean: F64, var: F64, *, rests: bool = False) -> dict[str, F64]:
        """The outputs at float64 points, v > 0; with ``rests`` also what they have beside the line on mu's side."""
        raise NotImplementedError


def from_expectations(here: F64, expectations: npt.ArrayLike, sigma: F64, var: F64) -> dict[str, F64]:
    """The outputs, and as ``rise`` the mean less f(mu), of d = f(X) - f(mu) and z = (X - mu)/sigma.

    Args:
        here: f(mu).
        expectations: of d, d², d z, d (z² - 1), d² z and d² (z² - 1).
        sigma: root of ``var``.
        var: *variances*.
    """
    one, two, first, second, square1, square2 = np.asarray(expectations)
    return {
        "mean": here + one,
        "rise": one,
        "var": two - one * one,
        "dmean_dmu": first / sigma,
        "dmean_dvar": second / (2 * var),
        "dvar_dmu": (square1 - 2 * one * first) / sigma,
        "dvar_dvar": (square2 / 2 - one * second) / var,
    }
