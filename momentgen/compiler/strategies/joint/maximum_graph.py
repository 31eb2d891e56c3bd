r"""The maximum of two normal inputs: the graph of real operations.

With D = X1 - X2, theta² = Var D, a = (mu1 - mu2)/theta, t = |a|; ``+`` the input of the larger mean, ``-`` the other:

    mean = max(mu1, mu2) + theta g,    var = v_+ R(t) + v_- R(-t) + 2 c G,

where g = E(Z - t)_+, R(a) is the variance of (a + Z)_+ and G = g (t + g): Clark's formula with R(a) - Phi(a) = -G put
in, in which every term is positive for c >= 0, and nearly nothing cancels for c < 0 (|terms| <= 2.8 var).  With
J_n the repeated integrals over sqrt(2 pi) (:mod:`momentgen.compiler.ir.kit`) and E = exp(-t²/2),

    g = E J_1,    R(-t) = E (2 J_2 - g J_1),    R(t) = 1 - E (2 J_2 + J_1 (2 t + g)),    Phi(-t) = E J_0.

Partials: with p_i = (v_i - c)/theta², y = p_+ (t + g) J_0 - p_- J_1 (1 - E J_0),

    dmean/dmu_- = E J_0,  dmean/dv = E J_{-1}/(2 theta) = -dmean/dc/2,  dvar/dmu_+ = 2 theta E y = -dvar/dmu_-,
    dvar/dv_± = R(±t) - E t y,   dvar/dc = 2 G + 2 E t y.
"""

from __future__ import annotations

import mpmath

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph, Real, equal, exp_factor, exp_mantissa, madd, select, sqrt
from momentgen.compiler.ir.kit import SCALE, SLACK, Precision, mills_ratio, scaling


