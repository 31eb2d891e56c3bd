r"""The logistic transform S(X), X ~ N(mu, v): two forms on one graph, each used where it is well conditioned.

**Near**, v < v*: E and Var over a fixed symmetric rule of nodes ±z_k and weights w_k.  With p = S(mu), q = 1 - p,
tau = p - q and T = tanh(sigma z/2), addition formulas of tanh give every value relative to S(mu) in closed form,

    S(mu ± sigma z) - p = ±2 p q T/(1 ± tau T),

so that nothing cancels, and T enters by H = T² = v·Q(v) alone: neither root nor exponential.  With x = tau²,
R_k = 1/(1 - x H_k), A = Σ w H R and B = Σ w H (1 + x H) R²

    mean = p - 2 tau p q A,    var = (2 p q)² (B - x A²),

which are exact at v = 0 and relatively accurate in the tails; Stein's identities give the partials alike.

**Far**, v >= v*: the mixture S(x) ~ Σ p_i Phi(s_i x), which smoothing turns into m = Σ p_i Phi(h_i) with
h_i = mu/sqrt(v + s_i^-2), and S² = S - S' turns into var = m(1 - m) - m'.  That difference is what cancels as v
falls.  Both are computed at -|mu|.  Where var is below the error of the fit, v m'² stands in for it: the first term
of Var f = Σ v^k/k! (E f^(k))², so never above the truth, and never negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import mpmath

from momentgen.compiler.approximate import (
    J,
    Polynomial,
    ScaleMixture,
    fit_scale_mixture,
    lowest_degree,
    prove_scale_mixture,
)
from momentgen.compiler.real import Graph
from momentgen.compiler.stabilise.stable import OUTPUTS
from momentgen.errors import BuildError

__all__ = ["NODES", "SWITCH", "WEIGHTS", "build_graph", "mixture_for"]

#: v*: above it the far form is accurate relatively too wherever that is asked for (see ``facts`` of the variant).
SWITCH = mpmath.mpf(17) / 16

#: A rule of five pairs and the centre for E g(Z), fitted once to all six outputs over 0 <= v <= v* and all mu, in
#: units of :class:`Tolerance`: at most 0.43 of it; relative error of the variance at most 4e-6 for |mu| <= 4, 4e-5
#: beyond.  Gauss-Hermite's rule of as many points, best for polynomials and not for poles at ±i pi, leaves 2e-5.
NODES = (0.78094005, 1.58437029, 2.43824596, 3.38640188, 4.53445428)
WEIGHTS = (4.63595980e-01, 1.87220565e-01, 3.63958921e-02, 2.63132522e-03, 3.65299516e-05)
#: how many times worse than the first pair's each pair's tanh may be fitted: by its share in the variance
_SLACK = (1, 1, 3, 20, 250)
_STEP, _PAIRS = mpmath.mpf("0.55"), 14  # the trapezoidal rule that serves float64
_CENTRE = mpmath.mpf(1) / 4
_DEGREES = range(3, 30)


@dataclass(frozen=True)
class _Precision:
    """What a graph is for.

    Attributes:
        scaled: whether powers of two of exponentials are kept apart (float32), or not (float64).
        tail: absolute error allowed to the fitted tail of Phi.
        tanh: relative error allowed to tanh(sigma z/2)²/v of the first pairs.
        reach: clamp of h; beyond it Phi(-h) is below the smallest normal number.
        flush: exponent below which exp(-|mu|) is 0.
    """

    scaled: bool
    tail: float
    tanh: float
    reach: float
    flush: float


_FLOAT32 = _Precision(scaled=True, tail=3e-9, tanh=2e-8, reach=13.0, flush=-174.0)
_FLOAT64 = _Precision(scaled=False, tail=1e-16, tanh=1e-16, reach=37.5, flush=-745.0)


# --- fits ------------------------------------------------------------------------
@lru_cache
def mixture_for(terms: int, sup_error: float, digits: int) -> ScaleMixture:
    """The mixture of ``terms`` terms for S, with weights and variances as ``digits`` bits hold them, proven.

    Raises:
        BuildError: if the sup-error proven exceeds ``sup_error``.
    """
    fit = fit_scale_mixture(terms, slope_tolerance=None, derivatives=0)
    with mpmath.workdps(40):
        # Weights on one grid, so that they sum to 1 in floating point too; else the mean jumps at mu = 0.
        grid = mpmath.ldexp(1, -digits - 1)
        weights = [mpmath.nint(p / grid) * grid for p in fit.weights]
        largest = max(range(terms), key=lambda i: weights[i])
        weights[largest] += 1 - mpmath.fsum(weights)
        scales = [1 / mpmath.sqrt(_round(s**-2, digits)) for s in fit.scales]
    rounded = prove_scale_mixture(replace(fit, weights=tuple(weights), scales=tuple(scales)), derivatives=3)
    if rounded.bounds[0] > sup_error:
        raise BuildError(
            "S(x)",
            "approximate",
            f"expected a mixture of {terms} terms within {sup_error:g}, proven is {mpmath.nstr(rounded.bounds[0], 4)}",
        )
    return rounded


def _round(value: Any, digits: int) -> Any:
    _, exponent = mpmath.frexp(value)
    unit = mpmath.ldexp(1, int(exponent) - digits)
    return mpmath.nint(value / unit) * unit


@lru_cache
def _tail_fit(goal: float, reach: float) -> Polynomial:
    """P with Phi(-h) = exp(-h²/2) u P(u - 1/4), u = 1/(1 + h/4), within ``goal`` absolutely."""
    root = mpmath.sqrt(2 * mpmath.pi)
    low = 1 / (1 + mpmath.mpf(reach) / 4)

    def argument(u: Any) -> Any:
        return 4 * (1 / u - 1)

    def weight(u: Any) -> Any:
        # The last term keeps the tail right to a few digits, so that its size is.
        return u * (mpmath.exp(-(argument(u) ** 2) / 2) + mpmath.mpf("1e-6"))

    what = f"J_0(h)/(sqrt(2 pi) u), u = 1/(1 + h/4), 0 <= h <= {reach}, by its share in Phi(-h)"
    return lowest_degree(
        lambda u: J(0, argument(u)) / (root * u),
        (low, mpmath.mpf(1)),
        _DEGREES,
        goal,
        what,
        weight=weight,
        centre=_CENTRE,
    )


@lru_cache
def _tanh_fit(z: Any, goal: float) -> Polynomial:
    """Q with tanh(sqrt(v) z/2)² = v Q(v - v*/2), 0 <= v <= v*."""

    def target(v: Any) -> Any:
        y = mpmath.mpf(z) ** 2 / 4
        if v * y < mpmath.mpf("1e-24"):
            return y
        return mpmath.tanh(mpmath.sqrt(v * y)) ** 2 / v

    what = f"tanh(sqrt(v) {mpmath.nstr(z, 9)}/2)^2/v, 0 <= v <= {SWITCH}"
    interval = (mpmath.mpf(0), SWITCH)
    return lowest_degree(target, interval, _DEGREES, goal, what, centre=SWITCH / 2)


@lru_cache
def _slope_fit(goal: float) -> Polynomial:
    """Q with tanh(sigma d/2) = sigma Q(v - v*/2) for the step d of the trapezoidal rule."""

    def target(v: Any) -> Any:
        if v < mpmath.mpf("1e-24"):
            return _STEP / 2
        return mpmath.tanh(mpmath.sqrt(v) * _STEP / 2) / mpmath.sqrt(v)

    what = f"tanh(sqrt(v) {mpmath.nstr(_STEP, 4)}/2)/sqrt(v), 0 <= v <= {SWITCH}"
    interval = (mpmath.mpf(0), SWITCH)
    return lowest_degree(target, interval, _DEGREES, goal, what, centre=SWITCH / 2)


# --- graph -----------------------------------------------------------------------
class _Writer:
    """Writes the two forms and joins them."""

    def __init__(self, graph: Graph, mixture: ScaleMixture, precision: _Precision) -> None:
        self.g, self.mixture, self.precision = graph, mixture, precision
        self.fits: list[Polynomial] = []
        g, zero, one = graph, graph.const(0), graph.const(1)
        mu, v = g.input("mean"), g.input("var")
        self.negative = g.lt(mu, zero)
        # Not abs, whose derivative at 0 would be 0 and not that of the side mu = 0 is counted to.
        self.size = g.abs(mu) if precision.scaled else g.select(self.negative, g.neg(mu), mu)
        valid = g.sqrt(g.select(g.le(zero, v), one, g.const(-1)))
        self.v = g.comment(g.mul(v, valid), "NaN for a negative variance")
        self.near = g.branch = g.lt(self.v, g.const(SWITCH))
        # The form not chosen is evaluated where it is finite, for the sake of gradients taken through the choice.
        self.small = g.select(self.near, self.v, zero)
        self.large = g.select(self.near, g.const(SWITCH), self.v)

    def total(self, weights: list[Any], values: list[int], start: int) -> int:
        """start + Σ weight·value."""
        for w, value in zip(weights, values, strict=True):
            start = self.g.madd(self.g.const(w), value, start)
        return start

    # --- near --------------------------------------------------------------------
    def logistic(self) -> None:
        """q = S(-|mu|), p = 1 - q, tau = p - q, x = tau²."""
        g, precision = self.g, self.precision
        low, exponent = g.const(precision.flush), g.neg(self.size)
        below = g.lt(exponent, low)
        held = g.select(below, low, exponent)
        e = g.select(below, g.const(0), g.exp_mantissa(held))
        if precision.scaled:
            for i in range(2):
                e = g.mul(e, g.exp_factor(held, i, 2))
        e = g.comment(e, "exp(-|mean|)")
        one = g.const(1)
        self.p = g.recip(g.add(e, one))
        self.q = g.comment(g.mul(e, self.p), "S(-|mean|)")
        self.tau = g.mul(g.sub(one, e), self.p)
        self.x = g.mul(self.tau, self.tau)
        self.slope = g.comment(g.mul(self.p, self.q), "S'(mean)")

    def rule(self) -> tuple[list[Any], list[int]]:
        """Weights of the pairs, and H_k = tanh(sigma z_k/2)²."""
        g, goal = self.g, self.precision.tanh
        if self.precision.scaled:
            fits = [_tanh_fit(z, goal * slack) for z, slack in zip(NODES, _SLACK, strict=True)]
            self.fits += fits
            offset = g.sub(self.small, g.const(SWITCH / 2))
            squares = [g.mul(self.small, g.horner(offset, fit.coefficients)) for fit in fits]
            return list(WEIGHTS), [
                g.comment(h, f"tanh(sigma {z:.4g}/2)^2") for h, z in zip(squares, NODES, strict=True)
            ]
        first = _slope_fit(goal)
        self.fits.append(first)
        step = t = g.horner(g.sub(self.small, g.const(SWITCH / 2)), first.coefficients)
        squares = [g.mul(self.small, g.mul(t, t))]
        for _ in range(_PAIRS - 1):  # tanh(a + b) = (tanh a + tanh b)/(1 + tanh a tanh b), all over sigma
            t = g.mul(g.add(t, step), g.recip(g.madd(g.mul(self.small, t), step, g.const(1))))
            squares.append(g.mul(self.small, g.mul(t, t)))
        return _trapezoid(), squares

    def write_near(self) -> None:
        g = self.g
        self.logistic()
        self.weights, self.h = self.rule()
        with mpmath.workdps(40):
            self.rest = 1 - mpmath.fsum(self.weights)
        one, zero = g.const(1), g.const(0)
        self.y = [g.mul(self.x, h) for h in self.h]
        self.r = [g.recip(g.sub(one, y)) for y in self.y]
        self.hr = [g.mul(h, r) for h, r in zip(self.h, self.r, strict=True)]
        self.a = g.comment(self.total(self.weights, self.hr, zero), "A: 2 tau p q A is how far the mean moves")

    def near_outputs(self) -> dict[str, int]:
        g, one, two = self.g, self.g.const(1), self.g.const(2)
        shift = g.mul(g.mul(g.mul(two, self.tau), self.slope), self.a)
        terms = [g.mul(hr, g.mul(g.add(y, one), r)) for hr, y, r in zip(self.hr, self.y, self.r, strict=True)]
        b = g.comment(self.total(self.weights, terms, g.const(0)), "B: (2 p q)^2 B is E (S(X) - p)^2")
        spread = g.madd(g.neg(g.mul(self.x, self.a)), self.a, b)
        scale = g.mul(two, self.slope)
        return {"mean": g.add(self.q, shift), "var": g.mul(scale, g.mul(scale, spread))}

    def near_partials(self) -> dict[str, int]:
        """Expectations over the pairs of S', S'', (S - p) S' and S'² + (S - p) S'', each over a power of S'(mu)."""
        g = self.g
        one, two, three, six = (g.const(k) for k in (1, 2, 3, 6))
        first, second, cross, curve = [], [], [], []
        for h, y, r, hr in zip(self.h, self.y, self.r, self.hr, strict=True):
            rr = g.mul(r, r)
            c = g.mul(g.sub(one, h), rr)
            cr = g.mul(c, r)
            first.append(g.mul(c, g.add(y, one)))
            # 1 + 3 y - 3 h - y h
            second.append(g.mul(cr, g.madd(three, g.sub(y, h), g.madd(g.neg(y), h, one))))
            # H (3 + y), halved: the factor 2 comes with A
            cross.append(g.mul(g.mul(c, hr), g.add(y, three)))
            # (1 - 3 h)(1 + 6 y + y²) + 8 y (1 + y)
            bracket = g.madd(g.add(y, six), y, one)
            inner = g.madd(g.mul(g.const(8), y), g.add(y, one), g.mul(g.madd(g.const(-3), h, one), bracket))
            curve.append(g.mul(g.mul(c, rr), inner))
        rest, zero = g.const(self.rest), g.const(0)
        f1, f2 = self.total(self.weights, first, rest), self.total(self.weights, second, rest)
        d1, d2 = self.total(self.weights, cross, zero), self.total(self.weights, curve, rest)
        square = g.mul(self.slope, self.slope)
        odd = g.mul(self.tau, g.mul(two, self.slope))
        return {
            "dmean_dmu": g.mul(self.slope, f1),
            "dmean_dvar": g.mul(g.mul(g.const(-0.5), g.mul(self.tau, self.slope)), f2),
            "dvar_dmu": g.mul(odd, g.mul(g.mul(two, self.slope), g.madd(self.a, f1, g.neg(d1)))),
            "dvar_dvar": g.mul(square, g.madd(g.mul(g.const(-2), self.x), g.mul(self.a, f2), d2)),
        }

    # --- far ---------------------------------------------------------------------
    def write_far(self) -> None:
        """m(-|mu|) and h, phi(h) sqrt(2 pi), 1/w of every atom."""
        g, precision = self.g, self.precision
        core = _tail_fit(precision.tail, precision.reach)
        self.fits.append(core)
        zero, one, reach = g.const(0), g.const(1), g.const(precision.reach)
        self.atoms: list[tuple[Any, int, int, int]] = []
        tails = []
        for p, s in zip(self.mixture.weights, self.mixture.scales, strict=True):
            with mpmath.workdps(40):
                spread = g.const(1 / s**2)
            inverse = g.recip(g.sqrt(g.add(self.large, spread)))
            raw = g.mul(self.size, inverse)
            h = g.select(g.lt(reach, raw), reach, raw)
            exponent = g.mul(g.mul(h, h), g.const(-0.5))
            density = g.exp_mantissa(exponent)
            if precision.scaled:
                density = g.mul(density, g.exp_factor(exponent, 0, 1))
            u = g.recip(g.madd(h, g.const(0.25), one))
            polynomial = g.horner(g.sub(u, g.const(_CENTRE)), core.coefficients)
            tails.append(g.mul(density, g.mul(u, polynomial)))
            self.atoms.append((p, inverse, h, density))
        weights = [p for p, *_ in self.atoms]
        self.tail = g.comment(self.total(weights, tails, zero), "mean at -|mean|, by the mixture")
        self.densities = [g.mul(inverse, density) for _, inverse, _, density in self.atoms]
        self.m1 = g.comment(self.total(self.normal(weights), self.densities, zero), "E S'(X), by the mixture")

    def normal(self, weights: list[Any]) -> list[Any]:
        with mpmath.workdps(40):
            return [p / mpmath.sqrt(2 * mpmath.pi) for p in weights]

    def far_outputs(self) -> dict[str, int]:
        g = self.g
        # m(1 - m) - m' with the square subtracted inside.
        var = g.sub(g.madd(g.neg(self.tail), self.tail, self.tail), self.m1)
        floor = g.mul(g.mul(self.large, self.m1), self.m1)
        return {"mean": self.tail, "var": g.select(g.lt(var, floor), floor, var)}

    def far_partials(self) -> dict[str, int]:
        g, zero, one, half = self.g, self.g.const(0), self.g.const(1), self.g.const(0.5)
        weights = self.normal([p for p, *_ in self.atoms])
        second, third = [], []
        for (_, inverse, h, _), density in zip(self.atoms, self.densities, strict=True):
            steep = g.mul(density, inverse)
            second.append(g.mul(steep, h))
            third.append(g.mul(g.mul(steep, inverse), g.madd(g.neg(h), h, one)))
        m2 = g.comment(self.total(weights, second, zero), "E S''(X) at -|mean|")
        m3 = g.comment(self.total(weights, third, zero), "-E S'''(X)")
        odd = g.madd(g.const(-2), self.tail, one)  # 1 - 2 m(-|mu|)
        return {
            "dmean_dmu": self.m1,
            "dmean_dvar": g.mul(g.const(-0.5), m2),
            "dvar_dmu": g.madd(g.neg(self.m1), odd, m2),
            "dvar_dvar": g.mul(half, g.madd(odd, m2, m3)),
        }

    # --- both --------------------------------------------------------------------
    def write(self, outputs: tuple[str, ...], *, bernoulli: bool) -> None:
        g = self.g
        self.write_near()
        self.write_far()
        if outputs == OUTPUTS:
            near, far = self.near_outputs(), self.far_outputs()
        else:
            near, far = self.near_partials(), self.far_partials()
        values = {name: g.select(self.near, near[name], far[name]) for name in outputs}
        if bernoulli:
            low = values.get("mean", g.select(self.near, self.near_outputs()["mean"], self.tail))
            values = self.of_draw(low, values)
        for name, plain in values.items():
            value = plain
            if name == "mean":
                value = g.select(self.negative, value, g.sub(g.const(1), value))
            elif name in ("dmean_dvar", "dvar_dmu"):  # odd in mu
                value = g.select(self.negative, g.neg(value), value)
            g.output(name, value)

    def of_draw(self, low: int, values: Mapping[str, int]) -> dict[str, int]:
        """The same for a draw of 1 with probability S(X): its variance is m(1 - m), ``low`` being m(-|mu|)."""
        g = self.g
        odd = g.madd(g.const(-2), low, g.const(1))
        steep = {"dvar_dmu": "dmean_dmu", "dvar_dvar": "dmean_dvar"}
        drawn = {name: g.mul(g.neg(odd), values[of]) for name, of in steep.items() if of in values}
        if "mean" in values:
            drawn["var"] = g.madd(g.neg(low), low, low)
        return {name: drawn.get(name, value) for name, value in values.items()}


def _trapezoid() -> list[Any]:
    """Weights of the pairs ±k·step of the trapezoidal rule for the normal density, normalised."""
    with mpmath.workdps(40):
        values = [mpmath.exp(-((k * _STEP) ** 2) / 2) for k in range(_PAIRS + 1)]
        total = values[0] + 2 * mpmath.fsum(values[1:])
        return [2 * w / total for w in values[1:]]


def build_graph(
    mixture: ScaleMixture, *, float64: bool, outputs: tuple[str, ...], bernoulli: bool = False
) -> tuple[Graph, tuple[Polynomial, ...]]:
    """The graph of the outputs named, ``OUTPUTS`` or ``PARTIALS``, and the polynomials fitted for it.

    Args:
        mixture: of the far form.
        float64: whether it is for float64 (a rule of 14 pairs, no powers of two kept apart) or float32.
        outputs: which.
        bernoulli: whether the output is 1 with probability S(X), and not S(X) itself.
    """
    graph = Graph(("mean", "var"))
    writer = _Writer(graph, mixture, _FLOAT64 if float64 else _FLOAT32)
    writer.write(outputs, bernoulli=bernoulli)
    return graph, tuple(writer.fits)
