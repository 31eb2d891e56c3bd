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
