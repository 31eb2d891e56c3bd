r"""E F(u + sigma Z), E F² and their derivatives in u in float64: what fits aim at and most points are measured by.

f is seen from one side (:class:`Side`): u runs from the far end of that side, -oo, to the other, and F̃ is f less the
line of that side, so that F̃ vanishes at -oo.  What F̃ becomes at +oo, a line, is carried by smoothed steps whose
moments are in closed form; what is left, ``inner``, is summed over fixed nodes:

- f smooth: the trapezoidal rule, which converges exponentially (Trefethen and Weideman 2014), steps of length/9;
- f with kinks: Gauss-Legendre panels cut at the kinks.

For sigma below length/4 and f smooth, the sum is over z, and variances come from Var f = Σ v^k/k! (E f^(k))².
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from flint import arb, ctx

from momentgen.compiler.exact.smoothing_sums import ORDERS, density_sums
from momentgen.compiler.function.activation import Activation, Line
from momentgen.compiler.toolchain.arrays import F64, erfc
from momentgen.errors import BuildError

SMALL = 0.25  # sigma/length below which smooth f is expanded
_STEP = 1 / 9
_ORDER = 10  # derivatives of F in the small form
_TERMS = 14
#: factor of each coefficient in each derivative, shape (_TERMS, _ORDER, 1)
_FACTORS = np.array([[[float(math.perm(k + j, k))] for k in range(_ORDER)] for j in range(_TERMS)])
_CHUNK = 1024  # points at a time, so that they stay in the cache
_BITS = 640
#: a sigma of more than so many reaches of f is wide
_WIDE = 40.0
#: integrals that are computed for a wide sigma
_INTEGRALS = 12
#: an integral counts as 0 below this part of the sum of its terms' sizes
_NOTHING = 1e-12


def normal_derivatives(u: F64, w: F64, low: int, high: int) -> dict[int, F64]:
    """T_n = d^n/du^n Phi(u/w) for low <= n <= high; n = -1 and -2 are its integrals from -oo.

    >>> normal_derivatives(np.zeros(1), np.ones(1), -1, 0)[0]
    array([0.5])
    """
    with np.errstate(all="ignore"):
        h = np.clip(u / w, -38.0, 1e150)
        big, small = erfc(-h / math.sqrt(2)) / 2, np.exp(-h * h / 2) / math.sqrt(2 * math.pi)
        values = {0: big, 1: small / w}
        for n in range(1, high):
            before = values[n - 1] if n > 1 else 0.0
            values[n + 1] = -(h / w) * values[n] - (n - 1) / w**2 * before
        values[-1] = w * np.maximum(h * big + small, 0.0)
        values[-2] = w * w * np.maximum((h * h + 1) * big + h * small, 0.0) / 2
    return {n: values[n] for n in range(low, high + 1)}


@dataclass(frozen=True)
class Side:
    """f from one side.

    Attributes:
        f: the activation; both its sides must be lines.
        sign: +1 where u = x - centre (seen from the left), -1 where u = centre - x.
    """

    f: Activation
    sign: int

    @cached_property
    def near(self) -> Line:
        """The line at u = -oo, in u."""
        return self._line(self.f.left if self.sign > 0 else self.f.right)

    @cached_property
    def far(self) -> Line:
        """What F̃ becomes at u = +oo, in u."""
        other = self._line(self.f.right if self.sign > 0 else self.f.left)
        return Line(other.slope - self.near.slope, other.offset - self.near.offset)

    def _line(self, line: Line | None) -> Line:
        if line is None:
            raise BuildError(self.f.name, "strategies", "expected f to follow a line on either side", self.f.pieces)
        return Line(self.sign * line.slope, line.offset + line.slope * self.f.centre)

    @property
    def smooth(self) -> bool:
        """Whether f has no kinks."""
        return not self.f.kinks

    @cached_property
    def spread(self) -> float:
        """Variance of the steps that carry the far line."""
        return self.f.length**2 if self.smooth else 0.0

    @cached_property
    def nodes(self) -> tuple[F64, F64, F64, F64]:
        """u, weight, and what is left of F̃ and of F̃²."""
        f, d = self.f, self.far
        if self.smooth:
            step = _STEP * f.length
            count = math.ceil((f.reach + 8 * f.length) / step)
            u = np.asarray(step * np.arange(-count, count + 1), np.float64)
            weight = np.full_like(u, step)
        else:
            cuts = [self.sign * (k - f.centre) for k in f.kinks]
            extra = np.arange(-f.reach, f.reach + f.length / 4, f.length / 2)
            ends = sorted({float(np.round(e, 9)) for e in [*extra, f.reach, 0.0]} | set(cuts))
            ends = [e for e, after in zip(ends, [*ends[1:], math.inf], strict=True) if after - e > 1e-8 or e in cuts]
            z, w = np.polynomial.legendre.leggauss(16)
            low, high = np.array(ends[:-1])[:, None], np.array(ends[1:])[:, None]
            u, weight = ((low + high) / 2 + (high - low) / 2 * z).ravel(), ((high - low) / 2 * w).ravel()
        value = self.excess(u)
        step1, step2 = (self._outer(u, np.zeros_like(u), power, 0)[0] for power in (1, 2))
        # Beyond 0 the difference of squares is taken as a product.
        line = np.where(u > 0, d.slope * u + d.offset, 0.0)
        if self.smooth:
            return u, weight, value - step1, value * value - step2
        return u, weight, value - line, (value - line) * (value + line)

    def excess(self, u: F64) -> F64:
        """F̃(u)."""
        f, near = self.f, self.near
        result = []
        with ctx.workprec(_BITS):
            for point in u.tolist():
                at = arb(f.centre) + self.sign * arb(point)
                home = f.home(f.centre + self.sign * point)
                value = f.taylor(home, at, 1)[0] - near.slope * arb(point) - near.offset
                result.append(float(value))
        return np.array(result)

    def _outer(self, u: F64, v: F64, power: int, high: int) -> list[F64]:
        """Derivatives 0..high of the smoothed steps that carry F̃^power at +oo."""
        d, tau = self.far, self.spread
        w = np.sqrt(np.maximum(v + tau, 1e-300))
        t = normal_derivatives(u, w, -2, high + 1)
        if power == 1:
            return [d.slope * t[j - 1] + d.offset * t[j] for j in range(high + 1)]
        steps = {-2: 2 * d.slope**2, -1: 2 * d.slope * d.offset, 0: d.offset**2 - d.slope**2 * tau}
        return [np.asarray(sum(c * t[n + j] for n, c in steps.items())) for j in range(high + 1)]

    # --- moments -----------------------------------------------------------------
    def moments(self, u: F64, v: F64) -> tuple[F64, F64]:
        """Derivatives 0..3 in u of E F̃ and of E F̃² at points with sigma not small: each of shape (4, n)."""
        nodes, weight, *inner = self.nodes
        sums = density_sums(u, np.sqrt(v), nodes, weight * np.array(inner))
        wide = np.sqrt(v) > _WIDE * max(self.f.reach, self.f.length)
        if self.cancels and wide.any():
            sums[0][:, wide] = self._by_integrals(u[wide], np.sqrt(v[wide]))
        first, second = (np.array(self._outer(u, v, power, ORDERS - 1)) for power in (1, 2))
        return first + sums[0], second + sums[1]

    @cached_property
    def cancels(self) -> bool:
        """Whether f has one line, and nothing is left of the integral of f less it."""
        _, weight, excess, _ = self.nodes
        one_line = self.far.slope == 0 == self.far.offset
        return one_line and bool(abs(np.sum(weight * excess)) < _NOTHING * np.sum(weight * np.abs(excess)))

    def _by_integrals(self, u: F64, sigma: F64) -> F64:
        """Derivatives 0..3 of E F̃ at a wide sigma, by the integrals of u^m F̃ that are not 0."""
        nodes, weight, excess, _ = self.nodes
        z, parts = u / sigma, weight * excess
        density = [np.exp(-z * z / 2) / math.sqrt(2 * math.pi) / sigma]
        for n in range(ORDERS + _INTEGRALS):
            before = density[n - 1] if n else np.zeros_like(z)
            density.append(-(z * density[n] + n / sigma * before) / sigma)
        total, factor = np.zeros((ORDERS, u.size)), 1.0
        for m in range(_INTEGRALS):
            integral = np.sum(parts)
            if abs(integral) > _NOTHING * np.sum(np.abs(parts)):
                total += factor * integral * np.array(density[m : m + ORDERS])
            parts, factor = parts * nodes, -factor / (m + 1)
        return total

    # --- small sigma -------------------------------------------------------------
    @cached_property
    def table(self) -> F64:
        """Taylor coefficients of F̃ at multiples of a quarter of f's length, the first -:attr:`first`; by power of x."""
        f, near, step = self.f, self.near, self.f.length / 4
        rows = []
        for k in range(-self.first, math.ceil(8 * f.length / step) + 1):
            with ctx.workprec(_BITS):
                c = f.taylor(0, arb(f.centre) + self.sign * arb(k * step), _ORDER + _TERMS)
                c = [self.sign**i * w for i, w in enumerate(c)]
                c[0] -= near.slope * arb(k * step) + near.offset
                c[1] -= near.slope
                rows.append([float(w) for w in c])
        return np.array(rows).T

    @property
    def first(self) -> int:
        """How many quarters of a length the table begins left of the centre."""
        return math.ceil((self.f.reach + self.f.length) / (self.f.length / 4))

    def small(self, u: F64, v: F64) -> F64:
        """E F̃^(k), k = 0.._ORDER - 1, at points with sigma small: shape (_ORDER, n)."""
        total, sigma = np.zeros((_ORDER, u.size)), np.sqrt(v)
        with np.errstate(over="ignore", invalid="ignore"):  # a function so steep that its derivatives leave float64
            for start in range(0, u.size, _CHUNK):
                part = slice(start, start + _CHUNK)
                for node, weight in zip(*_hermite_rule(), strict=True):
                    total[:, part] += weight * self._derivatives(u[part] + sigma[part] * node)
        return total

    def _derivatives(self, u: F64) -> F64:
        """F̃ and its derivatives, by the nearest point of the table: shape (_ORDER, n)."""
        step = self.f.length / 4
        position = np.clip(np.rint(u / step), -self.first, self.table.shape[1] - 1 - self.first)
        delta = u - position * step
        outside = np.abs(delta) > step  # left of the table, where the function is 0
        delta = np.where(outside, 0.0, delta)
        series = self.table[:, (position + self.first).astype(np.int64)]
        value, term = np.zeros((_ORDER, u.size)), np.empty((_ORDER, u.size))
        for j in reversed(range(_TERMS)):
            value *= delta
            value += np.multiply(_FACTORS[j], series[j : j + _ORDER], out=term)
        return np.where(outside, 0.0, value)


@lru_cache
def _hermite_rule() -> tuple[F64, F64]:
    z, w = np.polynomial.hermite_e.hermegauss(40)
    kept = w > 1e-20 * w.max()
    return z[kept], w[kept] / w.sum()
