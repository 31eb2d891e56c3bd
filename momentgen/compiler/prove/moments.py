r"""The mean of an f in closed form, as a sum of atoms of one variance about its centre.

    E f(X) = line + kink + Σ_n c_n T_n(mu - centre; w²),    w² = v + c,    T_n = d^n/du^n Phi(u/w),  n >= 0

Line and kink, the mean of f's two lines smoothed by N(0, w²), stand apart.  Two kinds of f are such sums:

* *polynomial pieces*, with c = 0: with J_kj the jump of the j-th derivative at centre + k,
  f = left piece + Σ_k Σ_j J_kj (x - centre - k)_+^j/j!, and by the moments of this about the centre
  c_n = Σ_k Σ_j J_kj (-k)^(n + j)/(n + j)!;
* *normal tails* (a + b x) erf(x/sqrt(2 c)) about 0, for (a + b x) (2 T_0 - 1) they are, and x T_0 = kink - c T_1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import sympy as sp
from flint import arb, ctx, fmpq

from momentgen.compiler.exact.balls import BallFunction
from momentgen.compiler.function.activation import Activation
from momentgen.errors import BuildError
from momentgen.rule.symbols import Phi, x

#: outputs that are proven, sums of atoms, with how many derivatives in u they are and their factor
PROVABLE: Mapping[str, tuple[int, float]] = {"mean": (0, 1.0), "dmean_dmu": (1, 1.0), "dmean_dvar": (2, 0.5)}
BITS = 128
_HIGHEST = 2  # degree of a polynomial piece
_MOMENTS = 60  # of an f with kinks, at most
_CRAMER = 1.0865


@dataclass(frozen=True, eq=False)
class Moments:
    """E f as atoms.

    Attributes:
        f: the activation.
        c: see above.
        tails: c_n by n, of an f made of normal tails.
        jumps: kink - centre, order and size, of an f of polynomial pieces.
    """

    f: Activation
    c: float
    tails: Mapping[int, float]
    jumps: tuple[tuple[arb, int, arb], ...] = ()

    def atoms(self, least: float, output: str, lift: int, allowed: float) -> tuple[dict[int, float], float]:
        """c_n of an output for w² >= ``least``, and what they leave out of w^lift times it.

        Args:
            least: the smallest w².
            output: one of ``PROVABLE``.
            lift: the power of w that errors are multiplied by.
            allowed: ten times what may be left out.

        Raises:
            BuildError: if a series does not end.
        """
        shift, factor = PROVABLE[output]
        if not self.jumps:
            return {n + shift: factor * c for n, c in self.tails.items() if c}, 0.0
        with ctx.workprec(BITS):

            def shares(m: int) -> list[arb]:
                return [size * (-kink) ** (m + j) / math.factorial(m + j) for kink, j, size in self.jumps]

            found: dict[int, float] = {}
            for m in range(_MOMENTS):
                if c := float(sum(shares(m), arb(0))):
                    found[m + shift] = factor * c
                # Lagrange's remainder, of each kink's series its own
                most = factor * cramer(m + 1 + shift, least) * arb(least).sqrt() ** lift
                rest = float((sum(map(abs, shares(m + 1)), arb(0)) * most).upper())
                if rest < allowed / 10:
                    return found, rest
        raise BuildError(self.f.name, "prove", f"expected {_MOMENTS} moments of f to be enough")


def moments_of(f: Activation) -> Moments | None:
    """E f as atoms; None where it is no such sum."""
    pieces = [p.expr for p in f.pieces]
    if not f.kinks:
        return None if f.centre else _of_tails(f, pieces[0])
    if not all(expr.is_polynomial(x) and sp.degree(expr, x) <= _HIGHEST for expr in pieces):
        return None
    centre = sp.Rational(f.centre)
    with ctx.workprec(BITS):
        jumps = tuple(
            (_number(kink - centre), order, _number((after - before).diff(x, order).subs(x, kink)))
            for kink, before, after in zip(f.pieces.kinks, pieces, pieces[1:], strict=False)
            for order in range(_HIGHEST + 1)
        )
    return Moments(f, 0.0, {}, jumps)


def _number(value: sp.Expr) -> arb:
    """A constant, as near as balls are where it is no fraction."""
    value = sp.expand(value)
    return arb(fmpq(value.p, value.q)) if value.is_Rational else BallFunction((value,), ())()[0]


def _of_tails(f: Activation, expr: sp.Expr) -> Moments | None:
    """Of a line and lines times erf, of one c and of numbers that floats are; None if f is none."""
    expr = expr.replace(Phi, lambda z: (1 + sp.erf(z / sp.sqrt(2))) / 2).replace(sp.erfc, lambda z: 1 - sp.erf(z))
    expr, found, smoothed = sp.expand(expr), {0: sp.Integer(0), 1: sp.Integer(0)}, set()
    for tail in expr.atoms(sp.erf):
        k, share = tail.args[0] / x, expr.coeff(tail)
        if not (k.is_number and share.is_polynomial(x) and sp.degree(share, x) <= 1):
            return None
        expr, c = sp.expand(expr - share * tail), 1 / (2 * k**2)
        a, b = (sp.sign(k) * share.coeff(x, n) for n in (0, 1))
        found = {0: found[0] + 2 * a, 1: found[1] - 2 * b * c}
        smoothed.add(c)
    numbers = [*smoothed, *found.values()]
    if len(smoothed) != 1 or not expr.is_polynomial(x) or any(sp.Rational(float(c)) != c for c in numbers):
        return None
    return Moments(f, float(smoothed.pop()), {n: float(c) for n, c in found.items()})


def cramer(n: int, tau: float) -> arb:
    """A bound of |T_n(-|u|; tau)| exp(h²/4), h = u/sqrt(tau), n >= 0.

    T_n is He_(n-1)(h) φ(h)/w^n but for the sign, and |He_n(h)| exp(-h²/4) <= 1.0865 sqrt(n!) (Cramér).
    """
    if n == 0:
        return arb("0.5")
    return arb(_CRAMER) * arb(math.factorial(n - 1)).sqrt() / (2 * arb.pi()).sqrt() / arb(tau).sqrt() ** n
