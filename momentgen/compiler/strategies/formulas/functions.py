r"""Exponentials, Phi, phi and S on a graph of real operations, none of which over- or underflows on the way.

A value is a mantissa and powers of two that are applied last (:class:`Value`), as in
:mod:`momentgen.compiler.strategies.homogeneous.kink`, whose scaling of the variance and convention at v = 0 are used
here too: there mu/sigma is 0 or beyond every tail, sigma = 0, and 1/sigma counts as 0.

Tails come from one fitted polynomial: with u = 1/(1 + t/4), J_0(t)/(sqrt(2 pi) u) is smooth on 0 <= u <= 1, so

    Phi(-t) = exp(-t²/2)·Ĵ_0(t)   holds for every t >= 0,

and exp(g)·Phi(z) with its exponents combined, exp(g - z²/2)·Ĵ_0(-z), does not overflow where z < 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import mpmath

from momentgen.compiler.fit import Polynomial
from momentgen.compiler.ir.graph import Graph, Real, equal, exp_factor, exp_mantissa, select, sqrt
from momentgen.compiler.ir.kit import Precision, scaling, tail_ratio

_FACTORS = 4
#: exponents at which exp is set to 0, and beyond which it overflows; 2^128·exp(-176.1) is the smallest normal number,
#: for which two factors of 2^n would have to be below it
_FLUSH = {True: (-176.5, 176.5), False: (-745.0, 720.0)}
_LARGEST_RATIO = 60  # |mu|/sigma is clamped at 2^60: its square is finite, and it lies beyond every tail


@dataclass(frozen=True)
class Value:
    """A real number: ``mantissa`` times the ``factors``, powers of two that are multiplied in last."""

    mantissa: Real
    factors: tuple[Real, ...] = ()


class FunctionWriter:
    """Writes the shared values and special functions of one graph, with inputs ``mean`` and ``var``."""

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self.g, self.precision = graph, precision
        self.low, self.high = _FLUSH[precision.scaled]
        self.fits: list[Polynomial] = []
        self.mu, self.v = graph.input("mean"), graph.input("var")

    # --- inputs ------------------------------------------------------------------
    @cached_property
    def _degenerate(self) -> Real:
        return equal(self.v, 0)

    @cached_property
    def _scaling(self) -> tuple[Real, Real]:
        """The power of two that keeps residuals of the root normal, and its inverse: as in ``kink``, so shared."""
        return scaling(self.v, self.precision.scaled)

    @cached_property
    def _root(self) -> Real:
        (c, _) = self._scaling
        w = self.v * c * c
        return sqrt(select(self._degenerate, 1, w)).named("standard deviation, scaled")

    @cached_property
    def sigma(self) -> Real:
        return select(self._degenerate, 0, self._root * self._scaling[1])

    @cached_property
    def inverse(self) -> Real:
        """1/sigma; 0 at v = 0."""
        return select(self._degenerate, 0, 1 / self._root * self._scaling[0])

    @cached_property
    def ratio(self) -> Real:
        """mu/sigma, at most 2^60 in size; at v = 0 that or 0."""
        g = self.g
        size = abs(self.mu)
        limit = self._degenerate & (size > 0)
        x = select(limit, mpmath.mpf(2) ** 100, size * self._scaling[0])
        raw, most = x * (1 / self._root), g.const(mpmath.mpf(2) ** _LARGEST_RATIO)
        t = select(most < raw, most, raw)
        return select(self.mu < 0, -t, t).named("mean/sigma")

    def like_inputs(self, value: Real) -> Real:
        """``value``, but NaN where an input is NaN or the variance is negative."""
        if value.constant is not None:
            value = select(equal(self.mu, self.mu), value, self.mu)
        usable = self.v >= 0
        return select(usable, value, sqrt(select(usable, 1, self.v)))

    # --- values ------------------------------------------------------------------
    def apply(self, value: Value) -> Real:
        """One number: the factors multiplied in."""
        return math.prod(value.factors, start=value.mantissa)

    def times(self, x: Value, y: Value) -> Value:
        """The product, its powers of two still apart."""
        if x.factors and y.factors:
            factors = tuple(a * b for a, b in zip(x.factors, y.factors, strict=True))
        else:
            factors = x.factors or y.factors
        return Value(x.mantissa * y.mantissa, factors)

    def either(self, condition: Real, x: Value, y: Value) -> Value:
        """x where the condition holds, else y."""
        one = self.g.const(1)
        count = max(len(x.factors), len(y.factors))
        pairs = zip(*(w.factors or (one,) * count for w in (x, y)), strict=True)
        return Value(select(condition, x.mantissa, y.mantissa), tuple(select(condition, a, b) for a, b in pairs))

    # --- functions ---------------------------------------------------------------
    def exp(self, exponent: Real, *, decays: bool = False) -> Value:
        """The exponential; ``decays`` says exponent <= 0.

        In float32 exactly 0 where its product with the largest float is below the normal range.
        """
        g = self.g
        if decays and not self.precision.scaled:
            return Value(exp_mantissa(exponent))
        low, high = g.const(self.low), g.const(self.high)
        below = exponent < low
        held = exponent if decays else select(high < exponent, high, exponent)
        held = select(below, low, held)
        mantissa = select(below, 0, exp_mantissa(held))
        if not self.precision.scaled:
            return Value(mantissa)
        return Value(mantissa, tuple(exp_factor(held, i, _FACTORS) for i in range(_FACTORS)))

    def gauss(self, z: Real) -> Value:
        """exp(-z²/2)."""
        z = z.args[0] if z.node.kind == "neg" else z
        return self.exp(z * z * -0.5, decays=True)

    def size(self, z: Real, negative: Real) -> Real:
        """|z|; for PyTorch in a form that autograd differentiates at 0 as well."""
        return abs(z) if self.precision.scaled else select(negative, -z, z)

    def mills(self, t: Real) -> Real:
        """J_0(t)/sqrt(2 pi), t >= 0."""
        return tail_ratio(t, self.precision.fit, self.fits).named("Mills ratio/sqrt(2 pi)")

    def normal_cdf(self, z: Real, *, mirrored: bool = False) -> Value:
        """Phi(z), or Phi(-z)."""
        negative = z < 0
        lower = self.times(self.gauss(z), Value(self.mills(self.size(z, negative))))
        upper = Value(1 - self.apply(lower))
        return self.either(negative, upper, lower) if mirrored else self.either(negative, lower, upper)

    def tilted_normal_cdf(self, exponent: Real, decay: Value, z: Real) -> Real:
        """exp(exponent)·Phi(z), with ``decay`` = exp(exponent - z²/2)."""
        negative = z < 0
        tail = self.apply(self.times(decay, Value(self.mills(self.size(z, negative)))))
        whole = self.apply(self.exp(select(negative, 0, exponent)))
        return select(negative, tail, whole - tail)

    def logistic(self, z: Real, *, mirrored: bool = False) -> Value:
        """S(z), or S(-z)."""
        negative = z < 0
        e = self.exp(-self.size(z, negative), decays=True)
        bottom = 1 / (self.apply(e) + 1)
        lower, upper = self.times(e, Value(bottom)), Value(bottom)
        return self.either(negative, upper, lower) if mirrored else self.either(negative, lower, upper)
