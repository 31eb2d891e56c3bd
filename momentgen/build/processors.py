"""The environment of a build's workers, in which NumPy computes the same bits on processors of different make.

NumPy has code of its own for processors with vectors of 512 bits.  Its exponentials differ in the last bit, and its
sorting puts equal values in another order.  OpenBLAS adds up in another order on every make.  A fit, or a search for
the worst point, ends up elsewhere then.  Both read the environment once, when they are imported.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

_DISABLE, _ENABLE, _CORE = "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "OPENBLAS_CORETYPE"


def same_bits_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables to be set, and their values, before NumPy is imported; what the user has set stays.

    With them NumPy computes as on an x86 processor with AVX2.  Elsewhere, and on older ones, there is nothing to set.

    Args:
        environ: the environment as it is.
    """
    numpy = importlib.import_module("numpy._core._multiarray_umath")  # which has no stubs
    features, dispatched = numpy.__cpu_features__, numpy.__cpu_dispatch__
    if not (features.get("AVX2") and features.get("FMA3")):
        return {}
    found = {} if _CORE in environ else {_CORE: "Haswell"}
    # NumPy refuses to start where both are set, and where one is named that it always needs.
    wide = [name for name in dispatched if name == "X86_V4" or name.startswith("AVX512")]
    if wide and _ENABLE not in environ:
        found[_DISABLE] = " ".join([*environ.get(_DISABLE, "").split(), *wide])
    return found
