r"""The maximum of two normal inputs: the graph of real operations.

With D = X1 - X2, theta² = Var D, a = (mu1 - mu2)/theta, t = |a|; ``+`` the input of the larger mean, ``-`` the other:

    mean = max(mu1, mu2) + theta g,    var = v_+ R(t) + v_- R(-t) + 2 c G,

where g = E(Z - t)_+, R(a) is the variance of (a + Z)_+ and G = g (t + g): Clark's formula with R(a) - Phi(a) = -G put
in, in which every term is positive for c >= 0, and nearly nothing cancels for c < 0 (|terms| <= 2.8 var).  With
J_n the repeated integrals over sqrt(2 pi) (:mod:`momentgen.compiler.strategies.joint.tails`) and E = exp(-t²/2),

    g = E J_1,    R(-t) = E (2 J_2 - g J_1),    R(t) = 1 - E (2 J_2 + J_1 (2 t + g)),    Phi(-t) = E J_0.

Partials: with p_i = (v_i - c)/theta², y = p_+ (t + g) J_0 - p_- J_1 (1 - E J_0),

    dmean/dmu_- = E J_0,  dmean/dv = E J_{-1}/(2 theta) = -dmean/dc/2,  dvar/dmu_+ = 2 theta E y = -dvar/dmu_-,
    dvar/dv_± = R(±t) - E t y,   dvar/dc = 2 G + 2 E t y.

The fitted variant has S(a/tau) for R(a), and is written for independent inputs alone.
"""

from __future__ import annotations

from typing import Any

import mpmath

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.strategies.joint.tails import Tails
from momentgen.compiler.strategies.precision import Precision

__all__ = ["maximum_graph", "maximum_sizes"]

_SLACK = 1 + mpmath.mpf(2) ** -18  # a covariance may exceed its bound by what rounding it can do
#: exponent at which exp is clamped: 2^-125 a factor, which keeps each normal
_FLUSH = 87


