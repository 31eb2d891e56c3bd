"""The rule language: what loads, and what each wrong rule is told."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import mpmath
import pytest
import sympy

from momentgen.errors import RuleError
from momentgen.rule import (
    Phi,
    S,
    load_reductions,
    load_rules,
    phi,
    x,
)
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
    rules = (*load_rules(RULES), *load_reductions(RULES))
    assert sorted(r.name for r in rules) == sorted(p.stem for p in RULES.glob("*.py") if not p.name.startswith("_"))
    for rule in rules:
        assert rule.digest == hashlib.sha256((RULES / f"{rule.name}.py").read_bytes()).hexdigest()


def test_one_file_loads_alone():
    (rule,) = load_rules(RULES / "leaky_relu.py")
    assert rule.name == "leaky_relu"
    assert rule.defaults == {"negative_slope": 0.01}


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
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=RULES.parent)
    assert out.stdout.split() == [hashlib.sha256(b"1/0").hexdigest(), "False"]


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
        (
            "from momentgen.rule import Rule, S, x\nfrom sympy import *\nrule = Rule('bad', f=x*S(x))",
            "S is bound to something",
        ),
        (
            "from momentgen.rule import *\nS = Phi\nrule = Rule('bad', f=S(x))",
            "S is bound to something else afterwards",
        ),
        (
            "import sympy\nfrom momentgen.rule import *\nsympy.Max = sympy.Min\nrule = Rule('bad', f=sympy.Max(x, 0))",
            "bad.py binds sympy.Max to something else",
        ),
        *(
            (f"import {module}\nfrom momentgen.rule import *\nrule = Rule('bad', f=x*{number})", "a clock or random")
            for module, number in (("time", "time.time_ns() / 2**60"), ("random", "random.random()"))
        ),
    ],
)
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
