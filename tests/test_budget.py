"""Lines per folder: a budget is lowered when its folder shrinks, and raised with a reason in the commit alone."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: lines of Python, at most
BUDGETS = {
    "momentgen": 54_080,
    "momentgen/compiler": 19_490,
    "momentgen/compiler/strategies": 7_130,
    "momentgen/laws": 15_490,
    "momentgen/nn": 1_490,
    "momentgen/inference": 8_070,
    "tests": 35_820,
    "benchmarks": 8_370,
}


@pytest.mark.parametrize("folder", BUDGETS)
def test_a_folder_has_no_more_lines_than_its_budget(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert lines <= BUDGETS[folder], (
        f"{folder}: {lines} lines; delete what is superseded, or raise the budget and say why"
    )
    assert lines > 0.97 * BUDGETS[folder], f"{folder}: {lines} lines; lower its budget"
