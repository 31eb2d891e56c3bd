"""Moments of f by quadrature of f itself: independent of every closed form.

The line is cut at f's breakpoints and, within a piece, into panels around the
place where the integrand is largest, out to where it no longer counts.  The
line that f follows around mu, exactly (a ReLU) or nearly (the asymptote of a
sigmoid), is taken out first, its moments being exact.  So nothing cancels in
the tails: for a ReLU far to the right, what is integrated is the small part on
the left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import sympy
from mpmath import mp, mpf
from sympy import Expr

from momentgen.compiler.function.pieces import Pieces, PiecesError, split
from momentgen.rule.symbols import Phi, S, x

__all__ = ["moments", "partials"]

Number = Any  # what mpmath.mpf takes: int, float, str, mpf, sympy number
Function = Callable[[mpf], mpf]
#: digits lost to cancellation that are made up for; a result that cancels further (a zero by symmetry) is left.
_MAX_LOSS = 60
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

    def fdiff(self, argindex: int = 1) -> Expr:
        return S(self.args[0])


def moments(
    f: Expr,
    mu: Number,
    v: Number,
    params: Mapping[str, Number] | None = None,
    digits: int = 30,
    input: str = "normal",
) -> tuple[mpf, mpf]:
    """Mean and variance of f(X) for X of mean ``mu`` and variance ``v``, to about ``digits`` digits.

    Where more than 60 digits cancel (a mean that is zero by symmetry, the variance of a saturated sigmoid), the error
    is below 10**-(digits + 60) of E |f|, or of its square.  At v = 0 these are f(mu) and 0.

    Args:
        f: in ``x`` and symbols named in ``params``.
        input: ``normal`` or ``logistic``.

    Raises:
        ValueError: for v < 0, a symbol without a value, an unknown input family, or an f that does not split.

    >>> mean, var = moments(sympy.Max(x, 0), -30, 1, digits=15)
    >>> print(mpmath.nstr(mean, 10), mpmath.nstr(var, 10))
    1.631956734e-199 1.084372487e-200
    """
    problem = _Problem(f, mu, v, params, input)
    if problem.v == 0:
        return problem.at_point(), mpf(0)
    result = problem.solve(("mean", "var"), digits)
    return result["mean"], result["var"]


def partials(
    f: Expr,
    mu: Number,
    v: Number,
    params: Mapping[str, Number] | None = None,
    digits: int = 30,
    input: str = "normal",
) -> dict[str, mpf]:
    """``dmean_dmu``, ``dmean_dvar``, ``dvar_dmu``, ``dvar_dvar`` for v > 0, by integrating derivatives of f (Stein).

    Raises:
        ValueError: as :func:`moments`, and for v = 0.

    >>> mpmath.nstr(partials(sympy.Max(x, 0), 0, 1, digits=15)["dvar_dvar"], 10)
    '0.3408450569'
    """
    problem = _Problem(f, mu, v, params, input)
    if problem.v == 0:
        raise ValueError("expected v > 0 for partials, got 0")
    return problem.solve(("dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar"), digits)


@dataclass(frozen=True)
class _Sum:
    """A number as a sum, with the sum of the absolute values: their ratio is what cancelled."""

    value: mpf
    size: mpf

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(self.value + other.value, self.size + other.size)

    def seen_from(self, centre: mpf) -> _Sum:
        """This square of a difference from ``centre``, charged with the digits which that difference loses."""
        return _Sum(self.value, max(self.size, abs(centre) * mp.sqrt(abs(self.value))))

    def scaled(self, factor: Number) -> _Sum:
        return _Sum(self.value * factor, self.size * abs(factor))

    @property
    def loss(self) -> float:
        """Decimal digits lost."""
        if self.value == 0:
            return 0.0 if self.size == 0 else float("inf")
        return float(mp.log10(self.size / abs(self.value)))


def _exact(value: Number) -> mpf:
    return mpf(value)


@dataclass(frozen=True)
class _Segment:
    """An expression on an interval, as functions of a number: its derivatives up to the third."""

    low: Expr
    high: Expr
    expr: Expr
    derivatives: tuple[Function, ...]


@dataclass(frozen=True)
class _Jet:
    """Derivatives of a segment's expression at a point, each when asked for."""

    functions: tuple[Function, ...]
    point: mpf

    def __getitem__(self, order: int) -> mpf:
        return self.functions[order](self.point)


