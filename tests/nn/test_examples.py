"""The examples run as they stand, and go on where they stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from other_processes import noise_images, run_example

QUICK = {
    "dropout_training.py": ("networks", "analytic 0.3 | 0", 9),
    "stability.py": ("networks", "Bernoulli, AP2", 6),
    "nine_layer.py": ("table3", "LReLU, dropout 0.2 | trained", 8),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "dropout_training.py" else pytest.mark.slow) for name in QUICK]
)
def test_quick_runs_write_every_row_a_picture_and_what_the_paper_says(name: str, tmp_path: Path):
    section, key, rows = QUICK[name]
    results, text = run_example(name, noise_images(tmp_path), tmp_path / "results.json", "--quick")
    assert len(results[section]) == rows
    assert key in results[section]
    assert "paper" in text
    assert (tmp_path / "results.png").stat().st_size > 1000


def test_belief_networks_come_near_their_exact_sums(tmp_path: Path):
    settings = ["--networks", "2", "--draws", "100", "--train", "200", "--epochs", "1"]
    found, _ = run_example("belief_network.py", noise_images(tmp_path), tmp_path / "out.json", *settings)
    for layer in ("hidden 2", "output"):
        off = found["accuracy"]["0.5"][layer]
        assert off["AP2"][0] < 1e-3 < off["AP1"][0] < off["draws"][0]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path):
    out = tmp_path / "results.json"
    first, text = run_example("from_scratch.py", noise_images(tmp_path), out, "--quick")
    assert "all numbers finite" in text
    rows = first["networks"]
    assert len(rows) == 4
    kept = {name: row for name, row in rows.items() if name != "ReLU, noise 1e-4"}
    out.write_text(json.dumps({**first, "networks": kept}))
    again, _ = run_example("from_scratch.py", tmp_path, out, "--quick")
    assert again["networks"].keys() == rows.keys()
    for name, row in kept.items():
        assert again["networks"][name]["seconds"] == row["seconds"]
    assert again["networks"]["ReLU, noise 1e-4"]["losses"] == rows["ReLU, noise 1e-4"]["losses"]


@pytest.mark.slow
def test_lenet_writes_every_case_and_resumes(tmp_path: Path):
    settings = ["--samples", "20", "--inputs", "2", "--train", "256", "--epochs", "1", "--statistics", "50"]
    out = tmp_path / "results.json"
    results, _ = run_example("lenet_mnist.py", noise_images(tmp_path), out, *settings)
    assert len(results["table2"]) == 12
    assert len(results["table4"]) == 6
    del results["table2"]["LReLU, noise 0.1 | plain"]
    out.write_text(json.dumps(results))
    again, _ = run_example("lenet_mnist.py", tmp_path, out, *settings)
    assert len(again["table2"]) == 12
    for case, row in results["table2"].items():
        assert again["table2"][case]["seconds"] == row["seconds"]
