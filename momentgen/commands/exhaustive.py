"""``momentgen exhaust``: built rules over every float32 mean, the outcome kept beside the rules.

The C files are checked as they lie in the built package, so what is measured is what ships.  The evidence goes to
``RULES/evidence/NAME.json``, from which the next build takes it into the certificates.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from momentgen.build import default_output
from momentgen.build.choice import chosen_rules
from momentgen.compiler.certify.evidence import ALL_INPUTS, Run, read_evidence
from momentgen.compiler.certify.sweep import Reference
from momentgen.compiler.derive import derive
from momentgen.compiler.exhaust import exhaust
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.homogeneous import kink
from momentgen.errors import MomentgenError, RuleError
from momentgen.rule import Rule, load_rules
from momentgen.rule.files import evidence_path

_TRUSTED = 0.01  # ulp that the screening reference may be off by


@dataclass(frozen=True)
class VariantRun:
    """What became of one variant.

    Attributes:
        rule, variant: names.
        run: what was measured.
        goal: the largest error that the rule allows, in ulp.
    """

    rule: str
    variant: str
    run: Run
    goal: float


class Reporter(Protocol):
    """Told how it goes."""

    def planned(self, variants: int, inputs: int) -> None:
        """So many variants will be run, over so many inputs each."""

    def skipped(self, rule: str) -> None:
        """``rule`` is no function of mean/sigma alone, or is not certified in ulp."""

    def inputs(self, rule: str, variant: str, done: int) -> None:
        """A variant has come so far."""

    def finished(self, result: VariantRun) -> None:
        """A variant is done."""


class _Silent:
    def planned(self, variants: int, inputs: int) -> None:
        pass

    def skipped(self, rule: str) -> None:
        pass

    def inputs(self, rule: str, variant: str, done: int) -> None:
        pass

    def finished(self, result: VariantRun) -> None:
        pass


def exhaust_rules(
    rules: Path,
    output: Path | None = None,
    *,
    only: str | None = None,
    variant: str | None = None,
    settings: Mapping[str, float] | None = None,
    stride: int = 1,
    reporter: Reporter | None = None,
) -> tuple[VariantRun, ...]:
    """Run the univariate cores of built rules over all float32 means at variance 1.

    Args:
        rules: directory of rule files.
        output: the package that they were built to; ``generated`` beside the rules unless given.
        only: name of the one rule to run.
        variant: name of the one variant to run.
        settings: values of parameters; their defaults unless given.
        stride: take every how many bit patterns.  Evidence is written only for 1, which is all of them.
        reporter: told how it goes; nobody unless given.

    Returns:
        One result a variant that is certified in ulp.

    Raises:
        RuleError: if there is no such rule, variant or parameter, or a value is out of range.
        BuildError: if an output is not what every output must be; see :func:`momentgen.compiler.exhaust.exhaust`.
        MomentgenError: if a rule has not been built, or the evidence cannot be written.
    """
    reporter, given = reporter or _Silent(), dict(settings or {})
    loaded = {rule.name: rule for rule in load_rules(rules)}
    chosen = chosen_rules(only, loaded, rules)
    unknown = set(given) - {p.name for name in chosen for p in loaded[name].parameters}
    if unknown:
        raise RuleError(only or str(rules), f"no parameter is called {', '.join(sorted(unknown))}")
    package = default_output(rules) if output is None else output
    plan: list[tuple[Rule, list[tuple[Stable, str]]]] = []
    settings_of = {name: _setting(loaded[name], given) for name in chosen}
    for name in settings_of:
        stables = _stables(loaded[name], variant)
        if not stables:
            reporter.skipped(name)
            continue
        plan.append((loaded[name], [(stable, _source(package, name, stable.variant)) for stable in stables]))
    if variant is not None and not plan:
        raise RuleError(only or str(rules), f"no variant {variant!r} that is certified in ulp")
    reporter.planned(sum(len(stables) for _, stables in plan), ALL_INPUTS // stride)
    results: list[VariantRun] = []
    for rule, variants in plan:
        setting = settings_of[rule.name]
        reference = Reference(variants[0][0], setting)
        if reference.error > _TRUSTED:
            raise MomentgenError(
                f"rule {rule.name}: the fast reference is off by {reference.error:.2g} ulp, expected at most {_TRUSTED}"
            )
        file = evidence_path(rules / f"{rule.name}.py")
        for stable, source in variants:

            def progress(done: int, name: str = rule.name, which: str = stable.variant) -> None:
                reporter.inputs(name, which, done)

            run = exhaust(rule.name, stable, source, setting, stride=stride, reference=reference, progress=progress)
            if run.inputs == ALL_INPUTS:
                _write(file, read_evidence(file, rule.name).updated(stable.variant, run, stable.goal).to_json())
            results.append(VariantRun(rule.name, stable.variant, run, stable.goal))
            reporter.finished(results[-1])
    return tuple(results)


def _stables(rule: Rule, variant: str | None) -> Sequence[Stable]:
    if variant is not None and variant not in rule.accuracy.ulp:
        return []
    if len(rule.inputs) > 1 or rule.noise is not None:  # no univariate core
        return []
    derivation = derive(rule)
    if not kink.applies(derivation):
        return []
    # The variants of the rule's own moments share one reference; approximations would each need their own.
    return [s for s in stabilise(derivation) if s.variant in rule.accuracy.ulp and variant in (None, s.variant)]


def _source(package: Path, rule: str, variant: str) -> str:
    path = package / rule / f"{variant}.c"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MomentgenError(f"expected {path}, the C code of {rule}; run `momentgen build` first") from None


def _setting(rule: Rule, given: Mapping[str, float]) -> dict[str, float]:
    setting = {**rule.defaults, **{p.name: given[p.name] for p in rule.parameters if p.name in given}}
    for p in rule.parameters:
        if not p.low <= setting[p.name] <= p.high:
            raise RuleError(rule.name, f"{p.name} = {setting[p.name]:g} is outside its range [{p.low}, {p.high}]")
    return setting


def _write(file: Path, text: str) -> None:
    new = file.with_name(f".new-{file.name}")
    try:
        file.parent.mkdir(exist_ok=True)
        new.write_text(text, encoding="utf-8")
        os.replace(new, file)
    except OSError as error:
        raise MomentgenError(f"cannot write {file}: {error.strerror or error}") from error
