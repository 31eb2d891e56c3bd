r"""Proofs: how far, at most, the float32 polynomials of a mean and of its partials are from those of a sum of atoms.

The polynomials of :mod:`momentgen.compiler.stabilise.surface` are fitted, and measured, at nodes.  With the atoms g of
the same f, whose moments are in closed form, and ζ = sqrt(c)/w, w² = v + c, t = u/w,

    E g(X) = line + Σ c_kn w^-n T_n(t; 1 + beta_k ζ²),    beta_k = tau_k/c - 1,

is analytic over all inputs, -oo < t < oo and 0 < ζ <= 1, and so is the polynomial, in s = t/sqrt(kappa² + t²) and ζ.
Their difference D is a Taylor polynomial of two variables on each of some hundred panels:

1. in ζ by the heat equation, d T_n/d q² = T_(n + 2)/2 at q² = 1 + beta ζ², in t by T_n' = T_(n + 1).  What is left out
   of both is bounded by Cramér's inequality; of the fitted polynomial, as a function of t, by Cauchy's estimate;
2. sup |D| of the Taylor polynomial from its values at Chebyshev nodes, as in
   :mod:`momentgen.compiler.stabilise.sup_error`.

Where f's lines differ in slope, w times the smoothed kink is part of the mean; g's own kinks of order -1 and that one
cancel as ζ -> 0, term by term: (1/ζ) Σ c_k (T_-1(t; 1 + beta_k ζ²) - T_-1(t; 1)) is a power series in ζ.

With sup |f - g| it bounds what the mean's real formula is off by: |mean - E f| <= sup|f - g| + sup|D| for all mu and v.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from flint import arb, arb_series, ctx

from momentgen.compiler.approximate import prove
from momentgen.compiler.approximate.special import J_series
from momentgen.compiler.stabilise.activation import Activation
from momentgen.compiler.stabilise.surface import Frame, Surface, decay, lines_of, steps
from momentgen.compiler.stabilise.surface_graph import kink_fit
from momentgen.compiler.stabilise.surface_panels import Panels, Strip, SurfaceDifference, Terms
from momentgen.compiler.stabilise.surrogate_graph import AtomSum
from momentgen.errors import BuildError

__all__ = ["PROVABLE", "lift_of", "prove_kink", "prove_surface"]

#: outputs that are sums of atoms, with how many derivatives in u they are and their factor
PROVABLE: Mapping[str, tuple[int, float]] = {"mean": (0, 1.0), "dmean_dmu": (1, 1.0), "dmean_dvar": (2, 0.5)}
_STEP = 0.2  # largest |beta (ζ² - reference)|/q² of a panel
_RATIO = 0.25  # largest half width of a panel over its centre, in ζ
_FAR = 12.0  # |t| over the widest q where nothing changes any more: exp(-h²/4) = 2e-16
_LEFT_OUT = 3e-3  # by a panel's Taylor polynomial, over the error expected
_PANELS = 20000
_BITS = 128
_FARTHEST = 13.0  # where the graph's exponential ends


def lift_of(f: Activation, output: str) -> int:
    """The power of w that a partial falls with, and its error: 0 for a mean, and for a slope that does not end at 0.

    Raises:
        BuildError: if f follows no lines.
    """
    if output == "mean" or (output == "dmean_dmu" and lines_of(f)[0] != 0):
        return 0
    return decay(f)[output]


def prove_surface(f: Activation, surface: Surface, atoms: AtomSum, output: str, expected: float) -> tuple[float, int]:
    """A bound of w^p |polynomial - exact output of the atoms| over all mu and v >= 0, and how many panels it took.

    p is :func:`lift_of` the output, w² = v + c.

    The kink between f's lines is taken as exact, and levels that a mean is held within as not there.

    Args:
        f: the activation.
        surface: the output's polynomial.
        atoms: of the same f, about the same centre.
        output: one of ``PROVABLE``.
        expected: about how large that is: what is left out is small beside it.

    Raises:
        BuildError: stage ``approximate``, if f has the same line on both sides, or too many panels are needed.
    """
    if lines_of(f)[:2] == lines_of(f)[2:]:
        raise BuildError(f.name, "approximate", "expected lines that differ, got one line on both sides")
    with ctx.workprec(_BITS):
        proof = _Proof(f, surface, atoms, output, expected)
        return proof.bound(), proof.panels


def prove_kink(frame: Frame, cancels: bool) -> float:
    """A bound of |K(|t|) - E (Z - |t|)_+| over all t, K the polynomial times exp(-t²/2) that the graph has for it.

    Raises:
        BuildError: stage ``approximate``, if none is found.
    """
    bend, largest = arb(frame.bend), arb(frame.largest)

    def t_of(x: arb_series) -> arb_series:
        s = x * largest
        return bend * s / (1 - s * s).sqrt()

    def core(x: arb_series) -> arb_series:
        return J_series(1, t_of(x)) / (2 * arb.pi()).sqrt()

    def density(x: arb_series) -> arb_series:
        t = t_of(x)
        return (-t * t / 2).exp()

    proven = prove(kink_fit(frame, cancels), core, weight=density, tolerance=0.02)
    if proven.bound is None:
        raise BuildError(proven.what, "approximate", "expected a proven bound")
    # Beyond the reach, or where the exponential is held, both lie between 0 and the density there.
    return float(proven.bound) * (1 + 1e-12) + math.exp(-(min(frame.reach, _FARTHEST) ** 2) / 2) / frame.reach**2


class _Proof:
    """One output over all inputs."""

    def __init__(self, f: Activation, surface: Surface, atoms: AtomSum, output: str, expected: float) -> None:
        self.f, self.output, self.panels = f, output, 0
        shift, factor = PROVABLE[output]
        a, b, a2, b2 = lines_of(f)
        c, low, kinked = surface.frame.c, atoms.lows[0], steps(f)
        terms = [
            Terms(tau / c - 1, {n + shift: factor * w for n, w in enumerate(row, start=low) if w != 0})
            for tau, row in zip(atoms.taus, atoms.mean.tolist(), strict=True)
        ]
        if any(-1 in term.coefficients for term in terms):
            total = math.fsum(term.coefficients.get(-1, 0.0) for term in terms)
            terms.append(Terms(0.0, {-1: -total}))
        lift = lift_of(f, output)
        self.of = SurfaceDifference(
            surface=surface,
            terms=tuple(terms),
            constant={"mean": (b2 - b) / 2, "dmean_dmu": (a2 - a) / 2, "dmean_dvar": 0.0}[output],
            power=decay(f)[output] - lift,
            lift=lift,
            dropped=output == "mean" and kinked and b == b2,
            allowed=_LEFT_OUT * expected,
        )

    # --- panels ---
    def bound(self) -> float:
        """Over all strips."""
        a, b, a2, b2 = lines_of(self.f)
        rounding = 2.0**-50 * (abs(b) + abs(b2) + (abs(a) + abs(a2)) * abs(self.f.centre))  # of the lines' numbers
        return max(self.over_strip(strip) for strip in self.strips()) + rounding

    def strips(self) -> Iterator[Strip]:
        """From ζ = 0 to 1; the first about 0."""
        largest = max(abs(term.beta) for term in self.of.terms)
        high = min(1.0, math.sqrt(_STEP / (largest * (1 + _STEP))) if largest else 1.0)
        yield Strip(0.0, high, 0.0)
        while high < 1.0:
            low, width = high, 2 * _RATIO / (1 - _RATIO) * high
            while True:
                strip = Strip(low, min(1.0, low + width), (low + min(1.0, low + width)) ** 2 / 4)
                if all(
                    abs(term.beta) * strip.most <= _STEP * min(term.width(strip.low**2), term.width(strip.high**2))
                    for term in self.of.terms
                ):
                    break
                width *= 0.9
            yield strip
            high = strip.high

    def over_strip(self, strip: Strip) -> float:
        """Over all t."""
        reach = self.of.surface.frame.reach
        widest = max(max(term.width(strip.low**2), term.width(strip.high**2)) for term in self.of.terms)
        far = max(_FAR * math.sqrt(widest), reach + 1)
        panels = Panels(self.of, strip, far)
        waiting = [(-far, -reach), (-reach, 0.0), (0.0, reach), (reach, far)]
        largest = 0.0
        while waiting:
            a, b = waiting.pop()
            self.panels += 1
            if self.panels > _PANELS:
                cause = f"{self.output}: expected at most {_PANELS} panels; still open: t in [{a:.6g}, {b:.6g}]"
                raise BuildError(self.f.name, "approximate", cause)
            found = panels.panel((a + b) / 2, (b - a) / 2 * (1 + 1e-15), abs(a + b) / 2 > reach)
            if found is None:
                waiting += [(a, (a + b) / 2), ((a + b) / 2, b)]
            else:
                largest = max(largest, found)
        return largest + 2 * panels.beyond()
