"""The command line: what it prints, where, and the code it exits with."""

import io
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import pytest
import sympy
from quadrature_truth import moments, partials
from rich.console import Console
from stub_compiler import compile_stub
from typer.main import get_command

import momentgen
from momentgen.build import RuleResult, build
from momentgen.commands.cli import app
from momentgen.commands.derive_text import Derived, derived, find_rule
from momentgen.commands.display import BuildDisplay, short
from momentgen.commands.scaffold import scaffold
from momentgen.compiler.derive import derive
from momentgen.compiler.pipeline import compile_rule
from momentgen.errors import BuildError, MomentgenError, RuleError
from momentgen.rule import load_rules

Command = Callable[..., Any]
READERS = ("build", "verify", "report")


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


def test_build_of_the_directory_s_rules_prints_a_table_of_bounds_operations_and_time(
    rules: Path, said: Command
) -> None:
    code, out, err = said("build", "--jobs", "1")
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


def test_a_failing_rule_gives_one_line_and_verbose_the_reason_of_every_strategy(rules: Path, said: Command) -> None:
    first = "Error: rule abs, stage derive: the integral diverges in `exp(x**2)`\n"
    hint = "  2 other strategies were tried: momentgen build --verbose says why they do not serve\n"
    reasons = "  halves: expected a line\n  smooth: expected no kink\n"
    for text, arguments, more in (("fail", (), ""), ("fail twice", (), hint), ("fail twice", ("--verbose",), reasons)):
        (rules / "abs.py").write_text(text)
        code, out, err = said("build", "rules", "--jobs", "1", *arguments)
        assert (code, err) == (1, first + more)
        assert "generated: 1 built, 0 fresh" in out or "generated: 0 built, 1 fresh" in out


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
    ("arguments", "code", "message"),
    [
        ("build rules --only gelu", 1, "Error: rule gelu: no such rule in rules; there are: abs, relu\n"),
        ("build --only reluu", 1, "Error: rule reluu: no such rule in rules; did you mean relu?\n"),
        ("derive reluu --rules rules", 1, "no expression in x; did you mean relu?\n"),
        ("build rules --out rules", 1, "Error: output directory rules: expected another directory"),
        ("build rules --out rules/abs.py", 1, "output directory rules/abs.py: cannot be made: File exists\n"),
        *((f"{name} nowhere", 2, "expected a directory of rules; there is no nowhere") for name in READERS),
        ("build rules --jobs 0", 2, "--jobs"),
        ("bild", 2, "bild"),
    ],
)
def test_expected_errors_are_said_on_stderr_those_of_rules_in_one_line(
    rules: Path, said: Command, arguments: str, code: int, message: str
) -> None:
    found = said(*arguments.split())
    assert (found.code, found.out) == (code, "")
    assert message in found.err if code == 1 else message in " ".join(found.err.replace("│", " ").split())
    assert (found.err.count("\n") == 1) == (code == 1)


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
    assert set(outs) == {*READERS}
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


# `momentgen derive`: what is printed is true, readable, and refuses what it cannot print.
RULES = Path(__file__).parents[1] / "rules"
POINTS = [(0.3, 1.7), (-2.1, 0.4)]
CLOSED = ["Max(x, 0)", "Abs(x)", "x**3", "sin(x)", "Min(Max(x, -1), 1)", "Max(x, 0)**2", "exp(-x**2)", "relu(x) - 2"]
CLOSED += ["Piecewise((x, x > 0), (exp(x) - 1, True))", "heaviside", "leaky_relu"]
ONLY_THE_MEAN = ["x*Phi(x)", pytest.param("x*Phi(2*x + 1) - 3", marks=pytest.mark.slow)]


def values(found: Derived, mean: float, var: float) -> dict[str, mpmath.mpf]:
    """All outputs at a point, by the printed expressions and the printed legend alone."""
    numbers = {"mu": sympy.Float(mean, 40), "sigma": sympy.sqrt(sympy.Float(var, 40)), "v": sympy.Float(var, 40)}
    numbers |= {name: sympy.Float(value, 40) for name, value in found.rule.defaults.items()}

    def at(expression: sympy.Expr) -> sympy.Expr:
        known = {s: numbers[s.name] for s in expression.free_symbols}
        return expression.subs(known).evalf(30)

    numbers |= {symbol.name: at(meaning) for symbol, meaning in found.where.items() if symbol.name == "a"}
    result = {"mean": at(found.outputs["mean"])}
    numbers["m"] = result["mean"]
    return {name: mpmath.mpf(str(at(e))) for name, e in found.outputs.items()}


