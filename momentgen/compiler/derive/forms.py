r"""Moments of homogeneous one-kink functions, written so that nothing cancels in the tails.

For f(cx) = c^d f(x) every output is sigma^p·O(a), a = mu/sigma.  With t = |a|, and the repeated
integrals J_n(t) = ∫_0^∞ x^n exp(-tx - x²/2) dx / n! (J_0 is the Mills ratio, J_{-1} = 1),

    Phi(-t) = phi(t) J_0(t),     t J_n = J_{n-1} - (n+1) J_{n+1},

each side of O is  C0(t) + phi(t)·C1(t) + phi(t)²·C2(t)  with C0 a polynomial, C1 a sum of J_n with
constant coefficients, and C2 a product of two such sums.  This module derives that form from the
closed forms that ``derive`` found, and evaluates it (and its conditioning) to any precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Any

import mpmath
import sympy as sp

from momentgen.compiler.fit import J, Polynomial, lowest_degree
from momentgen.compiler.ir.kit import DEGREES
from momentgen.rule.symbols import Phi, mu, phi, v

LOSS = 4.0  # conditioning beyond which an output gets its own expansion at a = 0

T = sp.Symbol("_t", nonnegative=True)  # |mu|/sigma; the underscore keeps it apart from parameters


@dataclass(frozen=True)
class Linear:
    """A(t) + phi(t)·Σ_n b_n(t)·J_n(t): one moment on one side of the kink; J_{-1} = 1."""

    plain: sp.Expr
    normal: Mapping[int, sp.Expr]

    def reduced(self) -> dict[int, sp.Expr]:
        """The b_n as they are after t·J_n = J_{n-1} - (n+1)·J_{n+1} has removed every power of t but beside J_{-1}."""
        result: dict[int, sp.Expr] = {}
        work = {n: sp.Poly(b, T) for n, b in self.normal.items()}
        while work:
            n = min(work)
            poly = work.pop(n)
            constant = sp.Integer(0)
            for (power,), coefficient in poly.terms():
                if power == 0:
                    constant += coefficient
                elif n == -1:
                    constant += coefficient * T**power
                else:
                    lower = sp.Poly(coefficient * T ** (power - 1), T)
                    for m, factor in ((n - 1, 1), (n + 1, -(n + 1))):
                        work[m] = work.get(m, sp.Poly(0, T)) + factor * lower
            total = sp.factor(sp.expand(result.get(n, 0) + constant))
            result[n] = total
        return {n: b for n, b in sorted(result.items()) if b != 0}


@lru_cache(maxsize=512)
def _function(expr: sp.Expr, names: tuple[sp.Symbol, ...]) -> Callable[..., Any]:
    return sp.lambdify(names, expr, "mpmath")


@dataclass(frozen=True)
class Side:
    """One side of an output: C0 + phi·Σ C1[n]·J_n + phi²·factor·(Σ left[n]·J_n)·(Σ right[n]·J_n)."""

    plain: sp.Expr
    first: Mapping[int, sp.Expr]
    factor: sp.Expr
    left: Mapping[int, sp.Expr]
    right: Mapping[int, sp.Expr]

    def terms(self, at: Any, params: Mapping[str, Any]) -> list[Any]:
        """The summands at t = ``at``, in the current mpmath precision."""
        density = mpmath.npdf(at)
        jn = {n: mpmath.mpf(1) if n < 0 else J(n, at) for n in {*self.first, *self.left, *self.right}}

        def number(expr: sp.Expr) -> Any:
            names = sorted((s for s in expr.free_symbols), key=str)
            return mpmath.mpf(_function(expr, tuple(names))(*(at if s == T else params[s.name] for s in names)))

        terms = [number(term) for term in sp.Add.make_args(self.plain)]
        terms += [density * number(b) * jn[n] for n, b in self.first.items()]
        if self.factor != 0:
            scale = density**2 * number(self.factor)
            terms += [
                scale * number(a) * jn[n] * number(b) * jn[m]
                for n, a in self.left.items()
                for m, b in self.right.items()
            ]
        return terms

    def value(self, at: Any, params: Mapping[str, Any]) -> Any:
        """The side's value at t = ``at``."""
        return mpmath.fsum(self.terms(at, params))

    def condition(self, at: Any, params: Mapping[str, Any]) -> float:
        """How much rounding the summands is magnified in the sum: Σ|terms| / |Σ terms|."""
        with mpmath.workdps(40):
            terms = self.terms(at, params)
            size, total = mpmath.fsum(map(abs, terms)), abs(mpmath.fsum(terms))
            if not size:
                return 1.0
            return float(size / total) if total else float("inf")


