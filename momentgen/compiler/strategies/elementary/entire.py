r"""Functions with elementary moments: a x + c, a x² + c, a exp(b x) + c, a sin(b x) + c and a cos(b x) + c.

- polynomial: term by term, as those of two inputs; every term of the variance is positive;
- exp: mean = a e^(b mu + b² v/2) + c, V = a² e^(2 b mu + 2 b² v) (1 - e^(-b² v));
- sin, cos: mean = a e^(-b² v/2) sin(b mu) + c, V = a²/2 (1 - e^(-b² v)) (1 ± e^(-b² v) cos(2 b mu)).

Angles are reduced up to |b mu| = 1e6, where float32 is still 0.06 apart; beyond, all outputs are NaN.  Exponentials are
measured up to there as well, but for a rate b that is a power of two: further out b mu + b² v/2, where its parts
cancel, has lost its last digits, and outputs are NaN there.  What is beyond the range of float32, or of float64 in the
PyTorch form, is the largest number of the right sign.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.measure.moments import (
    EXACT_MEAN,
    MEAN,
    PARTIAL,
    VARIANCE,
    Inside,
    MomentsMeasure,
    Tolerance,
    measure_for,
)
from momentgen.compiler.strategies.elementary.entire_graph import TURNED, Edge, Writer
from momentgen.compiler.strategies.formulas.expressions import exponent_of
from momentgen.compiler.strategies.joint.joint import polynomial_graph
from momentgen.compiler.strategies.kit import largest, like
from momentgen.compiler.strategies.settled import closed_form_truth
from momentgen.compiler.strategies.tolerated import four_graphs
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.rule.symbols import x


def _parts(expr: sp.Expr) -> tuple[type[sp.Expr], sp.Expr, sp.Expr, sp.Expr] | None:
    """kind, a, b, c with f = a·kind(b x) + c; None for other functions."""
    c, rest = sp.expand(expr).as_independent(x, as_Add=True)
    a, inner = rest.as_independent(x, as_Add=False)
    exponent = exponent_of(inner)
    if exponent is None and not isinstance(inner, (sp.sin, sp.cos)):
        return None
    b = sp.cancel((inner.args[0] if exponent is None else exponent) / x)
    return None if b.has(x) else (type(inner) if exponent is None else sp.exp, a, b, c)


def _is_power(expr: sp.Expr) -> bool:
    """Whether f is a x + c or a x² + c."""
    return bool(expr.is_polynomial(x)) and {n for (n,), _ in sp.Poly(expr, x).terms() if n} in ({1}, {2})


def applies(derivation: Derivation) -> bool:
    """Whether f is such a function, without parameters."""
    rule = derivation.rule
    pieces = tuple(derivation.pieces)
    if rule.parameters or derivation.mean is None or len(pieces) != 1:
        return False
    return _is_power(pieces[0].expr) or _parts(pieces[0].expr) is not None


# --- what they are measured by -----------------------------------------------------
@dataclass(frozen=True)
class RelativeMeasure(Tolerance):
    """Errors over what is allowed: 1e-6 max(1, |mean|), 1e-5 of the variance, 1e-4 of each partial.

    What float32 does not hold has to be its largest number, of the right sign.
    """

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """What is allowed."""
        if output == "mean":
            return MEAN * np.maximum(1.0, np.abs(exact))
        return (VARIANCE if output == "var" else PARTIAL) * np.abs(exact)

    def words(self) -> dict[str, Any]:
        """Describe the tolerance."""
        return {
            "mean": f"{MEAN:g}*max(1, |m|)",
            "var": f"{VARIANCE:g}*V",
            "partials": f"{PARTIAL:g} of its exact value",
            "where": {"m": EXACT_MEAN, "V": "the exact variance"},
            "values": {},
        }


def _of_wave(derivation: Derivation, f: sp.Expr, rate: float, truth: ClosedFormTruth) -> MomentsMeasure:
    """The tolerance of all activations: L and the range found on a grid, which understates them by 1e-5 at most."""
    at = np.arange(-60 / rate, 60 / rate, 0.005 / rate)
    values, slopes = (sp.lambdify(x, e, "numpy")(at) for e in (f, sp.diff(f, x)))
    activation = Activation(
        derivation.rule.name,
        derivation.pieces,
        left=None,
        right=None,
        length=1 / rate,
        centre=0.0,
        reach=math.inf,
        lipschitz=float(np.abs(slopes).max()),
        span=float(np.ptp(values)),
        bend=0.0,
        jumps=(),
    )

    def reference(mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        exact = truth(mean, var, params)  # infinite where angles are not reduced
        return {name: np.where(np.isfinite(values), values, 0.0) for name, values in exact.items()}

    return measure_for(activation, reference)


# --- strategy ----------------------------------------------------------------------
def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``."""
    f = next(iter(derivation.pieces)).expr
    parts = _parts(f)
    bounded = parts is not None and parts[0] is not sp.exp
    rate = float(parts[2]) if parts is not None else 1.0
    edge, far = Edge(), math.inf
    if parts is not None and (bounded or not sp.log(sp.Abs(parts[2]), 2).is_integer):
        far = TURNED / abs(rate)
        edge = Edge(abs(rate), () if bounded else ((rate, rate**2 / 2), (rate, rate**2)))

    def build(outputs: tuple[str, ...], float64: bool) -> tuple[Graph, Iterable[Polynomial]]:
        if parts is None:
            return polynomial_graph(derivation, outputs, largest(not float64)), ()
        writer = Writer(Graph(("mean", "var")), float64, edge)
        values = writer.wave(*parts) if bounded else writer.exponential(*parts[1:])
        for output in outputs:
            value = writer.finite(values[output])
            writer.g.output(output, like(value, writer.mu, writer.v) if output in OUTPUTS else value)
        return writer.g, writer.fits

    graphs, fits = four_graphs(build)
    truth = closed_form_truth(derivation, edge.inside)
    yield Stable(
        variant="exact",
        truth=truth,
        measure=Inside(_of_wave(derivation, f, abs(rate), truth) if bounded else RelativeMeasure(), edge),
        goal=1.0,
        aim=0.8,
        unit="tolerance",
        slack=MEAN,
        reach=far if bounded else math.inf,
        box={"mu": (-30.0, 30.0), "log2_var": (-40.0, 6.0)},
        fits=tuple(dict.fromkeys(fits)),
        domain={"mean": f"0 or 2^-126 <= |mean| <= {far:g}"} if math.isfinite(far) else {},
        edge=edge,
        doc="moments in closed form, 1 - exp(-y) by a fitted polynomial where y is small",
        **graphs,
    )
