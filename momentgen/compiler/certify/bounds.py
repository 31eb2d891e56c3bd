"""Certify: the error of the emitted program against exact values, and the certificate that says so.

The programs that will be shipped are interpreted (the bits are those of every
renderer, which tests compare) on random points over all of float32, on its
edges, and around the worst points found; exact values come from rigorous balls
or quadrature.  The promises that are not about accuracy (no negative variance,
no NaN from finite input, limits at v = 0) are checked on more points, and break
the build.

What an error of 1 in the unit of a variant's goal is, :func:`tolerance_of` gives as data.  Each measure of error has
its own words beside its formula (``words``); :mod:`momentgen.promise` makes sentences of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from momentgen.compiler.certify.evidence import Run
from momentgen.compiler.certify.points import Points, joined
from momentgen.compiler.certify.sampling import Sampler, sampler_of
from momentgen.compiler.ir.interpreter import Interpreter
from momentgen.compiler.ir.program import Program
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.measure.ulp import EDGE_LABELS, EDGES, SMALLEST_NORMAL, is_normal, missed, ulp_error
from momentgen.compiler.toolchain.arrays import F32, F64, Bools
from momentgen.compiler.toolchain.float32 import LARGEST, split_float32
from momentgen.errors import BuildError
from momentgen.rule import Rule
from momentgen.rule.inputs import moment_names, partial_names

_WORDS = {"var": "variance"}
_HARD = 150  # points an output that the next attempt is calibrated on
_CONDITIONAL_ULPS = 4.0  # the variance at v = 0, where it is that given x: a square and a sum


def kernel_params(program: Program, setting: Mapping[str, float], scalars: Sequence[float] = ()) -> dict[str, float]:
    """What the program's parameters are at a setting of the rule's: hi and lo words, then derived scalars."""
    values = [word for value in setting.values() for word in split_float32(value)]
    return dict(zip(program.params, [*values, *scalars], strict=True))


class Runner:
    """Outputs and partials of a forward and a backward program, interpreted: compiling takes longer than it runs."""

    def __init__(
        self,
        forward: Program,
        backward: Program,
        scalars: Callable[[Mapping[str, float]], Sequence[float]] = lambda setting: (),
    ) -> None:
        self.forward, self.backward, self.scalars = forward, backward, scalars
        self.inputs = forward.inputs
        self.outputs = tuple(name for name, _ in forward.outputs)
        #: names of the partials of each output
        self.partials = tuple(zip(*partial_names(forward.inputs, self.outputs).values(), strict=True))
        self._interpreters = Interpreter(forward), Interpreter(backward)

    def __call__(self, *inputs: Any) -> dict[str, F32]:
        """Outputs and partials; a partial is a gradient for the unit seed of its output.

        Args:
            inputs: a float32 array for each input of the program, then a setting of the rule's parameters.
        """
        *points, setting = inputs
        params = kernel_params(self.forward, setting, self.scalars(setting))
        results = dict(zip(self.outputs, self._run(0, tuple(points), params), strict=True))
        for place, names in enumerate(self.partials):
            seeds = [np.full_like(points[0], place == other) for other in range(len(self.outputs))]
            results |= dict(zip(names, self._run(1, (*points, *seeds), params), strict=True))
        return results

    def _run(self, which: int, inputs: tuple[F32, ...], params: Mapping[str, float]) -> tuple[F32, ...]:
        program, interpreter = (self.forward, self.backward)[which], self._interpreters[which]
        points = interpreter.points(dict(zip(program.inputs, inputs, strict=True)), params)
        return tuple(interpreter.values(points, dict(program.outputs)).values())


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

    def update(self, error: F64, computed: F32, exact: F64, at: Points, setting: Mapping[str, float]) -> None:
        """Take in the errors at some points."""
        worst = int(np.argmax(error))
        if error[worst] > self.error:
            self.error = float(error[worst])
            names = moment_names(len(at) // 2, len(at) == 5)
            self.at = {**{name: float(array[worst]) for name, array in zip(names, at, strict=True)}, **setting}
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
        hard: settings, and points where the goal was missed or nearly so; none where it was met with room.
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


class Known:
    """Points that do not depend on the program, with exact values: found once for all attempts at a variant."""

    def __init__(self) -> None:
        self._at: dict[tuple[float, ...], tuple[Points, Mapping[str, F64]]] = {}

    def at(
        self, stable: Stable, setting: Mapping[str, float], points: int, seed: int
    ) -> tuple[Points, Mapping[str, F64]]:
        """The points for certification at one setting, in the domain, and exact values there."""
        key = tuple(setting.values())
        if key not in self._at:
            sampler = sampler_of(stable.forward.inputs)
            found = kept(sampler, sampler.certification(stable, setting, points, seed))
            self._at[key] = found, stable.truth(*found, setting)
        return self._at[key]


def measure(stable: Stable, runner: Runner, *, points: int, seed: int, known: Known | None = None) -> Measured:
    """Errors of outputs and partials over the whole domain; it ends at the first setting where the goal is missed."""
    known = known or Known()
    sampler = sampler_of(stable.forward.inputs)
    bounds = {name: Bound() for name in stable.outputs}
    count = 0
    hard: list[tuple[Mapping[str, float], Points]] = []
    for setting in stable.settings:
        stable = stable.at(setting)
        fixed, values = known.at(stable, setting, points, seed)
        batch = kept(sampler, sampler.worst(stable, runner, setting, seed))
        exact = stable.truth(*batch, setting)
        batch = joined([fixed, batch])
        exact = {name: np.concatenate([values[name], exact[name]]) for name in exact}
        missed: list[Points] = []
        for round_ in range(2):
            computed = runner(*batch, setting)
            worst: list[npt.NDArray[np.int64]] = []
            beyond: list[npt.NDArray[np.int64]] = []
            for name, bound in bounds.items():
                error = stable.measure(name, computed[name], exact[name], *batch)
                bound.update(error, computed[name], exact[name], batch, setting)
                order = np.argsort(error, kind="stable")
                worst.append(order[-20:])
                if error[order[-1]] > stable.accepted:
                    close = order[-_HARD:]
                    beyond.append(close[error[close] > 0.8 * stable.goal])
            count += batch[0].size
            if beyond:
                missed.append(_at(batch, np.unique(np.concatenate(beyond))))
            if round_ == 0:
                batch = kept(sampler, sampler.neighbours(_at(batch, np.concatenate(worst)), seed))
                exact = stable.truth(*batch, setting)
        if missed:  # no use in the other settings: the program has to change
            hard.append((setting, joined(missed)))
            break
    return Measured(bounds, count, tuple(hard))


def missed_by(bounds: Mapping[str, Bound], stable: Stable) -> str:
    """By which output a variant misses its goal most, where, and by how much, in words."""
    name = max(bounds, key=lambda name: bounds[name].error)
    return missed(bounds[name].error, name, bounds[name].at, stable.goal, stable.unit)


def _at(points: Points, index: npt.NDArray[Any]) -> Points:
    return tuple(array[index] for array in points)


def kept(sampler: Sampler, points: Points) -> Points:
    """The points that lie in the domain that bounds are certified on."""
    return _at(points, sampler.in_domain(*points))


def measure_at(stable: Stable, runner: Runner, at: Points, measured: Measured) -> Measured:
    """``measured``, with the errors at given points taken in; ``hard`` are those of these points that miss the goal.

    The points come from runs over all inputs, which do not understate: they may take all of the goal.
    """
    if not at[0].size:
        return Measured(measured.bounds, measured.points, ())
    points = kept(sampler_of(stable.forward.inputs), at)
    hard: list[tuple[Mapping[str, float], Points]] = []
    for setting in stable.settings if points[0].size else ():
        stable = stable.at(setting)
        computed, exact = runner(*points, setting), stable.truth(*points, setting)
        missed = np.zeros(points[0].shape, np.bool_)
        for name, bound in measured.bounds.items():
            error = stable.measure(name, computed[name], exact[name], *points)
            bound.update(error, computed[name], exact[name], points, setting)
            missed |= error > stable.goal
        if missed.any():
            hard.append((setting, _at(points, missed)))
    return Measured(measured.bounds, measured.points + points[0].size * len(stable.settings), tuple(hard))


def check_promises(
    rule: str,
    stable: Stable,
    runner: Runner,
    setting: Mapping[str, float],
    f: Callable[..., F64] | None,
    conditional: Callable[..., F64] | None = None,
    *,
    seed: int,
    every: int = 1,
) -> int:
    """What holds for every input, whatever the accuracy.

    Variances are never negative; finite input, within an edge if there is one, gives no NaN and finite gradients;
    v = 0 gives f(mean), within the variant's slack, and 0; NaN in gives NaN out; a negative variance gives NaN.

    Args:
        f: the activation on float64 arrays, one an input; None where a variant does not reproduce it at v = 0.
        conditional: the variance given x, as ``f``, where that is not 0: what the variance is at v = 0.
        every: of the points of any finite input, one in so many is looked at.

    Returns:
        How many points were checked.

    Raises:
        BuildError: naming the promise broken and the point.
    """
    unit, stable = stable.unit_at(setting), stable.at(setting)
    ulps, edge, reach = stable.goal if stable.unit.startswith("ulp") else 1.0, stable.edge, stable.reach
    sampler = sampler_of(runner.inputs)
    points = tuple(values[::every] for values in sampler.finite(seed + 1))
    result = runner(*points, setting)

    def demand(holds: Bools, what: str, at: Points) -> None:
        if not holds.all():
            i = int(np.argmin(holds))
            point = ", ".join(f"{name} = {array[i]:g}" for name, array in zip(runner.inputs, at, strict=True))
            values = ", ".join(f"{name} = {array[i]:g}" for name, array in values_at.items())
            raise BuildError(rule, "certify", f"expected {what}, but at {point} the program gives {values}")

    values_at: Mapping[str, F32] = result

    def lost(at: Points) -> Bools:
        """Beyond the edge."""
        none = np.zeros(at[0].shape, np.bool_)
        return none if edge is None else ~edge.inside(*(array.astype(np.float64) for array in at))

    if "var" in result:
        demand(~(result["var"] < 0), "a variance that is not negative", points)
    beyond = lost(points)
    for name in runner.outputs:
        demand(~np.isnan(result[name]) | beyond, f"no NaN in {name} from finite input", points)
    for name in itertools.chain(*runner.partials):
        demand(np.isfinite(result[name]) | beyond, f"a finite {name} from finite input", points)
    certain = sampler.certain()
    values_at = at_zero = runner(*certain, setting)
    if f is not None:
        with np.errstate(all="ignore"):
            want = f(*(array.astype(np.float64) for array in certain[: len(certain) // 2 * 2 : 2]))
            allowed = np.maximum(stable.slack * np.maximum(1.0, np.abs(want) / min(unit, 1.0)), 2.0**-126)
            near = np.abs(at_zero["mean"].astype(np.float64) - want) <= allowed
        near |= (ulp_error(at_zero["mean"], want) <= ulps) & (np.abs(want) >= SMALLEST_NORMAL)
        near |= (np.abs(want) > LARGEST) | (np.abs(certain[0]) > reach)
        demand(near, "the mean f(mean) at var = 0", certain)
    if conditional is not None:
        want = conditional(certain[0].astype(np.float64))
        close = np.abs(at_zero["var"].astype(np.float64) - want) <= max(stable.conditional_slack, 2.0**-126)
        close |= (ulp_error(at_zero["var"], want) <= _CONDITIONAL_ULPS) | (np.abs(certain[0]) > reach)
        demand(close, "the variance given x at var = 0", certain)
    if stable.vanishes:
        last = runner.outputs[-1]
        demand((at_zero[last] == 0) | lost(certain), f"a {_WORDS.get(last, last)} of 0 at var = 0", certain)
    four = {"mean": np.array([-1.0, 0.0, 1.0, 30.0], np.float32), "var": np.array([1.0, 0.0, 1.0, 30.0], np.float32)}
    four["cov"] = np.zeros(4, np.float32)
    good_points = tuple(four[name.rstrip("12")] for name in runner.inputs)
    nan, negative = np.full(4, np.nan, np.float32), np.array([-1, -1e-38, -4, -1e30], np.float32)
    bad_inputs = [(i, nan, f"NaN in {name}") for i, name in enumerate(runner.inputs)]
    bad_inputs += [(i, negative, f"a negative {n}") for i, n in enumerate(runner.inputs) if n.startswith("var")]
    for i, values, what in bad_inputs:
        at = (*good_points[:i], values, *good_points[i + 1 :])
        values_at = bad = runner(*at, setting)
        for name in runner.outputs:
            demand(np.isnan(bad[name]), f"{name} to be NaN for {what}", at)
    return int(points[0].size)


def tolerance_of(rule: Rule, stable: Stable) -> dict[str, Any]:
    """The certificate's ``tolerance``.

    Returns:
        ``against``: what errors are taken from.  Where the unit is ``tolerance``, also ``mean``, ``var`` and
        ``partials``, the errors allowed; ``least``, what is allowed in any case; ``where``, what
        the symbols are; ``values``, those at the default parameters, a number each, and for jumps (point, height) each.

    Raises:
        BuildError: if the variant is measured by something that has no words here.
    """
    formula = "the variant's published formula, not the moments that it approximates"
    data: dict[str, Any] = {"against": formula if stable.variant in rule.variants else "the exact moments"}
    if stable.unit != "tolerance":
        return data
    # Jumps, and a finite range, may appear at some settings of the parameters only.
    said_at = [getattr(stable.at(setting).measure, "words", None) for setting in stable.settings]
    found = [words() for words in said_at if words is not None]
    if len(found) < len(said_at):
        cause = f"expected words for the tolerance of {type(stable.measure).__name__}, found none"
        raise BuildError(rule.name, "certify", cause)
    fullest = max(found, key=lambda said: len(said["where"]))
    said = {**fullest, "values": found[0]["values"]}
    return {"least": "2^-126", **data, **said}
