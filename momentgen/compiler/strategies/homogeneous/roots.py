r"""Roots on either side of 0: sqrt(max(x, 0)), sqrt(|x|), sign(x) |x|^(3/4), whose slope at 0 has no bound.

f is homogeneous of a degree p between 0 and 1, a multiple of 1/8, so that powers are square roots.  With t = mu/sigma,

    s = t/sqrt(κ² + t²),    r = sigma sqrt(κ² + t²),

each output is a power of r times a Chebyshev series in s.  The variance and its derivative by mu have a factor v, too.
Far out, r is |mu| and s its sign.  Of a side where f is 0 nothing is left beyond some sigmas.

Exact values: with M_q = 2^(q/2) Γ((q+1)/2)/√π and N_q = 2^((q+1)/2) Γ(q/2 + 1)/√π, a = mu/sigma, Kummer's function F,

    E |X|^q = sigma^q M_q F(-q/2; 1/2; -a²/2),    E sign(X) |X|^q = sigma^q N_q a F((1-q)/2; 3/2; -a²/2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from flint import arb
from numpy.polynomial import chebyshev

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact import BallForm, ClosedFormTruth
from momentgen.compiler.exact.differences import from_moments
from momentgen.compiler.ir.graph import Graph, Real, equal, madd, select, sqrt
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.measure.moments import EXACT_MEAN, MEAN, PARTIAL, VARIANCE, VARIANCE_OF_INPUT, Tolerance
from momentgen.compiler.strategies.tolerated import four_graphs, unmet_by_input
from momentgen.compiler.toolchain.arrays import F64
from momentgen.errors import BuildError
from momentgen.rule.symbols import mu, v, x


class Kummer(BallForm):
    """Kummer's function F(a; b; z)."""

    nargs = 3

    @classmethod
    def eval(cls, a: sp.Expr, b: sp.Expr, z: sp.Expr) -> sp.Expr | None:
        return sp.S.One if a.is_zero else None

    def fdiff(self, argindex: int = 3) -> sp.Expr:
        """By z."""
        a, b, z = self.args
        return a / b * Kummer(a + 1, b + 1, z)

    @staticmethod
    def ball(*args: Any) -> arb:
        """Its value at balls."""
        a, b, z = args
        return z.hypgeom_1f1(a, b)


@dataclass(frozen=True)
class Roots:
    """f by its power and factors.

    Attributes:
        eighths: 8 p.
        left, right: factors of |x|^p.
    """

    eighths: int
    left: float
    right: float

    def outputs(self) -> dict[str, sp.Expr]:
        """The six outputs, in mu and v; derivatives in v are half the second ones in mu."""
        left, right = (sp.Rational(factor) for factor in (self.left, self.right))
        p, rows = sp.Rational(self.eighths, 8), []
        for q, even, odd in (
            (p, (right + left) / 2, (right - left) / 2),
            (2 * p, (right**2 + left**2) / 2, (right**2 - left**2) / 2),
        ):
            moment = v ** (q / 2) * (even * _even(q) + odd * _odd(q))
            slope = sp.diff(moment, mu)
            rows.append((moment, slope, sp.diff(slope, mu)))
        return dict(zip((*OUTPUTS, *PARTIALS), from_moments(*rows), strict=True))


def _even(q: sp.Expr) -> sp.Expr:
    """E |X|^q over sigma^q."""
    half = sp.Rational(1, 2)
    return 2 ** (q / 2) * sp.gamma((q + 1) / 2) / sp.sqrt(sp.pi) * Kummer(-q / 2, half, -(mu**2) / (2 * v))


def _odd(q: sp.Expr) -> sp.Expr:
    """E sign(X) |X|^q over sigma^q."""
    size = 2 ** ((q + 1) / 2) * sp.gamma(q / 2 + 1) / sp.sqrt(sp.pi)
    return size * mu / sp.sqrt(v) * Kummer((1 - q) / 2, sp.Rational(3, 2), -(mu**2) / (2 * v))


