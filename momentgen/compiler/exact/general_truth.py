r"""The six outputs in float64 of any f that is smooth but for kinks: sums over z on panels that widen.

:mod:`momentgen.compiler.exact.smoothing` sums over fixed points of x and needs an f that soon is a line.  Here the
line of z = (x - mu)/sigma is cut at the kinks, at the centre, and at distances from them that grow threefold, so
that an f that varies over many decades (1/(1 + |x|), atan) is as well resolved as its density.  Sums are over
differences f(mu + sigma z) - f(mu); where sigma is small beside the distance to what bends, by power series
(:mod:`momentgen.compiler.exact.differences`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import sympy as sp
from flint import arb, ctx

from momentgen.compiler.exact.differences import NODES, PANELS, REACH, ActivationTruth, from_expectations
from momentgen.compiler.function.activation import Activation, Line
from momentgen.compiler.ir.stable import SIX
from momentgen.compiler.toolchain.arrays import F64, erfc
from momentgen.errors import BuildError
from momentgen.rule.symbols import Phi, S, phi, x

_SMALL = 0.95 / REACH  # of the distance to what bends: below this sigma power series converge on all that counts
_GROWTH = 3.0
_WIDE = 30.0  # lengths
_BITS = 640  # for what f is less its line, far out
_CHUNK, _PANELS_AT_ONCE = 4000, 8192
_SOFTPLUS = sp.Function("_softplus")


def _is_softplus(expr: sp.Expr) -> bool:
    """Whether it is log(1 + exp(g)): numpy's exponential overflows there where the logarithm does not."""
    return isinstance(expr, sp.log) and isinstance(expr.args[0] - 1, sp.exp)


def _softplus(z: F64) -> F64:
    return np.logaddexp(0.0, z)


@dataclass(frozen=True, eq=False)
class _Cuts:
    """Where the line of z is cut, for each of n points: shape (n, cuts), ascending.

    A wide sigma's panels are narrower than z tells apart, so that a cut is so far from an origin: a kink, the centre,
    or mu itself.

    Attributes:
        z: the cuts.
        away: each from its origin.
        origin: the number of that.
        at: the origins, shape (n, origins).
    """

    z: F64
    away: F64
    origin: npt.NDArray[np.int64]
    at: F64

    def panels(self) -> tuple[F64, F64, F64, npt.NDArray[np.int64]]:
        """For each panel an origin, its ends from there, between -REACH and REACH in z, and the origin's number."""
        left = np.abs(self.away[:, :-1]) <= np.abs(self.away[:, 1:])
        origin = np.where(left, self.origin[:, :-1], self.origin[:, 1:])
        at = np.take_along_axis(self.at, origin, 1)
        low, high = (
            np.where(self.origin[:, i] == origin, self.away[:, i], self.z[:, i] - at).clip(-REACH - at, REACH - at)
            for i in (slice(None, -1), slice(1, None))
        )
        return at, low, high, origin