def maximum_graph(
    precision: Precision, outputs: tuple[str, ...], *, covariance: bool
) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of the named outputs, and what was fitted for it.

    Args:
        precision: float32 or float64, and how close the fit must be.
        outputs: names, as :attr:`~momentgen.compiler.strategies.Stable.outputs` has them.
        covariance: whether the inputs are dependent.
    """
    writer = _Maximum(precision, covariance)
    for name in outputs:
        writer.g.output(name, writer.outputs[name]())
    return writer.g, (writer.fit,)


def maximum_sizes(precision: Precision, *, covariance: bool) -> Graph:
    """For every output the sum of the magnitudes of its terms: what rounding errors are relative to."""
    writer = _Maximum(precision, covariance, sizes=True)
    for name, write in writer.outputs.items():
        writer.g.output(name, write())
    return writer.g


class _Maximum:
    """Writes the shared values at once, and an output when asked."""

    def __init__(self, precision: Precision, covariance: bool, sizes: bool = False) -> None:
        names = ("mean1", "var1", "mean2", "var2", *(["cov"] if covariance else []))
        self.g = g = Graph(names)
        self.precision, self.sizes = precision, sizes
        self.mean = g.input("mean1"), g.input("mean2")
        self.var = g.input("var1"), g.input("var2")
        self.cov = g.input("cov") if covariance else None
        self.swap = self.mean[0] < self.mean[1]
        self.scale()
        self.ratio()
        self.tail()
        self.outputs = {"mean": self.of_mean, "var": self.of_var}
        for i in (1, 2):
            self.outputs[f"dmean_dmu{i}"] = lambda i=i: self.slope(i)  # type: ignore[misc]
            self.outputs[f"dmean_dvar{i}"] = lambda: self.mean_by_variance(0.5)
            self.outputs[f"dvar_dmu{i}"] = lambda i=i: self.var_by_mean(i)  # type: ignore[misc]
            self.outputs[f"dvar_dvar{i}"] = lambda i=i: self.var_by_variance(i)  # type: ignore[misc]
        if covariance:
            self.outputs |= {"dmean_dcov": lambda: self.mean_by_variance(-1), "dvar_dcov": self.var_by_covariance}

    # --- shared values -------------------------------------------------------------
    def scale(self) -> None:
        """The variances scaled by a power of two, so that no residual of theta's root underflows."""
        one = self.g.const(1)
        v1, v2 = self.var
        usable = (v1 >= 0) & (v2 >= 0)
        c, back = scaling(select(v1 < v2, v2, v1), self.precision.scaled)
        self.c = c
        w1, w2 = (v * c * c for v in (v1, v2))
        if self.cov is None:
            w = w1 + w2
        else:
            wc = self.cov * c * c
            bound = sqrt(v1) * SLACK * sqrt(v2)
            usable = usable & (abs(self.cov) <= bound)
            # In this order the first difference is exact wherever the sum cancels, so that its correction stays small.
            first = v1 < v2
            larger, smaller = select(first, w2, w1), select(first, w1, w2)
            w = larger - wc * 2 + smaller
            # What rounding the covariance made of theta = 0.
            w = select(w > 0, w, 0)
            w1, w2 = w1 - wc, w2 - wc
        self.shares = w1, w2
        self.degenerate = equal(w, 0)
        w = select(usable, select(self.degenerate, one, w), -1)
        root = sqrt(w).named("theta, scaled; NaN for a negative variance or an impossible covariance")
        self.r = 1 / root
        # Terms in 1/theta count as 0 at theta = 0.
        self.theta = select(self.degenerate, 0, root * back)
        self.inverse = select(self.degenerate, 0, self.r * c)

    def ratio(self) -> None:
        """t = |mu1 - mu2|/theta, at most the reach, and exp(-t²/2)."""
        g = self.g
        gap = abs(self.mean[0] - self.mean[1])
        apart = self.degenerate & (gap > 0)
        x = select(apart, mpmath.mpf(2) ** 100, gap * self.c)
        raw, reach = x * self.r, g.const(self.precision.reach)
        self.t = select(reach < raw, reach, raw).named("t = min(|mean1 - mean2|/theta, reach)")
        exponent = self.t * self.t * -0.5
        self.e = exp_mantissa(exponent).named("exp(-t^2/2), mantissa")
        count = self.precision.factors if self.precision.scaled else 0
        self.factors = [exp_factor(exponent, i, count) for i in range(count)]

    def tail(self) -> None:
        """J_0, J_1 and J_2 over sqrt(2 pi) at t, from J_2 by the recurrence, in which all terms are positive.

        And g, and E J_0, with the exponent applied: beside numbers of the order of 1 they may underflow.
        """
        g, t = self.g, self.t
        u = (1 / madd(t, 1 / mpmath.mpf(SCALE), 1)).named(f"u = 1/(1 + t/{SCALE:g})")
        j2, self.fit = mills_ratio(self.precision, 2, u)
        one = g.const(1 / mpmath.sqrt(2 * mpmath.pi))
        double = j2.named("J_2/sqrt(2 pi)") * 2
        bottom = 1 / madd(t, t, 1)
        j1 = (madd(-t, double, one) * bottom).named("J_1/sqrt(2 pi)")
        self.j = j = {-1: one, 0: madd(t, j1, double).named("Mills ratio/sqrt(2 pi)"), 1: j1, 2: j2}
        whole = g.const(1)
        for factor in self.factors:
            whole = whole * factor
        self.plain = self.e * whole
        self.excess = (self.plain * j[1]).named("g = E (Z - t)_+")
        self.upper = self.plain * j[0]
        self.reach_over = self.t + self.excess  # E (Z + t)_+

    # --- helpers -------------------------------------------------------------------
    def last(self, node: Real, factors: list[Real], *first: Real) -> Real:
        """node·first..., the powers of two last."""
        for factor in (*first, *factors):
            node = node * factor
        return node

    def minus(self, a: Real, b: Real) -> Real:
        """a - b, or a + b where sizes are asked for."""
        return a + b if self.sizes else a - b

    def sized(self, node: Real) -> Real:
        return abs(node) if self.sizes else node

    def sides(self, pair: tuple[Real, Real]) -> tuple[Real, Real]:
        """Of two values, that of the input with the larger mean first."""
        first, second = pair
        return select(self.swap, second, first), select(self.swap, first, second)

    def choose(self, i: int, larger: Real, smaller: Real) -> Real:
        """For input i: the one, if its mean is the larger, else the other."""
        return select(self.swap, smaller, larger) if i == 1 else select(self.swap, larger, smaller)

    def weights(self) -> tuple[Real, Real]:
        """p_+ and p_-."""
        plus, minus = self.sides(self.shares)
        p, q = (self.sized(share * self.r * self.r) for share in (plus, minus))
        return p, q

    def y(self) -> Real:
        j = self.j
        p, q = self.weights()
        first = p * self.reach_over * j[0]
        return self.minus(first, q * j[1] * (1 - self.upper))

    # --- outputs -------------------------------------------------------------------
    def of_mean(self) -> Real:
        larger = self.sized(select(self.swap, self.mean[1], self.mean[0]))
        return larger + self.last(self.e * self.j[1], self.factors, self.theta)

    def low(self) -> Real:
        """R(-t)/E."""
        j = self.j
        return madd(-self.excess, j[1], j[2] * 2)

    def high(self) -> Real:
        """(1 - R(t))/E."""
        j = self.j
        return madd(j[1], madd(self.t, 2, self.excess), j[2] * 2)

    def of_var(self) -> Real:
        plus, minus = self.sides(self.var)
        share = 1 - self.plain * self.high()
        small = self.last(self.e * self.low(), self.factors, minus)
        total = madd(plus, share, small)
        if self.cov is not None:
            twice = self.j[1] * self.reach_over * 2
            total = total + self.sized(self.last(self.e * twice, self.factors, self.cov))
        return total

    def slope(self, i: int) -> Real:
        smaller = self.last(self.e * self.j[0], self.factors)
        return self.choose(i, 1 - self.upper, smaller)

    def mean_by_variance(self, factor: float) -> Real:
        node = self.e * (self.j[-1] * factor)
        half = len(self.factors) // 2
        for step in (*self.factors[:half], self.inverse, *self.factors[half:]):
            node = node * step
        return self.sized(node)

    def var_by_mean(self, i: int) -> Real:
        node = self.last(self.e * 2 * self.y(), self.factors, self.theta)
        return node if self.sizes else self.choose(i, node, -node)

    def var_by_variance(self, i: int) -> Real:
        part = self.t * self.y()
        if self.sizes:
            larger = 1 - self.plain * self.high() + self.plain * part
        else:
            larger = 1 - self.plain * (self.high() + part)
        smaller = self.last(self.e * self.minus(self.low(), part), self.factors)
        return self.choose(i, larger, smaller)

    def var_by_covariance(self) -> Real:
        inner = madd(self.j[1], self.reach_over, self.t * self.y())
        return self.last(self.e * (inner * 2), self.factors)
