"""Names of the array types that signatures need most, and erfc over arrays."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: the complementary error function of each element
erfc = np.vectorize(math.erfc, otypes=[float])
