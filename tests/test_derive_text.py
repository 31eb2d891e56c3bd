"""`momentgen derive`: what is printed is true, readable, and refuses what it cannot print."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import pytest
import sympy
from quadrature_truth import moments, partials

from momentgen.commands.derive_text import Derived, derived, find_rule
from momentgen.errors import BuildError, MomentgenError, RuleError

RULES = Path(__file__).parents[1] / "rules"
POINTS = [(0.3, 1.7), (-2.1, 0.4)]
CLOSED = ["Max(x, 0)", "Abs(x)", "x**3", "sin(x)", "Min(Max(x, -1), 1)", "Max(x, 0)**2", "exp(-x**2)", "relu(x) - 2"]
CLOSED += ["Piecewise((x, x > 0), (exp(x) - 1, True))", "heaviside", "leaky_relu"]


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


@pytest.mark.parametrize("what", CLOSED)
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


@pytest.mark.parametrize("what", ["x*Phi(x)", pytest.param("x*Phi(2*x + 1) - 3", marks=pytest.mark.slow)])
def test_where_f_squared_has_no_closed_form_the_mean_and_its_partials_are_printed_and_that_is_said(what: str) -> None:
    found = derived(find_rule(what))
    assert list(found.outputs) == ["mean", "dmean_dmu", "dmean_dvar"]
    assert "var: f**2 is outside the closed algebra" in found.text()
    with mpmath.workdps(25):
        for mean, var in POINTS:
            truth = {"mean": moments(found.rule.f, mean, var, {}, digits=20)[0]}
            truth |= partials(found.rule.f, mean, var, {}, digits=20)
            for name, value in values(found, mean, var).items():
                assert abs(value - truth[name]) <= 1e-15 * (1 + abs(truth[name])), (name, mean, var)


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
