r"""The six outputs of a smooth f exactly: sums over fixed nodes, in float64 for many points, over balls for the decisive.

Both follow the same plan as :mod:`momentgen.compiler.stabilise.smoothing` and share none of its numbers: the balls are
of 256 bits, their steps are finer, and the variance at small sigma is summed from differences f(x) - f(mu) instead of
derivatives.  The radius holds the rounding; the trapezoidal rule's own error, below 1e-20, is beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
from flint import arb, ctx

from momentgen.compiler.stabilise.activation import Activation
from momentgen.compiler.stabilise.differences import Differences
from momentgen.compiler.stabilise.smoothing import SMALL, Side

__all__ = ["BallTruth", "QuadratureTruth"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_NAMES = ("mean", "var", "dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")
_ODD = ("dmean_dmu", "dvar_dmu")  # change sign with the direction of u


class QuadratureTruth:
    """The outputs of an f that follows a line on either side, in float64, to some 1e-13 of their scales."""

    def __init__(self, f: Activation) -> None:
        self.f = f
        self.sides = {1: Side(f, 1), -1: Side(f, -1)}
        self._cache: dict[tuple[bytes, bytes], dict[str, F64]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.f,)

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        key = (np.asarray(mean).tobytes(), np.asarray(var).tobytes())
        if key not in self._cache:
            if len(self._cache) > 7:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = self.outputs(np.asarray(mean, np.float64), np.asarray(var, np.float64))
        return self._cache[key]

    def outputs(self, mean: F64, var: F64) -> dict[str, F64]:
        """The outputs at float64 points, v > 0."""
        result = {name: np.zeros(mean.shape) for name in _NAMES}
        small = np.sqrt(var) < SMALL * self.f.length
        right = mean >= self.f.centre
        for sign in (1, -1):
            for little in (True, False):
                chosen = (right == (sign < 0)) & (small == little) & (var > 0)
                if chosen.any():
                    part = self.side_outputs(sign, mean[chosen], var[chosen], little)
                    for name, values in part.items():
                        result[name][chosen] = values
        return result

    @cached_property
    def differences(self) -> Differences:
        """For small sigma, where f has kinks."""
        return Differences(self.f)

    def side_outputs(self, sign: int, mean: F64, var: F64, little: bool) -> dict[str, F64]:
        """At points on one side of the centre, all with sigma small or all not."""
        side = self.sides[sign]
        u, near = sign * (mean - self.f.centre), side.near
        out: dict[str, F64] = {}
        if little and not side.smooth:
            return self.differences.outputs(mean, var)
        if little:
            d = side.small(u, var)
            d[1] += near.slope
            terms = [np.ones_like(var)]
            for k in range(1, len(d)):
                terms.append(terms[-1] * var / k)
            top = len(d) - 3
            out["mean"] = d[0] + near.slope * u + near.offset
            out["var"] = sum(terms[k] * d[k] ** 2 for k in range(1, top + 1))  # type: ignore[assignment]
            out["dmean_dmu"], out["dmean_dvar"] = d[1], d[2] / 2
            out["dvar_dmu"] = sum(2 * terms[k] * d[k] * d[k + 1] for k in range(1, top + 1))  # type: ignore[assignment]
            out["dvar_dvar"] = sum(terms[k] * d[k + 1] ** 2 for k in range(top + 1)) + sum(
                terms[k] * d[k] * d[k + 2] for k in range(1, top + 1)
            )
        else:
            m = side.moments(u, var, 1, 3)
            b = side.moments(u, var, 2, 2)
            s = near.slope
            out["mean"] = m[0] + s * u + near.offset
            out["var"] = s * s * var + 2 * s * var * m[1] + b[0] - m[0] ** 2
            out["dmean_dmu"], out["dmean_dvar"] = s + m[1], m[2] / 2
            out["dvar_dmu"] = 2 * s * var * m[2] + b[1] - 2 * m[0] * m[1]
            out["dvar_dvar"] = s * s + 2 * s * m[1] + s * var * m[3] + b[2] / 2 - m[0] * m[2]
        if sign < 0:
            for name in _ODD:
                out[name] = -out[name]
        return out


class BallTruth:
    """The outputs by balls of 256 bits, a few milliseconds a point."""

    _BITS = 256

    def __init__(self, f: Activation) -> None:
        self.f = f
        self.sides = {1: Side(f, 1), -1: Side(f, -1)}

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.f,)

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        rows = [self.at(float(m), float(v)) for m, v in zip(mean, var, strict=True)]
        return {name: np.array([float(row[name]) for row in rows]) for name in _NAMES}

    def at(self, mean: float, var: float) -> dict[str, arb]:
        """The outputs at one point, v > 0.

        Raises:
            ValueError: for v <= 0.
        """
        if not var > 0:
            raise ValueError(f"expected v > 0, got {var}")
        sign = -1 if mean >= self.f.centre else 1
        with ctx.workprec(self._BITS):
            small = arb(var).sqrt() < arb(self.f.length * SMALL)
            out = self._small(sign, mean, var) if small else self._wide(sign, mean, var)
        if sign < 0:
            for name in _ODD:
                out[name] = -out[name]
        return out

    def _small(self, sign: int, mean: float, var: float) -> dict[str, arb]:
        """Over z in steps of 1/3, from F(x) - F(u) and the derivatives of F."""
        f = self.f
        sigma = arb(var).sqrt()
        weights = [(-(arb(k) / 3) ** 2 / 2).exp() for k in range(-30, 31)]
        total = sum(weights, arb(0))
        here = f.taylor(0, mean, 1)[0]
        sums = [arb(0)] * 6
        for k, w in zip(range(-30, 31), weights, strict=True):
            c = f.taylor(0, arb(mean) + sigma * k / 3, 3)
            d, first, second = c[0] - here, c[1] * sign, 2 * c[2]
            terms = (d, d * d, first, second, d * first, first * first + d * second)
            sums = [s + w / total * t for s, t in zip(sums, terms, strict=True)]
        d, dd, first, second, cross, curve = sums
        return {
            "mean": here + d,
            "var": dd - d * d,
            "dmean_dmu": first,
            "dmean_dvar": second / 2,
            "dvar_dmu": 2 * (cross - d * first),
            "dvar_dvar": curve - d * second,
        }

    @cached_property
    def _tables(self) -> dict[int, tuple[arb, list[tuple[arb, arb, arb]]]]:
        """By side: step and (u, what is left of F̃, of F̃²) with steps of variance length² carrying the far line."""
        tables = {}
        for sign, side in self.sides.items():
            f = self.f
            with ctx.workprec(640):
                step = arb(f.length) / 12
                tau = arb(f.length) ** 2
                reach = f.reach + 12 * f.length
                count = int(reach / float(step)) + 1
                rows = []
                for k in range(-count, count + 1):
                    u = step * k
                    value = f.taylor(0, arb(f.centre) + sign * u, 1)[0] - side.near.slope * u - side.near.offset
                    t = _normal(u, tau, 0)
                    one = value - side.far.slope * t[-1] - side.far.offset * t[0]
                    rows.append((u, one, value * value - self._square(side, t, tau)))
                tables[sign] = (step, rows)
        return tables

    @staticmethod
    def _square(side: Side, t: Mapping[int, arb], tau: arb, shift: int = 0) -> arb:
        a, b = arb(side.far.slope), arb(side.far.offset)
        steps = 2 * a * a * t[shift - 2] + 2 * a * b * t[shift - 1]
        return steps + (b * b - a * a * tau) * t[shift]

    def _wide(self, sign: int, mean: float, var: float) -> dict[str, arb]:
        """Over u in steps of length/12, from what is left of F̃ and F̃²."""
        step, rows = self._tables[sign]
        side, u, v = self.sides[sign], sign * (arb(mean) - self.f.centre), arb(var)
        sigma, tau = v.sqrt(), arb(self.f.length) ** 2
        t = _normal(u, v + tau, 3)
        m = [side.far.slope * t[j - 1] + side.far.offset * t[j] for j in range(4)]
        b = [self._square(side, t, tau, j) for j in range(3)]
        scale = step / (sigma * (2 * arb.pi()).sqrt())
        for node, one, two in rows:
            z = (u - node) / sigma
            if abs(z) > 20:
                continue
            weight = scale * (-z * z / 2).exp()
            he = [weight, -z * weight / sigma, (z * z - 1) * weight / v, -(z * z - 3) * z * weight / (v * sigma)]
            m = [total + one * h for total, h in zip(m, he, strict=True)]
            b = [total + two * h for total, h in zip(b, he, strict=False)]
        s = arb(side.near.slope)
        return {
            "mean": m[0] + s * u + side.near.offset,
            "var": s * s * v + 2 * s * v * m[1] + b[0] - m[0] ** 2,
            "dmean_dmu": s + m[1],
            "dmean_dvar": m[2] / 2,
            "dvar_dmu": 2 * s * v * m[2] + b[1] - 2 * m[0] * m[1],
            "dvar_dvar": s * s + 2 * s * m[1] + s * v * m[3] + b[2] / 2 - m[0] * m[2],
        }


def _normal(u: arb, w2: arb, high: int) -> dict[int, arb]:
    """d^n/du^n Phi(u/w), -2 <= n <= high + 1."""
    w = w2.sqrt()
    h = u / w
    big, small = (-h / arb(2).sqrt()).erfc() / 2, (-h * h / 2).exp() / (2 * arb.pi()).sqrt()
    t = {-2: w2 * ((h * h + 1) * big + h * small) / 2, -1: w * (h * big + small), 0: big, 1: small / w}
    for n in range(1, high + 1):
        t[n + 1] = -u / w2 * t[n] - ((n - 1) / w2 * t[n - 1] if n > 1 else arb(0))
    return t
