r"""Elementary moments of sums of terms x^k e^(b x), b complex: their graphs, over what ``entire_graph`` shares.

Closed forms come as they are in :mod:`momentgen.compiler.stabilise.exponentials`; the variance and its partials are
Hermite series below a variance where the closed forms begin to cancel, and every term of the series of V is positive.
Sines and cosines of sums of angles that are there already are products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import sympy as sp

from momentgen.compiler.stabilise.entire_graph import LARGEST, Writer
from momentgen.compiler.stabilise.exponentials import Coefficients, Moment, Terms, number

__all__ = ["Closed", "SumWriter"]

_SPARE = mpmath.mpf(2) ** 12  # the terms of a variance may exceed it by that much


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


class SumWriter:
    """Writes moments, each shared value once."""

    def __init__(self, writer: Writer, closed: Closed) -> None:
        self.writer, self.g, self.closed = writer, writer.g, closed
        self.angles: dict[tuple[sp.Expr, sp.Expr], tuple[int, int]] = {}
        for (p, q), _ in closed.outputs["mean"].real_parts():
            self.angle(sp.im(p), sp.im(q))

    def outputs(self, names: Sequence[str]) -> dict[str, int]:
        """The outputs named."""
        g, closed, w = self.g, self.closed, self.writer
        values = {n: self.moment(closed.outputs[n]) for n in names if n == "mean" or n.startswith("dmean")}
        spread = [name for name in names if name not in values]
        small = g.lt(w.v, g.const(closed.below))
        means = [self.moment(moment) for moment in closed.series]
        if closed.grows:
            means = [w.finite(value) for value in means]
        series = w.series(means, closed.count, g.select(small, w.v, g.const(closed.below)))
        for name in spread:
            value = self.moment(closed.outputs[name], 1 / _SPARE if closed.grows else mpmath.mpf(1))
            if closed.grows:
                value = g.mul(value, g.const(_SPARE))
                if name == "var":  # below 0 only where terms overflow; the sign is that of both words together
                    value = value if w.float64 else g.add(g.head(value), g.tail(value))
                    value = g.select(g.lt(value, g.const(0)), g.const(LARGEST), value)
            values[name] = g.select(small, series[name], value)
        return values

    def moment(self, moment: Moment, unit: Any = 1) -> int:
        """A moment, times ``unit``."""
        total = self.g.const(0)
        for (p, q), row in moment.real_parts():
            total = self.g.add(total, self.term(p, q, row, unit))
        return total

    def term(self, p: sp.Expr, q: sp.Expr, row: Coefficients, unit: Any) -> int:
        """Re P(mu, v) e^(p mu + q v), times ``unit``."""
        g, w = self.g, self.writer
        with mpmath.workdps(50):
            numbers = {key: mpmath.mpc(number(c)) * unit for key, c in row.items()}
            rates = [number(sp.re(rate)) for rate in (p, q)]
        turned = sp.im(p) != 0 or sp.im(q) != 0
        decays = rates[0] == 0 and rates[1] <= 0
        exponent = None
        if rates != [0, 0]:
            exponent = g.madd(g.const(rates[0]), w.mu, g.mul(g.const(rates[1]), w.v))
        if len(row) == 1 and (exponent is None or decays):
            # One power: it multiplies last, and a product with 0 is 0.
            ((i, j), c), *_ = numbers.items()
            value = self.wave(p, q, {(0, 0): c}, w.mu, w.v) if turned else g.const(c.real)
            if exponent is not None:
                value = self.decaying(exponent, value)
            for step in [w.v] * j + [w.mu] * i:
                value = g.mul(value, step)
            return value
        mu, v = (w.mu, w.v) if exponent is None else self.held(row)
        value = self.wave(p, q, numbers, mu, v) if turned else self.polynomial(numbers, mu, v, "real")
        if exponent is None:
            return value
        return self.decaying(exponent, value) if decays else w.exp(exponent, value)

    def decaying(self, exponent: int, weight: int) -> int:
        """``weight`` times an exponential that is at most 1."""
        g, w = self.g, self.writer
        low = g.const(-700 if w.float64 else -150)
        below = g.lt(exponent, low)
        held = g.select(below, low, exponent)
        value = g.mul(weight, g.select(below, g.const(0), g.exp_mantissa(held)))
        if w.float64:
            return value
        return g.mul(g.mul(value, g.exp_factor(held, 0, 2)), g.exp_factor(held, 1, 2))

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
