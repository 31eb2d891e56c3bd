r"""The covariance of f(X1) and f(X2), jointly normal, for f(x) = x Phi(x), GELU: the graph of real operations.

By Price's theorem, with f' = Phi + x phi, f'' = (2 - x²) phi and expectations at the covariance s,

    Cov = c E f'(X1) E f'(X2) + ∫_0^c (c - s) E f''(X1) f''(X2) ds,

d/dc = E f'(X1) E f'(X2) + ∫ E f'' f'' ds, and d/dmu1 and d/dv1 are the same integrals with f'' of X1 differentiated
once more, and twice more and halved (in place of E f'(X1): E f''(X1), and E f'''(X1)/2).

A product of polynomials and of phi(x1) phi(x2) has an expectation under the normal law that these two make of
that of the inputs: with t_i = 1 + v_i, a = mu1/sqrt(t1), r = s/sqrt(t1 t2) and b alike, it has

    m_1 = (a - r b)/((1 - r²) sqrt(t1)),   S_11 = 1 - D_1,   D_1 = 1/(t1 (1 - r²)),   S_12 = r/(sqrt(t1 t2) (1 - r²)),

and weighs sqrt(t1 t2) ds times the bivariate density of a and b: in the coordinate q of
:mod:`momentgen.compiler.strategies.covariance.correlation` that is the integrand of Phi(x)'s covariance.  Polynomials p
and p2 of either variable have E p p2 = E p E p2 + S_12 E p' E p2' + S_12²/2 E p'' E p2''; written in m and D no
constants cancel:

    p = 2 - x²:           E p = 1 + D - m²,                     E p' = -2 m,              E p'' = -2;
    p = x³ - 4 x:         E p = m (m² - 1 - 3 D),               E p' = 3 m² - 1 - 3 D,    E p'' = 6 m;
    p = -x⁴ + 7 x² - 4:   E p = m² (1 + 6 D - m²) - D (1 + 3 D),
                          E p' = m (2 - 4 m² + 12 D),           E p'' = 2 - 12 m² + 12 D.
"""

from __future__ import annotations

from typing import NamedTuple

import mpmath

from momentgen.compiler.ir.graph import Real, madd
from momentgen.compiler.strategies.covariance.correlation import At
from momentgen.compiler.strategies.covariance.covariance_graph import Writer
from momentgen.compiler.strategies.formulas.functions import Value


class _Polynomial(NamedTuple):
    """Expectations of a polynomial and of its first two derivatives."""

    value: Real
    first: Real
    second: Real


