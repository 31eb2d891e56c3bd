"""momentgen tells you how uncertain a PyTorch network's output is when its inputs or weights are.

The names here are the public ones.  They load on first use, so that the
compiler's processes never import torch and the runtime's never import sympy.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from momentgen import errors as errors
    from momentgen import inference as inference
    from momentgen import laws as laws
    from momentgen import nn as nn
    from momentgen import runtime as runtime
    from momentgen.laws.budget import budget
    from momentgen.laws.convert import convert, propagate
    from momentgen.laws.debug import debug
    from momentgen.laws.methods import method
    from momentgen.laws.noisy_values import noisy
    from momentgen.laws.support import support
    from momentgen.laws.values import joint
    from momentgen.nn.functional import class_posterior
    from momentgen.nn.monte_carlo import monte_carlo
    from momentgen.nn.summary import summary
    from momentgen.runtime.moments import Moments

__all__ = [
    "Moments",
    "__version__",
    "budget",
    "class_posterior",
    "convert",
    "debug",
    "joint",
    "laws",
    "method",
    "monte_carlo",
    "nn",
    "noisy",
    "propagate",
    "summary",
    "support",
]

__version__ = "0.2.0"

#: public name -> the module that defines it.
_HOMES = {
    "Moments": "momentgen.runtime.moments",
    "budget": "momentgen.laws.budget",
    "class_posterior": "momentgen.nn.functional",
    "convert": "momentgen.laws",
    "debug": "momentgen.laws.debug",
    "joint": "momentgen.laws",
    "method": "momentgen.laws",
    "noisy": "momentgen.laws",
    "propagate": "momentgen.laws",
    "support": "momentgen.laws.support",
    "monte_carlo": "momentgen.nn.monte_carlo",
    "summary": "momentgen.nn.summary",
}


#: modules that are public as attributes; others of the package are found too, and not listed
_MODULES = ("errors", "inference", "laws", "nn", "runtime")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
