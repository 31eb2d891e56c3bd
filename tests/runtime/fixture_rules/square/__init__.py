"""The square, x**2."""

from __future__ import annotations

from momentgen.runtime import Op

__all__ = ["square"]

square = Op(
    name="square",
    package=__name__,
    inputs=1,
    parameters=(),
    variants=(
        "exact",
        "linearised",
    ),
    default="exact",
    doc="The square, x**2.",
)
