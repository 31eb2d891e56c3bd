r"""Moments of a smooth activation as polynomials of two variables, for float32: which variables, and what is fitted.

With w² = v + c, r = 1/w, t = (mu - centre) r and s = t/sqrt(kappa² + t²), all six outputs are smooth functions of s
and of r: v = 0 is r² c = 1, v = oo is r = 0, and for |t| beyond ``reach`` nothing changes any more.  What an output
grows or vanishes with is divided out first (:func:`unit_of`), and where f follows lines of different slopes, the mean
of the kink between them, smoothed by N(0, w²), is subtracted:

    mean = a mu + b + (a' - a) w J(|t|) + r P(s, r),   J(t) = E (Z - t)_+,      line a x + b on mu's side
    V = v P(s, r), or for bounded f  V = v r² c P(s, r).

An f that has the same line on both sides (a bump) is felt the less the wider the input is: everything falls by a power
of r more, and by another where the integral of f less its line is 0 (:func:`decay`).

What is left of a mean is, far out, a sum of derivatives of the density φ(t)/w: it changes its sign with that of
(t, w).  So do its derivatives in mu and v; their even and odd parts in s are polynomials in r² c, one of them
multiplied by r.  Variances have no such symmetry and are polynomials in r.

An f that nears its lines slowly, by a power of 1/x, is felt however far out it is: its frames have no reach, s = 1 is
infinity, and the step between the lines' offsets is subtracted smoothed as the kink is.  Such an f brings odd powers of
1/t, which are no smooth functions of s about 1 but multiples of kappa/sqrt(kappa² + t²), and r log r, which is smooth
enough in a root of r.  Which root a frame has, and whether a mean has that factor, is tried; a mean with odd and even
powers is smooth in the s with t = kappa s/(1 - s²).

Errors are measured at the nodes of the fit; what counts is the certificate's comparison of the finished program with
exact values.  :mod:`momentgen.compiler.strategies.surfaces.surface_search`
finds the frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.exact.smoothing import Side
from momentgen.compiler.fit.bivariate import Bivariate, BivariateTarget, columns, rows
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.measure.moments import VARIANCE, Limits
from momentgen.compiler.toolchain.arrays import F64, erfc
from momentgen.errors import BuildError

_ROWS, _ROWS_SLOW, _COLUMNS = 24, 40, 72
#: of the tolerance: for the fit; the rest is for what lies beyond the reach, and for rounding
FITTED = 0.65
INFINITY = 2.0**24  # a |t| that is as good as that
_FALLING = 2.0 ** np.array([16.0, 20.0])  # sigma in lengths, between which it is seen how outputs fall
_DROWNED = 1e8  # the sigma beyond which float64 rounds a mean by more than 1e-8
_MOMENTS = 6  # of f less its line, that may be 0
_NOTHING = 1e-12  # of an integral of absolute values: an integral that is 0


@dataclass(frozen=True)
class Frame:
    """The variables.

    Attributes:
        c: what is added to v.
        bend: kappa.
        reach: the |t| beyond which they stop.
        start: the least v.
        roots: how often the root of r is taken for the second variable.
        fade: whether the mean is a multiple of kappa/sqrt(kappa² + t²).
        both: whether t = kappa s/(1 - s²).
        end: the least of the second variable, where the variance that belongs to it is as far as the frame goes.
    """

    c: float
    bend: float
    reach: float
    start: float = 0.0
    roots: int = 0
    fade: bool = False
    both: bool = False
    end: float = 0.0

    @property
    def least(self) -> float:
        """The least w²."""
        return self.start + self.c

    @property
    def largest(self) -> float:
        """s at the reach; x = s/largest runs from -1 to 1."""
        if self.both:
            return 2 * self.reach / (self.bend + math.hypot(self.bend, 2 * self.reach))
        return self.reach / math.hypot(self.bend, self.reach)

    def t_of(self, s: F64) -> F64:
        return np.asarray(self.bend * s / (1 - s * s if self.both else np.sqrt(1 - s * s)))

    @property
    def is_slow(self) -> bool:
        """Whether it has no reach."""
        return self.reach == INFINITY

    @property
    def slowest(self) -> float:
        """q where sigma is as far as mu is at the reach, of an f that nears its lines slowly."""
        return 1.0 / self.reach


@dataclass(frozen=True)
class Surface:
    """One output.

    Attributes:
        frame: its variables.
        fit: its polynomial in x = s/largest and 2 z - 1, z = r sqrt(c) or, where ``flip`` is not 0, r² c.
        flip: 1 where the odd part is multiplied by r sqrt(c), -1 where the even part is, 0 where neither is.
    """

    frame: Frame
    fit: Bivariate
    flip: int


class FrameTargets:
    """Exact outputs over a frame's nodes, normalised, with the errors allowed."""

    def __init__(self, f: Activation, frame: Frame, squared: bool, truth: QuadratureTruth | GeneralTruth) -> None:
        self.f, self.frame = f, frame
        count = _ROWS_SLOW if frame.is_slow else _ROWS
        z = frame.end + (1 - frame.end) * (1 + rows(count)) / 2
        share = z if squared else z ** (2 << frame.roots)  # the least w² over w²
        self.v = np.maximum(frame.least * (1 / share - 1) + frame.start, frame.start or 1e-7 * frame.c)[:, None]
        s = columns(_COLUMNS)[None, :] * frame.largest
        t = frame.t_of(s)
        self.w = np.sqrt(self.v + frame.c)
        self.u = t * self.w
        v = np.broadcast_to(self.v, self.u.shape)
        exact = truth.outputs((self.u + f.centre).ravel(), v.ravel(), rests=f.algebraic)
        self.values = {name: values.reshape(self.u.shape) for name, values in exact.items()}
        self.fading = frame.bend / np.hypot(frame.bend, t)

    def of(self, name: str, limits: Limits, fade: bool) -> BivariateTarget:
        """What is fitted for an output; of a mean that fades, what that factor leaves."""
        f, v, w, values = self.f, self.v, self.w, self.values[name]
        unit = unit_of(f, name, v, w, self.frame)
        if name == "mean":
            allowed = limits.small_mean * np.maximum(least_mean(f, v), 1.0)
        elif name == "var":
            allowed = np.minimum(VARIANCE * np.minimum(f.lipschitz**2 * v, (f.span / 2) ** 2), limits.var)
        else:
            allowed = limits.partial * np.abs(values).max(axis=1, keepdims=True)
        weight = (unit / (FITTED * allowed))[:, 0]
        one, root = np.ones(v.size), (math.sqrt(self.frame.least) / w)[:, 0]
        factors = {0: (one, one), 1: (one, root), -1: (root, one)}[flip_of(f, name)]
        values = self.rest() if name == "mean" and f.algebraic else values - plain_of(f, name, self.u, w)
        return BivariateTarget(values / unit / (self.fading if fade and name == "mean" else 1.0), weight, factors)

    def rest(self) -> F64:
        """The mean less its plain part, of an f that nears its lines slowly; where sigma drowns it, it goes on as r."""
        f, w = self.f, self.w
        values = self.values["mean_rest"] - smoothed_of(f, self.u, w)
        known = int(np.sum(w * steps(f) < _DROWNED))  # rows go from low w to high
        values[known:] = values[known - 1] * (w[known - 1] / w[known:])
        return values


