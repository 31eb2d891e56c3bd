r"""The six outputs exactly: in float64 for many points, by balls of 256 bits for the decisive ones.

:class:`QuadratureTruth` screens; :class:`BallTruth` shares nothing with it but f itself, and what it gives is what a
certificate's figures are confirmed by.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
from flint import arb, arb_mat, ctx

from momentgen.compiler.exact.differences import ActivationTruth, from_expectations
from momentgen.compiler.exact.smoothing import SMALL, Side
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.stable import SIX
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.rule.symbols import x

_RESTS = ("mean_rest", "var_rest")
_ODD = ("dmean_dmu", "dvar_dmu")  # change sign with the direction of u


class QuadratureTruth(ActivationTruth):
    """The outputs of an f that follows a line on either side, in float64, to some 1e-13 of their scales."""

    def __init__(self, f: Activation) -> None:
        super().__init__(f)
        self.sides = {1: Side(f, 1), -1: Side(f, -1)}

    def outputs(self, mean: F64, var: F64, *, rests: bool = False) -> dict[str, F64]:
        """The outputs at float64 points, v > 0.

        With ``rests`` also ``mean_rest`` and ``var_rest``, mean and variance less those of the line on mu's side.
        """
        result = {name: np.zeros(mean.shape) for name in (*SIX, *(_RESTS if rests else ()))}
        small = np.sqrt(var) < SMALL * self.f.length
        right = mean >= self.f.centre
        for sign in (1, -1):
            for little in (True, False):
                chosen = (right == (sign < 0)) & (small == little) & (var > 0)
                if chosen.any():
                    part = self.side_outputs(sign, mean[chosen], var[chosen], little)
                    for name, values in result.items():
                        values[chosen] = part[name]
        return result

    def side_outputs(self, sign: int, mean: F64, var: F64, little: bool) -> dict[str, F64]:
        """At points on one side of the centre, all with sigma small or all not."""
        side = self.sides[sign]
        u, near = sign * (mean - self.f.centre), side.near
        out: dict[str, F64] = {}
        if little and not side.smooth:
            found = self.differences.outputs(mean, var)
            line = near.slope * u + near.offset
            return found | {"mean_rest": found["mean"] - line, "var_rest": found["var"] - near.slope**2 * var}
        if little:
            d = side.small(u, var)
            out["mean_rest"], out["var_rest"] = d[0], var * d[1] * (2 * near.slope + d[1])
            d[1] += near.slope
            terms = [np.ones_like(var)]
            for k in range(1, len(d)):
                terms.append(terms[-1] * var / k)
            top = len(d) - 3
            out["mean"] = d[0] + near.slope * u + near.offset
            out["var"] = sum(terms[k] * d[k] ** 2 for k in range(1, top + 1))
            out["var_rest"] = out["var_rest"] + sum(terms[k] * d[k] ** 2 for k in range(2, top + 1))
            out["dmean_dmu"], out["dmean_dvar"] = d[1], d[2] / 2
            out["dvar_dmu"] = sum(2 * terms[k] * d[k] * d[k + 1] for k in range(1, top + 1))
            out["dvar_dvar"] = sum(terms[k] * d[k + 1] ** 2 for k in range(top + 1)) + sum(
                terms[k] * d[k] * d[k + 2] for k in range(1, top + 1)
            )
        else:
            m, b = side.moments(u, var)
            s = near.slope
            out["mean"] = m[0] + s * u + near.offset
            out["mean_rest"], out["var_rest"] = m[0], 2 * s * var * m[1] + b[0] - m[0] ** 2
            out["var"] = s * s * var + 2 * s * var * m[1] + b[0] - m[0] ** 2
            out["dmean_dmu"], out["dmean_dvar"] = s + m[1], m[2] / 2
            out["dvar_dmu"] = 2 * s * var * m[2] + b[1] - 2 * m[0] * m[1]
            out["dvar_dvar"] = s * s + 2 * s * m[1] + s * var * m[3] + b[2] / 2 - m[0] * m[2]
        if sign < 0:
            for name in _ODD:
                out[name] = -out[name]
        return out


class BallTruth:
    """The outputs by balls, Gauss-Legendre panels cut at the kinks and where f bends; some milliseconds a point.

    Variances come from differences f(x) - f(mu), partials from the score of the normal density.  The radius of a ball
    holds the rounding; the error of the panels, below 1e-20 of the scales, is beyond it.
    """

    _BITS = 256
    _ENDS, _WIDTH = 14, 2  # standard deviations; beyond the ends less than 1e-43
    _CUTS = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)

    def __init__(self, f: Activation) -> None:
        self.f, self._known = f, _known_of(f)

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        rows = [self.at(float(m), float(v)) for m, v in zip(mean, var, strict=True)]
        return {name: np.array([float(row[name]) for row in rows]) for name in SIX}

    def at(self, mean: float, var: float) -> dict[str, arb]:
        """The outputs at one point, v > 0.

        Raises:
            ValueError: for v <= 0.
        """
        if not var > 0:
            raise ValueError(f"expected v > 0, got {var}")
        if (mean, var) not in self._known:
            self._known[mean, var] = self._find(mean, var)
        return self._known[mean, var]

    def _find(self, mean: float, var: float) -> dict[str, arb]:
        f = self.f
        with ctx.workprec(self._BITS):
            mu, v = arb(mean), arb(var)
            sigma = v.sqrt()
            (here,) = f.values(f.home(mean), [mu])
            sums = arb_mat(2, 3)
            for low, high in pairwise(self._panels(mu, sigma)):
                # In z: mu + sigma z may round to a kink.
                middle = (high + low) / 2
                home = sum(bool((arb(kink) - mu) / sigma < middle) for kink in f.kinks)
                nodes, weights = _nodes_between(low, high)
                gaps = [there - here for there in f.values(home, [mu + sigma * z for z in nodes])]
                sums += arb_mat([gaps, [d * d for d in gaps]]) * weights
            root = (2 * arb.pi()).sqrt()
            one, first, second, two, square1, square2 = (s / root for s in sums.entries())
            return from_expectations(here, (one, two, first, second, square1, square2), sigma, v)

    def _panels(self, mu: arb, sigma: arb) -> list[arb]:
        """Ends of the panels, in z; a polynomial bends nowhere."""
        f, end = self.f, self._ENDS
        points = [arb(k) for k in f.kinks]
        steps = [] if all(p.expr.is_polynomial(x) for p in f.pieces) else list(self._CUTS)
        while steps and f.algebraic and steps[-1] * f.length < 2 * end * float(sigma):
            steps.append(1.5 * steps[-1])
        points += [arb(c) + side * f.length * d for c in {f.centre, *f.kinks} for side in (-1, 1) for d in (0, *steps)]
        inside = [z for p in points if abs(z := (p - mu) / sigma) < end]
        cuts = sorted([*(arb(k) for k in range(-end, end + 1, self._WIDTH)), *inside], key=float)
        return [a for a, b in zip(cuts, [*cuts[1:], arb(end + 1)], strict=True) if float(b - a) > 0]


def _nodes_between(low: arb, high: arb) -> tuple[list[arb], arb_mat]:
    """The nodes z of a panel, and in a row for each 1, z and z² - 1 times its weight.

    The weight has the normal density in it, all but its factor.
    """
    whole = (int(float(low)), int(float(high)))
    return _between_whole(*whole) if arb(whole[0]) == low and arb(whole[1]) == high else _nodes(low, high)


@lru_cache(maxsize=256)
def _between_whole(low: int, high: int) -> tuple[list[arb], arb_mat]:
    return _nodes(arb(low), arb(high))


def _nodes(low: arb, high: arb) -> tuple[list[arb], arb_mat]:
    half, middle, one = (high - low) / 2, (high + low) / 2, arb(1)
    nodes, rows = [], []
    for node, weight in _legendre():
        z = middle + half * node
        square = z * z
        w = half * weight * (-square / 2).exp()
        nodes.append(z)
        rows.append([w, w * z, w * (square - one)])
    return nodes, arb_mat(rows)


@lru_cache
def _legendre() -> list[tuple[arb, arb]]:
    with ctx.workprec(BallTruth._BITS):
        return [arb.legendre_p_root(20, k, weight=True) for k in range(20)]


@lru_cache(maxsize=64)
def _known_of(f: Activation) -> dict[tuple[float, float], dict[str, arb]]:
    """What balls have given for f: the even spread of points is the same for all programs of a rule."""
    return {}
