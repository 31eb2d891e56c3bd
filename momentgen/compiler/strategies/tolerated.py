"""An f measured by a tolerance: what several strategies ask of a rule, and the variant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact.piecewise_truth import BallTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation, analyse
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, ErrorMeasure, Stable, Truth
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.measure.moments import MEAN, MomentsMeasure
from momentgen.compiler.toolchain.arrays import F32


def unmet(derivation: Derivation, *, kinks: bool, exponentially: bool, draw: bool = False) -> str | None:
    """What is expected of f and not met; None if all is: no parameters, a line on either side.

    Args:
        derivation: the rule, derived.
        kinks: whether f is to have kinks or jumps, or to be smooth.
        exponentially: whether it is to near its lines faster than by a power of x.
        draw: whether the output is to be a draw of 0 or 1 with probability f, or f itself.

    Raises:
        BuildError: if f cannot be looked at.
    """
    rule = derivation.rule
    if rule.bernoulli != draw:
        return f"expected {'a draw of 0 or 1, got f itself' if draw else 'f itself, got a draw of 0 or 1'}"
    if rule.parameters:
        names = ", ".join(p.name for p in rule.parameters)
        return f"expected parameters that only scale f, as `rescaled` can state, got {names}"
    if kinks and not derivation.kinks:
        return "expected kinks"
    if not kinks and derivation.kinks:
        return f"expected a smooth f, got kinks at {', '.join(map(str, derivation.kinks))}"
    f = analyse(rule.name, derivation.pieces)
    for line, side in ((f.left, "-oo"), (f.right, "oo")):
        if line is None:
            return f"expected f to near a line for x -> {side}, which it does not"
    if f.algebraic and exponentially:
        return "expected f to near a line on either side exponentially, not by a power of x"
    return None


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


def four_graphs(
    build: Callable[[tuple[str, ...], bool], tuple[Graph, Iterable[Polynomial]]],
) -> tuple[dict[str, Any], list[Polynomial]]:
    """The graphs of a variant by field of :class:`Stable`, and what was fitted for those of float32.

    Args:
        build: (outputs, whether for float64) -> a graph, and what was fitted for it.
    """
    graphs: dict[str, Any] = {}
    fits: list[Polynomial] = []
    for name, outputs in (("forward", OUTPUTS), ("partials", PARTIALS)):
        graphs[name], made = build(outputs, False)
        fits += made
        graphs[f"{name}64"], _ = build(outputs, True)
    return graphs, fits


def largest_errors(
    build: Callable[[tuple[str, ...]], Graph], truth: Truth, measure: ErrorMeasure, mean: F32, var: F32
) -> dict[str, float]:
    """By output, the largest error in float64 at some points, of the graphs that ``build`` makes of outputs."""
    exact, found = truth(mean, var, {}), dict[str, float]()
    for outputs in (OUTPUTS, PARTIALS):
        for name, values in outputs_float64(build(outputs), {"mean": mean, "var": var}).items():
            found[name] = float(measure(name, values, exact[name], mean, var).max())
    return found


def facts_of(f: Activation) -> dict[str, Any]:
    """What the certificate says of f."""
    return {"lipschitz": f.lipschitz, "range": f.span, "length": f.length, "centre": f.centre}
