r"""Step, ReLU and leaky ReLU of a logistic input: the papers' other assumption on a pre-activation, in stable form.

X is logistic with mean mu and scale s = sigma sqrt(3)/pi.  With y = mu/s, e = exp(-|y|), l = log(1 + e),
D = -Li_2(-e), q = e/(1 + e), H = l + |y| q, and r the ReLU of X, in units of s and s²

    E r = max(y, 0) + l,
    Cov(X, r) = 2 D + |y| l           (y <= 0),   pi²/3 - 2 D - |y| l             (y > 0),
    Var r     = 2 D - l²              (y <= 0),   pi²/3 - 2 D - 2 |y| l - l²      (y > 0);

f = alpha x + (1 - alpha) r has the variance alpha² v + 2 alpha (1 - alpha) Cov(X, r) + (1 - alpha)² Var r.  Partials:
dE r/dmu = S(y), dE r/dv = H s/(2 v), dCov/dmu = s H, dVar r/dmu = 2 E r S(-y), and those of the variance in v by
homogeneity, 2 v d/dv = 2 var - mu d/dmu.  l/e and D/e are fitted polynomials.  The step has mean S(y) and variance
S(y) S(-y).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mpmath
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.fit import Polynomial, lowest_degree
from momentgen.compiler.ir.graph import Graph, Real, exp_factor, exp_mantissa, horner, madd, select
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable, settings_of
from momentgen.compiler.measure.ulp import TermsUlp
from momentgen.compiler.strategies.formulas.functions import FunctionWriter
from momentgen.compiler.strategies.kit import FLOAT64, Precision
from momentgen.errors import BuildError
from momentgen.rule import LogisticInput
from momentgen.rule.symbols import S, x

_FLOAT32 = Precision(fit=2e-8, reach=300.0, scaled=True, factors=4)
_GOAL, _SHARE = 8.0, 0.65
_BOX = {"a": (-100.0, 100.0), "log2_var": (-50.0, 50.0)}


@lru_cache
def _fit(what: str, goal: float) -> Polynomial:
    """P with log(1 + e) = e P(e - 1/2), or -Li_2(-e) = e P(e - 1/2), 0 <= e <= 1."""
    of: dict[str, Callable[[Any], Any]] = {
        "log(1 + e)/e": lambda e: mpmath.log1p(e) / e if e else mpmath.mpf(1),
        "-Li_2(-e)/e": lambda e: -mpmath.polylog(2, -e).real / e if e else mpmath.mpf(1),
    }
    unit = (mpmath.mpf(0), mpmath.mpf(1))
    return lowest_degree(of[what], unit, range(4, 40, 2), goal, what, centre=mpmath.mpf(1) / 2)


@lru_cache
def _tanh_fit(goal: float) -> Polynomial:
    """P with tanh(y/2) = y P(y² - 1/2), 0 <= y <= 1."""

    def target(h: Any) -> Any:
        return mpmath.tanh(mpmath.sqrt(h) / 2) / mpmath.sqrt(h) if h > mpmath.mpf("1e-20") else mpmath.mpf(1) / 2

    what = "tanh(y/2)/y in y^2, 0 <= y <= 1"
    unit = (mpmath.mpf(0), mpmath.mpf(1))
    return lowest_degree(target, unit, range(3, 30), goal, what, centre=mpmath.mpf(1) / 2)


class _Writer:
    """Writes the shared values at once, and an output when asked; the sum of the terms' magnitudes with ``sizes``."""

    def __init__(
        self, precision: Precision, slope: sp.Expr | None, params: tuple[str, ...], *, sizes: bool = False
    ) -> None:
        self.g = g = Graph(("mean", "var"), params)
        self.f, self.precision, self.sizes = FunctionWriter(g, precision), precision, sizes
        alpha = sp.Integer(0) if slope is None else slope
        self.slope = g.param(alpha.name) if isinstance(alpha, sp.Symbol) else g.const(mpmath.mpf(alpha.p) / alpha.q)
        self.rest = 1 - self.slope
        self.mu, self.v = self.f.mu, self.f.v
        self.right = self.mu > 0
        negative = self.mu < 0
        factor = g.const(mpmath.pi / mpmath.sqrt(3))
        raw = self.f.size(self.f.ratio, negative) * factor
        most = g.const(precision.reach if precision.scaled else 700)
        self.y = select(most < raw, most, raw).named("|mean|/s, s the logistic's scale")
        exponent = -self.y
        self.e = exp_mantissa(exponent)
        count = precision.factors if precision.scaled else 0
        self.factors = [exp_factor(exponent, i, count) for i in range(count)]
        whole = self.last(self.e, self.factors)
        self.outputs: dict[str, Callable[[], Real]]
        fits = [_fit(what, precision.fit) for what in ("log(1 + e)/e", "-Li_2(-e)/e")]
        self.fits = tuple(fits)
        centred = whole - 0.5
        # l, D, q and H over e.
        self.l, self.d = (horner(centred, fit.coefficients) for fit in fits)
        self.q = 1 / (whole + 1)
        self.h = madd(self.y, self.q, self.l)
        self.whole = whole
        self.scale = self.f.sigma * (mpmath.sqrt(3) / mpmath.pi)
        # 1/v overflows below 2^-127; capped there, gradients that contain it stay finite.
        cap = g.const(mpmath.mpf(2) ** 63.5 * (1 + mpmath.mpf(2) ** -20))
        inverse = self.f.inverse
        self.inverse = select(cap < inverse, cap, inverse) if precision.scaled else inverse
        if slope is None:
            self.outputs = {
                "mean": self.step_mean,
                "var": lambda: self.step(),
                "dmean_dmu": lambda: self.step(mpmath.pi / mpmath.sqrt(3), self.inverse),
                "dmean_dvar": lambda: self.opposed(self.step(-0.5, self.inverse, self.y, self.inverse)),
                "dvar_dmu": lambda: self.opposed(self.step(-mpmath.pi / mpmath.sqrt(3), self.inverse, self.odd())),
                "dvar_dvar": lambda: self.step(0.5, self.inverse, self.y, self.inverse, self.odd()),
            }
            return
        self.outputs = {
            "mean": self.mean,
            "var": self.var,
            "dmean_dmu": self.mean_by_mean,
            "dmean_dvar": self.mean_by_var,
            "dvar_dmu": self.var_by_mean,
            "dvar_dvar": self.var_by_var,
        }

    def last(self, node: Real, factors: list[Real]) -> Real:
        for factor in factors:
            node = node * factor
        return node

    def tail(self, node: Real, *steps: Real) -> Real:
        """e·node·steps; of the powers of two one before the steps, so that they do not overflow, and the rest last."""
        total = self.last(self.e * node, self.factors[:1])
        for step in steps:
            total = total * step
        return self.last(total, self.factors[1:])

    def minus(self, a: Real, b: Real) -> Real:
        return a + b if self.sizes else a - b

    def sized(self, node: Real) -> Real:
        return abs(node) if self.sizes else node

    # --- the step ------------------------------------------------------------------
    def step(self, factor: Any = 1, *steps: Real) -> Real:
        """S(y) S(-y), times a number and ``steps``; every second exponential factor among them."""
        total = self.e * (self.q * self.q) * factor
        factors = list(self.factors)
        for step in steps:
            total = total * step
            if factors:
                total = total * factors.pop(0)
        return self.last(total, factors)

    def step_mean(self) -> Real:
        return select(self.right, self.q, self.tail(self.q))

    def odd(self) -> Real:
        """1 - 2 S(-|y|) = tanh(|y|/2): (1 - e)/(1 + e), or near 0 y times a polynomial in y²."""
        fit = _tanh_fit(self.precision.fit)
        near = self.y < 1
        held = select(near, self.y, 1)
        small = held * horner(held * held - 0.5, fit.coefficients)
        return select(near, small, (1 - self.whole) * self.q)

    def opposed(self, node: Real) -> Real:
        """The node for mu > 0, its negative for mu <= 0."""
        return self.sized(select(self.right, node, -node))

    # --- outputs -------------------------------------------------------------------
    def mean(self) -> Real:
        line = select(self.right, 1, self.slope) * self.mu
        return self.sized(line) + self.tail(self.l, self.scale, self.rest)

    def spread(self) -> tuple[Real, Real]:
        """The variance over v: for mu <= 0 what is beside alpha², over e; for mu > 0 what is missing to 1, over e."""
        g = self.g
        cross, square = 2 * self.slope * self.rest, self.rest * self.rest
        share = g.const(3 / mpmath.pi**2)
        yl, ll, dd = self.y * self.l, self.whole * self.l * self.l, 2 * self.d
        left = madd(cross, dd + yl, square * self.minus(dd, ll))
        right = madd(cross, dd + yl, square * (dd + ll + 2 * yl))
        return share * left, share * right

    def var(self) -> Real:
        g = self.g
        left, right = self.spread()
        low = madd(self.slope * self.slope, self.v, self.tail(left, self.v))
        high = self.v * self.minus(g.const(1), self.whole * right)
        return select(self.right, high, low)

    def mean_by_mean(self) -> Real:
        q = self.tail(self.q)
        low = madd(self.rest, q, self.slope)
        return select(self.right, madd(-self.rest, q, 1), low)

    def mean_by_var(self) -> Real:
        g = self.g
        half = g.const(mpmath.sqrt(3) / (2 * mpmath.pi))
        return self.tail(self.h * half, self.f.inverse, self.rest)

    def gradient(self) -> tuple[Real, Real]:
        """dvar/dmu over s and e, for mu <= 0 and for mu > 0."""
        cross, square = 2 * self.slope * self.rest, 2 * self.rest * self.rest
        both = cross * self.h
        left = madd(square * self.l, self.q, both)
        right = madd(square * madd(self.whole, self.l, self.y), self.q, both)
        return left, right

    def var_by_mean(self) -> Real:
        left, right = self.gradient()
        return self.tail(select(self.right, right, left), self.scale)

    def var_by_var(self) -> Real:
        g = self.g
        share = g.const(3 / (2 * mpmath.pi**2))
        (low, high), (left, right) = self.spread(), self.gradient()
        y = self.y * share
        below = madd(self.slope, self.slope, self.tail(madd(y, left, low)))
        above = self.minus(g.const(1), self.whole * madd(y, right, high))
        return select(self.right, above, below)


