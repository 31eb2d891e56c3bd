"""The command line: what it prints, where, and the code it exits with."""

import io
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from stub_compiler import compile_stub
from typer.main import get_command

import momentgen
from momentgen.build import RuleResult, build
from momentgen.commands.cli import app
from momentgen.commands.display import BuildDisplay, short
from momentgen.commands.scaffold import scaffold
from momentgen.compiler.derive import derive
from momentgen.compiler.pipeline import compile_rule
from momentgen.errors import MomentgenError, RuleError
from momentgen.rule import load_rules

Command = Callable[..., Any]


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "rules"
    folder.mkdir()
    for name in ("relu", "abs"):
        (folder / f"{name}.py").write_text(name)
    monkeypatch.setattr("momentgen.build.package.compile_file", compile_stub)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path / "cache"))
    return folder


def test_build_prints_a_table_of_bounds_operations_and_time(rules: Path, said: Command) -> None:
    code, out, err = said("build", "rules", "--jobs", "1")
    row = next(line for line in out.splitlines() if "exact" in line)
    assert re.split(r"  +", row.strip())[:6] == ["abs", "exact", "2.5 ulp", "3 ulp", "10 ulp", "120 / 150"]
    assert "generated: 2 built, 0 fresh" in out
    assert (code, err) == (0, "")


def test_off_a_terminal_a_long_build_says_what_runs(tmp_path: Path) -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    with BuildDisplay(console, every=0.02) as display:
        display.planned(tmp_path, ["relu"])
        display.stage("relu", "certify exact")
        deadline = time.monotonic() + 10
        while "relu: certify exact, for 0 s" not in console.export_text(clear=False) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "relu: certify exact, for 0 s" in console.export_text()


def test_an_interrupted_build_says_what_was_written(tmp_path: Path) -> None:
    console = Console(record=True, width=200, file=io.StringIO())

    def interrupted() -> None:
        with BuildDisplay(console) as display:
            display.planned(tmp_path, ["abs", "relu"])
            display.finished(RuleResult("abs", "built", seconds=1.0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "interrupted: 1 of 2 rules were written (abs); the others are as before" in console.export_text()


def test_a_failing_rule_gives_one_line_and_exit_code_1(rules: Path, said: Command) -> None:
    (rules / "abs.py").write_text("fail")
    code, out, err = said("build", "rules", "--jobs", "1")
    assert (code, err) == (1, "Error: rule abs, stage derive: the integral diverges in `exp(x**2)`\n")
    assert "generated: 1 built, 0 fresh" in out


def test_verbose_gives_the_reason_of_every_strategy(rules: Path, said: Command) -> None:
    (rules / "abs.py").write_text("fail twice")
    first = "Error: rule abs, stage derive: the integral diverges in `exp(x**2)`\n"
    hint = "  2 other strategies were tried: momentgen build --verbose says why they do not serve\n"
    reasons = "  halves: expected a line\n  smooth: expected no kink\n"
    for arguments, more in (((), hint), (("--verbose",), reasons)):
        code, _, err = said("build", "rules", *arguments)
        assert (code, err) == (1, first + more)


def test_check_exits_0_when_fresh_and_1_with_a_list_of_findings(rules: Path, said: Command) -> None:
    said("build", "rules", "--jobs", "1")
    assert said("build", "rules", "--check").code == 0
    (rules / "abs.py").write_text("changed")
    (rules.parent / "generated/relu/exact.c").write_text("edited")
    (rules.parent / "generated/gelu").mkdir()
    (rules.parent / "generated/relu/exact.json").unlink()
    code, out, err = said("build", "rules", "--check")
    assert out.splitlines() == [
        "stale   generated/abs: the rule file or its evidence has changed since",
        "touched generated/relu/exact.c: it is not as the build wrote it",
        "missing generated/relu/exact.json: the build wrote it, it is gone",
        "orphan  generated/gelu: no rule produces it",
    ]
    assert (code, err) == (1, "Error: generated is not what `momentgen build rules` would write (4 findings)\n")


def test_check_writes_nothing(rules: Path, said: Command) -> None:
    assert said("build", "rules", "--check").code == 1
    assert not (rules.parent / "generated").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rules", "--only", "gelu"), "Error: rule gelu: no such rule in rules; there are: abs, relu\n"),
        (("rules", "--out", "rules"), "Error: output directory rules: expected another directory"),
        (("rules", "--out", "rules/abs.py"), "Error: output directory rules/abs.py: cannot be made: File exists\n"),
    ],
)
def test_expected_errors_are_one_line_on_stderr(
    rules: Path, said: Command, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = said("build", *arguments)
    assert err.startswith(message)
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_near_names_are_suggested(rules: Path, said: Command) -> None:
    for arguments in (("build", "--only", "reluu"), ("derive", "reluu", "--rules", "rules")):
        code, _, err = said(*arguments)
        assert code == 1
        assert err.endswith("did you mean relu?\n")


def test_a_directory_that_is_not_there_is_no_rule(rules: Path, said: Command) -> None:
    for name in ("build", "verify", "report"):
        code, _, err = said(name, "nowhere")
        assert code == 2
        assert "expected a directory of rules; there is no nowhere" in " ".join(err.replace("│", " ").split())
        assert "rule nowhere" not in err


def test_tables_on_a_narrow_terminal_are_whole(rules: Path, monkeypatch: pytest.MonkeyPatch, said: Command) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = said("build", "rules", "--jobs", "1")
    assert code == 0
    assert "…" not in out
    assert "abs exact" in out
    assert "mean 2.5 ulp, var 3 ulp, partials 10 ulp" in out
    assert "operations 120 / 150" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 60


def test_help_on_a_narrow_terminal_has_whole_names(monkeypatch: pytest.MonkeyPatch, said: Command) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = said("build", "--help")
    assert "bool" not in out
    assert {"--out", "--jobs", "--check", "--only", "--timeout", "--verbose"} <= set(out.split())


@pytest.mark.parametrize("arguments", [("build", "rules", "--jobs", "0"), ("bild",)])
def test_wrong_usage_exits_2(rules: Path, said: Command, arguments: tuple[str, ...]) -> None:
    assert said(*arguments).code == 2


def test_rules_are_those_of_the_working_directory_where_nobody_says(rules: Path, said: Command) -> None:
    code, out, _ = said("build", "--jobs", "1")
    assert code == 0
    assert "generated: 2 built, 0 fresh" in out


def test_what_writes_never_takes_the_installed_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = said("build")
    assert code == 2
    assert "Invalid value for RULES" in err
    assert not any(tmp_path.iterdir())


def test_what_only_reads_takes_the_installed_rules_outside_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Command
) -> None:
    installed = tmp_path / "site" / "rules"
    installed.mkdir(parents=True)
    (installed / "mine.py").write_text("text")
    monkeypatch.setattr("momentgen.commands.cli.known_rules", lambda: [installed])
    monkeypatch.chdir(tmp_path)
    code, out, _ = said("build", "--check")
    assert code == 1
    assert f"{short(installed.parent / 'generated')}/mine: the rule has not been built" in out


