r"""Exact covariances of f(X1) and f(X2), jointly normal, and their partials: from rigorous balls.

One integral by python-flint, K of :mod:`momentgen.compiler.strategies.covariance.covariance_graph`, over q from Q to 1,
in which the integrand is analytic; all else is closed in it and in Phi and phi, by other formulas than those of the
graphs (the truncated moments of Rosenbaum 1961).  ReLU's are taken where both ratios are negative, in which nothing
large cancels: max(x, 0) = x + max(-x, 0).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import acb, arb, ctx

from momentgen.compiler.strategies.covariance.correlation import gauss_legendre
from momentgen.compiler.toolchain.arrays import F64

_BITS, _CORE_BITS = 256, 128  # the integrand of K is positive: nothing cancels
_SHARE, _NOTHING = arb(2) ** -70, arb(2) ** -3000  # error of K: relative to it, and where it is enough
#: of the integrals of GELU
_NODES = 120
_NUMBERS = arb(2), arb(3), arb(4), arb(6)  # converting a number takes as long as an operation
_FAR = 40  # |mu|/s beyond which exp(-mu²/(2 s²)) is 0 beside every tolerance
_NAMES = ("covariance", *(f"dcovariance_d{name}" for name in ("mu1", "mu2", "var1", "var2", "cov")))
_Row = tuple[Any, ...]


class CovarianceTruth:
    """The outputs of a rule over arrays of points; survives pickling.

    Args:
        kind: ``step``, ``normal_cdf``, ``relu`` or ``gelu``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, *given: Any) -> dict[str, F64]:
        """Exact values by output.

        Args:
            given: the five inputs, float32 arrays of shape (n,); then the parameters, of which there are none.
        """
        *points, _ = given
        rows = [self.at(*map(float, point)) for point in zip(*points, strict=True)]
        table = np.array(rows, np.float64).reshape(-1, len(_NAMES))
        return {name: np.ascontiguousarray(column) for name, column in zip(_NAMES, table.T, strict=True)}

    def at(self, mean1: float, var1: float, mean2: float, var2: float, cov: float) -> tuple[float, ...]:
        """The outputs at one point."""
        return _at(self.kind, mean1, var1, mean2, var2, cov)


@functools.lru_cache(maxsize=2**17)  # a build asks for many points several times
def _at(kind: str, *point: float) -> tuple[float, ...]:
    with ctx.workprec(_BITS):
        return tuple(float(value) for value in _KINDS[kind](*map(arb, point)))


def _cdf(z: arb) -> arb:
    if z < -60:
        return arb(0)
    return arb(1) if z > 60 else (-z / arb(2).sqrt()).erfc() / 2


def _pdf(z: arb) -> arb:
    return arb(0) if abs(z) > 60 else (-z * z / 2).exp() / (2 * arb.pi()).sqrt()


def _excess(z: arb) -> arb:
    """E(Z + z)_+, z <= 0 or not too large."""
    return z * _cdf(z) + _pdf(z)


def core(a: arb, b: arb, q: arb) -> arb:
    """K for a positive correlation: Q = ``q``, 0 <= Q <= 1."""
    if abs(a) > _FAR or abs(b) > _FAR:
        return arb(0)
    first, second = (a + b) * (a + b) / 8, (a - b) * (a - b) / 8  # of a ball about 0, ** 2 is NaN
    with ctx.workprec(_CORE_BITS):
        # Complex already: where a real operand meets a complex one, converting it takes longer than the operation.
        down, layer, one = acb(-first * 1), acb(second * 1), acb(1)

        def integrand(at: acb, _analytic: bool) -> acb:
            square = at * at
            return (down * square - layer / square).exp() / (one + square)

        def plain(at: acb, _analytic: bool) -> acb:
            square = at * at
            return (down * square).exp() / (one + square)

        if second.contains(0):  # without it the integrand is analytic at 0
            whole = acb.integral(plain, acb(q), acb(1), rel_tol=_SHARE, abs_tol=_NOTHING, use_heap=True)
        else:
            low = (second / (2 * (first + second) + 200)).sqrt()  # below it nothing is left beside what is at q = 1
            start = low if low > q else q
            whole = acb.integral(integrand, acb(start), acb(1), rel_tol=_SHARE, abs_tol=_NOTHING, use_heap=True)
        return whole.real * (-first - second).exp() / arb.pi()


