"""Certify: the error of the emitted program against exact values, and the certificate that says so.

The C kernels that will be shipped are run (their bits are those of every other
renderer) on random points over all of float32, on its edges, and around the
worst points found; exact values come from rigorous balls or quadrature.  The
promises that are not about accuracy (no negative variance, no NaN from finite
input, limits at v = 0) are checked on more points, and break the build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from momentgen.compiler.emit import render_c
from momentgen.compiler.emit.header import Header
from momentgen.compiler.evaluate import compile_program
from momentgen.compiler.evidence import Run
from momentgen.compiler.lower import split_float32
from momentgen.compiler.native import NativeKernel, find_compiler
from momentgen.compiler.points import Points, edge_points, in_domain, near_points, neighbours, wide_points
from momentgen.compiler.program import Program
from momentgen.compiler.search import worst_points
from momentgen.compiler.stabilise import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.ulp import EDGE_LABELS, EDGES, LARGEST, SMALLEST_NORMAL, is_normal, ulp_error
from momentgen.errors import BuildError

__all__ = ["Bound", "Measured", "Runner", "check_promises", "kernel_params", "measure", "measure_at"]

F32 = npt.NDArray[np.float32]
_SCREENED = 150_000  # points among which the search for the worst begins
_HARD = 150  # points an output that the next attempt is calibrated on


def kernel_params(program: Program, setting: Mapping[str, float], scalars: Sequence[float] = ()) -> dict[str, float]:
    """What the program's parameters are at a setting of the rule's: hi and lo words, then derived scalars."""
    values: list[float] = []
    for value in setting.values():
        values.extend(split_float32(value))
    values.extend(scalars)
    return dict(zip(program.params, values, strict=True))


class Runner:
    """The six outputs of a forward and a backward program, by compiled C where there is a compiler."""

    def __init__(self, forward: Program, backward: Program) -> None:
        self.forward, self.backward = forward, backward
        self._native: tuple[NativeKernel, NativeKernel] | None = None
        if find_compiler() is not None:
            source = render_c((forward, backward), Header(forward.name, "", "", {}, {}))
            n = len(forward.params)
            self._native = (
                NativeKernel(source, forward.name, 2, n, 2),
                NativeKernel(source, backward.name, 4, n, 2),
            )

    def __call__(self, mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F32]:
        """Outputs and partials at the points; a partial is a gradient for the unit seed of its output."""
        one, zero = np.ones_like(mean), np.zeros_like(mean)
        results = dict(zip(OUTPUTS, self._run(0, (mean, var), params), strict=True))
        partials = [*self._run(1, (mean, var, one, zero), params), *self._run(1, (mean, var, zero, one), params)]
        return results | dict(zip(PARTIALS, partials, strict=True))

    def _run(self, which: int, inputs: tuple[F32, ...], params: Mapping[str, float]) -> tuple[F32, ...]:
        program = (self.forward, self.backward)[which]
        if self._native is not None:
            return self._native[which](*inputs, params=[params[p] for p in program.params])
        outputs = compile_program(program)(dict(zip(program.inputs, inputs, strict=True)), params)
        return tuple(outputs[name] for name, _ in program.outputs)


@dataclass
class Bound:
    """The largest error of one output over all points measured.

    Attributes:
        error: in the unit of the variant's goal.
        at: the point, and the parameters, where it is reached.
        ulp: largest error in ulp, where the exact value is a normal number.
        absolute_below_normal: largest absolute error where the exact value is below the normal range.
        histogram: count of points by error in ulp; the last bin is open.
    """

    error: float = 0.0
    at: dict[str, float] = field(default_factory=dict)
    ulp: float = 0.0
    absolute_below_normal: float = 0.0
    histogram: list[int] = field(default_factory=lambda: [0] * len(EDGE_LABELS))

    def update(
        self,
        error: npt.NDArray[np.float64],
        computed: F32,
        exact: npt.NDArray[np.float64],
        at: Points,
        setting: Mapping[str, float],
    ) -> None:
        """Take in the errors at some points."""
        worst = int(np.argmax(error))
        if error[worst] > self.error:
            self.error = float(error[worst])
            self.at = {"mean": float(at[0][worst]), "var": float(at[1][worst]), **setting}
        ulp = ulp_error(computed, exact)
        self.ulp = max(self.ulp, float(ulp.max()))
        small = np.abs(exact) < SMALLEST_NORMAL
        if small.any():
            gap = np.abs(computed[small].astype(np.float64) - exact[small])
            self.absolute_below_normal = max(self.absolute_below_normal, float(np.max(gap)))
        counts, _ = np.histogram(ulp[is_normal(exact)], bins=[0.0, *EDGES, np.inf])
        self.histogram = [a + int(b) for a, b in zip(self.histogram, counts, strict=True)]

    def take_in(self, run: Run, name: str) -> None:
        """Take in an exhaustive run of this program: its maximum, and what its reference may have been off by."""
        found = run.outputs[name]
        error = found.ulp + run.reference_error_ulp
        self.ulp = max(self.ulp, error)
        self.absolute_below_normal = max(self.absolute_below_normal, found.absolute_below_normal)
        if error > self.error:
            self.error, self.at = error, {"mean": found.mean, "var": run.var, **run.setting}

    def as_data(self, unit: str) -> dict[str, Any]:
        """For the certificate; errors rounded up to four digits."""
        data: dict[str, Any] = {unit: _up(self.error), "at": self.at}
        if unit != "ulp":
            data["ulp"] = _up(self.ulp)
        data["absolute_below_normal"] = _up(self.absolute_below_normal)
        data["histogram_ulp"] = dict(zip(EDGE_LABELS, self.histogram, strict=True))
        return data


@dataclass(frozen=True)
class Measured:
    """What measuring a program gave.

    Attributes:
        bounds: per output, the largest error.
        points: how many points it comes from.
        hard: settings, and points where the goal was missed or nearly so; none where it was met.
    """

    bounds: Mapping[str, Bound]
    points: int
    hard: tuple[tuple[Mapping[str, float], Points], ...]


def _up(value: float) -> float:
    """Rounded up to four significant digits, so that a printed bound still is one."""
    if value == 0.0 or not np.isfinite(value):
        return value
    step = 10.0 ** (np.floor(np.log10(value)) - 3)
    return float(f"{np.ceil(value / step) * step:.4g}")


def measure(
    stable: Stable,
    runner: Runner,
    params_of: Callable[[Mapping[str, float]], Mapping[str, float]],
    *,
    points: int,
    seed: int,
) -> Measured:
    """Errors of all six outputs over the whole domain."""
    bounds = {name: Bound() for name in (*OUTPUTS, *PARTIALS)}
    count = 0
    hard: list[tuple[Mapping[str, float], Points]] = []
    for setting in stable.settings:
        params = params_of(setting)
        groups = [wide_points(points, seed), edge_points(), near_points(stable.focus(setting), points // 4, seed)]
        groups.append(worst_points(stable, partial(runner, params=params), setting, points=_SCREENED, seed=seed))
        batch = np.concatenate([g[0] for g in groups]), np.concatenate([g[1] for g in groups])
        missed: list[Points] = []
        for round_ in range(2):
            usable = in_domain(*batch)
            batch = batch[0][usable], batch[1][usable]
            computed, exact = runner(*batch, params), stable.truth(*batch, setting)
            worst: list[npt.NDArray[np.int64]] = []
            beyond: list[npt.NDArray[np.int64]] = []
            for name, bound in bounds.items():
                error = stable.measure(name, computed[name], exact[name], *batch)
                bound.update(error, computed[name], exact[name], batch, setting)
                order = np.argsort(error)
                worst.append(order[-20:])
                if error[order[-1]] > stable.goal:
                    close = order[-_HARD:]
                    beyond.append(close[error[close] > 0.85 * stable.goal])
            count += batch[0].size
            if beyond:
                picked = np.unique(np.concatenate(beyond))
                missed.append((batch[0][picked], batch[1][picked]))
            if round_ == 0:
                chosen = np.concatenate(worst)
                batch = neighbours((batch[0][chosen], batch[1][chosen]), seed)
        if missed:
            hard.append((setting, (np.concatenate([m[0] for m in missed]), np.concatenate([m[1] for m in missed]))))
    return Measured(bounds, count, tuple(hard))


def measure_at(
    stable: Stable,
    runner: Runner,
    params_of: Callable[[Mapping[str, float]], Mapping[str, float]],
    at: Points,
    measured: Measured,
) -> Measured:
    """``measured``, with the errors at given points taken in; ``hard`` are those of these points that miss the goal."""
    mean, var = (array[in_domain(*at)] for array in at)
    hard: list[tuple[Mapping[str, float], Points]] = []
    for setting in stable.settings if mean.size else ():
        computed, exact = runner(mean, var, params_of(setting)), stable.truth(mean, var, setting)
        missed = np.zeros(mean.shape, np.bool_)
        for name, bound in measured.bounds.items():
            error = stable.measure(name, computed[name], exact[name], mean, var)
            bound.update(error, computed[name], exact[name], (mean, var), setting)
            missed |= error > stable.goal
        if missed.any():
            hard.append((setting, (mean[missed], var[missed])))
    return Measured(measured.bounds, measured.points + mean.size * len(stable.settings), tuple(hard))


def check_promises(
    rule: str,
    runner: Runner,
    params: Mapping[str, float],
    f: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]] | None,
    *,
    ulps: float,
    vanishes: bool,
    seed: int,
    slack: float = 0.0,
    reach: float = np.inf,
) -> int:
    """What holds for every input, whatever the accuracy.

    Variances are never negative; finite input gives no NaN and finite gradients; v = 0 gives f(mean) and 0;
    NaN in gives NaN out; a negative variance gives NaN.

    Args:
        rule: for messages.
        runner: the programs.
        params: their parameters.
        f: the activation on float64 arrays; None where a variant does not reproduce it at v = 0.
        vanishes: whether the variance is 0 at v = 0.
        ulps: how far the mean may be from f(mean) at v = 0.
        seed: of the points.
        slack: how far it may be beyond that, over max(1, |f(mean)|).
        reach: the largest |mean| for which that is demanded.

    Returns:
        How many points were checked.

    Raises:
        BuildError: naming the promise broken and the point.
    """
    wide, edges = wide_points(200_000, seed + 1), edge_points()
    mean, var = np.concatenate([wide[0], edges[0]]), np.concatenate([wide[1], edges[1]])
    result = runner(mean, var, params)

    def demand(holds: npt.NDArray[np.bool_], what: str, at: Points) -> None:
        if not holds.all():
            i = int(np.argmin(holds))
            point = f"mean = {at[0][i]!r}, var = {at[1][i]!r}"
            values = ", ".join(f"{name} = {array[i]!r}" for name, array in values_at.items())
            raise BuildError(rule, "certify", f"expected {what}, but at {point} the program gives {values}")

    values_at: Mapping[str, F32] = result
    demand(~(result["var"] < 0), "a variance that is not negative", (mean, var))
    for name in OUTPUTS:
        demand(~np.isnan(result[name]), f"no NaN in {name} from finite input", (mean, var))
    for name in PARTIALS:
        demand(np.isfinite(result[name]), f"a finite {name} from finite input", (mean, var))
    certain = edges[0][edges[1] == 0]
    zero = np.zeros_like(certain)
    values_at = at_zero = runner(certain, zero, params)
    if f is not None:
        with np.errstate(all="ignore"):
            want = f(certain.astype(np.float64))
            allowed = np.maximum(slack * np.maximum(1.0, np.abs(want)), 2.0**-126)
            near = np.abs(at_zero["mean"].astype(np.float64) - want) <= allowed
        near |= (ulp_error(at_zero["mean"], want) <= ulps) & (np.abs(want) >= SMALLEST_NORMAL)
        near |= (np.abs(want) > LARGEST) | (np.abs(certain) > reach)
        demand(near, "the mean f(mean) at var = 0", (certain, zero))
    if vanishes:
        demand(at_zero["var"] == 0, "a variance of 0 at var = 0", (certain, zero))
    nan, some = np.full(4, np.nan, np.float32), np.array([-1.0, 0.0, 1.0, 30.0], np.float32)
    negative = np.array([-1, -1e-38, -4, -1e30], np.float32)
    for at, what in (
        ((nan, np.abs(some)), "NaN in mean"),
        ((some, nan), "NaN in var"),
        ((some, negative), "a negative variance"),
    ):
        values_at = bad = runner(at[0], at[1], params)
        for name in OUTPUTS:
            demand(np.isnan(bad[name]), f"{name} to be NaN for {what}", at)
    return int(mean.size)
