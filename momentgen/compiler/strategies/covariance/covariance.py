"""Rules whose output is the covariance of f(X1) and f(X2): which f have one, their truth and their measure of error.

===============  ==================================================================
[x >= 0]         ``covariance_graph.Step``
Phi(x)           the same, of inputs to which a standard normal variable is added
max(x, 0)        ``covariance_graph.Relu``
x Phi(x)         ``covariance_gelu.Gelu``
===============  ==================================================================

The integrals over the correlation are taken by Gauss and Legendre in the coordinate of ``correlation``: the number of
nodes is what keeps their own error below a third of what is allowed, however near to 1 the correlation is; in float64
it is below 1e-8 of what errors are relative to.

Exact values are closed forms for rigorous balls.  With t_i = v_i, or 1 + v_i where a standard normal variable is added
to either input, and Y_i ~ N(mu_i, t_i) of covariance c, all is closed in P(Y1 > 0) = Phi(mu1/sqrt(t1)), the density at
0, and

    K = P(Y1, Y2 > 0) - P(Y1 > 0) P(Y2 > 0),

an integral over that coordinate, in which it is analytic.  Of [x >= 0] and Phi(x) the covariance is K.  A factor X1 is
the operator L1 = mu1 + v1 d/dmu1 + c d/dmu2 (Stein 1981): of max(x, 0) and x Phi(x) the covariance is
L1 L2 P(Y1, Y2 > 0), less the product of the means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import sympy as sp
from flint import acb, arb, ctx

from momentgen.compiler.exact import BallForm, BallFunction, ClosedFormTruth
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.measure.ulp import CovarianceMeasure
from momentgen.compiler.strategies.covariance.correlation import Nodes
from momentgen.compiler.strategies.covariance.covariance_gelu import Gelu
from momentgen.compiler.strategies.covariance.covariance_graph import OUTPUTS, PARTIALS, Relu, Step, Writer, graph_of
from momentgen.compiler.strategies.kit import FLOAT64, Precision
from momentgen.compiler.toolchain.arrays import F64
from momentgen.errors import BuildError
from momentgen.rule import Rule
from momentgen.rule.symbols import Phi, cov, mu1, mu2, v1, v2, x

_BITS, _CORE_BITS = 256, 160  # the integrand of K is positive: nothing cancels
_SHARE, _NOTHING = arb(2) ** -90, arb(2) ** -3000  # error of K: relative to it, and where it is enough
_FAR = 60  # |mu|/s beyond which Phi and phi are 0 or 1 beside every tolerance
_CERTAIN = 1e-300  # stands for a variance of 0, where densities count as 0


# --- of balls --------------------------------------------------------------------
def _cdf(z: arb) -> arb:
    if abs(z) > _FAR:
        return arb(1) if z > 0 else arb(0)
    return (-z / arb(2).sqrt()).erfc() / 2


def _pdf(z: arb) -> arb:
    return arb(0) if abs(z) > _FAR else (-z * z / 2).exp() / (2 * arb.pi()).sqrt()


def _rest(t1: arb, t2: arb, c: arb) -> arb:
    """t1 t2 - c², which inputs that are rounded may leave below 0."""
    left = t1 * t2 - c * c
    return left if left > 0 else arb(0)


def _at(m: arb, t: arb) -> arb:
    """The density of Y at 0."""
    return _pdf(m / t.sqrt()) / t.sqrt() if t > 2 * _CERTAIN else arb(0)


class At(BallForm):
    """The density of Y at 0, of mu and t."""

    nargs = 2
    ball = staticmethod(_at)

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        m, t = self.args
        return (-m / t if argindex == 1 else (m**2 / t - 1) / (2 * t)) * self


class _OfBoth(BallForm):
    """K or a derivative of it in means: a function of mu1, t1, mu2, t2 and c.

    Attributes:
        of: the places of these means.
    """

    nargs = 5
    of: tuple[int, ...] = ()

    def by_mean(self, m: sp.Expr, t: sp.Expr, m2: sp.Expr, t2: sp.Expr, c: sp.Expr, *, first: bool) -> sp.Expr:
        """The derivative in ``m``, the mean of the first input or of the second."""
        raise NotImplementedError

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        m1, t1, m2, t2, c = self.args
        if argindex == 5:  # by Price's theorem
            return reduce(sp.diff, (self.args[place] for place in self.of), Density(*self.args))
        first = argindex < 3
        slope = self.by_mean(m1, t1, m2, t2, c, first=True) if first else self.by_mean(m2, t2, m1, t1, c, first=False)
        return slope if argindex in (1, 3) else sp.diff(slope, m1 if first else m2) / 2


class Both(_OfBoth):
    """K."""

    def by_mean(self, m: sp.Expr, t: sp.Expr, m2: sp.Expr, t2: sp.Expr, c: sp.Expr, *, first: bool) -> sp.Expr:
        return Bend(m, t, m2, t2, c)

    @staticmethod
    def ball(*args: Any) -> arb:
        m1, t1, m2, t2, c = args
        s1, s2 = t1.sqrt(), t2.sqrt()
        a, b = m1 / s1, m2 / s2 if c > 0 else -m2 / s2
        if c == 0 or abs(a) > _FAR or abs(b) > _FAR:
            return arb(0)
        q = _rest(t1, t2, c).sqrt() / (s1 * s2 + abs(c))
        return _core(a, b, q) if c > 0 else -_core(a, b, q)


def _core(a: arb, b: arb, q: arb) -> arb:
    """K of ratios a and b for a positive correlation r, q = sqrt((1 - r)/(1 + r))."""
    first, second = (a + b) * (a + b) / 8, (a - b) * (a - b) / 8  # of a ball about 0, ** 2 is NaN
    with ctx.workprec(_CORE_BITS):
        # Complex already: where a real operand meets a complex one, converting it takes longer than the operation.
        down, layer, one = acb(-first * 1), acb(second * 1), acb(1)
        alike = second.contains(0)  # the integrand is analytic at 0

        def integrand(at: acb, _analytic: bool) -> acb:
            square = at * at
            return (down * square if alike else down * square - layer / square).exp() / (one + square)

        start = q
        if not alike:
            low = (second / (2 * (first + second) + 200)).sqrt()  # below it nothing is left beside what is at q = 1
            start = low if low > q else q
        whole = acb.integral(integrand, acb(start), acb(1), rel_tol=_SHARE, abs_tol=_NOTHING, use_heap=True)
        return whole.real * (-first - second).exp() / arb.pi()


class Bend(_OfBoth):
    """dK/dmu1: the density of Y1 at 0 times P(Y2 > 0 | Y1 = 0) - P(Y2 > 0)."""

    of = (0,)

    def by_mean(self, m: sp.Expr, t: sp.Expr, m2: sp.Expr, t2: sp.Expr, c: sp.Expr, *, first: bool) -> sp.Expr:
        density = Density(m, t, m2, t2, c)
        return -(m * self + c * density) / t if first else density - At(m, t) * At(m2, t2)

    @staticmethod
    def ball(*args: Any) -> arb:
        """Of two probabilities the difference of the smaller tails."""
        m1, t1, m2, t2, c = args
        mean, left, b = (m2 * t1 - c * m1) / t1, _rest(t1, t2, c) / t1, m2 / t2.sqrt()
        # Where c² is t1 t2: the ratio's limit.
        z = mean / left.sqrt() if left > 0 else arb(0) if mean == 0 else mean * arb(2) ** 300
        return _at(m1, t1) * (_cdf(-b) - _cdf(-z) if b > 0 else _cdf(z) - _cdf(b))


class Density(_OfBoth):
    """The density of (Y1, Y2) at 0; 0 where it is infinite."""

    of = (0, 2)

    def by_mean(self, m: sp.Expr, t: sp.Expr, m2: sp.Expr, t2: sp.Expr, c: sp.Expr, *, first: bool) -> sp.Expr:
        return (c * m2 - t2 * m) / (t * t2 - c**2) * self

    @staticmethod
    def ball(*args: Any) -> arb:
        m1, t1, m2, t2, c = args
        left = _rest(t1, t2, c) / t1
        return _at(m1, t1) * _at((m2 * t1 - c * m1) / t1, left) if left > 0 else arb(0)


# --- outputs ---------------------------------------------------------------------
def _outputs(kind: str) -> Mapping[str, sp.Expr]:
    """Closed forms of the covariance and its partials."""
    added = 1 if kind in ("normal_cdf", "gelu") else 0
    t1, t2 = v1 + added, v2 + added
    above1, above2, apart = Phi(mu1 / sp.sqrt(t1)), Phi(mu2 / sp.sqrt(t2)), Both(mu1, t1, mu2, t2, cov)
    value, both = apart, apart + above1 * above2
    if kind in ("relu", "gelu"):
        value = sp.expand(_times(1, _times(2, both)) - _times(1, above1) * _times(2, above2))
    symbols = {"mu1": mu1, "mu2": mu2, "var1": v1, "var2": v2, "cov": cov}
    partials = {name: sp.diff(value, symbol) for name, symbol in symbols.items()} if kind != "relu" else {}
    if not partials:  # the slope of max(x, 0) is a step, and what its density leaves is 0 without a division by 0
        partials["mu1"] = sp.expand(_times(2, both) - above1 * _times(2, above2))
        partials["mu2"] = sp.expand(_times(1, both) - above2 * _times(1, above1))
        partials |= {"var1": sp.diff(partials["mu1"], mu1) / 2, "var2": sp.diff(partials["mu2"], mu2) / 2, "cov": both}
    return {"covariance": value, **{f"dcovariance_d{name}": partial for name, partial in partials.items()}}


def _times(i: int, moment: sp.Expr) -> sp.Expr:
    """E X_i g of E g."""
    (m, v), other = ((mu1, v1), mu2) if i == 1 else ((mu2, v2), mu1)
    return m * moment + v * sp.diff(moment, m) + cov * sp.diff(moment, other)


class _AtOnce(BallFunction):
    """With as many bits as the sum of an output's terms asks for: where they cancel the measure asks for no more."""

    def accurate_from(
        self, bits: int, values: Sequence[float], relative_bits: int = 60, floor_bits: int = 200
    ) -> tuple[list[arb], int]:
        with ctx.workprec(_BITS):
            return self(*values), bits


