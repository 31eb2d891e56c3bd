"""A variant is lowered again with the points at which it failed, and in the end with all nodes in two words."""

from __future__ import annotations

import pytest
from real_rules import ROOT, stables

from momentgen.compiler.certify import variant
from momentgen.compiler.certify.evidence import Evidence
from momentgen.rule import load_rules


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