@dataclass(frozen=True)
class RootMeasure(Tolerance):
    """Errors over what is allowed, in the units of f: no root has a largest slope; survives pickling.

    With r² = mu² + v and C the larger factor, 1e-6 (|m| + C sigma^p) is allowed to the mean, 1e-5 C² v r^(2p-2) to the
    variance, and to its partials and those of the mean 1e-4 of what they are of the order of.
    """

    eighths: int
    factor: float

    def limit(self, output: str, exact: F64, mean: F64, var: F64) -> F64:
        """What is allowed."""
        p, c = self.eighths / 8, self.factor
        r = np.hypot(mean, np.sqrt(var))
        if output == "mean":
            return MEAN * (np.abs(exact) + c * np.sqrt(var) ** p)
        if output == "var":
            return VARIANCE * c**2 * (np.sqrt(var) / r) ** 2 * r ** (2 * p)
        size = {
            "dmean_dmu": c * r ** (p - 1),
            "dmean_dvar": c * r ** (p - 2),
            "dvar_dmu": c**2 * (np.sqrt(var) / r) ** 2 * r ** (2 * p - 1),
            "dvar_dvar": c**2 * r ** (2 * p - 2),
        }
        return PARTIAL * size[output]

    def words(self) -> dict[str, Any]:
        """Describe the tolerance."""
        orders = "C*r^(p - 1), C*r^(p - 2), C^2*v*r^(2*p - 3) and C^2*r^(2*p - 2)"
        return {
            "mean": f"{MEAN:g}*(|m| + C*sigma^p)",
            "var": f"{VARIANCE:g}*C^2*v*r^(2*p - 2)",
            "partials": f"{PARTIAL:g} of {orders}, in the order of the bounds",
            "where": {
                "m": EXACT_MEAN,
                "v": VARIANCE_OF_INPUT,
                "r": "the root of mean^2 + v",
                "p, C": "f's power of |x|, and its larger factor",
            },
            "values": {"p": self.eighths / 8, "C": self.factor},
        }


_BENDS = (3.0, 4.0, 5.0)  # κ
_FAR = 2.0**15  # |t| beyond which r is |mu|
_FLAT = 7.0  # sigmas into a side where f is 0, beyond which nothing is left of it
_LEAST = 2.0**-64  # of r, where partials divide by it: below that of any v in the domain
_NODES, _LONGEST = 240, 160
_SHARE, _FINE = 0.15, 1e-12  # of what is allowed to an output, for its series; in float64 of its size
_EIGHTHS = 8
#: output -> factors r^(n p + k), as (n, k), each times sigma or not
_POWERS = {
    "mean": ((1, 0, False),),
    "var": ((1, -1, True), (1, -1, True)),
    "dmean_dmu": ((1, -1, False),),
    "dmean_dvar": ((1, -2, False),),
    "dvar_dmu": ((1, -1, True), (1, -2, True)),
    "dvar_dvar": ((2, -2, False),),
}
_ALLOWED = {"mean": MEAN, "var": VARIANCE} | dict.fromkeys(PARTIALS, PARTIAL)


def why_not(derivation: Derivation) -> str | None:
    """Why this strategy cannot handle f, or None; it is for |x|^p beside 0, p a multiple of 1/8 below 1."""
    if cause := unmet_by_input(derivation.rule):
        return cause
    if _roots(derivation) is None:
        return "expected roots on either side of 0, x^p with p a multiple of 1/8 between 0 and 1"
    return None


def _roots(derivation: Derivation) -> Roots | None:
    """f as roots; None where it is something else."""
    pieces = derivation.pieces.pieces
    if tuple(derivation.kinks) != (0,) or len(pieces) != 2:
        return None
    place = sp.Symbol("place", positive=True)
    found = [_root(piece.expr.subs(x, side * place), place) for piece, side in zip(pieces, (-1, 1), strict=True)]
    known = [root for root in found if root is not None]
    powers = {power for power, factor in known if factor != 0}
    if len(known) < 2 or len(powers) != 1:
        return None
    eighths = _EIGHTHS * powers.pop()
    if not eighths.is_Integer or not 0 < eighths < _EIGHTHS:
        return None
    return Roots(int(eighths), *(float(factor) for _, factor in known))


def _root(expr: sp.Expr, place: sp.Symbol) -> tuple[sp.Expr, sp.Expr] | None:
    """(power, factor) of factor·place^power; None where it is something else."""
    factor, rest = sp.powdenest(sp.expand_power_base(expr), force=True).as_independent(place, as_Add=False)
    if factor == 0 or not factor.is_number or not factor.is_real:
        return (sp.S.Zero, sp.S.Zero) if expr == 0 else None
    base, power = rest.as_base_exp()
    return (power, factor) if base == place else None


# --- series ----------------------------------------------------------------------
class _Series:
    """Chebyshev series in s of the outputs, normalised.

    Args:
        f: by its power and factors.
        truth: its outputs.
        bend: κ.
    """

    def __init__(self, f: Roots, truth: ClosedFormTruth, bend: float) -> None:
        self.bend = bend
        s = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)
        t = bend * s / np.sqrt(1 - s * s)
        values = truth(t, np.ones_like(t), {})
        root = np.sqrt(bend**2 + t * t)
        self.series: dict[str, F64] = {}
        for name, factors in _POWERS.items():
            power = sum(n * f.eighths / _EIGHTHS + k for n, k, _ in factors)
            self.series[name] = chebyshev.chebfit(s, values[name] / root**power, _LONGEST)

    def cut(self, name: str, allowed: float) -> F64:
        """The shortest beginning of a series that leaves out no more than is allowed."""
        series = self.series[name]
        rest = np.cumsum(np.abs(series[::-1]))[::-1]
        return series[: max(1, int(np.argmax(rest <= allowed)) if (rest <= allowed).any() else len(series))]


