"""Outputs that are random beyond their input: the mean of their conditional variance, added to the variance of f.

    Var Y = Var f(X) + E h(X),    f(x) = E(Y | x),    h(x) = Var(Y | x) >= 0

Both terms are positive, so that nothing cancels: the graphs of f by whatever way serves it, and of E h by polynomials
of two variables (:func:`momentgen.compiler.strategies.smooth.polynomials.mean_alone`), are written into one.  In the
variance the tolerance of f's is allowed, and beside it that of a mean, 1e-6 of h's unit or of the variance itself.
"""

from __future__ import annotations

from dataclasses import replace

from momentgen.compiler.derive import Derivation
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.measure.moments import ADDED, ConditionalMeasure, ConditionalTruth
from momentgen.compiler.strategies.rescaled import rescaled_variant
from momentgen.compiler.strategies.smooth.polynomials import mean_alone
from momentgen.errors import BuildError


def expected_conditional(derivation: Derivation) -> Stable:
    """The mean of a conditional variance, derived as a rule of its own.

    Raises:
        BuildError: if none is within the tolerance.
    """
    try:
        if derivation.base is None:
            return mean_alone(derivation)
        return rescaled_variant(derivation, mean_alone(derivation.base))
    except BuildError as error:
        cause = f"conditional_var: {error.cause}"
        raise BuildError(derivation.rule.name, error.stage, cause, error.expression) from error


def with_conditional_variance(derivation: Derivation, own: Stable, expected: Stable) -> Stable:
    """The variant ``exact`` of a rule, from that of its f and the mean of its conditional variance.

    Raises:
        BuildError: if f is measured in something other than tolerances.
    """
    rule = derivation.rule
    if own.unit != "tolerance" or not hasattr(own.measure, "allowed") or own.scalars_source:
        cause = "beside a conditional variance, expected an f that is measured by moments, without derived scalars"
        raise BuildError(rule.name, "strategies", cause, rule.f)
    ranges = {
        name: (min(own.box[name][0], expected.box[name][0]), max(own.box[name][1], expected.box[name][1]))
        for name in own.box
    }
    return replace(
        own,
        forward=_summed(own.forward, expected.forward, OUTPUTS),
        partials=_summed(own.partials, expected.partials, PARTIALS),
        forward64=_summed(own.forward64, expected.forward64, OUTPUTS),
        partials64=_summed(own.partials64, expected.partials64, PARTIALS),
        truth=ConditionalTruth(own.truth, expected.truth),
        rigorous=own.rigorous and expected.rigorous and ConditionalTruth(own.rigorous, expected.rigorous),
        measure=ConditionalMeasure(own.measure, expected.measure, 1.0).at(rule.defaults),
        vanishes=False,
        conditional_slack=expected.slack,
        box=ranges,
        reach=min(own.reach, expected.reach),
        fits=tuple(dict.fromkeys((*own.fits, *expected.fits))),
        places=lambda setting: (*own.places(setting), *expected.places(setting)),
        facts={**own.facts, "conditional_variance": {"of": str(rule.conditional_var), **expected.facts}},
        doc=f"{own.doc}; and the mean of {rule.conditional_var}, the variance given x: {expected.doc}",
    )


def _summed(own: Graph, expected: Graph, outputs: tuple[str, ...]) -> Graph:
    """One graph of both, the outputs of the second added."""
    g = Graph(own.inputs, own.params)
    first, second = (g.taken(graph) for graph in (own, expected))
    if own.suspects and expected.suspects:
        g.suspect(*(nodes[i] for graph, nodes in ((own, first), (expected, second)) for i in graph.suspects & {*nodes}))
    for name in outputs:
        value = first[own.outputs[name]]
        if name in ADDED:
            value = value + second[expected.outputs[ADDED[name]]]
            if g.suspects:
                g.suspect(value)
        g.output(name, value)
    return g
