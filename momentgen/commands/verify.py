"""``momentgen verify``: committed certificates, measured again from scratch.

The C of a built package is compiled as it lies there.  It runs at points that no build has seen, and at the worst
points of the certificates, with their neighbours.  Exact values come from the rule alone, by rigorous balls or mpmath.
Two promises are tried as well, at any finite input: no NaN, and no negative variance.

A certificate states the largest error that a long search found; other points may exceed it by a hair.  An excess of up
to 2 % of the bound, or a thousandth of the goal where that is more, is only reported.  (A bound far below the goal
comes from a rounding or two, whose largest sum is rare.)  A larger error, or one above the goal, breaks the
certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from momentgen.build import default_output
from momentgen.build.built import Built, CommittedKernel, check_source, read_built
from momentgen.build.choice import chosen_rules
from momentgen.compiler.certify.bounds import kept
from momentgen.compiler.certify.points import Points, joined, near_points, points_at, seed_of
from momentgen.compiler.certify.sampling import sampler_of
from momentgen.compiler.derive import derive, derive_joint
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.joint.joint import stabilise_joint
from momentgen.errors import MomentgenError
from momentgen.progress import progress_bar
from momentgen.rule import Rule, load_rules

POINTS = 3000  # random points a parameter setting
MARGIN, GOAL_MARGIN = 0.02, 1e-3  # the excess that another sample may show: over a bound, and as a share of the goal

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class OutputCheck:
    """One output or partial of one variant, in the unit of its goal.

    Attributes:
        name: e.g. ``mean`` or ``dvar_dmu``.
        measured: the largest error found.
        certified: the certificate's bound.
        at: the point, and the parameters, of ``measured``.
    """

    name: str
    measured: float
    certified: float
    at: Mapping[str, float]

    @property
    def excess(self) -> float:
        """How far beyond the bound, relative to it; 0 where it holds, infinite for a bound of 0 or an error of NaN.

        >>> OutputCheck("mean", 2.02, 2.0, {}).excess, OutputCheck("mean", 1.9, 2.0, {}).excess
        (0.01..., 0.0)
        """
        if self.measured <= self.certified:
            return 0.0
        return self.measured / self.certified - 1 if self.certified > 0 and self.measured < np.inf else np.inf


@dataclass(frozen=True)
class VariantCheck:
    """What measuring one variant gave.

    Attributes:
        rule, variant: names.
        unit, goal: the unit of all errors, and the largest that the rule allows.
        points: how many points were measured.
        outputs: one check an output and partial.
        promises: what was promised for every finite input and does not hold, with the point, a line each.
    """

    rule: str
    variant: str
    unit: str
    goal: float
    points: int = 0
    outputs: tuple[OutputCheck, ...] = ()
    promises: tuple[str, ...] = ()

    def exceeds(self, check: OutputCheck) -> bool:
        """Whether an error is further beyond its bound than another sample may show."""
        return not check.measured <= check.certified + max(MARGIN * check.certified, GOAL_MARGIN * self.goal)

    @property
    def broken(self) -> list[str]:
        """What is wrong, a line each: promises, bounds, and the goal."""
        lines = [f"{self.rule} {self.variant}: {line}" for line in self.promises]
        for check in self.outputs:
            at = ", ".join(f"{key} = {value:.9g}" for key, value in check.at.items())
            found = f"{self.rule} {self.variant} {check.name}: {check.measured:.4g} {self.unit} at {at}"
            if not check.measured <= self.goal:
                lines.append(f"{found}; the goal is {self.goal:g}")
            elif self.exceeds(check):
                lines.append(f"{found}; certified {check.certified:.4g}")
        return lines


def verify(
    rules: Path,
    output: Path | None = None,
    *,
    only: str | None = None,
    points: int = POINTS,
    seed: int = 0,
) -> tuple[VariantCheck, ...]:
    """Measure the certificates of built rules again; a terminal has a bar while it works.

    Args:
        rules: directory of rule files.
        output: the package that they were built to; ``generated`` beside the rules unless given.
        only: name of the one rule to look at.
        points: random points a variant and parameter setting.
        seed: of these points; another one measures elsewhere.

    Returns:
        One result a variant.

    Raises:
        RuleError: if there is no such rule.
        MomentgenError: if a rule is not built, or was built from another state of its file.
        BuildError: if there is no C compiler, or the rule cannot be derived.
    """
    loaded = {rule.name: rule for rule in load_rules(rules)}
    chosen = chosen_rules(only, loaded, rules)
    package = default_output(rules) if output is None else output
    plan = [(loaded[name], read_built(package, name)) for name in chosen]
    for rule, variants in plan:
        check_source(rule, variants)
    results: list[VariantCheck] = []
    with progress_bar("variants", sum(len(variants) for _, variants in plan), None) as advance:
        for rule, variants in plan:
            advance(len(results), f"{rule.name} (exact values)")
            stables = stables_of(rule, variants)
            for built in variants:
                advance(len(results), f"{rule.name} {built.variant}")
                if built.variant not in stables:
                    raise MomentgenError(f"rule {rule.name} has no variant {built.variant} any more; build it again")
                results.append(verify_variant(built, stables[built.variant], points=points, seed=seed))
    return tuple(results)


def stables_of(rule: Rule, variants: Sequence[Built]) -> dict[str, Stable]:
    """The rule's variants by name, by the strategy that they were built by: exact values and measures of error."""
    if len(rule.inputs) > 1 or rule.noise is not None:
        return {stable.variant: stable for stable in stabilise_joint(derive_joint(rule))}
    stables = stabilise(derive(rule), way=next((built.way for built in variants if built.way), ""))
    return {stable.variant: stable for stable in stables}


