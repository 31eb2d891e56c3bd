r"""Moments as sums over nodes x = E ± l sinh(u) of f(x) - f(mu), times the normal density.

The line from mu - W sigma to mu + W sigma is cut at mu and at the features of f.  Each interval is taken from either
end to its middle: u runs over the nodes of Gauss and Legendre, and l is the length of f at that end, or 2 sigma.
On a side where f grows like exp(b |x|) the line is 2 b sigma² longer: f² times the density is centred there.

Where sigma is far below the length, differences of f lose their digits:

- away from kinks moments are taken at a larger sigma, and scaled back: of the variance what the mean's slope gives as
  sigma², the rest as sigma⁴;
- within ten sigmas of a kink k, f is there as |x - k|^q, and moments are taken at c (mu - k) and c sigma.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import sympy as sp

from momentgen.compiler.function.branches import Branches
from momentgen.compiler.ir.graph import Graph, Loop, Real, equal, exp_mantissa, log, select, sqrt
from momentgen.compiler.ir.stable import OUTPUTS

_LEAST_VAR = 2.0**-127
#: sigmas over the length below which moments are scaled: away from kinks, at one, and at a jump
_SMOOTH, _KINK, _JUMP = 1e-5, 1e-9, 1e-14
_NEAR, _BESIDE = 10.0, 1e-3  # sigmas; of the distance to a kink, where f may be singular, or of the length
_APART = 1e5 * 2.0**-52  # of |mu|: a sigma at which nodes are not rounded into each other
_DENSITY = 1 / np.sqrt(2 * np.pi)
_SHARED, _ROW = ("here",), ("u", "end", "step", "start", "rise", "home")


@dataclass(frozen=True)
class Feature:
    """A place where f bends, and the length on which it does: it grows with the distance from there, as nodes do."""

    at: float
    length: float


@dataclass(frozen=True)
class Kink:
    """A breakpoint of f: where it is, as an expression in the parameters, and q with f(k ± h) - f(k) about h^q."""

    at: sp.Expr
    power: float
    length: float

    @property
    def least(self) -> float:
        """The sigma over the length below which moments are scaled: at a jump differences of f keep their digits."""
        return _KINK if self.power else _JUMP


@dataclass(frozen=True)
class Nodes:
    """How the sums are taken.

    Attributes:
        count: nodes of each half of an interval.
        reach: W.
        kinks: the breakpoints of f, in the order of its pieces.
        features: beside these, from left to right.
        most: the largest length there may be.
        rates: b with f about exp(b |x|) on the left and on the right.
        even: into how many parts of one length each side of mu is cut as well: of an f that bends everywhere.
    """

    count: int
    reach: float
    kinks: tuple[Kink, ...]
    features: tuple[Feature, ...]
    most: float
    rates: tuple[float, float] = (0.0, 0.0)
    even: int = 1

    @property
    def terms(self) -> int:
        """How many there are in all."""
        return 2 * (len(self.features) + len(self.kinks) + 2 * self.even) * self.count


@lru_cache
def _table(count: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights of Gauss and Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return tuple((float((1 + t) / 2), float(w / 2)) for t, w in zip(nodes, weights, strict=True))


class Moments:
    """Writes the outputs, or the partials, of one f as sums over nodes."""

    def __init__(self, f: Branches, nodes: Nodes) -> None:
        self.f, self.kinks, self.nodes = f, nodes.kinks, nodes

    def graph(self, outputs: Sequence[str]) -> Graph:
        """A graph in float64 of some outputs."""
        g = self.g = Graph(("mean", "var"), [p.name for p in self.f.parameters])
        self.symbols: Mapping[sp.Symbol, Real] = {p: g.param(p.name) for p in self.f.parameters}
        self.at = [self.f.edge(g, kink.at, self.symbols) for kink in self.kinks]
        mu, v = g.input("mean"), g.input("var")
        least = select(v < _LEAST_VAR, _LEAST_VAR, v)
        sigma = sqrt(least).named("sigma")
        smooth, r = self._larger(mu, sigma)
        centre, wide, c, power = self._blown_up(mu, smooth)
        m, variance, slopes = self._moments(centre, wide, tuple(outputs) != OUTPUTS)
        found = _scaled_back(m, variance, slopes, smooth, r, c, power)
        small = select(v < _LEAST_VAR, v * (1 / _LEAST_VAR), 1)  # all of it at v = 0
        found["mean"] = self.f.node(g, mu, mu, self.symbols) + found["mean"] * small
        found["var"] = found["var"] * small
        for name in outputs:
            value = select(equal(mu, mu), found[name], mu)
            g.output(name, select(v >= 0, value, sqrt(select(v >= 0, 1, v))))
        return g

    # --- small sigma -------------------------------------------------------------
    def _length(self, point: Real) -> Real:
        """The length on which f bends near a point."""
        places = [(at, kink.length) for at, kink in zip(self.at, self.kinks, strict=True)]
        places += [(self.g.const(feature.at), feature.length) for feature in self.nodes.features]
        lengths = [sqrt((point - at) * (point - at) + length * length) for at, length in places]
        if self.nodes.most < np.inf or not lengths:
            lengths.append(self.g.const(min(self.nodes.most, 1e6)))
        return functools.reduce(_smaller, lengths)

    def _nearest(self, mu: Real) -> list[Real]:
        """Of the nearest kink: distance, place, power, length, and the least sigma over that."""
        first, *others = zip(self.at, self.kinks, strict=True)

        def of(at: Real, kink: Kink) -> list[Real]:
            numbers = (self.g.const(value) for value in (kink.power, kink.length, kink.least))
            return [abs(mu - at), at, *numbers]

        best = of(*first)
        for other in others:
            new = of(*other)
            closer = new[0] < best[0]
            best = [select(closer, a, b) for a, b in zip(new, best, strict=True)]
        return best

    def _larger(self, mu: Real, sigma: Real) -> tuple[Real, Real]:
        """The sigma at which moments are taken, and sigma over it."""
        length = self._length(mu)
        least, most, apart = length * _SMOOTH, length * _BESIDE, abs(mu) * _APART
        apart = _smaller(apart, most)
        least = select(least < apart, apart, least)
        if self.kinks:
            least = _smaller(least, self._nearest(mu)[0] * _BESIDE)
        larger = select(sigma < least, least, sigma)
        return larger, select(sigma < least, sigma / larger, 1)

    def _blown_up(self, mu: Real, sigma: Real) -> tuple[Real, Real, Real, Real]:
        """The mean and sigma at which moments are taken, by how much they are larger, and the power of the kink."""
        if not self.kinks:
            return mu, sigma, self.g.const(1), self.g.const(1)
        distance, at, power, length, share = self._nearest(mu)
        scale = select(length > 1, 1, length)
        least = share * select(abs(at) > scale, abs(at), scale)
        tiny = (distance <= sigma * _NEAR) & (sigma < least)
        c = select(tiny, least / sigma, 1)
        centre = select(tiny, at + (mu - at) * c, mu)
        return centre, sigma * c, c, power

    # --- sums --------------------------------------------------------------------
    def _moments(self, mu: Real, sigma: Real, partials: bool) -> tuple[Real, Real, list[Real]]:
        """E f - f(mu), the variance, and its slopes: of the mean by mu, and for ``partials`` the other three."""
        loop = self._loop(partials)
        here = self.f.node(self.g, mu, mu, self.symbols)
        shared = [here, *(self.symbols[p] for p in self.f.parameters)]
        s = self.g.sums(loop, shared, self._rows(mu, sigma))
        whole = 1 / s["one"]
        m, square = s["d"] * whole, s["dd"] * whole
        z, h = s["z"] * whole, (s["h"] * whole if partials else m)
        raw = square - m * m
        variance = select(raw < 0, 0, raw)
        by_mu = (s["dz"] * whole - m * z) / sigma
        if not partials:
            return m, variance, [by_mu]
        half = 0.5 / (sigma * sigma)
        by_var = (s["dh"] * whole - m * h) * half
        var_by_mu = (s["ddz"] * whole - 2 * m * (s["dz"] * whole) + m * m * z) / sigma
        var_by_var = (s["ddh"] * whole - 2 * m * (s["dh"] * whole) + m * m * h) * half
        return m, variance, [by_mu, by_var, var_by_mu, var_by_var]

    def _rows(self, mu: Real, sigma: Real) -> list[list[Real]]:
        g = self.g
        down, up = (self._reach(sigma, rate) for rate in self.nodes.rates)
        low, high = mu - down, mu + up
        places = self._ordered([*self.at, *(g.const(feature.at) for feature in self.nodes.features)])
        cuts = [low, *(select(at < low, low, select(at > high, high, at)) for at in places)]
        shares = [k / self.nodes.even for k in range(1 - self.nodes.even, self.nodes.even)]
        for extra in (mu + (up if share > 0 else down) * share if share else mu for share in shares):
            last = extra
            for k in range(1, len(cuts)):
                before = cuts[k]
                cuts[k] = select(last < before, last, before)
                last = select(last < before, before, last)
            cuts.append(last)
        cuts.append(high)
        double = sigma * 2
        lengths = [_smaller(double, self._length(cut)) for cut in cuts]
        starts = [(cut - mu) / sigma for cut in cuts]
        rows: list[list[Real]] = []
        for k in range(len(cuts) - 1):
            half = (cuts[k + 1] - cuts[k]) * 0.5
            home = cuts[k] + half
            for end, sign in ((k, 1), (k + 1, -1)):
                t = half / lengths[end]
                u = log(t + sqrt(t * t + 1))
                step = lengths[end] * sign
                rows.append([u, cuts[end], step, starts[end], step / sigma, home])
        return rows

    def _reach(self, sigma: Real, rate: float) -> Real:
        """How far from mu a side ends."""
        reach = sigma * self.nodes.reach
        return reach + sigma * sigma * (2 * rate) if rate else reach

    def _ordered(self, places: Sequence[Real]) -> list[Real]:
        """Places in ascending order: numbers by what they are, others where kinks have them or by comparing."""
        if all(place.constant is not None for place in places):
            return sorted(places, key=lambda place: place.constant or 0)
        found: list[Real] = []
        for place in places:
            last, row = place, []
            for other in found:
                row.append(select(last < other, last, other))
                last = select(last < other, other, last)
            found = [*row, last]
        return found

    def _loop(self, partials: bool) -> Loop:
        parameters = tuple(p.name for p in self.f.parameters)
        shared = (*_SHARED, *(f"p_{name}" for name in parameters))
        body = Graph((*shared, *_ROW, "node", "weight"))
        here, u, end, step, start, rise, home, node, weight = (
            body.input(name) for name in (*_SHARED, *_ROW, "node", "weight")
        )
        e = exp_mantissa(u * node)
        inverse = 1 / e
        sinh, cosh = (e - inverse) * 0.5, (e + inverse) * 0.5
        z = start + rise * sinh
        w = u * weight * abs(rise) * cosh * exp_mantissa(z * z * -0.5) * _DENSITY
        symbols = {p: body.input(f"p_{p.name}") for p in self.f.parameters}
        d = self.f.node(body, end + step * sinh, home, symbols) - here
        wd = w * d
        terms = {"one": w, "z": w * z, "d": wd, "dz": wd * z, "dd": wd * d}
        if partials:
            h = z * z - 1
            terms |= {"h": w * h, "dh": wd * h, "ddz": wd * d * z, "ddh": wd * d * h}
        for name, value in terms.items():
            body.output(name, value)
        return Loop(body, shared, _ROW, ("node", "weight"), _table(self.nodes.count))


def _smaller(a: Real, b: Real) -> Real:
    return select(a < b, a, b)


def _power(base: Real, exponent: Real) -> Real:
    return exp_mantissa(log(base) * exponent)


def _scaled_back(
    m: Real, variance: Real, slopes: Sequence[Real], sigma: Real, r: Real, c: Real, power: Real
) -> dict[str, Real]:
    """The outputs at the sigma asked for, from those at a larger one and about a kink."""
    by_mu = slopes[0]
    if c.constant is None:
        down = _power(c, -power)
        m, variance, by_mu = m * down, variance * down * down, by_mu * down * c
    square = r * r
    straight = by_mu * by_mu
    bent = variance - straight * sigma * sigma
    found = {"mean": m * square, "var": square * (straight * sigma * sigma + square * bent), "dmean_dmu": by_mu}
    found["var"] = select(r < 1, select(found["var"] < 0, 0, found["var"]), variance)
    if len(slopes) > 1:
        by_var, var_by_mu, var_by_var = slopes[1:]
        if c.constant is None:
            by_var, var_by_mu = by_var * down * c * c, var_by_mu * down * down * c
            var_by_var = var_by_var * down * down * c * c
        found |= {"dmean_dvar": by_var, "dvar_dmu": var_by_mu * square}
        found["dvar_dvar"] = straight + square * (var_by_var - straight)
    return found
