r"""Activations made of two halves at a kink at 0: a line right of it, an exponential or a constant left of it.

ELU, SELU and Threshold, with parameters for the halves' factors: f = b·X⁺ + c·L(X).
X⁺ and L are nowhere nonzero together, so that with m = E X⁺, n = E L, R = Var X⁺, V = Var L

    mean = b m + c n,    var = b² R + c² V - 2 b c m n,

and for L = min(0, e^x - 1), whose mean is negative, all three terms are positive.  With I_n = φ(t) J_n(t),
t = |mu|/sigma, p = P(X < 0), q = 1 - p:

- X⁺: m = max(mu, 0) + sigma I_1, and R from 2 v I_2 - (sigma I_1)², on the right by Var X less the left half's;
- exponential: T_k = E[e^(kX); X < 0] = φ(a) M(a + k sigma), M Mills' ratio, or e^(k mu + k² v/2) less its mirror;
  n = T_1 - p, V = T_2 - T_1² - 2 T_1 q + p q.  For small v these cancel: below v* they are sums of sigma^n I_n;
- constant: n = p, V = p q.

The partials of the exponential's V come back to V itself, V_mu = 2 (V + n q), so that in

    dvar_dmu = 2 [c² V - b c m n + (b - c)(b m p - c n q)]

nothing cancels where f has no kink, b = c, and the partial is of the order v.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import mpmath
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph, Real, horner, madd, select
from momentgen.compiler.ir.kit import (
    DENSITY,
    NEAR32,
    NEAR64,
    Precision,
    checked,
    close_mills_ratio,
    deviation,
    exp_ratio,
    held_exp,
    integrals,
    like,
    parameter_node,
    short_exp,
    within,
)
from momentgen.compiler.ir.stable import OUTPUTS, Stable, settings_of
from momentgen.compiler.strategies.tolerance import (
    Parametric,
    ParametricMeasure,
    ParametricTruth,
    closed_form_truth,
    exact_variant,
    four_graphs,
)
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.rule.symbols import x

Left = Literal["exponential", "constant"]
_FAR = 2.0**20  # M's fit in u = 1/(1 + w/4) holds up to here, and u·P(u) beyond: P hardly moves any more
_LOWEST = -80.0  # of exponents; what is below counts as 0
_EDGE = mpmath.mpf(1) / 2  # of -y, up to where e^y - 1 is y times a polynomial


@dataclass(frozen=True)
class Halves:
    """f by its halves.

    Attributes:
        name: of the rule, for messages.
        right, left: b and c, numbers or expressions in the parameters.
        kind: what L is.
        params: names of the parameters.
    """

    name: str
    right: sp.Expr
    left: sp.Expr
    kind: Left
    params: tuple[str, ...]


FLOAT32 = replace(NEAR32, fit=3e-8)
#: by whether it is for float32: v*, and the terms of the sums of sigma^n I_n below it
LOCAL = {True: (2.0**-4, 10), False: (2.0**-10, 12)}


class _Writer:
    """Writes what the outputs share, and the outputs."""

    def __init__(self, graph: Graph, halves: Halves, precision: Precision) -> None:
        self.g, self.precision, self.kind = graph, precision, halves.kind
        self.switch, self.terms = LOCAL[precision.scaled]
        self.fits: list[Polynomial] = []
        g = graph
        self.b, self.c = (parameter_node(g, e, halves.name) for e in (halves.right, halves.left))
        self.mu, self.v = g.input("mean"), checked(g.input("var"))
        degenerate, self.sigma, self.inverse = deviation(self.v)
        # The constant holds at the kink itself.
        self.below = self.mu <= 0 if self.kind == "constant" else self.mu < 0
        reach = g.const(precision.reach)
        raw = abs(self.mu) * self.inverse
        beyond = (reach < raw) | degenerate
        self.t = select(beyond, reach, raw).named("|mean|/sigma")
        # Not t², which would double the rounding of the root in the exponent.
        smallest = g.const(mpmath.mpf(2) ** (-127 if precision.scaled else -1022))
        size, tiny, square = abs(self.mu), self.v < smallest, raw
        v = select(tiny, smallest, self.v)
        if not precision.scaled:  # what is not used is finite, too: autograd multiplies its slope by 0
            unused = tiny | beyond
            size, v, square = select(unused, 0, size), select(unused, 1, self.v), self.t
        direct = size * (1 / v) * size
        direct = select(tiny, square * square, direct)  # where 1/v overflows
        self.h = select(beyond, mpmath.mpf(precision.reach) ** 2, direct)
        e = short_exp(precision.scaled, self.h * -0.5)
        # Beyond the reach, and at v = 0, exactly nothing: a jump squared may be large beside the smallest variances.
        self.e = select(beyond, 0, e)
        self.density = (self.e * DENSITY).named("phi(t)")
        self.near = self.v < self.switch

    def mills(self, n: int, at: Real, reach: float) -> Real:
        """J_n/sqrt(2 pi)."""
        value, fitted = close_mills_ratio(self.precision, n, at, reach)
        self.fits.append(fitted)
        return value

    @cached_property
    def j(self) -> list[Real]:
        """J_n(t)/sqrt(2 pi), n = 0, 1, ..."""
        second = self.mills(2, self.t, self.precision.reach)
        top = self.terms if self.kind == "exponential" else 2
        return integrals(self.t, self.h, second, top)

    # --- X⁺ ------------------------------------------------------------------------
    @cached_property
    def tail(self) -> Real:
        """Phi(-t)."""
        return (self.e * self.j[0]).named("Phi(-t)")

    @cached_property
    def p(self) -> Real:
        """P(X < 0)."""
        return select(self.below, 1 - self.tail, self.tail)

    @cached_property
    def q(self) -> Real:
        """P(X > 0)."""
        return select(self.below, self.tail, 1 - self.tail)

    @cached_property
    def first(self) -> Real:
        """I_1."""
        return self.e * self.j[1]

    @cached_property
    def m(self) -> Real:
        """E X⁺."""
        held = select(self.below, 0, self.mu)
        return madd(self.sigma, self.first, held).named("E max(X, 0)")

    @cached_property
    def ratio(self) -> Real:
        """E X⁺/sigma."""
        return select(self.below, 0, self.t) + self.first

    @cached_property
    def r(self) -> Real:
        """Var X⁺."""
        small = self.sigma * self.first
        second = self.v * (self.e * 2 * self.j[2])
        half = second - small * small  # of the half beyond 0
        rest = self.v - half - self.m * (2 * small)
        return select(self.below, half, rest).named("Var max(X, 0)")

    # --- the exponential -------------------------------------------------------------
    @cached_property
    def whole(self) -> Real:
        """e^(mu + v/2), for mu < 0."""
        return held_exp(self.precision.scaled, madd(self.v, 0.5, self.mu), _LOWEST, 1 / 16)

    @cached_property
    def shifts(self) -> list[Real]:
        """t + k sigma, or k sigma - t, in size."""
        a = select(self.below, -self.t, self.t)
        once = a + self.sigma
        return [abs(once), abs(once + self.sigma)]

    @cached_property
    def t1(self) -> Real:
        """E[e^X; X < 0]."""
        part = self.e * self.mills(0, self.shifts[0], _FAR)
        left = self.mu + self.v < 0
        return select(left, self.whole - part, part).named("E[exp(X); X < 0]")

    @cached_property
    def t2(self) -> Real:
        """E[e^2X; X < 0]."""
        part = self.e * self.mills(0, self.shifts[1], _FAR)
        double = madd(self.v, 2, self.mu)
        left = double < 0
        whole = held_exp(self.precision.scaled, 2 * (self.mu + self.v), _LOWEST, 0.0)
        return select(left, whole - part, part).named("E[exp(2X); X < 0]")

    @cached_property
    def sums(self) -> tuple[Real, Real]:
        """Σ s^n sigma^n I_n and Σ (2^n - 2) s^n sigma^n I_n: what e^x - 1 and its square are beyond 0."""
        g = self.g
        sigma = select(self.near, self.sigma, 0)
        step = select(self.below, sigma, -sigma)
        one, two = g.const(0), g.const(0)
        for n in range(self.terms, 0, -1):
            one = madd(one, step, self.j[n])
            if n > 1:
                two = madd(two, step, (2**n - 2) * self.j[n])
        reach = self.e * step
        return reach * one, reach * step * two

    @cached_property
    def n(self) -> Real:
        """E L."""
        if self.kind == "constant":
            return self.p
        one, _ = self.sums
        y = madd(self.v, 0.5, self.mu)
        far = y < -_EDGE
        fit = exp_ratio(-_EDGE, _EDGE / 8, self.precision.fit, centre=-_EDGE / 2)
        self.fits.append(fit)
        held = select(self.below & (self.near & ~far), y, 0)
        bent = held * horner(held + _EDGE / 2, fit.coefficients)
        unbent = select(far, self.whole - 1, bent)
        local = select(self.below, unbent - one, one)
        return select(self.near, local, self.t1 - self.p).named("E min(0, exp(X) - 1)")

    @cached_property
    def spread(self) -> Real:
        """V."""
        if self.kind == "constant":
            return self.p * self.q
        one, two = self.sums
        held = select(self.near, self.v, 0)
        terms = 3 if self.precision.scaled else 5
        growth = held * horner(held, [mpmath.mpf(1) / math.factorial(k + 1) for k in range(terms + 1)])
        beyond = two - one * one
        whole = self.whole * self.whole * growth  # Var e^X
        left = madd(2 * self.n, one, whole - beyond)
        local = select(self.below, left, beyond)
        t1, t2 = self.t1, self.t2
        cross = self.p * self.q - 2 * t1 * self.q
        value = select(self.near, local, t2 - t1 * t1 + cross)
        return select(value < 0, 0, value).named("variance of the left half")

    # --- outputs ---------------------------------------------------------------------
    def outputs(self) -> dict[str, Real]:
        b, c = self.b, self.c
        mean = madd(b, self.m, c * self.n)
        cross = -2 * b * c * (self.m * self.n)
        var = madd(b * b, self.r, madd(c * c, self.spread, cross))
        # Corrections may outgrow a subnormal, and a constant's cross term the others.
        var = select(var < 0, 0, var)
        values = {"mean": mean, "var": var}
        return {name: like(value, self.mu) for name, value in values.items()}

    def partials(self) -> dict[str, Real]:
        return self.exponential_partials() if self.kind == "exponential" else self.constant_partials()

    def exponential_partials(self) -> dict[str, Real]:
        b, c = self.b, self.c
        m, n, p, q = self.m, self.n, self.p, self.q
        kink = b - c  # of the slope
        point = self.density * self.inverse  # density at 0
        by_v = madd(kink, point, c * self.t1)
        product = b * c * (m * n)
        kinked = b * (m * p) - c * (n * q)
        by_mu = madd(kink, kinked, c * c * self.spread - product)
        # R_v = q - (m/sigma) φ, V_v = 2 T_2 - T_1 - n (T_1 - φ/sigma), and that of -2 m n
        r_v = q - self.ratio * self.density
        at = n * point
        s_v = 2 * self.t2 - self.t1 + (at - n * self.t1)
        cross = self.ratio * self.density - at - m * self.t1
        total = madd(b * b, r_v, madd(c * c, s_v, b * c * cross))
        return {
            "dmean_dmu": madd(b, q, c * self.t1),
            "dmean_dvar": 0.5 * by_v,
            "dvar_dmu": 2 * by_mu,
            "dvar_dvar": total,
        }

    def constant_partials(self) -> dict[str, Real]:
        b, c = self.b, self.c
        m, p, q = self.m, self.p, self.q
        half, two = self.g.const(0.5), self.g.const(2)
        jump = c * self.inverse
        point = self.density * self.inverse
        a = select(self.below, -self.t, self.t)
        # With n_mu = -φ/sigma and n_v = a φ/(2 v); jumps over sigma one by one, φ first: products then stay finite.
        falling = self.density * jump
        bending = half * (a * self.density) * jump
        uneven = q - p
        by_mu = two * b * (b * (m * p) - c * (q * p)) - (falling * (c * uneven) - two * b * falling * m)
        r_v = q - self.ratio * self.density
        crossed = madd(c * point, p, two * self.ratio * bending)
        by_v = b * b * r_v - b * crossed
        return {
            "dmean_dmu": self.finite(b * q - falling),
            "dmean_dvar": self.finite(madd(bending, self.inverse, half * (b * point))),
            "dvar_dmu": self.finite(by_mu),
            "dvar_dvar": self.finite(madd(bending * uneven, jump, by_v)),
        }

    def finite(self, value: Real) -> Real:
        """At most the largest float32 in size."""
        return within(value, LARGEST) if self.precision.scaled else value


def halves_of(derivation: Derivation) -> Halves | None:
    """f's halves, b x for x > 0 and c (e^x - 1) or c for x < 0; None if it is not made of such."""
    rule, pieces = derivation.rule, tuple(derivation.pieces)
    if len(pieces) != 2 or tuple(derivation.kinks) != (0,):
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


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None."""
    if halves_of(derivation) is not None:
        return None
    return "expected a line right of a kink, and an exponential or a constant left of it"


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``."""
    rule, halves = derivation.rule, halves_of(derivation)
    if halves is None:
        return
    function = Parametric.of(rule)
    f = function.at({})

    def build(outputs: tuple[str, ...], float64: bool) -> tuple[Graph, Iterable[Polynomial]]:
        writer = _Writer(Graph(("mean", "var"), halves.params), halves, NEAR64 if float64 else FLOAT32)
        for name, value in (writer.outputs() if outputs == OUTPUTS else writer.partials()).items():
            writer.g.output(name, value)
        return writer.g, dict.fromkeys(writer.fits)

    graphs, fits = four_graphs(build)
    closed = halves.kind == "constant"
    below = f"; below v = {LOCAL[True][0]:.4g} power series of {LOCAL[True][1]} terms"
    yield exact_variant(
        f,
        graphs,
        closed_form_truth(derivation) if closed else ParametricTruth(function),
        ParametricMeasure(function),
        rigorous=None if closed else ParametricTruth(function, by_balls=True),
        box={"mu": (-12.0, 12.0), "log2_var": (-40.0, 30.0)},
        settings=_steepest_second(settings_of(rule), function, halves),
        fits=fits,
        facts={},
        doc="moments of both halves in closed form, by Mills' ratio" + ("" if closed else below),
    )


def _steepest_second(
    settings: tuple[dict[str, float], ...], function: Parametric, halves: Halves
) -> tuple[dict[str, float], ...]:
    """The settings, those at which programs are calibrated first: the default, and where the left half weighs most."""

    def weight(setting: dict[str, float]) -> float:
        return -abs(function.number(halves.left, setting))

    first, *rest = settings
    return (first, *sorted(rest, key=weight))
