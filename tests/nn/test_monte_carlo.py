"""``monte_carlo`` of networks that know of their batch: one draw at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import momentgen
from momentgen import noisy


class Of(nn.Module):
    """A function of a linear layer's values."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear, self.function, self.calls = nn.Linear(3, 2), function, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.function(self.linear(x))


def _decided(x: Tensor) -> Tensor:
    return 2 * x if float(x.mean()) > 0 else x


INTERACT: dict[str, Callable[[Tensor], Tensor]] = {
    "statistics of the batch": lambda x: (x - x.mean(0)) / x.std(0),
    "a sum over earlier examples": lambda x: x.cumsum(0),
    "a sum over later examples": lambda x: x.flip(0).cumsum(0),
    "one value of all": lambda x: x.mean(0, keepdim=True),
    "the last place of a sequence": lambda x: x.cumsum(0)[-1],
    "a decision for all": _decided,
    "a size of its own": lambda x: x.view(4, 2).T @ torch.ones(4, 4),
}


@pytest.mark.parametrize("name", INTERACT)
def test_draws_of_examples_that_interact_are_those_of_single_calls(name: str) -> None:
    network, x = Of(INTERACT[name]).eval(), noisy(torch.linspace(-1, 1, 12).view(4, 3), std=0.3)
    with torch.no_grad():
        drawn = torch.stack([network(x.mean + x.std * torch.randn(4, 3)) for _ in range(2000)]).double()
    network.calls = 0
    found = momentgen.monte_carlo(network, x, 2000, seed=0)
    assert network.calls == 2000
    std = drawn.std(0)
    assert ((found.output.mean - drawn.mean(0)).abs() < 5 * std / 31 + 1e-6).all()
    assert ((found.output.var.sqrt() - std).abs() < 0.12 * std + 1e-6).all()


@pytest.mark.parametrize("function", [torch.tanh, lambda x: nn.functional.dropout(x, 0.4)])
def test_draws_of_independent_examples_go_together(function: Callable[[Tensor], Tensor]) -> None:
    network = Of(function).eval()
    momentgen.monte_carlo(network, noisy(torch.zeros(4, 3), std=0.3), 2000, seed=0)
    assert network.calls == 2
