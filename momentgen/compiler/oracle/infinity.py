r"""An expression over all of [X, oo) at once, enclosed: what proofs need where balls end.

Ball arithmetic over an infinite interval loses what cancels: log(1 + e^x) - x is oo - oo.  Here an expression is
carried as

    y(x) = e^Q(x) ( x^p A(1/x) + d(x) ),     |d(x)| <= D e^(-lambda (x - X)),     x >= X,

Q a polynomial without a constant term, A a polynomial in 1/x whose coefficients are balls, D and lambda > 0 numbers.
The form is closed under +, *, 1/y, exp, log, sqrt, atan, erf and erfc: of a sum the smaller exponential joins d, a
logarithm brings Q down, an exponential takes it up.  So log(1 + e^x) = log(e^x (1 + d)) = x + d', and x S(x) - x is d
alone.  A function that nears a line by powers of 1/x, such as atan x or sqrt(1 + x²), is held by A.

Each coefficient of A is a ball that holds some function of x, not one number: terms beyond the last are folded into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import sympy as sp
from flint import arb, arb_series, ctx, fmpq

from momentgen.errors import BuildError
from momentgen.symbols import Phi, S, phi, x

__all__ = ["Tail", "enclose_tail"]

_TERMS = 7  # coefficients of A
_ZERO = arb(0)


class _NotEnclosedError(Exception):
    """A step that the form does not hold; says what was expected."""


@dataclass(frozen=True)
class Tail:
    """One function on [X, oo), in the form of the module's docstring.

    Attributes:
        start: X > 0.
        growth: coefficients of x, x², ... in Q.
        power: p.
        series: A, ``_TERMS`` balls.
        size: D.
        rate: lambda.
    """

    start: arb
    growth: tuple[arb, ...]
    power: int
    series: tuple[arb, ...]
    size: arb
    rate: arb

    def line(self) -> tuple[arb, arb, arb]:
        """Slope, offset and what is left of a function that nears a line: |y - slope x - offset| <= the third.

        Raises:
            ValueError: if it nears none.
        """
        if self.growth or self.power > 1:
            raise ValueError("expected a function that nears a line")
        a = (*[_ZERO] * (1 - self.power), *self.series)
        rest = abs(_value(a[2:], self.nearness)) * self.nearness + self.size
        return a[0], a[1], rest.upper()

    @property
    def nearness(self) -> arb:
        """1/x, as a ball over all of [X, oo)."""
        return arb(0).union(1 / self.start)


def enclose_tail(expr: sp.Expr, start: float, side: int, rule: str, derivative: int = 0, bits: int = 192) -> Tail:
    """``expr``, an expression in ``x``, on x >= start (``side`` 1) or, as a function of -x, on x <= -start (-1).

    Args:
        expr: of exp, log, erf, erfc, atan, S, Phi, phi, tanh, sinh, cosh, integer and half-integer powers, + and *.
        start: > 0; where exponentials are still of order 1 there, no enclosure may be found, and one further out may.
        side: 1 or -1.
        rule: for messages.
        derivative: in x, of this order, in place of ``expr`` itself.
        bits: working precision.

    Raises:
        BuildError: stage ``approximate``, if the expression leaves the form.

    >>> slope, offset, rest = enclose_tail(sp.log(1 + sp.exp(x)), 20.0, 1, "softplus").line()
    >>> slope == 1, offset == 0, bool(rest < 1e-8)
    (True, True, True)
    """
    with ctx.workprec(bits):
        calculus = _Calculus(arb(start), side)
        try:
            # Differentiated after tanh and its like are gone: sympy's 1 - tanh² cancels only if coefficients are exact.
            inner = _elementary(expr)
            for _ in range(derivative):
                inner = inner.diff(x)
            return calculus.settled(calculus.of(inner))
        except _NotEnclosedError as error:
            place = f"[{start:g}, oo)" if side > 0 else f"(-oo, {-start:g}]"
            raise BuildError(rule, "approximate", f"no enclosure over {place}: {error}", expr) from error


def _elementary(expr: sp.Expr) -> sp.Expr:
    expr = expr.replace(S, lambda z: 1 / (1 + sp.exp(-z)))
    expr = expr.replace(Phi, lambda z: sp.erfc(-z / sp.sqrt(2)) / 2)
    expr = expr.replace(phi, lambda z: sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi))
    expr = expr.replace(sp.tanh, lambda z: 1 - 2 / (1 + sp.exp(2 * z)))
    expr = expr.replace(sp.sinh, lambda z: (sp.exp(z) - sp.exp(-z)) / 2)
    return expr.replace(sp.cosh, lambda z: (sp.exp(z) + sp.exp(-z)) / 2)


# --- polynomials in s = 1/x -----------------------------------------------------------
def _value(a: tuple[arb, ...], s: arb) -> arb:
    total = arb(0)
    for c in reversed(a):
        total = total * s + c
    return total


def _product(a: tuple[arb, ...], b: tuple[arb, ...], s: arb) -> tuple[arb, ...]:
    """a b, what is beyond the last coefficient folded into it."""
    total = [arb(0)] * (2 * _TERMS - 1)
    for i, p in enumerate(a):
        if not p.is_zero():
            for j, q in enumerate(b):
                total[i + j] += p * q
    return _folded(total, s)


def _folded(a: list[arb], s: arb) -> tuple[arb, ...]:
    last = _value(tuple(a[_TERMS - 1 :]), s)
    return (*a[: _TERMS - 1], last)


def _shifted(a: tuple[arb, ...], by: int, s: arb) -> tuple[arb, ...]:
    """a s^by."""
    return _folded([arb(0)] * by + list(a), s) if by else a


# --- calculus -------------------------------------------------------------------------
class _Calculus:
    """Tails over one [X, oo), x on its ``side``."""

    def __init__(self, start: arb, side: int) -> None:
        self.start, self.side = start, side
        self.s = arb(0).union(1 / start)
        self.known: dict[sp.Expr, Tail] = {}

    def of(self, expr: sp.Expr) -> Tail:
        """The tail of an expression, each subexpression looked at once."""
        if expr not in self.known:
            found = self._made(expr)
            if not all(c.is_finite() for c in (*found.growth, *found.series, found.size, found.rate)):
                raise _NotEnclosedError(f"expected finite bounds of {expr}; they may exist further out")
            self.known[expr] = found
        return self.known[expr]

    def _made(self, expr: sp.Expr) -> Tail:
        if expr == x:
            return self.polynomial(arb(self.side), 1)
        if isinstance(expr, (sp.Rational, sp.Float)):
            exact = sp.Rational(expr)
            return self.polynomial(arb(fmpq(exact.p, exact.q)))
        if expr is sp.pi:
            return self.polynomial(arb.pi())
        if expr is sp.E:
            return self.polynomial(arb(1).exp())
        if isinstance(expr, sp.Pow):
            return self.to_power(self.of(expr.base), expr.exp)
        args = [self.of(a) for a in expr.args]
        if isinstance(expr, (sp.Add, sp.Mul)):
            total = args[0]
            for other in args[1:]:
                total = (self.add if isinstance(expr, sp.Add) else self.mul)(total, other)
            return total
        functions: dict[type, Callable[[Tail], Tail]] = {
            sp.exp: self.exp,
            sp.log: self.log,
            sp.erf: self.erf,
            sp.erfc: self.erfc,
            sp.atan: self.atan,
        }
        if type(expr) not in functions:
            raise _NotEnclosedError(f"expected exp, log, erf, erfc, atan, powers, sums and products, got {expr}")
        return functions[type(expr)](args[0])

    # --- making and judging ---
    def polynomial(self, c: arb, power: int = 0) -> Tail:
        """c x^power."""
        return Tail(self.start, (), power, (c, *[_ZERO] * (_TERMS - 1)), _ZERO, arb(1))

    def dust(self, size: arb, rate: arb) -> Tail:
        """Nothing but d."""
        return replace(self.polynomial(_ZERO), size=size, rate=rate)

    def falls(self, growth: tuple[arb, ...]) -> arb | None:
        """lambda > 0 with Q(x) - Q(X) <= -lambda (x - X); None where there is none."""
        moved = [arb(0)] * (len(growth) + 1)  # in powers of x - X
        for k, q in enumerate(growth, start=1):
            for j in range(k + 1):
                moved[j] += q * math.comb(k, j) * self.start ** (k - j)
        if len(moved) < 2 or not moved[1] < 0 or any(not c <= 0 for c in moved[2:]):
            return None
        return (-moved[1]).lower()

    def size_of(self, y: Tail) -> tuple[arb, arb]:
        """D and lambda of x^p A(1/x) times something of size 1 and rate 0: its rate is what is lost to growth."""
        return abs(_value(y.series, self.s)).upper() * self.start**y.power, arb(max(y.power, 0)) / self.start

    def bare(self, y: Tail) -> Tail:
        """Zeros at the ends of Q and A off."""
        growth = y.growth
        while growth and growth[-1].is_zero():
            growth = growth[:-1]
        series, power = y.series, y.power
        if all(c.is_zero() for c in series):
            return replace(y, growth=growth, power=0)
        while series[0].is_zero():
            series, power = (*series[1:], _ZERO), power - 1
        return replace(y, growth=growth, series=series, power=power)

    def settled(self, y: Tail) -> Tail:
        """All of it in d where e^Q falls.  Not before it must be: e^x/(1 + e^x) is 1 + d only as long as Q is kept."""
        rate = self.falls(y.growth)
        if rate is None:
            return y
        top, lost = self.size_of(y)
        left = (rate - lost).lower()
        if not left > 0:
            raise _NotEnclosedError("an exponential that has not yet overtaken a power of x; it may further out")
        factor = sum((q * self.start**k for k, q in enumerate(y.growth, start=1)), arb(0)).exp()
        return self.dust((factor * (top + y.size)).upper(), left)

    def times_dust(self, y: Tail, size: arb, rate: arb) -> tuple[arb, arb]:
        """Size and rate of x^p A d."""
        if size.is_zero():
            return _ZERO, rate
        top, lost = self.size_of(y)
        left = (rate - lost).lower()
        if not left > 0:
            raise _NotEnclosedError("a power of x times what does not fall fast enough; it may further out")
        return (top * size).upper(), left

    # --- arithmetic ---
    def add(self, a: Tail, b: Tail) -> Tail:
        for one, other in ((a, b), (b, a)):
            if all(c.is_zero() for c in one.series) and one.size.is_zero():
                return other
        gap = self.gap(a, b)
        if not all(q.is_zero() for q in gap):
            if self.falls(gap) is None:
                a, b, gap = b, a, tuple(-c for c in gap)
            if self.falls(gap) is None:  # equal but for rounding, it may be
                a, b = self.settled(a), self.settled(b)
                if a.growth or b.growth:
                    raise _NotEnclosedError("expected one of two exponentials to outgrow the other")
            else:  # in units of a's exponential, where it is all d
                b = self.settled(replace(b, growth=gap))
        power = max(a.power, b.power)
        left, right = (_shifted(y.series, power - y.power, self.s) for y in (a, b))
        series = tuple(p + q for p, q in zip(left, right, strict=True))
        size, rate = self.both((a.size, a.rate), (b.size, b.rate))
        return self.bare(Tail(self.start, a.growth, power, series, size, rate))

    def gap(self, a: Tail, b: Tail) -> tuple[arb, ...]:
        """Q of b less that of a."""
        count = max(len(a.growth), len(b.growth))
        first, second = ((*y.growth, *[_ZERO] * (count - len(y.growth))) for y in (a, b))
        return tuple(q - p for p, q in zip(first, second, strict=True))

    def both(self, *parts: tuple[arb, arb]) -> tuple[arb, arb]:
        """The sum of several d: the slowest rate serves all."""
        present = [part for part in parts if not part[0].is_zero()]
        if not present:
            return _ZERO, arb(1)
        rate = present[0][1]
        for _, other in present[1:]:
            rate = rate.min(other)
        return sum((size for size, _ in present), arb(0)).upper(), rate

    def mul(self, a: Tail, b: Tail) -> Tail:
        size, rate = self.both(
            self.times_dust(a, b.size, b.rate), self.times_dust(b, a.size, a.rate), (a.size * b.size, a.rate + b.rate)
        )
        growth = self.gap(replace(a, growth=tuple(-q for q in a.growth)), b)
        series = _product(a.series, b.series, self.s)
        return self.bare(Tail(self.start, growth, a.power + b.power, series, size, rate))

    def composed(self, a: tuple[arb, ...], function: Callable[[arb_series], arb_series]) -> tuple[arb, ...]:
        """function(A): its Taylor polynomial at A(0), the last coefficient taken over all values of A."""
        over = _value(a, self.s).union(a[0])
        rest = (_ZERO, *a[1:])
        cap = ctx.cap
        try:
            ctx.cap = _TERMS
            at, wide = (function(arb_series([c, arb(1)], _TERMS)) for c in (a[0], over))
            outer = [at[k] for k in range(_TERMS - 1)] + [wide[_TERMS - 1]]
        except (ValueError, ZeroDivisionError) as error:
            raise _NotEnclosedError(
                "expected a divisor, root or logarithm to stay away from 0; it may further out"
            ) from error
        finally:
            ctx.cap = cap
        if all(c.is_zero() for c in rest):
            return (outer[0], *[_ZERO] * (_TERMS - 1))
        total: tuple[arb, ...] = (_ZERO,) * _TERMS
        for c in reversed(outer):
            total = _product(total, rest, self.s)
            total = (total[0] + c, *total[1:])
        return total

    def relative(self, y: Tail) -> tuple[arb, arb]:
        """Size and rate of d over x^p A, below 1."""
        if y.series[0].contains(0):
            raise _NotEnclosedError("expected a divisor or logarithm whose leading term is not 0")
        inverse = replace(y, power=-y.power, series=self.composed(y.series, lambda a: 1 / a))
        size, rate = self.times_dust(inverse, y.size, y.rate)
        if not size < 1:
            raise _NotEnclosedError("an exponential that is not yet small; it may further out")
        return size, rate

    def inverse(self, y: Tail) -> Tail:
        """1/y: |1/(1 + e) - 1| <= |e|/(1 - |e|)."""
        size, rate = self.relative(y)
        series = self.composed(y.series, lambda a: 1 / a)
        plain = Tail(self.start, tuple(-q for q in y.growth), -y.power, series, _ZERO, arb(1))
        return self.mul(plain, self.near_one(size / (1 - size), rate))

    def near_one(self, size: arb, rate: arb) -> Tail:
        return replace(self.polynomial(arb(1)), size=size.upper(), rate=rate)

    def root(self, y: Tail) -> Tail:
        """sqrt(y): |sqrt(1 + e) - 1| <= |e| for |e| < 1."""
        size, rate = self.relative(y)
        if y.power % 2 or not y.series[0] > 0:
            raise _NotEnclosedError("expected the root of a function that grows like an even power of x")
        series = self.composed(y.series, lambda a: a.sqrt())
        plain = Tail(self.start, tuple(q / 2 for q in y.growth), y.power // 2, series, _ZERO, arb(1))
        return self.mul(plain, self.near_one(size, rate))

    def to_power(self, base: Tail, exponent: sp.Expr) -> Tail:
        if exponent.is_Rational and exponent.q <= 2:
            y = base if exponent.q == 1 else self.root(base)
            y = y if exponent > 0 else self.inverse(y)
            result = y
            for _ in range(abs(int(exponent.p)) - 1):
                result = self.mul(result, y)
            return result
        return self.exp(self.mul(self.of(exponent), self.log(base)))

    # --- functions ---
    def log(self, y: Tail) -> Tail:
        """Q comes down, beside the logarithms of A and of 1 + e, which is at most |e|/(1 - |e|)."""
        size, rate = self.relative(y)
        if y.power or not y.series[0] > 0:
            raise _NotEnclosedError("expected the logarithm of a positive constant or of an exponential")
        result = replace(self.polynomial(_ZERO), series=self.composed(y.series, lambda a: a.log()))
        result = replace(result, size=(size / (1 - size)).upper(), rate=rate)
        for k, q in enumerate(y.growth, start=1):
            result = self.add(result, self.polynomial(q, k))
        return result

    def exp(self, y: Tail) -> Tail:
        """Powers of x go to Q, the rest is a series times 1 + e: |exp(d) - 1| <= |d| exp|d|."""
        y = self.level_of_growth(y, "exponential")
        if y.power >= _TERMS:
            raise _NotEnclosedError(f"expected powers of x below {_TERMS} in an exponent")
        growth = tuple(reversed(y.series[: y.power])) if y.power > 0 else ()
        rest = self.level(replace(y, power=0, series=_dropped(y.series, y.power)) if y.power > 0 else y)
        plain = Tail(self.start, growth, 0, self.composed(rest.series, lambda a: a.exp()), _ZERO, arb(1))
        return self.bare(self.mul(plain, self.near_one(y.size * y.size.exp(), y.rate)))

    def level(self, y: Tail) -> Tail:
        """The same with p = 0, for p <= 0."""
        return replace(y, power=0, series=_shifted(y.series, -y.power, self.s))

    def bounded(self, y: Tail, function: Callable[[arb_series], arb_series], steepest: arb) -> Tail:
        """function(y) where y has a limit; ``steepest`` bounds its slope anywhere."""
        flat = self.level(y)
        series = self.composed(flat.series, function)
        return self.bare(replace(flat, series=series, size=(steepest * y.size).upper()))

    def erfc(self, y: Tail) -> Tail:
        """Of z > 0 all d, for it is at most exp(-z²); elsewhere 2 less that of -z."""
        y = self.level_of_growth(y, "erf")
        if y.power <= 0:
            return self.bounded(y, lambda a: a.erfc(), 2 / arb.pi().sqrt())
        if y.series[0] < 0:
            return self.add(self.polynomial(arb(2)), self.negative(self.erfc(self.negative(y))))
        top, _ = self.size_of(y)
        least = _value(y.series, self.s) * self.start**y.power - y.size
        if not (y.series[0] > 0 and _value(y.series, self.s) > 0 and least > 0 and top.is_finite()):
            raise _NotEnclosedError("expected an argument of erf that keeps its sign; it may further out")
        bound = self.settled(self.exp(self.negative(self.mul(y, y))))
        if bound.growth:
            raise _NotEnclosedError("an exponential that does not fall yet; it may further out")
        return bound

    def erf(self, y: Tail) -> Tail:
        return self.add(self.polynomial(arb(1)), self.negative(self.erfc(y)))

    def atan(self, y: Tail) -> Tail:
        """Of what grows: pi/2 less that of 1/y."""
        y = self.level_of_growth(y, "atan")
        if y.power <= 0:
            return self.bounded(y, lambda a: a.atan(), arb(1))
        half = arb.pi() / (2 if y.series[0] > 0 else -2)
        return self.add(self.polynomial(half), self.negative(self.atan(self.inverse(y))))

    def negative(self, y: Tail) -> Tail:
        return replace(y, series=tuple(-c for c in y.series))

    def level_of_growth(self, y: Tail, what: str) -> Tail:
        """The argument of a function, without Q."""
        y = self.settled(y)
        if y.growth:
            raise _NotEnclosedError(f"expected no {what} of a growing exponential")
        return y


def _dropped(a: tuple[arb, ...], count: int) -> tuple[arb, ...]:
    return (*a[count:], *[_ZERO] * count)