def test_out_is_the_package_of_the_rules_in_every_command_that_has_it() -> None:
    commands = dict(get_command(app).commands)  # type: ignore[attr-defined]
    outs = {
        name: option.help
        for name, each in commands.items()
        for option in each.params
        if "--out" in getattr(option, "opts", ())
    }
    assert set(outs) == {"build", "verify", "report"}
    assert len(set(outs.values())) == 1


def test_version(said: Command) -> None:
    assert said("--version") == (0, f"momentgen {momentgen.__version__}\n", "")


def test_a_build_with_nothing_to_do_imports_neither_the_compiler_nor_torch(rules: Path) -> None:
    build(rules, jobs=1, compiler=compile_stub)
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "momentgen", "build", "rules"], capture_output=True, text=True
    )
    assert "0 built, 2 fresh" in process.stdout
    imported = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    assert "momentgen.build" in imported
    assert not imported & {"torch", "sympy", "numpy", "mpmath", "flint", "momentgen.compiler", "momentgen.rule.rule"}


# `momentgen new`: a rule to start from.
def test_a_scaffold_is_a_rule_that_loads_and_derives(tmp_path: Path) -> None:
    scaffold("swish_2", tmp_path / "my_rules")
    (rule,) = load_rules(tmp_path / "my_rules")
    assert rule.name == "swish_2"
    assert derive(rule).mean is not None


@pytest.mark.slow
def test_a_scaffold_builds_as_it_stands_within_its_goals(tmp_path: Path) -> None:
    (rule,) = load_rules(scaffold("swish", tmp_path))
    compiled = compile_rule(rule)
    assert {"exact.c", "exact.json", "tight.c", "__init__.py"} <= set(compiled.files)


def test_an_existing_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "relu.py").write_text("mine")
    with pytest.raises(MomentgenError, match=r"relu\.py exists already and was left as it is"):
        scaffold("relu", tmp_path)
    assert (tmp_path / "relu.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["2x", "class", "_hidden", "a-b", "a/b", "", "größe"])
def test_a_name_that_can_name_no_op_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(RuleError, match="a rule's name"):
        scaffold(name, tmp_path / "rules")
    assert not (tmp_path / "rules").exists()


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("")
    with pytest.raises(MomentgenError, match="exists already"):
        scaffold("swish", tmp_path / "rules")


def test_the_command_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Command) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = said("new", "swish")
    assert code == 0
    assert "momentgen derive swish\n" in out
    assert "momentgen build rules --only swish\n" in out
    code, _, err = said("new", "swish")
    assert (code, err.count("\n")) == (1, 1)


def test_a_name_that_an_installed_rule_has_is_written_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    note = "note: momentgen has a rule relu of its own; where rules is read, yours stands in its place\n"
    for name, expected in (("relu", note), ("swish", "")):
        code, _, err = said("new", name)
        assert (code, err) == (0, expected)
