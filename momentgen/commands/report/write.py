"""Rules and a built package in, the page out; rules are looked at in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from momentgen.build import default_output
from momentgen.build.choice import chosen_rules
from momentgen.build.workers import Lost, run_all
from momentgen.commands.report.page import render_page
from momentgen.commands.report.section import Section, section_of
from momentgen.errors import MomentgenError
from momentgen.progress import progress_bar
from momentgen.rule import load_rules


def write_report(
    rules: Path,
    path: Path,
    *,
    package: Path | None = None,
    only: str | None = None,
    jobs: int | None = None,
) -> int:
    """Write the page; a terminal has a bar while rules are looked at.

    Args:
        rules: directory of rule files.
        path: the HTML file; replaced if it is there.
        package: what the rules were built to; ``generated`` beside them unless given.
        only: name of the one rule to show.
        jobs: rules looked at a time; one per core unless given.

    Returns:
        How many rules it shows.

    Raises:
        RuleError: if there is no such rule.
        MomentgenError: if a rule is not built, or the file cannot be written.
        BuildError: if a rule cannot be derived, or there is no C compiler.
    """
    names = [rule.name for rule in load_rules(rules)]
    chosen = chosen_rules(only, names, rules)
    package = default_output(rules) if package is None else package
    sections: dict[str, Section] = {}
    found = run_all(chosen, min(jobs or os.cpu_count() or 1, len(chosen)), partial(_section, rules, package))
    with progress_bar("rules", len(chosen), None) as advance, closing(found):
        for name, result in found:
            if isinstance(result, MomentgenError):
                raise result
            if isinstance(result, Lost):
                raise MomentgenError(f"rule {name}: its worker process died (out of memory, or killed)")
            sections[name] = result
            advance(len(sections), name)
    page = render_page([sections[name] for name in chosen])
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise MomentgenError(f"cannot write {path}: {error.strerror or error}") from error
    return len(chosen)


def _section(rules: Path, package: Path, name: str, stage: Callable[[str], None]) -> Section | MomentgenError:
    try:
        (rule,) = load_rules(rules / f"{name}.py")
        return section_of(rule, package)
    except MomentgenError as error:
        return error
