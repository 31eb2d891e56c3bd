"""The benchmark of correlation runs as it stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "correlation.py"


def test_a_quick_run_measures_every_method_keeps_what_it_sampled_and_adds_rows(tmp_path: Path):
    out = tmp_path / "correlation.json"

    def run(*settings: str) -> dict[str, dict[str, float]]:
        command = [sys.executable, str(SCRIPT), "--quick", "--checkpoints", str(tmp_path), "--out", str(out), *settings]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert "σ/σ_MC" in done.stdout
        return json.loads(out.read_text())["rows"]

    first = run("--networks", "mlp", "--methods", "ap2", "linear")
    assert list(first) == [
        f"mlp | noise {v} | {method}" for v in ("0.0001", "0.01", "0.1") for method in ("ap2", "linear")
    ]
    for row in first.values():
        assert 0.5 < row["ratio"] < 2
        assert 0 <= row["kl"] < 0.1
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.pt")}
    again = run("--networks", "mlp", "--methods", "Monte Carlo 96", "--memory")
    assert len(again) == 9
    assert again["mlp | noise 0.01 | ap2"] == first["mlp | noise 0.01 | ap2"]
    assert again["mlp | noise 0.01 | Monte Carlo 96"]["memory"] > 1
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.pt")} == kept


def test_the_documented_table_is_that_of_the_results():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--table"], check=True, capture_output=True, text=True, timeout=120
    )
    page = (SCRIPT.parents[1] / "docs" / "networks.md").read_text()
    _, _, rest = page.partition("<!-- from benchmarks/results/correlation.json -->\n")
    assert rest.startswith(done.stdout)
