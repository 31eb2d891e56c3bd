"""Rules and a built package in, the page out; rules are looked at in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from momentgen.build import default_output
from momentgen.build.choice import chosen_rules
from momentgen.build.workers import Lost, run_all
from momentgen.commands.report.page import render_page
from momentgen.commands.report.section import Section, section_of
from momentgen.errors import MomentgenError
from momentgen.rule import load_rules

#: (rules looked at so far, rules in all, name of the last one)
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Written:
    """The file written, its size in bytes, and how many rules are in it."""

    path: Path
    size: int
    rules: int


def write_report(
    rules: Path,
    path: Path,
    *,
    package: Path | None = None,
    only: str | None = None,
    jobs: int | None = None,
    progress: Progress = lambda done, total, name: None,
) -> Written:
    """Write the page.

    Args:
        rules: directory of rule files.
        path: the HTML file; replaced if it is there.
        package: what the rules were built to; ``generated`` beside them unless given.
        only: name of the one rule to show.
        jobs: rules looked at a time; one per core unless given.
        progress: told at the start, with an empty name, and after each rule.

    Raises:
        RuleError: if there is no such rule.
        MomentgenError: if a rule is not built, or the file cannot be written.
        BuildError: if a rule cannot be derived, or there is no C compiler.
    """
    names = [rule.name for rule in load_rules(rules)]
    chosen = chosen_rules(only, names, rules)
    package = default_output(rules) if package is None else package
    progress(0, len(chosen), "")
    sections = _sections(rules, package, chosen, jobs or os.cpu_count() or 1, progress)
    page = render_page([sections[name] for name in chosen])
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise MomentgenError(f"cannot write {path}: {error.strerror or error}") from error
    return Written(path, path.stat().st_size, len(chosen))


def _sections(rules: Path, package: Path, names: list[str], jobs: int, progress: Progress) -> dict[str, Section]:
    found: dict[str, Section] = {}
    work = partial(_section, rules, package)
    with closing(run_all(names, min(jobs, len(names)), work)) as done:
        for name, result in done:
            if isinstance(result, MomentgenError):
                raise result
            if isinstance(result, Lost):
                raise MomentgenError(f"rule {name}: its worker process died (out of memory, or killed)")
            found[name] = result
            progress(len(found), len(names), name)
    return found


def _section(rules: Path, package: Path, name: str, stage: Callable[[str], None]) -> Section | MomentgenError:
    try:
        (rule,) = load_rules(rules / f"{name}.py")
        return section_of(rule, package)
    except MomentgenError as error:
        return error
