"""The variant ``exact`` of an activation whose errors are measured by a tolerance, as several strategies make it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from momentgen.compiler.exact.piecewise_truth import BallTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.stable import Stable, Truth
from momentgen.compiler.measure.moments import MEAN, MomentsMeasure

__all__ = ["exact_variant", "facts_of"]


def exact_variant(
    f: Activation,
    graphs: Mapping[str, Any],
    truth: Truth,
    measure: MomentsMeasure,
    *,
    fits: Iterable[Polynomial],
    facts: Mapping[str, Any],
    **more: Any,
) -> Stable:
    """The variant, of f's graphs by field of :class:`~momentgen.compiler.ir.stable.Stable`; ``more`` has others."""
    usual: dict[str, Any] = {"aim": 0.9, "slack": MEAN, "rigorous": BallTruth(f)}
    return Stable(
        variant="exact",
        truth=truth,
        measure=measure,
        goal=1.0,
        unit="tolerance",
        reach=f.evaluable,
        fits=tuple(dict.fromkeys(fits)),
        facts={**facts_of(f), **facts},
        **(usual | more),
        **graphs,
    )


def facts_of(f: Activation) -> dict[str, Any]:
    """What the certificate says of f."""
    return {"lipschitz": f.lipschitz, "range": f.span, "length": f.length, "centre": f.centre}
