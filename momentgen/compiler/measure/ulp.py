"""Errors in units in the last place of float32, against exact values of any magnitude."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["EDGES", "EDGE_LABELS", "LARGEST", "SMALLEST_NORMAL", "is_normal", "to_float64", "ulp_error", "unit"]

Array = npt.NDArray[np.float64]

LARGEST = float(np.finfo(np.float32).max)
SMALLEST_NORMAL = 2.0**-126
#: edges of the histograms of errors in ulp, and what their bins are called; the last bin is open
EDGES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
EDGE_LABELS = (*(f"<= {edge:g}" for edge in EDGES), f"> {EDGES[-1]:g}")


def to_float64(mantissa: Array, exponent: npt.NDArray[np.int64]) -> Array:
    """mantissa·2^exponent; what float64 cannot hold becomes 0 or infinite, far outside float32 either way."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(mantissa, np.clip(exponent, -2000, 2000).astype(np.int32))


def unit(exact: Array) -> Array:
    """ulp(x) = 2^(max(exponent(x), -126) - 23).

    >>> float(unit(np.array(1.5))) == 2.0**-23
    True
    """
    _, exponent = np.frexp(np.where(np.isfinite(exact), exact, 1.0))
    return np.asarray(np.ldexp(1.0, np.maximum(exponent - 1, -126) - 23))


def is_normal(exact: Array) -> npt.NDArray[np.bool_]:
    """Whether the exact value lies in the range of normal float32 numbers."""
    size = np.abs(exact)
    return (size >= SMALLEST_NORMAL) & (size <= LARGEST)


def ulp_error(computed: npt.NDArray[np.float32], exact: Array) -> Array:
    """|computed - exact| in ulp where the exact value is a normal number, else 0; NaN and inf count as infinite."""
    with np.errstate(all="ignore"):
        error = np.abs(computed.astype(np.float64) - exact) / unit(exact)
    error = np.where(np.isfinite(computed), error, np.inf)
    return np.where(is_normal(exact), error, 0.0)
