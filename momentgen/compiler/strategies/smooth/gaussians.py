r"""Gaussians times polynomials, sines and cosines, as exp(-x²/2) cos(5 x), in closed form.

f is a sum of c x^n exp(-a x² + b x), a > 0, b complex.  About x = centre its b is i w, and x^n exp(-a x² + i w x) is a
sum of derivatives of exp(-a x² + i w x), whose mean is

    G = s^(-1/2) exp((-a mu² + i w mu - w² v/2)/s),   s = 1 + 2 a v,
    d^(k+1)G/dmu^(k+1) = (i w - 2 a mu)/s d^kG/dmu^k - (2 a/s) k d^(k-1)G/dmu^(k-1).

f² is such a sum too.  Below a variance v* the variance is Σ_{k>=1} v^k/k! (E f^(k))², whose terms are positive, above
it E f² - (E f)².
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import mpmath
import numpy as np
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact.piecewise_truth import BallTruth, QuadratureTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import analyse
from momentgen.compiler.ir.graph import Graph, Real, exp_factor, exp_mantissa, madd, select, sqrt
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.measure.moments import MomentsMeasure, measure_for
from momentgen.compiler.strategies.elementary.entire_graph import sine_and_cosine
from momentgen.compiler.strategies.elementary.exponentials import factored_terms
from momentgen.compiler.strategies.kit import checked, like, number, within
from momentgen.compiler.strategies.tolerated import exact_variant, four_graphs, largest_errors, unmet
from momentgen.errors import BuildError

_LOWEST = -100.0  # of exponents; what is below counts as 0
_WIDEST = 2.0**126  # of s
_SHARES = (1 / 4, 1 / 8, 1 / 16)  # of 1/(w² + 2 a): v*
_COUNTS = range(3, 15)  # terms of the series below it
_SERIES = 1 / 50  # of the tolerance, left to its truncation
_FINE = 4  # more terms of it in float64


@dataclass(frozen=True)
class _Bell:
    """exp(-a (x - centre)² + i w (x - centre))."""

    a: sp.Expr
    w: sp.Expr
    centre: sp.Expr

    @property
    def rate(self) -> float:
        """w² + 2 a: 1/rate is the square of the length on which it bends."""
        return float(sp.N(self.w**2 + 2 * self.a))


#: per bell of a conjugate pair that with w >= 0, the coefficients of its derivatives; the real part counts
_Terms = Mapping[_Bell, Sequence[sp.Expr]]


def terms_of(f: sp.Expr) -> dict[tuple[sp.Expr, sp.Expr, int], sp.Expr] | None:
    """(a, b, n) -> c with f = Σ c x^n exp(-a x² + b x), a > 0; None if f is no such sum.

    >>> from momentgen.rule.symbols import x
    >>> terms_of(x * sp.exp(1 - x**2))
    {(1, 0, 1): E}
    """
    total: dict[tuple[sp.Expr, sp.Expr, int], sp.Expr] = {}
    factored = factored_terms(f)
    if factored is None:
        return None
    for c, n, poly in factored:
        if poly.degree() != 2 or not poly.nth(2).is_negative or not (c * poly.nth(1)).is_number:
            return None
        key = -poly.nth(2), sp.expand(poly.nth(1)), n
        total[key] = total.get(key, sp.Integer(0)) + c
    return total


def _bells(terms: Mapping[tuple[sp.Expr, sp.Expr, int], sp.Expr]) -> dict[_Bell, list[sp.Expr]]:
    """The same by derivatives of bells: y^n g = Σ_j d_j D^j g, from y g = (i w g - D g)/(2 a)."""
    total: dict[_Bell, list[sp.Expr]] = {}
    for (a, b, n), c in terms.items():
        real, w = sp.re(b), sp.im(b)
        if w < 0:  # the conjugate of another
            continue
        centre = real / (2 * a)
        weight = c * sp.exp(a * centre**2) * sp.exp(sp.I * w * centre) * (2 if w > 0 else 1)
        row: list[sp.Expr] = [sp.Integer(1)]  # of (y + centre)^m g, m = 0, 1, ...
        for _ in range(n):
            # y D^j g = D^j(y g) - j D^(j-1) g
            after = [sp.Integer(0)] * (len(row) + 1)
            for j, d in enumerate(row):
                after[j] += d * (sp.I * w / (2 * a) + centre)
                after[j + 1] -= d / (2 * a)
                if j:
                    after[j - 1] -= j * d
            row = after
        known = total.setdefault(_Bell(a, w, centre), [])
        known += [sp.Integer(0)] * (len(row) - len(known))
        for j, d in enumerate(row):
            known[j] = sp.expand(known[j] + weight * d, complex=True)
    return total


def _squared(terms: Mapping[tuple[sp.Expr, sp.Expr, int], sp.Expr]) -> dict[tuple[sp.Expr, sp.Expr, int], sp.Expr]:
    total: dict[tuple[sp.Expr, sp.Expr, int], sp.Expr] = {}
    for (a, b, n), c in terms.items():
        for (d, e, m), h in terms.items():
            key = a + d, sp.expand(b + e), n + m
            total[key] = total.get(key, sp.Integer(0)) + c * h
    return {key: w for key, c in total.items() if (w := sp.expand(c)) != 0}


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None.

    Raises:
        BuildError: if f cannot be looked at.
    """
    expected = "expected Gaussians times polynomials and a sine or cosine"
    if derivation.kinks or derivation.rule.parameters or derivation.mean is None:
        return expected
    terms = terms_of(derivation.pieces.pieces[0].expr)
    if terms is None or not any(sp.im(b) != 0 for _, b, _ in terms):
        return expected
    return unmet(derivation, kinks=False, exponentially=True)


