"""Hypothesis strategies for the inputs of an op."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from real_rules import settings_of

F32 = npt.NDArray[np.float32]
SIZE = 24

_LARGE = float(np.float32(2.0**60))
_SMALL = float(np.float32(2.0**-60))


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    """float32 numbers from ``low`` to ``high``, both of one sign, over all exponents alike."""

    def spread(share: float) -> float:
        return float(np.float32(low * (high / low) ** share))

    return st.one_of(st.floats(low, high, width=32), st.floats(0.0, 1.0).map(spread))


@st.composite
def points(
    draw: st.DrawFn, *, ratio: float = 30.0, var: tuple[float, float] = (_SMALL, _LARGE), zero: bool = False
) -> tuple[F32, F32]:
    """Means and variances with |mean|/sigma up to ``ratio``; ``zero`` allows a variance of 0."""
    elements = floats(*var) | st.just(0.0) if zero else floats(*var)
    v = draw(arrays(np.float32, SIZE, elements=elements, fill=st.nothing()))
    a = draw(arrays(np.float64, SIZE, elements=st.floats(-ratio, ratio), fill=st.nothing()))
    sigma = np.sqrt(np.where(v > 0, v, 1).astype(np.float64))
    mean = (a * sigma).astype(np.float32)
    return np.where(np.abs(mean) < 2.0**-126, np.float32(0), mean), v


@st.composite
def anything(draw: st.DrawFn) -> tuple[F32, F32]:
    """Any finite means and any variances from 0, subnormal numbers included, apart from each other."""
    mean = draw(arrays(np.float32, SIZE, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
    v = draw(arrays(np.float32, SIZE, elements=st.floats(0.0, width=32, allow_nan=False, allow_infinity=False)))
    return mean, np.abs(v)


def parameters(name: str) -> st.SearchStrategy[dict[str, float]]:
    """Settings of a rule's parameters: the ends of their ranges, defaults, and a value between."""
    return st.sampled_from(settings_of(name))
