"""Moments of f by quadrature of f itself: independent of every closed form.

The line is cut at f's breakpoints and, within a piece, into panels around the
place where the integrand is largest, out to where it no longer counts.  The
line that f follows around mu, exactly (a ReLU) or nearly (the asymptote of a
sigmoid), is taken out first, its moments being exact.  So nothing cancels in
the tails: for a ReLU far to the right, what is integrated is the small part on
the left.  Derivatives are those of the density: f need not have any.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mpmath
import sympy
from mpmath import mp, mpf
from sympy import Expr

from momentgen.compiler.function.pieces import split
from momentgen.rule.symbols import Phi, S, x

__all__ = ["moments", "partials"]

Number = Any  # what mpmath.mpf takes: int, float, str, mpf, sympy number
Function = Callable[[mpf], mpf]
#: digits beyond those asked for, the next where more cancel; where even the last do (a zero by symmetry) it is left.
_EXTRA = (15, 40, 80)
_RULE = mpmath.calculus.quadrature.GaussLegendre(mp)
_MODULES: list[Any] = [
    {
        "Phi": lambda z: mpmath.erfc(-z / mpmath.sqrt(2)) / 2,
        "phi": lambda z: mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi),
        "S": lambda z: 1 / (1 + mpmath.exp(-z)) if abs(z) < 1e50 else mpf(z > 0),
        "_Softplus": lambda z: mpmath.log1p(mpmath.exp(z)),
        # mpmath takes as many bits as z is large: neither S(exp(1e6)) nor tanh(exp(100)) ends
        "tanh": lambda z: mpmath.tanh(z) if abs(z) < 2000 else mpmath.sign(z),
    },
    "mpmath",
]
#: panels after which an integral counts as one that does not settle.
_MAX_PANELS = 400


class _Softplus(sympy.Function):
    """log(1 + exp(z)), accurate far to the left."""

    nargs = 1


def moments(
    f: Expr,
    mu: Number,
    v: Number,
    params: Mapping[str, Number] | None = None,
    digits: int = 30,
    input: str = "normal",
) -> tuple[mpf, mpf]:
    """Mean and variance of f(X) for X of mean ``mu`` and variance ``v``, to about ``digits`` digits.

    Where more than 70 digits cancel (a mean that is zero by symmetry, the variance of a saturated sigmoid), the error
    is below 10**-(digits + 70) of E |f|, or of its square.  At v = 0 these are f(mu) and 0.

    Args:
        f: in ``x`` and symbols named in ``params``.
        input: ``normal`` or ``logistic``.

    >>> mean, var = moments(sympy.Max(x, 0), -30, 1, digits=15)
    >>> print(mpmath.nstr(mean, 10), mpmath.nstr(var, 10))
    1.631956734e-199 1.084372487e-200
    """
    if v == 0:
        return _function(_of_values(f, params))(mpf(mu)), mpf(0)
    result = _solve(_Integrals.moments, _of_values(f, params), mu, v, digits, input)
    return result["mean"], result["var"]


def partials(
    f: Expr,
    mu: Number,
    v: Number,
    params: Mapping[str, Number] | None = None,
    digits: int = 30,
    input: str = "normal",
) -> dict[str, mpf]:
    """``dmean_dmu``, ``dmean_dvar``, ``dvar_dmu``, ``dvar_dvar`` for v > 0.

    >>> mpmath.nstr(partials(sympy.Max(x, 0), 0, 1, digits=15)["dvar_dvar"], 10)
    '0.3408450569'
    """
    return _solve(_Integrals.partials, _of_values(f, params), mu, v, digits, input)


@dataclass(frozen=True)
class _Sum:
    """A number as a sum, with the sum of the absolute values: their ratio is what cancelled."""

    value: mpf
    size: mpf

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(self.value + other.value, self.size + other.size)

    def __mul__(self, factor: Number) -> _Sum:
        return _Sum(self.value * factor, self.size * abs(factor))

    def seen_from(self, centre: mpf) -> _Sum:
        """This square of a difference from ``centre``, charged with the digits which that difference loses."""
        return _Sum(self.value, max(self.size, abs(centre) * mp.sqrt(abs(self.value))))

    @property
    def loss(self) -> float:
        """Decimal digits lost."""
        if self.value == 0:
            return 0.0 if self.size == 0 else float("inf")
        return float(mp.log10(self.size / abs(self.value)))


def _of_values(f: Expr, params: Mapping[str, Number] | None) -> Expr:
    exact = {name: sympy.Rational(w) if isinstance(w, float) else w for name, w in (params or {}).items()}
    return f.subs({s: exact[str(s)] for s in f.free_symbols if str(s) in exact})


def _solve(
    wanted: Callable[[_Integrals], dict[str, _Sum]], f: Expr, mu: Number, v: Number, digits: int, input: str
) -> dict[str, mpf]:
    """The quantities wanted, at a precision raised until what cancels leaves ``digits``."""
    for extra in _EXTRA:
        try:
            with mp.workdps(digits + extra):
                result = wanted(_Integrals(f, mpf(mu), mpf(v), input, digits + extra - 5))
        except _UnsettledError:
            if extra == _EXTRA[-1]:
                raise
            continue
        if max(part.loss for part in result.values()) <= extra - 10:
            break
    with mp.workdps(digits):
        return {name: +part.value for name, part in result.items()}


def _function(expr: Expr) -> Function:
    call = sympy.lambdify([x], expr, modules=_MODULES)
    return lambda point: mpf(call(point))


class _Integrals:
    """Integrals of one f for X of one law, at the current precision: f is a line and a rest r."""

    def __init__(self, f: Expr, mu: mpf, v: mpf, input: str, digits: int) -> None:
        self.digits, self.mu, self.v, self.normal = digits, mu, v, input == "normal"
        self.level = 1 / mp.sqrt(2 * mp.pi)
        self.scale = mp.sqrt(v) if self.normal else mp.sqrt(3 * v) / mp.pi
        pieces = split(f).map(self.towards_asymptote)
        home = next(p for p in pieces if p.high == sympy.oo or mu < _number(p.high))
        terms = sympy.Add.make_args(home.expr)
        line = sympy.Add(*(term for term in terms if term.is_polynomial(x))).as_poly(x)
        slope, offset = (line.nth(1), line.nth(0)) if line is not None and line.degree() <= 1 else (0, 0)
        self.slope, self.offset = (_number(sympy.sympify(number)) for number in (slope, offset))
        rest = pieces.map(lambda e: sympy.expand(e - slope * x - offset))
        self.segments = [(p.low, p.high, _function(p.expr), p.expr.is_polynomial(x)) for p in rest]

    def towards_asymptote(self, expr: Expr) -> Expr:
        """``expr`` as a polynomial and what vanishes on mu's side of it."""

        def upper(z: Expr) -> bool:
            return bool(_function(z)(self.mu) > 0)

        def logarithm(z: Expr) -> Expr:
            return _Softplus((z - 1).args[0]) if isinstance(z - 1, sympy.exp) else sympy.log(z)

        expr = expr.replace(sympy.tanh, lambda z: 2 * S(2 * z) - 1).replace(sympy.log, logarithm)
        expr = expr.replace(sympy.erf, lambda z: 2 * Phi(sympy.sqrt(2) * z) - 1)
        for function in (S, Phi):
            expr = expr.replace(function, lambda z, g=function: 1 - g(-z) if upper(z) else g(z))
        expr = expr.replace(_Softplus, lambda z: z + _Softplus(-z) if upper(z) else _Softplus(z))
        return sympy.expand(expr)

    def moments(self) -> dict[str, _Sum]:
        line, rest = self.slope * self.mu + self.offset, self.expect(lambda z, r: r)
        square = self.expect(lambda z, r: (r - rest.value) ** 2).seen_from(rest.value)
        both = self.expect(lambda z, r: r * z) * (2 * self.slope * self.scale) if self.slope else _constant(mpf(0))
        return {"mean": _constant(line) + rest, "var": _constant(self.slope**2 * self.v) + both + square}

    def partials(self) -> dict[str, _Sum]:
        centre = self.expect(lambda z, r: r).value
        found = {}
        for of, by_line in (("mu", self.slope), ("var", mpf(0))):
            found[f"dmean_d{of}"] = _constant(by_line) + self.expect(lambda z, r, of=of: r * self.score(of, z))
        for of, by_line in (("mu", mpf(0)), ("var", self.slope**2)):
            part = self.expect(lambda z, r, of=of: (r - centre) ** 2 * self.score(of, z))
            if self.slope:
                own = 1 if of == "mu" else 0  # of X - mu itself, in the covariance of X and r
                both = self.expect(lambda z, r, of=of, own=own: r * (self.scale * z * self.score(of, z) - own))
                part += both * (2 * self.slope)
            found[f"dvar_d{of}"] = _constant(by_line) + part
        return found

    def score(self, of: str, z: mpf) -> mpf:
        """Derivative of the logarithm of X's density at mu + scale z, by ``mu`` or the variance."""
        slope = z if self.normal else mp.tanh(z / 2)
        return slope / self.scale if of == "mu" else (z * slope - 1) / (2 * self.v)

    def density(self, z: mpf) -> mpf:
        """Density of (X - mu)/scale."""
        if self.normal:
            return mp.exp(-z * z / 2) * self.level
        e = mp.exp(-abs(z))
        return e / (1 + e) ** 2

    def expect(self, of: Callable[[mpf, mpf], mpf]) -> _Sum:
        """E of a function of (X - mu)/scale and the rest."""
        total = _constant(mpf(0))
        for start, end, rest, polynomial in self.segments:

            def value(z: mpf, rest: Function = rest) -> mpf:
                return of(z, rest(self.mu + self.scale * z))

            low, high = ((_number(bound) - self.mu) / self.scale for bound in (start, end))
            total += self.integrate(value, low, high, polynomial)
        return total

    def integrate(self, value: Function, low: mpf, high: mpf, polynomial: bool) -> _Sum:
        """Integral of value(z) times the standard density over low < z < high."""

        def log_size(z: mpf) -> mpf:
            size = abs(value(z))
            return mp.log(size) - (z * z / 2 if self.normal else abs(z)) if size else mpf("-inf")

        near = min(max(mpf(0), low), high)
        step = 1 / (1 + abs(near))
        starts = [near] + [near + s * step * mpf(2) ** k for k in range(-4, 6 if polynomial else 24) for s in (-1, 1)]
        # A narrow piece lies between these points, and may have a zero at the nearest.
        starts = [z for z in (*starts, low, (low + high) / 2, high) if low <= z <= high and not mp.isinf(z)]
        heights = {z: log_size(z) for z in starts}
        peak = max(heights, key=lambda z: heights[z])
        if mp.isinf(heights[peak]):
            return _constant(mpf(0))
        peak = self.climb(log_size, peak, starts)
        floor = log_size(peak) - (self.digits + 5) * mp.log(10)
        cuts = {peak}
        for direction, end in ((-1, low), (1, high)):
            width, z = 1 / (1 + abs(peak)), peak
            while z != end:
                z = peak + direction * width
                if (z - end) * direction >= 0:
                    z = end
                cuts.add(z)
                # Two points below the floor: one could sit on a zero of the integrand.
                if log_size(z) < floor and log_size((z + peak + direction * width / 2) / 2) < floor:
                    break
                width *= 2
        if not polynomial:
            # A smooth f of its own scale, seen through a wide Gaussian, is a narrow feature around x = 0.
            lowest, highest = min(cuts), max(cuts)
            own = [s * mpf(2) ** k for k in range(-1, 40) for s in (-1, 1)] + [mpf(0)]
            cuts |= {z for z in ((w - self.mu) / self.scale for w in own) if lowest < z < highest}
        if min(cuts) < 0 < max(cuts):
            cuts.add(mpf(0))  # where the logistic density has a kink in its logarithm, and scores a zero

        def integrand(z: mpf) -> mpf:
            return value(z) * self.density(z)

        panels = itertools.pairwise(sorted(cuts))
        # From the peak outwards: what is far out then counts against what is there already.
        return _panels(integrand, sorted(panels, key=lambda p: min(abs(p[0] - peak), abs(p[1] - peak))), self.digits)

    @staticmethod
    def climb(log_size: Function, peak: mpf, starts: list[mpf]) -> mpf:
        """The maximum near ``peak``, by golden sections between its neighbours; roughly is enough."""
        ordered = sorted(starts)
        i = ordered.index(peak)
        left, right = ordered[max(i - 1, 0)], ordered[min(i + 1, len(ordered) - 1)]
        for _ in range(30):
            one, two = left + (right - left) * mpf("0.382"), left + (right - left) * mpf("0.618")
            if log_size(one) < log_size(two):
                left = one
            else:
                right = two
        middle = (left + right) / 2
        return middle if log_size(middle) > log_size(peak) else peak


