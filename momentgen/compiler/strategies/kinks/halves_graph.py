r"""f = b·X⁺ + c·L(X), L an exponential or a constant left of the kink at 0: the graph of real operations.

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
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import mpmath
import sympy as sp

from momentgen.compiler.fit import Polynomial, lowest_degree
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import OUTPUTS
from momentgen.compiler.strategies.homogeneous.kink_fits import CENTRE, core, slope_of
from momentgen.compiler.strategies.joint.polynomial import parameter_node
from momentgen.compiler.strategies.kit import within_range
from momentgen.compiler.strategies.mills import integrals

__all__ = ["FLOAT32", "FLOAT64", "Halves", "HalvesPrecision", "Left", "build_halves"]

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


@dataclass(frozen=True)
class HalvesPrecision:
    """What the graph is for.

    Attributes:
        fit: relative error of the fitted polynomials.
        reach: t from where on φ(t) counts as 0.
        scaled: whether exponentials keep their power of two apart, and 1/sigma is held finite.
        switch: v*.
        terms: of the sums of sigma^n I_n below v*.
    """

    fit: float
    reach: float
    scaled: bool
    switch: float
    terms: int


FLOAT32 = HalvesPrecision(fit=3e-8, reach=13.0, scaled=True, switch=2.0**-4, terms=10)
FLOAT64 = HalvesPrecision(fit=1e-16, reach=37.5, scaled=False, switch=2.0**-10, terms=12)


@lru_cache
def _expm1(goal: float) -> Polynomial:
    """P with e^y - 1 = y P(y + 1/4), -1/2 <= y <= 1/16."""

    def target(y: Any) -> Any:
        return mpmath.expm1(y) / y if abs(y) > mpmath.mpf("1e-30") else mpmath.mpf(1)

    what = "(exp(y) - 1)/y, -1/2 <= y <= 1/16"
    return lowest_degree(target, (-_EDGE, _EDGE / 8), range(3, 24), goal, what, centre=-_EDGE / 2)


class _Writer:
    """Writes what the outputs share, and the outputs."""

    def __init__(self, graph: Graph, halves: Halves, precision: HalvesPrecision) -> None:
        self.g, self.precision, self.kind = graph, precision, halves.kind
        self.fits: list[Polynomial] = []
        g, zero, one = graph, graph.const(0), graph.const(1)
        self.b, self.c = (parameter_node(g, e, halves.name) for e in (halves.right, halves.left))
        self.mu, v = g.input("mean"), g.input("var")
        valid = g.sqrt(g.select(g.le(zero, v), one, g.const(-1)))
        self.v = g.comment(g.mul(v, valid), "NaN for a negative variance")
        degenerate = g.eq(self.v, zero)
        root = g.sqrt(g.select(degenerate, one, self.v))
        self.sigma = g.comment(g.select(degenerate, zero, root), "standard deviation")
        self.inverse = g.select(degenerate, zero, g.recip(root))
        # The constant holds at the kink itself.
        self.below = g.le(self.mu, zero) if self.kind == "constant" else g.lt(self.mu, zero)
        reach = g.const(precision.reach)
        raw = g.mul(g.abs(self.mu), self.inverse)
        beyond = g.either(g.lt(reach, raw), degenerate)
        self.t = g.comment(g.select(beyond, reach, raw), "|mean|/sigma")
        # Not t², which would double the rounding of the root in the exponent.
        smallest = g.const(mpmath.mpf(2) ** (-127 if precision.scaled else -1022))
        size, tiny, square = g.abs(self.mu), g.lt(self.v, smallest), raw
        v = g.select(tiny, smallest, self.v)
        if not precision.scaled:  # what is not used is finite, too: autograd multiplies its slope by 0
            unused = g.either(tiny, beyond)
            size, v, square = g.select(unused, zero, size), g.select(unused, one, self.v), self.t
        direct = g.mul(g.mul(size, g.recip(v)), size)
        direct = g.select(tiny, g.mul(square, square), direct)  # where 1/v overflows
        self.h = g.select(beyond, g.const(mpmath.mpf(precision.reach) ** 2), direct)
        e = self.exp(g.mul(self.h, g.const(-0.5)))
        # Beyond the reach, and at v = 0, exactly nothing: a jump squared may be large beside the smallest variances.
        self.e = g.select(beyond, zero, e)
        with mpmath.workdps(40):
            self.density = g.comment(g.mul(self.e, g.const(1 / mpmath.sqrt(2 * mpmath.pi))), "phi(t)")
        self.near = g.lt(self.v, g.const(precision.switch))

    def exp(self, exponent: int) -> int:
        """e^x, whose power of two is a normal number."""
        g = self.g
        value = g.exp_mantissa(exponent)
        return g.mul(value, g.exp_factor(exponent, 0, 1)) if self.precision.scaled else value

    def held_exp(self, exponent: int, high: float) -> int:
        """e^x up to x = ``high``, where it stays; 0 far to the left."""
        g = self.g
        low, top = g.const(_LOWEST), g.const(high)
        below = g.lt(exponent, low)
        held = g.select(below, low, g.select(g.lt(top, exponent), top, exponent))
        return g.select(below, g.const(0), self.exp(held))

    def mills(self, n: int, at: int, reach: float) -> int:
        """J_n/sqrt(2 pi); u's second word, where it has one, by the slope."""
        g = self.g
        fitted, steep = core(n, reach, self.precision.fit, 4.0), slope_of(n, reach, 4.0)
        self.fits.append(fitted)
        u = g.recip(g.madd(at, g.const(0.25), g.const(1)))
        head = g.head(u) if self.precision.scaled else u
        value = g.horner(g.sub(head, g.const(CENTRE)), fitted.coefficients)
        powers = [g.const(1), head]
        for _ in range(n):
            powers.append(g.mul(powers[-1], head))
        if not self.precision.scaled:
            return g.mul(value, powers[n + 1])
        slope = g.mul(powers[n], g.horner(head, steep.coefficients))
        return g.shifted_product(value, powers[n + 1], slope, u)

    @cached_property
    def j(self) -> list[int]:
        """J_n(t)/sqrt(2 pi), n = 0, 1, ..."""
        second = self.mills(2, self.t, self.precision.reach)
        top = self.precision.terms if self.kind == "exponential" else 2
        return integrals(self.g, self.t, self.h, second, top)

    # --- X⁺ ------------------------------------------------------------------------
    @cached_property
    def tail(self) -> int:
        """Phi(-t)."""
        return self.g.comment(self.g.mul(self.e, self.j[0]), "Phi(-t)")

    @cached_property
    def p(self) -> int:
        """P(X < 0)."""
        g = self.g
        return g.select(self.below, g.sub(g.const(1), self.tail), self.tail)

    @cached_property
    def q(self) -> int:
        """P(X > 0)."""
        g = self.g
        return g.select(self.below, self.tail, g.sub(g.const(1), self.tail))

    @cached_property
    def first(self) -> int:
        """I_1."""
        return self.g.mul(self.e, self.j[1])

    @cached_property
    def m(self) -> int:
        """E X⁺."""
        g = self.g
        held = g.select(self.below, g.const(0), self.mu)
        return g.comment(g.madd(self.sigma, self.first, held), "E max(X, 0)")

    @cached_property
    def ratio(self) -> int:
        """E X⁺/sigma."""
        g = self.g
        return g.add(g.select(self.below, g.const(0), self.t), self.first)

    @cached_property
    def r(self) -> int:
        """Var X⁺."""
        g = self.g
        small = g.mul(self.sigma, self.first)
        second = g.mul(self.v, g.mul(g.mul(self.e, g.const(2)), self.j[2]))
        half = g.sub(second, g.mul(small, small))  # of the half beyond 0
        rest = g.sub(g.sub(self.v, half), g.mul(self.m, g.mul(g.const(2), small)))
        return g.comment(g.select(self.below, half, rest), "Var max(X, 0)")

    # --- the exponential -------------------------------------------------------------
    @cached_property
    def whole(self) -> int:
        """e^(mu + v/2), for mu < 0."""
        g = self.g
        return self.held_exp(g.madd(self.v, g.const(0.5), self.mu), 1 / 16)

    @cached_property
    def shifts(self) -> list[int]:
        """t + k sigma, or k sigma - t, in size."""
        g = self.g
        a = g.select(self.below, g.neg(self.t), self.t)
        once = g.add(a, self.sigma)
        return [g.abs(once), g.abs(g.add(once, self.sigma))]

    @cached_property
    def t1(self) -> int:
        """E[e^X; X < 0]."""
        g = self.g
        part = g.mul(self.e, self.mills(0, self.shifts[0], _FAR))
        left = g.lt(g.add(self.mu, self.v), g.const(0))
        return g.comment(g.select(left, g.sub(self.whole, part), part), "E[exp(X); X < 0]")

    @cached_property
    def t2(self) -> int:
        """E[e^2X; X < 0]."""
        g = self.g
        part = g.mul(self.e, self.mills(0, self.shifts[1], _FAR))
        double = g.madd(self.v, g.const(2), self.mu)
        left = g.lt(double, g.const(0))
        whole = self.held_exp(g.mul(g.const(2), g.add(self.mu, self.v)), 0.0)
        return g.comment(g.select(left, g.sub(whole, part), part), "E[exp(2X); X < 0]")

    @cached_property
    def sums(self) -> tuple[int, int]:
        """Σ s^n sigma^n I_n and Σ (2^n - 2) s^n sigma^n I_n: what e^x - 1 and its square are beyond 0."""
        g = self.g
        sigma = g.select(self.near, self.sigma, g.const(0))
        step = g.select(self.below, sigma, g.neg(sigma))
        one, two = g.const(0), g.const(0)
        for n in range(self.precision.terms, 0, -1):
            one = g.madd(one, step, self.j[n])
            if n > 1:
                two = g.madd(two, step, g.mul(g.const(2**n - 2), self.j[n]))
        reach = g.mul(self.e, step)
        return g.mul(reach, one), g.mul(g.mul(reach, step), two)

    @cached_property
    def n(self) -> int:
        """E L."""
        g = self.g
        if self.kind == "constant":
            return self.p
        one, _ = self.sums
        y = g.madd(self.v, g.const(0.5), self.mu)
        far = g.lt(y, g.const(-_EDGE))
        fit = _expm1(self.precision.fit)
        self.fits.append(fit)
        held = g.select(g.both(self.below, g.both(self.near, g.invert(far))), y, g.const(0))
        bent = g.mul(held, g.horner(g.add(held, g.const(_EDGE / 2)), fit.coefficients))
        unbent = g.select(far, g.sub(self.whole, g.const(1)), bent)
        local = g.select(self.below, g.sub(unbent, one), one)
        return g.comment(g.select(self.near, local, g.sub(self.t1, self.p)), "E min(0, exp(X) - 1)")

    @cached_property
    def spread(self) -> int:
        """V."""
        g = self.g
        if self.kind == "constant":
            return g.mul(self.p, self.q)
        one, two = self.sums
        held = g.select(self.near, self.v, g.const(0))
        terms = 3 if self.precision.scaled else 5
        growth = g.mul(held, g.horner(held, [mpmath.mpf(1) / math.factorial(k + 1) for k in range(terms + 1)]))
        beyond = g.sub(two, g.mul(one, one))
        whole = g.mul(g.mul(self.whole, self.whole), growth)  # Var e^X
        left = g.madd(g.mul(g.const(2), self.n), one, g.sub(whole, beyond))
        local = g.select(self.below, left, beyond)
        t1, t2 = self.t1, self.t2
        cross = g.sub(g.mul(self.p, self.q), g.mul(g.mul(g.const(2), t1), self.q))
        value = g.select(self.near, local, g.add(g.sub(t2, g.mul(t1, t1)), cross))
        return g.comment(g.select(g.lt(value, g.const(0)), g.const(0), value), "variance of the left half")

    # --- outputs ---------------------------------------------------------------------
    def outputs(self) -> dict[str, int]:
        g, b, c = self.g, self.b, self.c
        mean = g.madd(b, self.m, g.mul(c, self.n))
        cross = g.mul(g.mul(g.mul(g.const(-2), b), c), g.mul(self.m, self.n))
        var = g.madd(g.mul(b, b), self.r, g.madd(g.mul(c, c), self.spread, cross))
        # Corrections may outgrow a subnormal, and a constant's cross term the others.
        var = g.select(g.lt(var, g.const(0)), g.const(0), var)
        values = {"mean": mean, "var": var}
        return {name: g.select(g.eq(self.mu, self.mu), value, self.mu) for name, value in values.items()}

    def partials(self) -> dict[str, int]:
        return self.exponential_partials() if self.kind == "exponential" else self.constant_partials()

    def exponential_partials(self) -> dict[str, int]:
        g, b, c = self.g, self.b, self.c
        m, n, p, q = self.m, self.n, self.p, self.q
        half, two = g.const(0.5), g.const(2)
        kink = g.sub(b, c)  # of the slope
        point = g.mul(self.density, self.inverse)  # density at 0
        by_v = g.madd(kink, point, g.mul(c, self.t1))
        product = g.mul(g.mul(b, c), g.mul(m, n))
        kinked = g.sub(g.mul(b, g.mul(m, p)), g.mul(c, g.mul(n, q)))
        by_mu = g.madd(kink, kinked, g.sub(g.mul(g.mul(c, c), self.spread), product))
        # R_v = q - (m/sigma) φ, V_v = 2 T_2 - T_1 - n (T_1 - φ/sigma), and that of -2 m n
        r_v = g.sub(q, g.mul(self.ratio, self.density))
        at = g.mul(n, point)
        s_v = g.add(g.sub(g.mul(two, self.t2), self.t1), g.sub(at, g.mul(n, self.t1)))
        cross = g.sub(g.sub(g.mul(self.ratio, self.density), at), g.mul(m, self.t1))
        total = g.madd(g.mul(b, b), r_v, g.madd(g.mul(c, c), s_v, g.mul(g.mul(b, c), cross)))
        return {
            "dmean_dmu": g.madd(b, q, g.mul(c, self.t1)),
            "dmean_dvar": g.mul(half, by_v),
            "dvar_dmu": g.mul(two, by_mu),
            "dvar_dvar": total,
        }

    def constant_partials(self) -> dict[str, int]:
        g, b, c = self.g, self.b, self.c
        m, p, q = self.m, self.p, self.q
        half, two = g.const(0.5), g.const(2)
        jump = g.mul(c, self.inverse)
        point = g.mul(self.density, self.inverse)
        a = g.select(self.below, g.neg(self.t), self.t)
        # With n_mu = -φ/sigma and n_v = a φ/(2 v); jumps over sigma one by one, φ first: products then stay finite.
        falling = g.mul(self.density, jump)
        bending = g.mul(g.mul(half, g.mul(a, self.density)), jump)
        uneven = g.sub(q, p)
        by_mu = g.sub(
            g.mul(g.mul(two, b), g.sub(g.mul(b, g.mul(m, p)), g.mul(c, g.mul(q, p)))),
            g.sub(g.mul(falling, g.mul(c, uneven)), g.mul(g.mul(g.mul(two, b), falling), m)),
        )
        r_v = g.sub(q, g.mul(self.ratio, self.density))
        crossed = g.madd(g.mul(c, point), p, g.mul(g.mul(two, self.ratio), bending))
        by_v = g.sub(g.mul(g.mul(b, b), r_v), g.mul(b, crossed))
        return {
            "dmean_dmu": self.finite(g.sub(g.mul(b, q), falling)),
            "dmean_dvar": self.finite(g.madd(bending, self.inverse, g.mul(half, g.mul(b, point)))),
            "dvar_dmu": self.finite(by_mu),
            "dvar_dvar": self.finite(g.madd(g.mul(bending, uneven), jump, by_v)),
        }

    def finite(self, value: int) -> int:
        """At most the largest float32 in size."""
        return within_range(self.g, value) if self.precision.scaled else value


def build_halves(
    halves: Halves, precision: HalvesPrecision, outputs: tuple[str, ...]
) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of ``OUTPUTS`` or ``PARTIALS``, and the polynomials fitted for it."""
    graph = Graph(("mean", "var"), halves.params)
    writer = _Writer(graph, halves, precision)
    values = writer.outputs() if outputs == OUTPUTS else writer.partials()
    for name in outputs:
        graph.output(name, values[name])
    return graph, tuple(dict.fromkeys(writer.fits))
