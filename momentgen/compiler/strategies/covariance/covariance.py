"""Rules whose output is the covariance of f(X1) and f(X2): which f have one, their truth and their measure of error.

===============  ==================================================================
[x >= 0]         ``covariance_graph.Step``
Phi(x)           the same, of inputs to which a standard normal variable is added
max(x, 0)        ``covariance_graph.Relu``
x Phi(x)         ``covariance_gelu.Gelu``
===============  ==================================================================

The integrals over the correlation are taken by Gauss and Legendre in the coordinate of ``correlation``: the number of
nodes is what keeps their own error below a third of what is allowed, however near to 1 the correlation is; in float64
it is below 1e-8 of what errors are relative to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import sympy as sp

from momentgen.compiler.derive import CovarianceDerivation
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.measure.ulp import CovarianceMeasure
from momentgen.compiler.strategies.covariance.correlation import Nodes
from momentgen.compiler.strategies.covariance.covariance_gelu import Gelu
from momentgen.compiler.strategies.covariance.covariance_graph import OUTPUTS, PARTIALS, Relu, Step, Writer, graph_of
from momentgen.compiler.strategies.covariance.covariance_truth import CovarianceTruth
from momentgen.compiler.strategies.kit import FLOAT64, Precision
from momentgen.errors import BuildError
from momentgen.rule.symbols import Phi, x

_FLOAT32 = Precision(fit=1e-8, reach=18.8125, scaled=True)


@dataclass(frozen=True)
class _Known:
    """A function with such a rule: its graphs, its truth, and the nodes for float32 and float64, either direction.

    ``added``: whether a normal variable is added to either input.
    ``by_terms``: whether the covariance is measured by the sum of its terms, as partials are, since the variances may
    be smaller than what rounding E f' leaves: f of GELU has a least value.
    """

    writer: type[Writer]
    kind: str
    nodes: tuple[Nodes, Nodes, Nodes, Nodes]
    added: bool = False
    by_terms: bool = False


_STEP = (Nodes(28, 5, 18), Nodes(4, 5, 18), Nodes(40, 4.5, 26), Nodes(4, 6, 40))
_KNOWN: Mapping[sp.Expr, _Known] = {
    sp.Heaviside(x, 1): _Known(Step, "step", _STEP),
    Phi(x): _Known(Step, "normal_cdf", _STEP, added=True),
    sp.Max(x, 0): _Known(Relu, "relu", (Nodes(18, 2, 18), Nodes(24, 4, 18), Nodes(30, 2.5, 30), Nodes(40, 3.5, 28))),
    x * Phi(x): _Known(
        Gelu,
        "gelu",
        (Nodes(22, 2, 20), Nodes(22, 3, 18), Nodes(40, 2.5, 36), Nodes(44, 3, 32)),
        added=True,
        by_terms=True,
    ),
}


def stabilise_covariance(derivation: CovarianceDerivation) -> tuple[Stable, ...]:
    """The variant ``exact`` of a rule whose output is a covariance.

    Raises:
        BuildError: if f is none of those that have such a rule, or the rule asks for another accuracy than this gives.
    """
    rule = derivation.rule
    known = _KNOWN.get(rule.f)
    if known is None:
        expected = ", ".join(map(str, _KNOWN))
        raise BuildError(rule.name, "strategies", f"expected f to be one of {expected} for a covariance", rule.f)
    if not rule.accuracy.moments or rule.accuracy.ulp:
        cause = "expected the accuracy Accuracy(moments=True) for a covariance"
        raise BuildError(rule.name, "strategies", cause, rule.accuracy)
    graph, nodes = partial(graph_of, known.writer, added=known.added), known.nodes
    (forward, fits), (partials, more) = graph(_FLOAT32, nodes[0], OUTPUTS), graph(_FLOAT32, nodes[1], PARTIALS)
    forward64, partials64 = graph(FLOAT64, nodes[2], OUTPUTS), graph(FLOAT64, nodes[3], PARTIALS)
    sized = (*OUTPUTS, *PARTIALS) if known.by_terms else PARTIALS
    sizes, _ = graph(FLOAT64, nodes[3], sized, sizes=True)
    return (
        Stable(
            variant="exact",
            forward=forward,
            partials=partials,
            forward64=forward64[0],
            partials64=partials64[0],
            truth=CovarianceTruth(known.kind),
            measure=CovarianceMeasure(None if known.by_terms else forward64[0], sizes),
            goal=1.0,
            aim=0.8,
            unit="tolerance",
            box={"log2_var": (-50.0, 50.0)},
            fits=tuple(dict.fromkeys((*fits, *more))),
            doc=f"the integral of the bivariate density over the correlation, by {nodes[0].count} nodes of Gauss and "
            "Legendre",
        ),
    )
