"""Builds: a directory of rules in, a Python package of ops out.

This is the top of the compiler.  :func:`build` compiles each rule that changed in a
worker process, and writes it at once.  :func:`check` says what a build would change.

- :mod:`momentgen.build.output` reads and writes the package on disk.
- :mod:`momentgen.build.code` tells one state of the compiler from another.
- :mod:`momentgen.compiler.pipeline` compiles one rule.
- :mod:`momentgen.build.workers` runs it in other processes.

A build has three properties:

- *incremental*: digests of the rule, the compiler's code and every output file
  decide what is built.
- *atomic*: a rule's directory is replaced as a whole or not at all.
- *deterministic*: the same rules give the same bytes.

The compiler is imported only when there is something to compile.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from momentgen.build.choice import chosen_rules
from momentgen.build.code import code_digest
from momentgen.build.output import Finding, Manifest, Output, VariantSummary, sha256
from momentgen.build.processors import same_bits_environment
from momentgen.build.rule_compiler import Compiler, compile_file
from momentgen.build.workers import Lost, run_all
from momentgen.errors import BuildError, MomentgenError, RuleError
from momentgen.rule.files import RuleSource, load_rule_sources

_LONGEST = 400  # characters of a message that was not written for users


@dataclass(frozen=True)
class RuleResult:
    """What became of one rule in a build.

    Attributes:
        rule: its name.
        status: ``built``, ``fresh`` (nothing to do) or ``failed``.
        variants: for the closing table.
        seconds: what compiling it took; None when it was fresh.
        error: why it failed.
        defect: the traceback, where the failure is momentgen's own and not the user's.
    """

    rule: str
    status: str
    variants: tuple[VariantSummary, ...] = ()
    seconds: float | None = None
    error: MomentgenError | None = None
    defect: str = ""


@dataclass(frozen=True)
class BuildResult:
    """What became of a build.

    Attributes:
        output: the directory written.
        rules: one result a rule, in the order of their names.
        removed: what stood in rules' directories, or was one, without a rule that makes it, and is gone now.
        strangers: what stands in the directory without being any rule's; left alone.
    """

    output: Path
    rules: tuple[RuleResult, ...]
    removed: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no rule failed."""
        return all(result.status != "failed" for result in self.rules)


class Reporter:
    """Told how a build goes.  This one is silent; the command line overrides it."""

    def planned(self, output: Path, rules: Sequence[str]) -> None:
        """``rules`` will be compiled; the others are fresh."""

    def waiting(self, output: Path) -> None:
        """Another build holds ``output``; this one waits for it."""

    def stage(self, rule: str, stage: str) -> None:
        """``rule`` has come to ``stage``."""

    def finished(self, result: RuleResult) -> None:
        """A rule was built or has failed."""


def default_output(rules: Path) -> Path:
    """Where the rules of ``rules`` are built to when nobody says: ``generated`` beside it.

    >>> default_output(Path("/home/me/project/rules")).as_posix()
    '/home/me/project/generated'
    """
    return rules.resolve().parent / "generated"


def build(
    rules: Path,
    output: Path | None = None,
    *,
    jobs: int | None = None,
    only: str | None = None,
    timeout: float | None = None,
    reporter: Reporter | None = None,
    compiler: Compiler | None = None,
) -> BuildResult:
    """Compile the rules of a directory into a package, as far as they are not compiled yet.

    A rule that fails keeps its old output; the others are built all the same.

    Args:
        rules: directory of rule files.
        output: the package to write; :func:`default_output` unless given.
        jobs: rules compiled at a time; by default as many as there are cores.
        only: name of the one rule to look at; the others stay as they are.
        timeout: seconds that one rule may take; one that takes longer is stopped and has failed.
        reporter: told how it goes.
        compiler: stands in for the compiler, in tests; with one job, or one rule, and no ``timeout`` it is called in
            this process.

    Raises:
        RuleError: if ``rules`` is not a directory, has no rules, or has none called ``only``.
        MomentgenError: if the output directory as a whole cannot be written.
    """
    reporter = reporter or Reporter()
    sources, chosen = _sources(rules, only)
    out = _output(rules, output)
    out.create()
    with out.locked(waiting=lambda: reporter.waiting(out.path)):
        out.recover()
        code = code_digest()
        known = out.compilers()
        findings = {name: out.findings(name, sources[name].inputs, behind=known.get(name) != code) for name in chosen}
        removed = [finding.path for found in findings.values() for finding in found if finding.kind == "orphan"]
        if gone := [name for name in out.strangers(sources) if only is None and out.manifest(name)]:
            out.prepare()
            out.write_init(sources)  # before they go, or a kill leaves a package that imports what is not there
        removed += gone
        for name in removed:
            out.remove(name)
        stale = [name for name, found in findings.items() if any(finding.kind != "orphan" for finding in found)]
        fresh = {name: out.manifest(name) for name in chosen if name not in stale}
        results = {name: RuleResult(name, "fresh", found.variants if found else ()) for name, found in fresh.items()}
        if stale:
            out.prepare()
        # Before any rule is written, so that a build that is killed leaves none that passes for another compiler's.
        compilers = {name: by for name, by in known.items() if name in sources and (by == code or name not in stale)}
        if compilers != known:
            out.write_compilers(compilers)
        if stale:
            reporter.planned(out.path, stale)
            # The longest rule files tend to take longest: begin with them, so that no worker is left alone with one.
            todo = sorted((sources[name] for name in stale), key=lambda s: -s.path.stat().st_size)
            workers = min(jobs or _cores(), len(todo))
            if compiler is not None and workers == 1 and timeout is None:
                here = functools.partial(_run, compiler=compiler)
                compiled = (here(source, functools.partial(reporter.stage, source.name)) for source in todo)
            else:
                compiled = _compile_in_workers(todo, workers, reporter, compiler or compile_file, timeout)
            with contextlib.closing(compiled):
                for result, files in compiled:
                    result = _write(out, sources[result.rule], result, files)
                    results[result.rule] = result
                    if result.status == "built" and code_digest() == code:
                        compilers[result.rule] = code
                        out.write_compilers(compilers)
                    reporter.finished(result)
        if out.init_findings(sources):
            out.write_init(sources)
        strangers = out.strangers(sources)
    return BuildResult(out.path, tuple(results[name] for name in chosen), tuple(removed), tuple(strangers))


