r"""Sums of atoms over balls: power series about a point, what they become at +oo, and how large they are at the most.

Atoms T_n(u; tau) as in :mod:`momentgen.compiler.approximate.atoms`.  What bounds them is Cramér's inequality,
|He_n(h)| exp(-h²/4) <= 1.0865 sqrt(n!).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from flint import arb, arb_poly, fmpq

__all__ = ["AtomGroup", "Number", "add_powers", "atom_series", "beyond", "cramer", "exact", "orders"]

#: exact, or a ball; sums of fractions that ought to be 0 are 0
Number: TypeAlias = float | fmpq | arb
_CRAMER = 1.0865
_PLAIN = 19.0  # h beyond which atoms are powers of u: exp(-h²/4) = 7e-40


@dataclass(frozen=True)
class AtomGroup:
    """Atoms of one variance about one centre, Σ_n c_n T_n(x - centre; tau), n from ``low`` >= -2 on."""

    centre: Number
    tau: float
    low: int
    coefficients: tuple[Number, ...]


def orders(group: AtomGroup) -> Iterator[tuple[int, arb]]:
    """Order and coefficient of each atom that there is."""
    return ((n, arb(c)) for n, c in enumerate(group.coefficients, start=group.low) if not arb(c).is_zero())


def exact(value: Number) -> fmpq | arb:
    """A float as a fraction."""
    return fmpq(*value.as_integer_ratio()) if isinstance(value, float) else value


def add_powers(powers: list[fmpq | arb], group: AtomGroup) -> None:
    """Subtract what T_0, T_-1 and T_-2 are at +oo: 1, u, (u² + tau)/2."""
    k, tau = exact(group.centre), exact(group.tau)
    for n, c in enumerate(map(exact, group.coefficients), start=group.low):
        if n == 0:
            powers[0] -= c
        elif n == -1:
            powers[1] -= c
            powers[0] += c * k
        elif n == -2:
            powers[2] -= c / 2
            powers[1] += c * k
            powers[0] -= c * (k * k + tau) / 2


def beyond(n: int, tau: float, u: arb) -> arb:
    """A bound of |T_n(-u')| for u' >= u >= 0."""
    return cramer(n, tau) * (-u * u / (4 * arb(tau))).exp()


def cramer(n: int, tau: float) -> arb:
    """A bound of |T_n(-|u|)| exp(h²/4): T_n = ± He_(n-1)(h) φ(h)/w^n, and for n <= 0 even with exp(h²/2) T_n(0)."""
    if n <= 0:
        return {0: arb("0.5"), -1: (arb(tau) / (2 * arb.pi())).sqrt(), -2: arb(tau) / 4}[n]
    return arb(_CRAMER) * arb(math.factorial(n - 1)).sqrt() / (2 * arb.pi()).sqrt() / arb(tau).sqrt() ** n


def atom_series(group: AtomGroup, at: arb, off: list[arb]) -> list[arb]:
    """Taylor coefficients of Σ c_n T_n(x - centre; tau) about a point, T_(n + k)/k!, k < len(off).

    Far out T_0, T_-1 and T_-2 are 1, u and (u² + tau)/2, or nothing, and the others nothing, to ``off`` exp(-h²/4).
    """
    u, count = at - arb(group.centre), len(off)
    if abs(u) > _PLAIN * math.sqrt(group.tau):
        rest = (-u * u / (4 * arb(group.tau))).exp()
        powers = [arb(0, (rest * size).upper()) for size in off]
        for n, c in orders(group) if u > 0 else ():
            whole = {0: (arb(1),), -1: (u, arb(1)), -2: ((u * u + arb(group.tau)) / 2, u, arb("0.5"))}.get(n, ())
            for k, value in enumerate(whole):
                powers[k] += c * value
        return powers
    tau = arb(group.tau)
    w = tau.sqrt()
    h = u / w
    density = (-h * h / 2).exp() / (2 * arb.pi()).sqrt()
    big = (-h / arb(2).sqrt()).erfc() / 2
    low, high = group.low, group.low + len(group.coefficients) - 1 + count
    t = {-2: tau * ((h * h + 1) * big + h * density) / 2, -1: w * (h * big + density), 0: big, 1: density / w}
    first, second = -u / tau, -1 / tau
    for n in range(1, high):
        t[n + 1] = first * t[n] + (n - 1) * second * t[n - 1] if n > 1 else first * t[1]
    # Σ_n c_n T_(n + k) as a product of polynomials.
    values = arb_poly([t[n] for n in range(low, high)])
    kernel = arb_poly([arb(c) for c in reversed(group.coefficients)])
    product = values * kernel
    shift = len(group.coefficients) - 1
    return [product[k + shift] * fmpq(1, math.factorial(k)) for k in range(count)]