def flip_of(f: Activation, name: str) -> int:
    """The sign that a fitted output takes with that of (t, w); 0 if it has no such symmetry."""
    # The logarithm of w, which an f that nears its lines slowly brings in, knows no sign of w.
    if f.algebraic or not of_mean(name):
        return 0
    return 1 if decay(f)[name] % 2 else -1


def of_mean(name: str) -> bool:
    """Whether an output is the mean or one of its partials."""
    return name == "mean" or name.startswith("dmean")


def turning_of(f: Activation) -> float:
    """f's length, where its lines rise by as much on one side as they fall on the other."""
    a, _, a2, _ = lines_of(f)
    return f.length * (abs(a2 - a) / 2 or f.lipschitz - abs(a)) / f.lipschitz


def is_level(f: Activation) -> bool:
    """Whether f is bounded."""
    return math.isfinite(f.span)


def unit_of(f: Activation, name: str, v: F64, w: F64, frame: Frame) -> F64:
    """What an output grows or vanishes with."""
    base = w**0
    if name in VANISHING:
        base = v * frame.least / (v + frame.c) if is_level(f) else v
    return np.asarray(base * w ** -float(decay(f)[name]))


#: outputs that are 0 at v = 0
VANISHING = ("var", "dvar_dmu")


@lru_cache
def decay(f: Activation) -> Mapping[str, int]:
    """Per output, the power of r that it falls with at large sigma, beside what it grows with there."""
    if f.algebraic:
        return _seen_decay(f)
    level, stepped = is_level(f), steps(f)
    _, b, _, b2 = lines_of(f)
    mean = int(b == b2)
    if mean and not stepped:
        place, weight, excess, _ = Side(f, 1).nodes
        parts = weight * excess
        while mean <= _MOMENTS and abs(np.sum(parts)) < _NOTHING * np.sum(np.abs(parts)):
            mean, parts = mean + 1, parts * place
    bump = int(mean > 0 and not stepped)
    return {
        "mean": mean,
        "dmean_dmu": 0 if stepped else mean + 1,
        "dmean_dvar": 1 if stepped else mean + 2,
        "var": bump if level else 0,
        "dvar_dmu": 1 if stepped else bump + 1 if level else mean + 2,
        "dvar_dvar": bump + 2 if level else 0,
    }