class _UnsettledError(ArithmeticError):
    """An integral whose panels do not settle: its integrand is noise at this precision, or wild."""


def _panels(integrand: Function, cuts: list[tuple[mpf, mpf]], digits: int) -> _Sum:
    """Gauss-Legendre on each panel, its order doubled until settled, else the panel halved."""
    total, waiting, used = _constant(mpf(0)), cuts[::-1], 0
    while waiting:
        left, right = waiting.pop()
        used += 1
        if used > _MAX_PANELS:
            raise _UnsettledError(f"quadrature does not settle near {mp.nstr(left, 8)} standard deviations from mu")
        half, middle = (right - left) / 2, (right + left) / 2
        value: mpf | None = None
        for level in (4, 5, 6, 7):
            previous = value
            nodes = _RULE.get_nodes(-1, 1, level, mp.prec)
            value = half * mp.fsum(weight * integrand(middle + half * node) for node, weight in nodes)
            size = max(abs(value), total.size * mpf(10) ** -8)
            # Doubling the order of a Gauss rule squares its error.
            if abs(value) < total.size * mpf(10) ** -digits or (
                previous is not None and abs(value - previous) <= size * mpf(10) ** (-digits / 2 - 3)
            ):
                total += _constant(value)
                break
        else:
            waiting += [(middle, right), (left, middle)]
    return total


def _constant(value: mpf) -> _Sum:
    return _Sum(value, abs(value))


def _number(expr: Expr) -> mpf:
    if expr.is_infinite:
        return mpf("inf") if expr == sympy.oo else mpf("-inf")
    return mpf(sympy.N(expr, mp.dps + 5))
