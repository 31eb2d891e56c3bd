"""One rule through all stages: from the rule as data to the texts of its generated files.

Nothing is written to disk here; :mod:`momentgen.build` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import mpmath
import numpy as np

from momentgen.compiler.certify.evidence import Evidence, program_digest
from momentgen.compiler.certify.sampling import sampler_of
from momentgen.compiler.certify.variant import Certified, Progress, certified, is_activation
from momentgen.compiler.derive import derive, derive_joint
from momentgen.compiler.derive.derivation import affine_parameters
from momentgen.compiler.emit import (
    Header,
    render_c,
    render_c_float64,
    render_triton,
    render_triton_sums,
)
from momentgen.compiler.emit._text import json_text
from momentgen.compiler.emit.module import render_module
from momentgen.compiler.emit.torch import render_torch
from momentgen.compiler.ir.program import Program
from momentgen.compiler.ir.stable import Stable, limits_of
from momentgen.compiler.lower.float64 import kernels_of
from momentgen.compiler.measure.ulp import EDGE_LABELS
from momentgen.compiler.strategies import approximations, ways
from momentgen.compiler.strategies.joint.joint import stabilise_joint
from momentgen.errors import BuildError
from momentgen.rule import Rule


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


def compile_rule(
    rule: Rule, *, progress: Progress = lambda stage: None, evidence: Evidence | None = None
) -> CompiledRule:
    """Derive, find a strategy for, lower, certify and emit ``rule``.

    Args:
        rule: a checked rule.
        progress: called with the name of each stage as it begins.
        evidence: what exhaustive runs found, if there were any.

    Raises:
        BuildError: naming the rule, the stage and the cause.
    """
    evidence = evidence or Evidence(rule.name)
    called = {p.symbol.name: p.name for p in rule.parameters}
    progress("derive")
    if len(rule.inputs) > 1 or rule.noise is not None:
        joint = derive_joint(rule)
        rule = joint.rule
        progress("strategies")
        compiled = [certified(rule, stable, progress, evidence) for stable in stabilise_joint(joint)]
    else:
        derivation = derive(rule)
        rule = derivation.rule  # with the units that were found
        progress("strategies")
        compiled = [*_compile_first(rule, ways(derivation), progress, evidence)]
        compiled += [certified(rule, stable, progress, evidence) for stable in approximations(derivation)]
    files: dict[str, str] = {}
    summaries: list[VariantSummary] = []
    programs_of: dict[str, tuple[Program, Program]] = {}
    alike: dict[str, str] = {}  # variants that are another one in float64
    for one in compiled:
        stable = one.stable
        progress(f"emit {stable.variant}")
        given = rule.conditional_var
        about = (f"f(x) = {rule.f}", *([] if given is None else [f"Var(Y | x) = {given}"]))
        header = Header(rule.name, stable.variant, about)
        programs = programs_of[stable.variant] = (one.forward, one.backward)
        dated = replace(header, program=program_digest(programs))
        if stable.by_sums is None:
            files[f"{stable.variant}.c"] = render_c(programs, dated)
            files[f"{stable.variant}_triton.py"] = render_triton(programs, header)
        else:
            rounded = replace(stable, forward64=stable.forward, partials64=stable.partials)
            kernels = kernels_of(rounded, f"{rule.name}_{stable.variant}")
            files[f"{stable.variant}.c"] = render_c_float64(kernels, dated, rounded=True)
            files[f"{stable.variant}_triton.py"] = render_triton_sums(kernels, header)
        earlier = (other.stable for other in compiled[: compiled.index(one)])
        if same := next((other.variant for other in earlier if _same_in_float64(other, stable)), None):
            alike[stable.variant] = same
        else:
            summary = f"{rule.name}, variant {stable.variant}: moments and their gradients in float64."
            kernels = kernels_of(stable, f"{rule.name}_{stable.variant}_float64")
            files[f"{stable.variant}_torch.py"] = render_torch(stable, kernels, header, summary)
            files[f"{stable.variant}_float64.c"] = render_c_float64(kernels, header)
        certificate = _certificate(rule, one, alike.get(stable.variant, stable.variant))
        files[f"{stable.variant}.json"] = json_text(certificate) + "\n"
        bounds = {name: f"{bound.error:.2g} {stable.unit}" for name, bound in one.bounds.items()}
        operations = {"forward": one.forward.operations, "backward": one.backward.operations}
        summaries.append(VariantSummary(stable.variant, bounds, operations))
    names = tuple(one.stable.variant for one in compiled)
    affine = affine_parameters(rule)
    files["__init__.py"] = render_module(
        rule, names, header_digest=rule.digest, float64=alike, affine=affine, called=called
    )
    return CompiledRule(rule.name, files, tuple(summaries), programs_of)


def _same_in_float64(one: Stable, other: Stable) -> bool:
    """Whether two variants have the same float64 code."""
    pairs = (one.forward64, other.forward64), (one.partials64, other.partials64)
    same = all((a.nodes, a.outputs, a.params) == (b.nodes, b.outputs, b.params) for a, b in pairs)
    return same and one.scalars_source == other.scalars_source


def _compile_first(
    rule: Rule, tried: Iterable[tuple[Stable, ...]], progress: Progress, evidence: Evidence
) -> tuple[Certified, ...]:
    """The variants by the first way that reaches the accuracy asked.

    A way that promises less than the first is none, but where the rule takes goals by ``moments`` for those in ulp,
    and the latter are missed: as by the slopes of a mean that falls and rises.

    Raises:
        BuildError: if none does; says by how much the last misses it, and among ``others`` by how much each does.
    """
    misses: list[tuple[str, BuildError]] = []
    promised: tuple[tuple[str, float], ...] = ()  # unit and goal of each variant, sorted
    for stables in tried:
        goals = tuple(sorted({(stable.unit, stable.goal) for stable in stables}))
        if not promised or (misses and (rule.accuracy.moments or rule.accuracy.relative)):
            promised = goals
        if goals != promised:
            continue
        try:
            return tuple(certified(rule, stable, progress, evidence) for stable in stables)
        except BuildError as error:
            misses.append((stables[0].way, error))
        progress("strategies")
    *others, (way, last) = misses
    said = tuple((other, f"stage {miss.stage}, {miss.cause}") for other, miss in others)
    named = f"{last.cause} ({way})" if others else last.cause
    raise BuildError(rule.name, last.stage, named, last.expression, said) from last


def _certificate(rule: Rule, compiled: Certified, float64_code: str) -> dict[str, Any]:
    """What a variant's JSON file says; ``float64_code`` is the variant whose code serves it in float64."""
    stable = compiled.stable
    bounds = {name: bound.as_data(stable.unit) for name, bound in compiled.bounds.items()}
    runs = [run.summary() for run in compiled.exhaustive]
    for found in (*bounds.values(), *(output for run in runs for output in run["outputs"].values())):
        if "histogram_ulp" in found:  # the bins are the same for all, and stand once
            found["histogram_ulp"] = list(found["histogram_ulp"].values())
    return {
        "rule": rule.name,
        "variant": stable.variant,
        "float64_code": float64_code,
        "digest": rule.digest,
        "f": str(rule.f),
        "citation": rule.citation,
        "goal": {stable.unit: stable.goal},
        "tolerance": dict(compiled.tolerance),
        "histogram_bins": list(EDGE_LABELS),
        "bounds": bounds,
        "domain": {
            **sampler_of(stable.forward.inputs).domain,
            **stable.domain,
            **limits_of(stable),
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
                    *(["variance never negative"] if "var" in stable.outputs else []),
                    f"finite input gives no NaN, and finite gradients{_edge(stable)}",
                    *([_at_zero(stable)] if is_activation(rule, stable) else []),
                    *(["v = 0 gives variance 0"] if stable.vanishes else []),
                    *(["v = 0 gives the variance given x = mu"] if stable.conditional_slack else []),
                    "NaN in gives NaN out; v < 0 gives NaN",
                ],
            },
        },
        "exhaustive": runs,
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


def _edge(stable: Stable) -> str:
    """Where that is not so, in words."""
    return f", but for {stable.edge.words}" if stable.edge is not None and stable.edge.words else ""


def _digits(value: float) -> float | str:
    return float(f"{value:.4g}") if np.isfinite(value) else str(value)


def _fit_data(fit: Any) -> dict[str, Any]:
    return {
        "what": fit.what,
        "interval": [mpmath.nstr(edge, 12) for edge in fit.interval],
        "centre": mpmath.nstr(fit.centre, 12),
        "degree": len(fit.coefficients) - 1,
        "coefficients": [mpmath.nstr(c, 20) for c in fit.coefficients],
        "relative_error": mpmath.nstr(fit.error, 4),
    }
