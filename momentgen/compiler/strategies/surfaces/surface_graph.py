r"""The graph of ``surface``: outputs as polynomials of two variables, for float32.

Besides the polynomials there are two square roots and two reciprocals, and one exponential where f follows lines of
different slopes.  A variance is at least 0, a mean is not beyond a level that f itself does not pass: what a polynomial
leaves beyond such a bound is its error, and is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import mpmath
import numpy as np
import sympy as sp

from momentgen.compiler.fit import J, Polynomial, lowest_degree
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import Graph, Patch, Real, equal, exp_factor, exp_mantissa, horner, madd, select, sqrt
from momentgen.compiler.ir.kit import NEAR32, mills_ratio
from momentgen.compiler.ir.stable import PARTIALS
from momentgen.compiler.ir.surface import surface_of
from momentgen.compiler.measure.moments import MEAN, MEAN_SPREAD
from momentgen.compiler.strategies.surfaces.point import PointWriter
from momentgen.compiler.strategies.surfaces.surface import VANISHING, Frame, Surface, decay, is_level, lines_of, steps
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.rule.symbols import x

_FARTHEST = 13.0  # exp(-t²/2) is a normal float32 up to here


@lru_cache
def kink_fit(frame: Frame, cancels: bool) -> Polynomial:
    """P with J_1(t)/sqrt(2 pi) = P(x - 1/2), x = |s|/largest: exp(-t²/2) P is E (Z - t)_+.

    It is accurate where that counts: a fifth of the tolerance of the mean, relative, and of what it allows to sigma;
    of the latter alone where the mean ``cancels``: between lines that both rise it is 0 somewhere, at any sigma.

    Raises:
        BuildError: if no polynomial is accurate enough.
    """
    largest, bend = (mpmath.mpf(number) for number in (frame.largest, frame.bend))

    def t_of(x: mpmath.mpf) -> mpmath.mpf:
        s = x * largest
        return bend * s / mpmath.sqrt(1 - s * s)

    def target(x: mpmath.mpf) -> mpmath.mpf:
        return J(1, t_of(x)) / mpmath.sqrt(2 * mpmath.pi)

    def weight(x: mpmath.mpf) -> mpmath.mpf:
        density = mpmath.exp(-(t_of(x) ** 2) / 2)
        relative = 0 if cancels else MEAN * density * target(x)
        allowed = max(relative, mpmath.mpf(MEAN_SPREAD)) / 5
        return max(density / allowed, mpmath.mpf(1000))

    what = f"J_1(t)/sqrt(2 pi), t = {frame.bend:g} s/sqrt(1 - s²), s = {frame.largest:.6g} x, 0 <= x <= 1"
    unit = (mpmath.mpf(0), mpmath.mpf(1))
    return lowest_degree(target, unit, range(4, 24), 1, what, weight=weight, centre=mpmath.mpf(0.5))


class Variables:
    """A frame's variables on a graph: w, r = 1/w, t, h = t², x = s/largest = t ``share``, y = 2x² - 1.

    Of the input ``var``, or of another value ``v``.
    """

    def __init__(self, g: Graph, frame: Frame, centre: float, v: Real) -> None:
        self.graph, self.frame, reach = g, frame, g.const(frame.reach)
        shifted = v + frame.c
        w2 = select(v >= 0, shifted, -1)
        self.w = sqrt(w2.named("a root of it is NaN for v < 0"))
        self.r = 1 / self.w
        raw = (g.input("mean") - centre) * self.r
        low = select(raw < -reach, -reach, raw)
        t = select(reach < low, reach, low).named("(mean - centre)/w")
        self.beyond = reach < abs(raw)
        self.h = t * t
        # x = s/largest: the factor goes into the root.
        bend2, largest2 = mpmath.mpf(frame.bend) ** 2, mpmath.mpf(frame.largest) ** 2
        if frame.both:
            half = mpmath.mpf(frame.bend) * frame.largest / 2
            self.inner = sqrt(madd(self.h, largest2, half * half))
            root = self.inner + half
        else:
            root = sqrt(madd(self.h, largest2, bend2 * largest2))
        self.t, self.share = t, 1 / root
        by_way_of = "s with t = kappa s/(1 - s²)" if frame.both else "t/sqrt(kappa² + t²)"
        self.x = (t * self.share).named(f"t against its reach, by way of {by_way_of}")
        self.y = madd(self.x * 2, self.x, -1)
        g.suspect(w2, self.w, self.r, raw, low, t, self.h)

    def x_by_t(self) -> Real:
        """The slope of x: kappa² largest² share³, or of a frame of both kappa largest share/(2 inner), as in s."""
        bend, largest = mpmath.mpf(self.frame.bend), mpmath.mpf(self.frame.largest)
        if self.frame.both:
            return self.share * (1 / self.inner) * (bend * largest / 2)
        return self.share * self.share * (self.share * self.graph.const(bend**2 * largest**2))


class SurfaceWriter:
    """Writes the values that outputs and partials share.

    Args:
        point: f as an expression, written for v = 0; None where it has no form for that.
        v: the variance; below the range of the polynomials the lower end of that range.
    """

    def __init__(
        self, graph: Graph, f: Activation, surfaces: Mapping[str, Surface], point: sp.Expr | None, v: Real
    ) -> None:
        self.g, self.f, self.surfaces, self.point, self.v = graph, f, surfaces, point, v
        self.fits: list[Polynomial] = []
        self.u = graph.input("mean") - f.centre
        frames = dict.fromkeys(surface.frame for surface in surfaces.values())
        self.variables = {frame: Variables(graph, frame, f.centre, v) for frame in frames}

    def at(self, name: str) -> Variables:
        return self.variables[self.surfaces[name].frame]

    def surface(self, name: str) -> Real:
        """The polynomial of an output."""
        found, at = self.surfaces[name], self.at(name)
        share = at.r * mpmath.sqrt(mpmath.mpf(found.frame.least))
        for _ in range(found.frame.roots):
            share = sqrt(share)
        least = mpmath.mpf(found.frame.end)
        z = madd(share, share * 2 if found.flip else self.g.const(2 / (1 - least)), -(1 + least) / (1 - least))
        even, odd = (surface_of(at.y, z, [Patch(table)], slopes=False)[0] for table in (found.fit.even, found.fit.odd))
        odd = odd * at.x
        if found.flip > 0:
            value = madd(odd, share, even)
        elif found.flip < 0:
            value = madd(even, share, odd)
        else:
            value = odd + even
        if name == "mean" and found.frame.fade:
            value = value * (at.share * (mpmath.mpf(found.frame.bend) * mpmath.mpf(found.frame.largest)))
        return value.named(f"{name}, normalised")

    def unit(self, name: str) -> Real:
        """What an output is a multiple of: powers of r, and of variances v, or v c/(v + c) where f is bounded."""
        g, at = self.g, self.at(name)
        value = g.const(1)
        if name in VANISHING:
            value = self.v * at.r * (at.r * at.frame.least) if is_level(self.f) else self.v
        return math.prod([at.r] * decay(self.f)[name], start=value)

    # --- outputs -----------------------------------------------------------------
    def density(self) -> Real:
        """exp(-t²/2) at the mean's t."""
        g, at = self.g, self.at("mean")
        exponent = held = at.h * -0.5
        if at.frame.reach > _FARTHEST:
            least = g.const(-(mpmath.mpf(_FARTHEST) ** 2) / 2)
            held = select(exponent < least, least, exponent)
        density = exp_mantissa(held) * exp_factor(held, 0, 1)
        g.suspect(exponent, held, density, density.args[0])
        return density

    def tail(self, order: int) -> Real:
        """E (Z - |t|)_+, or of order 0 P(Z > |t|)."""
        g, at, density = self.g, self.at("mean"), self.density()
        if at.frame.is_slow:  # what falls as a power of t is no polynomial of x
            t = select(abs(at.t) > _FARTHEST, _FARTHEST, abs(at.t))
            inverse = 1 / madd(t, 0.25, 1)
            value, fit = mills_ratio(NEAR32, order, inverse)
        else:
            a, _, a2, _ = lines_of(self.f)
            fit = kink_fit(at.frame, a * a2 > 0)
            value = horner(abs(at.x) - 0.5, fit.coefficients)
        self.fits.append(fit)
        g.suspect(value, density * value)
        return density * value

    def mean(self) -> Real:
        """Its lines, the kink between them smoothed, and the rest."""
        g, at = self.g, self.at("mean")
        a, b, a2, b2 = lines_of(self.f)
        rest = self.surface("mean")
        middle = g.const((mpmath.mpf(b) + b2) / 2)
        if self.f.algebraic and b != b2:
            height = mpmath.mpf(b2) - b
            left = self.u < 0
            step = self.tail(0) * select(left, height, -height)
            middle = step + select(left, b, b2)
        if b == b2:  # nothing is left beyond the reach: what the fit leaves there would grow in other units of f
            rest = select(at.beyond, 0, rest * self.unit("mean"))
        if not steps(self.f):
            return madd(a, self.u, rest + middle)
        slope = select(self.u < 0, a, a2)
        rise = self.tail(1) * (mpmath.mpf(a2) - a)
        near = madd(at.w, rise, rest + middle)
        value = madd(slope, self.u, near)
        g.suspect(rise, near)
        return value

    def at_zero(self, mean: Real) -> Real:
        """At v = 0 f(mu) itself, where f has a form for it."""
        if self.point is None:
            return mean
        writer = PointWriter(self.g, self.g.input("mean"))
        value = writer.node(self.point)
        self.fits += writer.fits
        certain = equal(self.v, 0)
        rates = (sp.diff(part.args[0], x) for part in self.point.atoms(sp.exp))
        if any(rate.is_number and abs(rate) > 1 for rate in rates):  # beyond range the point's form may leave it first
            certain = certain & (abs(value) <= LARGEST)
        return select(certain, value, mean)

    def variance(self) -> Real:
        """At least 0, and finite where v is."""
        value = self.unit("var") * self.surface("var")
        value = select(value < 0, 0, value)
        return value if is_level(self.f) else select(value > LARGEST, LARGEST, value)

    def partials(self, names: tuple[str, ...]) -> dict[str, Real]:
        """Each its polynomial times what it grows or vanishes with."""
        g = self.g
        a, b, a2, b2 = lines_of(self.f)
        units = {name: self.unit(name) for name in names}
        # A bump on a line that rises: as in the mean, what the fit leaves beyond the reach would grow in other units.
        if a == a2 != 0 and b == b2:
            ends = (name for name in names if name != "dvar_dvar")
            units |= {name: select(self.at(name).beyond, 0, units[name]) for name in ends}
        plain = {"dmean_dmu": g.const((mpmath.mpf(a) + a2) / 2)}
        return {name: madd(self.surface(name), units[name], plain.get(name, g.const(0))) for name in names}

    def values(self, outputs: Sequence[str]) -> dict[str, Real]:
        found = {}
        if "mean" in outputs:
            found["mean"] = self.at_zero(held(self.f, self.mean()))
        if "var" in outputs:
            found["var"] = self.variance()
        return found | self.partials(tuple(name for name in outputs if name in PARTIALS))


def held(f: Activation, mean: Real) -> Real:
    """A mean, not beyond the lowest and the highest value of f, where these are levels that f approaches."""
    a, b, a2, b2 = lines_of(f)
    ends = [offset for slope, offset in ((a, b), (a2, b2)) if slope == 0]
    if not ends:
        return mean
    values = f.jet(f.centre + f.length * np.linspace(-60, 60, 2401), 1)[:, 0]
    if values.min() >= min(ends):
        mean = select(mean < min(ends), min(ends), mean)
    if values.max() <= max(ends):
        mean = select(max(ends) < mean, max(ends), mean)
    return mean


def build_surface_graph(
    f: Activation, surfaces: Mapping[str, Surface], outputs: tuple[str, ...], point: sp.Expr | None = None
) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of ``OUTPUTS`` or ``PARTIALS``, and the polynomials of one variable fitted for it."""
    graph = Graph(("mean", "var"))
    writer = SurfaceWriter(graph, f, surfaces, point, graph.input("var"))
    for name, value in writer.values(outputs).items():
        graph.output(name, value)
    return graph, tuple(writer.fits)
