r"""The covariance of f(X1) and f(X2), jointly normal, for steps, Phi and ReLU: the graph of real operations.

In the symbols of :mod:`momentgen.compiler.strategies.covariance.correlation`, and with the integral of the bivariate
density

    K = (1/pi) ∫_Q^1 exp(-A (1 + q²) - B (1 + 1/q²)) dq/(1 + q²),

- of [x >= 0], and of Phi(x) with 1 added to either variance, the covariance is ±K, with the sign of c;
- of max(x, 0) it is c Phi(a) Phi(b) + s1 s2 I, I the same integral of (rho - r) times that, which is positive:
  rho - r = 2 (q² - Q²)/((1 + Q²) (1 + q²)).

Partials.  With the other input's ratio given that the first is at 0, z1 = ((a + b) Q - (a - b)/Q)/2, and the density
n = exp(-A (1 + Q²) - B (1 + 1/Q²)) (1 + Q²)/(4 pi Q), ``b`` and the results having the sign of c,

    step:  d/dmu1 = phi(a) (Phi(z1) - Phi(b))/s1,    d/dc = n/(s1 s2),
           d/dv1 = -(a phi(a) (Phi(z1) - Phi(b)) + rho n)/(2 s1²);
    ReLU:  d/dmu1 = s2 (rho phi(a) Phi(b) - ((a + b) ∫ + (a - b) ∫ 1/q²)/4),    d/dc = Phi(a) Phi(b) ± K,
           d/dv1 = phi(a) (E(X2+ | X1 = 0) - E X2+)/(2 s1).

Phi(z1) - Phi(b) is the integral of phi between the two where these are near: z1 - b = -(1 - Q) ((a + b) + (a - b)/Q)/2.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph, Real, madd, select
from momentgen.compiler.strategies.covariance.correlation import INPUTS, At, Nodes, Pair, gauss_legendre
from momentgen.compiler.strategies.formulas.functions import Value
from momentgen.compiler.strategies.kit import Precision, Tails, largest, short_exp, within

OUTPUTS = ("covariance",)
PARTIALS = tuple(f"dcovariance_d{name}" for name in ("mu1", "var1", "mu2", "var2", "cov"))
#: half of what small values are multiplied by meanwhile, as 1/s may be 2^63: the density is at most 2^23
_BOOST = mpmath.mpf(2) ** 50
_NEAR, _STEEP = 0.125, 2.0  # |z1 - b| and |b (z1 - b)| up to which their difference is integrated, by four nodes


class Writer:
    """What the functions have in common: outputs by name, each written when asked for."""

    def __init__(self, precision: Precision, nodes: Nodes, *, added: bool, sizes: bool) -> None:
        self.g = Graph(INPUTS)
        self.precision, self.nodes, self.sizes = precision, nodes, sizes
        self.p = Pair(self.g, precision, added=added)
        self.boost = _BOOST if precision.scaled and not added else mpmath.mpf(1)
        self.outputs: dict[str, Callable[[], Real]] = {"covariance": self.covariance}
        for i in (0, 1):
            self.outputs[f"dcovariance_dmu{i + 1}"] = lambda i=i: self.of_input(i, self.by_mean)  # type: ignore[misc]
            self.outputs[f"dcovariance_dvar{i + 1}"] = lambda i=i: self.of_input(i, self.by_variance)  # type: ignore[misc]
        self.outputs["dcovariance_dcov"] = self.by_covariance

    @property
    def fits(self) -> tuple[Polynomial, ...]:
        return tuple(self.p.f.fits)

    def of_input(self, i: int, partial: Callable[[int], Real]) -> Real:
        """The partial in input i as it was given."""
        return select(self.p.swap, partial(1 - i), partial(i))

    def covariance(self) -> Real:
        raise NotImplementedError

    def by_mean(self, i: int) -> Real:
        raise NotImplementedError

    def by_variance(self, i: int) -> Real:
        raise NotImplementedError

    def by_covariance(self) -> Real:
        raise NotImplementedError

    def minus(self, a: Real, b: Real) -> Real:
        """a - b, or |a| + |b| where sizes are asked for."""
        return self.plus(a, -b) if not self.sizes else self.plus(a, b)

    def plus(self, a: Real, b: Real) -> Real:
        return abs(a) + abs(b) if self.sizes else a + b

    def held(self, value: Real) -> Real:
        """Within the range of the dtype: the largest number stands for what is beyond."""
        return within(value, largest(self.precision.scaled))

    def raised(self, value: Value) -> Real:
        """2^100 times a value, so that what multiplies it later meets a normal number."""
        g = self.g
        node = value.mantissa * self.boost
        half = len(value.factors) // 2
        for step in (*value.factors[:half], g.const(self.boost), *value.factors[half:]):
            node = node * step
        return node

    def lowered(self, value: Real, *factors: Real) -> Real:
        """2^-100 times a value and two factors."""
        for factor in factors:
            value = value * (factor * (1 / self.boost))
        return value

    def conditional(self, i: int) -> Real:
        """z_i: the other input's ratio, given that input i is at 0; with the sign of the covariance."""
        g, p = self.g, self.p
        first, second = p.total * p.q, p.gap * p.inverse_q
        both = first - second if i == 0 else first + second
        g.suspect(first, second, both, both * 0.5)
        return both * 0.5

    def other(self, i: int) -> Real:
        """The ratio of the other input than i, turned by the covariance's sign as z_i is."""
        return self.p.turned if i == 0 else self.p.ratio[0]

    def own(self, i: int) -> Real:
        return self.p.ratio[0] if i == 0 else self.p.turned

    def density(self) -> tuple[Value, Real]:
        """n, the bivariate density in units of s1 s2, as its exponential and what goes with that; 0 where infinite."""
        p = self.p
        factor = (p.q2 + p.one) * p.inverse_q * (1 / (4 * mpmath.pi))
        return p.f.exp(p.last_exponent, decays=True), select(p.singular, p.zero, factor)

    def core(self) -> Real:
        """K."""
        (total,) = self.p.sums(self.nodes, [lambda at: at.e * at.share])
        decay = self.p.decay()
        return self.p.f.apply(Value(decay.mantissa * total, decay.factors))


