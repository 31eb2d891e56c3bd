"""The Python on the first pages runs, in order, and prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.?\d*(?:e[-+]?\d+)?", text)]


@pytest.mark.parametrize("name", ["README.md", "docs/networks.md", "docs/ops.md"])
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|text)\n(.*?)^```", page, flags=re.S | re.M)
    assert blocks
    known: dict[str, Any] = {}
    printed = ""
    for kind, code in blocks:
        if kind == "text":
            assert numbers(printed) == pytest.approx(numbers(code), rel=0.02, abs=2e-4), printed
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, name, "exec"), known)
        printed = out.getvalue()


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]), ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        goal = page.parent / target if target else page
        assert goal.exists(), f"{page.name}: no {target}"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", goal.read_text(encoding="utf-8"), flags=re.M)
            slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, f"{page.name}: no heading {anchor} in {goal.name}"
