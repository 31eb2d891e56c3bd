r"""Elementary moments of sums of terms x^k e^(b x), b complex: their graphs, over what ``entire_graph`` shares.

Closed forms come as they are in :mod:`momentgen.compiler.strategies.elementary.exponentials`; the variance and its
partials are Hermite series below a variance where the closed forms begin to cancel, and every term of the series of V
is positive. Sines and cosines of sums of angles that are there already are products.

Terms that grow are summed in units of the largest of their exponentials, wherever that is above e^60: a sum then has
the sign and the digits of what it is even where every term is beyond range, and overflows only in the end, when it is
multiplied by the unit.  Exponents are compared, and taken from that of the unit, rate by rate: (p - P) mu + (q - Q) v
keeps what a difference of two rounded exponents would lose.  Far out, where this in turn cancels, outputs are NaN.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import sympy as sp

from momentgen.compiler.ir.graph import Real, exp_factor, exp_mantissa, first_word, madd, second_word, select, sqrt
from momentgen.compiler.strategies.elementary.entire_graph import CANCELS, TURNED, Writer
from momentgen.compiler.strategies.elementary.exponentials import Coefficients, Moment, Terms, number
from momentgen.compiler.strategies.kit import within

_LARGE = 60  # an exponent from which on it is the unit: e^60 leaves room for 2^41 in what it multiplies
_LOST, _LITTLE = (
    2.0**20,
    2.0**-10,
)  # an exponent beyond which a sum of less than that of its smallest coefficient is noise
_EXPONENT = 2.0**96  # mu and v in exponents are held within that: no exponent overflows, and the largest stays it
_MOST, _MOST64 = 340, 1400  # of a unit's exponent: whatever it multiplies overflows


@dataclass(frozen=True)
class Closed:
    """The outputs of f as moments, and E f^(k), k = 0, 1, ..., ``count`` + 2.

    Attributes:
        outputs: the six, in closed form.
        series: E f^(k): V = Σ_{k>=1} v^k/k! (E f^(k))².
        below: the variance below which the series serves; None where it ends, and serves everywhere.
        count: how many of its terms are taken.
        grows: whether f outgrows a line.
    """

    outputs: Mapping[str, Moment]
    series: tuple[Moment, ...]
    below: Any
    count: int
    grows: bool

    @staticmethod
    def of(terms: Terms, below: Any, count: int, grows: bool) -> Closed:
        """All moments that are needed for f."""
        mean = terms.expectation()
        var = terms.squared().expectation() - mean * mean
        outputs = {"mean": mean, "var": var}
        for name, moment in (("mean", mean), ("var", var)):
            outputs |= {f"d{name}_dmu": moment.derivative(0), f"d{name}_dvar": moment.derivative(1)}
        series = [mean]
        for _ in range(count + 2):
            series.append(series[-1].derivative(0))
        return Closed(outputs, tuple(series), below, count, grows)


@dataclass(frozen=True)
class Unit:
    """e^value, value = by_mu·mu + by_v·v: the largest of some exponentials where that is large, else 1; nodes."""

    by_mu: Real
    by_v: Real
    value: Real


class SumWriter:
    """Writes moments, each shared value once.

    Attributes:
        sure: 1, or NaN where exponents have lost their digits; None where there are none.
    """

    def __init__(self, writer: Writer, closed: Closed) -> None:
        self.writer, self.g, self.closed = writer, writer.g, closed
        self.angles: dict[tuple[sp.Expr, sp.Expr], tuple[Real, Real]] = {}
        self.lost: list[Real] = []
        self.sure: Real | None = None
        for (p, q), _ in closed.outputs["mean"].real_parts():
            self.angle(sp.im(p), sp.im(q))

    def outputs(self, names: Sequence[str]) -> dict[str, Real]:
        """The outputs named."""
        closed, w = self.closed, self.writer
        of_mean, of_var = self.unit(closed.outputs["mean"]), self.unit(closed.outputs["var"])
        spread = [name for name in names if name == "var" or name.startswith("dvar")]
        values = {
            n: self.times_unit(self.moment(closed.outputs[n], of_mean), of_mean) for n in names if n not in spread
        }
        small = w.v < closed.below
        means = [self.moment(moment, of_mean) for moment in closed.series]
        if closed.grows:
            means = [w.finite(value) for value in means]
        below = select(small, w.v, closed.below)
        series = w.series(lambda k, sigmas: sigmas * means[k], closed.count, below)
        unit: Unit | Real | None = of_var
        if of_mean is not None and of_var is not None:
            unit = select(small, of_mean.value * 2, of_var.value)
        for name in spread:
            value = select(small, series[name], self.moment(closed.outputs[name], of_var))
            values[name] = self.times_unit(value, unit)
        if self.lost:
            self.sure = sqrt(select(functools.reduce(operator.or_, self.lost), -1, 1))
        return values

    def unit(self, moment: Moment) -> Unit | None:
        """The largest exponential of the terms; None if none of them grows."""
        g = self.g
        with mpmath.workdps(50):
            rates = {(number(sp.re(p)), number(sp.re(q))) for (p, q), _ in moment.real_parts()}
        top: tuple[Real, Real] | None = None
        for by_mu, by_v in sorted(rate for rate in rates if rate[0] != 0 or rate[1] > 0):
            rate = g.const(by_mu), g.const(by_v)
            if top is not None:
                larger = self.exponent(*(pair[0] - pair[1] for pair in zip(rate, top, strict=True))) > 0
                rate = select(larger, rate[0], top[0]), select(larger, rate[1], top[1])
            top = rate
        if top is None:
            return None
        large = self.exponent(*top) > _LARGE
        by_mu, by_v = (select(large, rate, 0) for rate in top)
        return Unit(by_mu, by_v, self.exponent(by_mu, by_v))

    def exponent(self, by_mu: Real, by_v: Real) -> Real:
        """by_mu·mu + by_v·v."""
        (mu, v) = self.within
        return madd(by_mu, mu, by_v * v)

    @functools.cached_property
    def within(self) -> tuple[Real, Real]:
        """mu and v as far as exponents take them."""
        v = self.writer.v
        return within(self.writer.mu, _EXPONENT), select(v > _EXPONENT, _EXPONENT, v)

    def beside(self, by_mu: Any, by_v: Any, unit: Unit | None) -> Real | None:
        """The exponent by_mu·mu + by_v·v less that of the unit; None if it is 0."""
        g = self.g
        rates = g.const(by_mu), g.const(by_v)
        if unit is None:
            return self.exponent(*rates) if (by_mu, by_v) != (0, 0) else None
        rates = rates[0] - unit.by_mu, rates[1] - unit.by_v
        exponent = self.exponent(*rates)
        size = abs(rates[0] * self.within[0])
        cancels = abs(exponent) < size * CANCELS
        lost = cancels & (size > TURNED)
        if lost not in self.lost:
            self.lost.append(lost)
        return exponent

    def times_unit(self, value: Real, unit: Unit | Real | None) -> Real:
        """``value`` in units of an exponential, given as such or by its exponent, as a number."""
        if unit is None:
            return value
        if isinstance(unit, Unit):
            unit = unit.value
        g, w = self.g, self.writer
        most = g.const(_MOST64 if w.float64 else _MOST)
        held = select(most < unit, most, unit)
        if w.float64:
            root = exp_mantissa(held * 0.5)
            return value * root * root
        # Where terms cancel the second word may be larger than the first: one of them must not overflow by itself.
        value = (first_word(value) + second_word(value)) * exp_mantissa(held)
        for i in range(4):
            value = value * exp_factor(held, i, 4)
        return value

    def moment(self, moment: Moment, unit: Unit | None) -> Real:
        """A moment, in units of ``unit``."""
        total = self.g.const(0)
        for (p, q), row in moment.real_parts():
            total = total + self.term(p, q, row, unit)
        return total

    def term(self, p: sp.Expr, q: sp.Expr, row: Coefficients, unit: Unit | None) -> Real:
        """Re P(mu, v) e^(p mu + q v), in units of ``unit``."""
        g, w = self.g, self.writer
        with mpmath.workdps(50):
            numbers = {key: mpmath.mpc(number(c)) for key, c in row.items()}
            by_mu, by_v = (number(sp.re(rate)) for rate in (p, q))
        turned = sp.im(p) != 0 or sp.im(q) != 0
        decays = by_mu == 0 and by_v <= 0
        exponent = self.beside(by_mu, by_v, unit)
        if len(row) == 1 and decays and unit is None:
            # One power: it multiplies last, and a product with 0 is 0.
            ((i, j), c), *_ = numbers.items()
            value = self.wave(p, q, {(0, 0): c}, w.mu, w.v) if turned else g.const(c.real)
            if exponent is not None:
                value = w.decaying(exponent, value)
            for step in [w.v] * j + [w.mu] * i:
                value = value * step
            return value
        mu, v = (w.mu, w.v) if exponent is None else self.held(row)
        if (by_mu, by_v) == (0, 0) and unit is not None:
            # Beside a large unit it vanishes, and must be finite for that.
            large, near = unit.value > 0, (mu, v)
            mu, v = w.mu, w.v
            mu, v = select(large, near[0], mu), select(large, near[1], v)
        value = self.wave(p, q, numbers, mu, v) if turned else self.polynomial(numbers, mu, v, "real")
        return value if exponent is None else w.decaying(exponent, value)

    def held(self, row: Coefficients) -> tuple[Real, Real]:
        """mu and v as far as a polynomial of them may go beside an exponential that is 0 or overflows by then."""
        g, w = self.g, self.writer
        degree = max(i + j for i, j in row)
        if degree < 1:
            return w.mu, w.v
        edge = g.const(mpmath.mpf(2) ** ((1000 if w.float64 else 110) // degree))
        mu = select(edge < abs(w.mu), select(w.mu < 0, -edge, edge), w.mu)
        return mu, select(edge < w.v, edge, w.v)

    def wave(self, p: sp.Expr, q: sp.Expr, row: Mapping[tuple[int, int], Any], mu: Real, v: Real) -> Real:
        """Re P times the cosine less Im P times the sine."""
        sine, cosine = self.angle(sp.im(p), sp.im(q))
        real, imaginary = (self.polynomial(row, mu, v, part) for part in ("real", "imag"))
        return real * cosine - imaginary * sine

    def polynomial(self, row: Mapping[tuple[int, int], Any], mu: Real, v: Real, part: str) -> Real:
        """The real or imaginary part of a polynomial."""
        g, total = self.g, self.g.const(0)
        for i in range(max(i for i, _ in row), -1, -1):
            inner = g.const(0)
            for j in range(max(j for _, j in row), -1, -1):
                inner = madd(inner, v, getattr(row.get((i, j), mpmath.mpc(0)), part))
            total = madd(total, mu, inner)
        return total

    def angle(self, by_mu: sp.Expr, by_v: sp.Expr) -> tuple[Real, Real]:
        """Sine and cosine of by_mu·mu + by_v·v."""
        g, known = self.g, self.angles
        key = (by_mu, by_v)
        if key == (0, 0):
            return g.const(0), g.const(1)
        if key not in known:
            known[key] = self._combined(*key) or self.writer.angle_of(*key)
        return known[key]

    def _combined(self, by_mu: sp.Expr, by_v: sp.Expr) -> tuple[Real, Real] | None:
        """From two angles that are there, their sum or difference; None if there are none."""
        for (a, b), (sin1, cos1) in self.angles.items():
            for (c, d), (sin2, cos2) in self.angles.items():
                for sign in (1, -1):
                    if sp.expand(a + sign * c - by_mu) == 0 and sp.expand(b + sign * d - by_v) == 0:
                        other = sin2 if sign == 1 else -sin2
                        sine = madd(sin1, cos2, cos1 * other)
                        return sine, cos1 * cos2 - sin1 * other
        return None