def stable_variants(derivation: Derivation) -> list[Stable]:
    """One :class:`Stable` for each :class:`~momentgen.rule.LogisticInput` of the rule.

    Raises:
        BuildError: if the rule is neither a step nor max(x, alpha x), alpha a number or a parameter in [0, 1].
    """
    named = {n: variant for n, variant in derivation.rule.variants.items() if isinstance(variant, LogisticInput)}
    return [_stable(derivation, name, variant) for name, variant in named.items()]


def _slope(derivation: Derivation) -> sp.Expr | None:
    """The c of max(x, c x); None for the step [x >= 0]."""
    pieces = list(derivation.pieces)
    if len(pieces) == 2 and pieces[1].expr == x and tuple(derivation.kinks) == (0,):
        slope = sp.cancel(pieces[0].expr / x)
        if isinstance(slope, sp.Rational) or slope in [p.symbol for p in derivation.rule.parameters]:
            return slope
    if [p.expr for p in pieces] == [0, 1] and tuple(derivation.kinks) == (0,):
        return None
    cause = "a logistic input is for a step or max(x, c x), c a number or a parameter"
    raise BuildError(derivation.rule.name, "strategies", cause, derivation.rule.f)


def _exact(slope: sp.Expr | None) -> dict[str, sp.Expr]:
    """The six outputs in closed form, as E f and E f² and their derivatives; Li_2 for E (X_+)²."""
    mu, v = sp.Symbol("mean", real=True), sp.Symbol("var", positive=True)
    s = sp.sqrt(3 * v) / sp.pi
    y = mu / s
    if slope is None:
        mean, by_mu, by_v = second, second_mu, second_v = S(y), S(y) * S(-y) / s, -S(y) * S(-y) * y / (2 * v)
    else:
        one, two = s * sp.log(1 + sp.exp(y)), -2 * s**2 * sp.polylog(2, -sp.exp(y))
        rest, rest2 = 1 - slope, 1 - slope**2
        mean, second = slope * mu + rest * one, slope**2 * (mu**2 + v) + rest2 * two
        by_mu, by_v = slope + rest * S(y), rest * (one - mu * S(y)) / (2 * v)
        second_mu, second_v = 2 * slope**2 * mu + 2 * rest2 * one, slope**2 + rest2 * (two - mu * one) / v
    return {
        "mean": mean,
        "var": second - mean**2,
        "dmean_dmu": by_mu,
        "dmean_dvar": by_v,
        "dvar_dmu": second_mu - 2 * mean * by_mu,
        "dvar_dvar": second_v - 2 * mean * by_v,
    }