@dataclass(frozen=True)
class _Joint:
    """Ratios a and b, the correlation, s̄ = sqrt(1 - rho²), and K; conditional ratios and density follow."""

    a: arb
    b: arb
    rho: arb
    spread: arb
    core: arb

    @classmethod
    def of(cls, mean1: arb, square1: arb, mean2: arb, square2: arb, cov: arb) -> _Joint:
        s1, s2 = square1.sqrt(), square2.sqrt()
        a, b, both = mean1 / s1, mean2 / s2, s1 * s2
        left = square1 * square2 - cov * cov
        if not left > 0:
            left = arb(0)
        q = left.sqrt() / (both + abs(cov))
        k = arb(0) if cov == 0 else core(a, b, q) if cov > 0 else -core(a, -b, q)
        return cls(a, b, cov / both, left.sqrt() / both, k)

    @property
    def given_first(self) -> arb:
        """The ratio of X2 given X1 = 0."""
        return self._given(self.b - self.rho * self.a, self.a, self.b)

    @property
    def given_second(self) -> arb:
        return self._given(self.a - self.rho * self.b, self.a, self.b)

    def _given(self, mean: arb, a: arb, b: arb) -> arb:
        if self.spread > 0:
            return mean / self.spread
        gap = a - b if self.rho > 0 else a + b  # all but singular: the ratio's limit
        if gap.contains(0):
            return arb(0) if not mean.contains(0) else mean * 0
        return mean * arb(2) ** 300

    @property
    def density(self) -> arb:
        """In units of s1 s2; 0 where it is infinite, or nearly so far out that it is 0."""
        if not self.spread > 0:
            return arb(0)
        z = self.given_first
        return arb(0) if abs(self.a) > 60 else _pdf(self.a) * _pdf(z) / self.spread

    def mirrored(self, first: bool, second: bool) -> _Joint:
        """With the signs of inputs changed."""
        a, b = -self.a if first else self.a, -self.b if second else self.b
        same = first == second
        return _Joint(a, b, self.rho if same else -self.rho, self.spread, self.core if same else -self.core)


def _slope(pair: _Joint) -> tuple[arb, arb]:
    """phi(a) (Phi(z1) - Phi(b)), and the same of the other input; without cancellation of large tails."""
    rows = []
    for own, other, z in ((pair.a, pair.b, pair.given_first), (pair.b, pair.a, pair.given_second)):
        difference = _cdf(-other) - _cdf(-z) if other > 0 else _cdf(z) - _cdf(other)
        rows.append(_pdf(own) * difference)
    return rows[0], rows[1]


def _step(mean1: arb, var1: arb, mean2: arb, var2: arb, cov: arb, added: int = 0) -> _Row:
    square1, square2 = var1 + added, var2 + added
    if square1 == 0 or square2 == 0:
        return (0.0,) * len(_NAMES)
    pair = _Joint.of(mean1, square1, mean2, square2, cov)
    first, second = _slope(pair)
    n = pair.density
    by_variance = (
        -(own * slope + pair.rho * n) / (2 * square) if abs(own) < _FAR else -pair.rho * n / (2 * square)
        for own, slope, square in ((pair.a, first, square1), (pair.b, second, square2))
    )
    s1, s2 = square1.sqrt(), square2.sqrt()
    return (pair.core, first / s1, second / s2, *by_variance, n / (s1 * s2))


def _normal_cdf(mean1: arb, var1: arb, mean2: arb, var2: arb, cov: arb) -> _Row:
    return _step(mean1, var1, mean2, var2, cov, added=1)


