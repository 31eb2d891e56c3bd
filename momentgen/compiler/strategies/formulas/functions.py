r"""Exponentials, Phi, phi and S on a graph of real operations, none of which over- or underflows on the way.

A value is a mantissa and powers of two that are applied last (:class:`Value`), as in
:mod:`momentgen.compiler.strategies.homogeneous.kink`, whose scaling of the variance and convention at v = 0 are used
here too: there mu/sigma is 0 or beyond every tail, sigma = 0, and 1/sigma counts as 0.

Tails come from one fitted polynomial: with u = 1/(1 + t/4), J_0(t)/(sqrt(2 pi) u) is smooth on 0 <= u <= 1, so

    Phi(-t) = exp(-t²/2)·Ĵ_0(t)   holds for every t >= 0,

and exp(g)·Phi(z) with its exponents combined, exp(g - z²/2)·Ĵ_0(-z), does not overflow where z < 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import mpmath

from momentgen.compiler.fit import J, Polynomial, lowest_degree
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.strategies.precision import Precision

__all__ = ["FunctionWriter", "Value", "mills_core"]

_CENTRE = mpmath.mpf(1) / 4  # Horner about 1/4 magnifies rounding 1.7-fold, about 1/2 twelve-fold
_FACTORS = 4
#: exponents at which exp is set to 0, and beyond which it overflows; 2^128·exp(-176.1) is the smallest normal number,
#: for which two factors of 2^n would have to be below it
_FLUSH = {True: (-176.5, 176.5), False: (-745.0, 720.0)}
_LARGEST_RATIO = 60  # |mu|/sigma is clamped at 2^60: its square is finite, and it lies beyond every tail


@lru_cache
def mills_core(goal: float) -> Polynomial:
    """P with J_0(t)/sqrt(2 pi) = u P(u - 1/4), u = 1/(1 + t/4), for every t >= 0, of the lowest sufficient degree."""
    root = mpmath.sqrt(2 * mpmath.pi)

    def target(u: Any) -> Any:
        if u < mpmath.mpf("1e-30"):  # J_0(t) = 1/t - O(1/t³)
            return 1 / (4 * root)
        return J(0, 4 * (1 / u - 1)) / (root * u)

    what = "J_0(t)/(sqrt(2 pi) u), u = 1/(1 + t/4), t >= 0"
    return lowest_degree(target, (mpmath.mpf(0), mpmath.mpf(1)), range(8, 40, 2), goal, what, centre=_CENTRE)


@dataclass(frozen=True)
class Value:
    """A real number: ``mantissa`` times the ``factors``, powers of two that are multiplied in last."""

    mantissa: int
    factors: tuple[int, ...] = ()


class FunctionWriter:
    """Writes the shared values and special functions of one graph.

    Args:
        graph: with inputs ``mean`` and ``var``.
        precision: float32 or float64, and how close the fits must be.
    """

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self.g, self.precision = graph, precision
        self.low, self.high = _FLUSH[precision.scaled]
        self.fits: list[Polynomial] = []
        self.mu, self.v = graph.input("mean"), graph.input("var")

    # --- inputs ------------------------------------------------------------------
    @cached_property
    def _degenerate(self) -> int:
        return self.g.eq(self.v, self.g.const(0))

    @cached_property
    def _scaling(self) -> tuple[int, int]:
        """The power of two that keeps residuals of the root normal, and its inverse; as in ``kink``, so shared."""
        g = self.g
        if not self.precision.scaled:
            return g.const(1), g.const(1)
        tiny, huge = g.lt(self.v, g.const(mpmath.mpf(2) ** -40)), g.lt(g.const(mpmath.mpf(2) ** 60), self.v)
        one, up, down = (g.const(mpmath.mpf(2) ** k) for k in (0, 48, -40))
        c = g.comment(g.select(tiny, up, g.select(huge, down, one)), "power of two that keeps residuals normal")
        back = g.select(tiny, g.const(mpmath.mpf(2) ** -48), g.select(huge, g.const(mpmath.mpf(2) ** 40), one))
        return c, back

    @cached_property
    def _root(self) -> int:
        g, (c, _) = self.g, self._scaling
        w = g.mul(g.mul(self.v, c), c)
        return g.comment(g.sqrt(g.select(self._degenerate, g.const(1), w)), "standard deviation, scaled")

    @cached_property
    def sigma(self) -> int:
        """sigma."""
        g = self.g
        return g.select(self._degenerate, g.const(0), g.mul(self._root, self._scaling[1]))

    @cached_property
    def inverse(self) -> int:
        """1/sigma; 0 at v = 0."""
        g = self.g
        return g.select(self._degenerate, g.const(0), g.mul(g.recip(self._root), self._scaling[0]))

    @cached_property
    def ratio(self) -> int:
        """mu/sigma, at most 2^60 in size; at v = 0 that or 0."""
        g = self.g
        size = g.abs(self.mu)
        limit = g.both(self._degenerate, g.lt(g.const(0), size))
        x = g.select(limit, g.const(mpmath.mpf(2) ** 100), g.mul(size, self._scaling[0]))
        raw, most = g.mul(x, g.recip(self._root)), g.const(mpmath.mpf(2) ** _LARGEST_RATIO)
        t = g.select(g.lt(most, raw), most, raw)
        return g.comment(g.select(g.lt(self.mu, g.const(0)), g.neg(t), t), "mean/sigma")

    def like_inputs(self, value: int) -> int:
        """``value``, but NaN where an input is NaN or the variance is negative."""
        g = self.g
        if g.value(value) is not None:
            value = g.select(g.eq(self.mu, self.mu), value, self.mu)
        usable = g.le(g.const(0), self.v)
        return g.select(usable, value, g.sqrt(g.select(usable, g.const(1), self.v)))

    # --- values ------------------------------------------------------------------
    def apply(self, value: Value) -> int:
        """One number: the factors multiplied in."""
        node = value.mantissa
        for factor in value.factors:
            node = self.g.mul(node, factor)
        return node

    def times(self, x: Value, y: Value) -> Value:
        """The product, its powers of two still apart."""
        g = self.g
        if x.factors and y.factors:
            factors = tuple(g.mul(a, b) for a, b in zip(x.factors, y.factors, strict=True))
        else:
            factors = x.factors or y.factors
        return Value(g.mul(x.mantissa, y.mantissa), factors)

    def either(self, condition: int, x: Value, y: Value) -> Value:
        """x where the condition holds, else y."""
        g, one = self.g, self.g.const(1)
        count = max(len(x.factors), len(y.factors))
        pairs = zip(*(w.factors or (one,) * count for w in (x, y)), strict=True)
        return Value(g.select(condition, x.mantissa, y.mantissa), tuple(g.select(condition, a, b) for a, b in pairs))

    # --- functions ---------------------------------------------------------------
    def exp(self, exponent: int, *, decays: bool = False) -> Value:
        """The exponential; ``decays`` says exponent <= 0.

        In float32 exactly 0 where its product with the largest float is below the normal range.
        """
        g = self.g
        if decays and not self.precision.scaled:
            return Value(g.exp_mantissa(exponent))
        low, high = g.const(self.low), g.const(self.high)
        below = g.lt(exponent, low)
        held = exponent if decays else g.select(g.lt(high, exponent), high, exponent)
        held = g.select(below, low, held)
        mantissa = g.select(below, g.const(0), g.exp_mantissa(held))
        if not self.precision.scaled:
            return Value(mantissa)
        return Value(mantissa, tuple(g.exp_factor(held, i, _FACTORS) for i in range(_FACTORS)))

    def gauss(self, z: int) -> Value:
        """exp(-z²/2)."""
        g = self.g
        z = g.nodes[z].args[0] if g.nodes[z].kind == "neg" else z
        return self.exp(g.mul(g.mul(z, z), g.const(-0.5)), decays=True)

    def size(self, z: int, negative: int) -> int:
        """|z|; for PyTorch in a form that autograd differentiates at 0 as well."""
        g = self.g
        return g.abs(z) if self.precision.scaled else g.select(negative, g.neg(z), z)

    def mills(self, t: int) -> int:
        """J_0(t)/sqrt(2 pi), t >= 0."""
        g = self.g
        core = mills_core(self.precision.fit)
        self.fits.append(core)
        u = g.recip(g.madd(t, g.const(0.25), g.const(1)))
        return g.comment(g.mul(g.horner(g.sub(u, g.const(_CENTRE)), core.coefficients), u), "Mills ratio/sqrt(2 pi)")

    def normal_cdf(self, z: int, *, mirrored: bool = False) -> Value:
        """Phi(z), or Phi(-z)."""
        g = self.g
        negative = g.lt(z, g.const(0))
        lower = self.times(self.gauss(z), Value(self.mills(self.size(z, negative))))
        upper = Value(g.sub(g.const(1), self.apply(lower)))
        return self.either(negative, upper, lower) if mirrored else self.either(negative, lower, upper)

    def tilted_normal_cdf(self, exponent: int, decay: Value, z: int) -> int:
        """exp(exponent)·Phi(z), with ``decay`` = exp(exponent - z²/2)."""
        g, zero = self.g, self.g.const(0)
        negative = g.lt(z, zero)
        tail = self.apply(self.times(decay, Value(self.mills(self.size(z, negative)))))
        whole = self.apply(self.exp(g.select(negative, zero, exponent)))
        return g.select(negative, tail, g.sub(whole, tail))

    def logistic(self, z: int, *, mirrored: bool = False) -> Value:
        """S(z), or S(-z)."""
        g, one = self.g, self.g.const(1)
        negative = g.lt(z, g.const(0))
        e = self.exp(g.neg(self.size(z, negative)), decays=True)
        bottom = g.recip(g.add(self.apply(e), one))
        lower, upper = self.times(e, Value(bottom)), Value(bottom)
        return self.either(negative, upper, lower) if mirrored else self.either(negative, lower, upper)
