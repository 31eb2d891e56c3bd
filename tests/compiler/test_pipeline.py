"""One rule through all stages: the files that come out, the same each time, and errors that say where."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import sympy

from momentgen.compiler import pipeline
from momentgen.compiler.derive import Derivation
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.pipeline import CompiledRule, compile_rule
from momentgen.compiler.strategies import stabilise
from momentgen.errors import BuildError
from momentgen.rule import Accuracy, Parameter, Rule, x

UNKNOWN = sympy.airyai(x)  # of no function that the compiler knows
OPEN = Parameter("k", default=0.1, low=0.0, high=float("inf"))
LOOSE = Accuracy(ulp={"exact": 400.0})  # all in single precision: quick to compile
FILES = {"__init__.py", "exact.c", "exact.json", "exact_float64.c", "exact_torch.py", "exact_triton.py"}


def quick() -> Rule:
    return Rule("quick", f=sympy.Max(x, 0), accuracy=LOOSE, doc="A quick rule.", citation="Nobody, 2000")


@functools.lru_cache
def compiled() -> CompiledRule:
    return compile_rule(quick())


def test_files_are_those_of_the_layout_and_well_formed() -> None:
    result = compiled()
    assert result.rule == "quick"
    assert set(result.files) == FILES
    for name, text in result.files.items():
        assert text.endswith("\n"), name
        if name.endswith(".py"):
            ast.parse(text)
    assert "void quick_exact_forward(" in result.files["exact.c"]
    certificate = json.loads(result.files["exact.json"])
    assert (certificate["rule"], certificate["variant"], certificate["citation"]) == ("quick", "exact", "Nobody, 2000")
    assert set(certificate["bounds"]) == {"mean", "var", "dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar"}


def test_every_generated_file_says_rule_and_variant_and_no_path() -> None:
    for name, text in compiled().files.items():
        assert "quick" in text, name
        assert "/tmp/" not in text, name
        assert "/home/" not in text, name
        if name != "__init__.py" and not name.endswith(".json"):
            assert "variant exact" in text, name
            assert "Documented in exact.json" in text, name


def test_programs_are_those_of_the_files() -> None:
    forward, backward = compiled().programs["exact"]
    assert forward.inputs == ("mean", "var")
    assert backward.inputs == ("mean", "var", "grad_mean", "grad_var")
    (summary,) = compiled().variants
    assert summary.operations == {"forward": forward.operations, "backward": backward.operations}
    assert json.loads(compiled().files["exact.json"])["operations"]["forward"] == forward.count()


def test_two_runs_give_the_same_bytes() -> None:
    assert compile_rule(quick()).files == compiled().files


def test_stages_are_announced_in_their_order() -> None:
    seen: list[str] = []
    with pytest.raises(BuildError):
        compile_rule(Rule("unknown", f=UNKNOWN), progress=seen.append)
    assert seen == ["derive", "strategies"]


@pytest.mark.parametrize(
    ("rule", "stage"),
    [
        (lambda: Rule("unknown", f=UNKNOWN), "strategies"),
        (lambda: Rule("wrong", f=sympy.Max(x, 0), mean=sympy.Symbol("mu", real=True)), "derive"),
        (lambda: Rule("strict", f=sympy.Max(x, 0), accuracy=Accuracy(ulp={"exact": 0.3})), "lower"),
        (lambda: Rule("open", f=OPEN.symbol * sympy.Max(x, 0), parameters=(OPEN,)), "strategies"),
    ],
    ids=["no strategy", "refuted closed form", "goal out of reach", "unbounded parameter"],
)
def test_what_cannot_be_compiled_names_rule_and_stage(rule: Callable[[], Rule], stage: str) -> None:
    made = rule()
    with pytest.raises(BuildError) as caught:
        compile_rule(made)
    assert caught.value.rule == made.name
    assert caught.value.stage == stage
    assert f"rule {made.name}, stage {stage}: " in str(caught.value)


def test_a_float64_form_that_misses_the_goal_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(derivation: Derivation) -> list[tuple[Stable]]:
        (stable,) = stabilise(derivation)
        wrong = Graph(("mean", "var"))
        wrong.output("mean", wrong.input("mean"))  # right on one side only
        wrong.output("var", wrong.input("var"))
        return [(replace(stable, forward64=wrong),)]

    monkeypatch.setattr(pipeline, "ways", spoiled)
    with pytest.raises(BuildError, match="float64 form's mean misses the goal"):
        compile_rule(quick())