def _relu(mean1: arb, var1: arb, mean2: arb, var2: arb, cov: arb) -> _Row:
    if var1 == 0 or var2 == 0:
        above = [
            (arb(1) if m > 0 else arb(0) if m < 0 else arb(0.5)) if v == 0 else _cdf(m / v.sqrt())
            for m, v in ((mean1, var1), (mean2, var2))
        ]
        return (*(0.0,) * (len(_NAMES) - 1), above[0] * above[1])
    s1, s2 = var1.sqrt(), var2.sqrt()
    pair = _Joint.of(mean1, var1, mean2, var2, cov)
    up1, up2 = bool(pair.a > 0), bool(pair.b > 0)
    low = pair.mirrored(up1, up2)
    far = abs(pair.a) > _FAR or abs(pair.b) > _FAR
    # Cov(X1+, X2+) of the mirrored pair, in units of s1 s2, and what the lines add to it.
    value = arb(0)
    if not far:
        joint = _cdf(low.a) * _cdf(low.b) + low.core
        value = (low.a * low.b + low.rho) * joint + low.spread * low.spread * low.density
        value += low.a * _pdf(low.b) * _cdf(low.given_second) + low.b * _pdf(low.a) * _cdf(low.given_first)
        value -= _excess(low.a) * _excess(low.b)
    if up1 and up2:
        value += pair.rho * (1 - _cdf(low.a) - _cdf(low.b))
    elif up1 or up2:
        value += pair.rho * _cdf(low.b if up1 else low.a)
    return (
        s1 * s2 * value,
        s2 * _by_mean(pair, low, up1, up2, far),
        s1 * _by_mean(_swapped(pair), _swapped(low), up2, up1, far),
        s2 / s1 * _by_variance(pair),
        s1 / s2 * _by_variance(_swapped(pair)),
        _cdf(pair.a) * _cdf(pair.b) + pair.core,
    )


def _swapped(pair: _Joint) -> _Joint:
    return _Joint(pair.b, pair.a, pair.rho, pair.spread, pair.core)


def _by_mean(pair: _Joint, low: _Joint, up1: bool, up2: bool, far: bool) -> arb:
    """Cov([X1 > 0], X2+) in units of s2."""
    found = arb(0)
    if not far:
        found = low.b * low.core + low.rho * _pdf(low.a) * _cdf(low.given_first)
        found += _pdf(low.b) * (_cdf(low.given_second) - _cdf(low.a))
    if up1:
        found = -found
    return found + pair.rho * _pdf(pair.a) if up2 else found


def _by_variance(pair: _Joint) -> arb:
    """phi(a) (E(X2+ | X1 = 0) - E X2+)/2, in units of s2."""
    if abs(pair.a) > _FAR:
        return arb(0)
    z = pair.given_first
    if pair.b > 0:
        given = pair.spread * _excess(-z) if z > -60 else -(pair.b - pair.rho * pair.a)
        return _pdf(pair.a) * (-pair.rho * pair.a + given - _excess(-pair.b)) / 2
    given = pair.spread * _excess(z) if z < 60 else pair.b - pair.rho * pair.a
    return _pdf(pair.a) * (given - _excess(pair.b)) / 2


def _moments(m: arb, s: arb) -> tuple[tuple[arb, ...], ...]:
    """The means of p and of its derivatives for p = 2 - x², x³ - 4x and 7x² - x⁴ - 4, X ~ N(m, s).

    These are beside phi in the second, third and fourth derivatives of GELU.  That of the first's second derivative,
    -2, is left out.
    """
    two, three, four, six = _NUMBERS
    k = m * m
    square = k + s
    slope, twice = three * square - four, k + k
    bend = -two - four * slope
    third = m * (slope - twice)  # E X³ is (3 E X² - 2 m²) m
    fourth = square * (three - slope) + twice * k - four  # E X⁴ is 3 (E X²)² - 2 m⁴
    return (two - square, -two * m), (third, slope, six * m), (fourth, m * (bend + four * twice), bend)


def _gelu(mean1: arb, var1: arb, mean2: arb, var2: arb, cov: arb) -> _Row:
    t1, t2 = 1 + var1, 1 + var2
    s1, s2 = t1.sqrt(), t2.sqrt()
    a, b = mean1 / s1, mean2 / s2
    slopes = []
    for ratio, t, s in ((a, t1, s1), (b, t2, s2)):
        density = _pdf(ratio) / s
        polynomials = _moments(ratio / s, 1 - 1 / t)
        slopes.append([_cdf(ratio) + _pdf(ratio) * ratio / t, density * polynomials[0][0], density * polynomials[1][0]])
    (f1, g1, h1), (f2, g2, h2) = slopes
    k, by1, by2, twice1, twice2, by_cov = _curved(a, b, s1, s2, cov)
    return (
        cov * f1 * f2 + k,
        cov * g1 * f2 + by1,
        cov * f1 * g2 + by2,
        (cov * h1 * f2 + twice1) / 2,
        (cov * f1 * h2 + twice2) / 2,
        f1 * f2 + by_cov,
    )