class _Writer:
    """Writes to one graph.

    Args:
        graph: with inputs ``mean`` and ``var``.
        float64: whether for the PyTorch form.
        first, second: f and f² by bells.
    """

    def __init__(self, graph: Graph, float64: bool, first: _Terms, second: _Terms) -> None:
        self.g, self.float64, self.first, self.second = graph, float64, first, second
        self.fits: list[Polynomial] = []
        g = graph
        self.mu, v = g.input("mean"), g.input("var")
        self.v = checked(v)
        self._rows: dict[_Bell, list[tuple[Real, Real | None]]] = {}
        self._steps: dict[_Bell, tuple[Real, Real | None, Real]] = {}

    def number(self, value: sp.Expr) -> Real:
        return number(self.g, value)

    def exp(self, exponent: Real) -> Real:
        """e^x for x <= 0; 0 far to the left."""
        below = exponent < _LOWEST
        held = select(below, _LOWEST, exponent)
        value = exp_mantissa(held)
        if not self.float64:
            value = value * exp_factor(held, 0, 2) * exp_factor(held, 1, 2)
        return select(below, 0, value)

    def derivative(self, bell: _Bell, order: int) -> tuple[Real, Real | None]:
        """d^order G/dmu^order; without an imaginary part where w = 0."""
        rows = self._rows.get(bell)
        if rows is None:
            rows = self._rows[bell] = [self._mean(bell)]
        slope, turn, bend = self._steps[bell]
        while len(rows) <= order:
            k = len(rows) - 1
            re, im = rows[k]
            next_re = slope * re
            next_im = None if im is None else slope * im
            if im is not None and next_im is not None and turn is not None:
                next_re = madd(-turn, im, next_re)
                next_im = madd(turn, re, next_im)
            if k:
                weight, before = -k * bend, rows[k - 1]
                next_re = madd(weight, before[0], next_re)
                if next_im is not None and before[1] is not None:
                    next_im = madd(weight, before[1], next_im)
            rows.append((next_re, next_im))
        return rows[order]

    def _mean(self, bell: _Bell) -> tuple[Real, Real | None]:
        """G."""
        a, widest = bell.a, _WIDEST / float(2 * bell.a)
        v = select(self.v > widest, widest, self.v)
        inverse = 1 / madd(self.number(2 * a), v, 1)
        root = sqrt(inverse)
        away = self.mu if bell.centre == 0 else self.mu - self.number(bell.centre)
        z = within(away * root, math.sqrt(-_LOWEST / float(a)) * 1.01)
        exponent = z * z * self.number(-a)
        bend = self.number(2 * a) * inverse
        slope = self.number(-2 * a) * z * root
        if bell.w == 0:
            self._steps[bell] = slope, None, bend
            return root * self.exp(exponent), None
        exponent = madd(v * inverse, self.number(-(bell.w**2) / 2), exponent)
        sine, cosine = sine_and_cosine(1e-17 if self.float64 else 1e-8, self.number(bell.w) * z * root, self.fits)
        size = root * self.exp(exponent)
        self._steps[bell] = slope, self.number(bell.w) * inverse, bend
        return size * cosine, size * sine

    def moment(self, terms: _Terms, order: int) -> Real:
        """d^order/dmu^order of the mean of such a sum."""
        total = self.g.const(0)
        for bell, row in terms.items():
            for j, d in enumerate(row):
                re, im = self.derivative(bell, j + order)
                total = madd(self.number(sp.re(d)), re, total)
                if im is not None:
                    total = madd(self.number(-sp.im(d)), im, total)
        return total

    def values(self, switch: float, count: int) -> dict[str, Real]:
        """The six outputs: the variance by its series of ``count`` terms below ``switch``."""
        zero = self.g.const(0)
        near = self.v < switch
        v = select(near, self.v, switch)
        m = [self.moment(self.first, k) for k in range(count + 3)]
        s = [self.moment(self.second, k) for k in range(3)]
        var = by_mu = by_v = zero
        for k in range(count, -1, -1):
            step = v * (mpmath.mpf(1) / (k + 1))
            var = madd(step, var, m[k] * m[k] if k else zero)
            by_mu = madd(step, by_mu, m[k] * m[k + 1] if k else zero)
            by_v = madd(step, by_v, madd(m[k + 1], m[k + 1], m[k] * m[k + 2] if k else zero))
        far = {
            "var": madd(-m[0], m[0], s[0]),
            "dvar_dmu": madd(-2 * m[0], m[1], s[1]),
            "dvar_dvar": madd(-m[0], m[2], 0.5 * s[2]),
        }
        close = {"var": var, "dvar_dmu": 2 * by_mu, "dvar_dvar": by_v}
        spread = {name: select(near, close[name], far[name]) for name in far}
        spread["var"] = select(spread["var"] < 0, 0, spread["var"])
        return {"mean": m[0], "dmean_dmu": m[1], "dmean_dvar": 0.5 * m[2], **spread}


