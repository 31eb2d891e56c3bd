"""The compiler's digest covers the code that compiles rules, and the cache gives the files of a fresh compile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import momentgen
from momentgen.build import rule_compiler
from momentgen.build.rule_compiler import Compiled, RuleCompiler
from momentgen.keep.code import code_digest, code_files
from momentgen.keep.kept import Kept

PACKAGE = Path(momentgen.__file__).parent
#: imported as packages are loaded, though nothing that compiles is in them
BYSTANDERS = {"momentgen"}
RULE = "import sympy\nfrom momentgen.rule import Accuracy, Rule, x\n"
RULE += 'rule = Rule("quick", f=sympy.Max(x, 0), accuracy=Accuracy(ulp={"exact": 400.0}))\n'


def test_every_module_that_compiling_loads_is_in_the_digest() -> None:
    code = "import momentgen.compiler.pipeline, momentgen.compiler.reduction, momentgen.rule.rule, sys\n"
    code += "print(*(f'{n}={m.__file__}' for n, m in sys.modules.items() if n.split('.')[0] == 'momentgen'))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300).stdout
    loaded = {name: Path(path) for name, _, path in (word.partition("=") for word in shown.split())}
    counted = set(code_files(PACKAGE))
    assert {name for name, path in loaded.items() if path not in counted} <= BYSTANDERS
    assert len(loaded) > 100


def compiled(path: Path, kept: Kept | None) -> Compiled:
    return RuleCompiler(code_digest(), kept)("quick", path, lambda stage: None)


@pytest.fixture(scope="module")
def rule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "quick.py"
    path.write_text(RULE)
    return path


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_a_cached_rule_has_the_files_and_the_variants_of_a_fresh_compile(
    rule: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = compiled(rule, kept)
    monkeypatch.setattr(RuleCompiler, "_anew", None)
    again = compiled(rule, kept)
    assert again.files == fresh.files
    assert [vars(variant) for variant in again.variants] == [vars(variant) for variant in fresh.variants]
    rule_changed = rule.with_name("other.py")
    rule_changed.write_text(f"{RULE}# a comment")
    with pytest.raises(TypeError):
        compiled(rule_changed, kept)


def test_nothing_is_cached_where_the_code_or_the_rule_was_edited_meanwhile(
    rule: Path, tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = tmp_path / "quick.py"
    edited.write_text(RULE)

    def anew(self: RuleCompiler, name: str, path: Path, progress: object) -> Compiled:
        path.write_text(f"{RULE}# edited")
        return rule_compiler._Cached({}, ())

    monkeypatch.setattr(RuleCompiler, "_anew", anew)
    monkeypatch.setattr(rule_compiler, "_imported", code_digest())
    compiled(edited, kept)
    monkeypatch.setattr(rule_compiler, "_imported", "another")
    compiled(edited, kept)
    assert list(tmp_path.glob("*.json.zz")) == []
