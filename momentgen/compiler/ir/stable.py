"""What strategies hand to lower, emit and certify: one variant of one rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.toolchain.arrays import F32, F64, Bools
from momentgen.compiler.toolchain.float32 import split_float32
from momentgen.errors import BuildError
from momentgen.rule import Rule
from momentgen.rule.inputs import partial_names

OUTPUTS = ("mean", "var")
PARTIALS = ("dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")
SIX = (*OUTPUTS, *PARTIALS)

#: (a float32 array an input, then the parameters) -> output name -> exact value in float64 (0 or inf beyond its range)
Truth = Callable[..., Mapping[str, F64]]
#: (output name, computed, exact, a float32 array an input) -> error of each element, in the goal's unit
ErrorMeasure = Callable[..., F64]
#: the same where all but what was computed is settled
Errors = Callable[[F32], F64]


class Edge(Protocol):
    """Where a variant gives up: what goes into it has lost its digits, and outputs and partials are NaN."""

    @property
    def words(self) -> str:
        """The inputs for which they are NaN; empty if there are none."""

    def inside(self, mean: F64, var: F64) -> Bools:
        """Whether they are certainly numbers."""


@dataclass(frozen=True)
class Stable:
    """One variant, written so that nothing cancels, with the means to measure it.

    Attributes:
        variant: its name.
        forward, partials: graphs for float32, with the rule's outputs (``OUTPUTS`` where these are mean and variance),
            and their partials (``PARTIALS``).
        forward64, partials64: the same for the PyTorch form, accurate to float64.
        truth: exact values of the six outputs.
        rigorous: exact values by other means, slower and to more digits, for the points that decide; None where
            ``truth`` is that already.
        measure: the error that ``goal`` limits.
        goal: the largest error allowed, over the whole domain, after certification.
        room: share of the goal that an error found by sampling and search may take; both understate.
        aim: the largest error allowed at the calibration points; sampled maxima are not bounds, so it is lower.
        unit: what ``measure`` returns, e.g. ``ulp``.
        box: ranges from which calibration points are drawn: a = mu/sigma uniform, log2 of the variance uniform.
        settings: parameter settings to calibrate and certify at.
        fits: polynomials and other approximations, with what they approximate and their error.
        scalars: derived scalars that the kernels take after the parameters' own, as hi and lo words, at a setting.
        scalars_source: body of the Python function that computes them in generated code; empty if there are none.
        vanishes: whether the variance is 0 at v = 0 (not true of every approximation in the literature).
        focus: values of a = mu/sigma, at a setting, near which errors are to be measured closely.
        places: means, at a setting, near which errors are to be measured closely: kinks that parameters move.
        slack: how far the mean at v = 0 may be from f(mu), over max(1, |f(mu)|), beyond the rounding of f.
        conditional_slack: how far the variance at v = 0 may be from the variance given x, over the square of the unit,
            where the output is random beyond its input.
        unit_at: what the slack is to be multiplied by at a setting, and by the square of which ``conditional_slack``.
        domain: name of an input -> the domain that bounds hold on, in words, where it is not that of all rules.
        edge: beyond which outputs and partials are NaN; None where they are numbers for every finite input.
        reach: the largest |mu| up to which it is near f(mu) at v = 0.
        facts: further results for the certificate (a fitted t, terms of polynomials).
        by_sums: what :mod:`momentgen.compiler.certify.by_sums` measures it by, where float32 is float64 rounded once;
            None where float32 has programs of its own.
        doc: how the variant was obtained, in a line or two.
        way: the strategy that it is by; empty for approximations, which are taken as they are.
    """

    variant: str
    forward: Graph
    partials: Graph
    forward64: Graph
    partials64: Graph
    truth: Truth
    measure: ErrorMeasure
    goal: float
    aim: float
    unit: str
    box: Mapping[str, tuple[float, float]]
    room: float = 0.97
    vanishes: bool = True
    settings: tuple[Mapping[str, float], ...] = ({},)
    fits: tuple[Polynomial, ...] = ()
    scalars: Callable[[Mapping[str, float]], tuple[float, ...]] = lambda setting: ()
    scalars_source: str = ""
    focus: Callable[[Mapping[str, float]], tuple[float, ...]] = lambda setting: ()
    places: Callable[[Mapping[str, float]], tuple[float, ...]] = lambda setting: ()
    slack: float = 0.0
    conditional_slack: float = 0.0
    unit_at: Callable[[Mapping[str, float]], float] = lambda setting: 1.0
    domain: Mapping[str, str] = field(default_factory=dict)
    edge: Edge | None = None
    reach: float = math.inf
    rigorous: Truth | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    by_sums: Any = None
    doc: str = ""
    way: str = ""

    @property
    def accepted(self) -> float:
        """The largest error found with which a program is accepted."""
        return self.room * self.goal

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs, then the partials of each of them, in the order of the inputs."""
        outputs = tuple(self.forward.outputs)
        of_input = partial_names(self.forward.inputs, outputs).values()
        return (*outputs, *(name for of_output in zip(*of_input, strict=True) for name in of_output))

    def at(self, setting: Mapping[str, float]) -> Stable:
        """The same, its measure of error and its slack those of a setting of the parameters."""
        unit = self.unit_at(setting)
        return replace(
            self,
            measure=at_setting(self.measure, setting),
            slack=self.slack * unit,
            conditional_slack=self.conditional_slack * unit**2,
            unit_at=lambda setting: 1.0,
        )


def at_setting(measure: Any, setting: Mapping[str, float]) -> Any:
    """A measure of error, or that of a setting of the parameters where it depends on them."""
    at = getattr(measure, "at", None)
    return measure if at is None else at(setting)


def errors_over(measure: ErrorMeasure, output: str, exact: F64, *points: F32) -> Errors:
    """A measure of one output at some points; what does not depend on results there is found once, if it can be."""
    over: Callable[..., Errors] | None = getattr(measure, "over", None)
    if over is not None:
        return over(output, exact, *points)
    return lambda computed: measure(output, computed, exact, *points)


def limits_of(stable: Stable) -> dict[str, str]:
    """What a variant gives where it has no number for an answer, in words, for the certificate's domain.

    ``nan``: the inputs for which outputs and partials are NaN, in the names of the op's inputs; "nowhere" if there are
    none.  ``overflow``: what stands for a result beyond the range of the kernel's dtype.  ``tiny``: what partials are
    at variances too small for 1/v.
    """
    edge = "" if stable.edge is None else stable.edge.words
    return {
        "nan": edge or "nowhere",
        "overflow": "the largest number of the right sign",
        "tiny": "at 0 < var < 2^-127 partials may count terms in 1/var as at 2^-127",
    }


def settings_of(rule: Rule) -> tuple[dict[str, float], ...]:
    """The parameter settings to measure at: the default, and both ends and points inside of each parameter's range.

    Points inside are sums of two floats, as kernels take them, and no round numbers: with these, less is rounded.

    Raises:
        BuildError: if a range is not finite.
    """
    settings = [rule.defaults]
    for p in rule.parameters:
        if not (math.isfinite(p.low) and math.isfinite(p.high)):
            raise BuildError(
                rule.name, "strategies", f"parameter {p.name} needs a finite range, got [{p.low}, {p.high}]"
            )
        for share in (0.3, 0.0, 1.0, 0.981, 0.618, 0.0377):
            setting = {**rule.defaults, p.name: sum(split_float32(p.low + share * (p.high - p.low)))}
            if setting not in settings:
                settings.append(setting)
    return tuple(settings)