@dataclass(frozen=True)
class Bells:
    """f and f² by bells, and what is written of them."""

    first: _Terms
    second: _Terms

    @staticmethod
    def of(f: sp.Expr) -> Bells:
        """Of f."""
        terms = terms_of(f) or {}
        return Bells(_bells(terms), _bells(_squared(terms)))

    @cached_property
    def rate(self) -> float:
        """The largest of the bells."""
        return max(bell.rate for bell in self.first)

    def graph(
        self, outputs: tuple[str, ...], float64: bool, switch: float, count: int
    ) -> tuple[Graph, tuple[Polynomial, ...]]:
        """The graph of ``OUTPUTS`` or ``PARTIALS``, and what was fitted for it."""
        g = Graph(("mean", "var"))
        writer = _Writer(g, float64, self.first, self.second)
        values = writer.values(switch, count)
        for name in outputs:
            value = values[name]
            if name in OUTPUTS:
                value = like(value, writer.mu, writer.v)
            g.output(name, value)
        return g, tuple(dict.fromkeys(writer.fits))


def _missed(made: Bells, measure: MomentsMeasure, truth: QuadratureTruth, switch: float, count: int) -> float:
    """The series' largest error just below v*, over the tolerance."""
    reach = 6 / math.sqrt(2 * min(float(bell.a) for bell in made.first))
    centres = sorted({float(bell.centre) for bell in made.first})
    mean = np.linspace(centres[0] - reach, centres[-1] + reach, 241).astype(np.float32)
    var = np.full(mean.shape, switch * 0.999, np.float32)
    missed = largest_errors(lambda outputs: made.graph(outputs, True, switch, count)[0], truth, measure, mean, var)
    return max(missed.values())


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``.

    Raises:
        BuildError: if the variance's series does not come near enough.
    """
    rule = derivation.rule
    f = analyse(rule.name, derivation.pieces, {})
    truth, made = QuadratureTruth(f), Bells.of(derivation.pieces.pieces[0].expr)
    measure = measure_for(f, truth)
    for share, count in ((share, count) for share in _SHARES for count in _COUNTS):
        switch = float(np.float32(share / made.rate))
        missed = _missed(made, measure, truth, switch, count)
        if missed <= _SERIES:
            break
    else:
        cause = f"the variance's series misses {missed:.3g} of the tolerance at v = {switch:.4g}"
        raise BuildError(rule.name, "strategies", cause, rule.f)
    graphs, fits = four_graphs(
        lambda outputs, float64: made.graph(outputs, float64, switch, count + (_FINE if float64 else 0))
    )
    yield exact_variant(
        f,
        graphs,
        truth,
        measure,
        rigorous=BallTruth(f),
        box={"mu": (f.centre - 12.0 * f.length, f.centre + 12.0 * f.length), "log2_var": (-40.0, 30.0)},
        fits=fits,
        facts={"switch": switch, "series_terms": count},
        doc=f"moments in closed form; below v = {switch:.4g} the variance by {count} terms of its series",
    )