class _Problem:
    """One (f, mu, v)."""

    def __init__(self, f: Expr, mu: Number, v: Number, params: Mapping[str, Number] | None, input: str) -> None:
        exact = {name: sympy.Rational(w) if isinstance(w, float) else w for name, w in (params or {}).items()}
        self.f = f.subs({s: exact[str(s)] for s in f.free_symbols if str(s) in exact})
        unknown = self.f.free_symbols - {x}
        if unknown:
            raise ValueError(f"expected values for all parameters, none came for {', '.join(map(str, unknown))}")
        if input not in ("normal", "logistic"):
            raise ValueError(f"expected input normal or logistic, got {input!r}")
        self.input, self.mu, self.v = input, _exact(mu), _exact(v)
        if not self.v >= 0 or not mpmath.isfinite(self.v) or not mpmath.isfinite(self.mu):
            raise ValueError(f"expected finite mu and v >= 0, got mu = {mu}, v = {v}")
        try:
            self.pieces: Pieces = split(self.f)
        except PiecesError as error:
            raise ValueError(f"expected an f of finitely many smooth pieces: {error}") from error

    def at_point(self) -> mpf:
        return _function(self.f)(self.mu)

    def solve(self, wanted: tuple[str, ...], digits: int) -> dict[str, mpf]:
        """The quantities wanted, at a precision raised until what cancels leaves ``digits``."""
        extra = 15
        while True:
            loss = float("inf")
            try:
                with mp.workdps(digits + extra):
                    result = _Integrals(self, digits + extra - 5).quantities(wanted)
                loss = max(r.loss for r in result.values())
            except _UnsettledError:
                if extra > _MAX_LOSS:
                    raise
            if loss <= extra - 10 or extra > _MAX_LOSS:
                break
            extra = int(min(loss, _MAX_LOSS)) + 20
        with mp.workdps(digits):
            return {name: +r.value for name, r in result.items()}


def _function(expr: Expr) -> Function:
    call = sympy.lambdify([x], expr, modules=_MODULES)
    return lambda point: mpf(call(point))


