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

c and kappa are those of a few that need the fewest terms.  There is nothing to prove here: errors are those at the
nodes of the fit, and what counts is the certificate's comparison of the finished program with exact values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.exact.smoothing import Side
from momentgen.compiler.fit.bivariate import Bivariate, BivariateTarget, columns, fit_bivariate, rows, terms_needed
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.measure.moments import MEAN, USUAL, VARIANCE, Limits
from momentgen.compiler.toolchain.arrays import F64
from momentgen.errors import BuildError

_ROWS, _ROWS_SLOW, _COLUMNS = 24, 40, 72
_SHARE, _END = 0.65, 0.12  # of the tolerance: for the fit, for what lies beyond the reach; the rest is for rounding
_WIDTHS, _BENDS = (0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0), (2.5, 3.0, 3.5)  # c in units of length², kappa
_WIDER, _WIDEST, _GAIN = 1.35, 40.0, 0.9  # beyond them, as long as each takes so many times the terms
#: |t| at which a normal distribution has reached 1e-8, and its first moment 1e-11
_NORMAL = {False: 5.5, True: 6.25}
_TRIED, _MORE_TRIED = 2, 12  # frames whose terms are counted by a fit; where none of them serves
#: the rounding of 1, and how many times the tolerance of a mean the sum of all that coefficients lose may be
_UNIT, _ROUNDED = 2.0**-24, 6.0
_FRAME = 40  # what another frame costs, in terms: two square roots and two reciprocals above all
#: of frames without a reach: c in units of length², kappa, and a |t| as good as infinity
_SLOW_WIDTHS, _SLOW_BENDS, _INFINITY = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0), (2.5, 3.5), 2.0**24
_FALLING = 2.0 ** np.array([16.0, 20.0])  # sigma in lengths, between which it is seen how outputs fall
_PLAIN, _FADING, _OF_BOTH = (False, False), (True, False), (False, True)  # of frames: whether they fade, or are of both
_END_OF_LOGARITHMS = 0.06  # of the second variable, where a partial falls as a logarithm times a power of r
_DROWNED = 1e8  # a sigma of which float64 keeps 1e-8
_MOMENTS = 6  # of f less its line, that may be 0
_NOTHING = 1e-12  # of an integral of absolute values: an integral that is 0
_erfc = np.vectorize(math.erfc, otypes=[float])


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
        """t at s."""
        return np.asarray(self.bend * s / (1 - s * s if self.both else np.sqrt(1 - s * s)))

    @property
    def is_slow(self) -> bool:
        """Whether it has no reach."""
        return self.reach == _INFINITY

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


class _Targets:
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
        weight = (unit / (_SHARE * allowed))[:, 0]
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
    kink = np.exp(-t * t / 2) / math.sqrt(2 * math.pi) - t * _erfc(t / math.sqrt(2)) / 2
    return np.asarray((a2 - a) * w * kink)


def smoothed_of(f: Activation, u: F64, w: F64) -> F64:
    """What smoothing the lines of a slow f by N(0, w²) adds to that on mu's side: a kink and a step between them."""
    _, b, _, b2 = lines_of(f)
    tail = _erfc(np.abs(u / w) / math.sqrt(2)) / 2
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
    end = 0.0
    for sign, line in ((-1, f.left), (1, f.right)):
        jet = f.jet(f.centre + sign * u, 2)
        if line is None:
            raise BuildError(f.name, "strategies", "expected f to follow a line on either side", f.pieces)
        value = np.abs(jet[:, 0] - line.slope * (f.centre + sign * u) - line.offset) > mean
        slope = np.abs(jet[:, 1] ** 2 - line.slope**2) > var * f.lipschitz**2
        end = max([end, *(float(u[mask].max()) for mask in (value, slope) if mask.any())])
    return end


#: exact outputs over the nodes of a frame, with even powers of z or with both
Targets = dict[tuple[Frame, bool], _Targets]


def find_surfaces(
    f: Activation,
    truth: QuadratureTruth | GeneralTruth,
    outputs: tuple[str, ...],
    known: Targets | None = None,
    limits: Limits = USUAL,
    start: float = 0.0,
    slow: bool | None = None,
) -> dict[str, Surface]:
    """The polynomials of ``outputs``, in the frames where they cost least: one, or one for means, one for variances.

    Args:
        f: the activation.
        truth: its exact moments.
        outputs: which of them.
        known: of an earlier search for the same f; taken from, and added to.
        limits: what the rule asks for beyond the usual tolerance.
        start: the least v that they serve; above 0 where f has kinks.
        slow: whether in frames without a reach; None: as f asks for.

    Raises:
        BuildError: if no frame reaches the tolerance.
    """
    slow, known, cause = f.algebraic if slow is None else slow, {} if known is None else known, ""
    for end in (0.0, _END_OF_LOGARITHMS) if f.algebraic else (0.0,):
        search = _Search(f, truth, outputs, known, limits, start, slow, end)
        shared, *apart = (search.best(group) for group in groups_of(outputs))
        if all(apart) and (not shared or _cost(shared) > sum(map(_cost, apart)) + _FRAME):
            return {name: surface for found in apart for name, surface in found.items()}
        if shared:
            return shared
        cause = cause or search.why_none()
    raise BuildError(f.name, "strategies", cause, f.pieces)


