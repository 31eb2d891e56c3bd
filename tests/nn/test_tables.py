"""What results print as: a table to read."""

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


def test_monte_carlo_prints_a_line_a_layer_the_output_and_each_function() -> None:
    result = found()
    title, *lines = [line.strip() for line in str(result).splitlines() if line.strip()]
    assert title == "200 samples"
    assert lines[0].split()[:4] == ["layer", "shape", "mean:", "least"]
    assert [line.split("  ")[0] for line in lines[2:]] == ["0", "1", "2", "(output)", "E posterior[x]"]
    least, average, largest = (float(word) for word in lines[2].split()[4:7])
    mean = result.layers["0"].mean
    assert abs(least - mean.min()) < 1e-3
    assert abs(average - mean.mean()) < 1e-3
    assert abs(largest - mean.max()) < 1e-3


def test_monte_carlo_is_one_short_line_where_it_is_part_of_something_else() -> None:
    result = found()
    assert repr([result]) == "[MonteCarlo(n=200, output of shape (2, 3), 3 layers, expected=['posterior[x]'])]"
