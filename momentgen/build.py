"""Builds: a directory of rules in, a Python package of ops out.

This is the top of the compiler.  :func:`build` compiles the rules that changed,
each in a process of its own, and writes each as soon as it is done;
:func:`check` says what a build would change.  What is on disk is the subject of
:mod:`momentgen.output`, what happens to one rule that of
:mod:`momentgen.compiler.pipeline`.

A build is *incremental* (digests of the rule file, the compiler and every output
file decide), *atomic* (a rule's directory is replaced as a whole or not at all)
and *deterministic* (the same rules give the same bytes).  The compiler is
imported only when there is something to compile.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from momentgen.errors import BuildError, MomentgenError, RuleError
from momentgen.output import Finding, Manifest, Output, VariantSummary, compiler_digest, sha256
from momentgen.rule_files import evidence_path, load_rule_sources

__all__ = ["BuildResult", "Reporter", "RuleResult", "build", "check", "default_output"]


class Compiled(Protocol):
    """What the compiler hands back for one rule (``momentgen.compiler.pipeline.CompiledRule``)."""

    @property
    def files(self) -> Mapping[str, str]:
        """Text of each file of the rule's directory, the manifest left out."""

    @property
    def variants(self) -> Sequence[Any]:
        """One summary a variant: ``name``, ``bounds``, ``operations``."""


_LONGEST = 400  # characters of a message that was not written for users

