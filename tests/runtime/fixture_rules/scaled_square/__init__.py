"""A scaled square, scale*x**2."""

from __future__ import annotations

from momentgen.runtime import Op, Parameter

__all__ = ["scaled_square"]

scaled_square = Op(
    name="scaled_square",
    package=__name__,
    inputs=1,
    parameters=(Parameter("scale", 1.5, 0.25, 4.0, "factor of the square"),),
    variants=("exact",),
    default="exact",
    doc="A scaled square, scale*x**2.",
)
