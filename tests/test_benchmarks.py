"""The benchmark of answers runs as it stands, and what all benchmarks import is there."""

import ast
import importlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "answers.py"


def test_a_quick_run_measures_methods_beside_each_other_keeps_what_it_drew_and_adds_to_its_results(tmp_path: Path):
    out = tmp_path / "answers.json"

    def run(*settings: str) -> dict[str, dict[str, dict[str, Any]]]:
        command = [sys.executable, str(SCRIPT), "--quick", "--networks", "mlp", "--no-memory", *settings]
        command += ["--checkpoints", str(tmp_path), "--out", str(out)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=env)
        return json.loads(out.read_text())["cells"]

    first = run("--methods", "controlled, 16 rows", "ap2", "--noise", "0.01", "1")
    assert list(first) == ["mlp | noise 0.01", "mlp | noise 1"]
    for rows in first.values():
        assert list(rows) == ["controlled, 16 rows", "ap2"]
        assert rows["controlled, 16 rows"]["rows"] == 16
        assert rows["controlled, 16 rows"]["rms"] < 0.3
        assert rows["controlled, 16 rows"]["coverage"] > 0.7
        assert 0.5 < rows["ap2"]["ratio"] < 2
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.pt")}
    again = run("--methods", "ap2", "linearisation", "--missing", "--noise", "0.01")
    assert list(again["mlp | noise 0.01"]) == ["controlled, 16 rows", "ap2", "linearisation"]
    assert again["mlp | noise 0.01"]["ap2"] == first["mlp | noise 0.01"]["ap2"]
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.pt")} == kept


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("answers", "the-default"),
        ("truth", "truth"),
        ("formulas", "formulas"),
        ("after_sigma", "after-sigma"),
        ("gum", "../tutorials/measured-formula"),
        ("tables", "tables"),
        ("failures", "tables"),
        ("known_posteriors", "tables"),
        ("blind", "functions"),
    ],
)
def test_the_documented_tables_are_those_of_the_results(script: str, name: str) -> None:
    command = [sys.executable, str(SCRIPT.with_stem(script)), "--table"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    page = (SCRIPT.parents[1] / "docs" / "results" / f"{name}.md").read_text()
    _, _, rest = page.partition(f"<!-- tables of benchmarks/{script}.py -->\n")
    assert rest.startswith(done.stdout)


@pytest.mark.parametrize("script", sorted(SCRIPT.parent.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_of_momentgen_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "momentgen":
            module = importlib.import_module(str(node.module))
            for name in (alias.name for alias in node.names):
                is_there = hasattr(module, name) or importlib.util.find_spec(f"{node.module}.{name}")
                assert is_there, f"{node.module}.{name}"


# The journeys that take seconds run to their answers.
JOURNEYS = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "journeys.py"))


def answers(name: str) -> dict[str, Any]:
    return dict(JOURNEYS[name]())


def test_the_metrologist_finds_the_resistance_of_the_guide() -> None:
    found = answers("metrologist")
    assert abs(float(found["mean and σ"].mean) - 127.732) < 1e-3
    assert json.loads(found["interval"]) == pytest.approx([127.595, 127.869], abs=0.002)  # of stated errors of 0.001
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