#: (rule name, rule file, progress) -> Compiled; must be picklable, since workers call it
Compiler = Callable[[str, Path, Callable[[str], None]], Compiled]


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
    reporter: Reporter | None = None,
    compiler: Compiler | None = None,
) -> BuildResult:
    """Compile the rules of a directory into a package, as far as they are not compiled yet.

    A rule that fails keeps the output it had; the others are built all the same.

    Args:
        rules: directory of rule files.
        output: the package to write; :func:`default_output` unless given.
        jobs: rules compiled at a time; by default as many as there are cores.  With 1, or one rule to compile,
            it is done in this process.
        only: name of the one rule to look at; the others stay as they are.
        reporter: told how it goes.
        compiler: stands in for the compiler, in tests.

    Raises:
        RuleError: if ``rules`` is no directory, has no rules, or has none called ``only``.
        MomentgenError: if the output directory as a whole cannot be written.
    """
    reporter = reporter or Reporter()
    sources, chosen = _sources(rules, only)
    out = _output(rules, output)
    out.create()
    with out.locked(waiting=lambda: reporter.waiting(out.path)):
        out.recover()
        digest = compiler_digest()
        findings = {name: out.findings(name, sources[name].sha256, digest) for name in chosen}
        removed = [finding.path for found in findings.values() for finding in found if finding.kind == "orphan"]
        if gone := [name for name in out.strangers(sources) if only is None and out.wrote(name)]:
            out.prepare()
            out.write_init(sources)  # before they go, or a kill leaves a package that imports what is not there
        removed += gone
        for name in removed:
            out.remove(name)
        stale = [name for name, found in findings.items() if any(finding.kind != "orphan" for finding in found)]
        results = {name: _fresh(out, name) for name in chosen if name not in stale}
        if stale:
            out.prepare()
            reporter.planned(out.path, stale)
            # The longest rule files tend to take longest: begin with them, so that no worker is left alone with one.
            todo = sorted((sources[name] for name in stale), key=lambda s: -s.path.stat().st_size)
            with contextlib.closing(_compile_all(todo, jobs or _cores(), reporter, compiler or _compile)) as compiled:
                for done in compiled:
                    results[done.rule] = result = _write(out, sources[done.rule], digest, done)
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
        RuleError: if ``rules`` is no directory, has no rules, or has none called ``only``.
    """
    reporter = reporter or Reporter()
    sources, chosen = _sources(rules, only)
    out = _output(rules, output)
    digest = compiler_digest()
    with out.locked(shared=True, waiting=lambda: reporter.waiting(out.path)):
        found = [finding for name in chosen for finding in out.findings(name, sources[name].sha256, digest)]
        if only is None:
            found += [Finding("orphan", name, "no rule produces it") for name in out.strangers(sources)]
            found += out.init_findings(sources)
    return tuple(found)


# ---------------------------------------------------------------- what there is to build


@dataclass(frozen=True)
class _Source:
    name: str
    path: Path
    sha256: str


def _sources(rules: Path, only: str | None) -> tuple[dict[str, _Source], list[str]]:
    """All rules by name, sorted, and the names of those to look at."""
    if rules.is_file():
        raise RuleError(str(rules), "expected a directory of rules; build one of them with --only NAME")
    sources = {source.name: _Source(source.name, source.path, source.inputs) for source in load_rule_sources(rules)}
    sources = dict(sorted(sources.items()))
    if only is None:
        return sources, list(sources)
    if only not in sources:
        raise RuleError(only, f"no such rule in {rules}; there are: {', '.join(sources)}")
    return sources, [only]


def _output(rules: Path, output: Path | None) -> Output:
    path = default_output(rules) if output is None else output
    if path.resolve() == rules.resolve():
        raise MomentgenError(f"output directory {path}: expected another directory than that of the rules")
    return Output(path)


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _fresh(out: Output, rule: str) -> RuleResult:
    manifest = out.manifest(rule)
    return RuleResult(rule, "fresh", manifest.variants if manifest else ())


# ---------------------------------------------------------------- compiling, here or in workers


@dataclass(frozen=True)
class _Done:
    """What a worker hands back: the files of a rule, or why there are none."""

    rule: str
    seconds: float
    files: Mapping[str, str] | None = None
    variants: tuple[VariantSummary, ...] = ()
    error: MomentgenError | None = None
    defect: str = ""


def _compile(rule: str, path: Path, progress: Callable[[str], None]) -> Compiled:
    """The compiler proper; imported here because it takes a second."""
    from momentgen.compiler.evidence import read_evidence
    from momentgen.compiler.pipeline import compile_rule
    from momentgen.compiler.reduction import compile_reduction
    from momentgen.rule import load_reductions, load_rules

    progress("rule")
    for candidate in load_rules(path):
        if candidate.name == rule:
            evidence = read_evidence(evidence_path(path), rule)
            compiled: Compiled = compile_rule(candidate, progress=progress, evidence=evidence)
            return compiled
    for reduction in load_reductions(path):
        if reduction.name == rule:
            written: Compiled = compile_reduction(reduction, progress=progress)
            return written
    raise RuleError(rule, f"expected {path.name} to define a rule of this name")


def _run(source: _Source, compiler: Compiler, report: Callable[[str, str], None]) -> _Done:
    stage, started = "rule", time.perf_counter()

    def progress(name: str) -> None:
        nonlocal stage
        stage = name
        report(source.name, name)

    def failed(error: MomentgenError, defect: str = "") -> _Done:
        return _Done(source.name, time.perf_counter() - started, error=error, defect=defect)

    try:
        compiled = compiler(source.name, source.path, progress)
        variants = tuple(VariantSummary(v.name, dict(v.bounds), dict(v.operations)) for v in compiled.variants)
        return _Done(source.name, time.perf_counter() - started, dict(compiled.files), variants)
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


def _compile_all(
    sources: Sequence[_Source], jobs: int, reporter: Reporter, compiler: Compiler
) -> Generator[_Done, None, None]:
    """Compile ``sources``, at most ``jobs`` at a time; yields each as it is done."""
    if min(jobs, len(sources)) == 1:
        for source in sources:
            yield _run(source, compiler, reporter.stage)
        return
    left = {source.name: source for source in sources}
    for done in _in_pool(sources, jobs, reporter, compiler):
        del left[done.rule]
        yield done
    # A worker died and took the pool with it.  Alone in a pool, each rule that is left answers for itself.
    for source in list(left.values()):
        alone = next(_in_pool([source], 1, reporter, compiler), None)
        lost = BuildError(source.name, "build", "its worker process died (out of memory, or killed)")
        yield alone or _Done(source.name, 0.0, error=lost)


def _in_pool(
    sources: Sequence[_Source], jobs: int, reporter: Reporter, compiler: Compiler
) -> Generator[_Done, None, None]:
    """Compile ``sources`` in worker processes; ends early if one of them dies."""
    context = multiprocessing.get_context("spawn")
    stages = context.SimpleQueue()

    def drain() -> None:
        while not stages.empty():
            reporter.stage(*stages.get())

    workers, others = min(jobs, len(sources)), set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(stages,)) as pool:
        waiting: set[Future[_Done]] = {pool.submit(_work, source, compiler) for source in sources}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
                drain()
                for future in done:
                    yield future.result()
        except BrokenProcessPool:
            return
        except BaseException:  # interrupted: what runs is of no use any more
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_stages: Any = None  # in a worker: where the stages it comes to are told


def _start_worker(stages: Any) -> None:
    global _stages
    _stages = stages
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # the workers are the threads; more of them only wait
        os.environ.setdefault(name, "1")
    _keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers itself
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _keep_freed_memory() -> None:
    """Arrays of a megabyte come and go by the thousand; giving each back to the system took a third of a build."""
    adjust = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None  # glibc has it
    if adjust is not None:
        adjust(_M_MMAP_THRESHOLD, 32 << 20)  # its upper limit
        adjust(_M_TRIM_THRESHOLD, 1 << 30)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(source: _Source, compiler: Compiler) -> _Done:
    return _run(source, compiler, lambda rule, stage: _stages.put((rule, stage)))


# ---------------------------------------------------------------- writing


def _write(out: Output, source: _Source, compiler: str, done: _Done) -> RuleResult:
    if done.files is None:
        return RuleResult(done.rule, "failed", seconds=done.seconds, error=done.error, defect=done.defect)
    digests = {name: sha256(text.encode()) for name, text in done.files.items()}
    try:
        out.write(Manifest(done.rule, source.sha256, compiler, digests, done.variants), done.files)
    except BuildError as error:
        return RuleResult(done.rule, "failed", seconds=done.seconds, error=error)
    return RuleResult(done.rule, "built", done.variants, done.seconds)
