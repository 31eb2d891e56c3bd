r"""Proofs: how far, at most, the polynomials of a mean and of its partials are from what f, or a sum of atoms, has.

The polynomials of :mod:`momentgen.compiler.stabilise.surface` (float32) and of
:mod:`momentgen.compiler.stabilise.fine_surface` (float64, in cells, a partial being the mean's derivative) are fitted,
and measured, at nodes.  With the atoms g of the same f, whose moments are in closed form, and ζ = sqrt(c)/w,
w² = v + c, t = u/w,

    E g(X) = line + Σ c_kn w^-n T_n(t; 1 + beta_k ζ²),    beta_k = tau_k/c - 1,

is analytic over all inputs, -oo < t < oo and 0 < ζ <= 1, and so is the polynomial of a cell, in
s = t/sqrt(kappa² + t²) and ζ.  Their difference D is a Taylor polynomial of two variables on each of some hundred
panels:

1. in ζ by the heat equation, d T_n/d q² = T_(n + 2)/2 at q² = 1 + beta ζ², in t by T_n' = T_(n + 1).  What is left out
   of both is bounded by Cramér's inequality; of the fitted polynomial, as a function of t, by Cauchy's estimate;
2. sup |D| of the Taylor polynomial from its values at Chebyshev nodes, as in
   :mod:`momentgen.compiler.stabilise.sup_error`.

Where f's lines differ in slope, w times the smoothed kink is part of the mean; g's own kinks of order -1 and that one
cancel as ζ -> 0, term by term: (1/ζ) Σ c_k (T_-1(t; 1 + beta_k ζ²) - T_-1(t; 1)) is a power series in ζ.

With sup |f - g| it bounds what the mean's real formula is off by: |mean - E f| <= sup|f - g| + sup|D| for all mu and v.
An f of polynomial pieces needs no g: :func:`kink_terms`.

The parts: ``fitted_panels``, polynomials on a panel; ``surface_panels``, D on a panel; here, all panels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import mpmath
import sympy as sp
from flint import arb, arb_series, ctx

from momentgen.compiler.approximate import prove
from momentgen.compiler.approximate.special import J_series
from momentgen.compiler.stabilise.activation import Activation
from momentgen.compiler.stabilise.atom_balls import cramer, exact
from momentgen.compiler.stabilise.fine_surface import FineSurfaces
from momentgen.compiler.stabilise.fine_surface_graph import KINK_REACH, KINK_UNIT, fine_core
from momentgen.compiler.stabilise.fitted_panels import Fitted, InCells, Strip, WholePlane
from momentgen.compiler.stabilise.piece_jumps import jumps_of
from momentgen.compiler.stabilise.surface import Frame, Surface, decay, lines_of
from momentgen.compiler.stabilise.surface_graph import kink_fit
from momentgen.compiler.stabilise.surface_panels import Panels, SurfaceDifference, Terms
from momentgen.compiler.stabilise.surrogate_graph import AtomSum
from momentgen.errors import BuildError
from momentgen.symbols import x

__all__ = ["PROVABLE", "grows", "kink_terms", "lift_of", "prove_fine", "prove_fine_kink", "prove_kink", "prove_surface"]

#: outputs that are proven, sums of atoms, with how many derivatives in u they are and their factor
PROVABLE: Mapping[str, tuple[int, float]] = {"mean": (0, 1.0), "dmean_dmu": (1, 1.0), "dmean_dvar": (2, 0.5)}
_STEP = 0.3  # largest |beta (ζ² - reference)|/q² of a panel
_RATIO = 0.25  # largest half width of a panel over its centre, in ζ
_FAR = 14.0  # |t| over the widest q where nothing changes any more: exp(-h²/4) = 5e-22
_LEFT_OUT = 3e-3  # by a panel's Taylor polynomial, over the error expected
_PANELS = 100000
_BITS = 128
_OVERLAP = 1e-12  # relative, of panels: cuts are rounded
_MOMENTS = 60  # of an f with kinks, at most
_FARTHEST = 13.0  # where the graph's exponential ends


def grows(f: Activation) -> bool:
    """Whether errors are in proportion to a mean that grows, of an f that nears its lines slowly."""
    return f.algebraic and not math.isfinite(f.span)


def lift_of(f: Activation, output: str) -> int:
    """The power of w that a partial falls with, and its error: 0 for a slope that does not end at 0.

    Of a mean it is 0, and -1 where that :func:`grows`.

    Raises:
        BuildError: if f follows no lines.
    """
    if output == "mean" and grows(f):
        return -1
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
    a, b, a2, b2 = lines_of(f)
    if (a, b) == (a2, b2):
        raise BuildError(f.name, "approximate", "expected lines that differ, got one line on both sides")
    fitted = WholePlane(f, surface, output, lift_of(f, output))
    # A partial's polynomial is not fitted to what the kink leaves, but to what the lines' mean does.
    constant = {"mean": (b2 - b) / 2, "dmean_dmu": (a2 - a) / 2, "dmean_dvar": 0.0}[output]
    return _proven(f, fitted, constant, output, expected, (_terms(atoms, fitted.least, output, output == "mean"), 0.0))


def prove_fine(
    f: Activation, fine: FineSurfaces, atoms: AtomSum | None, output: str, expected: float
) -> tuple[float, int]:
    """As :func:`prove_surface`, of the float64 mean's polynomials or, for a partial, of their derivative; w² >= v*.

    Without ``atoms`` f itself is what they are compared with: it has kinks, and polynomials of low degree between them.
    Of an f that nears growing lines slowly the mean's bound is over max(w, |mu - centre|): p is -1.

    Raises:
        BuildError: as :func:`prove_surface`; if f has such kinks, and pieces that are no such polynomials.
    """
    lift = lift_of(f, output)
    fitted = InCells(f, fine, output, lift)
    _, b, _, b2 = lines_of(f)
    constant = (b2 - b) / 2 if output == "mean" else 0.0
    if atoms is None:
        terms = kink_terms(f, fitted.least, output, _LEFT_OUT * expected)
    else:
        terms = _terms(atoms, fitted.least, output, True), 0.0
    return _proven(f, fitted, constant, output, expected, terms)


@lru_cache
def _is_mirrored(f: Activation, parity: int) -> bool:
    """Whether f less a line is, by its expression, even (parity 0) or odd (1) about the centre."""
    if f.kinks:
        return False
    expr, centre = f.pieces.pieces[0].expr, sp.Rational(f.centre)
    right, left = expr.subs(x, centre + x), expr.subs(x, centre - x)
    return sp.simplify(sp.diff(right + left if parity else sp.diff(right - left, x), x).rewrite(sp.exp)) == 0


def _proven(
    f: Activation,
    fitted: Fitted,
    constant: float,
    output: str,
    expected: float,
    exact_output: tuple[tuple[Terms, ...], float],
) -> tuple[float, int]:
    """Of a polynomial and what it stands for, with what is left out of that; where both are mirrored, for t >= 0."""
    mirrored = fitted.parity is not None and _is_mirrored(f, (fitted.parity + PROVABLE[output][0]) % 2)
    (terms, rest), lift = exact_output, fitted.lift
    lowest = min((n for term in terms for n in term.coefficients if n != -1), default=lift)
    if lowest < lift:
        raise BuildError(f.name, "approximate", f"{output}: expected atoms from order {lift} on, got {lowest}")
    a, b, a2, b2 = lines_of(f)
    with ctx.workprec(_BITS):
        of = SurfaceDifference(fitted, terms, constant, lift, _LEFT_OUT * expected)
        proof = _Proof(f.name, output, of, mirrored)
        rounding = 2.0**-50 * (abs(b) + abs(b2) + (abs(a) + abs(a2)) * abs(f.centre))  # of the lines' numbers
        return proof.bound() + rest + rounding, proof.panels


def _terms(atoms: AtomSum, least: float, output: str, kinked: bool) -> tuple[Terms, ...]:
    """Those of atoms, less the kink between f's lines if that is ``kinked``; what has the same variance together."""
    shift, factor = PROVABLE[output]
    found: dict[float, dict[int, float]] = {}
    for tau, row in zip(atoms.taus, atoms.mean.tolist(), strict=True):
        of = found.setdefault(tau / least - 1, {})
        for n, c in enumerate(row, start=atoms.lows[0]):
            of[n + shift] = of.get(n + shift, 0.0) + factor * c
    kink = factor * math.fsum(atoms.mean[:, -1 - atoms.lows[0]].tolist()) if kinked and atoms.lows[0] <= -1 else 0.0
    if kink:
        of = found.setdefault(0.0, {})
        of[shift - 1] = of.get(shift - 1, 0.0) - kink
    return tuple(Terms(beta, kept) for beta, of in found.items() if (kept := {n: c for n, c in of.items() if c}))


