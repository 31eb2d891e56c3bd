"""The command line, ``momentgen``: a thin layer that reads arguments and prints.

Commands import what they need when they run, so that starting stays fast.

Exit codes:

- 0: success;
- 1: a fault of a rule or an output, explained in one line;
- 2: a wrong command;
- 130: interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from momentgen import __version__
from momentgen.build import BuildResult
from momentgen.commands.display import BuildDisplay, build_table, fitting, short, verify_table
from momentgen.errors import BuildError, MomentgenError
from momentgen.extras import require
from momentgen.rule.files import known_rules

app = typer.Typer(
    name="momentgen",
    help="Compile symbolic rules into certified kernels for the moments of neural activations.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help keeps names whole on narrow terminals
    context_settings={"help_option_names": ["-h", "--help"]},
)

_DEFAULT_RULES = Path("rules")
_MOST_LINES = 40  # that `derive` prints unasked

# What RULES and --out mean is the same in all commands.
Rules = Annotated[
    Path | None,
    typer.Argument(
        metavar="RULES",
        help="Directory of rule files. Default: ./rules; commands that only read fall back to the installed rules.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Package that RULES are built to; by default `generated` beside RULES.", show_default=False
    ),
]
Only = Annotated[str | None, typer.Option(metavar="NAME", help="Only this rule.", show_default=False)]


def main() -> None:
    """Run the command line; expected errors end in one line and exit code 1."""
    try:
        app()
    except (MomentgenError, OSError) as error:
        _print_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
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
    rules: Rules = None,
    out: Out = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Rules compiled at a time. Default: one per core.", show_default=False),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a build would.")] = False,
    only: Only = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="A rule that takes longer fails.", show_default=False),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Of a rule that fails, the reason of every strategy tried.")
    ] = False,
) -> None:
    """Compile the rules that changed into a Python package of ops."""
    import momentgen.build

    console, rules = Console(), _rules(rules, written=not check)
    if check:
        _check(console, rules, out, only)
        return
    with BuildDisplay(console) as display:
        result = momentgen.build.build(rules, out, jobs=jobs, only=only, timeout=timeout, reporter=display)
    _print_result(console, result, verbose=verbose)
    if not result.ok:
        raise typer.Exit(1)


def _check(console: Console, rules: Path, out: Path | None, only: str | None) -> None:
    import momentgen.build

    findings = momentgen.build.check(rules, out, only=only, reporter=BuildDisplay(console))
    where = short(out or momentgen.build.default_output(rules))
    if not findings:
        typer.echo(f"{where} is fresh")
        return
    for finding in findings:
        typer.echo(f"{finding.kind:8}{where}/{finding.path}: {finding.cause}")
    count = f"{len(findings)} finding{'s' if len(findings) != 1 else ''}"
    _fail(f"{where} is not what `momentgen build {rules}` would write ({count})")


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the rule, and of its op.", show_default=False)],
    rules: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of rule files; created if missing.")
    ] = _DEFAULT_RULES,
) -> None:
    """Write a rule file to start from: RULES/NAME.py."""
    from momentgen.commands.scaffold import scaffold

    path = short(scaffold(name, rules))
    if any((folder / f"{name}.py").is_file() for folder in known_rules() if folder.resolve() != rules.resolve()):
        note = f"note: momentgen has a rule {name} of its own; where {rules} is read, yours stands in its place"
        typer.secho(note, fg="yellow", err=True)
    where = "" if rules == _DEFAULT_RULES else f" --rules {rules}"
    typer.echo(f"wrote {path}, a placeholder that builds as it stands; next:")
    typer.echo(f"  edit {path}: f(x), the citation, the doc")
    typer.echo(f"  momentgen derive {name}{where}")
    typer.echo(f"  momentgen build {rules} --only {name}")


@app.command(name="derive")
def derive_command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|EXPR", help="A rule, or an expression in x such as 'x*Phi(x)'.", show_default=False
        ),
    ],
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Print all of it, however long.")] = False,
    rules: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of rule files; by default ./rules, then those installed with momentgen.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print mean, variance and partials of a rule or expression."""
    from momentgen.commands.derive_text import derived, find_rule

    console = Console()
    width = max(60, console.width) if console.is_terminal else 160
    lines = derived(find_rule(what, rules)).text(latex=latex, width=width).split("\n")
    if not full and len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"... {len(lines) - _MOST_LINES + 1} more lines; --full prints them"]
    typer.echo("\n".join(lines))