class Step(Writer):
    """Of [x >= 0]; with ``added``, of Phi(x)."""

    def covariance(self) -> Real:
        return self.p.signed(self.core())

    def by_covariance(self) -> Real:
        p = self.p
        e, factor = self.density()
        node = e.mantissa
        for step in (*e.factors[:1], p.inverse[0] * p.inverse[1], *e.factors[1:], factor):
            node = node * step
        return self.held(node)

    def bend(self, i: int) -> Real:
        """2^100 phi(a_i) (Phi(z_i) - Phi(b_i)): by a difference, or where that cancels by an integral."""
        p, f = self.p, self.p.f
        z, b = self.conditional(i), self.other(i)
        second = p.gap * p.inverse_q
        slope = self.plus(p.total, second) if i == 0 else self.minus(p.total, second)
        delta = slope * p.short * -0.5
        size = abs(delta)
        near = (size <= _NEAR) & (size * abs(b) <= _STEEP)
        delta = select(near, delta, p.zero)
        own = f.gauss(self.own(i))
        # Between the two: 1/(2 pi) exp(-a²/2 - b²/2) times the integral of exp(-delta x (b + delta x/2)).
        total = p.zero
        for node, weight in gauss_legendre(4):
            step = delta * node
            exponent = -(step * madd(step, 0.5, b))
            e = short_exp(self.precision.scaled, exponent)
            total = madd(e, weight, total)
        both = f.times(own, f.gauss(b))
        total = total * delta * (1 / (2 * mpmath.pi))
        inner = self.raised(Value(both.mantissa * total, both.factors))
        # Apart: the difference of the smaller tails, that beyond b and the one on the same side of z.
        above = p.zero < b
        tail = f.times(Value(f.mills(abs(b))), f.gauss(b))
        x = select(above, -z, z)
        difference = self.minus(self.raised(f.normal_cdf(x)), self.raised(tail))
        difference = select(above, -difference, difference)
        outer = own.mantissa * (1 / mpmath.sqrt(2 * mpmath.pi)) * difference
        for factor in own.factors:
            outer = outer * factor
        return select(near, inner, outer)

    def by_mean(self, i: int) -> Real:
        p = self.p
        return self.turned(i, self.lowered(self.bend(i), p.inverse[i], p.one))

    def by_variance(self, i: int) -> Real:
        p = self.p
        first = self.own(i) * self.bend(i)
        e, factor = self.density()
        total = self.plus(first, p.rho * self.raised(Value(e.mantissa * factor, e.factors)))
        inverse = p.inverse[i]
        return self.held(p.signed(self.lowered(total * -0.5, inverse, inverse)))

    def turned(self, i: int, value: Real) -> Real:
        """A partial in the mean: of input 1 with the sign of the covariance, which input 2's ratio has already."""
        return self.p.signed(value) if i == 0 else value


