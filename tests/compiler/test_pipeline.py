"""One rule through all stages: the same files each time, strategies in their order, and attempts at a variant."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy
import sympy as sp
from real_rules import ROOT, stables

from momentgen.compiler import pipeline, strategies
from momentgen.compiler.certify import variant
from momentgen.compiler.certify.bounds import Bound, Measured
from momentgen.compiler.certify.evidence import Evidence
from momentgen.compiler.derive import Derivation, derive
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.pipeline import CompiledRule, compile_rule
from momentgen.compiler.strategies import stabilise, ways
from momentgen.errors import BuildError
from momentgen.rule import Accuracy, Parameter, Rule, load_rules, x

# One rule through all stages: the files that come out, the same each time, and errors that say where.
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
    ("rule", "stage", "said"),
    [
        (lambda: Rule("unknown", f=UNKNOWN), "strategies", ""),
        (lambda: Rule("wrong", f=sympy.Max(x, 0), mean=sympy.Symbol("mu", real=True)), "derive", ""),
        # no strategy that promises a tolerance is taken instead
        (lambda: Rule("strict", f=sympy.Max(x, 0), accuracy=Accuracy(ulp={"exact": 0.3})), "lower", "at most 0.3"),
        (lambda: Rule("open", f=OPEN.symbol * sympy.Max(x, 0), parameters=(OPEN,)), "strategies", ""),
    ],
    ids=["no strategy", "refuted closed form", "goal out of reach", "unbounded parameter"],
)
def test_what_cannot_be_compiled_names_rule_and_stage(rule: Callable[[], Rule], stage: str, said: str) -> None:
    made = rule()
    with pytest.raises(BuildError) as caught:
        compile_rule(made)
    assert caught.value.rule == made.name
    assert caught.value.stage == stage
    assert f"rule {made.name}, stage {stage}: " in str(caught.value)
    assert said in str(caught.value)


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


# Several ways may serve a rule: the first that reaches the accuracy asked is taken, and a certificate says which.
SMOOTH = Rule("smooth", f=sp.tanh(x))


WAYS = ("smooth, by polynomials", "quadrature")


@pytest.mark.slow
def test_ways_come_in_the_order_of_the_strategies_and_carry_their_names() -> None:
    assert [tuple(stable.way for stable in stables) for stables in ways(derive(SMOOTH))] == [(way,) for way in WAYS]


def test_a_way_can_be_asked_for_by_its_name_and_is_missed_by_name() -> None:
    (stable,) = stabilise(derive(SMOOTH), WAYS[1])
    assert stable.way == WAYS[1]
    with pytest.raises(BuildError, match="with kinks, by power series"):
        stabilise(derive(SMOOTH), "with kinks, by power series")


@pytest.mark.parametrize(
    ("f", "moved"),
    [
        (50 * sp.tanh(x / 50), True),
        (sp.tanh(x) / 1000, True),
        (sp.Max(0, sp.Min(6, x)) ** 3, True),
        (50 * sp.log(1 + sp.exp(x / 50)), True),
        (50 * sp.Heaviside(x - 1, 1), True),
        (sp.tanh(x), False),
        (sp.Max(0, sp.Min(6, x)), False),
        (100 * sp.sin(x), False),
        (50 * sp.Max(0, x), False),
    ],
)
def test_an_f_far_from_one_in_size_is_fitted_in_units_of_its_size(f: sp.Expr, moved: bool) -> None:
    derivation = derive(Rule("sized", f=f, accuracy=Accuracy(moments=True)))
    assert (strategies._of_size_one(derivation).base is not None) == moved


def test_goals_in_absolute_errors_are_those_of_f_itself() -> None:
    rule = Rule("sized", f=50 * sp.tanh(x / 50), accuracy=Accuracy(mean_abs=1e-3, var_abs=1e-1))
    assert strategies._of_size_one(derive(rule)).base is None


@pytest.mark.slow
def test_the_mean_of_such_an_f_is_measured_in_that_unit() -> None:
    (stable,) = next(ways(derive(Rule("sized", f=50 * sp.tanh(x / 50)))))
    said = stable.measure.words()
    assert said["mean"] == "1e-06*max(A, |m|) + 1e-09*min(L*sigma, range)"
    assert (said["values"]["A"], said["values"]["range"]) == (64, 100)


@dataclass(frozen=True)
class Made:
    """What the pipeline asks of a variant before it is certified."""

    way: str
    unit: str = "tolerance"
    goal: float = 1.0


def first(
    misses: Sequence[str],
    tried: Sequence[str | Made],
    monkeypatch: pytest.MonkeyPatch,
    rule: Rule = SMOOTH,
) -> object:
    """What comes of ways of these names, some of which miss the accuracy."""

    def compiled(rule: Rule, stable: Made, *rest: object) -> str:
        if stable.way in misses:
            raise BuildError(rule.name, "certify", f"the variance is off by {len(stable.way)} tolerances")
        return str(stable.way)

    made: Any = [(Made(one) if isinstance(one, str) else one,) for one in tried]
    monkeypatch.setattr(pipeline, "certified", compiled)
    return pipeline._compile_first(rule, made, lambda stage: None, Evidence(rule.name))


def test_a_way_that_misses_the_accuracy_gives_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first([], WAYS, monkeypatch) == (WAYS[0],)
    assert first(WAYS[:1], WAYS, monkeypatch) == (WAYS[1],)


def test_where_all_ways_miss_the_error_says_by_how_much_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError) as error:
        first(WAYS, WAYS, monkeypatch)
    *others, last = WAYS
    said = [f"stage certify, the variance is off by {len(way)} tolerances" for way in WAYS]
    assert error.value.others == tuple(zip(others, said, strict=False))
    assert str(error.value) == f"rule smooth, {said[-1].replace(',', ':')} ({last})"
    with pytest.raises(
        BuildError, match=rf"^rule smooth, stage certify: the variance is off by {len(WAYS[1])} tolerances$"
    ):
        first(WAYS, WAYS[1:], monkeypatch)


@pytest.mark.parametrize(("moments", "taken"), [(True, "by tolerance"), (False, None)])
def test_a_missed_goal_in_ulp_leaves_the_ways_by_moments_where_the_rule_takes_them(
    moments: bool, taken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Rule("valley", f=sp.Max(x, -x / 2), accuracy=Accuracy(ulp={"exact": 8.0}, moments=moments))
    tried = (Made("in ulp", "ulp", 8.0), Made("by tolerance", "tolerance", 8.0))
    if taken is None:
        with pytest.raises(BuildError, match="off by 6 tolerances"):
            first(["in ulp"], tried, monkeypatch, rule=rule)
    else:
        assert first(["in ulp"], tried, monkeypatch, rule=rule) == (taken,)


# A variant is lowered again with the points at which it failed, and in the end with all nodes in two words.
def test_the_last_attempt_carries_all_nodes_in_two_words(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is chosen at so few points fails at others.
    monkeypatch.setattr(variant, "_CALIBRATION", 10)
    monkeypatch.setattr(variant, "_ATTEMPTS", 2)
    (rule,) = load_rules(ROOT / "rules" / "relu.py")
    stages: list[str] = []
    made = variant.certified(rule, stables("relu")["exact"], stages.append, Evidence("relu"))
    assert stages == ["lower exact", "certify exact"] * 2
    choice = made.choices["forward"]
    assert choice.error == choice.all_double
    assert all(bound.error <= 8 for bound in made.bounds.values())


def test_attempts_end_where_two_words_throughout_leave_rounding_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    aims: list[float] = []
    points: list[int] = []

    def lowered(rule: Any, stable: Any, direction: str, graph: Any, aim: float, hard: Any, *rest: Any) -> Any:
        """Programs that miss elsewhere; below an aim of 0.88 there is but the one with all nodes in two words."""
        aims.append(aim)
        points.append(sum(at[0].size for _, at, _ in hard))
        words = 300 if aim >= 0.88 else 900
        return SimpleNamespace(double=range(words), error={"mean": 0.88}, order=()), None

    stable = replace(stables("relu")["exact"], aim=0.9)
    bounds = {name: Bound(error=9.0) for name in stable.outputs}
    one = np.ones(1, np.float32)
    missed = Measured(bounds, 1, (({}, (one, one)),))
    monkeypatch.setattr(variant, "_lower", lowered)
    monkeypatch.setattr(variant, "Runner", lambda *given: None)
    monkeypatch.setattr(variant, "measure", lambda *given, **named: missed)
    (rule,) = load_rules(ROOT / "rules" / "relu.py")
    stages: list[str] = []
    with pytest.raises(BuildError, match="expected an error of at most 8 ulp"):
        variant.certified(rule, stable, stages.append, Evidence("relu"))
    assert stages.count("certify exact") == 8
    assert points[-1] > 8  # what lies around them counts as well, once the aim cannot fall
    assert sum(aim < 0.88 for aim in aims) == 1