# --- graphs ----------------------------------------------------------------------
class _Writer:
    """Writes outputs to a graph."""

    def __init__(self, g: Graph, f: Roots, bend: float) -> None:
        self.g, self.f = g, f
        mu, v = g.input("mean"), g.input("var")
        certain = equal(v, 0)
        sigma = sqrt(select(certain, 1, v))
        size = abs(mu)
        away = certain | (sigma * _FAR < size)
        t = select(away, 0, mu / sigma).named("mean/sigma")
        square = madd(t, t, bend * bend)
        root = sqrt(square)
        left = mu < 0
        side = select(left, -1, 1)
        self.s = select(away, side, t / root).named("s")
        self.r = select(away, size, sigma * root).named("r")
        self.sigma = select(certain, 0, sigma).named("sigma")
        self.twice = self.s + self.s
        self.nothing = self.flat(left, certain, size, sigma)

    def flat(self, left: Real, certain: Real, size: Real, sigma: Real) -> Real | None:
        """Whether mu lies far into a side where f is 0."""
        if self.f.left != 0 and self.f.right != 0:
            return None
        here = left if self.f.left == 0 else ~left
        return here & (certain | (sigma * _FLAT < size))

    def power(self, eighths: int, base: Real, times: Real) -> Real:
        """times base^(eighths/8), a factor at a time: none leaves the range before the product does."""
        whole, part = divmod(abs(eighths), _EIGHTHS)
        base = 1 / base if eighths < 0 else base
        value, root = times, base
        for _ in range(whole):
            value = value * base
        for bit in (4, 2, 1):
            root = sqrt(root)
            if part & bit:
                value = value * root
        return value

    def sum(self, series: F64) -> Real:
        """A Chebyshev series at s, by Clenshaw's recurrence."""
        g = self.g
        one, two = g.const(0), g.const(0)
        for c in reversed(series[1:].tolist()):
            one, two = madd(self.twice, one, -two) + c, one
        return madd(self.s, one, -two) + float(series[0])

    def output(self, name: str, series: F64) -> Real:
        """One output, within the range of the dtype."""
        g = self.g
        p, value = self.f.eighths, self.sum(series)
        for powers, ones, sigmas in _POWERS[name]:
            least = g.const(_LEAST)
            base = select(self.r < least, least, self.r) if ones else self.r
            value = value * self.power(powers * p + ones * _EIGHTHS, base, self.sigma if sigmas else g.const(1))
        if name == "var":
            value = select(value < 0, 0, value)
        return value if self.nothing is None else select(self.nothing, 0, value)


def _graph(f: Roots, bend: float, series: Mapping[str, F64], outputs: tuple[str, ...]) -> Graph:
    graph = Graph(("mean", "var"))
    writer = _Writer(graph, f, bend)
    for name in outputs:
        graph.output(name, writer.output(name, series[name]))
    return graph


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``.

    Raises:
        BuildError: if f is no root.
    """
    rule, f = derivation.rule, _roots(derivation)
    if f is None:
        raise BuildError(rule.name, "strategies", "expected roots on either side of 0", rule.f)
    truth = ClosedFormTruth(f.outputs())
    factor = max(abs(f.left), abs(f.right))
    measure = RootMeasure(f.eighths, factor)

    def within(name: str, share: float) -> float:
        return share * factor ** sum(n for n, _, _ in _POWERS[name])

    tried = [_Series(f, truth, bend) for bend in _BENDS]
    coarse = [{name: one.cut(name, within(name, _SHARE * _ALLOWED[name])) for name in _POWERS} for one in tried]
    best = min(range(len(tried)), key=lambda i: sum(map(len, coarse[i].values())))
    chosen, series = tried[best], coarse[best]
    fine = {name: chosen.cut(name, within(name, _FINE)) for name in _POWERS}
    graphs, _ = four_graphs(lambda outputs, float64: (_graph(f, chosen.bend, fine if float64 else series, outputs), ()))
    terms = sum(map(len, series.values()))
    yield Stable(
        variant="exact",
        truth=truth,
        measure=measure,
        goal=1.0,
        aim=0.8,
        unit="tolerance",
        slack=MEAN,
        box={"a": (-20.0, 20.0), "log2_var": (-40.0, 40.0)},
        facts={
            "power": f.eighths / _EIGHTHS,
            "factors": [f.left, f.right],
            "kappa": chosen.bend,
            "terms": {name: len(row) for name, row in series.items()},
            "terms_float64": {name: len(row) for name, row in fine.items()},
            "series": {name: row.tolist() for name, row in series.items()},
        },
        doc=f"powers of r times Chebyshev series in mean/r, r² = mean² + {chosen.bend**2:g} var; {terms} terms in all",
        **graphs,
    )
