"""In which frame the polynomials of a smooth activation take the fewest terms in float32: of a few c and kappa."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from momentgen.compiler.exact.general_truth import GeneralTruth
from momentgen.compiler.exact.piecewise_truth import QuadratureTruth
from momentgen.compiler.fit.bivariate import Bivariate, BivariateTarget, fit_bivariate, terms_needed
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.measure.moments import MEAN, USUAL, Limits
from momentgen.compiler.strategies.surfaces.surface import (
    FITTED,
    INFINITY,
    Frame,
    FrameTargets,
    Surface,
    end_of,
    flip_of,
    of_mean,
    steps,
    turning_of,
)
from momentgen.errors import BuildError

_END = 0.12  # of the tolerance, for what lies beyond the reach
_WIDTHS, _BENDS = (0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0), (2.5, 3.0, 3.5)  # c in units of length², kappa
_WIDER, _WIDEST, _GAIN = 1.35, 40.0, 0.9  # beyond them, as long as each takes so many times the terms
#: |t| at which a normal distribution has reached 1e-8, and its first moment 1e-11
_NORMAL = {False: 5.5, True: 6.25}
#: the same of 3e-7: where the least variance is not 0, what bends at the end is felt so far beyond it
_NORMAL_AT_START = 5.0
_TRIED, _MORE_TRIED = 2, 12  # how many frames are fitted, and how many at most where none of these serves
#: the rounding of 1, and how many times the tolerance the sum of all that coefficients lose may be
_UNIT, _ROUNDED = 2.0**-24, 10.0
_FRAME = 40  # what another frame costs, in terms: two square roots and two reciprocals above all
#: of frames without a reach: c in units of length², and kappa
_SLOW_WIDTHS, _SLOW_BENDS = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0), (2.5, 3.5)
_PLAIN, _FADING, _OF_BOTH = (False, False), (True, False), (False, True)  # whether they fade, or are of both powers
_END_OF_LOGARITHMS = 0.06  # of the second variable, where a partial falls as a logarithm times a power of r

#: exact outputs over the nodes of a frame, with even powers of z or with both
Targets = dict[tuple[Frame, bool], FrameTargets]


def find_surfaces(
    f: Activation,
    truth: QuadratureTruth | GeneralTruth,
    outputs: tuple[str, ...],
    known: Targets | None = None,
    limits: Limits = USUAL,
    start: float = 0.0,
    stop: float = math.inf,
) -> dict[str, Surface]:
    """The polynomials of ``outputs``, in the frames where they cost least: one, or one for means, one for variances.

    Args:
        known: of an earlier search for the same f; taken from, and added to.
        limits: what the rule asks for beyond the usual tolerance.
        start: the least v that they serve; above 0 where f has kinks.
        stop: the largest v, of an f that nears its lines slowly.

    Raises:
        BuildError: if no frame reaches the tolerance.
    """
    known, cause = {} if known is None else known, ""
    for end in (0.0, _END_OF_LOGARITHMS) if f.algebraic and stop == math.inf else (0.0,):
        search = _Search(f, truth, outputs, known, limits, start, end, stop)
        shared, *apart = (search.best(group) for group in groups_of(outputs))
        if all(apart) and (not shared or _cost(shared) > sum(map(_cost, apart)) + _FRAME):
            return {name: surface for found in apart for name, surface in found.items()}
        if shared:
            return shared
        cause = cause or search.why_none()
    raise BuildError(f.name, "strategies", cause, f.pieces)


def find_by_graph(
    f: Activation,
    truth: QuadratureTruth | GeneralTruth,
    graphs: Mapping[str, tuple[str, ...]],
    limits: Limits = USUAL,
    start: float = 0.0,
    stop: float = math.inf,
) -> dict[str, Mapping[str, Surface]]:
    """:func:`find_surfaces` for each graph, of the outputs that it has.

    Raises:
        BuildError: if no frame reaches the tolerance.
    """
    known: Targets = {}
    return {name: find_surfaces(f, truth, outputs, known, limits, start, stop) for name, outputs in graphs.items()}


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
        end: float,
        stop: float,
    ) -> None:
        self.f, self.truth, self.limits, self.start = f, truth, limits, start
        self.outputs, self.known, self.stop = outputs, known, stop
        self.targets: dict[Frame, dict[str, BivariateTarget]] = {}
        self.needed: dict[Frame, dict[str, int]] = {}
        self.fits: dict[tuple[Frame, str], Bivariate | None] = {}
        self.least_size = math.inf  # of a mean's coefficients
        if f.algebraic:
            for width, bend in itertools.product(_SLOW_WIDTHS, _SLOW_BENDS):
                c = float(np.float32(width * turning_of(f) ** 2))
                forms = [_PLAIN, _FADING, _OF_BOTH] if "mean" in outputs else [_PLAIN]
                for roots, form in itertools.product(range(2 if end else 0, 3), forms):
                    least = end or ((start + c) / (stop + c)) ** (1 / (2 << roots))
                    self.look(Frame(c, bend, INFINITY, start, roots, *form, least))
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
        c, normal = self.c(width), _NORMAL[steps(self.f)]
        end = self.end + _NORMAL_AT_START * math.sqrt(self.start)
        reach = float(np.float32(max(normal, end / math.sqrt(self.start + c))))
        for bend in _BENDS:
            self.look(Frame(c, bend, reach, self.start))

    def look(self, frame: Frame) -> None:
        """A frame, with what the outputs are to be fitted to and about how many terms it takes."""
        f, whole = self.f, replace(frame, fade=False)
        for even in {flip_of(f, name) != 0 for name in self.outputs}:
            if (whole, even) not in self.known:
                self.known[whole, even] = FrameTargets(f, whole, even, self.truth)
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
            if fit is None or not self.is_held(name, fit, self.targets[frame][name]):
                return {}
            surfaces[name] = Surface(frame, fit, flip_of(self.f, name))
        return surfaces

    def is_held(self, name: str, fit: Bivariate, target: BivariateTarget) -> bool:
        """Whether float32 holds a polynomial; of a smooth f only a mean's is in doubt."""
        if name != "mean":
            return not self.start or fit.size * _UNIT * FITTED * float(target.weight.max()) <= _ROUNDED
        self.least_size = min(self.least_size, fit.size)
        return fit.size * _UNIT <= (_ROUNDED / 2 if self.stop < math.inf else _ROUNDED) * MEAN

    def why_none(self) -> str:
        """What is wrong with all polynomials."""
        if _ROUNDED * MEAN < self.least_size * _UNIT < math.inf:
            size = f"{self.least_size:.3g}"
            return f"the mean's polynomial has coefficients of {size} in all, which float32 does not hold to {MEAN:g}"
        return f"no polynomial in two variables for {', '.join(self.outputs)} is within the tolerance"
