r"""The normal distribution function of a normal input, Phi(X), X ~ N(mu, v): its variance by Owen's integral.

With h = mu/sqrt(1 + v), E Phi(X) = Phi(h), and E Phi(X)² is the probability that two normal variables of correlation
v/(1 + v) both lie below h: Phi(h) - 2 T(h, x0), x0 = 1/sqrt(1 + 2 v), T Owen's function (Owen 1956, "Tables for
computing bivariate normal probabilities").  Less Phi(h)² = Phi(h) - 2 T(h, 1) that is

    var = 1/pi ∫_{x0}^1 exp(-h² (1 + x²)/2)/(1 + x²) dx,

positive, over an interval of length 1 - x0 = 2 v x0²/(1 + x0), so that nothing cancels however small v is.  Five nodes
of Gauss and Legendre leave 1.5e-7 of min(v/(2 pi), 1/4).  The partials have the same exponentials:

    dvar/dh = -h/pi ∫ exp(-h² (1 + x²)/2) dx,   dvar/dx0 = -exp(-h² (1 + x0²)/2)/(pi (1 + x0²)),   dx0/dv = -x0³.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
from flint import arb, ctx

from momentgen.compiler.approximate import Polynomial
from momentgen.compiler.derive import Derivation
from momentgen.compiler.real import Graph
from momentgen.compiler.stabilise.functions import FunctionWriter
from momentgen.compiler.stabilise.kink_graph import FLOAT64, Precision
from momentgen.compiler.stabilise.stable import OUTPUTS, PARTIALS, Stable
from momentgen.errors import BuildError
from momentgen.symbols import Phi, x

__all__ = ["applies", "build_graph", "owen_truth", "stable_variants"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_FLOAT32 = Precision(fit=1e-8, reach=18.7, scaled=True)
_NODES = {True: 5, False: 12}
_BEYOND = 20  # |h| beyond which exp(-h²/2) is 0 beside every tolerance
_TRUTH_NODES, _BITS = 32, 128
_MEAN, _VAR, _PARTIAL = 1e-6, 1e-5, 1e-4  # of 1, of min(v/(2 pi), 1/4), of the largest value at that variance


@lru_cache
def _rule(count: int) -> tuple[tuple[arb, arb], ...]:
    """Nodes and weights of Gauss and Legendre on (0, 1)."""
    with ctx.workprec(_BITS + 32):
        pairs = [arb.legendre_p_root(count, k, weight=True) for k in range(count)]
        return tuple(((node + 1) / 2, weight / 2) for node, weight in pairs)


# --- graph -----------------------------------------------------------------------
def build_graph(precision: Precision, outputs: tuple[str, ...]) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of the outputs named, and the polynomials fitted for it."""
    graph = Graph(("mean", "var"))
    writer = _Writer(graph, precision)
    for name in outputs:
        graph.output(name, writer.f.like_inputs(writer.outputs[name]()))
    return graph, tuple(writer.f.fits)


class _Writer:
    """Writes the shared values at once, and an output when asked."""

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self.g, self.f = graph, FunctionWriter(graph, precision)
        g, one, two = graph, graph.const(1), graph.const(2)
        mu, v = self.f.mu, self.f.v
        # Neither of the branches not taken may be NaN; beyond 2^100 the integral has its limit.
        most = g.const(mpmath.mpf(2) ** 100)
        v = g.select(g.le(g.const(0), v), v, g.const(0))
        held = g.select(g.lt(most, v), most, v)
        self.r = g.recip(g.sqrt(g.add(v, one)))
        reach, least = g.const(_BEYOND), g.const(-_BEYOND)
        raw = g.mul(mu, self.r)
        h = g.select(g.lt(reach, raw), reach, g.select(g.lt(raw, least), least, raw))
        self.h = g.comment(h, "h = mean/sqrt(1 + var)")
        q = g.recip(g.madd(two, held, one))
        self.x0 = g.comment(g.sqrt(q), "x0 = 1/sqrt(1 + 2 var)")
        self.length = g.mul(g.mul(g.mul(two, held), q), g.recip(g.add(self.x0, one)))
        self.half = g.mul(g.mul(self.h, self.h), g.const(-0.5))
        self.nodes: list[tuple[Any, int, int]] = []  # weight, 1/(1 + x²), exp(-h² (1 + x²)/2)
        for node, weight in _rule(_NODES[precision.scaled]):
            at = g.madd(g.neg(self.length), g.const(_number(1 - node)), one)
            self.nodes.append((_number(weight), *self.density(at)))
        self.outputs = {
            "mean": lambda: self.f.apply(self.f.normal_cdf(self.h)),
            "var": self.var,
            "dmean_dmu": lambda: g.mul(self.normal_density(), self.r),
            "dmean_dvar": lambda: g.mul(self.normal_density(), self.shift()),
            "dvar_dmu": lambda: g.mul(self.by_h(), self.r),
            "dvar_dvar": self.var_by_var,
        }

    def density(self, at: int) -> tuple[int, int]:
        g = self.g
        bottom = g.madd(at, at, g.const(1))
        return g.recip(bottom), self.f.apply(self.f.exp(g.mul(self.half, bottom), decays=True))

    def normal_density(self) -> int:
        e = self.f.apply(self.f.gauss(self.h))
        return self.g.mul(e, self.g.const(1 / mpmath.sqrt(2 * mpmath.pi)))

    def shift(self) -> int:
        """dh/dv = -h/(2 (1 + v))."""
        g = self.g
        return g.mul(g.mul(g.mul(self.h, self.r), self.r), g.const(-0.5))

    def integral(self, divided: bool) -> int:
        """1/pi of the integral, over 1 + x² or not."""
        g, total = self.g, self.g.const(0)
        for weight, inverse, e in self.nodes:
            total = g.madd(g.const(weight / mpmath.pi), g.mul(e, inverse) if divided else e, total)
        return g.mul(total, self.length)

    def var(self) -> int:
        return self.integral(divided=True)

    def by_h(self) -> int:
        return self.g.neg(self.g.mul(self.h, self.integral(divided=False)))

    def var_by_var(self) -> int:
        g = self.g
        inverse, e = self.density(self.x0)
        cube = g.mul(g.mul(self.x0, self.x0), self.x0)
        edge = g.mul(g.mul(e, inverse), g.mul(cube, g.const(1 / mpmath.pi)))
        return g.madd(self.by_h(), self.shift(), edge)


