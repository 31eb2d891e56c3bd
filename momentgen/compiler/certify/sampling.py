"""Where a variant is calibrated and measured: one sampler for rules of one input, one for rules of two.

``pipeline`` and ``certify`` ask here and handle points as tuples of arrays, one an input of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from momentgen.compiler.certify import joint_points, points
from momentgen.compiler.certify.points import Points, joined, worst_points
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.toolchain.arrays import F32, Bools

Run = Callable[..., Mapping[str, F32]]
_SCREENED = 200_000  # points among which the search for the worst begins
_SPREAD = 40  # units in the last place between neighbours


class Sampler:
    """Points for a program of one random input; deterministic, and all within the domain unless said otherwise."""

    @property
    def domain(self) -> Mapping[str, str]:
        """The domain in words."""
        return points.DOMAIN

    def in_domain(self, *at: F32) -> Bools:
        """Whether each point lies in the domain that bounds are certified on."""
        mean, var = at
        return points.in_domain(mean, var)

    def calibration(self, stable: Stable, graph: Graph, setting: Mapping[str, float], n: int, seed: int) -> Points:
        """Points for ablation."""
        # Only the mean changes sign; its partials need no closer look there.
        focus = stable.focus(setting) if "mean" in graph.outputs else ()
        groups = [points.calibration_points(stable.box, n, seed), points.near_points(focus, n // 2, seed)]
        return joined([*groups, points.points_at(stable.places(setting), n // 4, seed)])

    def certification(self, stable: Stable, setting: Mapping[str, float], n: int, seed: int) -> Points:
        """Points at random and on the edges, the same for any program; some may lie outside the domain."""
        groups = [points.wide_points(n, seed), points.edge_points()]
        groups.append(points.near_points(stable.focus(setting), n // 4, seed))
        return joined([*groups, points.points_at(stable.places(setting), n // 4, seed)])

    def worst(self, stable: Stable, run: Run, setting: Mapping[str, float], seed: int) -> Points:
        """The worst of many points for a program; some may lie outside the domain."""
        return worst_points(stable, run, setting, points=_SCREENED, seed=seed)

    def finite(self, seed: int) -> Points:
        """Any finite input, the edges of float32 included."""
        return joined([points.wide_points(200_000, seed), points.edge_points()])

    def certain(self) -> Points:
        """Inputs of variance 0."""
        mean, var = points.edge_points()
        return mean[var == 0], var[var == 0]

    def neighbours(self, at: Points, seed: int, spread: int = _SPREAD) -> Points:
        """Points up to ``spread`` units in the last place away."""
        return points.neighbours(at, seed, spread)


class _Joint(Sampler):
    """Means and variances of two inputs, and perhaps their covariance."""

    def __init__(self, covariance: bool) -> None:
        self.covariance = covariance

    @property
    def domain(self) -> Mapping[str, str]:
        return {name: text for name, text in joint_points.DOMAIN.items() if name != "cov" or self.covariance}

    def in_domain(self, *at: F32) -> Bools:
        return joint_points.in_domain(*at)

    def calibration(self, stable: Stable, graph: Graph, setting: Mapping[str, float], n: int, seed: int) -> Points:
        reach = stable.box["log2_var"][1]
        groups = [
            joint_points.spread(n // 2, seed, covariance=self.covariance, reach=reach),
            joint_points.spread(n // 4, seed + 1, covariance=self.covariance),
            joint_points.kept(joint_points.edges(n // 4, seed + 2, covariance=self.covariance)),
        ]
        return joined(groups)

    def certification(self, stable: Stable, setting: Mapping[str, float], n: int, seed: int) -> Points:
        spread = joint_points.spread(n, seed, covariance=self.covariance)
        return joined([spread, joint_points.edges(n // 4, seed, covariance=self.covariance)])

    def worst(self, stable: Stable, run: Run, setting: Mapping[str, float], seed: int) -> Points:
        return joint_points.screened(stable, run, setting, points=_SCREENED, seed=seed)

    def finite(self, seed: int) -> Points:
        wide = joint_points.spread(200_000, seed, covariance=self.covariance)
        return joined([wide, joint_points.edges(50_000, seed, covariance=self.covariance)])

    def certain(self) -> Points:
        sizes = np.unique(points.edge_points()[0])
        mean1, mean2 = (array.ravel() for array in np.meshgrid(sizes, sizes))
        zero = np.zeros_like(mean1)
        return (mean1, zero, mean2, zero, zero) if self.covariance else (mean1, zero, mean2, zero)

    def neighbours(self, at: Points, seed: int, spread: int = _SPREAD) -> Points:
        return joint_points.near_by(at, seed, spread)


def sampler_of(inputs: tuple[str, ...]) -> Sampler:
    """The sampler for a program of these inputs.

    >>> sampler_of(("mean", "var")).domain["var"]
    '0 or 2^-127 <= var < 2^128'
    """
    return Sampler() if len(inputs) == 2 else _Joint(len(inputs) == 5)
