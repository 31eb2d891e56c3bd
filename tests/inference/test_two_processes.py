"""Two processes under DDP have the gradients of one with all of the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_networks import bound_of_half, close, mlp, moments, train_distributed, two_processes

import momentgen
from momentgen.inference import Gaussian, MeanField, elbo, randomise


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
