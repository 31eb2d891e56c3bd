"""Training by the lower bound: exact resume, several processes, the fit of a conjugate model."""

import importlib
import math
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from other_processes import ROOT, noise_images, run_example
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn
from torch_networks import bound_of_half, close, mlp, moments, train_distributed, two_processes

import momentgen
from momentgen.errors import InputError
from momentgen.inference import Categorical, Gaussian, MeanField, Normal, Trainer, Tridiagonal, elbo, prune, randomise


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator)
    return x, x.sin().sum(1, keepdim=True) + 0.1 * torch.randn(n, 1, generator=generator)


def trainer(family: Any, method: Any) -> Trainer:
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(3, 12), torch.nn.ReLU(), torch.nn.Linear(12, 1))
    likelihood = Gaussian(var=0.1, learn=True)
    return Trainer(randomise(net, family), likelihood, propagation=method, batch_size=16, seed=3)


METHODS = [(MeanField(), "ap2"), (MeanField(), "local"), (MeanField(), "sample"), (Tridiagonal(rate=10), "sample")]


@pytest.mark.parametrize(("family", "method"), METHODS)
def test_a_resumed_training_gives_the_same_bits(family: Any, method: Any) -> None:
    x, y = data()
    whole = trainer(family, method)
    whole.run(x, y, 5)
    first, second = trainer(family, method), trainer(family, method)
    first.run(x, y, 2)
    second.load_state_dict(first.state_dict())
    torch.rand(7)  # other random numbers in between do not matter
    second.run(x, y, 3)
    assert second.history == whole.history
    for a, b in zip(whole.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("family", "method"), METHODS)
def test_training_raises_the_bound(family: Any, method: Any) -> None:
    x, y = data()
    one = trainer(family, method)
    one.run(x, y, 60)
    assert one.history[-1] > one.history[0] + 0.5