def verify_variant(built: Built, stable: Stable, *, points: int = POINTS, seed: int = 0) -> VariantCheck:
    """Measure one variant, at all the settings that it was certified at.

    Args:
        built: the variant as committed.
        stable: the same, for its exact values and its measure of error.
        points: random points a setting.
        seed: of these points.

    Raises:
        BuildError: if the C does not compile.
    """
    largest = {name: _Largest() for name in built.bounds}
    count, promises, sampler = 0, [], sampler_of(built.inputs)
    for setting in stable.settings:
        kernel, stable = CommittedKernel(built, setting), stable.at(setting)
        promises += _broken_promises(
            built, stable, kernel, setting, seed_of("promises", built.rule, built.variant, str(seed))
        )
        batch = _points(built, stable, setting, points, seed)
        # Where errors are bad they are worse nearby: a second round around the worst of the first.
        for round_ in range(2):
            computed, exact = kernel(*batch), stable.truth(*batch, setting)
            count += batch[0].size
            worst = []
            for name, record in largest.items():
                error = stable.measure(name, computed[name], exact[name], *batch)
                record.take_in(error, dict(zip(built.inputs, batch, strict=True)), setting)
                worst.append(np.argsort(error)[-12:])
            if round_ == 0:
                chosen = np.unique(np.concatenate(worst))
                batch = kept(sampler, sampler.neighbours(tuple(array[chosen] for array in batch), seed))
    checks = tuple(OutputCheck(name, record.error, built.bounds[name], record.at) for name, record in largest.items())
    return VariantCheck(built.rule, built.variant, built.unit, built.goal, count, checks, tuple(promises))


def _broken_promises(
    built: Built, stable: Stable, kernel: CommittedKernel, setting: Mapping[str, float], seed: int
) -> list[str]:
    """A negative variance, or a NaN, from finite inputs: any of float32 within the variant's edge, subnormals too."""
    sampler = sampler_of(built.inputs)
    points = joined([sampler.finite(seed), sampler.certain()])
    if stable.edge is not None:
        inside = stable.edge.inside(*(array.astype(np.float64) for array in points))
        points = tuple(array[inside] for array in points)
    lines = []
    for name, values in kernel(*points).items():
        wrong = np.isnan(values) | (values < 0 if name == "var" else False)
        if wrong.any():
            i = int(np.argmax(wrong))
            at = {**{key: float(array[i]) for key, array in zip(built.inputs, points, strict=True)}, **setting}
            shown = ", ".join(f"{key} = {value:.9g}" for key, value in at.items())
            lines.append(f"{name} = {values[i]} at {shown}")
    return lines


@dataclass
class _Largest:
    error: float = 0.0
    at: dict[str, float] = field(default_factory=dict)

    def take_in(self, error: npt.NDArray[np.float64], batch: Mapping[str, F32], setting: Mapping[str, float]) -> None:
        error = np.where(np.isnan(error), np.inf, error)
        index = int(np.argmax(error))
        if error[index] > self.error:
            self.error = float(error[index])
            self.at = {**{name: float(array[index]) for name, array in batch.items()}, **setting}


def _points(built: Built, stable: Stable, setting: Mapping[str, float], points: int, seed: int) -> Points:
    """Fresh random points, the edges of float32, and where the certificate is worst at this setting."""
    own = seed_of("verify", built.rule, built.variant, str(seed))
    at = [bound["at"] for bound in built.certificate["bounds"].values() if bound.get("at")]
    at = [point for point in at if all(point.get(name, value) == value for name, value in setting.items())]
    known = tuple(np.array([point[name] for point in at], np.float32) for name in built.inputs)
    sampler = sampler_of(built.inputs)
    finite = sampler.finite(own)
    chosen = np.random.default_rng(own).choice(finite[0].size, 2 * points, replace=False)
    groups: list[Points] = [tuple(array[chosen] for array in finite), known]
    if built.is_univariate:
        groups.append(near_points(tuple(stable.focus(setting)), points // 4, own))
        groups.append(points_at(tuple(stable.places(setting)), points // 4, own))
    return kept(sampler, joined(groups))