def check(
    rules: Path, output: Path | None = None, *, only: str | None = None, reporter: Reporter | None = None
) -> tuple[Finding, ...]:
    """What a build would change, without compiling anything; empty when all is fresh.

    Args:
        rules: directory of rule files.
        output: the package; :func:`default_output` unless given.
        only: name of the one rule to look at.
        reporter: told if another build has to be waited for.

    Raises:
        RuleError: if ``rules`` is not a directory, has no rules, or has none called ``only``.
    """
    reporter = reporter or Reporter()
    sources, chosen = _sources(rules, only)
    out = _output(rules, output)
    with out.locked(waiting=lambda: reporter.waiting(out.path)):
        found, known, code = [], out.compilers(), code_digest()
        for name in chosen:
            found += out.findings(name, sources[name].inputs, behind=known.get(name) != code)
        if only is None:
            found += [Finding("orphan", name, "no rule produces it") for name in out.strangers(sources)]
            found += out.init_findings(sources)
    return tuple(found)


# ---------------------------------------------------------------- what there is to build


def _sources(rules: Path, only: str | None) -> tuple[dict[str, RuleSource], list[str]]:
    """All rules by name, sorted, and the names of those to look at."""
    if rules.is_file():
        raise RuleError(str(rules), "expected a directory of rules; build one of them with --only NAME")
    sources = {source.name: source for source in load_rule_sources(rules)}
    return sources, chosen_rules(only, sources, rules)


def _output(rules: Path, output: Path | None) -> Output:
    path = default_output(rules) if output is None else output
    if path.resolve() == rules.resolve():
        raise MomentgenError(f"output directory {path}: expected another directory than that of the rules")
    return Output(path)


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


# ---------------------------------------------------------------- compiling


#: what a worker hands back: what became of a rule, and its files where there are any
_Done = tuple[RuleResult, Mapping[str, str] | None]


def _run(source: RuleSource, report: Callable[[str], None], *, compiler: Compiler) -> _Done:
    stage, started = "rule", time.perf_counter()

    def progress(name: str) -> None:
        nonlocal stage
        stage = name
        report(name)

    def failed(error: MomentgenError, defect: str = "") -> _Done:
        seconds = time.perf_counter() - started
        return RuleResult(source.name, "failed", seconds=seconds, error=error, defect=defect), None

    try:
        compiled = compiler(source.name, source.path, progress)
        variants = tuple(VariantSummary(v.name, dict(v.bounds), dict(v.operations)) for v in compiled.variants)
        return RuleResult(source.name, "built", variants, time.perf_counter() - started), dict(compiled.files)
    except BuildError as error:
        if error.rule != source.name:  # a tool deep down that knows no rules
            error = BuildError(source.name, error.stage, f"{error.rule}: {error.cause}", error.expression)
        return failed(error)
    except MomentgenError as error:
        return failed(error)
    except Exception as error:  # a defect of the compiler must not stop the other rules, nor be hidden
        message = str(error)
        message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]} ..."
        cause = f"momentgen failed, please report this: {type(error).__name__}: {message}"
        return failed(BuildError(source.name, stage, cause), "".join(traceback.format_tb(error.__traceback__)))


def _compile_in_workers(
    sources: Sequence[RuleSource], jobs: int, reporter: Reporter, compiler: Compiler, timeout: float | None
) -> Generator[_Done, None, None]:
    """Compile ``sources``, ``jobs`` at a time, as on other processors; yields each as it is done."""
    work, environment = functools.partial(_run, compiler=compiler), same_bits_environment()

    died: list[RuleSource] = []
    # Two rules at a time may have been too much for the memory: each that was lost answers for itself, alone.
    for tasks, workers in ((sources, jobs), (died, 1)):
        found = run_all(
            tasks,
            workers,
            work,
            timeout=timeout,
            environment=environment,
            stage=lambda source, name: reporter.stage(source.name, name),
        )
        with contextlib.closing(found):
            for source, result in found:
                if not isinstance(result, Lost):
                    yield result
                elif tasks is died or result.timed_out:
                    yield _given_up(source, result, timeout)
                else:
                    died.append(source)


def _given_up(source: RuleSource, lost: Lost, timeout: float | None) -> _Done:
    cause = "its worker process died (out of memory, or killed)"
    if lost.timed_out:
        cause = f"it was stopped, not being done within {timeout:g} s (--timeout)"
    error = BuildError(source.name, lost.stage or "rule", cause)
    return RuleResult(source.name, "failed", seconds=lost.seconds, error=error), None


# ---------------------------------------------------------------- writing


def _write(out: Output, source: RuleSource, result: RuleResult, files: Mapping[str, str] | None) -> RuleResult:
    if files is None:
        return result
    digests = {name: sha256(text.encode()) for name, text in files.items()}
    try:
        out.write(Manifest(result.rule, source.inputs, digests, result.variants), files)
    except BuildError as error:
        return RuleResult(result.rule, "failed", seconds=result.seconds, error=error)
    return result
