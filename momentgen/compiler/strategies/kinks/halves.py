"""Activations made of two halves at a kink at 0: a line right of it, an exponential or a constant left of it.

ELU, SELU and Threshold, with parameters for the halves' factors.
:mod:`momentgen.compiler.strategies.kinks.halves_graph` writes them in closed form.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.ir.stable import Stable, settings_of
from momentgen.compiler.measure.moments import MEAN
from momentgen.compiler.strategies.kinks.halves_graph import FLOAT32, LOCAL, Halves, build_halves
from momentgen.compiler.strategies.kit import NEAR64
from momentgen.compiler.strategies.settled import Settled, SettledMeasure, SettledTruth, closed_form_truth
from momentgen.compiler.strategies.tolerated import four_graphs
from momentgen.rule.symbols import x


def halves_of(derivation: Derivation) -> Halves | None:
    """f's halves, b x for x > 0 and c (e^x - 1) or c for x < 0; None if it is not made of such."""
    rule, pieces = derivation.rule, tuple(derivation.pieces)
    if rule.input != "normal" or len(pieces) != 2 or tuple(derivation.kinks) != (0,):
        return None
    left, right = (sp.expand(piece.expr) for piece in pieces)
    slope = sp.cancel(right / x)
    if slope.has(x):
        return None
    params = tuple(p.name for p in rule.parameters)
    if not left.has(x):
        return Halves(rule.name, slope, left, "constant", params)
    factor = sp.simplify(left / (sp.exp(x) - 1))
    return None if factor.has(x) else Halves(rule.name, slope, factor, "exponential", params)


def applies(derivation: Derivation) -> bool:
    """Whether f is made of such halves."""
    return halves_of(derivation) is not None


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``."""
    rule, halves = derivation.rule, halves_of(derivation)
    if halves is None:
        return
    settled = Settled.of(rule)
    f = settled.at({})
    graphs, fits = four_graphs(lambda outputs, float64: build_halves(halves, NEAR64 if float64 else FLOAT32, outputs))
    closed = halves.kind == "constant"
    below = f"; below v = {LOCAL[True][0]:.4g} power series of {LOCAL[True][1]} terms"
    yield Stable(
        variant="exact",
        truth=closed_form_truth(derivation) if closed else SettledTruth(settled),
        measure=SettledMeasure(settled),
        goal=1.0,
        aim=0.9,
        unit="tolerance",
        slack=MEAN,
        rigorous=None if closed else SettledTruth(settled, by_balls=True),
        box={"mu": (-12.0, 12.0), "log2_var": (-40.0, 30.0)},
        settings=_steepest_second(settings_of(rule), settled, halves),
        fits=tuple(dict.fromkeys(fits)),
        facts={"lipschitz": f.lipschitz, "range": f.span, "length": f.length, "centre": f.centre},
        doc="moments of both halves in closed form, by Mills' ratio" + ("" if closed else below),
        **graphs,
    )


def _steepest_second(
    settings: tuple[dict[str, float], ...], settled: Settled, halves: Halves
) -> tuple[dict[str, float], ...]:
    """The settings, those at which programs are calibrated first: the default, and where the left half weighs most."""

    def weight(setting: dict[str, float]) -> float:
        return -abs(settled.number(halves.left, setting))

    first, *rest = settings
    return (first, *sorted(rest, key=weight))
