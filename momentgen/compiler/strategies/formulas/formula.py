r"""Variants given by formulas: the literature's approximations, computed as they are written down.

A :class:`~momentgen.rule.Formula` states mean and variance, or leaves the mean to the exact variant.  It is rewritten
(:mod:`momentgen.compiler.derive.rewrite`) and written as graphs, in the same way for float32 and float64.

The claim is that the program equals the formula.  What cancels in a formula itself cannot be mended without leaving
it, so errors are measured in ulp of the sum of the magnitudes of an output's terms; where it has one term, or terms
of one sign, that is its ulp.  Where a formula gives a negative variance, the variance is 0 and so are its partials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.derive.rewrite import Written, write
from momentgen.compiler.exact import ball_function, evaluate
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph, Real, select
from momentgen.compiler.ir.kit import FLOAT64, Precision
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable, settings_of
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.measure.ulp import TermsUlp, in_ulp
from momentgen.compiler.strategies.formulas.expressions import MagnitudeTranslator, Translator
from momentgen.compiler.strategies.formulas.functions import FunctionWriter
from momentgen.compiler.strategies.homogeneous import kink, kink_graph
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.errors import BuildError
from momentgen.rule import Formula, Rule
from momentgen.rule.symbols import Phi, S, phi

_TINY_VARIANCE = 1e-300  # stands for v = 0 in exact values: what differs from the limit is below 1e-140
_DIVERGES = 1e100  # and what is larger there is a term in 1/sigma, which counts as 0 at v = 0


class FormulaTruth:
    """Exact values of a formula, from rigorous balls; at v = 0 its limits, terms in 1/sigma counting as 0.

    Where ``floored`` says so, a variance below 0 counts as 0, and so do its partials.
    """

    def __init__(self, written: Written, parameters: tuple[str, ...], *, floored: bool) -> None:
        self.names, self.floored = tuple(written.outputs), floored
        symbols = ["mu", "v", *parameters]
        self.sides = [
            ball_function([written.plain(name, mirrored=side) for name in self.names], symbols)
            for side in (False, True)
        ]
        self.arguments = [ball_function(z, symbols) for z in written.arguments]

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        v_exact = np.where(var == 0, _TINY_VARIANCE, var.astype(np.float64))
        scalars = {name: np.full(mean.shape, value) for name, value in params.items()}
        values: dict[str, F64] = {"mu": mean.astype(np.float64), "v": v_exact, **scalars}
        upper = np.full(mean.shape, bool(self.arguments))
        for z in self.arguments:
            upper &= evaluate(z, values)[0] > 0
        rows = np.empty((len(self.names), mean.size))
        for side, chosen in zip(self.sides, (~upper, upper), strict=True):
            if chosen.any():
                rows[:, chosen] = evaluate(side, {name: value[chosen] for name, value in values.items()})
        rows[:, (var == 0)] = np.where(np.abs(rows[:, var == 0]) > _DIVERGES, 0.0, rows[:, var == 0])
        exact = dict(zip(self.names, rows, strict=True))
        if self.floored:
            below = exact["var"] < 0
            exact |= {name: np.where(below, 0.0, exact[name]) for name in ("var", "dvar_dmu", "dvar_dvar")}
        return exact


_FLOAT32 = Precision(fit=1e-9, reach=18.7, scaled=True)
_GOAL, _SHARE = 8.0, 0.65
#: tails lie at moderate a = mu/sigma where the variance is large, at moderate mu where it is small
_BOX = {"a": (-18.7, 18.7), "mu": (-100.0, 100.0), "log2_var": (-50.0, 50.0)}
#: a variance at a v that stands for 0, itself of that size where the variance is 0 at v = 0
_VANISHED = 1e-100
_OF_MEAN = ("mean", "dmean_dmu", "dmean_dvar")


@dataclass(frozen=True)
class _Graphs:
    """Writes the graphs of a variant, whose mean may be the exact one of a derivation.

    ``floor`` is what is set to 0 where it is negative: nothing, ``var``, or ``partials`` of it too.
    """

    written: Written
    rule: Rule
    exact: Derivation | None = None
    floor: str = ""

    def build(self, precision: Precision, names: tuple[str, ...]) -> tuple[Graph, tuple[Polynomial, ...]]:
        """The named outputs at a precision, and what was fitted."""
        graph = Graph(("mean", "var"), tuple(p.name for p in self.rule.parameters))
        fits: tuple[Polynomial, ...] = ()
        if self.exact is not None:
            forms, defaults, traits = kink.written_from(self.exact)
            of_mean = tuple(name for name in names if name in _OF_MEAN)
            graph, fits = kink_graph.build_graph(forms, defaults, precision, of_mean, traits)
        translator = Translator(FunctionWriter(graph, precision), self.written.named)
        given = {name: graph.result(name) for name in graph.outputs}
        graph.outputs.clear()
        for name in names:
            if name in given:
                graph.output(name, given[name])
            else:
                graph.output(name, translator.f.like_inputs(self._floored(translator, name)))
        return graph, tuple(dict.fromkeys((*fits, *translator.f.fits)))

    def _floored(self, translator: Translator, name: str) -> Real:
        node = self._output(translator, name)
        if (name == "var" and self.floor) or (name.startswith("dvar") and self.floor == "partials"):
            var = node if name == "var" else self._output(translator, "var")
            node = select(var < 0, 0, node)
        return node

    def _output(self, translator: Translator, name: str) -> Real:
        """An output of the formula, in the form that suits the signs of its arguments."""
        node = translator.node(self.written.outputs[name])
        if name not in self.written.mirrored:
            return node
        signs = []
        for z in self.written.arguments:
            z_node, negated = translator.arguments.argument(z)
            signs.append(z_node < 0 if negated else z_node > 0)
        positive = signs[0]
        for sign in signs[1:]:
            positive = positive & sign
        return select(positive, translator.node(self.written.mirrored[name]), node)

    def magnitudes(self) -> Graph:
        """The sums of the magnitudes of each output's terms, and the variance itself as ``value``, for float64."""
        graph = Graph(("mean", "var"), tuple(p.name for p in self.rule.parameters))
        translator = Translator(FunctionWriter(graph, FLOAT64), self.written.named)
        sizes = MagnitudeTranslator(translator)
        for name in self.written.outputs:
            graph.output(name, self._output(sizes, name))
        graph.output("value", self._output(translator, "var"))
        return graph