def kink_terms(f: Activation, least: float, output: str, allowed: float) -> tuple[tuple[Terms, ...], float]:
    """An f of pieces that are polynomials, less its lines and the kink between these, and what is left out of it.

    By its moments about the centre, with J_kj the jump of the j-th derivative at centre + k:

        E f(X) = left piece + Σ_k Σ_j J_kj T_-j(u - k; v) = left piece + Σ_m c_m T_m(u; v),
        c_m = Σ_k Σ_j J_kj (-k)^(m + j)/(m + j)!,

    of which c_-2 is 0 and c_-1 belongs to the kink.

    Args:
        f: the activation.
        least: the smallest v.
        output: one of ``PROVABLE``.
        allowed: ten times what may be left out.

    Raises:
        BuildError: if pieces are no polynomials, or the series does not end.
    """
    (shift, factor), lift = PROVABLE[output], lift_of(f, output)
    with ctx.workprec(_BITS):
        jumps = [(arb(jump.kink) - arb(exact(f.centre)), jump.order, arb(jump.size)) for jump in jumps_of(f)]

        def shares(m: int) -> list[arb]:
            return [size * (-kink) ** (m + j) / math.factorial(m + j) for kink, j, size in jumps]

        found: dict[int, float] = {}
        for m in range(_MOMENTS):
            if c := float(sum(shares(m), arb(0))):
                found[m + shift] = factor * c
            # Lagrange's remainder, of each kink's series its own
            most = factor * cramer(m + 1 + shift, least) * arb(least).sqrt() ** lift
            rest = float((sum(map(abs, shares(m + 1)), arb(0)) * most).upper())
            if rest < allowed / 10:
                return (Terms(0.0, found),), rest
    raise BuildError(f.name, "approximate", f"expected {_MOMENTS} moments of f to be enough")


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


