r"""Functions with elementary moments: a x + c, a x² + c, a exp(b x) + c, a sin(b x) + c and a cos(b x) + c.

- polynomial: term by term, as those of two inputs; every term of the variance is positive;
- exp: mean = a e^(b mu + b² v/2) + c, V = a² e^(2 b mu + 2 b² v) (1 - e^(-b² v));
- sin, cos: mean = a e^(-b² v/2) sin(b mu) + c, V = a²/2 (1 - e^(-b² v)) (1 ± e^(-b² v) cos(2 b mu)).

1 - e^-y is y times a fitted polynomial where y is small, so that nothing cancels.  Angles are reduced up to
|b mu| = 1e6, where float32 is still 0.06 apart; beyond, all outputs are NaN.  Exponentials are measured up to there as
well, but for a rate b that is a power of two: further out b mu + b² v/2, where its parts cancel, has lost its last
digits, and outputs are NaN there.  What is beyond the range of float32, or of float64 in the PyTorch form, is the
largest number of the right sign.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.derive.rewrite import exponent_of
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import (
    Graph,
    Real,
    exp_factor,
    exp_mantissa,
    first_word,
    horner,
    madd,
    second_word,
    select,
    sqrt,
)
from momentgen.compiler.ir.kit import exp_ratio, largest, like, number, sine_and_cosine
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
from momentgen.compiler.strategies.joint.joint import polynomial_graph
from momentgen.compiler.strategies.tolerance import closed_form_truth, four_graphs
from momentgen.compiler.toolchain.arrays import F32, F64, Bools
from momentgen.rule.symbols import x

TURNED = 1e6  # angles up to there are reduced, and exponents measured
_EDGE = mpmath.mpf(1) / 2  # of y, up to where 1 - e^-y is y times a polynomial
_ROUNDED = 1 + 2.0**-12  # by so much the kernels go beyond TURNED, so that rounding leaves none of it out
_CANCELS = 2.0**-12  # of |p mu|: an exponent below that is what its parts leave when they cancel
_LOW, _HIGH = -150, 170  # of an exponent: below it counts as 0, and the largest number times 2^-117 is below the upper
_LOW64, _HIGH64 = -1400, 1400


def _parts(expr: sp.Expr) -> tuple[type[sp.Expr], sp.Expr, sp.Expr, sp.Expr] | None:
    """kind, a, b, c with f = a·kind(b x) + c; None for other functions."""
    c, rest = sp.expand(expr).as_independent(x, as_Add=True)
    a, inner = rest.as_independent(x, as_Add=False)
    exponent = exponent_of(inner)
    if exponent is None and not isinstance(inner, (sp.sin, sp.cos)):
        return None
    b = sp.cancel((inner.args[0] if exponent is None else exponent) / x)
    return None if b.has(x) else (type(inner) if exponent is None else sp.exp, a, b, c)


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None."""
    pieces = tuple(derivation.pieces)
    if not derivation.rule.parameters and derivation.mean is not None and len(pieces) == 1:
        f = pieces[0].expr
        powers = {n for (n,), _ in sp.Poly(f, x).terms() if n} if f.is_polynomial(x) else set()
        if powers in ({1}, {2}) or _parts(f) is not None:
            return None
    return "expected x, x², exp(b x), sin(b x) or cos(b x), times and plus constants, without parameters"


# --- what they are measured by -----------------------------------------------------
@dataclass(frozen=True)
class RelativeMeasure(Tolerance):
    """Errors over what is allowed: 1e-6 max(1, |mean|), 1e-5 of the variance, 1e-4 of each partial.

    What float32 does not hold has to be its largest number, of the right sign.
    """

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        if output == "mean":
            return MEAN * np.maximum(1.0, np.abs(exact))
        return (VARIANCE if output == "var" else PARTIAL) * np.abs(exact)

    def words(self) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Edge:
    """How far the numbers that go into sines and exponentials have digits: to rate·|mean| = 1e6.

    Beyond, nothing is left of an angle, and of an exponent p·mean + q·var where it is what large parts leave.

    Attributes:
        rate: above; 0 where there is no edge.
        exponents: (p, q) of the exponents that may cancel; with none of them there are angles.
    """

    rate: float = 0.0
    exponents: tuple[tuple[float, float], ...] = ()

    def inside(self, mean: F64, var: F64) -> Bools:
        return self.rate * np.abs(mean) <= TURNED

    @property
    def words(self) -> str:
        """Where they are NaN; empty if nowhere.

        >>> Edge(30.0).words
        '|mean| > 33333.3'
        """
        if not self.rate:
            return ""
        where = f"|mean| > {TURNED / self.rate:g}"
        return f"{where}, and exponents cancel" if self.exponents else where