def stable_variants(derivation: Derivation) -> list[Stable]:
    """One :class:`Stable` for each :class:`~momentgen.rule.Formula` of the rule.

    Raises:
        BuildError: if a formula has other functions than Phi, phi, S, exp and roots; if a variant without a mean of its
            own belongs to a rule whose exact mean :mod:`momentgen.compiler.strategies.homogeneous.kink` does not cover.
    """
    stables = []
    for name, variant in derivation.rule.variants.items():
        try:
            stables.append(_stable(derivation, name, variant))
        except BuildError as error:
            cause = error.cause if f"variant {name}" in error.cause else f"variant {name}: {error.cause}"
            raise BuildError(derivation.rule.name, "strategies", cause, error.expression) from error
    return stables


def why_not(derivation: Derivation) -> str | None:
    """Why the exact moments are not those of a draw of 0 or 1 whose probability has a closed form; None if they are."""
    fits = derivation.rule.bernoulli and derivation.mean is not None
    return None if fits else "expected a draw of 0 or 1 with a mean in closed form"


def exact_variant(derivation: Derivation) -> Stable:
    """The variant ``exact`` of a draw of 0 or 1: mean m in closed form, variance m(1 - m)."""
    if derivation.mean is None:
        raise BuildError(derivation.rule.name, "strategies", "expected a mean in closed form", derivation.rule.f)
    return _stable(derivation, "exact", Formula(mean=derivation.mean, var=derivation.mean * (1 - derivation.mean)))


