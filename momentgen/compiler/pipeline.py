"""One rule through all stages: from the rule as data to the texts of its generated files.

Nothing is written to disk here; :mod:`momentgen.build` does that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import sympy

from momentgen.compiler.ablate import Calibration, Choice, Part, choose
from momentgen.compiler.certify import Bound, Known, Runner, check_promises, kernel_params, measure, measure_at
from momentgen.compiler.derive import derive, derive_joint
from momentgen.compiler.emit import Header, render_c, render_c_float64, render_triton
from momentgen.compiler.emit.module import render_module
from momentgen.compiler.emit.torch import render_torch
from momentgen.compiler.evidence import Evidence, Run, program_digest
from momentgen.compiler.lower import lower
from momentgen.compiler.passes import optimise
from momentgen.compiler.points import Points, seed_of
from momentgen.compiler.program import Program
from momentgen.compiler.real import Graph, outputs_float64
from momentgen.compiler.recheck import recheck
from momentgen.compiler.sampling import joined, sampler_of
from momentgen.compiler.stabilise import Stable, approximations, stabilise_joint, ways
from momentgen.errors import BuildError
from momentgen.rule import Rule
from momentgen.rule_inputs import input_symbols

__all__ = ["CompiledRule", "VariantSummary", "compile_rule"]

Progress = Callable[[str], None]
_CALIBRATION = 2500
_CERTIFICATION = 12_000
_ATTEMPTS = 12
_TIGHTEN = 0.97  # the aim's share that an attempt leaves to the next
_NEAR_ZERO = 1e-6  # share of a within which of a mean's zero float64 cancels
_SOUGHT = 0.88  # an error at a point that was searched out may be nearer to the goal than at a random one


@dataclass(frozen=True)
class VariantSummary:
    """A row of the build's closing table."""

    name: str
    bounds: Mapping[str, str]
    operations: Mapping[str, int]


