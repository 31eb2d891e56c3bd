"""How long commands show their progress, and how their results become tables.

Only :mod:`momentgen.commands.cli` uses this.  Bars appear where the output is a terminal; elsewhere plain lines do.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from momentgen.build import BuildResult, Reporter, RuleResult

if TYPE_CHECKING:
    from momentgen.commands.verify import VariantCheck


#: characters of a function in a table
_LONGEST_FORMULA = 36


class BuildDisplay(Reporter):
    """A progress bar with the running rules and their stages.

    Where the output is no terminal, lines: one for each rule that is finished, and one every ``every`` seconds that
    says what runs.  When a build is interrupted it says what was written.
    """

    def __init__(self, console: Console, every: float = 30) -> None:
        self._console, self._every = console, every
        self._progress: Progress | None = None
        self._total: TaskID | None = None
        self._running: dict[str, TaskID] = {}
        #: rule -> its stage, and when it began
        self._stages: dict[str, tuple[str, float]] = {}
        self._planned: Sequence[str] = ()
        self._written: list[str] = []
        self._done = 0
        self._ended = threading.Event()

    def __enter__(self) -> BuildDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._progress is not None:
            self._progress.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            names = f" ({', '.join(sorted(self._written))})" if self._written else ""
            count = f"{len(self._written)} of {len(self._planned)} rules were written{names}"
            self._console.print(f"interrupted: {count}; the others are as before", markup=False, soft_wrap=True)

    def _say_what_runs(self) -> None:
        while not self._ended.wait(self._every):
            now = time.monotonic()
            for rule, (stage, begun) in sorted(self._stages.copy().items()):
                self._console.print(f"{rule}: {stage}, for {now - begun:.0f} s", markup=False, soft_wrap=True)

    def planned(self, output: Path, rules: Sequence[str]) -> None:
        self._planned = rules
        if not self._console.is_terminal:
            threading.Thread(target=self._say_what_runs, daemon=True).start()
            return
        rule, stage = TextColumn("{task.description}"), TextColumn("{task.fields[stage]}")
        columns = (SpinnerColumn(), rule, BarColumn(), stage, TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._progress.start()
        self._total = self._progress.add_task(f"0 of {len(rules)} rules", total=len(rules), stage="")

    def waiting(self, output: Path) -> None:
        self._console.print(f"waiting for another build of {output}", markup=False, soft_wrap=True)

    def stage(self, rule: str, stage: str) -> None:
        self._stages[rule] = stage, time.monotonic()
        if self._progress is None:
            return
        if rule not in self._running:  # without a total the bar moves as long as the rule is compiled
            self._running[rule] = self._progress.add_task(escape(rule), total=None, stage=stage)
        self._progress.update(self._running[rule], stage=escape(stage))

    def finished(self, result: RuleResult) -> None:
        self._stages.pop(result.rule, None)
        if result.status == "built":
            self._written.append(result.rule)
        if self._progress is None or self._total is None:
            self._console.print(f"{result.rule}: {result.status} in {result.seconds:.1f} s", markup=False)
            return
        self._done += 1
        self._progress.update(self._total, advance=1, description=f"{self._done} of {len(self._planned)} rules")
        if result.rule in self._running:
            self._progress.remove_task(self._running.pop(result.rule))


def verify_table(checks: Sequence[VariantCheck]) -> Table:
    """The largest error of each output of each variant, beside what is certified and the goal."""
    heads = ("rule", "variant", "output", "measured", "certified", "goal", "excess")
    table = Table(*heads, title="largest error", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[3:6]:
        column.justify, column.no_wrap = "right", True
    for check in checks:
        # The unit stands below the variant's name, where there is room for it.
        names = [(check.rule, check.variant), ("", f"[dim]{escape(check.unit)}[/dim]")]
        for output in check.outputs:
            state = ""
            if not output.measured <= check.goal:
                state = "[red]over goal[/red]"
            elif output.excess > 0:
                share = f"+{100 * output.excess:.2g} %"
                state = f"[red]{share}[/red]" if check.exceeds(output) else f"[yellow]{share}[/yellow]"
            figures = (f"{output.measured:.4g}", f"{output.certified:.4g}", f"{check.goal:g}")
            table.add_row(*(names.pop(0) if names else ("", "")), output.name, *figures, state)
        table.add_section()
    return table


def build_table(result: BuildResult) -> Table:
    """What each variant of each rule is bounded by and costs, as the closing table of a build."""
    heads = ("rule", "variant", "f", "mean", "var", "partials", "operations", "time")
    table = Table(*heads, box=SIMPLE_HEAD, pad_edge=False)
    table.columns[6].justify = table.columns[7].justify = "right"
    for rule in result.rules:
        seconds = f"{rule.seconds:.1f} s" if rule.seconds is not None else "fresh"
        if rule.status == "failed":
            table.add_row(rule.rule, "[red]failed[/red]", "", "", "", "", "", seconds)
        for index, variant in enumerate(rule.variants):
            name, spent = (rule.rule, seconds) if index == 0 else ("", "")
            f = _formula(result.output / rule.rule / f"{variant.name}.json") if index == 0 else ""
            bounds = dict(variant.bounds)
            mean, var = bounds.pop("mean", ""), bounds.pop("var", "")
            partials = max(bounds.values(), key=_leading_number, default="")
            operations = " / ".join(str(variant.operations.get(way, "")) for way in ("forward", "backward"))
            table.add_row(name, variant.name, *map(escape, (f, mean, var, partials)), operations, spent)
    return table


def _formula(certificate: Path) -> str:
    """What a certificate says that f is, cut where it is long."""
    f = str(json.loads(certificate.read_text(encoding="utf-8")).get("f", ""))
    return f if len(f) <= _LONGEST_FORMULA else f"{f[: _LONGEST_FORMULA - 3]}..."


def fitting(table: Table, console: Console) -> RenderableType:
    """``table``, or where the console is so narrow that rich would cut words off, a paragraph a row.

    A paragraph gives each cell with its column's name.  The first two columns name the rows; where they are empty, a
    row goes on with the one before.
    """
    if not any("…" in segment.text for line in console.render_lines(table) for segment in line):
        return table
    heads = [str(column.header) for column in table.columns]
    lines: list[RenderableType] = [Text(str(table.title), style="italic")] if table.title else []
    for cells in zip(*(map(str, column.cells) for column in table.columns), strict=True):
        if any(cells[:2]):
            lines.append(Text.from_markup(" ".join(filter(None, cells[:2])), style="bold"))
        values = [f"{escape(head)} {cell}" for head, cell in zip(heads[2:], cells[2:], strict=True) if cell]
        lines.append(Padding(Text.from_markup(", ".join(values)), (0, 0, 0, 2)))
    return Group(*lines)


def _leading_number(bound: str) -> float:
    try:
        return float(bound.split()[0])
    except (IndexError, ValueError):
        return float("inf")  # a bound that cannot be compared is the one to show


def short(path: Path) -> str:
    """``path`` as seen from here, where it is below here."""
    resolved, here = path.resolve(), Path.cwd()
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else str(path)
