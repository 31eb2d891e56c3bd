"""What is kept of lowering and certification gives the same files bit for bit, and is used where nothing changed."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sympy
from real_rules import ROOT, rules

from momentgen.compiler import pipeline
from momentgen.compiler.certify.evidence import Evidence, Run, read_evidence
from momentgen.compiler.derive import derive
from momentgen.compiler.ir.graph import Graph
from momentgen.compiler.keeping import Keeper
from momentgen.compiler.pipeline import CompiledRule, Outcome, compile_rule
from momentgen.compiler.plain import decoded, encoded, rule_data
from momentgen.compiler.strategies import Way, plans
from momentgen.errors import BuildError
from momentgen.keep.compiler_state import compiler_sources
from momentgen.keep.kept import Kept
from momentgen.keep.meaning import Sources
from momentgen.rule import Accuracy, Parameter, Rule, x
from momentgen.rule.files import evidence_path

LOOSE = Accuracy(ulp={"exact": 400.0})  # all in single precision: quick to compile
QUICK = Rule("quick", f=sympy.Max(x, 0), accuracy=LOOSE, doc="A quick rule.", citation="Nobody, 2000")
FOUND = Evidence("quick", {}, {"exact": ((0.5, 1.0),)})


@functools.lru_cache
def sources() -> Sources:
    return compiler_sources()


@functools.lru_cache
def anew() -> CompiledRule:
    return compile_rule(QUICK, evidence=FOUND)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Kept, CompiledRule]:
    """Where the quick rule is kept, and what it became then."""
    kept = Kept(tmp_path_factory.mktemp("kept"))
    return kept, keep(kept)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever lowers or certifies now has not remembered."""

    def fail(*_: object) -> None:
        raise AssertionError("expected what was kept")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "certified", fail)
        patch.setattr(Way, "stables", fail)
        yield


def keep(kept: Kept, rule: Rule = QUICK, evidence: Evidence = FOUND) -> CompiledRule:
    return compile_rule(rule, evidence=evidence, memory=Keeper(rule, evidence, kept, sources()))


Filled = tuple[Kept, CompiledRule]


def test_keeping_changes_no_file(filled: Filled) -> None:
    assert filled[1].files == anew().files


@pytest.mark.usefixtures("forbidden")
def test_what_was_kept_gives_the_same_files_bit_for_bit(filled: Filled) -> None:
    again = keep(filled[0])
    assert again.files == anew().files
    assert again.variants == anew().variants
    assert again.programs == anew().programs


@pytest.mark.usefixtures("forbidden")
def test_a_doc_or_a_citation_is_not_what_a_rule_computes_with(filled: Filled) -> None:
    other = dataclasses.replace(QUICK, doc="Another doc.", citation="Somebody, 2001", digest="ab" * 32)
    files = keep(filled[0], other).files
    assert "Another doc." in files["__init__.py"]
    assert "Somebody, 2001" in files["exact.json"]
    assert "ab" * 32 in files["exact.json"]


@pytest.mark.parametrize(
    ("rule", "evidence"),
    [
        (dataclasses.replace(QUICK, f=2 * sympy.Max(x, 0)), FOUND),
        (dataclasses.replace(QUICK, name="other"), FOUND),
        (dataclasses.replace(QUICK, accuracy=Accuracy(ulp={"exact": 401.0})), FOUND),
        (QUICK, Evidence("quick")),
    ],
    ids=["f", "name", "accuracy", "evidence"],
)
@pytest.mark.usefixtures("forbidden")
def test_another_rule_or_evidence_is_compiled_anew(kept: Kept, rule: Rule, evidence: Evidence) -> None:
    def key(rule: Rule, evidence: Evidence) -> str:
        return Keeper(rule, evidence, kept, sources()).key(Way("homogeneous", (KINK,), lambda: ()))

    assert key(rule, evidence) != key(QUICK, FOUND)
    assert key(QUICK, FOUND) == key(dataclasses.replace(QUICK), FOUND)


KINK = "momentgen.compiler.strategies.homogeneous.kink"


def copied(tmp_path: Path, module: str, text: str) -> Sources:
    """The compiler's sources with ``text`` at the end of one module."""
    root = Path(compiler_sources().root)
    shutil.copytree(root, tmp_path / "momentgen", ignore=shutil.ignore_patterns("__pycache__", "laws", "nn", "runtime"))
    path = (tmp_path / module.replace(".", "/")).with_suffix(".py")
    path.write_text(path.read_text() + text)
    return Sources(tmp_path / "momentgen")


@pytest.mark.parametrize(
    ("module", "text", "same"),
    [
        ("momentgen.compiler.certify.bounds", "\n# a comment\n", True),
        ("momentgen.compiler.emit.torch", "\nADDED = 1\n", True),
        ("momentgen.compiler.emit.triton", "\nADDED = 1\n", True),
        ("momentgen.compiler.pipeline", "\nADDED = 1\n", True),
        ("momentgen.compiler.strategies.smooth.polynomials", "\nADDED = 1\n", True),
        ("momentgen.compiler.strategies.homogeneous.kink_graph", "\nADDED = 1\n", False),
        ("momentgen.compiler.certify.bounds", "\nADDED = 1\n", False),
        ("momentgen.compiler.lower.trials", "\nADDED = 1\n", False),
        ("momentgen.compiler.emit.c", "\nADDED = 1\n", True),
        ("momentgen.compiler.derive.normal", "\nADDED = 1\n", False),
        ("momentgen.rule.rule", "\nADDED = 1\n", False),
    ],
)
def test_only_a_change_of_the_code_that_made_it_makes_what_was_kept_worthless(
    tmp_path: Path, kept: Kept, module: str, text: str, same: bool
) -> None:
    changed = copied(tmp_path / "copy", module, text)
    (way,) = plans(derive(QUICK), "homogeneous")
    before = Keeper(QUICK, FOUND, kept, sources()).key(way)
    assert (Keeper(QUICK, FOUND, kept, changed).key(way) == before) is same