def _number(ball: arb) -> Any:
    with mpmath.workdps(40):
        return mpmath.mpf(ball.mid().str(36, radius=False))


# --- truth -----------------------------------------------------------------------
def owen_truth(mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
    """The six outputs by 32 nodes in ball arithmetic; the rule's own error is below 1e-20 for |h| <= 20.

    Args:
        mean: shape (n,).
        var: shape (n,), none negative.
        params: none are used.
    """
    names = (*OUTPUTS, *PARTIALS)
    rows = [_point(float(m), float(v)) for m, v in zip(mean, var, strict=True)]
    table = np.array(rows).reshape(-1, len(names))
    return {name: np.ascontiguousarray(column) for name, column in zip(names, table.T, strict=True)}


def _point(mu: float, variance: float) -> tuple[float, ...]:
    with ctx.workprec(_BITS):
        v = arb(variance)
        r = 1 / (1 + v).sqrt()
        h = arb(mu) * r
        if abs(h) > 60:  # all but the mean is below the smallest number
            return (1.0 if mu > 0 else 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        x0 = 1 / (1 + 2 * v).sqrt()
        length = 2 * v * x0 * x0 / (1 + x0)
        half = -h * h / 2
        divided, plain = arb(0), arb(0)
        for node, weight in _rule(_TRUTH_NODES):
            at = 1 - length * (1 - node)
            bottom = 1 + at * at
            e = weight * (half * bottom).exp()
            plain += e
            divided += e / bottom
        density = half.exp() / (2 * arb.pi()).sqrt()
        shift = -h * r * r / 2
        by_h = -h * length * plain / arb.pi()
        edge = x0**3 * (half * (1 + x0 * x0)).exp() / (arb.pi() * (1 + x0 * x0))
        mean = (-h / arb(2).sqrt()).erfc() / 2
        values = (
            mean, length * divided / arb.pi(), density * r, density * shift, by_h * r, by_h * shift + edge,
        )  # fmt: skip
        return tuple(float(value) for value in values)


# --- strategy --------------------------------------------------------------------
class Tolerance:
    """Errors over what is allowed; survives pickling.

    The mean within 1e-6, the variance within 1e-5 of min(L² v, 1/4), L² = 1/(2 pi), and partials within 1e-4 of the
    largest value over mu that they have at that variance (the smaller of its bounds for v → 0 and v → ∞).  Below the
    normal range, 2^-126 is allowed.
    """

    def __call__(self, output: str, computed: F32, exact: F64, mean: F32, var: F32) -> F64:
        v = np.maximum(var.astype(np.float64), 1e-300)
        r = 1 / np.sqrt(1 + v)
        scales = {
            "mean": np.full_like(v, _MEAN),
            "var": _VAR * np.minimum(v / (2 * np.pi), 0.25),
            "dmean_dmu": _PARTIAL * 0.398 * r,
            "dmean_dvar": _PARTIAL * 0.12 * r * r,
            "dvar_dmu": _PARTIAL * np.minimum(0.136 * v, 0.168) * r,
            "dvar_dvar": _PARTIAL * np.minimum(0.159, 0.0841 / v),
        }
        error = np.abs(computed.astype(np.float64) - exact) / np.maximum(scales[output], 2.0**-126)
        return np.where(np.isfinite(computed), error, np.inf)


def applies(derivation: Derivation) -> bool:
    """Whether the rule is Phi(x) itself, of a normal input."""
    rule = derivation.rule
    return bool(rule.f == Phi(x) and rule.input == "normal" and not rule.bernoulli)


def stable_variants(derivation: Derivation) -> list[Stable]:
    """The variant ``exact`` of Phi(x).

    Raises:
        BuildError: if the rule asks for another accuracy than this module gives.
    """
    rule = derivation.rule
    goal = rule.accuracy
    if goal.mean_abs != _MEAN or goal.var_abs != _VAR / 4 or goal.ulp or goal.var_rel is not None:
        cause = f"expected an accuracy of mean_abs = {_MEAN:g} and var_abs = {_VAR / 4:g}"
        raise BuildError(rule.name, "stabilise", cause, goal)
    (forward, fits), (partials, more) = (build_graph(_FLOAT32, names) for names in (OUTPUTS, PARTIALS))
    return [
        Stable(
            variant="exact",
            forward=forward,
            partials=partials,
            forward64=build_graph(FLOAT64, OUTPUTS)[0],
            partials64=build_graph(FLOAT64, PARTIALS)[0],
            truth=owen_truth,
            measure=Tolerance(),
            goal=1.0,
            aim=0.8,
            unit="tolerance",
            slack=_MEAN,
            box={"a": (-18.7, 18.7), "mu": (-8.0, 8.0), "log2_var": (-50.0, 50.0)},
            fits=tuple(dict.fromkeys((*fits, *more))),
            doc="the mean in closed form, the variance by Owen's integral with five nodes of Gauss and Legendre",
        )
    ]