class Relu(Writer):
    """Of max(x, 0)."""

    def weight(self, at: At) -> Real:
        """rho - r, but for 2/(1 + Q²), times exp(M - exponent)."""
        p = self.p
        rise = at.beyond * madd(p.q, 2, at.beyond)  # q² - Q²
        return at.e * rise * at.share

    @property
    def double(self) -> Real:
        p = self.p
        return 1 / (p.q2 + p.one) * 2

    def upper(self, i: int) -> Real:
        f = self.p.f
        return f.apply(f.normal_cdf(self.p.ratio[i]))

    def both_above(self) -> Real:
        return self.upper(0) * self.upper(1)

    def covariance(self) -> Real:
        p = self.p
        (total,) = p.sums(self.nodes, [lambda at: self.weight(at) * at.share])
        decay = p.decay()
        node = total * self.double * decay.mantissa * p.both
        for step in (*decay.factors[:1], p.back_both, *decay.factors[1:]):
            node = node * step
        certain = p.none[0] | p.none[1]
        return madd(p.cov, self.both_above(), select(certain, p.zero, node))

    def by_covariance(self) -> Real:
        return self.plus(self.both_above(), self.p.signed(self.core()))

    def by_mean(self, i: int) -> Real:
        p, f = self.p, self.p.f
        plain, layered = p.sums(self.nodes, [self.weight, lambda at: self.weight(at) * at.inverse])
        quarter = self.double * 0.25
        first, second = p.total * plain, p.gap * layered
        inner = self.plus(first, second) if i == 0 else self.minus(first, second)
        decay = p.decay()
        inner = self.raised(Value(inner * quarter * decay.mantissa, decay.factors))
        own = f.gauss(self.own(i))
        below = f.times(own, f.normal_cdf(p.ratio[1 - i]))
        outer = below.mantissa * (1 / mpmath.sqrt(2 * mpmath.pi))
        outer = self.raised(Value(outer, below.factors)) * p.rho
        # The first term has the covariance's sign, the second that of b_i, turned or not.
        total = self.minus(p.signed(outer), inner if i == 0 else p.signed(inner))
        return self.lowered(total, p.sigma[1 - i], p.one)

    def by_variance(self, i: int) -> Real:
        p, f = self.p, self.p.f
        b = self.p.ratio[1 - i]
        half = p.gap * p.one if i == 0 else -p.gap
        share = 1 / (p.q2 + p.one)
        # b - rho a, its standard deviation given X_i = 0, and their ratio; in the signs of the inputs themselves.
        mean = (p.total * p.q2 - half) * share
        mean = p.signed(mean) if i == 0 else mean
        spread = p.q * 2 * share
        z = self.conditional(i)
        z = p.signed(z) if i == 0 else z
        given = f.times(Value(spread), self.excess(z))
        total = self.minus(self.raised(given), self.raised(self.excess(b)))
        moved = p.rho * p.ratio[i]
        moved = -p.signed(moved)
        above, was = p.zero < mean, p.zero < b
        line = select(above, select(was, moved, mean), select(was, -b, p.zero))
        total = self.plus(total, line * (self.boost * self.boost))
        own = f.gauss(self.own(i))
        node = own.mantissa * (0.5 / mpmath.sqrt(2 * mpmath.pi)) * total
        for factor in own.factors:
            node = node * factor
        return self.held(self.lowered(node, p.inverse[i], p.sigma[1 - i]))

    def excess(self, z: Real) -> Value:
        """E(Z - |z|)_+, Z standard normal."""
        g = self.g
        size = self.p.f.size(z, z < self.p.zero)
        most = g.const(self.precision.reach)
        size = select(most < size, most, size)
        tails = Tails(g, size, goal=self.precision.fit, reach=self.precision.reach)
        self.p.f.fits.append(tails.fit)
        e = self.p.f.gauss(size)
        return Value(e.mantissa * tails.j[1], e.factors)


def graph_of(
    of: type[Writer],
    precision: Precision,
    nodes: Nodes,
    outputs: tuple[str, ...],
    *,
    added: bool = False,
    sizes: bool = False,
) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of the outputs named, and what was fitted for it.

    Args:
        of: what writes the covariance of a function.
        precision: float32 or float64.
        nodes: of the integral over the correlation.
        outputs: of :data:`OUTPUTS` or :data:`PARTIALS`.
        added: whether a normal variable is added to either input.
        sizes: for each output the sum of the magnitudes of its terms instead.
    """
    writer = of(precision, nodes, added=added, sizes=sizes)
    for name in outputs:
        writer.g.output(name, writer.p.checked(writer.outputs[name]()))
    return writer.g, tuple(dict.fromkeys(writer.fits))