# --- graphs -------------------------------------------------------------------------
class Writer:
    """Writes to one graph; its fits are those that were asked for.

    Beyond ``edge`` the variance is NaN, and with it all that is written.
    """

    def __init__(self, graph: Graph, float64: bool, edge: Edge) -> None:
        self.g, self.float64 = graph, float64
        self.fits: list[Polynomial] = []
        self.goal = 1e-17 if float64 else 1e-8
        g = graph
        self.mu, v = g.input("mean"), g.input("var")
        usable = v >= 0
        if edge.words:
            usable = usable & self._within(edge, v)
        what = "NaN for a negative variance"
        self.v = (v * sqrt(select(usable, 1, -1))).named(f"{what}, and for {edge.words}" if edge.words else what)

    def _within(self, edge: Edge, v: Real) -> Real:
        """Whether angles and exponents have digits left: one that is large beside its parts has."""
        size = abs(self.mu)
        within = size <= TURNED * _ROUNDED / edge.rate
        clear = [size * (abs(p) * _CANCELS) <= abs(madd(q, v, p * self.mu)) for p, q in edge.exponents]
        return within | functools.reduce(operator.and_, clear) if clear else within

    def number(self, value: sp.Expr) -> Real:
        return number(self.g, value)

    def exp(self, exponent: Real, weight: Real | None = None) -> Real:
        """The exponential times ``weight``, 0 far to the left, the largest number far to the right."""
        g = self.g
        high = g.const(_HIGH64 if self.float64 else _HIGH)
        value = self.decaying(select(high < exponent, high, exponent), weight)
        return self.finite(value)

    def decaying(self, exponent: Real, weight: Real | None = None) -> Real:
        """The exponential of something that is not large, times ``weight``; 0 far to the left."""
        g = self.g
        low = g.const(_LOW64 if self.float64 else _LOW)
        below = exponent < low
        held = select(below, low, exponent)
        if self.float64:
            root = exp_mantissa(held * 0.5)
            value = select(below, 0, root)
            return (value if weight is None else weight * value) * root
        value = select(below, 0, exp_mantissa(held))
        if weight is not None:
            value = weight * value
        # The weight first: it may bring back what overflows without it.
        return value * exp_factor(held, 0, 2) * exp_factor(held, 1, 2)

    def rest(self, y: Real, e: Real) -> Real:
        """1 - e^-y for y >= 0, given e^-y."""
        fit = exp_ratio(-_EDGE, mpmath.mpf(0), self.goal, centre=-_EDGE / 2)
        self.fits.append(fit)
        little = y < _EDGE
        small = select(little, y, _EDGE)
        value = small * horner(_EDGE / 2 - small, fit.coefficients)
        return select(little, value, 1 - e)

    def finite(self, value: Real) -> Real:
        """Beyond the largest number, that number."""
        if value.constant is not None:
            return value
        top = self.g.const(largest(not self.float64))
        value = select(top < value, top, value)
        return select(value < -top, -top, value)

    # --- exp -----------------------------------------------------------------------
    def exponential(self, a: sp.Expr, b: sp.Expr, c: sp.Expr) -> dict[str, Real]:
        g = self.g
        bmu, square = self.number(b) * self.mu, self.number(b**2)
        y, half = square * self.v, g.const(0.5)
        exponent = madd(y, half, bmu)
        rest = self.rest(y, self.decaying(-y))
        # The fourth root of a² e^(2 b mu + 2 b² v): four steps of one direction, the rest between them, so that what
        # over- or underflows on the way does so in the end.
        high, quarter = g.const(400 if self.float64 else 80), (bmu + y) * half
        root = self.decaying(select(high < quarter, high, quarter), self.number(sp.sqrt(sp.Abs(a))))

        def spread(factor: Real, share: sp.Expr) -> Real:
            return factor * root * root * self.number(share) * root * root

        return {
            "mean": self.exp(exponent, self.number(a)) + self.number(c),
            "var": spread(rest, sp.Integer(1)),
            "dmean_dmu": self.exp(exponent, self.number(a * b)),
            "dmean_dvar": self.exp(exponent, self.number(a * b**2 / 2)),
            "dvar_dmu": spread(rest, 2 * b),
            "dvar_dvar": spread(1 + rest, b**2),
        }

    # --- sin, cos --------------------------------------------------------------------
    def angle(self, rate: sp.Expr) -> tuple[Real, Real]:
        """Sine and cosine of rate·mu by polynomials, after multiples of pi/2.

        Of a rate that is no power of two multiples of 512 pi are taken off first, n and the constant short enough for
        exact products, and the two words that are left are added up: taken off at once, n·pi/2 would leave a second
        word as large as the first.
        """
        turned = self.number(rate) * self.mu
        if not sp.log(sp.Abs(rate), 2).is_integer:
            with mpmath.workdps(50):
                n = -round(turned * (1 / (512 * mpmath.pi)))
                head = mpmath.nint(512 * mpmath.pi * 4) / 4
                left = madd(n, 512 * mpmath.pi - head, madd(n, head, turned))
            turned = left if self.float64 else first_word(left) + second_word(left)
        return sine_and_cosine(self.goal, turned, self.fits)

    def wave(self, kind: type[sp.Expr], a: sp.Expr, b: sp.Expr, c: sp.Expr) -> dict[str, Real]:
        half = self.g.const(0.5)
        sine, cosine = self.angle(b)
        y = self.number(b**2) * self.v
        e, root = self.decaying(-y), self.decaying(y * -0.5)
        rest = self.rest(y, e)
        sign = 1 if kind is sp.sin else -1
        value, slope = (sine, cosine) if kind is sp.sin else (cosine, -sine)
        double = madd(-2 * sine, sine, 1)  # cos 2 b mu
        twice = 2 * sine * cosine
        wave = sign * double
        square = self.number(a**2)
        inner = madd(e, wave, 1)
        mean = self.number(a) * (root * value)
        # dV/dv = a² b²/2 e (1 + (2 e - 1) wave), from V = a²/2 (1 - e)(1 + e wave)
        curve = madd(2 * e - 1, wave, 1)
        return {
            "mean": mean + self.number(c),
            "var": square * half * (rest * inner),
            "dmean_dmu": self.number(a * b) * (root * slope),
            "dmean_dvar": self.number(-a * b**2 / 2) * (root * value),
            "dvar_dmu": self.number(-sign * a**2 * b) * (rest * e * twice),
            "dvar_dvar": self.number(a**2 * b**2 / 2) * (e * curve),
        }


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