@pytest.mark.parametrize("what", [*CLOSED, *ONLY_THE_MEAN])
def test_printed_moments_and_partials_agree_with_quadrature_of_f(what: str) -> None:
    rule = find_rule(what, RULES)
    found = derived(rule)
    with mpmath.workdps(25):
        for mean, var in POINTS[: 1 if rule.parameters else None]:
            settings = rule.defaults
            truth = dict(zip(("mean", "var"), moments(rule.f, mean, var, settings, digits=20), strict=True))
            truth |= partials(rule.f, mean, var, settings, digits=20)
            for name, value in values(found, mean, var).items():
                assert abs(value - truth[name]) <= 1e-15 * (1 + abs(truth[name])), (name, mean, var)


def test_homogeneous_moments_are_short() -> None:
    outputs = derived(find_rule("Max(x, 0)", RULES)).outputs
    assert str(outputs["mean"]) == "mu*Phi(a) + sigma*phi(a)"
    assert outputs["var"].count_ops() < 12


def test_text_is_two_dimensional_and_names_parameters_as_the_rule_does() -> None:
    text = derived(find_rule("leaky_relu", RULES)).text()
    assert "negative_slope" in text
    assert "Φ(a)" in text


def test_latex_has_a_line_an_output() -> None:
    found = derived(find_rule("leaky_relu", RULES))
    lines = found.text(latex=True).splitlines()
    assert lines[0].startswith(r"f(x) = \max\left(x, ")
    assert r"\mathrm{negative\_slope}" in lines[0]
    assert sum(line.startswith((r"\mathbb{E}", r"\operatorname{Var}", r"\frac{\partial}")) for line in lines) == 6
    assert all(line.count("{") == line.count("}") for line in lines)


@pytest.mark.parametrize(
    ("what", "error", "cause"),
    [
        ("exp(x**2)", BuildError, "the moment diverges for v >= 1"),
        ("exp(x**3)", BuildError, "the moment diverges: the exponential outgrows every Gaussian"),
        ("tanh(x)", MomentgenError, r"outside the (closed )?algebra"),
        ("log(1 + exp(x))", MomentgenError, r"outside the (closed )?algebra"),
        ("logistic_transform", MomentgenError, r"outside the (closed )?algebra"),
        ("swish", RuleError, "no such rule in .*, and no expression in x; there are: abs, "),
        ("x*y", RuleError, "unknown symbol y; known are x"),
        ("Max(x,", RuleError, "expected an expression in x, in sympy's syntax"),
        ("x.real_part", RuleError, "expected an expression in x, in sympy's syntax"),
    ],
)
def test_what_has_no_moments_to_print_is_refused_with_the_reason(
    what: str, error: type[MomentgenError], cause: str
) -> None:
    with pytest.raises(error, match=cause):
        derived(find_rule(what, RULES))


@pytest.mark.parametrize("what", ONLY_THE_MEAN)
def test_where_f_squared_has_no_closed_form_the_mean_and_its_partials_are_printed_and_that_is_said(what: str) -> None:
    found = derived(find_rule(what))
    assert list(found.outputs) == ["mean", "dmean_dmu", "dmean_dvar"]
    assert "var: f**2 is outside the closed algebra" in found.text()


def test_a_rule_s_name_finds_the_installed_rules_outside_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("momentgen.commands.derive_text.known_rules", lambda: [Path("rules"), RULES])
    monkeypatch.chdir(tmp_path)
    assert find_rule("relu").name == "relu"
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "relu.py").write_text("from momentgen.rule import *\nrule = Rule('relu', f=x, doc='mine')\n")
    assert find_rule("relu").doc == "mine"
    assert find_rule("relu", RULES).doc != "mine"


def test_an_unknown_name_is_said_once_with_each_place_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("momentgen.commands.derive_text.known_rules", lambda: [Path("rules"), RULES])
    monkeypatch.chdir(RULES.parent)
    with pytest.raises(RuleError, match=r"^rule C: no such rule in rules, and no expression in x; there are: abs, "):
        find_rule("C")
    (tmp_path / "rules").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuleError, match=rf"^rule reluu: no such rule in rules or {RULES}, .*; did you mean relu or "):
        find_rule("reluu")


def test_the_command_prints_or_fails_in_one_line(said: Callable[..., Any]) -> None:
    code, out, _ = said("derive", "Abs(x)", "--latex")
    assert code == 0
    assert out.startswith(r"f(x) = \left|{x}\right|")
    code, _, err = said("derive", "exp(x**2)")
    assert (code, err.count("\n")) == (1, 1)


def test_a_long_derivation_ends_after_40_lines_and_says_how_to_see_the_rest(said: Callable[..., Any]) -> None:
    long = "Piecewise((x, x < -2), (x**2, x < 1), (exp(x), x < 3), (x**3, True))"
    shown, whole = (said("derive", long, *options).out.splitlines() for options in ([], ["--full"]))
    assert len(shown) == 40
    assert len(whole) > 40
    assert shown[:-1] == whole[:39]
    assert shown[-1] == f"... {len(whole) - 39} more lines; --full prints them"
