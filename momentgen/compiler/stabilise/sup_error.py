r"""Proofs: how far, at most, a sum of atoms is from the activation it stands for, over all of R.

With e = f - g, g a line and atoms (:mod:`momentgen.compiler.approximate.atoms`), and a bound on |e|, |e'| and |e''|,

    |E f - E g| <= sup|e|,   |sqrt Var f - sqrt Var g| <= min(sup|e|, sqrt v sup|e'|)   for every mu and v

(Minkowski, Poincaré).  Nothing is sampled:

1. *The middle* is cut into panels, halved until what a Taylor polynomial of degree ``_DEGREE`` leaves out is small
   beside the error looked for.  That is bounded for f by Cauchy's estimate, from f over complex balls that cover a disc
   of four times the panel's size (a ball that reaches a pole or a branch cut is not finite: the panel is halved), for
   atoms by Cramér's inequality |He_n(h)| exp(-h²/4) <= 1.0865 sqrt(n!).  Its coefficients are real balls.
2. *A polynomial* of degree n nowhere exceeds its largest value at m > n Chebyshev nodes by more than the factor
   1/cos(n pi/2m) (Ehlich and Zeller 1964), here 1.005: no branch and bound, and float64 with its rounding counted.
3. *Beyond*, f is enclosed by :mod:`momentgen.compiler.oracle.infinity`, and atoms are powers of u but for
   exp(-h²/2) T_n(0), n <= 0, or what Cramér leaves.

The coefficients of g are float64 numbers, and so are the slopes of its lines: where they do not add up to the last bit
|e| grows without end, by 1e-17 |x|.  That is stated apart, as ``drift``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from flint import acb, arb, ctx, fmpq

from momentgen.compiler.oracle.balls import compile_analytic
from momentgen.compiler.oracle.infinity import enclose_tail
from momentgen.compiler.stabilise.activation import Activation
from momentgen.compiler.stabilise.atom_balls import (
    AtomGroup,
    Number,
    add_powers,
    atom_series,
    beyond,
    cramer,
    exact,
    orders,
)
from momentgen.errors import BuildError

__all__ = ["Difference", "SupError", "prove_sup_error"]

F64 = npt.NDArray[np.float64]
_DEGREE = 31  # at 27 erf, whose second derivative is known to 1e-9, took panels without end
_COUNT = _DEGREE + 1
_NODES = 16 * _COUNT
_NORM = 1 / math.cos(_DEGREE * math.pi / (2 * _NODES)) * (1 + 1e-9)  # the nodes' own rounding is far below 1e-9
_DISC = 4  # radius of the disc of Cauchy's estimate over that of the panel
_LEFT_OUT = 1e-3  # by a panel's polynomial, of the error looked for
_DEPTH = 4  # how often the square around a disc is quartered
_PANELS = 6000
_BITS = 192
_BOX_BITS = 96
_TAIL = 11.0  # h of the widest atom at the end of the middle: exp(-h²/4) = 7e-14
_WIDER = 24  # times the middle is doubled for tails that are not small yet
_SPREAD = 0.1  # of a panel's distance from 0 where relative errors are asked for
_DRIFT = 1e-13  # more is no rounding
_DERIVATIVES = 3
_INVERSE = tuple(fmpq(1, math.factorial(k)) for k in range(_COUNT))


@dataclass(frozen=True)
class Difference:
    """e = f - slope x - offset - atoms, f smooth; ``f`` None stands for 0.

    Attributes:
        name: of the rule, for messages.
        f: the activation.
        slope, offset: of g's line at -oo.
        groups: the atoms.
        scales: |e|, |e'| and |e''| as measured: what the proof should come near to.
        middle, length: where e lives, and on what length it bends.
        relative: whether |e|/max(1, |f|) is asked for as well.
    """

    name: str
    f: Activation | None
    slope: Number
    offset: Number
    groups: tuple[AtomGroup, ...]
    scales: tuple[float, float, float]
    middle: float
    length: float
    relative: bool = False


@dataclass(frozen=True)
class SupError:
    """Proven: |e^(j)(x)| <= bounds[j] + (drift |x - middle| if j = 0) for all real x, j = 0, 1, 2.

    Attributes:
        bounds: of e, e' and e''.
        reached: values that |e|, |e'| and |e''| certainly take.
        drift: see the module's docstring; 0 where slopes add up.
        relative: a bound of |e|/max(1, |f|); that of |e| where it was not asked for.
        panels: how many the proof took.
    """

    bounds: tuple[float, float, float]
    reached: tuple[float, float, float]
    drift: float
    relative: float
    panels: int


def prove_sup_error(e: Difference) -> SupError:
    """Bounds of |e|, |e'| and |e''| over all of R.

    Raises:
        BuildError: stage ``approximate``: if f's tails are not enclosed, f and g follow different lines, or a panel
            stays without a bound.

    Two steps of almost the same variance, Phi(x) and Phi(x/sqrt(1.001)), differ by 1.20925e-4 at the most:

    >>> steps = AtomGroup(0.0, 1.0, 0, (1.0,)), AtomGroup(0.0, 1.001, 0, (-1.0,))
    >>> e = Difference("steps", None, 0.0, 0.0, steps, (1e-4, 1e-4, 1e-4), 0.0, 1.0)
    >>> proven = prove_sup_error(e)
    >>> proven.reached[0] <= 1.20925e-4 <= proven.bounds[0] <= 1.005 * 1.20925e-4
    True
    """
    with ctx.workprec(_BITS):
        ends, left, right = _tails(e)
        proof = _Middle(e)
        bounds, reached, relative = proof.bounds(e.middle - ends, e.middle + ends)
    largest = [max(of) for of in zip(bounds, left.sizes, right.sizes, strict=True)]
    relative = max(relative, left.relative, right.relative) if e.relative else largest[0]
    return SupError(_three(largest), _three(reached), max(left.drift, right.drift), relative, proof.panels)


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    first, second, third = values
    return float(first), float(second), float(third)


def _up(value: arb) -> float:
    """A float that is not below any number of the ball."""
    return math.nextafter(float(value.upper()), math.inf)


# --- beyond the middle ------------------------------------------------------------
@dataclass(frozen=True)
class _Beyond:
    """Bounds over one tail."""

    sizes: tuple[float, float, float]
    drift: float
    relative: float


def _tails(e: Difference) -> tuple[float, _Beyond, _Beyond]:
    """Where the middle ends, |x - e.middle|, and the bounds beyond."""
    far = [_TAIL * math.sqrt(g.tau) + _up(abs(arb(g.centre) - arb(e.middle))) for g in e.groups]
    ends = max([*far, 8 * e.length, 2 * abs(e.middle)])
    cause: BuildError | None = None
    for _ in range(_WIDER):
        try:
            left, right = (_tail(e, ends, side) for side in (-1, 1))
        except BuildError as error:
            cause = error
        else:
            bounds = [max(of) for of in zip(left.sizes, right.sizes, strict=True)]
            if all(b <= scale / 2 for b, scale in zip(bounds, e.scales, strict=True)):
                return ends, left, right
            shown = ", ".join(f"{b:.3g}" for b in bounds)
            cause = BuildError(
                e.name, "approximate", f"expected f and its surrogate to be one beyond |x| = {ends:.3g}, got {shown}"
            )
        ends *= 2
    raise cause or BuildError(e.name, "approximate", "no tail was looked at")


def _tail(e: Difference, ends: float, side: int) -> _Beyond:
    """Bounds of |e^(j)| beyond ``ends`` on one side, and the drift there."""
    start = (ends + side * e.middle) * (1 - 1e-15)  # |x| from here on
    # e less its tail is a polynomial in x, quadratic at most, that must vanish but for the drift.
    powers: list[fmpq | arb] = [-exact(e.offset), -exact(e.slope), fmpq(0)]
    sizes = [arb(0) for _ in range(_DERIVATIVES)]
    for group in e.groups:
        u = (arb(ends) - abs(arb(group.centre) - arb(e.middle))) * (1 - arb(2) ** -50)
        if side > 0:
            add_powers(powers, group)
        for j in range(_DERIVATIVES):
            sizes[j] += sum((abs(c) * beyond(n + j, group.tau, u) for n, c in orders(group)), arb(0))
    least = arb(1)  # of max(1, |f|)
    if e.f is not None:
        expr = e.f.pieces.pieces[0].expr
        slope, offset, size = enclose_tail(expr, start, side, e.name, bits=_BITS).line()
        powers = [powers[0] + offset, powers[1] + side * slope, powers[2]]
        least = (abs(slope) * start - abs(offset) - size).max(least)
        sizes[0] += size
        for j in (1, 2):
            steep, level, size = enclose_tail(expr, start, side, e.name, j, bits=_BITS).line()
            expected = side * slope if j == 1 else arb(0)
            if not (steep == 0 and (level - expected).contains(0)):
                raise BuildError(e.name, "approximate", f"expected derivative {j} of f to near that of its line", expr)
            sizes[j] += size + abs(level - expected)
    offset, slope, curve = map(arb, powers)
    drift = abs(slope)
    if not (curve == 0 and drift <= _DRIFT):
        cause = f"expected f and its surrogate to follow one line for x -> {'' if side > 0 else '-'}oo, but they part"
        raise BuildError(e.name, "approximate", f"{cause} by {curve.str(3)} x² + {slope.str(3)} x")
    sizes[0] += abs(offset) + drift * abs(arb(e.middle))
    sizes[1] += drift
    relative = (sizes[0] + drift * start) / least
    return _Beyond(_three([_up(size) for size in sizes]), _up(drift) if drift > 0 else 0.0, _up(relative))


# --- the middle -------------------------------------------------------------------
class _Middle:
    """Panels over a finite interval."""

    def __init__(self, e: Difference) -> None:
        self.e = e
        self.panels = 0
        self.off = [
            [sum((abs(c) * cramer(n + k, g.tau) for n, c in orders(g)), arb(0)) * w for k, w in enumerate(_INVERSE)]
            for g in e.groups
        ]
        #: sum over a group's orders of |c_n| sup|T_(n + _COUNT)| exp(h²/4)/_COUNT!
        self.leftover = [
            _up(sum((abs(c) * cramer(n + _COUNT, g.tau) for n, c in orders(g)), arb(0)) / math.factorial(_COUNT))
            for g in e.groups
        ]
        self.centres = [float(arb(g.centre).mid()) for g in e.groups]
        self.boxes: Callable[[acb, bool], acb] | None = None
        if e.f is not None:
            self.boxes = compile_analytic(e.f.pieces.pieces[0].expr)

    def bounds(self, low: float, high: float) -> tuple[list[float], list[float], float]:
        """Proven bounds of |e|, |e'|, |e''| on [low, high], values reached, and a bound of |e|/max(1, |f|)."""
        rows: list[F64] = []
        extra: list[tuple[float, ...]] = []
        radii: list[float] = []
        least: list[float] = []
        waiting = [(low, self.e.middle), (self.e.middle, high)]
        while waiting:
            a, b = waiting.pop()
            centre, radius = (a + b) / 2, (b - a) / 2 * (1 + 2e-16) + abs(a + b) * 2e-16  # covers [a, b]
            self.panels += 1
            if self.panels > _PANELS:
                place = f"[{a:.6g}, {b:.6g}]"
                cause = f"expected at most {_PANELS} panels; on {place} the proof still leaves out too much"
                raise BuildError(self.e.name, "approximate", cause)
            left = None if self.too_wide(a, b) else self.left_out(centre, radius)
            if left is None:
                waiting += [(a, (a + b) / 2), ((a + b) / 2, b)]
                continue
            row, dust = self.coefficients(centre, radius)
            rows.append(row)
            radii.append(radius)
            extra.append(tuple(x + dust * _COUNT**j / radius**j for j, x in enumerate(left)))
            least.append(self.least(centre, radius))
        bounds, reached = self.largest(np.array(rows), np.array(extra), np.array(radii))
        relative = float((bounds[0] / np.array(least)).max() * (1 + 1e-15))
        return [float(b.max()) for b in bounds], [float(r.max()) for r in reached], relative

    def too_wide(self, a: float, b: float) -> bool:
        """Whether f varies much over a panel, which matters to relative errors alone."""
        inner = min(abs(a), abs(b)) if a * b > 0 else 0.0
        return self.e.relative and inner > 4 * self.e.length and b - a > _SPREAD * inner

    def least(self, centre: float, radius: float) -> float:
        """Of max(1, |f|) on a panel."""
        if self.e.f is None or not self.e.relative:
            return 1.0
        try:
            (value,) = self.e.f.series[0].coefficients(arb(centre, radius), 1)
        except (ValueError, ZeroDivisionError):  # a divisor that may be 0 in so wide a ball: nothing is known of |f|
            return 1.0
        return max(1.0, math.nextafter(float(abs(value).lower()), 0.0))

    def left_out(self, centre: float, radius: float) -> tuple[float, ...] | None:
        """By the Taylor polynomial, of e, e' and e''; None where that is too much."""
        allowed = [_LEFT_OUT * scale for scale in self.e.scales]
        by_atoms = 0.0
        for group, at, size in zip(self.e.groups, self.centres, self.leftover, strict=True):
            h = max(abs(centre - at) - radius, 0.0) * (1 - 1e-12) / math.sqrt(group.tau)
            by_atoms += size * math.exp(-h * h / 4 * (1 - 1e-12))
        # Lagrange's remainder of the j-th derivative: _COUNT!/(_COUNT - j)! e^(_COUNT)/_COUNT! r^(_COUNT - j).
        try:
            atoms = [by_atoms * radius**_COUNT * (_COUNT / radius) ** j * (1 + 1e-9) for j in range(_DERIVATIVES)]
        except OverflowError:  # of so wide a panel
            return None
        if any(a > b / 2 for a, b in zip(atoms, allowed, strict=True)):
            return None
        if self.boxes is None:
            return tuple(atoms)
        # Sum over k >= N of k^j q^k <= N^j q^N (1 + q)/(1 - q)^3, q = 1/_DISC.
        q = 1 / _DISC
        share = q**_COUNT * (1 + q) / (1 - q) ** 3 * (1 + 1e-9)
        most = min(b / 2 / share * (radius / _COUNT) ** j for j, b in enumerate(allowed))
        largest = self.over_disc(centre, radius * _DISC, most)
        if largest is None:
            return None
        return tuple(a + largest * share * (_COUNT / radius) ** j for j, a in enumerate(atoms))

    def over_disc(self, centre: float, radius: float, most: float) -> float | None:
        """A bound of |f - line| over a disc of C; None where none is found below ``most``."""
        f = self.e.f
        if f is None or self.boxes is None:
            return 0.0
        line = f.left if centre < f.centre else f.right
        if line is None:
            raise BuildError(f.name, "approximate", "expected f to follow a line on either side", f.pieces)
        with ctx.workprec(_BOX_BITS):
            slope, offset, m, rho = arb(line.slope), arb(line.offset), arb(centre), arb(radius)
            # The upper half is enough: f is real on the real line.
            waiting = [(-0.5, 0.5, 0.5, 0), (0.5, 0.5, 0.5, 0)]
            largest = 0.0
            while waiting:
                at, height, half, depth = waiting.pop()
                if math.hypot(max(abs(at) - half, 0.0), max(height - half, 0.0)) > 1.0:
                    continue
                z = acb(m + rho * arb(at, half), rho * arb(height, half))
                size = abs(self.boxes(z, True) - slope * z - offset)
                bound = _up(size) if size.is_finite() else math.inf
                if bound <= most:
                    largest = max(largest, bound)
                    continue
                if depth == _DEPTH:
                    return None
                quarter = half / 2
                turns = ((-1, -1), (-1, 1), (1, -1), (1, 1))
                waiting += [(at + i * quarter, height + k * quarter, quarter, depth + 1) for i, k in turns]
        return largest

    def coefficients(self, centre: float, radius: float) -> tuple[F64, float]:
        """Of e's Taylor polynomial in (x - centre)/radius, and a bound on the sum of what their balls are off by."""
        bits = _BITS
        while True:
            with ctx.workprec(bits):
                balls = self.taylor(arb(centre))
                power, row, dust = arb(1), [], 0.0
                for ball in balls:
                    scaled = ball * power
                    row.append(float(scaled.mid()))
                    dust += _up(abs(scaled - arb(row[-1])))
                    power *= radius
            if dust <= _LEFT_OUT * self.e.scales[0] / _COUNT**2:
                return np.array(row), dust
            bits *= 2
            if bits > 16 * _BITS:
                cause = f"expected a power series of f at {centre:.6g}, whose balls are still {dust:.3g} wide"
                raise BuildError(self.e.name, "approximate", cause)

    def taylor(self, at: arb) -> list[arb]:
        """e^(k)(at)/k!, k < _COUNT."""
        e = self.e
        total = [arb(0)] * _COUNT if e.f is None else e.f.series[0].coefficients(at, _COUNT)
        total[0] -= arb(e.slope) * at + arb(e.offset)
        total[1] -= arb(e.slope)
        for group, off in zip(e.groups, self.off, strict=True):
            for k, value in enumerate(atom_series(group, at, off)):
                total[k] -= value
        return total

    def largest(self, rows: F64, extra: F64, radii: F64) -> tuple[list[F64], list[F64]]:
        """Bounds and values reached on each panel, from the polynomials' values at Chebyshev nodes."""
        bounds, reached = [], []
        powers = _node_powers()
        for j in range(_DERIVATIVES):
            falling = np.array([math.perm(k, j) for k in range(j, _COUNT)], float)
            inner = rows[:, j:] * falling / radii[:, None] ** j
            values = np.abs(np.einsum("ij,jk->ik", inner, powers[: _COUNT - j]))
            rounding = np.abs(inner).sum(axis=1) * (4 * _COUNT * 2.0**-53)
            off = rounding + extra[:, j]
            bounds.append((values.max(axis=1) + rounding) * _NORM + off)
            reached.append(np.maximum(values.max(axis=1) - off, 0.0))
        return bounds, reached


@lru_cache
def _node_powers() -> F64:
    nodes = np.cos((2 * np.arange(_NODES) + 1) * math.pi / (2 * _NODES))
    return np.asarray(nodes[None, :] ** np.arange(_COUNT)[:, None])