def _curved(a: arb, b: arb, s1: arb, s2: arb, cov: arb) -> _Row:
    """Integrals over s from 0 to c of E f^(2 + i)(X1) f^(2 + j)(X2) at the covariance s, all but the last times c - s.

    By 120 nodes of Gauss and Legendre, in q = lo + (hi - lo) x^5: that is off by less than 1e-11 of the largest value.
    """
    if abs(a) > _FAR or abs(b) > _FAR or cov == 0:
        return (arb(0),) * 6
    sign = 1 if cov > 0 else -1
    rho, b = abs(cov) / (s1 * s2), sign * b
    q = ((s1 * s2) ** 2 - cov * cov).sqrt() / (s1 * s2 + abs(cov))
    lo, hi = _range(float(a), float(b), q)
    length, one, two, quarter = hi - lo, arb(1), arb(2), arb(1) / 4
    per1, per2 = 1 / s1, 1 / s2
    share1, share2, both = per1 * per1, per2 * per2, per1 * per2
    first, second = (a + b) * (a + b) / 8, (a - b) * (a - b) / 8
    value = by1 = by2 = twice1 = twice2 = plain = arb(0)
    for place, weight in _places():
        at = lo + length * place
        square = at * at
        inverse = one / square
        above = one + square
        r, wide = (one - square) / above, (square + two + inverse) * quarter  # 1/(1 - r²)
        density = weight * (-first * square - second * inverse).exp() / above
        p = _moments((a - r * b) * wide * per1, one - wide * share1)
        q = _moments((b - r * a) * wide * per2, one - wide * share2)
        # E p(X1) q(X2) = p0 q0 + t p1 q1 + t²/2 p2 q2 for a covariance t, p_k the mean of the k-th derivative.
        t = r * wide * both
        (p0, p1), (q0, q1) = p[0], q[0]  # and p2 = q2 = -2
        together = density * (p0 * q0 + t * (p1 * q1 + t + t))
        plain += together
        gap = rho - r
        value += gap * together
        weight0 = density * gap
        weight1 = weight0 * t
        weight2 = -weight1 * t
        x, y = weight0 * q0, weight1 * q1
        by1 += p[1][0] * x + p[1][1] * y + p[1][2] * weight2
        twice1 += p[2][0] * x + p[2][1] * y + p[2][2] * weight2
        x, y = weight0 * p0, weight1 * p1
        by2 += q[1][0] * x + q[1][1] * y + q[1][2] * weight2
        twice2 += q[2][0] * x + q[2][1] * y + q[2][2] * weight2
    scale = length * (-first - second).exp() / arb.pi()
    weighted = [scale * total for total in (value, by1, by2, twice1, twice2)]
    plain *= scale
    # An odd derivative of the second input, and ds, have the sign of the covariance; (c - s) ds has none.
    signs = (1, 1, sign, 1, 1)
    return (*(turned * s1 * s2 * value for turned, value in zip(signs, weighted, strict=True)), sign * plain)


@functools.cache
def _places() -> list[tuple[arb, arb]]:
    """x^5 and 5 x^4 times the weight of the nodes of Gauss and Legendre."""
    with ctx.workprec(_BITS):
        nodes = [(arb(str(x)), arb(str(weight))) for x, weight in gauss_legendre(_NODES)]
        return [(x**5, weight * 5 * x**4) for x, weight in nodes]


def _range(a: float, b: float, q: arb) -> tuple[arb, arb]:
    """Where the exponent is at most 60 above the least, as in the graphs."""
    first, second, least = (a + b) ** 2 / 8, (a - b) ** 2 / 8, float(q) ** 2
    place = min(max(abs(a - b) / max(abs(a + b), 1e-300), least), 1.0)
    rise = first * place + (second / place if place else 0.0)
    inner = (rise + 60) ** 2 - 4 * first * second
    top = rise + 60 + max(inner, 0.0) ** 0.5
    low, high = 2 * second / top, top / (2 * first) if first else 2.0
    return (arb(low).sqrt() if low > least else q), (arb(high).sqrt() if high < 1 else arb(1))


_KINDS: Mapping[str, Callable[..., _Row]] = {"step": _step, "normal_cdf": _normal_cdf, "relu": _relu, "gelu": _gelu}
