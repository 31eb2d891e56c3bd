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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import sympy as sp

from momentgen.compiler.strategies.elementary.entire_graph import CANCELS, TURNED, Writer
from momentgen.compiler.strategies.elementary.exponentials import Coefficients, Moment, Terms, number

__all__ = ["Closed", "SumWriter"]

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
class _Unit:
    """e^value, value = by_mu·mu + by_v·v: the largest of some exponentials where that is large, else 1; nodes."""

    by_mu: int
    by_v: int
    value: int


class SumWriter:
    """Writes moments, each shared value once.

    Attributes:
        sure: 1, or NaN where exponents have lost their digits; None where there are none.
    """

    def __init__(self, writer: Writer, closed: Closed) -> None:
        self.writer, self.g, self.closed = writer, writer.g, closed
        self.angles: dict[tuple[sp.Expr, sp.Expr], tuple[int, int]] = {}
        self.lost: list[int] = []
        self.sure: int | None = None
        for (p, q), _ in closed.outputs["mean"].real_parts():
            self.angle(sp.im(p), sp.im(q))

    def outputs(self, names: Sequence[str]) -> dict[str, int]:
        """The outputs named."""
        g, closed, w = self.g, self.closed, self.writer
        of_mean, of_var = self.unit(closed.outputs["mean"]), self.unit(closed.outputs["var"])
        spread = [name for name in names if name == "var" or name.startswith("dvar")]
        values = {
            n: self.times_unit(self.moment(closed.outputs[n], of_mean), of_mean) for n in names if n not in spread
        }
        small = g.lt(w.v, g.const(closed.below))
        means = [self.moment(moment, of_mean) for moment in closed.series]
        if closed.grows:
            means = [w.finite(value) for value in means]
        below = g.select(small, w.v, g.const(closed.below))
        series = w.series(lambda k, sigmas: g.mul(sigmas, means[k]), closed.count, below)
        unit: _Unit | int | None = of_var
        if of_mean is not None and of_var is not None:
            unit = g.select(small, g.mul(of_mean.value, g.const(2)), of_var.value)
        for name in spread:
            value = g.select(small, series[name], self.moment(closed.outputs[name], of_var))
            values[name] = self.times_unit(value, unit)
        if self.lost:
            self.sure = g.sqrt(g.select(functools.reduce(g.either, self.lost), g.const(-1), g.const(1)))
        return values

    def unit(self, moment: Moment) -> _Unit | None:
        """The largest exponential of the terms; None if none of them grows."""
        g, zero = self.g, self.g.const(0)
        with mpmath.workdps(50):
            rates = {(number(sp.re(p)), number(sp.re(q))) for (p, q), _ in moment.real_parts()}
        top: tuple[int, int] | None = None
        for by_mu, by_v in sorted(rate for rate in rates if rate[0] != 0 or rate[1] > 0):
            rate = g.const(by_mu), g.const(by_v)
            if top is not None:
                larger = g.lt(zero, self.exponent(*(g.sub(*pair) for pair in zip(rate, top, strict=True))))
                rate = g.select(larger, rate[0], top[0]), g.select(larger, rate[1], top[1])
            top = rate
        if top is None:
            return None
        large = g.lt(g.const(_LARGE), self.exponent(*top))
        by_mu, by_v = (g.select(large, rate, zero) for rate in top)
        return _Unit(by_mu, by_v, self.exponent(by_mu, by_v))

    def exponent(self, by_mu: int, by_v: int) -> int:
        """by_mu·mu + by_v·v."""
        g, (mu, v) = self.g, self.within
        return g.madd(by_mu, mu, g.mul(by_v, v))

    @functools.cached_property
    def within(self) -> tuple[int, int]:
        """mu and v as far as exponents take them."""
        g, w, edge = self.g, self.writer, self.g.const(_EXPONENT)
        mu = g.select(g.lt(edge, w.mu), edge, g.select(g.lt(w.mu, g.neg(edge)), g.neg(edge), w.mu))
        return mu, g.select(g.lt(edge, w.v), edge, w.v)

    def beside(self, by_mu: Any, by_v: Any, unit: _Unit | None) -> int | None:
        """The exponent by_mu·mu + by_v·v less that of the unit; None if it is 0."""
        g = self.g
        rates = g.const(by_mu), g.const(by_v)
        if unit is None:
            return self.exponent(*rates) if (by_mu, by_v) != (0, 0) else None
        rates = g.sub(rates[0], unit.by_mu), g.sub(rates[1], unit.by_v)
        exponent = self.exponent(*rates)
        size = g.abs(g.mul(rates[0], self.within[0]))
        cancels = g.lt(g.abs(exponent), g.mul(size, g.const(CANCELS)))
        lost = g.both(cancels, g.lt(g.const(TURNED), size))
        if lost not in self.lost:
            self.lost.append(lost)
        return exponent

    def times_unit(self, value: int, unit: _Unit | int | None) -> int:
        """``value`` in units of an exponential, given as such or by its exponent, as a number."""
        if unit is None:
            return value
        if isinstance(unit, _Unit):
            unit = unit.value
        g, w = self.g, self.writer
        most = g.const(_MOST64 if w.float64 else _MOST)
        held = g.select(g.lt(most, unit), most, unit)
        if w.float64:
            root = g.exp_mantissa(g.mul(held, g.const(0.5)))
            return g.mul(g.mul(value, root), root)
        # Where terms cancel the second word may be larger than the first: one of them must not overflow by itself.
        value = g.mul(g.add(g.head(value), g.tail(value)), g.exp_mantissa(held))
        for i in range(4):
            value = g.mul(value, g.exp_factor(held, i, 4))
        return value

    def moment(self, moment: Moment, unit: _Unit | None) -> int:
        """A moment, in units of ``unit``."""
        total = self.g.const(0)
        for (p, q), row in moment.real_parts():
            total = self.g.add(total, self.term(p, q, row, unit))
        return total

    def term(self, p: sp.Expr, q: sp.Expr, row: Coefficients, unit: _Unit | None) -> int:
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
                value = g.mul(value, step)
            return value
        mu, v = (w.mu, w.v) if exponent is None else self.held(row)
        if (by_mu, by_v) == (0, 0) and unit is not None:
            # Beside a large unit it vanishes, and must be finite for that.
            large, near = g.lt(g.const(0), unit.value), (mu, v)
            mu, v = w.mu, w.v
            mu, v = g.select(large, near[0], mu), g.select(large, near[1], v)
        value = self.wave(p, q, numbers, mu, v) if turned else self.polynomial(numbers, mu, v, "real")
        return value if exponent is None else w.decaying(exponent, value)

    def held(self, row: Coefficients) -> tuple[int, int]:
        """mu and v as far as a polynomial of them may go beside an exponential that is 0 or overflows by then."""
        g, w = self.g, self.writer
        degree = max(i + j for i, j in row)
        if degree < 1:
            return w.mu, w.v
        edge = g.const(mpmath.mpf(2) ** ((1000 if w.float64 else 110) // degree))
        mu = g.select(g.lt(edge, g.abs(w.mu)), g.select(g.lt(w.mu, g.const(0)), g.neg(edge), edge), w.mu)
        return mu, g.select(g.lt(edge, w.v), edge, w.v)

    def wave(self, p: sp.Expr, q: sp.Expr, row: Mapping[tuple[int, int], Any], mu: int, v: int) -> int:
        """Re P times the cosine less Im P times the sine."""
        g = self.g
        sine, cosine = self.angle(sp.im(p), sp.im(q))
        real, imaginary = (self.polynomial(row, mu, v, part) for part in ("real", "imag"))
        return g.sub(g.mul(real, cosine), g.mul(imaginary, sine))

    def polynomial(self, row: Mapping[tuple[int, int], Any], mu: int, v: int, part: str) -> int:
        """The real or imaginary part of a polynomial."""
        g, total = self.g, self.g.const(0)
        for i in range(max(i for i, _ in row), -1, -1):
            inner = g.const(0)
            for j in range(max(j for _, j in row), -1, -1):
                inner = g.madd(inner, v, g.const(getattr(row.get((i, j), mpmath.mpc(0)), part)))
            total = g.madd(total, mu, inner)
        return total

    def angle(self, by_mu: sp.Expr, by_v: sp.Expr) -> tuple[int, int]:
        """Sine and cosine of by_mu·mu + by_v·v."""
        g, known = self.g, self.angles
        key = (by_mu, by_v)
        if key == (0, 0):
            return g.const(0), g.const(1)
        if key not in known:
            known[key] = self._combined(*key) or self.writer.angle_of(*key)
        return known[key]

    def _combined(self, by_mu: sp.Expr, by_v: sp.Expr) -> tuple[int, int] | None:
        """From two angles that are there, their sum or difference; None if there are none."""
        g = self.g
        for (a, b), (sin1, cos1) in self.angles.items():
            for (c, d), (sin2, cos2) in self.angles.items():
                for sign in (1, -1):
                    if sp.expand(a + sign * c - by_mu) == 0 and sp.expand(b + sign * d - by_v) == 0:
                        other = sin2 if sign == 1 else g.neg(sin2)
                        sine = g.madd(sin1, cos2, g.mul(cos1, other))
                        return sine, g.sub(g.mul(cos1, cos2), g.mul(sin1, other))
        return None
