"""Moments of f by quadrature of f itself: independent of every closed form.

The line is cut at f's breakpoints.  Within a piece f is analytic, and ball arithmetic (``acb.integral``) integrates it
with a bound on the error.  The line that f follows around mu, exactly (a ReLU) or nearly (the asymptote of a sigmoid),
is taken out first, its moments being exact.  So nothing cancels in the tails: for a ReLU far to the right, what is
integrated is the small part on the left.  Derivatives are those of the density: f need not have any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mpmath
import sympy
from flint import acb, arb, ctx
from mpmath import mp, mpf
from sympy import Expr
from sympy.printing.pycode import MpmathPrinter

from momentgen.compiler.function.pieces import split
from momentgen.rule.symbols import Phi, S, x

__all__ = ["moments", "partials"]

Number = Any  # what sympy.sympify takes: int, float, str, mpf, sympy number
Function = Callable[[acb], acb]
#: digits beyond those asked for, the next where more cancel; where even the last do (a zero by symmetry) it is left.
_EXTRA = (15, 50, 200)
#: of the standard deviations looked at on either side, the powers of two
_POWERS = range(-4, 25)


class _Softplus(sympy.Function):
    """log(1 + exp(z)), accurate far to the left."""

    nargs = 1


class _Sinc(sympy.Function):
    """sin(z)/z, a number at 0."""

    nargs = 1


class _Root(sympy.Function):
    """The power of a base that is no whole number."""

    nargs = 2


def _cut(z: acb) -> bool:
    """Whether z leaves the real line, where a function with branch cuts must say that it meets none."""
    return not z.imag.is_zero()


def _atan(z: acb) -> acb:
    """Its cuts are those of the imaginary axis beyond i and -i."""
    return _NONE if z.real.contains(0) and not abs(z.imag) < 1 else z.atan()


def _softplus(z: acb) -> acb:
    w = z.exp()
    return _NONE if w.imag.contains(0) and not w.real > -1 else w.log1p()


_NONE = acb(arb.nan())
_OF_BALLS: dict[str, Any] = {
    **{name: lambda z, name=name: getattr(acb(z), name)() for name in ("exp", "sin", "cos", "sinh", "cosh", "erf")},
    "mpf": acb,
    "log": lambda z: z.log(_cut(z)),
    "atan": _atan,
    "Phi": lambda z: (-z / acb(2).sqrt()).erfc() / 2,
    "phi": lambda z: (-z * z / 2).exp() / (2 * acb.pi()).sqrt(),
    "S": lambda z: 1 / (1 + (-z).exp()) if z.real > 0 else z.exp() / (1 + z.exp()),
    "_Softplus": _softplus,
    "_Sinc": lambda z: acb(z).sinc(),
    "_Root": lambda z, power: acb(z).pow(power, _cut(acb(z))),
}  # fmt: skip


def moments(
    f: Expr,
    mu: Number,
    v: Number,
    params: Mapping[str, Number] | None = None,
    digits: int = 30,
) -> tuple[mpf, mpf]:
    """Mean and variance of f(X) for X of mean ``mu`` and variance ``v``, to about ``digits`` digits.

    Where more than 70 digits cancel (a mean that is zero by symmetry, the variance of a saturated sigmoid), the error
    is below 10**-(digits + 70) of E |f|, or of its square.  At v = 0 these are f(mu) and 0.

    Args:
        f: in ``x`` and symbols named in ``params``.

    >>> mean, var = moments(sympy.Max(x, 0), -30, 1, digits=15)
    >>> print(mpmath.nstr(mean, 10), mpmath.nstr(var, 10))
    1.631956734e-199 1.084372487e-200
    """
    if v == 0:
        return mpf(sympy.N(_of_values(f, params).subs(x, _exact(mu)), mp.dps + 5)), mpf(0)
    result = _solve(_Integrals.moments, _of_values(f, params), mu, v, digits)
    return result["mean"], result["var"]


def partials(
    f: Expr,
    mu: Number,
    v: Number,
    params: Mapping[str, Number] | None = None,
    digits: int = 30,
) -> dict[str, mpf]:
    """``dmean_dmu``, ``dmean_dvar``, ``dvar_dmu``, ``dvar_dvar`` for v > 0.

    >>> mpmath.nstr(partials(sympy.Max(x, 0), 0, 1, digits=15)["dvar_dvar"], 10)
    '0.3408450569'
    """
    return _solve(_Integrals.partials, _of_values(f, params), mu, v, digits)


def _exact(number: Number) -> Expr:
    if isinstance(number, mpf):
        return sympy.Rational(*mpmath.libmp.to_rational(number._mpf_))
    return sympy.Rational(float(number)) if isinstance(number, float) else sympy.sympify(number)


def _of_values(f: Expr, params: Mapping[str, Number] | None) -> Expr:
    exact = {name: _exact(value) for name, value in (params or {}).items()}
    return f.subs({s: exact[str(s)] for s in f.free_symbols if str(s) in exact})


def _solve(
    wanted: Callable[[_Integrals], dict[str, arb]], f: Expr, mu: Number, v: Number, digits: int
) -> dict[str, mpf]:
    """The quantities wanted, at a precision raised until their balls are small enough for ``digits``."""
    for extra in _EXTRA:
        with ctx.workdps(digits + extra), mp.workdps(digits):
            balls = wanted(_Integrals(f, _ball(_exact(mu)), _ball(_exact(v)), digits + extra))
            if all(ball.rad() <= abs(ball.mid()) * arb(10) ** -digits for ball in balls.values()):
                break
            size = max(abs(ball.mid()) for ball in balls.values())
            if extra == _EXTRA[-1] and not all(ball.rad() <= size * arb(10) ** -digits for ball in balls.values()):
                raise ArithmeticError(f"quadrature does not settle at mean {mu} and variance {v}: {balls}")
    with mp.workdps(digits):
        return {name: +mpf(ball.mid()) for name, ball in balls.items()}


def _function(expr: Expr) -> Function:
    """An expression in x, of balls."""
    roots = expr.replace(sympy.sin, lambda z: z * _Sinc(z)).replace(  # so that sin(x)/x is a number at 0
        lambda e: e.is_Pow and e.exp.is_Rational and not e.exp.is_Integer, lambda e: _Root(e.base, e.exp)
    )
    printer = MpmathPrinter({"fully_qualified_modules": False, "allow_unknown_functions": True})
    call = sympy.lambdify([x], roots, modules=[_OF_BALLS | {"pi": acb.pi()}], printer=printer)
    return lambda point: acb(call(point))


class _Integrals:
    """Integrals of one f for a normal X, at the current precision: f is a line and a rest r."""

    def __init__(self, f: Expr, mu: arb, v: arb, digits: int) -> None:
        self.digits, self.mu, self.v, self.scale = digits, mu, v, v.sqrt()
        pieces = split(f).map(self.towards_asymptote)
        home = next(p for p in pieces if p.high == sympy.oo or mu < _ball(p.high))
        terms = sympy.Add.make_args(home.expr)
        line = sympy.Add(*(term for term in terms if term.is_polynomial(x))).as_poly(x)
        slope, offset = (line.nth(1), line.nth(0)) if line is not None and line.degree() <= 1 else (0, 0)
        self.slope, self.offset = (_ball(sympy.sympify(number)) for number in (slope, offset))
        rest = pieces.map(lambda e: sympy.expand(e - slope * x - offset))
        self.segments = [(p.low, p.high, _function(p.expr)) for p in rest]

    def towards_asymptote(self, expr: Expr) -> Expr:
        """``expr`` as a polynomial and what vanishes on mu's side of it."""

        def upper(z: Expr) -> bool:
            return bool(_function(z)(acb(self.mu)).real > 0)

        def logarithm(z: Expr) -> Expr:
            return _Softplus((z - 1).args[0]) if isinstance(z - 1, sympy.exp) else sympy.log(z)

        expr = expr.replace(sympy.tanh, lambda z: 2 * S(2 * z) - 1).replace(sympy.log, logarithm)
        expr = expr.replace(sympy.erf, lambda z: 2 * Phi(sympy.sqrt(2) * z) - 1)
        for function in (S, Phi):
            expr = expr.replace(function, lambda z, g=function: 1 - g(-z) if upper(z) else g(z))
        expr = expr.replace(_Softplus, lambda z: z + _Softplus(-z) if upper(z) else _Softplus(z))
        return sympy.expand(expr)

    def moments(self) -> dict[str, arb]:
        line, rest = self.slope * self.mu + self.offset, self.expect(lambda z, r: r)
        var = self.slope**2 * self.v + self.expect(lambda z, r: (r - rest) ** 2)
        if self.slope != 0:
            var += 2 * self.slope * self.scale * self.expect(lambda z, r: r * z)
        return {"mean": line + rest, "var": var}

    def partials(self) -> dict[str, arb]:
        centre = self.expect(lambda z, r: r)
        mean = {of: self.expect(lambda z, r, of=of: r * self.score(of, z)) for of in ("mu", "var")}
        var = {of: self.expect(lambda z, r, of=of: (r - centre) ** 2 * self.score(of, z)) for of in ("mu", "var")}
        if self.slope != 0:  # twice the derivative of the covariance of X and r
            for of, own in (("mu", 1), ("var", 0)):
                both = self.expect(lambda z, r, of=of, own=own: r * (self.scale * z * self.score(of, z) - own))
                var[of] += 2 * self.slope * both
        return {
            "dmean_dmu": self.slope + mean["mu"],
            "dmean_dvar": mean["var"],
            "dvar_dmu": var["mu"],
            "dvar_dvar": self.slope**2 + var["var"],
        }

    def score(self, of: str, z: acb) -> acb:
        """Derivative of the logarithm of X's density at mu + scale z, by ``mu`` or the variance."""
        return z / self.scale if of == "mu" else (z * z - 1) / (2 * self.v)

    def density(self, z: acb) -> acb:
        """Density of (X - mu)/scale."""
        return (-z * z / 2).exp() / (2 * arb.pi()).sqrt()

    def expect(self, of: Callable[[acb, acb], acb]) -> arb:
        """E of a function of (X - mu)/scale and the rest."""
        total = arb(0)
        for start, end, rest in self.segments:

            def integrand(z: acb, analytic: bool = False, rest: Function = rest) -> acb:
                return of(z, rest(self.mu + self.scale * z)) * self.density(z)

            total += self.integrate(integrand, start, end)
        return total

    def integrate(self, integrand: Callable[..., acb], start: Expr, end: Expr) -> arb:
        """Integral over (X - mu)/scale from x = start to x = end, infinite ends moved to where nothing counts."""
        low, high = ((_ball(bound) - self.mu) / self.scale if bound.is_finite else None for bound in (start, end))
        near = low if low is not None and low > 0 else high if high is not None and high < 0 else arb(0)
        step = 1 / (1 + abs(near.mid()))
        sizes = {
            side: [abs(integrand(acb(near.mid() + side * step * 2**k)).real.mid()) for k in _POWERS]
            for side, bound in ((-1, low), (1, high))
            if bound is None
        }
        inner = [] if sizes else [low + (high - low) * k / 8 for k in range(9)]
        largest = [abs(integrand(acb(z.mid())).real.mid()) for z in inner] + [max(of) for of in sizes.values()]
        floor = max(largest) * arb(10) ** -(self.digits + 5)

        def reach(side: int) -> arb:
            # Two points below the floor: one could sit on a zero of the integrand.
            counts = [k for k, size in zip(_POWERS, sizes[side], strict=True) if size > floor]
            return near + side * step * arb(2) ** (max(counts, default=0) + 2)

        ends = (reach(-1) if low is None else low, reach(1) if high is None else high)
        tolerance = max(floor, arb(2) ** -(1 << 40))
        return acb.integral(integrand, *ends, abs_tol=tolerance, use_heap=True).real


def _ball(expr: Expr) -> arb:
    """A number at the current precision."""
    return acb(_function(expr)(acb(0))).real
