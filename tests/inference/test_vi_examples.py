"""The examples of variational inference run as they stand, and go on where they stopped, also within a training."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from other_processes import ROOT, noise_images, run_example
from rich.console import Console

from momentgen.errors import InputError
from momentgen.inference import Categorical, MeanField, Tridiagonal, elbo, prune, randomise


def run(name: str, folder: Path, *settings: str) -> dict[str, Any]:
    return run_example(name, noise_images(folder), folder / "out.json", *settings)[0]


def trained(path: Path, stop: int | None, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Parameters and history of 23 steps, or what there is of them when the run is interrupted after ``stop``."""
    monkeypatch.syspath_prepend(ROOT / "examples")
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


def test_the_valley_between_needed_and_pruned_weights_is_found_beside_a_far_peak_of_dead_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Needed weights at log α -4, 2 % of all; superfluous ones at 11; dead ones about 60, as of black pixels."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.delitem(sys.modules, "_common", raising=False)  # the benchmarks have a module of that name too
    valley = importlib.import_module("vi_vbp").valley
    monkeypatch.delitem(sys.modules, "_common")

    normal = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    bayes = randomise(torch.nn.Linear(100, 1000), MeanField(), only="weight")
    posterior = bayes.posteriors["weight"]

    def found(alpha: torch.Tensor) -> float:
        with torch.no_grad():
            posterior.mean.copy_((posterior.log_var.double() - alpha.view(1000, 100)).div(2).exp())
        return valley(bayes)

    threshold = found(torch.cat([-4 + normal[:2000], 11 + 2 * normal[2000:70_000], 60 + 10 * normal[70_000:]]))
    assert 0 < threshold < 3
    assert prune(bayes, threshold).kept["weight"][0] == pytest.approx(2000, abs=5)
    with pytest.raises(InputError, match="single peak"):
        found(1 + 2 * normal)


@pytest.mark.slow
def test_correlated_mnist_keeps_tables_and_says_what_was_scaled(tmp_path: Path) -> None:
    settings = ("--iterations", "4", "--train", "256", "--samples", "3", "--every", "2", "--units", "100")
    found = run("vi_correlated_mnist.py", tmp_path, *settings)
    assert found["settings"]["scaled"]["iterations"] == "4 (paper: 100000)"
    row = found["networks"]["correlated, 100"]
    assert sum(row["95%"].values()) == 50
    assert list(row["layers"]) == ["conv1", "conv2", "fc1", "fc2"]
    assert row["history"]["step"] == [2, 4]
    assert run("vi_correlated_mnist.py", tmp_path, *settings) == found
    assert not list(tmp_path.glob("*.checkpoints"))


@pytest.mark.slow
def test_correlated_cifar_stands_in_mnist_and_says_so(tmp_path: Path) -> None:
    settings = ("--plain-iterations", "2", "--iterations", "2", "--samples", "3", "--every", "1", "--test", "20")
    found = run("vi_correlated_cifar.py", tmp_path, *settings)
    assert "MNIST" in found["settings"]["data"] or "mnist" in found["settings"]["data"]
    assert [sum(found["networks"]["correlated"][level].values()) for level in ("95%", "99%")] == [20, 20]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mlp-30", "conv", "conv-32"])
def test_vbp_keeps_curves_and_sparsity(tmp_path: Path, network: str) -> None:
    found = run("vi_vbp.py", tmp_path, "--network", network, "--epochs", "2", "--only", "VBP")
    assert len(found["ways"]) == 4
    for row in found["ways"].values():
        assert len(row["history"]["error"]) == 2
        assert 0 <= row["pruning"]["fixed"]["pruned"] <= 1