@lru_cache
def prove_fine_kink(order: int) -> float:
    """A bound of what float64's exp(-t²/2) J_order(|t|)/sqrt(2 pi) is off by, of order 1 a kink, of 0 its slope's tail.

    Raises:
        BuildError: stage ``approximate``, if none is found.
    """
    fit, unit = fine_core(order), arb(KINK_UNIT)

    def exact_core(u: arb_series) -> arb_series:
        return J_series(order, unit * (1 / u - 1)) / ((2 * arb.pi()).sqrt() * u ** (order + 1))

    def weight(u: arb_series) -> arb_series:
        t = unit * (1 / u - 1)
        return (-t * t / 2).exp() * u ** (order + 1)

    held = replace(fit, coefficients=tuple(mpmath.mpf(float(c)) for c in fit.coefficients))
    proven = prove(held, exact_core, weight=weight, tolerance=0.1)
    if proven.bound is None:
        raise BuildError(proven.what, "approximate", "expected a proven bound")
    return float(proven.bound) * (1 + 1e-12) + math.exp(-(KINK_REACH**2) / 2)


class _Proof:
    """One output over all inputs, or those of t >= 0."""

    def __init__(self, name: str, output: str, of: SurfaceDifference, mirrored: bool) -> None:
        self.name, self.output, self.of, self.mirrored = name, output, of, mirrored
        self.panels, self.largest = 0, 0.0

    def bound(self) -> float:
        """Over all strips."""
        beyond = [self.over_strip(strip) for row in self.of.fitted.rows for strip in self.strips(*row)]
        return self.largest + max(beyond)

    def strips(self, low: float, high: float) -> Iterator[Strip]:
        """Of a row; one from ζ = 0 on is about 0."""
        end, terms = high, self.of.terms
        if low == 0.0:
            largest = max(abs(term.beta) for term in terms)
            high = min(end, math.sqrt(_STEP / (largest * (1 + _STEP))) if largest else end)
            yield Strip(0.0, high * (1 + _OVERLAP), 0.0)
            low = high
        while low < end:
            width = 2 * _RATIO / (1 - _RATIO) * low
            while True:
                high = min(end, low + width)
                strip = Strip(low * (1 - _OVERLAP), high * (1 + _OVERLAP), (low + high) ** 2 / 4)
                if all(
                    abs(term.beta) * strip.most <= _STEP * min(term.width(strip.low**2), term.width(strip.high**2))
                    for term in terms
                ):
                    break
                width *= 0.9
            yield strip
            low = high

    def over_strip(self, strip: Strip) -> float:
        """Over all t that count, into ``largest``; what is left to change beyond them."""
        fitted = self.of.fitted
        widest = max(max(term.width(strip.low**2), term.width(strip.high**2)) for term in self.of.terms)
        far = max(_FAR * math.sqrt(widest), fitted.reach + 1)
        panels = Panels(self.of, strip, far)
        right = list(itertools.pairwise([0.0, *fitted.cuts, fitted.reach, far]))
        waiting = right if self.mirrored else [*((-b, -a) for a, b in right), *right]
        while waiting:
            a, b = waiting.pop()
            self.panels += 1
            if self.panels > _PANELS:
                cause = f"{self.output}: expected at most {_PANELS} panels; still open: t in [{a:.6g}, {b:.6g}]"
                raise BuildError(self.name, "approximate", cause)
            # a mean that grows is in proportion to |t| where that is more than 1
            size = max(min(abs(a), abs(b)), 1.0) if self.of.lift < 0 else 1.0
            outside = abs(a + b) / 2 > fitted.reach
            found = panels.panel((a + b) / 2, (b - a) / 2 * (1 + _OVERLAP), outside, self.largest * size)
            if found is None:
                waiting += [(a, (a + b) / 2), ((a + b) / 2, b)]
            else:
                self.largest = max(self.largest, found / size)
        return 2 * panels.beyond()
