"""A variant is lowered again with the points at which it failed, and in the end with all nodes in two words."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from real_rules import ROOT, stables

from momentgen.compiler.certify import variant
from momentgen.compiler.certify.bounds import Bound, Measured
from momentgen.compiler.certify.evidence import Evidence
from momentgen.errors import BuildError
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
    monkeypatch.setattr(variant, "Runner", lambda forward, backward: None)
    monkeypatch.setattr(variant, "measure", lambda *given, **named: missed)
    (rule,) = load_rules(ROOT / "rules" / "relu.py")
    stages: list[str] = []
    with pytest.raises(BuildError, match="expected an error of at most 8 ulp"):
        variant.certified(rule, stable, stages.append, Evidence("relu"))
    assert stages.count("certify exact") == 8
    assert points[-1] > 8  # what lies around them counts as well, once the aim cannot fall
    assert sum(aim < 0.88 for aim in aims) == 1