def test_nothing_is_kept_where_a_source_was_edited_meanwhile(tmp_path: Path) -> None:
    copy = copied(tmp_path / "copy", "momentgen.compiler.certify.bounds", "")
    (folder := tmp_path / "kept").mkdir()
    keeper, way = Keeper(QUICK, FOUND, Kept(folder), copy), Way("homogeneous", (KINK,), lambda: ())
    keeper.keep(way, Outcome(refusal="unedited"))
    assert keeper.recall(way) == Outcome(refusal="unedited")
    path = copy.root / "compiler/certify/bounds.py"
    path.write_text(path.read_text() + "\nADDED = 1\n")
    keeper.keep(way, Outcome(refusal="edited"))
    assert keeper.recall(way) == Outcome(refusal="unedited")


def test_a_goal_that_is_missed_is_kept_and_says_the_same(kept: Kept, request: pytest.FixtureRequest) -> None:
    strict = dataclasses.replace(QUICK, accuracy=Accuracy(ulp={"exact": 0.3}))
    with pytest.raises(BuildError) as first:
        keep(kept, strict, Evidence("quick"))
    request.getfixturevalue("forbidden")
    with pytest.raises(BuildError) as again:
        keep(kept, strict, Evidence("quick"))
    assert str(again.value) == str(first.value)


def test_an_error_of_a_tool_is_not_kept(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BuildError("C", "emit", "the compiler was killed")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "certified", fail)
        with pytest.raises(BuildError, match="the compiler was killed"):
            keep(kept)
    (way,) = plans(derive(QUICK), "homogeneous")
    assert Keeper(QUICK, FOUND, kept, sources()).recall(way) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name, rule in rules().items() if isinstance(rule, Rule)))
def test_every_rule_can_be_kept_and_comes_back_the_same(kept: Kept, name: str, request: pytest.FixtureRequest) -> None:
    rule, evidence = rules()[name], read_evidence(evidence_path(ROOT / "rules" / f"{name}.py"), name)
    first = keep(kept, rule, evidence)
    request.getfixturevalue("forbidden")
    again = keep(kept, rule, evidence)
    assert again == first


# ---------------------------------------------------------------- plain data


def test_values_come_back_equal_with_their_types() -> None:
    with mpmath.workdps(50):
        fine = mpmath.mpf(1) / 3
    value = {"a": (1, 1.0, True, None), 2: [fine, mpmath.mpf("-inf")], "s": frozenset({3, 1}), (1, 2): -0.0}
    again = decoded(encoded(value))
    assert repr(again) == repr(value)
    assert again[2][0]._mpf_ == fine._mpf_


def test_a_graph_comes_back_and_can_be_written_on() -> None:
    graph = Graph(("mean", "var"), ("slope",))
    graph.output("mean", graph.input("mean") * graph.param("slope"))
    again = decoded(encoded(graph))
    assert (again.nodes, again.outputs, again.inputs) == (graph.nodes, graph.outputs, graph.inputs)
    assert again.input("mean").index == graph.input("mean").index


@pytest.mark.parametrize("value", [object(), np.float32(1), np.ones(2), sympy.Symbol("x"), 1j, b"bytes"])
def test_what_is_not_known_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="expected plain data"):
        encoded({"deep": [value]})


def test_functions_do_not_come_back() -> None:
    gone = decoded(encoded({"f": len}))["f"]
    with pytest.raises(RuntimeError, match="compile the rule anew"):
        gone([])


def test_rules_are_told_apart_by_all_that_they_compute_with() -> None:
    k = Parameter("k", default=0.1, low=0.0, high=1.0)
    rules = [
        QUICK,
        Rule("quick", f=k.symbol * sympy.Max(x, 0), parameters=(k,), accuracy=LOOSE),
        Rule("quick", f=k.symbol * sympy.Max(x, 0), parameters=(dataclasses.replace(k, default=0.2),), accuracy=LOOSE),
        Rule("quick", f=k.symbol * sympy.Max(x, 0), parameters=(dataclasses.replace(k, high=0.5),), accuracy=LOOSE),
    ]
    assert len({str(rule_data(rule)) for rule in rules}) == len(rules)
    assert rule_data(k) == rule_data(dataclasses.replace(k, doc="The slope."))


def test_runs_over_all_inputs_come_back(kept: Kept) -> None:
    evidence = read_evidence(evidence_path(ROOT / "rules/relu.py"), "relu")
    runs = [run for of_variant in evidence.variants.values() for run in of_variant]
    assert runs
    assert all(isinstance(run, Run) for run in runs)
    assert decoded(encoded(runs)) == runs
