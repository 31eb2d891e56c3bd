"""The command line, ``momentgen``: a thin layer that reads arguments and prints.

Commands import what they need when they run, so that starting stays fast.  Exit
codes: 0 all is well, 1 something is wrong with a rule or an output (one line says
what), 2 the command itself is wrong, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from momentgen import __version__
from momentgen.build import BuildResult, Reporter, RuleResult
from momentgen.errors import MomentgenError

if TYPE_CHECKING:
    from momentgen.exhaustive import VariantRun

__all__ = ["app", "main"]

app = typer.Typer(
    name="momentgen",
    help="Compile symbolic rules into certified kernels for the moments of neural activations.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; expected errors end in one line and exit code 1."""
    try:
        app()
    except (MomentgenError, OSError) as error:
        _print_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        _errors().print("interrupted; the rules that were finished are written")
        sys.exit(130)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"momentgen {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Compile symbolic rules into certified kernels for the moments of neural activations."""


@app.command()
def build(
    rules: Annotated[Path, typer.Argument(metavar="RULES", help="Directory of rule files.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Package to write; by default `generated` beside RULES.", show_default=False)
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Rules compiled at a time; by default one a core.", show_default=False)
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a build would.")] = False,
    only: Annotated[
        str | None, typer.Option(metavar="NAME", help="Look at this rule alone.", show_default=False)
    ] = None,
) -> None:
    """Compile the rules that changed into a Python package of ops."""
    import momentgen.build

    console = Console()
    if check:
        _check(console, rules, out, only)
        return
    with _Display(console) as display:
        result = momentgen.build.build(rules, out, jobs=jobs, only=only, reporter=display)
    _print_result(console, result)
    if not result.ok:
        raise typer.Exit(1)


def _check(console: Console, rules: Path, out: Path | None, only: str | None) -> None:
    import momentgen.build

    findings = momentgen.build.check(rules, out, only=only, reporter=_Display(console))
    where = _short(out or momentgen.build.default_output(rules))
    if not findings:
        console.print(f"{where} is fresh", highlight=False, markup=False, soft_wrap=True)
        return
    for finding in findings:
        line = f"{finding.kind:8}{where}/{finding.path}: {finding.cause}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    _fail(f"{where} is not what `momentgen build {rules}` would write ({len(findings)} finding(s))")


@app.command()
def exhaust(
    rules: Annotated[Path, typer.Argument(metavar="RULES", help="Directory of rule files.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(help="Package they were built to; by default `generated` beside RULES.", show_default=False),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="NAME", help="Run this rule alone.", show_default=False)] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="V", help="Run this variant alone.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PARAMETER=VALUE", help="Instead of a default; repeatable.", show_default=False),
    ] = None,
    stride: Annotated[
        int, typer.Option(min=1, max=1 << 24, help="Take every N-th input: a quick look that leaves no evidence.")
    ] = 1,
) -> None:
    """Run built rules over all 2^32 float32 means at variance 1; write RULES/evidence/NAME.json."""
    from momentgen.exhaustive import exhaust_rules

    console = Console()
    given = dict(_parameter(text) for text in settings or [])
    with _Sweeps(console) as sweeps:
        results = exhaust_rules(rules, out, only=only, variant=variant, settings=given, stride=stride, reporter=sweeps)
    console.print(sweeps.table)
    for inputs in sorted({result.run.inputs for result in results}):
        console.print(f"{inputs:,} means a variant, at a variance of 1", highlight=False)
    if sweeps.over:
        _fail(f"over the goal: {', '.join(sweeps.over)}")
    if stride == 1:
        console.print(f"wrote {_short(rules)}/evidence; build again to take it in", markup=False, soft_wrap=True)


def _parameter(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise typer.BadParameter(f"expected PARAMETER=VALUE with a number, got {text!r}", param_hint="--set") from None


class _Sweeps:
    """A bar a variant over its inputs, and a table of what was found; implements ``exhaustive.Reporter``."""

    def __init__(self, console: Console) -> None:
        self._console, self._each = console, 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: tuple[str, TaskID] | None = None
        self.table = Table(
            "rule", "variant", title="largest error, ulp", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
        )
        self.over: list[str] = []

    def __enter__(self) -> _Sweeps:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._progress.stop()

    def planned(self, variants: int, inputs: int) -> None:
        self._each = inputs

    def skipped(self, rule: str) -> None:
        self._console.print(f"{rule}: no core in one variable certified in ulp; skipped", markup=False)

    def inputs(self, rule: str, variant: str, done: int) -> None:
        name = f"{rule} {variant}"
        if self._task is None or self._task[0] != name:
            self._task = (name, self._progress.add_task(escape(name), total=self._each))
        self._progress.update(self._task[1], completed=done)

    def finished(self, result: VariantRun) -> None:
        errors = {name: output.ulp for name, output in result.run.outputs.items()}
        if not self.table.rows:
            for name in errors:
                self.table.add_column(name, justify="right", no_wrap=True)
        self.table.add_row(result.rule, result.variant, *(f"{error:.3f}" for error in errors.values()))
        self.over += [f"{result.rule} {result.variant} {name}" for name, e in errors.items() if e > result.goal]
        if not self._console.is_terminal:
            shown = ", ".join(f"{name} {error:.3f}" for name, error in errors.items())
            self._console.print(f"{result.rule} {result.variant}: {shown} ulp", markup=False, soft_wrap=True)


class _Display(Reporter):
    """A progress bar with the running rules and their stages; plain lines where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._total: TaskID | None = None
        self._running: dict[str, TaskID] = {}

    def __enter__(self) -> _Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def planned(self, output: Path, rules: Sequence[str]) -> None:
        if not self._console.is_terminal:
            return
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[stage]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._progress.start()
        self._total = self._progress.add_task("rules", total=len(rules), stage="")

    def waiting(self, output: Path) -> None:
        self._console.print(f"waiting for another build of {output}", markup=False, soft_wrap=True)

    def stage(self, rule: str, stage: str) -> None:
        if self._progress is None:
            return
        if rule not in self._running:
            self._running[rule] = self._progress.add_task(escape(rule), total=1, stage=stage)
        self._progress.update(self._running[rule], stage=escape(stage))

    def finished(self, result: RuleResult) -> None:
        if self._progress is None or self._total is None:
            self._console.print(f"{result.rule}: {result.status} in {result.seconds:.1f} s", markup=False)
            return
        self._progress.advance(self._total)
        if result.rule in self._running:
            self._progress.remove_task(self._running.pop(result.rule))


def _print_result(console: Console, result: BuildResult) -> None:
    table = Table("rule", "variant", "mean", "var", "partials", "operations", "time", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[5].justify = table.columns[6].justify = "right"
    for rule in result.rules:
        seconds = f"{rule.seconds:.1f} s" if rule.seconds is not None else "fresh"
        if rule.status == "failed":
            table.add_row(rule.rule, "[red]failed[/red]", "", "", "", "", seconds)
        for index, variant in enumerate(rule.variants):
            name, spent = (rule.rule, seconds) if index == 0 else ("", "")
            bounds = dict(variant.bounds)
            mean, var = bounds.pop("mean", ""), bounds.pop("var", "")
            partials = max(bounds.values(), key=_leading_number, default="")
            operations = " / ".join(str(variant.operations.get(way, "")) for way in ("forward", "backward"))
            table.add_row(name, variant.name, *map(escape, (mean, var, partials)), operations, spent)
    console.print(table)
    for name in result.removed:
        console.print(f"removed {_short(result.output)}/{name}: no rule produces it", markup=False, soft_wrap=True)
    for name in result.strangers:
        note = f"note: {_short(result.output)}/{name} belongs to no rule and was left alone"
        console.print(note, markup=False, soft_wrap=True)
    built = sum(rule.status == "built" for rule in result.rules)
    fresh = sum(rule.status == "fresh" for rule in result.rules)
    console.print(f"{_short(result.output)}: {built} built, {fresh} fresh", markup=False, soft_wrap=True)
    for rule in result.rules:
        if rule.defect:
            _errors().print(rule.defect, markup=False, highlight=False)
        if rule.error is not None:
            _print_error(rule.error)


def _leading_number(bound: str) -> float:
    try:
        return float(bound.split()[0])
    except (IndexError, ValueError):
        return float("inf")  # a bound that cannot be compared is the one to show


def _short(path: Path) -> str:
    """``path`` as seen from here, where it is below here."""
    resolved, here = path.resolve(), Path.cwd()
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else str(path)


def _errors() -> Console:
    return Console(stderr=True)


def _print_error(error: Exception) -> None:
    _errors().print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)


def _fail(message: str) -> NoReturn:
    _print_error(MomentgenError(message))
    raise typer.Exit(1)
