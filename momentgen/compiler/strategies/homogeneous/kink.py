"""Homogeneous one-kink rules (relu, leaky_relu, abs, heaviside, relu_squared): which they are, and their variants.

Puts together the forms of :mod:`momentgen.compiler.derive.forms`, the graphs that
:mod:`momentgen.compiler.strategies.homogeneous.kink_graph` writes of them, and the truth they are measured against.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import mpmath
import sympy as sp
from sympy.printing.pycode import MpmathPrinter

from momentgen import sign_change
from momentgen.compiler.derive import Derivation
from momentgen.compiler.derive.forms import OutputForm, Side, T, output_forms
from momentgen.compiler.ir.graph import Graph, equal, select
from momentgen.compiler.ir.kit import FLOAT64, Precision, within
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable, settings_of
from momentgen.compiler.measure.ulp import in_ulp
from momentgen.compiler.strategies.homogeneous.kink_graph import Traits, build_graph
from momentgen.compiler.strategies.tolerance import closed_form_truth
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.errors import BuildError
from momentgen.rule.symbols import x

#: per variant: relative error of the fits, and whether to be lean where that costs a rounding
_VARIANTS = {"exact": (2.2e-8, True), "tight": (1e-9, False)}
#: an error found may take this share of the goal: longer searches find up to a twentieth more
_ROOM = 0.93
#: the aim as a share of the goal: a sampled maximum of 1.7 was 1.94 over all inputs
_AIM = 0.8
#: (reach, factors): exp(-reach²/2) is 2^-252 and 2^-268; the second where an output is of the order 1/v
_REACH, _REACH_INVERSE_VARIANCE = (18.6875, 2), (19.25, 4)
_BEYOND = 134  # binary places below 1 that outputs of a higher degree are followed to


def sign_function(side: Side, parameters: tuple[str, ...]) -> str:
    """A side of a mean as a Python expression in ``t``, mpmath and the parameters, for generated code."""
    names = {s.name: s.name for e in (side.plain, *side.first.values()) for s in e.free_symbols}
    if side.factor != 0 or set(names) - {*parameters, T.name}:
        raise BuildError("", "strategies", "a mean is linear in Phi and phi", side)
    code = MpmathPrinter({"fully_qualified_modules": False}).doprint
    terms = [f"({code(side.plain)})"]
    terms += [f"npdf(t) * ({code(b)}) * truncated_moment({n}, t)" for n, b in side.first.items()]
    return " + ".join(terms).replace(T.name, "t")


class SignScalars:
    """The derived scalars of :mod:`momentgen.sign_change`, computed as generated code does."""

    def __init__(self, sources: tuple[str, ...], parameters: tuple[str, ...]) -> None:
        self.sources, self.parameters = sources, parameters
        self._cache: dict[tuple[float, ...], tuple[float, ...]] = {}

    def __call__(self, setting: Mapping[str, float]) -> tuple[float, ...]:
        key = tuple(setting[p] for p in self.parameters)
        if key not in self._cache:
            scope = {"npdf": mpmath.npdf, "truncated_moment": sign_change.truncated_moment, "mpf": mpmath.mpf}
            scope |= {name: mpmath.mpf(value) for name, value in setting.items()}
            functions = [eval(f"lambda t: {source}", scope) for source in self.sources]
            self._cache[key] = sign_change.expand(*functions)
        return self._cache[key]

    def focus(self, setting: Mapping[str, float]) -> tuple[float, ...]:
        """a = -t0, where there is a sign change."""
        width, _, at_hi, at_lo, *_ = self(setting)
        return (-(at_hi + at_lo),) if width > 0 else ()


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None; it is for f of a whole degree on either side of a kink at 0."""
    fits = (
        derivation.mean is not None
        and derivation.degree is not None
        and sp.sympify(derivation.degree).is_Integer
        and derivation.is_piecewise_polynomial
        and tuple(derivation.kinks) == (0,)
    )
    return None if fits else "expected polynomials of one degree on either side of a kink at 0"


def written_from(derivation: Derivation) -> tuple[dict[str, OutputForm], dict[str, Any], Traits]:
    """The outputs' forms, the parameters' defaults as exact numbers, and what f does at its settings."""
    forms = output_forms(derivation.mean, derivation.second, int(sp.sympify(derivation.degree)))
    defaults = {p.name: mpmath.mpf(p.default) for p in derivation.rule.parameters}
    settings = [{name: mpmath.mpf(value) for name, value in at.items()} for at in settings_of(derivation.rule)]
    return forms, defaults, Traits.of(forms, settings)


