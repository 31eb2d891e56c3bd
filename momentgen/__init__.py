"""momentgen: a compiler from symbolic activation rules to certified moment kernels.

The names here are the public ones.  They load on first use, so that the
compiler's processes never import torch and the runtime's never import sympy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from momentgen.runtime.moments import Moments

__all__ = ["Moments", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Moments":
        from momentgen.runtime.moments import Moments

        return Moments
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