class _Integrals:
    """The integrals over one problem's pieces at the current precision."""

    def __init__(self, problem: _Problem, digits: int) -> None:
        self.digits, self.mu, self.v = digits, problem.mu, problem.v
        self.normal = problem.input == "normal"
        self.scale = mp.sqrt(self.v) if self.normal else mp.sqrt(3 * self.v) / mp.pi
        self.level = 1 / mp.sqrt(2 * mp.pi)
        self.slope, self.offset = sympy.Integer(0), sympy.Integer(0)
        pieces = problem.pieces
        if self.normal:
            pieces = pieces.map(self.towards_asymptote)
            home = next(p for p in pieces if p.high == sympy.oo or self.mu < _number(p.high))
            terms = sympy.Add.make_args(home.expr)
            line = sympy.Add(*(term for term in terms if term.is_polynomial(x))).as_poly(x)
            if line is not None and line.degree() <= 1:
                self.slope, self.offset = line.nth(1), line.nth(0)
        self.segments = self.compile(pieces.map(lambda e: sympy.expand(e - self.slope * x - self.offset)))

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

    @staticmethod
    def compile(pieces: Pieces) -> list[_Segment]:
        def derivatives(expr: Expr) -> tuple[Function, ...]:
            return tuple(_function(sympy.diff(expr, x, k)) for k in range(4))

        return [_Segment(p.low, p.high, p.expr, derivatives(p.expr)) for p in pieces]

    def quantities(self, wanted: tuple[str, ...]) -> dict[str, _Sum]:
        slope, offset, v = _number(self.slope), _number(self.offset), self.v
        rest = self.expect(lambda d: d[0])
        centre = rest.value

        def square(d: _Jet) -> mpf:
            return (d[0] - centre) ** 2

        def square1(d: _Jet) -> mpf:
            return 2 * (d[0] - centre) * d[1]

        def square2(d: _Jet) -> mpf:
            return 2 * d[1] ** 2 + 2 * (d[0] - centre) * d[2]

        f_jets = [lambda d: d[0], lambda d: d[1], lambda d: d[2], lambda d: d[3]]
        found: dict[str, _Sum] = {}
        if "mean" in wanted:
            line = slope * self.mu + offset
            found["mean"] = _Sum(line, abs(line)) + rest
        if "var" in wanted:
            found["var"] = self.expect(square).seen_from(centre) + _constant(slope**2 * v)
            if slope:
                found["var"] += self.derivative(f_jets, 1).scaled(2 * slope * v)
        if "dmean_dmu" in wanted:
            first = self.derivative(f_jets, 1)
            found["dmean_dmu"] = _constant(slope) + first
            found["dmean_dvar"] = self.by_variance(f_jets)
            squares = [square, square1, square2]
            found["dvar_dmu"] = self.derivative(squares, 1)
            found["dvar_dvar"] = self.by_variance(squares) + _constant(slope**2)
            if slope:
                found["dvar_dmu"] += self.derivative(f_jets, 2).scaled(2 * slope * v)
                found["dvar_dvar"] += first.scaled(2 * slope) + self.derivative(f_jets, 3).scaled(slope * v)
        return found

    def by_variance(self, jets: Sequence[Callable[[_Jet], mpf]]) -> _Sum:
        """dE g/dv: E g''/2 for a normal input, E (X - mu) g'/(2v) for any scale family."""
        if self.normal:
            return self.derivative(jets, 2).scaled(mpf(1) / 2)
        smooth = self.expect(jets[1], lambda point: point - self.mu)
        for point, jumps in self.jumps(jets, 1):
            smooth += _constant(jumps[0] * (point - self.mu) * self.density(point))
        return smooth.scaled(1 / (2 * self.v))

    def derivative(self, jets: Sequence[Callable[[_Jet], mpf]], order: int) -> _Sum:
        """E g^(order), as a distribution: a jump of g^(k) adds a derivative of the density."""
        total = self.expect(jets[order])
        for point, jumps in self.jumps(jets, order):
            for k, jump in enumerate(jumps):
                total += _constant(jump * self.density(point, order - 1 - k) * (-1) ** (order - 1 - k))
        return total

    def jumps(self, jets: Sequence[Callable[[_Jet], mpf]], order: int) -> Iterator[tuple[mpf, list[mpf]]]:
        for left, right in itertools.pairwise(self.segments):
            point = _number(left.high)
            before, after = (_Jet(s.derivatives, point) for s in (left, right))
            yield point, [jet(after) - jet(before) for jet in jets[:order]]

    def density(self, point: mpf, order: int = 0) -> mpf:
        """Density of X, or its first or second derivative."""
        z = (point - self.mu) / self.scale
        value = self.standard_density(z) / self.scale
        return value * (1, -z / self.scale, (z * z - 1) / self.scale**2)[order] if order else value

    def standard_density(self, z: mpf) -> mpf:
        """Density of (X - mu)/scale."""
        if self.normal:
            return mp.exp(-z * z / 2) * self.level
        e = mp.exp(-abs(z))
        return e / (1 + e) ** 2

    def log_density(self, z: mpf) -> mpf:
        return -z * z / 2 if self.normal else -abs(z)

    def expect(self, jet: Callable[[_Jet], mpf], weight: Function | None = None) -> _Sum:
        """E of a function of f's derivatives, the jumps left out."""
        total = _constant(mpf(0))
        for segment in self.segments:

            def value(point: mpf, s: _Segment = segment) -> mpf:
                result = jet(_Jet(s.derivatives, point))
                return result if weight is None else result * weight(point)

            low, high = ((_number(end) - self.mu) / self.scale for end in (segment.low, segment.high))
            total += self.integrate(value, low, high, segment.expr.is_polynomial(x))
        return total

    def integrate(self, value: Function, low: mpf, high: mpf, polynomial: bool) -> _Sum:
        """Integral of value(mu + scale z) times the standard density over low < z < high."""

        def log_size(z: mpf) -> mpf:
            size = abs(value(self.mu + self.scale * z))
            return mp.log(size) + self.log_density(z) if size else mpf("-inf")

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
            width, z = 1 / (1 + abs(peak)) / 2, peak
            while z != end:
                z = peak + direction * width
                if (z - end) * direction >= 0:
                    z = end
                cuts.add(z)
                # Two points below the floor: one could sit on a zero of the integrand.
                if log_size(z) < floor and log_size((z + peak + direction * width / 2) / 2) < floor:
                    break
                width *= mpf(3) / 2
        if not polynomial:
            # A smooth f of its own scale, seen through a wide Gaussian, is a narrow feature around x = 0.
            lowest, highest = min(cuts), max(cuts)
            own = [s * mpf(2) ** k for k in range(-1, 40) for s in (-1, 1)] + [mpf(0)]
            cuts |= {z for z in ((w - self.mu) / self.scale for w in own) if lowest < z < highest}
        if not self.normal and min(cuts) < 0 < max(cuts):
            cuts.add(mpf(0))

        def integrand(z: mpf) -> mpf:
            return value(self.mu + self.scale * z) * self.standard_density(z)

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