def stable_variants(derivation: Derivation) -> list[Stable]:
    """The variants of a homogeneous one-kink rule that its accuracy asks for, in ulp."""
    rule = derivation.rule
    forms, defaults, traits = written_from(derivation)
    truth = closed_form_truth(derivation)
    scalars: SignScalars | None = None
    if traits.left or traits.right:
        names = tuple(defaults)
        sides = [forms["mean"].minus, *([forms["mean"].plus] if traits.right else [])]
        scalars = SignScalars(tuple(sign_function(side, names) for side in sides), names)
    variants = []
    degree = forms["mean"].power
    reach = (_reach_of_powers(degree) if degree > 1 else _REACH)[0]
    outer = derivation.pieces.pieces[0].expr, derivation.pieces.pieces[-1].expr
    slopes = [float(sp.diff(e, x)) for e in outer] if degree == 1 and not rule.parameters else []
    for name, goal in rule.accuracy.ulp.items():
        if name != "exact" and degree > 1:  # 2 ulp of v² take 785 operations where 8 take 202
            continue
        graphs = [
            build_graph(forms, defaults, _float32(forms, o, *_VARIANTS[name]), o, traits) for o in (OUTPUTS, PARTIALS)
        ]
        fits = [polynomial for _, made in graphs for polynomial in made]
        forward64, _ = build_graph(forms, defaults, FLOAT64, OUTPUTS)
        if any(abs(slope) > 1 for slope in slopes):
            _hold(graphs[0][0], slopes, LARGEST)
            _hold(forward64, slopes, sys.float_info.max)
        variants.append(
            Stable(
                variant=name,
                forward=graphs[0][0],
                partials=graphs[1][0],
                forward64=forward64,
                partials64=build_graph(forms, defaults, FLOAT64, PARTIALS)[0],
                truth=truth,
                measure=in_ulp,
                goal=goal,
                aim=goal * _AIM,
                room=_ROOM,
                unit="ulp",
                box={"a": (-reach, reach), "log2_var": (-50.0, 50.0)},
                settings=settings_of(rule),
                fits=tuple(dict.fromkeys(fits)),
                **_near_sign_change(scalars),
                doc="moments in closed form; tails by fitted repeated integrals of the normal distribution",
            )
        )
    return variants


def _hold(graph: Graph, slopes: Sequence[float], largest: float) -> None:
    """The outputs of a f steeper than x, at most ``largest`` in size: of the sign of f where mu itself is too large."""
    mean = graph.input("mean")
    left, right = (
        graph.const(sign * math.copysign(largest, slope)) for sign, slope in zip((-1, 1), slopes, strict=True)
    )
    beyond = {"mean": select(mean < 0, left, right), "var": graph.const(largest)}
    for name, value in beyond.items():
        found = graph.result(name)
        far = largest / 2**16 < (abs(mean) if name == "mean" else graph.input("var"))
        lost = select(equal(found, found), 0, select(far, 1, 0))
        found = select(lost > 0, value, found)
        graph.output(name, within(found, largest))


def _float32(forms: Mapping[str, OutputForm], outputs: tuple[str, ...], fit: float, lean: bool) -> Precision:
    powers = [forms[o].power for o in outputs]
    reach, factors = _REACH_INVERSE_VARIANCE if min(powers) <= -2 else _REACH
    if forms["mean"].power > 1:
        reach, factors = _reach_of_powers(forms["mean"].power)
    return Precision(fit=fit, reach=reach, scaled=True, factors=factors, lean=lean)


def _reach_of_powers(degree: int) -> tuple[float, int]:
    """Reach and factors where the variance is of the order sigma^(2 degree), up to 2^(128 degree).

    >>> _reach_of_powers(2)
    (23.25, 4)
    """
    places = 128 * degree + _BEYOND
    factors = 1 << (2 * degree - 1).bit_length()  # a power of two, so that shifting divides the exponent
    return math.floor(16 * math.sqrt(2 * math.log(2) * places)) / 16, factors


def _near_sign_change(scalars: SignScalars | None) -> dict[str, Any]:
    if scalars is None:
        return {}
    lines = ["from mpmath import mpf, npdf", "", "from momentgen.sign_change import expand, truncated_moment", ""]
    lines += [f"{p} = mpf({p})  # exact from here on" for p in scalars.parameters]
    lines.append(f"return expand({', '.join(f'lambda t: {source}' for source in scalars.sources)})")
    return {"scalars": scalars, "focus": scalars.focus, "scalars_source": "\n".join(lines)}
