r"""Sums of x^n e^(b x) with complex b, and their moments: the algebra that ``entire`` stands on.

For X ~ N(mu, v), E X^n e^(b X) = M_n e^(b mu + b² v/2) with M_n = (mu + b v) M_{n-1} + (n-1) v M_{n-2}.  So moments of
such f, their squares and products, and all derivatives in mu and v are sums of polynomials in (mu, v) times
e^(p mu + q v); equal exponents are added up exactly, and what cancels as symbols is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mpmath
import sympy as sp

from momentgen.rule.symbols import x

#: (i, j) -> coefficient of mu^i v^j
Coefficients = dict[tuple[int, int], sp.Expr]


@dataclass(frozen=True)
class Terms:
    """f = Σ coefficient·x^n·e^(b x), keyed by (b, n); conjugate terms come in pairs.

    >>> sorted(exponential_terms(sp.cosh(2 * x)).coefficients.items())
    [((-2, 0), 1/2), ((2, 0), 1/2)]
    """

    coefficients: Mapping[tuple[sp.Expr, int], sp.Expr]

    def derivative(self) -> Terms:
        """f'."""
        total: dict[tuple[sp.Expr, int], sp.Expr] = {}
        for (b, n), c in self.coefficients.items():
            total[b, n] = total.get((b, n), sp.Integer(0)) + b * c
            if n:
                total[b, n - 1] = total.get((b, n - 1), sp.Integer(0)) + n * c
        return Terms({key: w for key, c in total.items() if (w := sp.expand(c)) != 0})

    def squared(self) -> Terms:
        """f²."""
        total: dict[tuple[sp.Expr, int], sp.Expr] = {}
        for (b, n), c in self.coefficients.items():
            for (d, m), e in self.coefficients.items():
                key = (sp.expand(b + d), n + m)
                total[key] = total.get(key, sp.Integer(0)) + c * e
        return Terms({key: w for key, c in total.items() if (w := sp.expand(c)) != 0})

    def expectation(self) -> Moment:
        """E f(X)."""
        total: dict[tuple[sp.Expr, sp.Expr], Coefficients] = {}
        for (b, n), c in self.coefficients.items():
            row = total.setdefault((b, sp.expand(b**2 / 2)), {})
            for key, value in _hermite(b, n).items():
                row[key] = row.get(key, sp.Integer(0)) + c * value
        return Moment.of(total)

    @property
    def rates(self) -> tuple[sp.Expr, ...]:
        """The b, each once."""
        return tuple(dict.fromkeys(b for b, _ in self.coefficients))


def _hermite(b: sp.Expr, n: int) -> Coefficients:
    """M_n."""
    before: Coefficients = {}
    value: Coefficients = {(0, 0): sp.Integer(1)}
    for k in range(1, n + 1):
        after: Coefficients = {}
        for (i, j), c in value.items():
            after[i + 1, j] = after.get((i + 1, j), sp.Integer(0)) + c
            after[i, j + 1] = after.get((i, j + 1), sp.Integer(0)) + b * c
        for (i, j), c in before.items():
            after[i, j + 1] = after.get((i, j + 1), sp.Integer(0)) + (k - 1) * c
        before, value = value, after
    return value