@dataclass(frozen=True)
class OutputForm:
    """An output sigma^power·O(a), with O on the two sides a = t (``plus``) and a = -t (``minus``)."""

    name: str
    power: int
    plus: Side
    minus: Side

    @property
    def sides(self) -> tuple[Side, ...]:
        """Those that say all: one alone where the other follows by the parity."""
        return (self.plus, self.minus) if self.parity is None else (self.plus,)

    @property
    def parity(self) -> int | None:
        """+1 if O(-a) = O(a), -1 if O(-a) = -O(a), else None; read off the forms."""
        for sign in (1, -1):
            pairs = [(self.minus.plain, self.plus.plain), (self.minus.factor, self.plus.factor)]
            keys = {*self.minus.first, *self.plus.first}
            pairs += [(self.minus.first.get(n, 0), self.plus.first.get(n, 0)) for n in keys]
            if all(sp.expand(a - sign * b) == 0 for a, b in pairs) and (
                self.plus.factor == 0 or (self.minus.left, self.minus.right) == (self.plus.left, self.plus.right)
            ):
                return sign
        return None


def _linear(expr: sp.Expr, power: int, sign: int) -> Linear:
    """Split a moment, linear in Phi(a) and phi(a), at a = sign·t and in units of sigma^power."""
    a = mu / sp.sqrt(v)
    big, small, scale = sp.Symbol("Phi_a"), sp.Symbol("phi_a"), sp.Symbol("s", positive=True)
    flat = sp.expand(expr.subs({Phi(a): big, phi(a): small}))
    flat = sp.expand(flat.subs({mu: sign * T * scale, v: scale**2}) / scale**power)
    if flat.free_symbols & {mu, v, scale} or flat.has(Phi, phi):
        raise ValueError(f"{expr} is not sigma**{power} times a function of mu/sigma, linear in Phi and phi")
    poly = sp.Poly(flat, big, small)
    if poly.total_degree() > 1:
        raise ValueError(f"{expr} is not linear in Phi(mu/sigma) and phi(mu/sigma)")
    rest, of_big, of_small = (poly.coeff_monomial(m) for m in (1, big, small))
    if sign > 0:  # Phi(t) = 1 - phi(t) J_0(t)
        return Linear(sp.expand(rest + of_big), {-1: of_small, 0: -of_big})
    return Linear(sp.expand(rest), {-1: of_small, 0: of_big})


def _sum(*parts: tuple[sp.Expr, Mapping[int, sp.Expr]]) -> dict[int, sp.Expr]:
    total: dict[int, sp.Expr] = {}
    for factor, terms in parts:
        for n, b in terms.items():
            total[n] = sp.expand(total.get(n, 0) + factor * b)
    return {n: b for n, b in total.items() if b != 0}


def _monic(terms: Mapping[int, sp.Expr]) -> tuple[sp.Expr, dict[int, sp.Expr]]:
    """A common factor of the coefficients, taken out, with the sign of the first."""
    content = sp.gcd_list([sp.factor(b) for b in terms.values()]) if terms else sp.Integer(0)
    if terms and sp.factor(next(iter(terms.values())) / content).could_extract_minus_sign():
        content = -content
    return content, {n: sp.factor(b / content) for n, b in terms.items()}


def _side(linear: Linear, first: Linear | None, second: Linear | None, factor: int) -> Side:
    """linear + factor·first·second, expanded by powers of phi."""
    if first is None or second is None:
        return Side(linear.plain, linear.reduced(), sp.Integer(0), {}, {})
    plain = sp.expand(linear.plain + factor * first.plain * second.plain)
    cross = _sum(
        (sp.Integer(1), linear.normal), (factor * first.plain, second.normal), (factor * second.plain, first.normal)
    )
    left_factor, left = _monic(first.reduced())
    right_factor, right = _monic(second.reduced())
    outer = sp.factor(factor * left_factor * right_factor)
    side = Side(plain, Linear(plain, cross).reduced(), outer, left, right)
    return min(_rewritten(side), key=_cost)