def _stable(derivation: Derivation, name: str, variant: LogisticInput) -> Stable:
    rule, slope = derivation.rule, _slope(derivation)
    params = tuple(p.name for p in rule.parameters)

    def build(precision: Precision, names: tuple[str, ...], *, sizes: bool = False) -> tuple[Graph, _Writer]:
        writer = _Writer(precision, slope, params, sizes=sizes)
        for output in names:
            writer.g.output(output, writer.f.like_inputs(writer.outputs[output]()))
        return writer.g, writer

    (forward, writer), (partials, _) = build(_FLOAT32, OUTPUTS), build(_FLOAT32, PARTIALS)
    names = (*OUTPUTS, *PARTIALS)
    return Stable(
        variant=name,
        forward=forward,
        partials=partials,
        forward64=build(FLOAT64, OUTPUTS)[0],
        partials64=build(FLOAT64, PARTIALS)[0],
        truth=ClosedFormTruth(_exact(slope), params, ("mean", "var")),
        measure=TermsUlp(build(FLOAT64, names, sizes=True)[0], rule.defaults, held=True),
        goal=_GOAL,
        aim=_GOAL * _SHARE,
        unit="ulp of the terms",
        box=_BOX,
        settings=settings_of(rule),
        vanishes=slope is not None,
        fits=writer.fits if slope is not None else (_tanh_fit(_FLOAT32.fit),),
        doc=f"moments under a logistic input{f' ({variant.citation})' if variant.citation else ''}",
    )