def maximum_graph(
    precision: Precision, outputs: tuple[str, ...], *, covariance: bool, tau: Any | None = None
) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of the named outputs, and what was fitted for it.

    Args:
        precision: float32 or float64, and how close the fit must be.
        outputs: names, as :attr:`~momentgen.compiler.strategies.Stable.outputs` has them.
        covariance: whether the inputs are dependent.
        tau: the fitted variant's scale; None for the exact variance.
    """
    writer = _Maximum(precision, covariance, tau)
    for name in outputs:
        writer.g.output(name, writer.outputs[name]())
    return writer.g, (writer.tails.fit,)


def maximum_sizes(precision: Precision, *, covariance: bool, tau: Any | None = None) -> Graph:
    """For every output the sum of the magnitudes of its terms: what rounding errors are relative to."""
    writer = _Maximum(precision, covariance, tau, sizes=True)
    for name, write in writer.outputs.items():
        writer.g.output(name, write())
    return writer.g


class _Maximum:
    """Writes the shared values at once, and an output when asked."""

    def __init__(self, precision: Precision, covariance: bool, tau: Any | None, sizes: bool = False) -> None:
        names = ("mean1", "var1", "mean2", "var2", *(["cov"] if covariance else []))
        self.g = g = Graph(names)
        self.precision, self.tau, self.sizes = precision, tau, sizes
        self.mean = g.input("mean1"), g.input("mean2")
        self.var = g.input("var1"), g.input("var2")
        self.cov = g.input("cov") if covariance else None
        self.swap = g.lt(*self.mean)
        self.scale()
        self.ratio()
        self.tails = Tails(g, self.t, goal=precision.fit, reach=precision.reach, scale=precision.scale)
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
        g, zero, one = self.g, self.g.const(0), self.g.const(1)
        v1, v2 = self.var
        usable = g.both(g.le(zero, v1), g.le(zero, v2))
        c = back = one
        if self.precision.scaled:
            largest = g.select(g.lt(v1, v2), v2, v1)
            tiny, huge = g.lt(largest, g.const(mpmath.mpf(2) ** -40)), g.lt(g.const(mpmath.mpf(2) ** 60), largest)
            up, down = g.const(mpmath.mpf(2) ** 48), g.const(mpmath.mpf(2) ** -8)
            c = g.comment(g.select(tiny, up, g.select(huge, down, one)), "power of two that keeps residuals normal")
            back = g.select(tiny, g.const(mpmath.mpf(2) ** -48), g.select(huge, g.const(mpmath.mpf(2) ** 8), one))
        self.c = c
        w1, w2 = (g.mul(g.mul(v, c), c) for v in (v1, v2))
        if self.cov is None:
            w = g.add(w1, w2)
        else:
            wc = g.mul(g.mul(self.cov, c), c)
            bound = g.mul(g.mul(g.sqrt(v1), g.const(_SLACK)), g.sqrt(v2))
            usable = g.both(usable, g.le(g.abs(self.cov), bound))
            # In this order the first difference is exact wherever the sum cancels, so that its correction stays small.
            first = g.lt(v1, v2)
            larger, smaller = g.select(first, w2, w1), g.select(first, w1, w2)
            w = g.add(g.sub(larger, g.mul(wc, g.const(2))), smaller)
            # What rounding the covariance made of theta = 0.
            w = g.select(g.lt(zero, w), w, zero)
            w1, w2 = g.sub(w1, wc), g.sub(w2, wc)
        self.shares = w1, w2
        self.degenerate = g.eq(w, zero)
        w = g.select(usable, g.select(self.degenerate, one, w), g.const(-1))
        root = g.comment(g.sqrt(w), "theta, scaled; NaN for a negative variance or an impossible covariance")
        self.r = g.recip(root)
        # Terms in 1/theta count as 0 at theta = 0.
        self.theta = g.select(self.degenerate, zero, g.mul(root, back))
        self.inverse = g.select(self.degenerate, zero, g.mul(self.r, c))

    def ratio(self) -> None:
        """t = |mu1 - mu2|/theta, at most the reach, and exp(-t²/2)."""
        g = self.g
        gap = g.abs(g.sub(*self.mean))
        apart = g.both(self.degenerate, g.lt(g.const(0), gap))
        x = g.select(apart, g.const(mpmath.mpf(2) ** 100), g.mul(gap, self.c))
        self.raw = g.mul(x, self.r)
        self.t = g.comment(self.clamped(g.const(self.precision.reach)), "t = min(|mean1 - mean2|/theta, reach)")
        exponent = g.mul(g.mul(self.t, self.t), g.const(-0.5))
        self.e = g.comment(g.exp_mantissa(exponent), "exp(-t^2/2), mantissa")
        self.factors = self.factors_of(exponent)

    def clamped(self, most: int) -> int:
        return self.g.select(self.g.lt(most, self.raw), most, self.raw)

    def factors_of(self, exponent: int) -> list[int]:
        count = self.precision.factors
        return [self.g.exp_factor(exponent, i, count) for i in range(count)] if self.precision.scaled else []

    def tail(self) -> None:
        """g, and E J_0, with the exponent applied: beside numbers of the order of 1 they may underflow."""
        g, j = self.g, self.tails.j
        whole = g.const(1)
        for factor in self.factors:
            whole = g.mul(whole, factor)
        self.plain = g.mul(self.e, whole)
        self.excess = g.comment(g.mul(self.plain, j[1]), "g = E (Z - t)_+")
        self.upper = g.mul(self.plain, j[0])
        self.reach_over = g.add(self.t, self.excess)  # E (Z + t)_+

    # --- helpers -------------------------------------------------------------------
    def last(self, node: int, factors: list[int], *first: int) -> int:
        """node·first..., the powers of two last."""
        for factor in (*first, *factors):
            node = self.g.mul(node, factor)
        return node

    def minus(self, a: int, b: int) -> int:
        """a - b, or a + b where sizes are asked for."""
        return self.g.add(a, b) if self.sizes else self.g.sub(a, b)

    def sized(self, node: int) -> int:
        return self.g.abs(node) if self.sizes else node

    def sides(self, pair: tuple[int, int]) -> tuple[int, int]:
        """Of two values, that of the input with the larger mean first."""
        first, second = pair
        return self.g.select(self.swap, second, first), self.g.select(self.swap, first, second)

    def choose(self, i: int, larger: int, smaller: int) -> int:
        """For input i: the one, if its mean is the larger, else the other."""
        return self.g.select(self.swap, smaller, larger) if i == 1 else self.g.select(self.swap, larger, smaller)

    def weights(self) -> tuple[int, int]:
        """p_+ and p_-."""
        g = self.g
        plus, minus = self.sides(self.shares)
        p, q = (self.sized(g.mul(g.mul(share, self.r), self.r)) for share in (plus, minus))
        return p, q

    def y(self) -> int:
        g, j = self.g, self.tails.j
        p, q = self.weights()
        first = g.mul(g.mul(p, self.reach_over), j[0])
        return self.minus(first, g.mul(g.mul(q, j[1]), g.sub(g.const(1), self.upper)))

    # --- the fitted variance -------------------------------------------------------
    def logistic(self) -> tuple[int, int, list[int], int]:
        """S(t/tau), the mantissa and factors of S(-t/tau), and t itself, clamped further out than elsewhere."""
        g = self.g
        tau = mpmath.mpf(self.tau)
        most = _FLUSH * self.precision.factors if self.precision.scaled else 700
        t = self.clamped(g.const(most * tau))
        exponent = g.mul(t, g.const(-1 / tau))
        e, factors = g.exp_mantissa(exponent), self.factors_of(exponent)
        upper = g.recip(g.add(self.last(e, factors), g.const(1)))
        return upper, g.mul(e, upper), factors, t

    def fitted_slope(self) -> tuple[int, list[int]]:
        """(p_+ - p_-) S(t/tau) S(-t/tau)/tau, and its factors."""
        g = self.g
        p, q = self.weights()
        upper, lower, factors, _ = self.logistic()
        slope = g.mul(g.mul(upper, lower), g.const(1 / mpmath.mpf(self.tau)))
        return g.mul(self.minus(p, q), slope), factors

    # --- outputs -------------------------------------------------------------------
    def of_mean(self) -> int:
        g = self.g
        larger = self.sized(g.select(self.swap, self.mean[1], self.mean[0]))
        return g.add(larger, self.last(g.mul(self.e, self.tails.j[1]), self.factors, self.theta))

    def low(self) -> int:
        """R(-t)/E."""
        j = self.tails.j
        return self.g.madd(self.g.neg(self.excess), j[1], self.g.mul(j[2], self.g.const(2)))

    def high(self) -> int:
        """(1 - R(t))/E."""
        g, j = self.g, self.tails.j
        return g.madd(j[1], g.madd(self.t, g.const(2), self.excess), g.mul(j[2], g.const(2)))

    def of_var(self) -> int:
        g = self.g
        plus, minus = self.sides(self.var)
        if self.tau is not None:
            upper, lower, factors, _ = self.logistic()
            return g.madd(plus, upper, self.last(lower, factors, minus))
        share = g.sub(g.const(1), g.mul(self.plain, self.high()))
        small = self.last(g.mul(self.e, self.low()), self.factors, minus)
        total = g.madd(plus, share, small)
        if self.cov is not None:
            twice = g.mul(g.mul(self.tails.j[1], self.reach_over), g.const(2))
            total = g.add(total, self.sized(self.last(g.mul(self.e, twice), self.factors, self.cov)))
        return total

    def slope(self, i: int) -> int:
        g = self.g
        smaller = self.last(g.mul(self.e, self.tails.j[0]), self.factors)
        return self.choose(i, g.sub(g.const(1), self.upper), smaller)

    def mean_by_variance(self, factor: float) -> int:
        g = self.g
        node = g.mul(self.e, g.mul(self.tails.j[-1], g.const(factor)))
        half = len(self.factors) // 2
        for step in (*self.factors[:half], self.inverse, *self.factors[half:]):
            node = g.mul(node, step)
        return self.sized(node)

    def var_by_mean(self, i: int) -> int:
        g = self.g
        if self.tau is not None:
            slope, factors = self.fitted_slope()
            node = self.last(slope, factors, self.theta)
        else:
            node = self.last(g.mul(g.mul(self.e, g.const(2)), self.y()), self.factors, self.theta)
        return node if self.sizes else self.choose(i, node, g.neg(node))

    def var_by_variance(self, i: int) -> int:
        g = self.g
        if self.tau is not None:
            upper, lower, factors, t = self.logistic()
            slope, _ = self.fitted_slope()
            part = g.mul(g.mul(t, g.const(0.5)), slope)
            larger = self.minus(upper, self.last(part, factors))
            return self.choose(i, larger, self.last(self.minus(lower, part), factors))
        part = g.mul(self.t, self.y())
        if self.sizes:
            larger = g.add(g.sub(g.const(1), g.mul(self.plain, self.high())), g.mul(self.plain, part))
        else:
            larger = g.sub(g.const(1), g.mul(self.plain, g.add(self.high(), part)))
        smaller = self.last(g.mul(self.e, self.minus(self.low(), part)), self.factors)
        return self.choose(i, larger, smaller)

    def var_by_covariance(self) -> int:
        g = self.g
        inner = g.madd(self.tails.j[1], self.reach_over, g.mul(self.t, self.y()))
        return self.last(g.mul(self.e, g.mul(inner, g.const(2))), self.factors)
