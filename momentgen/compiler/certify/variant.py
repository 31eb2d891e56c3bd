"""One variant of a rule: lowered, certified, and where the goal is missed lowered again.

What costs a build its time is here and in the strategies of :mod:`momentgen.compiler.strategies`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mpmath
import numpy as np
import sympy

from momentgen.compiler.certify.bounds import (
    Bound,
    Known,
    Measured,
    Runner,
    check_promises,
    kernel_params,
    measure,
    measure_at,
    missed_by,
    tolerance_of,
)
from momentgen.compiler.certify.by_sums import measured_by_sums, tolerance_of_sums
from momentgen.compiler.certify.evidence import Evidence, Run, program_digest
from momentgen.compiler.certify.points import (
    Points,
    in_domain,
    joined,
    points_beside,
    seed_of,
    wide_points,
    worst_points,
)
from momentgen.compiler.certify.sampling import sampler_of
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.passes import optimise
from momentgen.compiler.ir.program import Program
from momentgen.compiler.ir.stable import Errors, Stable, errors_over
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.lower.ablate import Choice, Part, choose
from momentgen.compiler.lower.float64 import kernels_of
from momentgen.compiler.lower.trials import Calibration
from momentgen.compiler.lower.words import lower, words
from momentgen.compiler.toolchain.arrays import F64
from momentgen.compiler.toolchain.float32 import LARGEST
from momentgen.errors import BuildError
from momentgen.rule import Rule
from momentgen.rule.inputs import input_symbols

Progress = Callable[[str], None]
#: a setting, points that a program missed the goal at, and the share that their errors count by
_Hard = tuple[Mapping[str, float], Points, float]
_CALIBRATION = 2500
_CERTIFICATION = 12_000
_FIRST = 2  # settings that are calibrated at all over
_ATTEMPTS = 20  # the last of them with all nodes in two words
_TIGHTEN = 0.97  # the aim's share that an attempt leaves to the next
_MANY, _LARGE = 1.5, 200  # times the second words that the attempt before had, and how many are many
_PINNED = 5  # attempts at the least aim that a program has, which leave the goal missed: rounding takes what fits left
_NEAR = 1 << 20  # units in the last place: up to an eighth
_OVERFLOWS = 2.0**128  # in float32
_NEAR_ZERO = 1e-6  # share of a within which of a mean's zero float64 cancels
#: an error at a point that was searched out may be nearer to the goal than at a random one, the less so where the aim
#: is the least there is
_SOUGHT, _SOUGHT_PINNED = 0.88, 0.92
#: beside a place, a setting of the parameters shows few of the roundings there are: others make twice the error
_BESIDE = 2.0


@dataclass(frozen=True)
class Certified:
    """One variant, lowered and certified.

    Attributes:
        stable: the variant.
        forward, backward: its programs.
        choices: direction -> what ablation found.
        bounds: output -> the largest error.
        points: how many points that comes from.
        promises: how many points the promises were checked at.
        exhaustive: runs of these programs over all means.
        tolerance: what an error of 1 in the bounds' unit is, as data.
    """

    stable: Stable
    forward: Program
    backward: Program
    choices: Mapping[str, Choice]
    bounds: Mapping[str, Bound]
    points: int
    promises: int
    exhaustive: tuple[Run, ...]
    tolerance: Mapping[str, Any]


def certified(rule: Rule, stable: Stable, progress: Progress, evidence: Evidence) -> Certified:
    """Lower, certify, and where the goal is missed lower again with those points among the calibration's.

    Raises:
        BuildError: if no program reaches the goal, or one breaks a promise.
    """
    if stable.by_sums is not None:
        progress(f"certify {stable.variant}")
        return _by_sums(rule, stable)
    seed = seed_of(rule.name, stable.variant)
    aim = stable.aim
    graphs = {"forward": stable.forward, "backward": stable.partials}
    choices: dict[str, Choice] = {}
    programs: dict[str, Program] = {}
    hard: list[_Hard] = []
    known = Known()
    least: dict[str, float] = {}  # direction -> the error of its program with all nodes in two words, where it is dear
    pinned = 0
    for attempt in range(_ATTEMPTS):
        if attempt == _ATTEMPTS - 1:
            aim = 0.0
        progress(f"lower {stable.variant}")
        for direction, graph in graphs.items():
            if direction not in programs:
                before = choices.get(direction)
                order = before.order if before else ()
                if 0.0 < aim < least.get(direction, 0.0):
                    aim, pinned = aim / _TIGHTEN, pinned + 1
                made = _lower(rule, stable, direction, graph, aim, hard, order)
                error, count = max(made[0].error.values()), len(made[0].double)
                # What costs too much: many more second words than before, or all of them and the aim is missed still.
                dear = count > _MANY * len(before.double) if before else aim < error
                if dear and count > _LARGE and aim:
                    if error > aim:
                        least[direction] = error
                    aim = (aim if before else error) / _TIGHTEN
                    made = _lower(rule, stable, direction, graph, aim, hard, order)
                choices[direction], programs[direction] = made
        progress(f"certify {stable.variant}")
        runner = Runner(programs["forward"], programs["backward"], stable.scalars)
        measured = measure(stable, runner, points=_CERTIFICATION, seed=seed_of(rule.name), known=known)
        # Evidence counts only where all else is well, and first what it holds for good: another run over the program
        # that comes out then changes nothing in how it came about.
        for at in (evidence.missed_points(stable.variant), evidence.worst_points(stable.variant)):
            if not measured.hard:
                measured = measure_at(stable, runner, at, measured)
        if not measured.hard:
            measured = recheck(stable, runner, measured, seed=seed_of(rule.name))
        bounds = measured.bounds
        if not measured.hard:
            checked = 0
            for setting in stable.settings:
                wanted = (rule.f, rule.conditional_var) if is_activation(rule, stable) else (None, None)
                f, conditional = (None if e is None else _evaluated(rule, e, stable, setting) for e in wanted)
                checked += check_promises(rule.name, stable, runner, setting, f, conditional, seed=seed)
            both = (programs["forward"], programs["backward"])
            runs = evidence.of(stable.variant, program_digest(both))
            for run in runs:
                for name, bound in bounds.items():
                    bound.take_in(run, name)
            tolerance = tolerance_of(rule, stable)
            return Certified(stable, *both, choices, bounds, measured.points, checked, runs, tolerance)
        for setting, at in measured.hard:
            if pinned:  # rounding is looked at more closely where it is worst
                around = sampler_of(stable.forward.inputs).neighbours(at, seed + attempt, _NEAR)
                hard.append((setting, joined([at, around]), _SOUGHT_PINNED))
            else:
                hard.append((setting, at, _SOUGHT))
        aim *= _TIGHTEN
        for direction, graph in graphs.items():
            if any(bounds[name].error > stable.accepted for name in graph.outputs):
                del programs[direction]
        if pinned > _PINNED:
            break
    raise BuildError(rule.name, "certify", f"variant {stable.variant}: {missed_by(bounds, stable)}")


def _by_sums(rule: Rule, stable: Stable) -> Certified:
    """A variant whose float32 is float64 rounded once: there is nothing to lower."""
    found = measured_by_sums(rule, stable)
    kernels = kernels_of(stable, f"{rule.name}_{stable.variant}_float64")
    forward, backward = (kernel.program for kernel in kernels)
    stable = replace(stable, facts={**stable.facts, **found.facts}, by_sums=True)
    return Certified(
        stable, forward, backward, {}, found.bounds, found.points, found.promises, (), tolerance_of_sums(stable)
    )


def _lower(
    rule: Rule,
    stable: Stable,
    direction: str,
    graph: Graph,
    aim: float,
    hard: Sequence[_Hard],
    order: Sequence[Part] = (),
) -> tuple[Choice, Program]:
    """The cheapest program within ``aim`` that the ablation finds."""
    name = f"{rule.name}_{stable.variant}_{direction}"
    for value in (graph.constant(index) for index in graph.live()):
        if value is not None and mpmath.isfinite(value) and abs(value) >= _OVERFLOWS:
            needed = f"the kernels need the constant {mpmath.nstr(value, 3)}, beyond float32"
            cause = f"variant {stable.variant}: {needed}: f is too large or too steep"
            raise BuildError(rule.name, "lower", cause, rule.f)
    calibrations = _calibrations(stable, graph, seed_of(rule.name), hard)
    choice = choose(graph, name, calibrations, aim, order)
    if max(choice.error.values()) > stable.goal:
        errors = ", ".join(f"{name} {error:.3g}" for name, error in choice.error.items())
        cause = (
            f"variant {stable.variant}: even with double-floats throughout, the error is {errors} "
            f"{stable.unit}, expected at most {stable.goal:g}; {_place(graph, choice, calibrations)}"
        )
        raise BuildError(rule.name, "lower", cause)
    _check_float64(rule, stable, stable.forward64 if direction == "forward" else stable.partials64, calibrations)
    return choice, optimise(lower(graph, name, choice.double, choice.orders, backward=direction == "backward"))


def _place(graph: Graph, choice: Choice, calibrations: Sequence[Calibration]) -> str:
    """Where an output is furthest off, in words."""
    program = lower(graph, "missed", choice.double, choice.orders)
    output = max(choice.error, key=lambda name: choice.error[name])
    errors = [one.errors(output, evaluate(program, one.inputs, one.params)[output]) for one in calibrations]
    worst = max(range(len(errors)), key=lambda i: float(errors[i].max()))
    place = int(errors[worst].argmax())
    at = ", ".join(f"{name} = {float(values[place]):.4g}" for name, values in calibrations[worst].inputs.items())
    return f"{output} is furthest off at {at}"


def _check_float64(rule: Rule, stable: Stable, graph: Graph, calibrations: Sequence[Calibration]) -> None:
    """The PyTorch form, rounded once to float32, keeps the goal as well; a zero of the mean is left to its neighbours.

    Raises:
        BuildError: if it does not.
    """
    for calibration in calibrations:
        inputs = {name: values.astype(np.float64) for name, values in calibration.inputs.items()}
        away = np.ones_like(next(iter(inputs.values())), dtype=bool)
        with np.errstate(all="ignore"):
            for ratio in stable.focus(calibration.real):
                away &= np.abs(inputs["mean"] / np.sqrt(inputs["var"]) / ratio - 1) > _NEAR_ZERO
        for output, values in outputs_float64(graph, {**inputs, **calibration.real}).items():
            # Beyond float32 its largest number stands for a result, as in the kernels.
            computed = np.broadcast_to(np.clip(values, -LARGEST, LARGEST), away.shape).astype(np.float32)
            error = float(calibration.errors(output, computed)[away].max(initial=0.0))
            if not error <= stable.goal:
                cause = f"the float64 form's {output} misses the goal of {stable.goal:g} {stable.unit} by itself"
                raise BuildError(rule.name, "strategies", f"variant {stable.variant}: {cause}: {error:.3g}")


def _calibrations(stable: Stable, graph: Graph, seed: int, hard: Sequence[_Hard]) -> list[Calibration]:
    """Error measures at the first settings, beside places at all, and where earlier programs missed the goal."""
    groups: dict[tuple[float, ...], tuple[Mapping[str, float], list[tuple[Points, float]]]] = {}
    sampler = sampler_of(graph.inputs)
    for setting in stable.settings[:_FIRST]:
        spread = sampler.calibration(stable, graph, setting, _CALIBRATION, seed)
        groups[tuple(setting.values())] = setting, [(spread, 1.0)]
    for setting in stable.settings[_FIRST:]:
        beside = points_beside(stable.places(setting), _CALIBRATION // 4, seed)
        if beside[0].size:
            groups[tuple(setting.values())] = setting, [(beside, _BESIDE)]
    for setting, points, weight in hard:
        groups.setdefault(tuple(setting.values()), (setting, []))[1].append((points, weight))
    stand_in = Program("parameters", graph.inputs, tuple(words(graph)), (), ())
    return [_calibration(stable, stand_in, setting, parts) for setting, parts in groups.values()]


def _calibration(
    stable: Stable, stand_in: Program, setting: Mapping[str, float], parts: Sequence[tuple[Points, float]]
) -> Calibration:
    """Points at one setting; the errors of each part count by its weight."""
    points = joined([part for part, _ in parts])
    weight = np.concatenate([np.full(part[0].size, share) for part, share in parts])
    stable = stable.at(setting)
    exact = stable.truth(*points, setting)
    params = kernel_params(stand_in, setting, stable.scalars(setting))
    derived = {name.removesuffix("_hi") for name in params if name.endswith("_hi")} - set(setting)
    real = {**setting, **{name: params[f"{name}_hi"] + params[f"{name}_lo"] for name in derived}}

    @functools.cache
    def errors_of(output: str) -> Errors:
        return errors_over(stable.measure, output, exact[output], *points)

    inputs = dict(zip(stand_in.inputs, points, strict=True))
    return Calibration(inputs, params, real, lambda output, computed: weight * errors_of(output)(computed))


def is_activation(rule: Rule, stable: Stable) -> bool:
    """Whether a variant's mean at v = 0 is f: not of other inputs or approximations, nor where f is random itself."""
    return stable.variant in ("exact", "tight") and rule.noise is None and "mean" in stable.outputs


