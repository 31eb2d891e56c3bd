"""One rule through all stages: from the rule as data to the texts of its generated files.

Nothing is written to disk here; :mod:`momentgen.build` does that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import sympy

from momentgen.compiler.ablate import Calibration, Choice, choose
from momentgen.compiler.certify import Bound, Runner, check_promises, kernel_params, measure, measure_at
from momentgen.compiler.derive import Derivation, derive
from momentgen.compiler.emit import Header, render_c, render_triton
from momentgen.compiler.emit.module import render_module
from momentgen.compiler.emit.torch import render_torch
from momentgen.compiler.evidence import Evidence, Run, program_digest
from momentgen.compiler.lower import lower
from momentgen.compiler.passes import optimise
from momentgen.compiler.points import DOMAIN, Points, calibration_points, near_points, seed_of
from momentgen.compiler.program import Program
from momentgen.compiler.real import Graph
from momentgen.compiler.recheck import recheck
from momentgen.compiler.stabilise import Stable, stabilise
from momentgen.errors import BuildError
from momentgen.rule import Rule

__all__ = ["CompiledRule", "VariantSummary", "compile_rule"]

Progress = Callable[[str], None]
_CALIBRATION = 2500
_CERTIFICATION = 12_000
_ATTEMPTS = 5


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
    progress("derive")
    derivation = derive(rule)
    progress("stabilise")
    files: dict[str, str] = {}
    summaries: list[VariantSummary] = []
    programs_of: dict[str, tuple[Program, Program]] = {}
    stables = stabilise(derivation)
    for stable in stables:
        compiled = _compile_variant(rule, stable, progress, evidence or Evidence(rule.name))
        progress(f"emit {stable.variant}")
        header = _header(rule, derivation, compiled)
        programs = programs_of[stable.variant] = (compiled.forward, compiled.backward)
        files[f"{stable.variant}.c"] = render_c(programs, header)
        files[f"{stable.variant}_triton.py"] = render_triton(programs, header)
        summary = f"{rule.name}, variant {stable.variant}: moments and their gradients in any floating dtype."
        files[f"{stable.variant}_torch.py"] = render_torch(stable, header, summary)
        files[f"{stable.variant}.json"] = json.dumps(_certificate(rule, compiled), indent=1) + "\n"
        bounds = {name: f"{bound.error:.2g} {stable.unit}" for name, bound in compiled.bounds.items()}
        operations = {"forward": compiled.forward.operations, "backward": compiled.backward.operations}
        summaries.append(VariantSummary(stable.variant, bounds, operations))
    files["__init__.py"] = render_module(rule, tuple(s.variant for s in stables), header_digest=rule.digest)
    return CompiledRule(rule.name, files, tuple(summaries), programs_of)


def _compile_variant(rule: Rule, stable: Stable, progress: Progress, evidence: Evidence) -> _Compiled:
    """Lower, certify, and where the goal is missed lower again with those points among the calibration's."""
    seed = seed_of(rule.name, stable.variant)
    aim = stable.aim
    candidates = dict(zip(("forward", "backward"), _candidates(stable), strict=True))
    hard: list[tuple[Mapping[str, float], Points]] = []
    for _attempt in range(_ATTEMPTS):
        progress(f"lower {stable.variant}")
        choices, programs = {}, {}
        for direction, graphs in candidates.items():
            graph, choices[direction], programs[direction] = _lower(rule, stable, direction, graphs, aim, hard)
            candidates[direction] = (graph,)
        progress(f"certify {stable.variant}")
        runner = Runner(programs["forward"], programs["backward"])

        def params_of(setting: Mapping[str, float], program: Program = programs["forward"]) -> Mapping[str, float]:
            return kernel_params(program, setting, stable.scalars(setting))

        measured = measure(stable, runner, params_of, points=_CERTIFICATION, seed=seed_of(rule.name))
        # Evidence counts only where all else is well, and first what it holds for good: another run over the program
        # that comes out then changes nothing in how it came about.
        for known in (evidence.missed_points(stable.variant), evidence.worst_points(stable.variant)):
            if not measured.hard:
                measured = measure_at(stable, runner, params_of, known, measured)
        if not measured.hard:
            measured = recheck(stable, runner, params_of(stable.settings[0]), measured, seed=seed_of(rule.name))
        bounds = measured.bounds
        if not measured.hard:
            checked = 0
            for setting in stable.settings:
                f, ulps = _activation(rule, stable, setting), stable.goal if stable.unit == "ulp" else 1.0
                checked += check_promises(
                    rule.name,
                    runner,
                    params_of(setting),
                    f,
                    ulps=ulps,
                    vanishes=stable.vanishes,
                    seed=seed,
                    slack=stable.slack,
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
        aim *= 0.92
    where = {name: bound.at for name, bound in bounds.items() if bound.error > stable.goal}
    found = {name: bound.error for name, bound in bounds.items()}
    raise BuildError(
        rule.name,
        "certify",
        f"variant {stable.variant}: expected an error of at most {stable.goal:g} {stable.unit}, "
        f"got {_shown(found)} at {where}",
    )


def _candidates(stable: Stable) -> tuple[tuple[Graph, ...], tuple[Graph, ...]]:
    """The graphs to choose from, forward and partials."""
    forward, partials = zip((stable.forward, stable.partials), *stable.alternatives, strict=True)
    return forward, partials


def _lower(
    rule: Rule,
    stable: Stable,
    direction: str,
    graphs: Sequence[Graph],
    aim: float,
    hard: Sequence[tuple[Mapping[str, float], Points]],
) -> tuple[Graph, Choice, Program]:
    """The cheapest program within ``aim`` over the candidate graphs, or the most accurate if none is within."""
    name = f"{rule.name}_{stable.variant}_{direction}"

    def search(graph: Graph, calibrations: list[Calibration]) -> tuple[tuple[bool, float], Choice, Program]:
        choice = choose(graph, name, calibrations, aim)
        program = optimise(lower(graph, name, choice.double, choice.orders, backward=direction == "backward"))
        error = max(choice.error.values())
        return (error > aim, error if error > aim else program.operations), choice, program

    calibrations = [_calibrations(stable, graph, seed_of(rule.name), hard) for graph in graphs]
    # The first calibration, at the default setting, tells the graphs apart.
    few = 1 if len(graphs) > 1 else None
    outcomes = [search(graph, points[:few]) for graph, points in zip(graphs, calibrations, strict=True)]
    index = min(range(len(graphs)), key=lambda i: outcomes[i][0])
    best, (_, choice, program) = graphs[index], outcomes[index]
    if few is not None and len(calibrations[index]) > few:
        _, choice, program = search(best, calibrations[index])
    if max(choice.error.values()) > stable.goal:
        raise BuildError(
            rule.name,
            "lower",
            f"variant {stable.variant}: even with double-floats throughout, the error is "
            f"{_shown(choice.error)} {stable.unit}, expected at most {stable.goal:g}",
        )
    return best, choice, program


def _shown(errors: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {error:.3g}" for name, error in errors.items())


def _calibrations(
    stable: Stable, graph: Graph, seed: int, hard: Sequence[tuple[Mapping[str, float], Points]]
) -> list[Calibration]:
    """Error measures at the first settings, and at the points where earlier programs missed the goal."""
    stand_in = lower(graph, "parameters", frozenset(), {})
    result = []
    for setting in stable.settings[:2]:
        spread = calibration_points(stable.box, _CALIBRATION, seed)
        # Only the mean changes sign; its partials need no closer look there.
        near = near_points(stable.focus(setting) if "mean" in graph.outputs else (), _CALIBRATION // 2, seed)
        mean, var = np.concatenate([spread[0], near[0]]), np.concatenate([spread[1], near[1]])
        result.append(_calibration(stable, stand_in, setting, (mean, var)))
    grouped: dict[tuple[float, ...], list[tuple[Mapping[str, float], Points]]] = {}
    for setting, points in hard:
        grouped.setdefault(tuple(setting.values()), []).append((setting, points))
    for group in grouped.values():
        means, variances = zip(*(points for _, points in group), strict=True)
        result.append(_calibration(stable, stand_in, group[0][0], (np.concatenate(means), np.concatenate(variances))))
    return result


def _calibration(stable: Stable, stand_in: Program, setting: Mapping[str, float], points: Points) -> Calibration:
    mean, var = points
    exact = stable.truth(mean, var, setting)
    params = kernel_params(stand_in, setting, stable.scalars(setting))
    derived = {name.removesuffix("_hi") for name in params if name.endswith("_hi")} - set(setting)
    real = {**setting, **{name: params[f"{name}_hi"] + params[f"{name}_lo"] for name in derived}}

    def error(output: str, computed: npt.NDArray[np.float32]) -> float:
        return float(stable.measure(output, computed, exact[output], mean, var).max())

    return Calibration({"mean": mean, "var": var}, params, real, error)


def _activation(
    rule: Rule, stable: Stable, setting: Mapping[str, float]
) -> Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]] | None:
    """f on arrays, for the variants that are f's moments."""
    if stable.variant not in ("exact", "tight"):
        return None
    f = rule.f.subs({p.symbol: sympy.Float(setting[p.name], 30) for p in rule.parameters})
    (x,) = f.free_symbols

    def evaluate(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        with mpmath.workdps(30):
            return np.array([float(sympy.N(f.subs(x, sympy.Float(float(value), 30)), 20)) for value in values])

    return evaluate


@lru_cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("momentgen", "sympy", "mpmath", "python-flint", "numpy")}


def _header(rule: Rule, derivation: Derivation, compiled: _Compiled) -> Header:
    stable = compiled.stable
    lines = [
        f"{name:<11} {bound.error:.3g} {stable.unit}, worst at "
        + ", ".join(f"{k} = {w:.9g}" for k, w in bound.at.items())
        for name, bound in compiled.bounds.items()
    ]
    lines.append(
        f"against exact values at {compiled.points} points over all of float32; details in {stable.variant}.json"
    )
    summary = [f"f(x) = {rule.f}"]
    if rule.citation:
        summary.append(rule.citation)
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
            **DOMAIN,
            "parameters": {p.name: [float(p.low), float(p.high)] for p in rule.parameters},
        },
        "method": {
            "how": stable.doc,
            "truth": "rigorous ball arithmetic or quadrature, rounded to float64",
            "points": compiled.points,
            "settings": list(stable.settings),
            "univariate": "; ".join(f"exhaustive: {run.covers}" for run in compiled.exhaustive) or "sampled",
            "promises": {
                "points": compiled.promises,
                "checked": [
                    "variance never negative",
                    "finite input gives no NaN, and finite gradients",
                    *([_at_zero(stable)] if stable.variant in ("exact", "tight") else []),
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