class CovarianceTruth(ClosedFormTruth):
    """The outputs of a rule over arrays of points; survives pickling.

    Args:
        kind: ``step``, ``normal_cdf``, ``relu`` or ``gelu``.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(_outputs(kind), inputs=("mu1", "v1", "mu2", "v2", "cov"))
        self.function = _AtOnce(self.function.exprs, self.function.names)

    def __call__(self, *given: Any) -> dict[str, F64]:
        """Exact values by output, at the five inputs, float32 arrays of shape (n,); then the parameters, none."""
        mean1, var1, mean2, var2, covariance = (np.asarray(array, np.float64) for array in given[:-1])
        return super().__call__(mean1, np.maximum(var1, _CERTAIN), mean2, np.maximum(var2, _CERTAIN), covariance, {})


_FLOAT32 = Precision(fit=1e-8, reach=18.8125, scaled=True)


@dataclass(frozen=True)
class _Known:
    """A function with such a rule: its graphs, its truth, and the nodes for float32 and float64, either direction.

    ``added``: whether a normal variable is added to either input.
    ``by_terms``: whether the covariance is measured by the sum of its terms, as partials are, since the variances may
    be smaller than what rounding E f' leaves: f of GELU has a least value.
    """

    writer: type[Writer]
    kind: str
    nodes: tuple[Nodes, Nodes, Nodes, Nodes]
    added: bool = False
    by_terms: bool = False


_STEP = (Nodes(28, 5, 18), Nodes(4, 5, 18), Nodes(40, 4.5, 26), Nodes(4, 6, 40))
_KNOWN: Mapping[sp.Expr, _Known] = {
    sp.Heaviside(x, 1): _Known(Step, "step", _STEP),
    Phi(x): _Known(Step, "normal_cdf", _STEP, added=True),
    sp.Max(x, 0): _Known(Relu, "relu", (Nodes(18, 2, 18), Nodes(24, 4, 18), Nodes(30, 2.5, 30), Nodes(40, 3.5, 28))),
    x * Phi(x): _Known(
        Gelu,
        "gelu",
        (Nodes(22, 2, 20), Nodes(22, 3, 18), Nodes(40, 2.5, 36), Nodes(44, 3, 32)),
        added=True,
        by_terms=True,
    ),
}


def stabilise_covariance(rule: Rule) -> tuple[Stable, ...]:
    """The variant ``exact`` of a rule whose output is a covariance.

    Raises:
        BuildError: if f is none of those that have such a rule, the inputs are not normal, or the rule asks for another
            accuracy than this gives.
    """
    known = _KNOWN.get(rule.f)
    if rule.input != "normal":
        cause = f"expected normal inputs for a covariance, got {rule.input}"
        raise BuildError(rule.name, "strategies", cause, rule.f)
    if known is None:
        expected = ", ".join(map(str, _KNOWN))
        raise BuildError(rule.name, "strategies", f"expected f to be one of {expected} for a covariance", rule.f)
    if not rule.accuracy.moments or rule.accuracy.ulp:
        cause = "expected the accuracy Accuracy(moments=True) for a covariance"
        raise BuildError(rule.name, "strategies", cause, rule.accuracy)
    graph, nodes = partial(graph_of, known.writer, added=known.added), known.nodes
    (forward, fits), (partials, more) = graph(_FLOAT32, nodes[0], OUTPUTS), graph(_FLOAT32, nodes[1], PARTIALS)
    forward64, partials64 = graph(FLOAT64, nodes[2], OUTPUTS), graph(FLOAT64, nodes[3], PARTIALS)
    sized = (*OUTPUTS, *PARTIALS) if known.by_terms else PARTIALS
    sizes, _ = graph(FLOAT64, nodes[3], sized, sizes=True)
    return (
        Stable(
            variant="exact",
            forward=forward,
            partials=partials,
            forward64=forward64[0],
            partials64=partials64[0],
            truth=CovarianceTruth(known.kind),
            measure=CovarianceMeasure(None if known.by_terms else forward64[0], sizes),
            goal=1.0,
            aim=0.8,
            unit="tolerance",
            box={"log2_var": (-50.0, 50.0)},
            fits=tuple(dict.fromkeys((*fits, *more))),
            doc=f"the integral of the bivariate density over the correlation, by {nodes[0].count} nodes of Gauss and "
            "Legendre",
        ),
    )
