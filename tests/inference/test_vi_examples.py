"""The examples of variational inference run as they stand, and go on where they stopped, also within a training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from momentgen.inference import Categorical, Tridiagonal, elbo, randomise

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what passes for MNIST: 300 images of noise."""
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (300, 28, 28), dtype=np.uint8)
    labels = draw.integers(0, 10, 300).astype(np.uint8)
    np.savez(tmp_path / "mnist.npz", x_train=pixels, y_train=labels, x_test=pixels[:50], y_test=labels[:50])
    return tmp_path


def run(name: str, folder: Path, *settings: str) -> dict[str, Any]:
    out = folder / "out.json"
    command = [sys.executable, str(EXAMPLES / name), "--data", str(folder), "--out", str(out), *settings]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=600, env=alone)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def trained(path: Path, stop: int | None, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Parameters and history of 23 steps, or what there is of them when the run is interrupted after ``stop``."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from _data import Images
    from _vi import Training

    torch.manual_seed(3)
    images = Images("noise", torch.rand(40, 3), torch.randint(2, (40,)), torch.rand(4, 3), torch.randint(2, (4,)))
    bayes = randomise(torch.nn.Linear(3, 2), Tridiagonal()).set_method("sample")
    sgd = torch.optim.SGD(bayes.parameter_groups(0.1), 0.1, 0.9)
    training = Training(path, {"network": bayes, "optimizer": sgd}, {}, 0, Console(quiet=True))
    for x, y in training.batches(images, 8, 23, ""):
        loss = -elbo(bayes, Categorical("bound"), x, y, size=40)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        training.add(loss)
        if training.step % 4 == 0:
            training.note()
        if training.step == stop:
            training.save()
            break
    return [value.detach() for value in bayes.parameters()], training.history


def test_training_that_was_interrupted_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, history = trained(tmp_path / "whole.pt", None, monkeypatch)
    part, _ = trained(tmp_path / "part.pt", 10, monkeypatch)
    assert not all(torch.equal(*pair) for pair in zip(whole, part, strict=True))
    resumed, resumed_history = trained(tmp_path / "part.pt", None, monkeypatch)
    assert all(torch.equal(*pair) for pair in zip(whole, resumed, strict=True))
    assert resumed_history == history
    assert history["step"] == [4, 8, 12, 16, 20]


@pytest.mark.slow
def test_correlated_mnist_keeps_tables_and_says_what_was_scaled(folder: Path) -> None:
    settings = ("--iterations", "4", "--train", "256", "--samples", "3", "--every", "2", "--units", "100")
    found = run("vi_correlated_mnist.py", folder, *settings)
    assert found["settings"]["scaled"]["iterations"] == "4 (paper: 100000)"
    row = found["networks"]["correlated, 100"]
    assert sum(row["95%"].values()) == 50
    assert list(row["layers"]) == ["conv1", "conv2", "fc1", "fc2"]
    assert row["history"]["step"] == [2, 4]
    assert run("vi_correlated_mnist.py", folder, *settings) == found
    assert not list(folder.glob("*.checkpoints"))


@pytest.mark.slow
def test_correlated_cifar_stands_in_mnist_and_says_so(folder: Path) -> None:
    settings = ("--plain-iterations", "2", "--iterations", "2", "--samples", "3", "--every", "1", "--test", "20")
    found = run("vi_correlated_cifar.py", folder, *settings)
    assert "MNIST" in found["settings"]["data"] or "mnist" in found["settings"]["data"]
    assert [sum(found["networks"]["correlated"][level].values()) for level in ("95%", "99%")] == [20, 20]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mlp-30", "conv", "conv-32"])
def test_vbp_keeps_curves_and_sparsity(folder: Path, network: str) -> None:
    found = run("vi_vbp.py", folder, "--network", network, "--epochs", "2", "--only", "VBP")
    assert len(found["ways"]) == 4
    for row in found["ways"].values():
        assert len(row["history"]["error"]) == 2
        assert 0 <= row["pruning"]["fixed"]["pruned"] <= 1
