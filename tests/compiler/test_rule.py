"""The rule language: what loads, and what each wrong rule is told."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import pytest
import sympy
import sympy as sp
from other_processes import printed
from sympy import Abs, Eq, Expr, Float, Heaviside, Integer, Max, Piecewise, Rational, cos, exp, log, oo, sign, sin

from momentgen.compiler.derive import derive, derive_joint
from momentgen.compiler.strategies import ways
from momentgen.compiler.strategies.formulas import formula
from momentgen.errors import BuildError, RuleError
from momentgen.rule import (
    Accuracy,
    Formula,
    Parameter,
    Phi,
    Rescaled,
    Rule,
    S,
    a,
    load_rules,
    mu,
    mu1,
    phi,
    sigma,
    v,
    v1,
    v2,
    x,
    x1,
    x2,
)
from momentgen.rule.checks import MOST_PARAMETERS
from momentgen.rule.files import load_rule_sources

RULES = Path(__file__).parents[2] / "rules"
GOOD = "from momentgen.rule import *\nimport sympy\nrule = Rule({name!r}, f=sympy.Max(x, 0))\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def message(path: Path) -> str:
    with pytest.raises(RuleError) as caught:
        load_rules(path)
    return str(caught.value)


def test_the_rules_of_the_repository_load_sorted_with_the_digests_of_their_files():
    rules = load_rules(RULES)
    assert sorted(r.name for r in rules) == sorted(p.stem for p in RULES.glob("*.py") if not p.name.startswith("_"))
    for rule in rules:
        assert rule.digest == hashlib.sha256((RULES / f"{rule.name}.py").read_bytes()).hexdigest()


def test_rules_survive_pickling_to_worker_processes():
    rules = load_rules(RULES)
    assert pickle.loads(pickle.dumps(rules)) == rules


def test_underscored_files_are_no_rules(tmp_path):
    write(tmp_path, __init__="", _helper="1/0", relu=GOOD.format(name="relu"))
    assert [r.name for r in load_rules(tmp_path)] == ["relu"]


def test_sources_are_found_without_sympy_or_running_the_rules(tmp_path):
    write(tmp_path, broken="1/0")
    code = (
        "import sys; from momentgen.rule.files import load_rule_sources\n"
        f"print(load_rule_sources({str(tmp_path)!r})[0].sha256, 'sympy' in sys.modules)"
    )
    assert printed(code).split() == [hashlib.sha256(b"1/0").hexdigest(), "False"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("x = (", "syntax error, bad.py line 1"),
        ("\nimport nothing_of_that_name", "bad.py line 2 cannot be imported: ModuleNotFoundError"),
        ("import sys; sys.exit()", "cannot be imported: SystemExit"),
        ("x = 1", "defines no module-level `rule`"),
        ("rule = 1", "`rule` must be a momentgen.rule.Rule, got int"),
        ("from momentgen.rule import *\nrule = Rule('bad', f=x)\nother = Rule('other', f=x)", "got also other"),
        ("from momentgen.rule import *\nimport sympy\nrule = Rule('bad', f=sympy.Symbol('x'))", "other assumptions"),
        ("from momentgen.rule import *\nrule = Rule('bad', f=x, mean=x)", "mean: unknown symbol x"),
        ("from momentgen.rule import *\nrule = Rule('bad', f=x, var=x)", "var: unknown symbol x"),
        ("from momentgen.rule import *\nrule = Rule('bad', f=x, partials={'dmu': mu})", "got 'dmu'"),
        ("from momentgen.rule import *\nrule = Rule('good', f=x)", "must define a rule named 'bad'"),
        ("from momentgen.rule import *\nrule = Rule('bad', f=x, unheard_of=1)", "TypeError"),
        ("from momentgen.rule import Rule, S, x\nfrom sympy import *\nrule = Rule('bad', f=x*S(x))",
            "S is bound to something"),
        ("from momentgen.rule import *\nS = Phi\nrule = Rule('bad', f=S(x))",
            "S is bound to something else afterwards"),
        ("import sympy\nfrom momentgen.rule import *\nsympy.Max = sympy.Min\nrule = Rule('bad', f=sympy.Max(x, 0))",
            "bad.py binds sympy.Max to something else"),
        *((f"import {module}\nfrom momentgen.rule import *\nrule = Rule('bad', f=x*{number})", "a clock or random")
            for module, number in (("time", "time.time_ns() / 2**60"), ("random", "random.random()"))),
    ],
)  # fmt: skip
def test_a_wrong_file_gets_one_clear_error(tmp_path, body, told):
    text = message(write(tmp_path, bad=body))
    assert told in text
    assert text.startswith("rule ")


def test_a_name_used_in_two_files_is_refused(tmp_path):
    write(tmp_path, relu=GOOD.format(name="relu"), zelu=GOOD.format(name="relu"))
    assert "duplicate name: relu.py and zelu.py" in message(tmp_path)


def test_a_file_whose_stem_is_no_identifier_is_refused(tmp_path):
    assert "identifier" in message(write(tmp_path, **{"my-rule": GOOD.format(name="relu")}))


def test_paths_that_hold_no_rules_are_refused(tmp_path):
    assert "found none" in message(tmp_path)
    assert "does not exist" in message(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("")
    assert "one rule file" in message(tmp_path / "notes.txt")
    with pytest.raises(RuleError):
        load_rule_sources(tmp_path / "nowhere")


def test_special_functions_know_value_derivative_and_print():
    assert sympy.diff(Phi(x), x) == phi(x)
    assert sympy.diff(phi(x), x) == -x * phi(x)
    assert sympy.diff(S(x), x) == S(x) * S(-x)
    assert abs(Phi(-30).evalf(20) / sympy.Float(mpmath.ncdf(-30)) - 1) < 1e-14
    assert S(sympy.log(3)).evalf(20) == sympy.Float(0.75, 20)
    assert sympy.latex(Phi(x) ** 2) == r"\Phi^{2}\left(x\right)"
    assert sympy.simplify(S(x).rewrite(sympy.exp) - 1 / (1 + sympy.exp(-x))) == 0


def test_a_function_that_one_file_binds_anew_is_as_it_was_for_the_next(tmp_path):
    before = sympy.Max
    assert "cannot be imported" in message(write(tmp_path, bad="import sympy\nsympy.Max = sympy.Min\n1/0"))
    assert sympy.Max is before


# What each wrong rule is told: when it is made, or when it is derived and no strategy takes it.
GOAL = Accuracy(moments=True)
ULP = Accuracy(ulp={"exact": 8.0})
BUMP = x**2 * S(x) * S(-x)
BOTH = ("x1", "x2")
t = sp.Symbol("t", positive=True)
w = Parameter("w", default=1, low=0.5, high=2)
slope = Parameter("slope", default=0.5, low=0.0, high=2.0)
W = w.symbol


def nested(f: Expr, times: int) -> Expr:
    for _ in range(times):
        f = sin(f, evaluate=False)
    return f


def doubled(f: Expr, times: int) -> Expr:
    for _ in range(times):
        f = sp.Mul(sin(f, evaluate=False), cos(f, evaluate=False), evaluate=False)
    return f


def with_variant(formula: Any, name: str = "new", **given: Any) -> dict[str, Any]:
    return {"variants": {name: formula}, **given}


def with_parameter(*given: Any, **named: Any) -> dict[str, Any]:
    return {"parameters": (Parameter(*given, **named),)}


def gate(**given: Any) -> dict[str, Any]:
    return {"f": x * S(x), "conditional_var": BUMP, "accuracy": GOAL, **given}


def clipped(rescaled: Any) -> dict[str, Any]:
    return {"f": Max(x, -W), "parameters": (w,), "rescaled": rescaled}


#: what a rule is made of, beside f = x -> what it is told
WHEN_MADE: list[tuple[Callable[[], dict[str, Any]], str]] = [
    *((lambda f=f: {"f": f()}, told) for f, told in [  # type: ignore[misc]
        (lambda: Integer(3), "f must depend on x"),
        (lambda: 0 * x, "f must depend on x"),
        (lambda: sp.I * x, "f must be real and written without I"),
        (lambda: exp(sp.I * x), "f must be real and written without I"),
        (lambda: oo * Max(x, 0), "f must be finite, but has oo"),
        (lambda: x * 10**50, "f has the number 1.0e+50; in float32"),
        (lambda: x / Integer(10) ** 50, "f has the number 1.0e-50; in float32"),
        (lambda: x**60, "f has a power of 60; the highest that can be compiled is 16"),
        (lambda: x ** (10**9), "f has a power of 1000000000"),
        (lambda: ((x + 1) ** 6 + 1) ** 6, "f has a power of 36"),
        (lambda: x * 10 ** (10**5), "f has a number of more than 4096 bits"),
        (lambda: exp(x * Integer(10) ** 1000), "f has the number 1.0e+1000; in"),
        (lambda: x * Float("1e-300"), "f has the number 1.0e-300; in"),
        (lambda: x * sp.zoo, "f is undefined"),
        (lambda: x + sp.nan, "f is undefined"),
        (lambda: x * Integer(-1) ** Rational(1, 3), "f must be real, but has"),
        (lambda: x * sp.acos(2), "f must be real, but has"),
        (lambda: x * sin(oo), "f has a AccumulationBounds"),
        (lambda: sp.Derivative(Abs(x), x), "f has a Derivative"),
        (lambda: sp.Integral(x, (x, 0, 1)), "f has a Integral"),
        (lambda: sp.MatrixSymbol("A", 1, 1), "f has a MatrixSymbol"),
        (lambda: x > 0, "f must be a sympy expression"),
        (lambda: "x", "f must be a sympy expression"),
        (lambda: 3.0, "f must be a sympy expression"),
        (lambda: sp.Function("g")(x), "unknown function g"),
        (lambda: sp.Add(*[sin(x)] * 3000, evaluate=False), "f has more than 5000 operations"),
        (lambda: doubled(x, 60), "f is nested more than 100"),
        (lambda: nested(x, 120), "f is nested more than 100 operations deep"),
    ]),
    (lambda: with_parameter("p"), "parameter p has no default"),
    (lambda: with_parameter("p", default=2.0, low=0, high=1), "default 2.0 is outside its range [0, 1]"),
    (lambda: with_parameter("p", default=0.5, low=1, high=0), "low = 1 exceeds high = 0"),
    (lambda: with_parameter("p", default="1"), "default must be a number"),
    (lambda: with_parameter("p", default=float("nan")), "default must be a number"),
    (lambda: with_parameter("p", default=float("inf")), "outside its range"),
    (lambda: with_parameter("class", default=1.0), "no keyword"),
    (lambda: with_parameter("mean", default=1.0), "taken by the op's own arguments"),
    (lambda: {"f": x1 * x2, "inputs": BOTH, **with_parameter("var2", default=1.0)}, "taken by the op's own arguments"),
    (lambda: {"parameters": (Parameter("p", 1.0), Parameter("p", 2.0))}, "names must differ"),
    (lambda: {"parameters": (Parameter("v", 1.0), Parameter("v_", 1.0))}, "parameter names must differ, got v, v_"),
    (lambda: {"parameters": tuple(Parameter(f"k{i}", 1.0) for i in range(300))},
     f"expected at most {MOST_PARAMETERS} parameters, got 300"),
    (lambda: with_variant("text"), "expected a Formula, got str"),
    (lambda: with_variant(Formula(mu, v), "exact"), "reserved"),
    (lambda: with_variant(Formula(mu, v), "not a name"), "identifier"),
    (lambda: {"variants": {"Pea": Formula(mu, v), "pea": Formula(mu, v)}}, "'Pea' and 'pea' differ by case only"),
    (lambda: with_variant(Formula(mu, v), "Exact"), "'exact' and 'Exact' differ by case only"),
    (lambda: with_variant(Formula(mu, v + x)), "unknown symbol x"),
    (lambda: {"accuracy": Accuracy()}, "states no goal"),
    (lambda: {"accuracy": Accuracy(ulp={"exact": -1})}, "must be positive"),
    (lambda: {"accuracy": Accuracy(moments=True, var_abs=1e-6), "rescaled": Rescaled(x)}, "for f of one normal input"),
    (lambda: {"accuracy": Accuracy(relative=True, mean_abs=1e-6)}, "relative is for f of one normal input"),
    (lambda: {"f": x1 * x2}, "unknown symbol x1; known are x"),
    (lambda: {"f": x1, "inputs": ("x1",)}, "inputs must be"),
    (lambda: {"covariance": True}, "a covariance needs two inputs"),
    (lambda: {"domain": {"variance": 1.0}}, "domain must name mean or var, got 'variance'"),
    (lambda: {"domain": {"var": 0.0}}, "domain: var must be positive"),
    (lambda: {"domain": [1.0]}, "domain must be a dict"),
    (lambda: {"f": Max(x1, x2), "inputs": BOTH, "domain": {"var": 1.0}}, "domain is for"),
    (lambda: clipped(Max(x, -1)), "must be a Rescaled"),
    (lambda: clipped(Rescaled(Max(x, -1), width=exp(W))), "width must be a rational function"),
    (lambda: clipped(Rescaled(Max(x, -1), centre=x)), "centre: unknown symbol x"),
    (lambda: clipped(Rescaled(Max(x, -1), scale=2.0)), "scale must be a sympy expression"),  # type: ignore[arg-type]
    (lambda: {"f": S(W * x), "parameters": (w,), "bernoulli": True, "rescaled": Rescaled(S(x), width=1 / W)},
     "not for draws of 0 or 1"),
    (lambda: gate(conditional_var=1.0), "conditional_var must be a sympy expression"),
    (lambda: gate(conditional_var=BUMP * mu), "unknown symbol mu"),
    (lambda: gate(accuracy=Accuracy(ulp={"exact": 8.0}, moments=True)), "must be Accuracy(moments=True)"),
    (lambda: gate(bernoulli=True), "without noise or bernoulli"),
    (lambda: gate(var=v), "no var can be given: it would be that of f alone"),
    (lambda: gate(partials={"dvar_dmu": mu}), "no partials can be given"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "told"), WHEN_MADE, ids=[told for _, told in WHEN_MADE])
def test_a_wrong_rule_is_refused_when_it_is_made(given: Callable[[], dict[str, Any]], told: str) -> None:
    with pytest.raises(RuleError, match=r"^rule r") as caught:
        Rule("r", **{"f": x, **given()})
    assert told in str(caught.value)


def outside(f: Expr, part: str) -> tuple[dict[str, Any], str, str, str]:
    """Held to the tolerances of moments, a strategy would fit polynomials to it."""
    return {"f": f, "accuracy": ULP}, "derive", "outside the algebra", part


def stated(**given: Any) -> dict[str, Any]:
    """ReLU with closed forms."""
    return {"f": Max(x, 0), **given}


RELU_MEAN = mu * Phi(a) + sigma * phi(a)
#: what a rule is made of, the stage that refuses it, why, and the part of f that is named
WHEN_DERIVED: list[tuple[Any, ...]] = [
    ({"f": exp(x**2)}, "derive", "the moment diverges for v >= 1/(2p), p the factor of x**2 in `exp(2*x**2)`"),
    ({"f": exp(x**3)}, "derive", "the moment diverges"),
    ({"f": Max(x, 0) * exp(x**2)}, "derive", "the moment diverges"),
    ({"f": 1 / x}, "derive", "the second moment diverges for every v > 0: f has a pole at x = 0"),
    ({"f": 1 / (x**2 - 2)}, "derive", "has a pole at x = -1.41421"),
    ({"f": 1 / (x - 1) ** 2}, "derive", "has a pole at x = 1"),
    ({"f": 1 / (exp(x) - 1)}, "derive", "has a pole at x = 0"),
    ({"f": 1 / (exp(x) - 2)}, "derive", "has a pole at x = 0.693147"),
    ({"f": exp(exp(x))}, "derive", "the second moment diverges for every v > 0: f grows faster than exp"),
    ({"f": x * exp(x**2 / 10) / (1 + x**2)}, "derive", "diverges for v >= 2.5"),
    ({"f": sp.sqrt(x)}, "derive", "expected f to be real"),
    ({"f": log(x)}, "derive", "expected f to be real"),
    ({"f": sin(x) ** 2 + cos(x) ** 2}, "derive", "f is constant"),
    ({"f": sign(x) ** 2}, "derive", "f is constant"),
    ({"f": Piecewise((x, Eq(x, 0)), (1, True))}, "derive", "f is constant"),
    ({"f": sp.tanh(x) ** 2 + 1 / sp.cosh(x) ** 2}, "derive", "f is constant"),
    ({"f": Abs(x) / x}, "derive", "f has no value at x = 0"),
    ({"f": sp.floor(x)}, "derive", "it has infinitely many jumps; write finitely many"),
    ({"f": sp.Mod(x, 1)}, "derive", "it has infinitely many jumps"),
    ({"f": sp.Add(*(Heaviside(x - k) for k in range(500)))}, "derive", "expected at most 100 breakpoints, got more"),
    ({"f": Piecewise((x, x < 0), (x**2, x > 1))}, "derive", "no branch holds for 0 < x < 1; give f a value there"),
    ({"f": Piecewise((x, x > 0))}, "derive", "no branch holds for x < 0"),
    ({"f": Max(sin(x), 0)}, "derive", "infinitely many breakpoints"),
    ({"f": sp.airyai(x)}, "strategies", "functions that the compiler knows, got airyai"),
    ({"f": Piecewise((sp.gamma(x), x > 1), (1, True)), "accuracy": Accuracy(relative=True)}, "strategies", "gamma"),
    outside(S(x), "S(x)"),
    outside(x + 1 / (1 + x**2), "1/(x**2 + 1)"),
    outside(Heaviside(sin(x), 1), "sin(x)"),
    outside(x * Phi(x), "Phi(x)**2"),
    outside(sp.sqrt(Abs(x)), "sqrt(-x)"),
    ({"f": Max(x, slope.symbol * x), "parameters": (slope,)}, "derive", "narrow its range"),
    (stated(mean=mu * Phi(a) - sigma * phi(a)), "derive", "the rule's mean is wrong, worst at mu = "),
    (stated(mean=RELU_MEAN + sigma * phi(a) / 10**9), "derive", "the rule's mean is wrong"),
    (stated(var=v * (a * phi(a) + a**2 * Phi(a) - (a * Phi(a) + phi(a)) ** 2)), "derive", "the rule's var is wrong"),
    (stated(partials={"dmean_dvar": phi(a) / sigma}), "derive", "the rule's dmean_dvar is wrong"),
    (clipped(Rescaled(Max(x, -1), width=W)), "derive", "is not 1 times its base"),
    (clipped(Rescaled(Max(x, -2), width=W, scale=W)), "derive", "breaks at -w"),
    (clipped(Rescaled(x, width=W, scale=W)), "derive", "f has 2 pieces, its base 1"),
    (clipped(Rescaled(Max(x, -1), width=W, scale=W - 1)), "derive", "scale must be positive"),
    (gate(conditional_var=Integer(2)), "derive", "constant in x"),
    (gate(conditional_var=BUMP - Rational(1, 4)), "derive", "must not be negative"),
    (gate(conditional_var=x * S(x) * S(-x)), "derive", "must not be negative, got -"),
    ({"f": Piecewise((S(x), x < 0), (S(x) / 2, True)), "bernoulli": True, "accuracy": GOAL}, "strategies",
     "expected f itself, got a draw of 0 or 1"),
    ({"f": Max(x, 0), "accuracy": Accuracy(mean_abs=1e-9)}, "strategies",
     "expected goals in ulp or by moments, got mean_abs or var_abs"),
    ({"f": exp(x1 * x2), "inputs": BOTH}, "derive", "a polynomial or Max(x1, x2)"),
    ({"f": Max(x1, x2, 0), "inputs": BOTH}, "derive", "beside Max(x1, x2) itself"),
    ({"f": Max(x1, x2) ** 2, "inputs": BOTH}, "derive", "beside Max(x1, x2) itself"),
    ({"f": x1 * x2, "inputs": BOTH, "var": v1 * v2 + mu1**2 * v2}, "derive", "worst at mu1 = "),
]  # fmt: skip


@pytest.mark.parametrize("case", WHEN_DERIVED, ids=lambda case: str(case[0]["f"])[:60])
def test_a_refusal_names_rule_stage_the_true_reason_and_nothing_internal(case: tuple[Any, ...]) -> None:
    given, stage, reason, *part = case
    rule = Rule("r", **given)
    with warnings.catch_warnings(action="error"), pytest.raises(BuildError) as caught:
        derive_joint(rule) if "inputs" in given else next(ways(derive(rule)))
    error, first = caught.value, str(caught.value).split("\n")[0]
    assert (error.rule, error.stage) == ("r", stage)
    assert reason in first
    assert not any(word in str(error) for word in ("Pieces(", "Piece(", "np.float", "<momentgen"))
    assert not part or [str(error.expression)] == part


@pytest.mark.parametrize(
    ("f", "variant", "reason"),
    [
        (S(x), Formula(mean=sin(mu), var=v), r"stage strategies: variant new: expected sums, products.*sin"),
        (S(x), Formula(mean=None, var=v * S(mu)), "expected a mean of its own"),
        *((Max(x, 0), Formula(mean=mu * step, var=v), "variant new: expected") for step in (
            Heaviside(mu - 1, 0), Heaviside(mu), Heaviside(mu / v, 0), Max(mu, v))),
    ],
)  # fmt: skip
def test_a_variant_that_no_graph_can_be_written_of_is_refused(f: Expr, variant: Any, reason: str) -> None:
    rule = Rule("r", f=f, variants={"new": variant}, **({"accuracy": Accuracy(mean_abs=1e-6)} if f == S(x) else {}))
    with pytest.raises(BuildError, match=reason):
        formula.stable_variants(derive(rule))
