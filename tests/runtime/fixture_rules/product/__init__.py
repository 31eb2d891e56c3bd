"""The product of two independent inputs."""

from __future__ import annotations

from momentgen.runtime import Op

__all__ = ["product"]

product = Op(
    name="product",
    package=__name__,
    inputs=2,
    parameters=(),
    variants=("exact",),
    default="exact",
    doc="The product of two independent inputs.",
)
