"""A draw of 1 with probability f(X), else 0: its mean m is that of f, and its variance m(1 - m)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from momentgen.compiler.ir.graph import Graph, madd, select
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Truth

__all__ = ["DrawTruth", "add_draw"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DrawTruth:
    """The exact values of a draw, from those of f; survives pickling."""

    own: Truth

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        values = dict(self.own(mean, var, params))
        m, slope = values["mean"], 1 - 2 * values["mean"]
        of_mean = {"dvar_dmu": slope * values["dmean_dmu"], "dvar_dvar": slope * values["dmean_dvar"]}
        return values | {"var": m * (1 - m)} | of_mean


def add_draw(graph: Graph) -> None:
    """Give a graph with the output ``mean`` the variance of the draw; one with partials of the mean, those of both."""
    g = graph
    if "dmean_dmu" not in g.outputs:
        m = g.result("mean")
        var, zero = m * (1 - m), g.const(0)
        made = {"mean": m, "var": select(var < zero, zero, var)}
    else:
        slope = madd(-2, g.result("mean"), 1)
        made = {name: g.result(name) for name in ("dmean_dmu", "dmean_dvar")}
        made |= {f"dvar_{by}": slope * g.result(f"dmean_{by}") for by in ("dmu", "dvar")}
    g.outputs.clear()
    for name in (name for name in (*OUTPUTS, *PARTIALS) if name in made):
        g.output(name, made[name])
