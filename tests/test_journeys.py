"""The journeys that take seconds run to their answers."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

JOURNEYS = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "journeys.py"))


def answers(name: str) -> dict[str, Any]:
    return dict(JOURNEYS[name]())


def test_the_metrologist_finds_the_resistance_of_the_guide() -> None:
    found = answers("metrologist")
    assert abs(float(found["mean and σ"].mean) - 127.732) < 1e-3
    assert found["interval"] == "[127.595, 127.869]"
    assert found["budget"].startswith("phase ")


def test_the_chemists_noise_cancels_in_the_difference() -> None:
    found = answers("chemist")
    assert float(found["energy difference, shared noise"].std) < 0.1 * float(
        found["as if the noise were not shared"].removeprefix("σ ")
    )


def test_the_students_activation_has_the_spread_of_draws() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 32), torch.nn.Linear(32, 1)
    found = answers("student")["σ"].detach()
    with torch.no_grad():
        hidden = layers[0](1 + 0.3 * torch.randn(200_000, 3))
        draws = layers[1](hidden * torch.exp(-hidden.square()) + 0.1 * hidden.relu())
    assert float(found.std) == pytest.approx(float(draws.std()), rel=0.04)


def test_the_documented_table_is_that_of_the_results() -> None:
    page = (Path(__file__).parents[1] / "docs" / "results" / "journeys.md").read_text()
    assert page.partition("<!-- tables of examples/journeys.py -->\n")[2] == JOURNEYS["table"]()