@dataclass(frozen=True)
class CompiledRule:
    """All that one rule becomes: file name -> text, what to print, and each variant's programs (forward, backward)."""

    rule: str
    files: Mapping[str, str]
    variants: tuple[VariantSummary, ...]
    programs: Mapping[str, tuple[Program, Program]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Compiled:
    """One variant, lowered and certified."""

    stable: Stable
    forward: Program
    backward: Program
    choices: Mapping[str, Choice]
    bounds: Mapping[str, Bound]
    points: int
    promises: int
    exhaustive: tuple[Run, ...]


def compile_rule(
    rule: Rule, *, progress: Progress = lambda stage: None, evidence: Evidence | None = None
) -> CompiledRule:
    """Derive, stabilise, lower, certify and emit ``rule``.

    Args:
        rule: a checked rule.
        progress: called with the name of each stage as it begins.
        evidence: what exhaustive runs found, if there were any.

    Raises:
        BuildError: naming the rule, the stage and the cause.
    """
    evidence = evidence or Evidence(rule.name)
    progress("derive")
    if len(rule.inputs) > 1 or rule.noise is not None:
        joint = derive_joint(rule)
        progress("stabilise")
        compiled = [_compile_variant(rule, stable, progress, evidence) for stable in stabilise_joint(joint)]
    else:
        derivation = derive(rule)
        progress("stabilise")
        compiled = _compile_first(rule, ways(derivation), progress, evidence)
        compiled += [_compile_variant(rule, stable, progress, evidence) for stable in approximations(derivation)]
    files: dict[str, str] = {}
    summaries: list[VariantSummary] = []
    programs_of: dict[str, tuple[Program, Program]] = {}
    for one in compiled:
        stable = one.stable
        progress(f"emit {stable.variant}")
        header = _header(rule, one)
        programs = programs_of[stable.variant] = (one.forward, one.backward)
        files[f"{stable.variant}.c"] = render_c(programs, header)
        files[f"{stable.variant}_triton.py"] = render_triton(programs, header)
        summary = f"{rule.name}, variant {stable.variant}: moments and their gradients in any floating dtype."
        wide = _header(rule, one, float64=True)
        files[f"{stable.variant}_torch.py"] = render_torch(stable, wide, summary)
        name = f"{rule.name}_{stable.variant}_float64"
        files[f"{stable.variant}_float64.c"] = render_c_float64(stable, name, wide)
        files[f"{stable.variant}.json"] = json.dumps(_certificate(rule, one), indent=1) + "\n"
        bounds = {name: f"{bound.error:.2g} {stable.unit}" for name, bound in one.bounds.items()}
        operations = {"forward": one.forward.operations, "backward": one.backward.operations}
        summaries.append(VariantSummary(stable.variant, bounds, operations))
    files["__init__.py"] = render_module(rule, tuple(one.stable.variant for one in compiled), header_digest=rule.digest)
    return CompiledRule(rule.name, files, tuple(summaries), programs_of)


def _compile_first(
    rule: Rule, tried: Iterable[tuple[Stable, ...]], progress: Progress, evidence: Evidence
) -> list[_Compiled]:
    """The variants by the first way that reaches the accuracy asked; one that promises less than the first is none.

    Raises:
        BuildError: if none does; says by how much each misses it.
    """
    misses: list[tuple[str, BuildError]] = []
    promised: set[tuple[str, float]] = set()
    for stables in tried:
        goals = {(stable.unit, stable.goal) for stable in stables}
        promised = promised or goals
        if goals != promised:
            continue
        try:
            return [_compile_variant(rule, stable, progress, evidence) for stable in stables]
        except BuildError as miss:
            misses.append((stables[0].way, miss))
        progress("stabilise")
    if len(misses) == 1:
        raise misses[0][1]
    shown = "".join(f"\n  {way}: stage {miss.stage}, {miss.cause}" for way, miss in misses)
    raise BuildError(rule.name, misses[-1][1].stage, f"no way to the moments of f reaches the accuracy asked:{shown}")


def _compile_variant(rule: Rule, stable: Stable, progress: Progress, evidence: Evidence) -> _Compiled:
    """Lower, certify, and where the goal is missed lower again with those points among the calibration's."""
    seed = seed_of(rule.name, stable.variant)
    aim = stable.aim
    graphs = {"forward": stable.forward, "backward": stable.partials}
    choices: dict[str, Choice] = {}
    programs: dict[str, Program] = {}
    hard: list[tuple[Mapping[str, float], Points]] = []
    known = Known()
    for _attempt in range(_ATTEMPTS):
        progress(f"lower {stable.variant}")
        for direction, graph in graphs.items():
            if direction not in programs:
                order = choices[direction].order if direction in choices else ()
                choices[direction], programs[direction] = _lower(rule, stable, direction, graph, aim, hard, order)
        progress(f"certify {stable.variant}")
        runner = Runner(programs["forward"], programs["backward"])

        def params_of(setting: Mapping[str, float], program: Program = programs["forward"]) -> Mapping[str, float]:
            return kernel_params(program, setting, stable.scalars(setting))

        measured = measure(stable, runner, params_of, points=_CERTIFICATION, seed=seed_of(rule.name), known=known)
        # Evidence counts only where all else is well, and first what it holds for good: another run over the program
        # that comes out then changes nothing in how it came about.
        for at in (evidence.missed_points(stable.variant), evidence.worst_points(stable.variant)):
            if not measured.hard:
                measured = measure_at(stable, runner, params_of, at, measured)
        if not measured.hard:
            measured = recheck(stable, runner, params_of, measured, seed=seed_of(rule.name))
        bounds = measured.bounds
        if not measured.hard:
            checked = 0
            for setting in stable.settings:
                f, ulps = _activation(rule, stable, setting), stable.goal if stable.unit.startswith("ulp") else 1.0
                checked += check_promises(
                    rule.name,
                    runner,
                    params_of(setting),
                    f,
                    ulps=ulps,
                    vanishes=stable.vanishes,
                    seed=seed,
                    slack=stable.at(setting).slack,
                    reach=stable.reach,
                )
            both = (programs["forward"], programs["backward"])
            runs = evidence.of(
                stable.variant, program_digest(render_c(both, Header(rule.name, stable.variant, "", {}, {})))
            )
            for run in runs:
                for name, bound in bounds.items():
                    bound.take_in(run, name)
            return _Compiled(stable, *both, choices, bounds, measured.points, checked, runs)
        hard += measured.hard
        aim *= _TIGHTEN
        for direction, graph in graphs.items():
            if any(bounds[name].error > stable.accepted for name in graph.outputs):
                del programs[direction]
    where = {name: bound.at for name, bound in bounds.items() if bound.error > stable.goal}
    found = {name: bound.error for name, bound in bounds.items()}
    raise BuildError(
        rule.name,
        "certify",
        f"variant {stable.variant}: expected an error of at most {stable.goal:g} {stable.unit}, "
        f"got {_shown(found)} at {where}",
    )


def _lower(
    rule: Rule,
    stable: Stable,
    direction: str,
    graph: Graph,
    aim: float,
    hard: Sequence[tuple[Mapping[str, float], Points]],
    order: Sequence[Part] = (),
) -> tuple[Choice, Program]:
    """The cheapest program within ``aim`` that the ablation finds."""
    name = f"{rule.name}_{stable.variant}_{direction}"
    calibrations = _calibrations(stable, graph, seed_of(rule.name), hard)
    choice = choose(graph, name, calibrations, aim, order)
    if max(choice.error.values()) > stable.goal:
        raise BuildError(
            rule.name,
            "lower",
            f"variant {stable.variant}: even with double-floats throughout, the error is "
            f"{_shown(choice.error)} {stable.unit}, expected at most {stable.goal:g}",
        )
    _check_float64(rule, stable, stable.forward64 if direction == "forward" else stable.partials64, calibrations)
    return choice, optimise(lower(graph, name, choice.double, choice.orders, backward=direction == "backward"))


def _check_float64(rule: Rule, stable: Stable, graph: Graph, calibrations: Sequence[Calibration]) -> None:
    """The PyTorch form, rounded once to float32, keeps the goal as well; a zero of the mean is left to its neighbours.

    Raises:
        BuildError: if it does not.
    """
    for setting, calibration in zip(stable.settings, calibrations, strict=False):
        inputs = {name: values.astype(np.float64) for name, values in calibration.inputs.items()}
        away = np.ones_like(next(iter(inputs.values())), dtype=bool)
        with np.errstate(all="ignore"):
            for ratio in stable.focus(setting):
                away &= np.abs(inputs["mean"] / np.sqrt(inputs["var"]) / ratio - 1) > _NEAR_ZERO
        for output, values in outputs_float64(graph, {**inputs, **calibration.real}).items():
            with np.errstate(over="ignore"):
                computed = np.broadcast_to(values, away.shape).astype(np.float32)
            error = calibration.error(output, computed, away)
            if not error <= stable.goal:
                raise BuildError(
                    rule.name,
                    "stabilise",
                    f"variant {stable.variant}: the float64 form's {output} misses the goal of {stable.goal:g} "
                    f"{stable.unit} by itself: {error:.3g}",
                )


def _shown(errors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {error:.3g}" for name, error in errors.items())


def _calibrations(
    stable: Stable, graph: Graph, seed: int, hard: Sequence[tuple[Mapping[str, float], Points]]
) -> list[Calibration]:
    """Error measures at the first settings, and at the points where earlier programs missed the goal."""
    groups: dict[tuple[float, ...], tuple[Mapping[str, float], list[tuple[Points, float]]]] = {}
    sampler = sampler_of(graph.inputs)
    for setting in stable.settings[:2]:
        spread = sampler.calibration(stable, graph, setting, _CALIBRATION, seed)
        groups[tuple(setting.values())] = setting, [(spread, 1.0)]
    for setting, points in hard:
        groups.setdefault(tuple(setting.values()), (setting, []))[1].append((points, _SOUGHT))
    stand_in = lower(graph, "parameters", frozenset(), {})
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

    def error(output: str, computed: npt.NDArray[np.float32], where: npt.NDArray[np.bool_] | None = None) -> float:
        errors = weight * stable.measure(output, computed, exact[output], *points)
        return float((errors if where is None else errors[where]).max(initial=0.0))

    return Calibration(dict(zip(stand_in.inputs, points, strict=True)), params, real, error)


def _activation(
    rule: Rule, stable: Stable, setting: Mapping[str, float]
) -> Callable[..., npt.NDArray[np.float64]] | None:
    """f on arrays, for the variants that are f's moments; None where f is random itself."""
    if stable.variant not in ("exact", "tight") or rule.noise is not None:
        return None
    f = rule.f.subs({p.symbol: sympy.Float(setting[p.name], 30) for p in rule.parameters})
    symbols = input_symbols(rule.inputs)

    def evaluate(*values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        with mpmath.workdps(30):
            rows = [dict(zip(symbols, map(_exact, point), strict=True)) for point in zip(*values, strict=True)]
            near = np.abs(values[0]) <= stable.reach
            return np.array([float(sympy.N(f.subs(w), 20)) if n else np.nan for w, n in zip(rows, near, strict=True)])

    return evaluate


def _exact(value: float) -> sympy.Float:
    return sympy.Float(float(value), 30)


@lru_cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("momentgen", "sympy", "mpmath", "python-flint", "numpy")}


def _header(rule: Rule, compiled: _Compiled, float64: bool = False) -> Header:
    """The comment that opens a file; of the float64 forms, which the certificate does not measure, without it."""
    stable = compiled.stable
    summary = [f"f(x) = {rule.f}"]
    if rule.citation:
        summary.append(rule.citation)
    if float64:
        return Header(rule.name, stable.variant, rule.digest, _versions(), {}, (), tuple(summary))
    lines = [
        f"{name:<11} {bound.error:.3g} {stable.unit}, worst at "
        + ", ".join(f"{k} = {w:.9g}" for k, w in bound.at.items())
        for name, bound in compiled.bounds.items()
    ]
    lines.append(
        f"against exact values at {compiled.points} points over all of float32; details in {stable.variant}.json"
    )
    return Header(
        rule.name,
        stable.variant,
        rule.digest,
        _versions(),
        {p.name: p.operations for p in (compiled.forward, compiled.backward)},
        tuple(lines),
        tuple(summary),
    )


def _certificate(rule: Rule, compiled: _Compiled) -> dict[str, Any]:
    stable = compiled.stable
    return {
        "rule": rule.name,
        "variant": stable.variant,
        "digest": rule.digest,
        "f": str(rule.f),
        "citation": rule.citation,
        "goal": {stable.unit: stable.goal},
        "bounds": {name: bound.as_data(stable.unit) for name, bound in compiled.bounds.items()},
        "domain": {
            **sampler_of(stable.forward.inputs).domain,
            **stable.domain,
            "parameters": {p.name: [float(p.low), float(p.high)] for p in rule.parameters},
        },
        "method": {
            "how": stable.doc,
            **({"way": stable.way} if stable.way else {}),
            "truth": "rigorous ball arithmetic or quadrature, rounded to float64",
            "points": compiled.points,
            "settings": list(stable.settings),
            "univariate": "; ".join(f"exhaustive: {run.covers}" for run in compiled.exhaustive) or "sampled",
            "promises": {
                "points": compiled.promises,
                "checked": [
                    "variance never negative",
                    "finite input gives no NaN, and finite gradients",
                    *([_at_zero(stable)] if _activation(rule, stable, rule.defaults) else []),
                    *(["v = 0 gives variance 0"] if stable.vanishes else []),
                    "NaN in gives NaN out; v < 0 gives NaN",
                ],
            },
        },
        "exhaustive": [run.summary() for run in compiled.exhaustive],
        "approximations": [_fit_data(fit) for fit in stable.fits],
        "facts": dict(stable.facts),
        "operations": {p.name.rsplit("_", 1)[1]: p.count() for p in (compiled.forward, compiled.backward)},
        "ablation": {
            direction: {
                "double_floats": len(choice.double),
                "error_all_single": {k: _digits(w) for k, w in choice.all_single.items()},
                "error_all_double": {k: _digits(w) for k, w in choice.all_double.items()},
            }
            for direction, choice in compiled.choices.items()
        },
    }


def _at_zero(stable: Stable) -> str:
    """What is promised of the mean at v = 0, in words."""
    within = f" within {stable.slack:g} max(1, |f(mu)|)" if stable.slack else ""
    where = f" for |mu| <= {stable.reach:g}" if np.isfinite(stable.reach) else ""
    return f"v = 0 gives mean f(mu){within}{where}"


def _digits(value: float) -> float | str:
    return float(f"{value:.4g}") if np.isfinite(value) else str(value)


def _fit_data(fit: Any) -> dict[str, Any]:
    data = {
        "what": fit.what,
        "interval": [mpmath.nstr(edge, 12) for edge in fit.interval],
        "centre": mpmath.nstr(fit.centre, 12),
        "degree": len(fit.coefficients) - 1,
        "coefficients": [mpmath.nstr(c, 20) for c in fit.coefficients],
        "relative_error": mpmath.nstr(fit.error, 4),
    }
    if fit.bound is not None:
        data["proven_bound"] = mpmath.nstr(fit.bound, 4)
    return data
