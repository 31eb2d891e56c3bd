"""Sigmoid belief networks: hidden posteriors by AP1, AP2, draws and exact sums, and digits learnt by a likelihood.

Small networks have random weights, 6 inputs, two layers of 8 and 6 Bernoulli units, and one Bernoulli output.  The
posterior of a unit is P(unit = 1 | x).  All states of the hidden layers are summed, so that the truth is exact:

    AP1           the ordinary network of means
    AP2           means and variances, by momentgen.nn.moments(network, x, method="ap2")
    draws         the mean of --draws samples of the network

The largest and the root mean square error over networks, inputs and units are kept for each layer and weight scale.
A network of 784-200-10 with Bernoulli units then learns binarised digits: the loss is minus the logarithm of the
expected softmax by AP2.  Its error is that of AP2's class probabilities, of one draw, and of the mean over 100 draws.

    python examples/belief_network.py --data DIR     # DIR holds mnist.npz

Results are written after every row; a run that was interrupted goes on where it stopped (--fresh starts anew).
Source: Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks with
Categorical and Max Layers, sections 1 to 3.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from _common import Results, wide_console
from _data import Images, mnist
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import momentgen
from momentgen import nn
from momentgen.nn import functional

SIZES = (6, 8, 6, 1)
#: standard deviation of a unit's input over random states, about
SCALES = (0.5, 1.0, 2.0, 4.0)
LAYERS = {"1": "hidden 1", "3": "hidden 2", "5": "output"}


def belief_network(sizes: tuple[int, ...], scale: float) -> nn.Sequential:
    """Layers of Bernoulli units; weights are normal, of standard deviation ``scale`` over the root of the inputs."""
    net = nn.Sequential()
    for inputs, outputs in itertools.pairwise(sizes):
        linear = nn.Linear(inputs, outputs)
        torch.nn.init.normal_(linear.weight, 0.0, scale / inputs**0.5)
        torch.nn.init.normal_(linear.bias, 0.0, scale / 2)
        net.append(linear)
        net.append(nn.LogisticBernoulli())
    return net.double()


def states(units: int) -> Tensor:
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=units)), dtype=torch.float64)


def exact(net: nn.Sequential, x: Tensor) -> dict[str, Tensor]:
    """Posterior of every unit by the sum over all states of the layers before it, shape (inputs, units)."""
    first, second, last = (part for part in net if isinstance(part, torch.nn.Linear))

    def linear(layer: torch.nn.Linear, values: Tensor) -> Tensor:
        return torch.nn.functional.linear(values, layer.weight, layer.bias)

    def weights(probabilities: Tensor, of: Tensor) -> Tensor:
        """Probability of each state, shape (..., states)."""
        return torch.where(of == 1, probabilities[..., None, :], 1 - probabilities[..., None, :]).prod(-1)

    one, two = states(SIZES[1]), states(SIZES[2])
    hidden = linear(first, x).sigmoid()
    of_one = weights(hidden, one)  # (inputs, states)
    given_one = linear(second, one).sigmoid()  # (states, units)
    of_two = of_one @ weights(given_one, two)
    return {"1": hidden, "3": of_one @ given_one, "5": of_two @ linear(last, two).sigmoid()}


@torch.no_grad()
def accuracy(scale: float, arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Layer -> method -> largest and root mean square error of a posterior over random networks and inputs."""
    off: dict[str, dict[str, list[Tensor]]] = {layer: {} for layer in LAYERS.values()}
    for seed in range(arguments.networks):
        torch.manual_seed(seed)
        net = belief_network(SIZES, scale)
        x = torch.bernoulli(torch.full((4, SIZES[0]), 0.5, dtype=torch.float64))
        truth = exact(net, x)
        found = {
            "AP1": nn.moments(net, x, method="ap1"),
            "AP2": nn.moments(net, x, method="ap2"),
            "draws": momentgen.monte_carlo(net, x, arguments.draws, seed=seed, progress=False).layers,
        }
        for layer, name in LAYERS.items():
            for way, modules in found.items():
                off[name].setdefault(way, []).append((modules[layer].mean - truth[layer]).abs().flatten())
    joined = {layer: {way: torch.cat(parts) for way, parts in ways.items()} for layer, ways in off.items()}
    return {
        layer: {way: [one.max().item(), one.square().mean().sqrt().item()] for way, one in ways.items()}
        for layer, ways in joined.items()
    }


def learn(images: Images, arguments: argparse.Namespace, console: Console) -> dict[str, float]:
    """Train by the log likelihood of the expected softmax; test errors of three predictions."""
    torch.manual_seed(0)
    x_train, x_test = ((x.flatten(1) > 0.5).float() for x in (images.x_train[: arguments.train], images.x_test))
    y_train, y_test = images.y_train[: arguments.train], images.y_test
    net = nn.Sequential(nn.Linear(784, 200), nn.LogisticBernoulli(), nn.Linear(200, 10))
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    batches = [part for _ in range(arguments.epochs) for part in torch.randperm(len(x_train)).split(100)]
    for batch in track(batches, "learning digits", console=console, transient=True):
        with momentgen.method("ap2"):
            loss = functional.nll_loss(net(x_train[batch]), y_train[batch])
        adam.zero_grad()
        loss.backward()
        adam.step()

    def error(log_probabilities: Tensor) -> float:
        return (log_probabilities.argmax(1) != y_test).double().mean().item()

    with torch.no_grad():
        with momentgen.method("ap2"):
            row = {"AP2": error(functional.log_class_posterior(net(x_test), 1))}
        with momentgen.method("sample"):
            drawn = torch.stack([net(x_test).mean.softmax(1) for _ in range(100)])
        row |= {"one draw": error(drawn[0]), "mean of 100 draws": error(drawn.mean(0))}
        with momentgen.method("ap1"):
            row["AP1"] = error(net(x_test).mean)
    return row


def show(results: Results, console: Console) -> None:
    table = Table(title="Error of P(unit = 1 | x) against exact sums: largest, root mean square")
    for column in ("weights' scale", "layer", "AP1", "AP2", "draws"):
        table.add_column(column)
    for scale, layers in results["accuracy"].items():
        for layer, ways in layers.items():
            table.add_row(scale, layer, *(f"{largest:.1e}, {typical:.1e}" for largest, typical in ways.values()))
    console.print(table)
    for data, row in results["digits"].items():
        console.print(data, {way: f"{value:.2%}" for way, value in row.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--train", type=int, default=60_000, help="training images to use")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "belief_network.json")
    arguments = parser.parse_args()
    console = wide_console()
    images = mnist(arguments.data, console)
    wanted = ("networks", "draws", "train", "epochs")
    settings = {"data": images.source, **{name: getattr(arguments, name) for name in wanted}}
    results = Results(arguments.out, settings, ("accuracy", "digits"), arguments.fresh, console)
    for scale in SCALES:
        if str(scale) not in results["accuracy"]:
            results.keep("accuracy", str(scale), accuracy(scale, arguments))
    if not results["digits"]:
        results.keep("digits", "test error", learn(images, arguments, console))
    show(results, console)
    results.say_where()


if __name__ == "__main__":
    main()