def _stable(derivation: Derivation, name: str, variant: Formula) -> Stable:
    rule = derivation.rule
    facts: dict[str, Any] = {}
    exact: Stable | None = None
    mean = variant.mean
    if mean is None:
        if kink.why_not(derivation) or not rule.accuracy.ulp:
            cause = "expected a mean of its own, as the rule has no exact one with one kink and an accuracy in ulp"
            raise BuildError(rule.name, "strategies", cause, rule.f)
        exact, mean = kink.stable_variants(derivation)[0], derivation.mean
    written = write(mean, variant.var, rule.parameters, rule.name)
    settings = settings_of(rule)
    graphs = _Graphs(written, rule, None if exact is None else derivation)
    lowest = _lowest(graphs.magnitudes(), settings)
    if lowest is not None:
        treated = "var and its partials are 0 where the formula's variance is negative"
        facts |= {"negative": {"treated": treated, **lowest}}
        graphs = replace(graphs, floor="partials")
    elif not _has_no_difference(written.plain("var")):
        graphs = replace(graphs, floor="var")
    forward, fits = graphs.build(_FLOAT32, OUTPUTS)
    partials, more = graphs.build(_FLOAT32, PARTIALS)
    floored = graphs.floor == "partials"
    truth = FormulaTruth(written, tuple(p.name for p in rule.parameters), floored=floored)
    means = np.linspace(-8, 8, 33, dtype=np.float32)
    at_zero = [truth(means, np.zeros_like(means), setting)["var"] for setting in settings]
    parts: dict[str, Any] = {
        "variant": name,
        "forward": forward,
        "partials": partials,
        "forward64": graphs.build(FLOAT64, OUTPUTS)[0],
        "partials64": graphs.build(FLOAT64, PARTIALS)[0],
        "truth": truth,
        "vanishes": bool(np.all(np.abs(at_zero) < _VANISHED)),
        "fits": tuple(dict.fromkeys((*fits, *more))),
        "facts": facts,
    }
    source = f" ({variant.citation})" if variant.citation else ""
    meaning = f"; {variant.doc}" if variant.doc else ""
    if exact is not None:
        return replace(
            exact, **parts, measure=in_ulp, doc=f"the exact mean, and the variance as published{source}{meaning}"
        )
    plain = bool(rule.parameters)
    return Stable(
        **parts,
        measure=in_ulp if plain else TermsUlp(graphs.magnitudes(), floored=floored),
        goal=_GOAL,
        aim=_GOAL * _SHARE,
        unit="ulp" if plain else "ulp of the terms",
        box=_BOX,
        settings=settings,
        doc=f"the formula as published{source}{meaning}; errors in ulp"
        + ("" if plain else " of the sum of the magnitudes of an output's terms, or of 2^-118 where that is larger"),
    )


def _lowest(magnitudes: Graph, settings: tuple[Mapping[str, float], ...]) -> dict[str, float] | None:
    """Where a grid finds the formula's variance negative beyond rounding: the lowest relative to its terms, or None."""
    spread = np.concatenate([-np.geomspace(60, 1e-3, 200), [0.0], np.geomspace(1e-3, 60, 200)])
    log_v, shape = np.meshgrid(np.linspace(-40, 40, 161), spread, indexing="ij")
    variances = np.exp2(log_v)
    lowest, found = -1e-12, None
    for setting in settings:
        for means in (shape, shape * np.sqrt(variances)):
            values = outputs_float64(magnitudes, {"mean": means, "var": variances, **setting})
            size, value = values["var"], values["value"]
            relative = np.divide(value, np.abs(size), out=np.zeros(means.shape), where=np.abs(size) > 1e-290)
            i = np.unravel_index(np.argmin(relative), relative.shape)
            if relative[i] < lowest:
                lowest = float(relative[i])
                at = {"at_mean": float(means[i]), "at_var": float(variances[i]), **setting}
                found = {"lowest": float(value[i]), **at}
    return found


def _has_no_difference(expr: sp.Expr) -> bool:
    """Whether no difference occurs outside the arguments of functions: such a variance is not rounded below 0."""
    if isinstance(expr, (Phi, S, phi, sp.exp, sp.Heaviside)) or expr.is_nonnegative:
        return True
    if isinstance(expr, sp.Pow):
        return bool(expr.exp.is_even) or _has_no_difference(expr.base)
    return isinstance(expr, (sp.Mul, sp.Add)) and all(_has_no_difference(arg) for arg in expr.args)
