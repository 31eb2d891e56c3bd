r"""I_n(z) = ∫_0^∞ x^n exp(-z x - x²/2) dx in the half-plane Re z >= 0, by one polynomial with real coefficients.

With u = (a - z)/(a + z), which maps the half-plane to the unit disc, (a + z)^(n+1) I_n(z) is analytic in the disc and
not 0: its power series in u, cut off, is as near at z = i y as it is on the real axis.  What a normal variable's
exponential, sine or cosine beyond a kink leaves is such an I_n, z = (kink - mean)/sigma - b sigma for the rate b.

Source: Weideman 1994, Computation of the complex error function, for n = 0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt

from momentgen.compiler.fit.remez import Polynomial
from momentgen.errors import BuildError

_POINTS = 256  # on the circle: beyond the coefficients of any fit
_MOST = 88  # the highest degree
_DIGITS, _BITS = 60, 180
_SCALES = (6, 7)


def moment_integrals(z: Any, top: int) -> list[Any]:
    """I_0 .. I_top at a point, in the current mpmath precision; upwards, which loses |z|^(2 top).

    >>> mpmath.nstr(moment_integrals(mpmath.mpf(0), 2), 8)
    '[1.2533141, 1.0, 1.2533141]'
    """
    values = [mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(z * z / 2) * mpmath.erfc(z / mpmath.sqrt(2))]
    for n in range(1, top + 1):
        values.append((n - 1) * values[n - 2] - z * values[-1] if n > 1 else 1 - z * values[0])
    return values


@lru_cache
def half_plane(n: int, goal: float) -> tuple[int, Polynomial]:
    """a, and the polynomial P of lowest degree with I_n(z) = P(u)/(a + z)^(n+1) to a relative error of ``goal``.

    Raises:
        BuildError: if no degree reaches the goal.

    >>> a, fit = half_plane(0, 1e-8)
    >>> a, len(fit.coefficients)
    (6, 22)
    """
    what = f"(a + z)^{n + 1} I_{n}(z) in u = (a - z)/(a + z), Re z >= 0"
    found = [(len(fit.coefficients), scale, fit) for scale in _SCALES if (fit := _cut(n, scale, goal, what))]
    if not found:
        raise BuildError(what, "approximate", f"no polynomial up to degree {_MOST} reaches a relative error of {goal}")
    _, scale, fit = min(found, key=lambda one: one[:2])
    return scale, fit


@lru_cache
def _roots() -> tuple[list[int], list[int]]:
    """Cosine and sine of pi k/_POINTS, as integers times 2^-_BITS."""
    with mpmath.workprec(_BITS + 20):
        turns = [mpmath.mpf(k) / _POINTS for k in range(2 * _POINTS)]
        return [_fixed(mpmath.cospi(t)) for t in turns], [_fixed(mpmath.sinpi(t)) for t in turns]


def _fixed(value: Any) -> int:
    return int(mpmath.nint(mpmath.ldexp(value, _BITS)))


@lru_cache
def _series(n: int, scale: int) -> tuple[tuple[Any, ...], npt.NDArray[np.float64]]:
    """Coefficients of (a + z)^(n+1) I_n(z) in u, and its size at the points of the circle that they are from.

    The points are those of an even number, in pairs about the real axis: u = exp(i pi (2 j + 1)/_POINTS).
    """
    cosine, sine = _roots()
    with mpmath.workdps(_DIGITS):
        values = []
        for j in range(_POINTS // 2):
            u = mpmath.expjpi(mpmath.mpf(2 * j + 1) / _POINTS)
            z = scale * (1 - u) / (1 + u)
            values.append((z + scale) ** (n + 1) * moment_integrals(z, n)[n])
        rows = [(2 * j + 1, _fixed(w.real), _fixed(w.imag)) for j, w in enumerate(values)]
        coefficients = []
        for k in range(_POINTS // 2):
            turns = [(turn * k % (2 * _POINTS), re, im) for turn, re, im in rows]
            total = sum(re * cosine[at] + im * sine[at] for at, re, im in turns)
            coefficients.append(mpmath.ldexp(mpmath.mpf(2 * total) / _POINTS, -2 * _BITS))
        return tuple(coefficients), np.array([float(abs(w)) for w in values])


def _cut(n: int, scale: int, goal: float, what: str) -> Polynomial | None:
    """The series cut off at the first degree that leaves out no more than ``goal``."""
    coefficients, size = _series(n, scale)
    powers = np.exp(1j * np.pi * np.outer(np.arange(1, _POINTS, 2), np.arange(_POINTS // 2)) / _POINTS)
    terms = powers * np.array([float(c) for c in coefficients])
    left_out = np.cumsum(terms[:, ::-1], axis=1)[:, ::-1]  # from the k-th coefficient on
    errors = (np.abs(left_out) / size[:, None]).max(axis=0)
    short = np.flatnonzero(errors[: _MOST + 2] <= goal)
    if not short.size:
        return None
    with mpmath.workdps(40):
        kept = tuple(+c for c in coefficients[: int(short[0])])
    error = mpmath.mpf(f"{float(errors[short[0]]):.3g}")
    return Polynomial(kept, mpmath.mpf(0), (mpmath.mpf(-1), mpmath.mpf(1)), what.replace("a ", f"{scale} "), error)
