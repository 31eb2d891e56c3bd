"""What results print as."""

from __future__ import annotations

import torch

import momentgen
from momentgen import nn
from momentgen.nn.monte_carlo import MonteCarlo


def found() -> MonteCarlo:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    functions = {"posterior[x]": lambda out: out.softmax(-1)}
    return momentgen.monte_carlo(network, momentgen.noisy(torch.zeros(2, 4), std=0.5), 200, seed=0, functions=functions)


def test_monte_carlo_is_one_short_line_where_it_is_part_of_something_else() -> None:
    result = found()
    assert repr([result]) == "[MonteCarlo(n=200, output of shape (2, 3), 3 layers, expected=['posterior[x]'])]"
