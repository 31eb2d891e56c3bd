"""Training by the lower bound: exact resume, several processes, the fit of a conjugate model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_networks import bound_of_half, close, mlp, moments, train_distributed, two_processes

import momentgen
from momentgen.errors import InputError
from momentgen.inference import Gaussian, MeanField, Normal, Trainer, Tridiagonal, elbo, randomise


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


def test_a_linear_model_reaches_the_exact_posterior() -> None:
    """Normal prior, known noise, orthogonal features: the posterior is mean field, and the bound is the evidence."""
    x = torch.linalg.qr(torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0] * 5
    noise, prior = 0.5, 2.0
    y = x @ torch.tensor([[1.0], [-0.5], [0.2]], dtype=torch.float64) + math.sqrt(noise) * torch.randn(
        40, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    net = torch.nn.Linear(3, 1, bias=False).double()
    one = Trainer(
        randomise(net, MeanField(std=0.1), prior=Normal(var=prior)), Gaussian(var=noise), batch_size=40, lr=0.02
    )
    one.run(x, y, 1500)
    precision = x.mT @ x / noise + torch.eye(3, dtype=torch.float64) / prior
    posterior = one.network.posteriors["weight"]
    assert torch.allclose(
        posterior.mean.squeeze(), torch.linalg.solve(precision, x.mT @ y / noise).squeeze(), atol=1e-6
    )
    assert torch.allclose(posterior.var.squeeze(), precision.inverse().diagonal(), rtol=1e-5)
    covariance = noise * torch.eye(40, dtype=torch.float64) + prior * x @ x.mT
    evidence = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=torch.float64), covariance)
    assert one.history[-1] * 40 == pytest.approx(evidence.log_prob(y.squeeze()).item(), rel=1e-8)


def test_a_falling_rate_ends_nearer_the_exact_posterior() -> None:
    """Of the same model, trained by draws: at a constant rate the last draws throw the means about."""
    x = torch.linalg.qr(torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0] * 5
    y = x @ torch.tensor([[1.0], [-0.5], [0.2]], dtype=torch.float64)
    exact = torch.linalg.solve(x.mT @ x / 0.5 + torch.eye(3, dtype=torch.float64) / 2.0, x.mT @ y / 0.5).squeeze()
    off = {}
    for falling in (0.0, 0.5):
        found = []
        for seed in range(5):
            torch.manual_seed(seed)
            net = torch.nn.Linear(3, 1, bias=False).double()
            network = randomise(net, MeanField(std=0.1), prior=Normal(var=2.0))
            one = Trainer(network, Gaussian(var=0.5), propagation="sample", batch_size=40, lr=0.05, seed=seed)
            one.run(x, y, 200, falling=falling)
            found.append(network.posteriors["weight"].mean.squeeze() - exact)
            assert [group["lr"] for group in one.optimizer.param_groups] == [0.05]  # as before
        off[falling] = torch.stack(found).square().mean().sqrt().item()
    assert off[0.5] < 0.5 * off[0.0], off


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        (torch.zeros(0, 3), torch.zeros(0, 1), InputError, "as many observations as inputs"),
        (torch.zeros(4, 3), torch.zeros(5, 1), InputError, "got 5 and 4"),
        (torch.full((4, 3), math.nan), torch.zeros(4, 1), FloatingPointError, "the bound is nan in epoch 1"),
        (torch.zeros(4, 3), torch.full((4, 1), math.nan), InputError, "finite observations"),
    ],
)
def test_data_that_cannot_be_fitted_are_refused(x: Tensor, y: Tensor, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        trainer(MeanField(), "ap2").run(x, y, 1)


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
