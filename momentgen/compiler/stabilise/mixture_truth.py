r"""Exact moments of the logistic transform S(X), X ~ N(mu, v), and their partials: trapezoidal sums in ball arithmetic.

The trapezoidal rule converges exponentially for an integrand analytic in a strip (Trefethen and Weideman 2014).
Three forms, each where its sum is short; |mu| is reflected to the left, where S is small and does not cancel:

- sigma <= 5/4: E g(mu + sigma Z) over z in steps of 1/4.  The poles of S at ±i pi lie pi/sigma off the line; the
  error falls as exp(-8 pi²/sigma) and is below 1e-20 relatively, in the left tail alike.
- sigma < 32: E S(X) = ∫ S'(x) Phi((mu - x)/sigma) dx and its mu-derivatives, over x in steps of 0.35; absolute error
  below 1e-18.
- sigma >= 32: Phi((mu - L)/sigma) expanded in the even moments of L ~ S', ten terms; absolute error below 1e-21.

The errors are those seen against finer steps and between neighbouring forms where they meet, in the worst case.
S² = S - S' turns the last two into second moments.  Nothing here is shared with the graphs that are measured by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
from flint import arb, ctx

__all__ = ["bernoulli_truth", "logistic_moments", "logistic_truth"]

F32 = npt.NDArray[np.float32]
_NAMES = ("mean", "var", "dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")
_ODD = frozenset({"dmean_dvar", "dvar_dmu"})
_BITS = 192
_NEAR, _FAR = 1.25, 32.0
_BEYOND = 1e4  # S(-1e4 + sigma Z) is 0 in float64 for sigma <= 5/4


def logistic_truth(mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, npt.NDArray[np.float64]]:
    """The six outputs at float32 points, to the accuracy of float64 (absolutely, for v > 25/16).

    Args:
        mean: shape (n,).
        var: shape (n,), none negative.
        params: none are used.
    """
    return _batch(np.asarray(mean, np.float32).tobytes(), np.asarray(var, np.float32).tobytes())


def bernoulli_truth(mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, npt.NDArray[np.float64]]:
    """The same for a draw of 1 with probability S(X), whose variance is m(1 - m); m is reflected to the left."""
    left = logistic_truth(-np.abs(mean), var, params)
    right = np.asarray(mean) > 0
    low, odd = left["mean"], 1 - 2 * left["mean"]
    sign = np.where(right, -1.0, 1.0)
    return {
        "mean": np.where(right, 1 - low, low),
        "var": low * (1 - low),
        "dmean_dmu": left["dmean_dmu"],
        "dmean_dvar": sign * left["dmean_dvar"],
        "dvar_dmu": sign * odd * left["dmean_dmu"],
        "dvar_dvar": odd * left["dmean_dvar"],
    }


@lru_cache(maxsize=8)
def _batch(mean: bytes, var: bytes) -> dict[str, npt.NDArray[np.float64]]:
    points = zip(np.frombuffer(mean, np.float32).tolist(), np.frombuffer(var, np.float32).tolist(), strict=True)
    values = [logistic_moments(mu, v) for mu, v in points]
    table = np.array([[float(row[name]) for name in _NAMES] for row in values]).reshape(-1, len(_NAMES))
    return {name: np.ascontiguousarray(column) for name, column in zip(_NAMES, table.T, strict=True)}


def logistic_moments(mu: float, v: float) -> dict[str, arb]:
    """Mean, variance and their four partials of S(X), X ~ N(mu, v), as balls of 192 bits.

    The radius holds the rounding; the error of the trapezoidal rule is beyond it (see the module).

    Raises:
        ValueError: for a negative variance, or input that is not finite.

    >>> float(logistic_moments(0.0, 1.0)["mean"])
    0.5
    """
    if not (np.isfinite(mu) and np.isfinite(v) and v >= 0):
        raise ValueError(f"expected a finite mean and a finite variance >= 0, got {mu}, {v}")
    with ctx.workprec(_BITS):
        sigma = arb(v).sqrt()
        if v <= _NEAR**2:
            result = _near(arb(-min(abs(mu), _BEYOND)), sigma)
        else:
            m = (_middle if v < _FAR**2 else _far)(arb(-abs(mu)), sigma)
            # From S² = S - S': E f² = m - m', with the v-derivative half the second mu-derivative.
            result = {
                "mean": m[0],
                "var": m[0] * (1 - m[0]) - m[1],
                "dmean_dmu": m[1],
                "dmean_dvar": m[2] / 2,
                "dvar_dmu": m[1] * (1 - 2 * m[0]) - m[2],
                "dvar_dvar": (m[2] * (1 - 2 * m[0]) - m[3]) / 2,
            }
        if mu > 0:
            result = {name: -value if name in _ODD else value for name, value in result.items()}
            result["mean"] = 1 - result["mean"]
    return result


@lru_cache
def _normal_weights(step: float, reach: float) -> tuple[arb, ...]:
    """step·phi(k step), k = 0, 1, ..., divided by their sum over both signs."""
    with ctx.workprec(_BITS):
        h = arb(str(step))
        weights = [(-((h * k) ** 2) / 2).exp() for k in range(int(reach / step) + 1)]
        total = weights[0] + 2 * sum(weights[1:], arb(0))
        return tuple(w / total for w in weights)


def _near(mu: arb, sigma: arb) -> dict[str, arb]:
    """The moments of S(mu + sigma Z) from D = S - S(mu) and the derivatives of S."""
    weights = _normal_weights(0.25, 14.0)
    centre, ratio = mu.exp(), (sigma * arb("0.25")).exp()
    origin = centre / (1 + centre)
    sums = [arb(0)] * 6
    up = down = centre
    for k, w in enumerate(weights):
        for e in (up, down) if k else (centre,):
            bottom = 1 / (1 + e)
            s = e * bottom
            first = s * bottom
            second = first * (1 - 2 * s)
            d = s - origin
            terms = (d, d * d, first, second, d * first, first * first + d * second)
            sums = [total + w * term for total, term in zip(sums, terms, strict=True)]
        up, down = up * ratio, down / ratio
    d, dd, first, second, cross, curve = sums
    return {
        "mean": origin + d,
        "var": dd - d * d,
        "dmean_dmu": first,
        "dmean_dvar": second / 2,
        "dvar_dmu": 2 * (cross - d * first),
        "dvar_dvar": curve - d * second,
    }


@lru_cache
def _roots() -> tuple[arb, arb]:
    """sqrt(2) and sqrt(2 pi)."""
    with ctx.workprec(_BITS):
        return arb(2).sqrt(), (2 * arb.pi()).sqrt()


def _hermite(a: arb, count: int) -> list[arb]:
    """Phi(a) and its first ``count`` derivatives: (-1)^(n-1) He_(n-1)(a) phi(a)."""
    root, density = _roots()
    derivatives = [(-a / root).erfc() / 2, (-a * a / 2).exp() / density]
    while len(derivatives) <= count:
        n = len(derivatives) - 2
        before = derivatives[-2] if n else arb(0)
        derivatives.append(-a * derivatives[-1] - n * before)
    return derivatives


@lru_cache
def _logistic_weights(step: float, reach: float) -> tuple[tuple[arb, arb], ...]:
    """(k step, step·S'(k step)) over both signs, the weights divided by their sum."""
    with ctx.workprec(_BITS):
        h = arb(str(step))
        count = int(reach / step)
        pairs = [(h * k, 1 / (2 + (h * k).exp() + (-h * k).exp())) for k in range(-count, count + 1)]
        total = sum((w for _, w in pairs), arb(0))
        return tuple((x, w / total) for x, w in pairs)


def _middle(mu: arb, sigma: arb) -> list[arb]:
    """m and its first three mu-derivatives: Phi((mu - x)/sigma) averaged over the logistic law of x."""
    totals = [arb(0)] * 4
    for x, w in _logistic_weights(0.35, 44.0):
        totals = [t + w * d for t, d in zip(totals, _hermite((mu - x) / sigma, 3), strict=True)]
    return [t / sigma**k for k, t in enumerate(totals)]


@lru_cache
def _even_moments(count: int) -> tuple[arb, ...]:
    """E L^(2j)/(2j)! of the logistic law: the coefficients of pi s/sin(pi s)."""
    with mpmath.workdps(70), ctx.workprec(_BITS):
        moments: list[Any] = [mpmath.mpf(1)]
        moments += [2 * (1 - mpmath.mpf(2) ** (1 - 2 * j)) * mpmath.zeta(2 * j) for j in range(1, count)]
        return tuple(arb(mpmath.nstr(m, 65)) for m in moments)


def _far(mu: arb, sigma: arb) -> list[arb]:
    """The same, expanded in 1/sigma."""
    moments = _even_moments(10)
    derivatives = _hermite(mu / sigma, 2 * len(moments) + 2)
    powers = [sigma ** (2 * j) for j in range(len(moments))]
    return [
        sum((c * derivatives[2 * j + k] / powers[j] for j, c in enumerate(moments)), arb(0)) / sigma**k
        for k in range(4)
    ]