def linear(scatter: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Orthogonal features, whose posterior is a mean field: data, and its means and precisions for a noise of 0.5."""
    x = torch.linalg.qr(torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0] * 5
    own = scatter * torch.randn(40, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = x @ torch.tensor([[1.0], [-0.5], [0.2]], dtype=torch.float64) + own
    precision = x.mT @ x / 0.5 + torch.eye(3, dtype=torch.float64) / 2.0
    return x, y, torch.linalg.solve(precision, x.mT @ y / 0.5).squeeze(), precision.diagonal()


def trained(x: Tensor, y: Tensor, epochs: int, falling: float = 0.0, **options: Any) -> Trainer:
    network = randomise(nn.Linear(3, 1, bias=False).double(), MeanField(std=0.1), prior=Normal(var=2.0))
    one = Trainer(network, Gaussian(var=0.5), batch_size=40, **options)
    one.run(x, y, epochs, falling=falling)
    return one


def test_a_linear_model_reaches_the_exact_posterior() -> None:
    """The bound is the evidence then."""
    x, y, mean, precision = linear(math.sqrt(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)  # the bound no longer rises
        one = trained(x, y, 1500, lr=0.02)
    posterior = one.network.posteriors["weight"]
    assert torch.allclose(posterior.mean.squeeze(), mean, atol=1e-6)
    assert torch.allclose(posterior.var.squeeze(), 1 / precision, rtol=1e-5)
    covariance = 0.5 * torch.eye(40, dtype=torch.float64) + 2.0 * x @ x.mT
    evidence = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=torch.float64), covariance)
    assert one.history[-1] * 40 == pytest.approx(evidence.log_prob(y.squeeze()).item(), rel=1e-8)


def test_a_falling_rate_ends_nearer_the_exact_posterior() -> None:
    """Of the same model, trained by draws: at a constant rate the last draws throw the means about."""
    x, y, mean, _ = linear(0.0)
    off: dict[float, list[Tensor]] = {0.0: [], 0.5: []}
    for falling, found in off.items():
        for seed in range(5):
            torch.manual_seed(seed)
            one = trained(x, y, 200, falling, propagation="sample", lr=0.05, seed=seed)
            found.append(one.network.posteriors["weight"].mean.squeeze() - mean)
            assert [group["lr"] for group in one.optimizer.param_groups] == [0.05]  # as before
    assert torch.stack(off[0.5]).square().mean() < 0.25 * torch.stack(off[0.0]).square().mean()


@pytest.mark.parametrize(("family", "method"), METHODS[::2])
def test_training_that_ends_too_early_says_what_to_type(family: Any, method: Any) -> None:
    x, y = data()

    def heard(train: Callable[..., Any], callback: Any = None, **options: Any) -> str:
        one = trainer(family, method)
        one.callback = callback
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", ConvergenceWarning)
            train(one, x, y, **options)
        found = [each for each in found if each.category is ConvergenceWarning]
        assert {each.filename for each in found} <= {__file__}
        return " ".join(str(each.message) for each in found)

    for epochs in (10, 40):
        said = heard(Trainer.run, epochs=epochs)
        assert re.search(rf"Trainer.run: the bound still rises, by [\d.]+ .*; epochs above {epochs} may help", said)
        assert not heard(Trainer.run, epochs=epochs, warn=False)
    assert "a callback that ends training later" in heard(Trainer.run, lambda one: one.steps > 60, epochs=40)
    said = heard(Trainer.settle, steps=40)
    assert "Trainer.settle: the bound has not settled after 40 steps; steps above 40 may help" in said
    assert not heard(Trainer.run, epochs=1) + heard(Trainer.settle, steps=40, warn=False)  # four steps tell nothing


def test_a_bound_that_is_no_number_ends_training() -> None:
    with pytest.raises(FloatingPointError, match="the bound is nan in epoch 1"):
        trainer(MeanField(), "ap2").run(torch.full((4, 3), math.nan), torch.zeros(4, 1), 1)


# Two processes under DDP have the gradients of one with all of the batch.
def work(rank: int, folder: str, network: tuple[Any, ...], bound: tuple[Any, ...]) -> None:
    """All in the same two processes, which take seconds to begin."""
    train_distributed(rank, folder, *network)
    bound_of_half(rank, folder, *bound)


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain, noisy = mlp(), moments(6, 4)
    small = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    bayes, x = randomise(small, MeanField()), torch.randn(8, 3)
    y = x.sin().sum(1, keepdim=True)
    states = [{name: value.clone() for name, value in one.state_dict().items()} for one in (plain, small)]
    two_processes(tmp_path, work, (states[0], tuple(noisy)), (states[1], x, y))
    out = momentgen.convert(plain, "ap2")(noisy)
    expected = torch.autograd.grad(out.mean.square().mean() + out.var.mean(), list(plain.parameters()))
    close(torch.load(tmp_path / "gradients.pt"), expected)
    with momentgen.method("ap2"):
        (-elbo(bayes, Gaussian(var=0.1), x, y, size=8)).backward()
    found = torch.load(tmp_path / "bound.pt")
    for name, value in bayes.named_parameters():
        assert value.grad is not None
        assert torch.allclose(found[name], value.grad, atol=1e-6), name


# The examples of variational inference run as they stand, and go on where they stopped, also within a training.
def run(name: str, folder: Path, *settings: str) -> dict[str, Any]:
    return run_example(name, noise_images(folder), folder / "out.json", *settings)[0]


def run_until(
    path: Path, stop: int | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[torch.Tensor], dict[str, Any]]:
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
    whole, history = run_until(tmp_path / "whole.pt", None, monkeypatch)
    part, _ = run_until(tmp_path / "part.pt", 10, monkeypatch)
    assert not all(torch.equal(*pair) for pair in zip(whole, part, strict=True))
    resumed, resumed_history = run_until(tmp_path / "part.pt", None, monkeypatch)
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
    assert not list(tmp_path.glob("*.checkpoints/*"))


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
