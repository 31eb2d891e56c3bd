"""`momentgen new`: a rule to start from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from momentgen.commands.scaffold import scaffold
from momentgen.compiler.derive import derive
from momentgen.compiler.pipeline import compile_rule
from momentgen.errors import MomentgenError, RuleError
from momentgen.rule import load_rules

Command = Callable[..., Any]


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
