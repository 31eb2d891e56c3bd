"""The examples run as they stand, and go on where they stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_lenet_writes_every_case_and_resumes(tmp_path: Path):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (300, 28, 28), dtype=np.uint8)
    labels = draw.integers(0, 10, 300).astype(np.uint8)
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels, x_test=images[:50], y_test=labels[:50])
    out = tmp_path / "results.json"
    settings = ["--samples", "20", "--inputs", "2", "--train", "256", "--epochs", "1", "--statistics", "50"]
    command = [sys.executable, str(EXAMPLES / "lenet_mnist.py"), "--data", str(tmp_path), "--out", str(out), *settings]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    results = json.loads(out.read_text())
    assert len(results["table2"]) == 12
    assert len(results["table4"]) == 6
    del results["table2"]["LReLU, noise 0.1 | plain"]
    out.write_text(json.dumps(results))
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    again = json.loads(out.read_text())
    assert len(again["table2"]) == 12
    for case, row in results["table2"].items():
        assert again["table2"][case]["seconds"] == row["seconds"]