def _seen_decay(f: Activation) -> Mapping[str, int]:
    """The same of partials as exact values show it; a mean and a variance fall as logarithms let them."""
    sigma = f.length * _FALLING
    t = np.linspace(-4, 4, 81)
    mean, v = (f.centre + sigma[:, None] * t).ravel(), np.repeat(sigma**2, t.size)
    found = {"mean": 0, "var": 0}
    for name, values in GeneralTruth(f).outputs(mean, v).items():
        if name not in found:
            far, farther = np.abs(values).reshape(sigma.size, t.size).max(axis=1)
            power = math.log(far / farther) / math.log(sigma[1] / sigma[0])
            found[name] = round(power + (2.0 if name in VANISHING and not is_level(f) else 0.0))
    return found


def plain_of(f: Activation, name: str, u: F64, w: F64) -> F64:
    """What is subtracted from an output at mu = centre + u before it is fitted."""
    a, b, a2, b2 = lines_of(f)
    if name == "dmean_dmu":
        return np.full(u.shape, (a + a2) / 2)
    if name != "mean":
        return np.zeros(u.shape)
    line = np.where(u < 0, a, a2) * u + (b + b2) / 2
    return line + kink_of(f, u, w) if steps(f) else line


def kink_of(f: Activation, u: F64, w: F64) -> F64:
    """The mean of the kink between f's lines, smoothed by N(0, w²), less the line on mu's side."""
    a, _, a2, _ = lines_of(f)
    t = np.abs(u / w)
    kink = np.exp(-t * t / 2) / math.sqrt(2 * math.pi) - t * erfc(t / math.sqrt(2)) / 2
    return np.asarray((a2 - a) * w * kink)


def smoothed_of(f: Activation, u: F64, w: F64) -> F64:
    """What smoothing the lines of a slow f by N(0, w²) adds to that on mu's side: a kink and a step between them."""
    _, b, _, b2 = lines_of(f)
    tail = erfc(np.abs(u / w) / math.sqrt(2)) / 2
    return np.asarray((kink_of(f, u, w) if steps(f) else 0.0) + np.where(u < 0, b2 - b, b - b2) * tail)


def least_mean(f: Activation, v: F64) -> F64:
    """About the smallest abs(mean) at a variance, where f grows on either side; otherwise 0."""
    a, _, a2, _ = lines_of(f)
    return np.asarray(np.sqrt(2 / math.pi * v) * (abs(a2) if f.algebraic and a == -a2 else 0.0))


def steps(f: Activation) -> bool:
    """Whether f's lines differ in slope."""
    return lines_of(f)[0] != lines_of(f)[2]


def lines_of(f: Activation) -> tuple[float, float, float, float]:
    """Slope and value at the centre of the line on the left, then of that on the right."""
    if f.left is None or f.right is None:
        raise BuildError(f.name, "strategies", "expected f to follow a line on either side", f.pieces)
    left, right = f.left, f.right
    at = f.centre
    return left.slope, left.offset + left.slope * at, right.slope, right.offset + right.slope * at


def end_of(f: Activation, mean: float, var: float) -> float:
    """|x - centre| beyond which f and f' are their lines', but for errors of so much, over L² in f'²."""
    u = f.length * np.linspace(0, 60, 1201)
    if f.reach > u[-1]:  # a bump may be wider than that
        u = np.concatenate([u, np.linspace(u[-1], f.reach, 1201)])
    return last_apart(f, u, lambda line: np.full_like(line, mean), var)


def last_apart(f: Activation, away: F64, mean: Callable[[F64], F64], var: float) -> float:
    """The last of some distances from the centre, on either side, at which f or f'² is told from that of its line.

    Args:
        mean: what f may be off, from the line's values.
        var: what f'² may be off, over L².
    """
    a, b, a2, b2 = lines_of(f)
    end = 0.0
    for sign, slope, offset in ((-1, a, b), (1, a2, b2)):
        jet, line = f.jet(f.centre + sign * away, 2), slope * sign * away + offset
        apart = np.abs(jet[:, 0] - line) > mean(line)
        apart |= np.abs(jet[:, 1] ** 2 - slope**2) > var * f.lipschitz**2
        end = max(end, float(away[apart].max(initial=0.0)))
    return end
