"""Errors in ulp of the sum of the magnitudes of an output's terms, for formulas whose terms may cancel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.measure.ulp import LARGEST, SMALLEST_NORMAL, unit

__all__ = ["TermsUlp"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
#: close above the smallest normal number there is no room for second words on the way: an ulp is 2^-141 there at least
_ROOM = 2.0**-118
_NEAR_ZERO = 2.0**-18  # a variance so near 0, relative to its terms, may be on the other side of 0 in float32


class TermsUlp:
    """|computed - exact| in ulp of that sum, or of 2^-118 where that is larger; 0 where the sum is subnormal.

    Survives pickling.

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

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

    def scales(self, points: tuple[F32, ...]) -> dict[str, F64]:
        """Sums of magnitudes by output; kept for the points last seen."""
        if self._last is None or any(a is not b for a, b in zip(self._last[0], points, strict=True)):
            named = {n: p.astype(np.float64) for n, p in zip(self.graph.inputs, points, strict=True)}
            values = outputs_float64(self.graph, {**named, **self.params})
            sizes = {name: np.broadcast_to(np.abs(value), points[0].shape) for name, value in values.items()}
            self._last = points, sizes
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