def _rewritten(side: Side) -> Iterator[Side]:
    """The side itself, and with some J_n in phi's coefficient written as (n+2)·J_{n+2} + t·J_{n+1}.

    Where J_n and J_{n+2} have opposite signs this removes the difference.
    """
    top = max(side.first, default=-1)
    candidates = [n for n in side.first if n + 2 <= max(top, 1)]
    for count in range(len(candidates) + 1):
        for chosen in combinations(candidates, count):
            first = dict(side.first)
            for n in chosen:
                b = first.pop(n)
                first = _sum(
                    (sp.Integer(1), first), ((n + 2) * b, {n + 2: sp.Integer(1)}), (b * T, {n + 1: sp.Integer(1)})
                )
            yield replace(side, first={n: sp.factor(b) for n, b in sorted(first.items())})


def _cost(side: Side) -> tuple[float, int]:
    """Worst conditioning over the tail and half-way parameters, then the number of terms."""
    names = {s.name for e in (side.plain, side.factor, *side.first.values()) for s in sp.sympify(e).free_symbols - {T}}
    params = dict.fromkeys(names, mpmath.mpf("0.3"))
    worst = max(side.condition(mpmath.mpf(x) / 4, params) for x in (2, 4, 6, 10, 20, 60))
    return (round(worst, 2), sum(len(sp.Add.make_args(b)) + (b.has(T)) for b in side.first.values()))


def output_forms(mean: sp.Expr, second: sp.Expr, degree: int) -> dict[str, OutputForm]:
    """The six outputs from E f and E f², for f homogeneous of the given degree.

    var = E f² - (E f)²; its partials are those of E f² less 2·E f times those of E f.

    Raises:
        ValueError: if a moment is not sigma^degree times a function linear in Phi(a) and phi(a).
    """
    forms: dict[str, OutputForm] = {}
    for name, variable, shift in (("", None, 0), ("dmu", mu, 1), ("dvar", v, 2)):
        m = mean if variable is None else sp.diff(mean, variable)
        q = second if variable is None else sp.diff(second, variable)
        sides: dict[str, list[Side]] = {"mean": [], "var": []}
        for sign in (1, -1):
            lin_mean = _linear(mean, degree, sign)
            lin_m = _linear(m, degree - shift, sign)
            lin_q = _linear(q, 2 * degree - shift, sign)
            sides["mean"].append(_side(lin_m, None, None, 0))
            sides["var"].append(_side(lin_q, lin_mean, lin_m, -1 if variable is None else -2))
        for moment, power in (("mean", degree), ("var", 2 * degree)):
            label = moment if variable is None else f"d{moment}_{name}"
            forms[label] = OutputForm(label, power - shift, *sides[moment])
    return forms


def without_t(side: Side) -> dict[int, sp.Expr] | None:
    """The J_n's coefficients over t, where the side is phi·t times a sum of J_n; else None."""
    if side.plain != 0 or side.factor != 0 or any(b.subs(T, 0) != 0 for b in side.first.values()):
        return None
    return {n: sp.cancel(b / T) for n, b in side.first.items()}


def vanishing_order(side: Side, params: Mapping[str, Any]) -> int:
    """m with O(t) ~ t^m at 0."""
    with mpmath.workdps(60):
        small = mpmath.mpf("1e-12")
        ratio = abs(side.value(2 * small, params) / side.value(small, params))
        return int(mpmath.nint(mpmath.log(ratio, 2)))


def near_zero(form: OutputForm, order: int, params: Mapping[str, Any], goal: float) -> tuple[Polynomial, float]:
    """W with O(t) = t^order W(t²) on 0 <= t <= edge, and the edge: where the general form is well conditioned."""
    edge = next(
        k / 8 for k in range(1, 60) if all(form.plus.condition(j / 8, params) <= LOSS / 2 for j in range(k, 60))
    )

    def target(h: Any) -> Any:
        with mpmath.workdps(90):
            root = mpmath.sqrt(h) if h > mpmath.mpf("1e-30") else mpmath.mpf("1e-15")
            return form.plus.value(root, params) / root**order

    what = f"{form.name}/(sigma^{form.power} t^{order}) in t², 0 <= t <= {edge}"
    interval = (mpmath.mpf(0), mpmath.mpf(edge) ** 2)
    return lowest_degree(target, interval, DEGREES, goal, what), edge


def changes_sign(side: Side, parameters: Mapping[str, Any]) -> bool:
    """Whether an output changes sign inside a side at the parameters given."""
    with mpmath.workdps(40):
        values = [side.value(mpmath.mpf(k) / 8, parameters) for k in range(1, 160)]
    return any(a * b < 0 for a, b in pairwise(values))