@dataclass(frozen=True)
class Moment:
    """Σ P(mu, v)·e^(p mu + q v), keyed by (p, q); real, so that conjugate exponents come in pairs."""

    parts: Mapping[tuple[sp.Expr, sp.Expr], Coefficients]

    @staticmethod
    def of(parts: Mapping[tuple[sp.Expr, sp.Expr], Coefficients]) -> Moment:
        """With all that cancels left out."""
        clean = {}
        for exponent, row in parts.items():
            kept = {key: w for key, c in row.items() if (w := sp.expand(c)) != 0}
            if kept:
                clean[exponent] = kept
        return Moment(clean)

    def __mul__(self, other: Moment) -> Moment:
        total: dict[tuple[sp.Expr, sp.Expr], Coefficients] = {}
        for (p, q), row in self.parts.items():
            for (r, s), column in other.parts.items():
                at = total.setdefault((sp.expand(p + r), sp.expand(q + s)), {})
                for (i, j), c in row.items():
                    for (k, m), d in column.items():
                        at[i + k, j + m] = at.get((i + k, j + m), sp.Integer(0)) + c * d
        return Moment.of(total)

    def __sub__(self, other: Moment) -> Moment:
        total = {key: dict(row) for key, row in self.parts.items()}
        for key, row in other.parts.items():
            at = total.setdefault(key, {})
            for power, c in row.items():
                at[power] = at.get(power, sp.Integer(0)) - c
        return Moment.of(total)

    def derivative(self, which: int) -> Moment:
        """By mu (0) or v (1)."""
        total: dict[tuple[sp.Expr, sp.Expr], Coefficients] = {}
        for key, row in self.parts.items():
            at = total.setdefault(key, {})
            for (i, j), c in row.items():
                at[i, j] = at.get((i, j), sp.Integer(0)) + key[which] * c
                power = (i, j)[which]
                if power:
                    lower = (i - 1, j) if which == 0 else (i, j - 1)
                    at[lower] = at.get(lower, sp.Integer(0)) + power * c
        return Moment.of(total)

    def real_parts(self) -> Iterator[tuple[tuple[sp.Expr, sp.Expr], Coefficients]]:
        """(p, q) and P with the sum of Re(P e^(p mu + q v)) this moment: one of each conjugate pair, doubled."""
        for (p, q), row in self.parts.items():
            turn = (sp.im(p), sp.im(q))
            if turn == (0, 0):
                yield (p, q), row
            elif turn[0] > 0 or (turn[0] == 0 and turn[1] > 0):
                yield (p, q), {key: 2 * c for key, c in row.items()}

    @cached_property
    def _numbers(self) -> list[tuple[Any, Any, list[tuple[int, int, Any]]]]:
        with mpmath.workdps(50):
            return [
                (number(p), number(q), [(i, j, number(c)) for (i, j), c in row.items()])
                for (p, q), row in self.parts.items()
            ]

    def terms_at(self, mean: Any, var: Any) -> list[Any]:
        """The summands at a point, in the current mpmath precision."""
        return [c * mean**i * var**j * mpmath.exp(p * mean + q * var) for p, q, row in self._numbers for i, j, c in row]

    def at(self, mean: Any, var: Any) -> Any:
        """The value at a point, in the current mpmath precision."""
        return mpmath.re(mpmath.fsum(self.terms_at(mean, var)))


def number(value: sp.Expr) -> Any:
    """An exact number in the current mpmath precision, complex where it is."""
    real, imaginary = sp.sympify(value).as_real_imag()
    digits = mpmath.mp.dps + 5
    parts = [mpmath.mpf(sp.N(part, digits)) for part in (real, imaginary)]
    return mpmath.mpc(*parts) if parts[1] else parts[0]


def exponential_terms(f: sp.Expr) -> Terms | None:
    """f as such a sum with exact numbers; None if it is none.

    >>> exponential_terms(sp.tanh(x)) is None
    True
    """
    total: dict[tuple[sp.Expr, int], sp.Expr] = {}
    for term in sp.Add.make_args(sp.expand(f.rewrite([sp.sinh, sp.cosh, sp.sin, sp.cos], sp.exp))):
        c, n, exponent = sp.Integer(1), 0, sp.Integer(0)
        for factor in sp.Mul.make_args(sp.powsimp(term)):
            base, index = factor.as_base_exp()
            if not factor.has(x):
                c *= factor
            elif isinstance(factor, sp.exp):
                exponent += factor.args[0]
            elif base == x and index.is_Integer and index > 0:
                n += int(index)
            elif not base.has(x) and base.is_positive:
                exponent += index * sp.log(base)
            else:
                return None
        exponent = sp.expand(exponent)
        if not exponent.is_polynomial(x) or sp.degree(exponent, x) > 1:
            return None
        b = sp.expand(exponent.coeff(x, 1))
        c *= sp.exp(exponent.coeff(x, 0))
        if not (c.is_number and b.is_number):
            return None
        total[b, n] = total.get((b, n), sp.Integer(0)) + c
    return Terms({key: w for key, c in total.items() if (w := sp.expand(c, complex=True)) != 0})