def groups_of(outputs: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """Outputs that may share a frame: all, those of the mean, those of the variance."""
    return list(outputs), [n for n in outputs if of_mean(n)], [n for n in outputs if not of_mean(n)]


def _cost(found: Mapping[str, Surface]) -> int:
    return sum(surface.fit.terms for surface in found.values())


class _Search:
    """Over frames."""

    def __init__(
        self,
        f: Activation,
        truth: QuadratureTruth | GeneralTruth,
        outputs: tuple[str, ...],
        known: Targets,
        limits: Limits,
        start: float,
        slow: bool,
        end: float,
    ) -> None:
        self.f, self.truth, self.limits, self.start = f, truth, limits, start
        self.outputs, self.known = outputs, known
        self.targets: dict[Frame, dict[str, BivariateTarget]] = {}
        self.needed: dict[Frame, dict[str, int]] = {}
        self.fits: dict[tuple[Frame, str], Bivariate | None] = {}
        self.least_size = math.inf  # of a mean's coefficients
        if slow:
            for width, bend in itertools.product(_SLOW_WIDTHS, _SLOW_BENDS):
                c = float(np.float32(width * turning_of(f) ** 2))
                forms = [_PLAIN, _FADING, _OF_BOTH] if f.algebraic and "mean" in outputs else [_PLAIN]
                for roots, form in itertools.product(range(2 if end else 0, 3) if f.algebraic else [0], forms):
                    self.look(Frame(c, bend, _INFINITY, start, roots, *form, end))
            return
        self.end = end_of(f, _END * limits.small_mean, _END * limits.share_of_variance(f.span))
        for width in _WIDTHS:
            self.add(width)
        # Wider ones as long as they gain much: a bump of variance c is a polynomial in a frame of that c.
        groups = [group for group in groups_of(outputs) if group]
        while any(self.likely(group)[0].c == self.c(width) for group in groups) and width < _WIDEST:
            width *= _WIDER
            before = [self.terms(self.likely(group)[0], group) for group in groups]
            self.add(width)
            after = [self.terms(self.likely(group)[0], group) for group in groups]
            if not any(now < _GAIN * then for now, then in zip(after, before, strict=True)):
                self.needed = {frame: needed for frame, needed in self.needed.items() if frame.c != self.c(width)}

    def c(self, width: float) -> float:
        """The variance that a width, of the least w² in units of f's length, stands for."""
        return float(np.float32(width * self.f.length**2 - self.start))

    def add(self, width: float) -> None:
        """The frames of a width."""
        c = self.c(width)
        reach = float(np.float32(max(_NORMAL[steps(self.f)], self.end / math.sqrt(self.start + c))))
        for bend in _BENDS:
            self.look(Frame(c, bend, reach, self.start))

    def look(self, frame: Frame) -> None:
        """A frame, with what the outputs are to be fitted to and about how many terms it takes."""
        f, whole = self.f, replace(frame, fade=False)
        for even in {flip_of(f, name) != 0 for name in self.outputs}:
            if (whole, even) not in self.known:
                self.known[whole, even] = _Targets(f, whole, even, self.truth)
        known = {name: self.known[whole, flip_of(f, name) != 0] for name in self.outputs}
        self.targets[frame] = {name: each.of(name, self.limits, frame.fade) for name, each in known.items()}
        self.needed[frame] = {name: terms_needed(target) for name, target in self.targets[frame].items()}

    def likely(self, names: Sequence[str]) -> list[Frame]:
        """The frames, that first which seems to take the fewest terms for those outputs."""
        return sorted(self.needed, key=lambda frame: self.terms(frame, names))

    def terms(self, frame: Frame, names: Sequence[str]) -> int:
        """About how many terms those outputs take in a frame."""
        return sum(self.needed[frame][name] for name in names)

    def best(self, names: list[str]) -> dict[str, Surface]:
        """Those outputs in the frame, of the likeliest few, where they take the fewest terms; empty if none serves."""
        found: list[dict[str, Surface]] = []
        for tried, frame in enumerate(self.likely(names)[:_MORE_TRIED]):
            if found and tried >= _TRIED:
                break
            if surfaces := self.fitted(frame, names):
                found.append(surfaces)
        return min(found, key=_cost, default={})

    def fitted(self, frame: Frame, names: list[str]) -> dict[str, Surface]:
        """The polynomials in a frame; empty if one of them would take too many terms."""
        surfaces = {}
        for name in names:
            if (frame, name) not in self.fits:
                self.fits[frame, name] = fit_bivariate(self.targets[frame][name])
            fit = self.fits[frame, name]
            if fit is None or (name == "mean" and not self.is_held(fit)):
                return {}
            surfaces[name] = Surface(frame, fit, flip_of(self.f, name))
        return surfaces

    def is_held(self, fit: Bivariate) -> bool:
        """Whether float32 holds a mean's polynomial; all others are measured more generously."""
        self.least_size = min(self.least_size, fit.size)
        return fit.size * _UNIT <= _ROUNDED * MEAN

    def why_none(self) -> str:
        """What is wrong with all polynomials."""
        if _ROUNDED * MEAN < self.least_size * _UNIT < math.inf:
            size = f"{self.least_size:.3g}"
            return f"the mean's polynomial has coefficients of {size} in all, which float32 does not hold to {MEAN:g}"
        return f"no polynomial in two variables for {', '.join(self.outputs)} is within the tolerance"
