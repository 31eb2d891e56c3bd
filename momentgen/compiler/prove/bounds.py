r"""Proofs: how far, at most, float64's polynomials of a mean and of its partials are from what f has.

The polynomials of :mod:`momentgen.compiler.strategies.surfaces.fine_surface`, in cells, a partial being the mean's
derivative, are fitted, and measured, at nodes.  With ζ = sqrt(least)/w, t = u/w the exact output
(:mod:`momentgen.compiler.prove.moments`) is analytic over all inputs, -oo < t < oo and 0 < ζ <= 1, and so is the
polynomial of a cell, in s = t/sqrt(kappa² + t²) and ζ.  Their difference D is a Taylor polynomial of two variables on
each of some hundred panels:

1. in t by T_n' = T_(n + 1); what is left out is bounded by Cramér's inequality; of the fitted polynomial, as a function
   of t, by Cauchy's estimate;
2. sup |D| of the Taylor polynomial from its values at Chebyshev nodes: a polynomial of degree n nowhere exceeds its
   largest value at m > n of them by more than the factor 1/cos(n pi/2m) (Ehlich and Zeller 1964).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from flint import ctx

from momentgen.compiler.prove.fitted import InCells, Strip
from momentgen.compiler.prove.moments import BITS, PROVABLE, Moments
from momentgen.compiler.prove.panels import Difference, Panels
from momentgen.compiler.strategies.surfaces.fine_surface import FineSurfaces
from momentgen.compiler.strategies.surfaces.surface import lines_of
from momentgen.errors import BuildError

#: what float64's exp(-t²/2) J_n(|t|)/sqrt(2 pi) is off by at most, of order 1 a kink, of 0 its slope's tail: the same
#: for all f, and proven in tests/compiler/test_prove.py
KINK_BOUNDS = {0: 1.82e-17, 1: 5.83e-18}
_RATIO = 0.25  # largest half width of a panel over its centre, in ζ
_FAR = 14.0  # |t| where nothing changes any more: exp(-h²/4) = 5e-22
_LEFT_OUT = 3e-3  # by a panel's Taylor polynomial, over the error expected
_PANELS = 100000
_OVERLAP = 1e-12  # relative, of panels: cuts are rounded


def bound_of(moments: Moments, fine: FineSurfaces, output: str) -> tuple[float, int, int]:
    """A bound of w^p |polynomial - exact output| over all mu and w² >= c, p, and how many panels it took.

    The kink between f's lines is taken as exact, and levels that a mean is held within as not there.

    Args:
        moments: of f.
        fine: its polynomials.
        output: one of ``PROVABLE``.

    Raises:
        BuildError: stage ``prove``, if f has other atoms than its polynomials, or too many panels are needed.
    """
    f, fitted = moments.f, InCells(moments.f, fine, output)
    (a, b, a2, b2), lift, derivative = lines_of(f), fitted.lift, PROVABLE[output][0]
    if moments.c != fitted.frame.c:
        raise BuildError(f.name, "prove", f"expected polynomials about c = {moments.c:g}, got {fitted.frame.c:g}")
    # about how large it is: what is left out is small beside that
    size = 1.0 if output == "mean" else f.lipschitz * math.sqrt(fitted.least) ** (lift + 1 - derivative)
    allowed = _LEFT_OUT * fine.goals[output] / 3 * size
    atoms, rest = moments.atoms(fitted.least, output, lift, allowed)
    if min(atoms, default=lift) < lift:
        raise BuildError(f.name, "prove", f"{output}: expected atoms from order {lift} on, got {min(atoms)}")
    constant = (b2 - b) / 2 if output == "mean" else 0.0
    with ctx.workprec(BITS):
        largest, panels = _over_all(Difference(fitted, atoms, constant, allowed), f.name, output)
    rounding = 2.0**-50 * (abs(b) + abs(b2) + (abs(a) + abs(a2)) * abs(f.centre))  # of the lines' numbers
    return largest + rest + rounding, lift, panels


def _over_all(of: Difference, name: str, output: str) -> tuple[float, int]:
    """A bound of |D|, from the panels of all strips and what is beyond these; and how many there were."""
    fitted, largest, beyond, count = of.fitted, 0.0, 0.0, 0
    far = max(_FAR, fitted.reach + 1)
    right = list(itertools.pairwise([0.0, *fitted.cuts, fitted.reach, far]))
    both = [*((-b, -a) for a, b in right), *right]
    for strip in itertools.chain.from_iterable(_strips(*row) for row in fitted.rows):
        panels = Panels(of, strip)
        beyond = max(beyond, panels.beyond(far))
        waiting = both
        while waiting:
            *waiting, (a, b) = waiting
            count += 1
            if count > _PANELS:
                cause = f"{output}: expected at most {_PANELS} panels; still open: t in [{a:.6g}, {b:.6g}]"
                raise BuildError(name, "prove", cause)
            outside = abs(a + b) / 2 > fitted.reach
            found = panels.panel((a + b) / 2, (b - a) / 2 * (1 + _OVERLAP), outside, largest)
            if found is None:
                waiting += [(a, (a + b) / 2), ((a + b) / 2, b)]
            else:
                largest = max(largest, found)
    return largest + 2 * beyond, count


def _strips(low: float, high: float) -> Iterator[Strip]:
    """Of a row, the narrower the nearer to ζ = 0 but for one from there on: powers of ζ are then none of η."""
    end = high if low == 0.0 else low
    if low == 0.0:
        yield Strip(0.0, high * (1 + _OVERLAP))
    while end < high:
        low, end = end, min(high, end * (1 + _RATIO) / (1 - _RATIO))
        yield Strip(low * (1 - _OVERLAP), end * (1 + _OVERLAP))
