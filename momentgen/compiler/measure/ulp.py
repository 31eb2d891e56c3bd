"""Errors in units in the last place of float32, against exact values of any magnitude."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.toolchain.arrays import F32, F64, Bools
from momentgen.compiler.toolchain.float32 import LARGEST

SMALLEST_NORMAL = 2.0**-126
#: edges of the histograms of errors in ulp, and what their bins are called; the last bin is open
EDGES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
EDGE_LABELS = (*(f"<= {edge:g}" for edge in EDGES), f"> {EDGES[-1]:g}")


def unit(exact: F64) -> F64:
    """ulp(x) = 2^(max(exponent(x), -126) - 23).

    >>> float(unit(np.array(1.5))) == 2.0**-23
    True
    """
    _, exponent = np.frexp(np.where(np.isfinite(exact), exact, 1.0))
    return np.asarray(np.ldexp(1.0, np.maximum(exponent - 1, -126) - 23))


def is_normal(exact: F64) -> Bools:
    """Whether the exact value lies in the range of normal float32 numbers."""
    size = np.abs(exact)
    return (size >= SMALLEST_NORMAL) & (size <= LARGEST)


def ulp_error(computed: F32, exact: F64) -> F64:
    """|computed - exact| in ulp where the exact value is a normal number, else 0; NaN and inf count as infinite."""
    with np.errstate(all="ignore"):
        error = np.abs(computed.astype(np.float64) - exact) / unit(exact)
    error = np.where(np.isfinite(computed), error, np.inf)
    return np.where(is_normal(exact), error, 0.0)


def in_ulp(output: str, computed: F32, exact: F64, *points: F32) -> F64:
    """:func:`ulp_error` as a measure of any output at any points."""
    return ulp_error(computed, exact)


#: close above the smallest normal number there is no room for second words on the way: an ulp is 2^-141 there at least
_ROOM = 2.0**-118
_NEAR_ZERO = 2.0**-18  # a variance so near 0, relative to its terms, may be on the other side of 0 in float32


class TermsUlp:
    """|computed - exact| in ulp of the sum of the magnitudes of an output's terms, which may cancel.

    At least 2^-118 stands for that sum; where it is subnormal, errors are 0.

    Args:
        graph: the sums of magnitudes by output, and with ``floored`` the formula's variance as ``value``.
        params: values of the graph's parameters.
        held: whether what is beyond float32 has to be its largest number, of the right sign.
        floored: whether a negative variance is 0: partials, which jump there, are not measured within rounding of it.
    """

    def __init__(
        self, graph: Graph, params: Mapping[str, float] | None = None, *, held: bool = False, floored: bool = False
    ) -> None:
        self.graph, self.params, self.held, self.floored = graph, dict(params or {}), held, floored
        self._last: tuple[tuple[F32, ...], dict[str, F64]] | None = None

    def at(self, setting: Mapping[str, float]) -> TermsUlp:
        """The measure at other parameters, where it has some."""
        same = not self.params or setting == self.params
        return self if same else TermsUlp(self.graph, setting, held=self.held, floored=self.floored)

    def scales(self, points: tuple[F32, ...]) -> dict[str, F64]:
        """Sums of magnitudes by output; cached for the points last seen."""
        if self._last is None or any(a is not b for a, b in zip(self._last[0], points, strict=True)):
            named = {n: p.astype(np.float64) for n, p in zip(self.graph.inputs, points, strict=True)}
            values = outputs_float64(self.graph, {**named, **self.params})
            self._last = points, {name: np.abs(value) for name, value in values.items()}
        return self._last[1]

    def __call__(self, output: str, computed: F32, exact: F64, *points: F32) -> F64:
        sizes = self.scales(points)
        size = np.maximum(sizes[output], np.abs(exact))
        with np.errstate(all="ignore"):
            error = np.abs(computed.astype(np.float64) - exact) / unit(np.maximum(size, _ROOM))
        counted = size >= SMALLEST_NORMAL
        if self.floored and output.startswith("dvar"):
            counted &= sizes["value"] > _NEAR_ZERO * sizes["var"]
        if self.held:  # rounding may go up to infinity from the last numbers below
            lost = (np.abs(exact) > LARGEST) & (computed != np.copysign(np.float32(LARGEST), exact))
            error = np.where(lost, np.inf, np.where(size > 0.999 * LARGEST, 0.0, error))
        return np.where(np.isfinite(computed), np.where(counted, error, 0.0), np.inf)


def missed(error: float, output: str, at: Mapping[str, float], goal: float, unit: str) -> str:
    """State an error that is larger than its goal, and where it occurs.

    >>> missed(3e6, "dmean_dmu", {"mean": 1199.638916, "var": 21.5}, 1.0, "tolerance")
    'expected an error of at most 1 tolerance, got 3e+06 for dmean_dmu at mean = 1200, var = 21.5'
    """
    where = ", ".join(f"{name} = {value:.4g}" for name, value in at.items())
    return f"expected an error of at most {goal:g} {unit}, got {error:.3g} for {output} at {where}"