@app.command()
def verify(
    rules: Rules = None,
    out: Out = None,
    only: Only = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Another seed measures at other points.")] = 0,
) -> None:
    """Run the built C at fresh points; compare with exact values."""
    import momentgen.commands.verify

    console, rules = Console(), _rules(rules)
    checks = momentgen.commands.verify.verify(rules, out, only=only, seed=seed)
    console.print(fitting(verify_table(checks), console))
    broken = [line for check in checks for line in check.broken]
    points = sum(check.points for check in checks)
    typer.echo(f"{len(checks)} variants measured at {points:,} points")
    if broken:
        count = "1 certified bound does" if len(broken) == 1 else f"{len(broken)} certified bounds do"
        _fail(f"{count} not hold: " + "; ".join(broken))


@app.command()
def report(
    rules: Rules = None,
    out: Out = None,
    page: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    only: Only = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Rules measured at a time. Default: one per core.", show_default=False),
    ] = None,
) -> None:
    """Write one HTML page about all rules."""
    require("report", "`momentgen report`")
    from momentgen.commands.report.write import write_report

    shown = write_report(_rules(rules), page, package=out, only=only, jobs=jobs)
    size = page.stat().st_size / 1e6
    typer.echo(f"wrote {short(page)}: {shown} rule{'s' if shown != 1 else ''}, {size:.1f} MB")


def _rules(given: Path | None, *, written: bool = False) -> Path:
    """The directory of rules meant; those installed with momentgen only where nothing is ``written`` beside them."""
    if given is not None and not given.exists():
        raise typer.BadParameter(f"expected a directory of rules; there is no {given}", param_hint="RULES")
    found = [given] if given is not None else [p for p in known_rules() if p == _DEFAULT_RULES or not written]
    if not found:
        hint = "expected a directory of rules; there is no ./rules here"
        raise typer.BadParameter(hint, param_hint="RULES")
    return found[0]


def _print_result(console: Console, result: BuildResult, *, verbose: bool) -> None:
    console.print(fitting(build_table(result), console))
    for name in result.removed:
        typer.echo(f"removed {short(result.output)}/{name}: no rule produces it")
    for name in result.strangers:
        typer.echo(f"note: {short(result.output)}/{name} belongs to no rule and was left alone")
    built = sum(rule.status == "built" for rule in result.rules)
    fresh = sum(rule.status == "fresh" for rule in result.rules)
    typer.echo(f"{short(result.output)}: {built} built, {fresh} fresh")
    for rule in result.rules:
        if rule.defect:
            typer.echo(rule.defect, err=True)
        if rule.error is not None:
            _print_error(rule.error)
            _print_others(rule.error, verbose=verbose)


def _print_others(error: Exception, *, verbose: bool) -> None:
    """The reasons of the other strategies that were tried, or how to see them."""
    others = error.others if isinstance(error, BuildError) else ()
    lines = [f"  {strategy}: {reason}" for strategy, reason in others]
    if others and not verbose:
        lines = [f"  {len(others)} other strategies were tried: momentgen build --verbose says why they do not serve"]
    for line in lines:
        typer.echo(line, err=True)


def _print_error(error: Exception) -> None:
    typer.secho(f"Error: {error}", fg="red", err=True)


def _fail(message: str) -> NoReturn:
    _print_error(MomentgenError(message))
    raise typer.Exit(1)
