r"""Taylor coefficients of a branch at a node, function by function: each follows from its differential equation.

With a = Σ a_n h^n,

    y = exp a, S(a) or tanh a:  n y_n = Σ k a_k s_(n-k),  s = y, y - y² or 1 - y²
    y = a^p:                    n a_0 y_n = Σ (p k - n + k) a_k y_(n-k)
    sin a and cos a:            by one another
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import sympy as sp

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Real, madd, select, sqrt
from momentgen.compiler.ir.kit import Precision, held_exp, number, sine_and_cosine
from momentgen.errors import BuildError
from momentgen.rule.symbols import S, x

Row = list[Real]
_BOUND = 80.0  # of exponents


def unknown_function(expr: sp.Expr) -> str | None:
    """The first part of ``expr`` that has no form here; None where all have."""
    known = (sp.Number, sp.NumberSymbol, sp.Symbol, sp.Add, sp.Mul, sp.exp, S, sp.tanh, sp.sin, sp.cos)
    for part in sp.preorder_traversal(written(expr)):
        half_whole = isinstance(part, sp.Pow) and (2 * part.exp).is_Integer
        if part.has(x) and not isinstance(part, known) and not half_whole:
            return str(part.func.__name__)
    return None


def written(expr: sp.Expr) -> sp.Expr:
    """``expr`` by the functions that are covered; partial fractions, in which nothing cancels far out."""
    expr = expr.rewrite(sp.exp) if expr.has(sp.sinh, sp.cosh) else expr
    return sp.apart(expr, x) if expr.is_rational_function(x) else expr


class BranchSeries:
    """Taylor coefficients of expressions in ``x`` at a node.

    Args:
        point: the node.
        count: how many coefficients.
        precision: of the graph.
        fits: takes the polynomials used.
        centre: a float32 number amid the points; a polynomial that is all of a branch is taken about it, since
            one in powers of x cancels between kinks.
    """

    def __init__(
        self, point: Real, count: int, precision: Precision, fits: list[Polynomial], centre: float = 0.0
    ) -> None:
        self.g, self.count, self.precision, self.fits, self.centre = point.graph, count, precision, fits, centre
        self.point = point
        self._seen: dict[sp.Expr, Row] = {x: self.row(point, self.g.const(1))}

    def row(self, *values: Real) -> Row:
        """A polynomial's coefficients."""
        return [*values, *[self.g.const(0)] * self.count][: self.count]

    def whole(self, expr: sp.Expr) -> Row:
        """p^(n)(node)/n!, n < count, of a branch.

        Raises:
            BuildError: for a function that is not covered.
        """
        return self.polynomial(expr) if expr.is_polynomial(x) else self.of(written(expr))

    def polynomial(self, expr: sp.Expr) -> Row:
        """The same of a polynomial, by Horner's scheme for all derivatives at once."""
        centre = self.centre if sp.degree(expr, x) > 1 else 0.0
        step = self.point - centre if centre else self.point
        row = self.row(self.g.const(0))
        for c in sp.Poly(expr.subs(x, x + sp.Rational(centre)), x).all_coeffs():
            before = [number(self.g, c), *row]
            row = [madd(step, now, add) for now, add in zip(row, before, strict=False)]
        return row

    def of(self, expr: sp.Expr) -> Row:
        """The same of a part of a branch."""
        if expr not in self._seen:
            self._seen[expr] = self._written(expr)
        return self._seen[expr]

    def _written(self, expr: sp.Expr) -> Row:
        g = self.g
        if not expr.has(x):
            return self.row(number(g, expr))
        if isinstance(expr, sp.Add):
            constant, rest = expr.as_coeff_Add()
            total = self.row(number(g, constant))
            for term in sp.Add.make_args(rest):
                factor, inner = term.as_coeff_Mul()
                weight = number(g, factor)
                total = [madd(weight, c, t) for c, t in zip(self.of(inner), total, strict=True)]
            return total
        if isinstance(expr, sp.Mul):
            one, two = map(self.of, expr.as_two_terms())
            return [self.product(one, two, n) for n in range(self.count)]
        if isinstance(expr, sp.Pow) and expr.exp.is_Integer and expr.exp > 0:
            half = self.of(expr.base ** (expr.exp // 2)) if expr.exp > 1 else self.of(expr.base)
            rest = self.of(expr.base ** (expr.exp - expr.exp // 2))
            return [self.product(half, rest, n) for n in range(self.count)]
        if isinstance(expr, sp.Pow) and (2 * expr.exp).is_Integer:
            return self.power(self.of(expr.base), expr.exp)
        if isinstance(expr, sp.exp):
            a = self.of(expr.args[0])
            return self.solved(a, held_exp(self.precision.scaled, a[0], -_BOUND, _BOUND), lambda row, n: row[n])
        if isinstance(expr, (S, sp.tanh)):
            return self.logistic(self.of(expr.args[0]), isinstance(expr, sp.tanh))
        if isinstance(expr, (sp.sin, sp.cos)):
            both = self.waves(self.of(expr.args[0]))
            return both[0 if isinstance(expr, sp.sin) else 1]
        raise BuildError(
            "", "strategies", f"the function {type(expr).__name__} has no form in float32 primitives", expr
        )

    def product(self, a: Row, b: Row, n: int) -> Real:
        """Coefficient n of a b."""
        total = self.g.const(0)
        for k in range(n + 1):
            total = madd(a[k], b[n - k], total)
        return total

    def solved(self, a: Row, start: Real, slope: Callable[[Row, int], Real]) -> Row:
        """y with y' = a' s(y): ``slope`` gives coefficient n of s of the first n + 1 of y."""
        row, slopes = [start], list[Real]()
        for n in range(1, self.count):
            slopes.append(slope(row, n - 1))
            total = self.g.const(0)
            for k in range(1, n + 1):
                total = madd(a[k] * (mpmath.mpf(k) / n), slopes[n - k], total)
            row.append(total)
        return row

    def logistic(self, a: Row, tanh: bool) -> Row:
        """S(a) or tanh a."""
        scale = 2 if tanh else 1
        e = held_exp(self.precision.scaled, abs(a[0]) * -scale, -_BOUND)
        share = 1 / (e + 1)
        negative = a[0] < 0
        if tanh:
            far = (1 - e) * share
            start = select(negative, -far, far)
        else:
            start = select(negative, e * share, share)

        def slope(row: Row, n: int) -> Real:
            square = self.square(row, n)
            if tanh:
                return (self.g.const(1) if n == 0 else self.g.const(0)) - square
            return row[n] - square

        return self.solved(a, start, slope)

    def square(self, row: Row, n: int) -> Real:
        """Coefficient n of the square."""
        total = row[n // 2] * row[n // 2] if n % 2 == 0 else self.g.const(0)
        twice = self.g.const(0)
        for k in range((n + 1) // 2):
            twice = madd(row[k], row[n - k], twice)
        return madd(2, twice, total)

    def power(self, a: Row, p: sp.Expr) -> Row:
        """a^p, p a half or a whole number."""
        inverse = 1 / a[0]
        base = inverse if p < 0 else a[0]
        start = base
        whole = int(abs(p))
        for _ in range(whole - 1):
            start = start * base
        if not p.is_Integer:
            root = 1 / sqrt(a[0]) if p < 0 else sqrt(a[0])
            start = start * root if whole else root
        row = [start]
        for n in range(1, self.count):
            total = self.g.const(0)
            for k in range(1, n + 1):
                w = (mpmath.mpf(p.p) / p.q * k - (n - k)) / n
                total = madd(a[k] * w, row[n - k], total)
            row.append(total * inverse)
        return row

    def waves(self, a: Row) -> tuple[Row, Row]:
        sine, cosine = sine_and_cosine(self.precision.fit, a[0], self.fits)
        one, two = [sine], [cosine]
        for n in range(1, self.count):
            up, down = self.g.const(0), self.g.const(0)
            for k in range(1, n + 1):
                w = a[k] * (mpmath.mpf(k) / n)
                up, down = madd(w, two[n - k], up), madd(-w, one[n - k], down)
            one.append(up)
            two.append(down)
        return one, two
