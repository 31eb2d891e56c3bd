"""An f whose pieces are polynomials: the jumps of its derivatives, of which it is a sum of powers about the kinks.

    f(x) = left piece + Σ_k Σ_j J_kj (x - k)_+^j/j!,     J_kj the jump of the j-th derivative at k.

Smoothed by a normal distribution that is a sum of atoms, which proofs compare with
(:mod:`momentgen.compiler.stabilise.proven`, :mod:`momentgen.compiler.stabilise.surface_error`).
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp
from flint import fmpq

from momentgen.compiler.oracle.balls import BallFunction
from momentgen.compiler.stabilise.activation import Activation
from momentgen.compiler.stabilise.atom_balls import Number
from momentgen.errors import BuildError
from momentgen.symbols import x

__all__ = ["HIGHEST", "Jump", "jumps_of", "number"]

HIGHEST = 2  # degree of a polynomial piece


@dataclass(frozen=True)
class Jump:
    """Of the derivative of an order, at a kink; fractions where they are some."""

    kink: Number
    order: int
    size: Number


def jumps_of(f: Activation) -> list[Jump]:
    """From left to right, of orders 0 to ``HIGHEST``.

    Raises:
        BuildError: stage ``approximate``: if a piece is no polynomial of low degree.
    """
    pieces = [p.expr for p in f.pieces]
    for expr in pieces:
        if not (expr.is_polynomial(x) and sp.degree(expr, x) <= HIGHEST):
            cause = f"expected polynomials of degree at most {HIGHEST} between kinks, to be smoothed exactly"
            raise BuildError(f.name, "approximate", cause, expr)
    return [
        Jump(number(kink), order, number((after - before).diff(x, order).subs(x, kink)))
        for kink, before, after in zip(f.pieces.kinks, pieces, pieces[1:], strict=False)
        for order in range(HIGHEST + 1)
    ]


def number(value: sp.Expr) -> Number:
    """A constant, exact if it is a fraction."""
    value = sp.expand(value)
    return fmpq(value.p, value.q) if value.is_Rational else BallFunction((value,), ())()[0]
