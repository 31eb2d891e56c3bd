r"""Functions whose moments are elementary: polynomials, a exp(b x) + c, a sin(b x) + c, a cos(b x) + c.

- polynomial: mean = Σ v^j/(2^j j!) f^(2j)(mu), V = Σ_{k>=1} v^k/k! P_k² with P_k = E f^(k): every term is positive;
- exp: mean = a e^(b mu + b² v/2) + c, V = a² e^(2 b mu + 2 b² v) (1 - e^(-b² v));
- sin, cos: mean = a e^(-b² v/2) sin(b mu) + c, V = a²/2 (1 - e^(-b² v)) (1 ± e^(-b² v) cos(2 b mu)).

Angles are reduced up to |b mu| = 1e6, where float32 is still 0.06 apart; beyond about twice that the angle counts as 0.
1 - e^-y is y times a fitted polynomial where y is small, so that nothing cancels; what overflows is the largest number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import sympy as sp

from momentgen.compiler.approximate import Polynomial, remez
from momentgen.compiler.derive import Derivation
from momentgen.compiler.oracle import evaluate
from momentgen.compiler.real import Graph
from momentgen.compiler.stabilise.kink import ClosedFormTruth
from momentgen.compiler.stabilise.moments_measure import MEAN, PARTIAL, VARIANCE
from momentgen.compiler.stabilise.stable import OUTPUTS, PARTIALS, Stable
from momentgen.errors import BuildError
from momentgen.symbols import x

__all__ = ["applies", "stable_variants"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_LARGEST = 3.4028234e38
_EDGE = mpmath.mpf(1) / 2  # of y, up to where 1 - e^-y is y times a polynomial
_FAR = mpmath.mpf(2) ** 21  # of |b mu| times 2/pi, up to where angles are reduced


@dataclass(frozen=True)
class RelativeMeasure:
    """Errors over what is allowed: 1e-6 max(1, |mean|), 1e-5 of the variance, 1e-4 of each partial.

    With ``bounded`` (sin, cos) the variance is measured against ``amplitude``² min(b² v, 1), and a partial against the
    largest value that it has at that variance.
    """

    bounded: bool
    amplitude: float
    rate: float

    def allowed(self, output: str, exact: F64, var: F64) -> F64:
        """The error allowed at each point."""
        if output == "mean":
            limit = MEAN * np.maximum(1.0, np.abs(exact))
        elif not self.bounded:
            limit = (VARIANCE if output == "var" else PARTIAL) * np.abs(exact)
        else:
            a, b = self.amplitude, self.rate
            with np.errstate(all="ignore"):
                e = np.exp(-(b**2) * var)
                rest = -np.expm1(-(b**2) * var)
                limit = {
                    "var": VARIANCE * a**2 * np.minimum(b**2 * var, 1.0),
                    "dmean_dmu": PARTIAL * abs(a * b) * np.sqrt(e),
                    "dmean_dvar": PARTIAL * abs(a) * b**2 / 2 * np.sqrt(e),
                    "dvar_dmu": PARTIAL * a**2 * abs(b) * rest * e,
                    "dvar_dvar": PARTIAL * a**2 * b**2 / 2 * e,
                }[output]
        return np.maximum(limit, 2.0**-126)

    def __call__(self, output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
        with np.errstate(all="ignore"):
            error = np.abs(computed.astype(np.float64) - exact) / self.allowed(output, exact, var.astype(np.float64))
        beyond = ~(np.abs(exact) < _LARGEST)
        if self.bounded:  # angles are reduced up to there
            beyond |= np.abs(self.rate * mean.astype(np.float64)) > 1e6
        return np.where(beyond, 0.0, np.where(np.isfinite(computed), error, np.inf))


# --- recognition -----------------------------------------------------------------
def _parts(expr: sp.Expr) -> tuple[str, sp.Expr, sp.Expr, sp.Expr] | None:
    """kind, a, b, c with f = a·kind(b x) + c; None for other functions."""
    c, rest = sp.expand(expr).as_independent(x, as_Add=True)
    a, inner = rest.as_independent(x, as_Add=False)
    if not isinstance(inner, (sp.exp, sp.sin, sp.cos)):
        return None
    b = sp.cancel(inner.args[0] / x)
    return None if b.has(x) else (type(inner).__name__, a, b, c)


def applies(derivation: Derivation) -> bool:
    """Whether f is such a function, without parameters, of a normal input."""
    rule = derivation.rule
    pieces = tuple(derivation.pieces)
    if rule.input != "normal" or rule.parameters or derivation.mean is None or len(pieces) != 1:
        return False
    f = pieces[0].expr
    return bool(f.is_polynomial(x) and f.has(x)) or _parts(f) is not None


# --- graphs ----------------------------------------------------------------------
@lru_cache
def _one_minus_exp(goal: float) -> Polynomial:
    """P with 1 - e^-y = y P(y - 1/4), 0 <= y <= 1/2."""

    def target(y: Any) -> Any:
        return -mpmath.expm1(-y) / y if y > mpmath.mpf("1e-30") else mpmath.mpf(1)

    what = "(1 - exp(-y))/y, 0 <= y <= 1/2"
    for degree in range(3, 24):
        fit = remez(target, (mpmath.mpf(0), _EDGE), degree, centre=_EDGE / 2, what=what)
        if fit.error <= goal:
            return fit
    raise BuildError(what, "approximate", f"no polynomial up to degree 23 reaches a relative error of {goal}")


@lru_cache
def _trigonometric(kind: str, goal: float) -> Polynomial:
    """sin(r) = r P(r²) or cos(r) = P(r²), |r| <= pi/4 and a little beyond."""
    top = mpmath.mpf("0.62")

    def target(s: Any) -> Any:
        r = mpmath.sqrt(s)
        if kind == "cos":
            return mpmath.cos(r)
        return mpmath.sin(r) / r if s > mpmath.mpf("1e-30") else mpmath.mpf(1)

    for degree in range(2, 16):
        fit = remez(target, (mpmath.mpf(0), top), degree, what=f"{kind} by a polynomial in r², r² <= 0.62")
        if fit.error <= goal:
            return fit
    raise BuildError(kind, "approximate", f"no polynomial up to degree 15 reaches a relative error of {goal}")


class _Writer:
    def __init__(self, graph: Graph, float64: bool) -> None:
        self.g, self.float64 = graph, float64
        self.fits: list[Polynomial] = []
        self.goal = 1e-17 if float64 else 1e-8
        g = graph
        self.mu, v = g.input("mean"), g.input("var")
        valid = g.sqrt(g.select(g.le(g.const(0), v), g.const(1), g.const(-1)))
        self.v = g.comment(g.mul(v, valid), "NaN for a negative variance")

    def number(self, value: sp.Expr) -> int:
        with mpmath.workdps(50):
            return self.g.const(mpmath.mpf(sp.N(value, 50)))

    def exp(self, exponent: int, weight: int | None = None) -> int:
        """The exponential times ``weight``, 0 far to the left, the largest number far to the right."""
        g = self.g
        low, high = (g.const(w) for w in ((-700, 700) if self.float64 else (-150, 95)))
        below = g.lt(exponent, low)
        held = g.select(below, low, g.select(g.lt(high, exponent), high, exponent))
        value = g.select(below, g.const(0), g.exp_mantissa(held))
        if weight is not None:
            value = g.mul(weight, value)
        if self.float64:
            return value
        # The weight first: it may bring back what overflows without it.
        return self.finite(g.mul(g.mul(value, g.exp_factor(held, 0, 2)), g.exp_factor(held, 1, 2)))

    def rest(self, y: int, e: int) -> int:
        """1 - e^-y for y >= 0, given e^-y."""
        g = self.g
        fit = _one_minus_exp(self.goal)
        self.fits.append(fit)
        little = g.lt(y, g.const(_EDGE))
        small = g.select(little, y, g.const(_EDGE))
        value = g.mul(small, g.horner(g.sub(small, g.const(_EDGE / 2)), fit.coefficients))
        return g.select(little, value, g.sub(g.const(1), e))

    def finite(self, value: int) -> int:
        """Beyond the largest number, that number."""
        if self.float64 or self.g.value(value) is not None:
            return value
        g = self.g
        top = g.const(_LARGEST)
        value = g.select(g.lt(top, value), top, value)
        return g.select(g.lt(value, g.neg(top)), g.neg(top), value)

    # --- polynomials ---------------------------------------------------------------
    def polynomial(self, f: sp.Expr) -> dict[str, int]:
        g, degree = self.g, int(sp.degree(f, x))

        def p(k: int) -> int:
            total = g.const(0)
            for j in range((degree - k) // 2, -1, -1):
                inner = sp.Poly(sp.diff(f, x, k + 2 * j), x).all_coeffs()[::-1]
                value = g.horner(self.mu, [mpmath.mpf(sp.N(c, 50)) for c in inner])
                total = g.madd(g.mul(self.v, g.const(mpmath.mpf(1) / (2 * (j + 1)))), total, value)
            return total

        means = [p(k) if k <= degree else g.const(0) for k in range(degree + 3)]
        sigma, power = g.sqrt(self.v), [g.const(1)]
        var, by_mu, by_v = g.const(0), g.const(0), g.const(0)
        for _ in range(degree):
            power.append(g.mul(power[-1], sigma))
        for k in range(degree, -1, -1):
            # Each factor with its own sigma^k: products then overflow only where the result does.
            here, after, later = (g.mul(power[k], self.finite(means[k + j])) for j in range(3))
            weight = g.const(mpmath.mpf(1) / mpmath.factorial(k))
            by_v = g.madd(g.mul(weight, after), after, by_v)
            if k:
                var = g.madd(g.mul(weight, here), here, var)
                by_mu = g.madd(g.mul(g.mul(weight, here), after), g.const(2), by_mu)
                by_v = g.madd(g.mul(weight, here), later, by_v)
        half = g.const(0.5)
        return {
            "mean": means[0],
            "var": var,
            "dmean_dmu": means[1],
            "dmean_dvar": g.mul(half, means[2]),
            "dvar_dmu": by_mu,
            "dvar_dvar": by_v,
        }

    # --- exp -----------------------------------------------------------------------
    def exponential(self, a: sp.Expr, b: sp.Expr, c: sp.Expr) -> dict[str, int]:
        g = self.g
        bmu, square = g.mul(self.number(b), self.mu), self.number(b**2)
        y = g.mul(square, self.v)
        exponent = g.madd(y, g.const(0.5), bmu)
        e = self.exp(g.neg(y))
        # The root of e^(2 b mu + 2 b² v): a square times a small number overflows only at the end.
        top = self.exp(g.add(bmu, y), self.number(a))
        rest = self.rest(y, e)
        var = g.mul(g.mul(top, rest), top)
        return {
            "mean": g.add(self.exp(exponent, self.number(a)), self.number(c)),
            "var": var,
            "dmean_dmu": self.exp(exponent, self.number(a * b)),
            "dmean_dvar": self.exp(exponent, self.number(a * b**2 / 2)),
            "dvar_dmu": g.mul(self.number(2 * b), var),
            "dvar_dvar": g.mul(g.mul(g.mul(square, top), g.add(g.const(1), rest)), top),
        }

    # --- sin, cos --------------------------------------------------------------------
    def angle(self, b: sp.Expr) -> tuple[int, int]:
        """sin(b mu), cos(b mu)."""
        g = self.g
        turned = g.mul(self.number(b), self.mu)
        far = g.lt(g.const(_FAR), g.abs(turned))
        turned = g.select(far, g.const(0), turned)
        n = g.round(g.mul(turned, g.const(2 / mpmath.pi)))
        # pi/2 in three parts; n times the first is exact while n < 2^13.
        r, left = turned, mpmath.pi / 2
        for bits in (11, 11, 0):
            part = mpmath.nint(mpmath.ldexp(left, bits)) / mpmath.mpf(2) ** bits if bits == 11 else left
            if bits and left < 1:
                part = mpmath.nint(mpmath.ldexp(left, 24)) / mpmath.mpf(2) ** 24
            left = left - part
            r = g.madd(g.neg(n), g.const(part), r)
        quarter = g.sub(n, g.mul(g.const(4), g.round(g.mul(n, g.const(0.25)))))  # -2, -1, 0, 1 or 2
        s = g.mul(r, r)
        sine, cosine = _trigonometric("sin", self.goal), _trigonometric("cos", self.goal)
        self.fits += [sine, cosine]
        small, large = g.mul(r, g.horner(s, sine.coefficients)), g.horner(s, cosine.coefficients)
        one = g.const(1)
        odd = g.eq(g.mul(quarter, quarter), one)
        high, low = g.select(odd, large, small), g.select(odd, small, large)
        minus_sin = g.either(g.eq(quarter, g.const(-1)), g.eq(g.abs(quarter), g.const(2)))
        minus_cos = g.either(g.eq(quarter, one), g.eq(g.abs(quarter), g.const(2)))
        return g.select(minus_sin, g.neg(high), high), g.select(minus_cos, g.neg(low), low)

    def wave(self, kind: str, a: sp.Expr, b: sp.Expr, c: sp.Expr) -> dict[str, int]:
        g, half = self.g, self.g.const(0.5)
        sine, cosine = self.angle(b)
        y = g.mul(self.number(b**2), self.v)
        e, root = self.exp(g.neg(y)), self.exp(g.mul(y, g.const(-0.5)))
        rest = self.rest(y, e)
        sign = 1 if kind == "sin" else -1
        value, slope = (sine, cosine) if kind == "sin" else (cosine, g.neg(sine))
        double = g.madd(g.mul(g.const(-2), sine), sine, g.const(1))  # cos 2 b mu
        twice = g.mul(g.mul(g.const(2), sine), cosine)
        wave = g.mul(g.const(sign), double)
        square = self.number(a**2)
        inner = g.madd(e, wave, g.const(1))
        mean = g.mul(self.number(a), g.mul(root, value))
        # dV/dv = a² b²/2 e (1 + (2 e - 1) wave), from V = a²/2 (1 - e)(1 + e wave)
        curve = g.madd(g.sub(g.mul(g.const(2), e), g.const(1)), wave, g.const(1))
        return {
            "mean": g.add(mean, self.number(c)),
            "var": g.mul(g.mul(square, half), g.mul(rest, inner)),
            "dmean_dmu": g.mul(self.number(a * b), g.mul(root, slope)),
            "dmean_dvar": g.mul(self.number(-a * b**2 / 2), g.mul(root, value)),
            "dvar_dmu": g.mul(self.number(-sign * a**2 * b), g.mul(g.mul(rest, e), twice)),
            "dvar_dvar": g.mul(self.number(a**2 * b**2 / 2), g.mul(e, curve)),
        }


def _build(f: sp.Expr, float64: bool, outputs: tuple[str, ...]) -> tuple[Graph, list[Polynomial]]:
    graph = Graph(("mean", "var"))
    writer = _Writer(graph, float64)
    parts = _parts(f)
    if parts is None:
        values = writer.polynomial(sp.expand(f))
    elif parts[0] == "exp":
        values = writer.exponential(*parts[1:])
    else:
        values = writer.wave(*parts)
    for name in outputs:
        value = writer.finite(values[name])
        if name in OUTPUTS:
            # NaN stays NaN, of the mean and of the variance alike.
            value = graph.select(graph.eq(writer.mu, writer.mu), value, writer.mu)
            value = graph.select(graph.eq(writer.v, writer.v), value, writer.v)
        graph.output(name, value)
    return graph, writer.fits


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``."""
    f = next(iter(derivation.pieces)).expr
    parts = _parts(f)
    bounded = parts is not None and parts[0] != "exp"
    amplitude, rate = (float(parts[1]), float(parts[2])) if parts is not None else (1.0, 1.0)
    graphs: dict[str, Any] = {}
    fits: list[Polynomial] = []
    for suffix, float64 in (("", False), ("64", True)):
        for name, outputs in (("forward", OUTPUTS), ("partials", PARTIALS)):
            graphs[name + suffix], made = _build(f, float64, outputs)
            fits += made if not float64 else []
    yield Stable(
        variant="exact",
        truth=ElementaryTruth(
            {"mean": derivation.mean, "var": derivation.var, **derivation.partials}, bounded, abs(rate)
        ),
        measure=RelativeMeasure(bounded, amplitude, rate),
        goal=1.0,
        aim=0.8,
        unit="tolerance",
        slack=MEAN,
        reach=1e6 / abs(rate) if bounded else math.inf,
        box={"mu": (-30.0, 30.0), "log2_var": (-40.0, 6.0)},
        fits=tuple(dict.fromkeys(fits)),
        doc="moments in closed form, 1 - exp(-y) by a fitted polynomial where y is small",
        **graphs,
    )


class ElementaryTruth(ClosedFormTruth):
    """Exact values from rigorous balls; beyond the range of float64 infinite, not evaluated; survives pickling."""

    def __init__(self, outputs: dict[str, Any], bounded: bool, rate: float) -> None:
        super().__init__(outputs, ())
        self.bounded, self.rate = bounded, rate

    def __call__(self, mean: F32, var: F32, params: Any) -> dict[str, F64]:
        mu, v = mean.astype(np.float64), var.astype(np.float64)
        # Angles beyond 1e6 are not measured, and all is 0 where exp(-v/2) is; exponentials overflow there.
        inside = np.abs(self.rate * mu) <= 1e6
        v = np.minimum(v, 1e4) if self.bounded else v
        result = {name: np.full(mean.shape, np.inf) for name in self.names}
        if inside.any():
            exact = evaluate(self.function, {"mu": mu[inside], "v": v[inside]}).value
            for name, values in zip(self.names, exact, strict=True):
                result[name][inside] = values
        return result