class Gelu(Writer):
    """Of x Phi(x)."""

    def number(self, value: float) -> Real:
        return self.g.const(value)

    # --- of one input ------------------------------------------------------------
    def slope(self, i: int, order: int) -> Value:
        """E of the first, second or third derivative of f, the latter two but for 1/sqrt(t_i) and 1/t_i."""
        g, p, f = self.g, self.p, self.p.f
        a, one = p.ratio[i], p.one
        r = p.inverse[i]
        d = r * r  # D where nothing is known of the other input
        e = f.gauss(a)
        scale = self.number(1 / mpmath.sqrt(2 * mpmath.pi))
        if order == 1:
            line = a * d * scale
            tail = f.mills(abs(a))
            upper = one - f.apply(Value(tail * e.mantissa, e.factors))
            upper = self.plus(upper, f.apply(Value(line * e.mantissa, e.factors)))
            lower = Value(self.plus(tail, line) * e.mantissa, e.factors)
            return f.either(a < p.zero, lower, Value(upper))
        m = a * r
        square = m * m
        if order == 2:
            poly = self.minus(self.plus(one, d), square)
        else:
            # What is below the normal range has lost its digits, whatever multiplies it later.
            a = self.plus(a, g.const(mpmath.mpf(2) ** -126)) if self.sizes else a
            poly = a * self.minus(square, self.plus(one, d * self.number(3)))
        return Value(poly * scale * e.mantissa, e.factors)

    def line(self, i: int, order: int) -> Real:
        """c times E of the derivative of that order of f of input i, and of the first one of the other."""
        p = self.p
        cov, both = p.scaled_cov, p.f.times(self.slope(i, order), self.slope(1 - i, 1))
        back = p.back_both
        if order > 1:
            cov, back = p.cov * p.inverse[i], p.one
            cov = cov * p.inverse[i] if order > 2 else cov
        node = both.mantissa * cov
        half = len(both.factors) // 2
        for step in (*both.factors[:half], back, *both.factors[half:]):
            node = node * step
        return node

    # --- under phi(x1) phi(x2) ---------------------------------------------------
    def tilted(self, at: At, i: int) -> tuple[Real, Real, Real]:
        """sqrt(t_i) m_i, D_i and m_i² at one node."""
        p = self.p
        layer = p.gap * at.inverse
        h = self.plus(p.total, layer) if i == 0 else self.minus(p.total, layer)
        h = h * ((at.square + p.one) * self.number(0.25))
        m = h * p.inverse[i]
        return h, self.width(at) * (p.inverse[i] * p.inverse[i]), m * m

    def width(self, at: At) -> Real:
        """1/(1 - r²) = (1 + q²) (1 + 1/q²)/4."""
        return (at.square + self.p.one) * (at.inverse + self.p.one) * self.number(0.25)

    def polynomial(self, at: At, i: int, order: int) -> _Polynomial:
        """Of f's derivative of that order over phi, sqrt(t_i)^(order - 2 - k)-fold that of its k-th derivative.

        Of the fourth also q²-fold, as the square of h may be beyond the range of the dtype.
        """
        h, d, square = self.tilted(at, i)
        if order == 2:
            weight = self.p.inverse[i] * self.p.inverse[i]
            value = self.minus(self.plus(self.p.one, d), square)
            return _Polynomial(value, h * weight * self.number(-2), weight * self.number(-2))
        if order == 3:
            rest = self.plus(self.p.one, d * self.number(3))
            first = self.minus(square * self.number(3), rest)
            weight = self.p.inverse[i] * self.p.inverse[i] * self.number(6)
            return _Polynomial(h * self.minus(square, rest), first, h * weight)
        near = h * at.q
        half = (at.square + self.p.one) * self.number(0.5)
        value = near * near * self.minus(self.plus(self.p.one, d * self.number(6)), square)
        spread = half * half * self.plus(self.p.one, d * self.number(3))
        twice = self.plus(self.number(2), d * self.number(12))
        first = near * at.q * self.minus(twice, square * self.number(4))
        second = at.square * self.minus(twice, square * self.number(12))
        return _Polynomial(self.minus(value, spread), first, second)

    def together(self, at: At, i: int, order: int) -> Real:
        """E of f's derivative of that order, of input i, times f'' of the other; by the factor of `polynomial`."""
        p = self.p
        first, second = self.polynomial(at, i, order), self.polynomial(at, 1 - i, 2)
        s = (p.one - at.square) * at.share * self.width(at)  # sqrt(t1 t2) S_12
        half = s * self.number(0.5) * (first.second * second.second)
        inner = self.plus(first.first * second.first, half)
        return self.plus(first.value * second.value, s * inner)

    def rise(self, at: At, order: int) -> Real:
        """(rho - r) times exp(M - exponent)/(1 + q²), but for 2/(1 + Q²); of the fourth order over q²."""
        p = self.p
        rise = at.beyond * madd(p.q, 2, at.beyond)  # q² - Q²
        rise = rise * at.inverse if order == 4 else rise
        return at.e * rise * (at.share * at.share)

    def curved(self, i: int, order: int) -> Real:
        """The integral with the derivative of that order of f of input i."""
        p = self.p
        (total,) = p.sums(self.nodes, [lambda at: self.rise(at, order) * self.together(at, i, order)])
        decay = p.decay()
        top = 1 / (p.q2 + p.one) * self.number(2)
        node = total * top * decay.mantissa
        if order == 2:
            node = node * p.both
            steps = (*decay.factors[:1], p.back_both, *decay.factors[1:])
        else:
            steps = (*decay.factors[:1], p.sigma[1 - i], *decay.factors[1:])
            steps = (*steps, p.inverse[i]) if order == 4 else steps
        for step in steps:
            node = node * step
        return node

    # --- outputs -----------------------------------------------------------------
    def covariance(self) -> Real:
        return self.plus(self.line(0, 1), self.curved(0, 2))

    def by_mean(self, i: int) -> Real:
        curved = self.curved(i, 3)
        # The third derivative is odd, and input 2 was turned with the covariance's sign.
        return self.plus(self.line(i, 2), curved if i == 0 else self.p.signed(curved))

    def by_variance(self, i: int) -> Real:
        total = self.plus(self.line(i, 3), self.curved(i, 4))
        return total * self.number(0.5)

    def by_covariance(self) -> Real:
        p = self.p
        (total,) = p.sums(self.nodes, [lambda at: at.e * at.share * self.together(at, 0, 2)])
        decay = p.decay()
        curved = p.f.apply(Value(decay.mantissa * total, decay.factors))
        both = p.f.times(self.slope(0, 1), self.slope(1, 1))
        return self.plus(p.f.apply(both), p.signed(curved))
