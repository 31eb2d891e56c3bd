"""The programs pass on this code; those that start processes have tests of their own, and all are in the results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from first_contact.checks import APART, CHECKS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "first_contact.json"


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in APART])
def test_what_a_first_hour_tries_is_right_noted_or_refused(name: str) -> None:
    CHECKS[name]()


def test_every_program_failed_on_the_commit_before_and_passed_after() -> None:
    found = json.loads(RESULTS.read_text())
    assert {row["tries"] for row in found["rows"]} == set(CHECKS)
    assert all(row["before"].startswith("fails: ") and row["after"] == "passes" for row in found["rows"])
