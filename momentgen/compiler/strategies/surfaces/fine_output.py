r"""What a float64 polynomial is fitted to: an output less its plain part, over its unit, at points of a frame.

    mean = a mu + b + (a' - a) w J(|t|) + u P(t, q),    V = u P(t, q),    q = sqrt(c)/w,    u the output's unit,

J the mean of a kink, and V = a² v + u P where both lines rise by the same a, beside which the rest is small.  Of an f
with kinks they are wanted from a variance v* on: then w² = v, q = sqrt(v*)/w, and the u of a variance is 1, or v where
f is not bounded.  Partials are the derivatives,

    P_mu = P_t/w,    P_v = -(t P_t + q P_q)/(2 w²).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.measure.moments import MEAN, MEAN_SPREAD
from momentgen.compiler.strategies.surfaces.fine_cells import Shape
from momentgen.compiler.strategies.surfaces.surface import (
    Frame,
    decay,
    flip_of,
    is_level,
    kink_of,
    least_mean,
    lines_of,
    plain_of,
    smoothed_of,
    steps,
)
from momentgen.compiler.toolchain.arrays import F64

#: errors of a mean, over its least at a variance where that grows and f nears its lines slowly; of a variance over L² v
#: or (range/2)²; of partials over their largest value at a variance
ALLOWED: Mapping[str, float] = {
    "mean": 1e-10,
    "var": 1e-8,
    "dmean_dmu": 1.2e-9,
    "dmean_dvar": 1e-8,
    "dvar_dmu": 3e-8,
    "dvar_dvar": 3e-8,
}
#: the same of an f that nears its lines slowly
OF_SLOW: Mapping[str, float] = {name: 100 * allowed for name, allowed in ALLOWED.items()}
#: the same beyond a v*, below which outputs are exact: of an f that is smooth on so large a scale it costs little
BEYOND: Mapping[str, float] = {
    "mean": 3.6e-12,
    "var": 3e-11,
    "dmean_dmu": 3.6e-11,
    "dmean_dvar": 3.6e-10,
    "dvar_dmu": 1.5e-10,
    "dvar_dvar": 4.5e-10,
}
#: of an f made of normal tails, whose mean takes few terms
OF_TAILS: Mapping[str, float] = {
    "mean": 1e-11,
    "var": 5e-10,
    "dmean_dmu": 6e-11,
    "dmean_dvar": 6e-10,
    "dvar_dmu": 3e-9,
    "dvar_dvar": 2e-9,
}
#: output -> its derivatives in mu and in v
PARTIALS_OF: Mapping[str, tuple[str, str]] = {
    "mean": ("dmean_dmu", "dmean_dvar"),
    "var": ("dvar_dmu", "dvar_dvar"),
}
_NEAREST = 1e-15  # the least v over c
_NOTHING = 1e-3  # of what is allowed: an even or an odd part that is none
_SAMPLE = (8, 24)  # points of a frame that show whether there is one


class Exact:
    """The exact moments of an f, with their rests; what mean and variance both ask for is found once."""

    def __init__(self, truth: QuadratureTruth | GeneralTruth) -> None:
        self._truth = truth
        self._known: dict[tuple[bytes, bytes], Mapping[str, F64]] = {}

    def __call__(self, mean: F64, var: F64) -> Mapping[str, F64]:
        """By output, at float64 points, v > 0."""
        key = mean.tobytes(), var.tobytes()
        if key not in self._known:
            self._known[key] = self._truth.outputs(mean, var, rests=True)
        return self._known[key]


@dataclass(frozen=True)
class Points:
    """Points of a frame, q (a column) times x (a row), and the exact outputs there."""

    q: F64
    x: F64
    v: F64
    w: F64
    t: F64
    u: F64
    exact: Mapping[str, F64]


class Output:
    """One output in one frame.

    Args:
        f: the activation.
        frame: its variables.
        name: ``mean`` or ``var``.
        exact: f's moments.
        goals: ``ALLOWED`` or another of its kind.
    """

    def __init__(
        self,
        f: Activation,
        frame: Frame,
        name: str,
        exact: Exact,
        goals: Mapping[str, float] = ALLOWED,
    ) -> None:
        self.f, self.frame, self.name, self.exact, self.goals = f, frame, name, exact, goals
        rows, columns = _SAMPLE
        x = np.linspace(1 / columns, 1, columns)
        at = self.points((np.arange(rows) + 0.5) / rows, np.concatenate([x, -x]))
        share = self.rest(at) / self.allowed(at)[name]
        right, left = share[:, :columns], share[:, columns:]
        sizes = [np.abs(part).max() for part in (right - left, right + left)]  # odd, even
        self.shape = Shape(next((n for n in (0, 1) if sizes[n] <= _NOTHING), None), flip_of(f, name))

    def points(self, q: F64, x: F64) -> Points:
        """The exact outputs at all pairs of these."""
        frame = self.frame
        q = q[:, None]
        v = np.maximum(frame.least / (q * q) - frame.c, max(_NEAREST * frame.c, frame.start))
        w = np.sqrt(v + frame.c)
        s = x[None, :] * frame.largest
        t = frame.t_of(s)
        u = t * w
        every = self.exact((u + self.f.centre).ravel(), np.broadcast_to(v, u.shape).ravel())
        exact = {one: values.reshape(u.shape) for one, values in every.items()}
        return Points(math.sqrt(frame.least) / w, x[None, :], v, w, t, u, exact)

    def allowed(self, at: Points) -> dict[str, F64]:
        """The errors allowed to the output and its partials, by row; of partials where all columns are there."""
        f, found = self.f, {}
        for name in (self.name, *PARTIALS_OF[self.name]):
            size = np.ones_like(at.v)
            if name == "mean":
                size = np.maximum(least_mean(f, at.v), 1.0)
                if f.algebraic:  # as in the tolerance, of a sigma that drowns it
                    size = size + MEAN_SPREAD / MEAN * np.minimum(f.lipschitz * np.sqrt(at.v), f.span)
            elif name == "var":
                size = np.minimum(f.lipschitz**2 * at.v, (f.span / 2) ** 2)
            else:
                size = np.abs(at.exact[name]).max(axis=1, keepdims=True)
            found[name] = np.asarray(self.goals[name] * size)
        return found

    def normal(self, at: Points) -> F64:
        """The polynomial's exact values."""
        return np.asarray(self.rest(at) / self.unit(at) / self.shape.factor(at.x, at.q))

    def rest(self, at: Points) -> F64:
        """The output less its plain part, to its own digits: far out it may be far smaller than that."""
        if self.name == "var":
            return at.exact["var_rest"] if slope_share(self.f, "var") else at.exact["var"]
        _, b, _, b2 = lines_of(self.f)
        if self.f.algebraic:
            return np.asarray(at.exact["mean_rest"] - smoothed_of(self.f, at.u, at.w))
        level = np.where(at.u < 0, b - b2, b2 - b) / 2
        return np.asarray(at.exact["mean_rest"] + level - (kink_of(self.f, at.u, at.w) if steps(self.f) else 0.0))

    def unit(self, at: Points) -> F64:
        """What the output is a multiple of."""
        return np.asarray(self._grown(at)[0] * at.w ** -float(falls(self.f, self.name)))

    def _grown(self, at: Points) -> tuple[F64, F64]:
        """What it grows or vanishes with, but for a power of w; and the derivative of that in v."""
        one, growth = np.ones_like(at.v), growth_of(self.f, self.name, self.frame)
        if growth == "bounded":
            share = self.frame.c / (at.v + self.frame.c)
            return at.v * share, share * share
        return (at.v, one) if growth == "v" else (one, 0 * one)

    def x_by_t(self, at: Points) -> F64:
        """The slope of x."""
        bend, largest = self.frame.bend, self.frame.largest
        if self.frame.both:
            root = np.hypot(bend, 2 * at.t)
            return np.asarray(2 * bend / (root * (bend + root)) / largest)
        return np.asarray(bend**2 / (bend**2 + at.t * at.t) ** 1.5 / largest)

    def outputs(self, at: Points, p: F64, p_by_t: F64, p_by_q: F64) -> dict[str, F64]:
        """Output and partials of a P and its derivatives."""
        f, w, q, t, unit = self.f, at.w, at.q, at.t, self.unit(at)
        power, by_mu, by_v = falls(f, self.name), *PARTIALS_OF[self.name]
        p_mu, p_v = p_by_t / w, -(t * p_by_t + q * p_by_q) / (2 * w * w)
        if self.name == "mean":
            a, b, a2, b2 = lines_of(f)
            plain_mu, plain_v = np.where(at.u < 0, a, a2), np.zeros_like(at.u)
            if steps(f):
                plain_mu = plain_mu - (a2 - a) * np.sign(t) * _tail(np.abs(t))
                plain_v = (a2 - a) * np.exp(-t * t / 2) / math.sqrt(2 * math.pi) / (2 * w)
            if f.algebraic and b != b2:
                step = (b2 - b) * np.exp(-t * t / 2) / math.sqrt(2 * math.pi) / w
                plain_mu, plain_v = plain_mu + step, plain_v - step * t / (2 * w)
            unit_v = -power / 2 * unit / (w * w)
            plain = plain_of(f, "mean", at.u, w)
            if f.algebraic:
                plain = np.where(at.u < 0, a * at.u + b, a2 * at.u + b2) + smoothed_of(f, at.u, w)
        else:
            plain_mu, plain_v = np.zeros_like(at.u), np.full_like(at.u, slope_share(f, self.name))
            plain = plain_v * at.v
            unit_v = self._grown(at)[1] * w ** -float(power) - power / 2 * unit / (w * w)
        return {self.name: plain + unit * p, by_mu: plain_mu + unit * p_mu, by_v: plain_v + unit * p_v + unit_v * p}


def slope_share(f: Activation, name: str) -> float:
    """What is subtracted from a variance over v: a² where both lines rise by a, beside which the rest is small."""
    return lines_of(f)[0] ** 2 if name == "var" and not steps(f) else 0.0


def growth_of(f: Activation, name: str, frame: Frame) -> str:
    """What P is multiplied by beside a power of r: "one", a variance "v" or, of a "bounded" f, v c/(v + c)."""
    if name == "mean" or (frame.start and is_level(f)):
        return "one"
    return "bounded" if is_level(f) else "v"


def falls(f: Activation, name: str) -> int:
    """The power of r that P is multiplied by: that which the output falls with, less what is subtracted of it."""
    return decay(f)["mean"] + 1 if slope_share(f, name) else decay(f)[name]


_tail = np.vectorize(lambda t: math.erfc(t / math.sqrt(2)) / 2, otypes=[float])