def _evaluated(rule: Rule, f: sympy.Expr, stable: Stable, setting: Mapping[str, float]) -> Callable[..., F64]:
    """A function of a rule's inputs on arrays; NaN beyond the reach of the variant."""
    f = f.subs({p.symbol: _exact(setting[p.name]) for p in rule.parameters})
    symbols = input_symbols(rule.inputs)

    def evaluate(*values: F64) -> F64:
        with mpmath.workdps(30):
            rows = [dict(zip(symbols, map(_exact, point), strict=True)) for point in zip(*values, strict=True)]
            near = np.abs(values[0]) <= stable.reach
            return np.array([float(sympy.N(f.subs(w), 20)) if n else np.nan for w, n in zip(rows, near, strict=True)])

    return evaluate


def _exact(value: float) -> sympy.Rational:
    """The number itself: with 30 digits a sum such as x + 1 would round."""
    return sympy.Rational(float(value))


_WORST, _EVEN, _SCREENED = 20, 60, 20_000
_DOMAIN = (1e4, 1e-12, 1e8)  # |mean| up to, variance from, to


def recheck(stable: Stable, runner: Runner, measured: Measured, *, seed: int) -> Measured:
    """``measured``, with the errors at the decisive points by ``stable.rigorous``, where there is one, taken in."""
    if stable.rigorous is None:
        return measured
    for setting in stable.settings:
        here = replace(stable.at(setting), settings=(setting,))
        points = _decisive(here, runner, setting, seed)
        measured = measure_at(replace(here, truth=stable.rigorous), runner, points, measured)
        if measured.hard:
            break
    return measured


def _decisive(stable: Stable, runner: Runner, setting: Mapping[str, float], seed: int) -> Points:
    far, low, high = _DOMAIN
    mean, var = worst_points(stable, runner, setting, points=_SCREENED, seed=seed + 7)
    usable = in_domain(mean, var) & (np.abs(mean) <= far) & (low <= var) & (var <= high)
    mean, var = mean[usable], var[usable]
    exact, computed = stable.truth(mean, var, setting), runner(mean, var, setting)
    errors = (stable.measure(name, computed[name], exact[name], mean, var) for name in exact)
    chosen = [np.argsort(error, kind="stable")[-_WORST:] for error in errors]
    picked = np.unique(np.concatenate(chosen))
    even_mean, even_var = wide_points(4000, seed + 8)
    inside = in_domain(even_mean, even_var) & (np.abs(even_mean) <= far) & (low <= even_var) & (even_var <= high)
    even = np.flatnonzero(inside)[:_EVEN]
    return np.concatenate([mean[picked], even_mean[even]]), np.concatenate([var[picked], even_var[even]])