class GeneralTruth(ActivationTruth):
    """The outputs, to some 1e-12 of their scales where float64 holds f that well."""

    def __init__(self, f: Activation) -> None:
        super().__init__(f)
        self.special = np.unique(np.array([f.centre, *f.kinks]))

    def outputs(self, mean: F64, var: F64, *, rests: bool = False) -> dict[str, F64]:
        """The outputs at float64 points, v > 0.

        With ``rests`` also ``mean_rest`` and ``var_rest``, mean and variance less those of the line on mu's side; the
        former to its own digits where sigma is small beside the distance to what bends.
        """
        result = {name: np.zeros(mean.shape) for name in (*SIX, "rise")}
        distance = np.abs(mean[:, None] - self.special).min(axis=1)
        small = np.sqrt(var) < _SMALL * np.maximum(self.f.length, distance)
        for chosen, part in ((small, self.differences.outputs), (~small, self._sums)):
            if chosen.any():
                for name, values in part(mean[chosen], var[chosen]).items():
                    result[name][chosen] = values
        rise = result.pop("rise")
        return result | self._rests(mean, var, rise, result["var"]) if rests else result

    def _rests(self, mean: F64, var: F64, rise: F64, whole: F64) -> dict[str, F64]:
        f = self.f
        if f.left is None or f.right is None:
            raise BuildError(f.name, "strategies", "expected f to follow a line on either side", f.pieces)
        on_left = mean < f.centre
        slope, offset = (np.where(on_left, getattr(f.left, n), getattr(f.right, n)) for n in ("slope", "offset"))
        gap = np.zeros(mean.shape)
        with ctx.workprec(_BITS):
            for piece in np.unique(home := f.homes(mean)).tolist():
                where = home == piece
                points = [arb(m) for m in mean[where].tolist()]
                lines = zip(points, slope[where].tolist(), offset[where].tolist(), strict=True)
                rests = zip(f.values(piece, points), lines, strict=True)
                gap[where] = [float(value - arb(a) * m - arb(b)) for value, (m, a, b) in rests]
        return {"mean_rest": gap + rise, "var_rest": whole - slope**2 * var}

    @cached_property
    def line(self) -> Line | None:
        """The line that f nears on either side, if it is the same."""
        return self.f.left if self.f.left == self.f.right else None

    @cached_property
    def _branches(self) -> list[Callable[[F64], F64]]:
        known = [{"erfc": erfc, "erf": np.vectorize(math.erf, otypes=[float]), "_softplus": _softplus}, "numpy"]
        branches = []
        for piece in self.f.pieces:
            expr = piece.expr if self.line is None else piece.expr - self.line.slope * x - self.line.offset
            expr = expr.replace(S, lambda z: (1 + sp.tanh(z / 2)) / 2)
            expr = expr.replace(Phi, lambda z: sp.erfc(-z / sp.sqrt(2)) / 2)
            expr = expr.replace(phi, lambda z: sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi))
            expr = expr.replace(_is_softplus, lambda e: _SOFTPLUS((e.args[0] - 1).args[0]))
            branches.append(sp.lambdify(x, expr, known))
        return branches

    def beside_line(self, points: F64) -> F64:
        """f in float64, less the line that it nears on either side."""
        home = self.f.homes(points)
        result = np.zeros(points.shape)
        with np.errstate(all="ignore"):
            for i, branch in enumerate(self._branches):
                if len(self._branches) == 1:
                    return np.broadcast_to(np.asarray(branch(points), np.float64), points.shape)
                here = home == i
                if here.any():
                    result[here] = branch(points[here])
        return result

    # --- panels ------------------------------------------------------------------
    def groups(self, mean: F64, var: F64) -> Iterator[tuple[npt.NDArray[np.int64], _Cuts]]:
        """Points of similar sigma/length, and where the line of z is cut for them."""
        sigma = np.sqrt(var)
        level = np.floor(np.log2(self.f.length / sigma)).astype(np.int64)
        even = np.linspace(-REACH, REACH, PANELS + 1)
        for one in np.unique(level):
            index = np.flatnonzero(level == one)
            steps = [0.0]
            step = 2.0**one
            while step < 2 * REACH:
                steps = [-step, *steps, step]
                step *= _GROWTH
            away = np.concatenate([np.tile(steps, self.special.size), even])
            origin = np.repeat(np.arange(self.special.size + 1), [*[len(steps)] * self.special.size, even.size])
            for start in range(0, index.size, _CHUNK):
                part = index[start : start + _CHUNK]
                at = (self.special[None, :] - mean[part][:, None]) / sigma[part][:, None]
                at = np.concatenate([at, np.zeros((part.size, 1))], axis=1)
                z = at[:, origin] + away
                order = np.argsort(z, axis=1, kind="stable")  # of one origin, cuts that round alike keep their order
                yield part, _Cuts(np.take_along_axis(z, order, 1), away[order], origin[order], at)

    def expectations(self, mean: F64, var: F64, terms: Callable[[F64, F64, npt.NDArray[np.int64]], list[F64]]) -> F64:
        """E of each of ``terms(points, z, index)``: shape (terms, n).

        Args:
            mean, var: shape (n,).
            terms: of x and z, both (m, nodes), and of the indices (m,) of the points that they belong to.
        """
        sums: F64 | None = None
        for part, cuts in self.groups(mean, var):
            mu, sigma = mean[part], np.sqrt(var[part])
            at, low, high, origin = cuts.panels()
            half = (high - low) / 2
            from_where = np.append(self.special, 0.0)[origin] + np.where(origin == self.special.size, mu[:, None], 0.0)
            together = max(1, _PANELS_AT_ONCE // part.size)
            for start in range(0, half.shape[1], together):
                here = np.zeros(half.shape, np.bool_)
                here[:, start : start + together] = half[:, start : start + together] > 0
                point = np.nonzero(here)[0]
                away = ((low + high) / 2)[here][:, None] + half[here][:, None] * NODES[0]
                z = at[here][:, None] + away
                weight = half[here][:, None] * NODES[1] * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
                rows = terms(from_where[here][:, None] + sigma[point][:, None] * away, z, part[point])
                if sums is None:
                    sums = np.zeros((len(rows), mean.size))
                for row, term in zip(sums, rows, strict=True):
                    np.add.at(row, part[point], (weight * term).sum(axis=1))
        return np.zeros((0, mean.size)) if sums is None else sums

    def _sums(self, mean: F64, var: F64) -> dict[str, F64]:
        sigma, rest = np.sqrt(var), self.beside_line(mean)
        slope, offset, here = 0.0, 0.0, rest
        if self.line is not None:  # of a wide sigma the rest at mu is nearly all of what the differences would be
            slope, offset = self.line.slope, self.line.offset
            here = np.where(sigma > _WIDE * self.f.length, 0.0, here)

        def terms(points: F64, z: F64, index: npt.NDArray[np.int64]) -> list[F64]:
            # Apart from the line, whose odd moments are zero and would only leave their rounding.
            r, line, h = self.beside_line(points) - here[index][:, None], slope * sigma[index][:, None] * z, z * z - 1
            d = r + line
            return [r, d * d, d * z, r * h, r * (d + line) * z, d * d * h]

        found = from_expectations(slope * mean + offset + here, self.expectations(mean, var, terms), sigma, var)
        return found | {"rise": found["rise"] + (here - rest)}
