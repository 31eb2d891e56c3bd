"""What a training step of a Bayesian network costs over the plain network's: variational inference, on one thread.

    MLP 784-400-400-10, batch 100, Adam      plain; VBP (method ap2) with normal and log-uniform prior; local; sample;
                                             the loss compiled by torch.compile, plain and VBP
    LeNet of 100 units, batch 64, SGD        plain with dropout; correlated parameters (tridiagonal posterior, sample)
    LeNet of max and of average pools        plain; VBP with normal prior

Steps are whole: forward pass, bound with its divergence, gradients, optimizer.  All of a network's contestants take
turns, of five steps each; ratios are medians over rounds, to the plain step, eager or compiled as they are, of the
processor time of this process, which other processes disturb less than the clock.

    python benchmarks/vi_steps.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from _common import console, environment, save
from rich.table import Table
from torch import nn

from momentgen.inference import Categorical, LogUniform, MeanField, Normal, Prior, Tridiagonal, elbo, randomise

__all__ = ["main"]

#: steps a turn
IN_A_ROW = 5


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))


def lenet(drop: float, pool: Callable[[int], nn.Module] = nn.MaxPool2d) -> nn.Sequential:
    """Caffe's LeNet with 100 units, channels last in memory."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), pool(2), nn.Conv2d(20, 50, 5), pool(2), nn.Flatten()),
        *(nn.Linear(800, 100), nn.ReLU(), nn.Dropout(drop), nn.Linear(100, 10)),
    ).to(memory_format=torch.channels_last)


def step_of(loss: Callable[[], torch.Tensor], optimizer: Any, compiled: bool) -> Callable[[], None]:
    if compiled:
        loss = torch.compile(loss, fullgraph=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def plain_step(
    net: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, compiled: bool = False
) -> Callable[[], None]:
    return step_of(lambda: nn.functional.cross_entropy(net(x), y), optimizer, compiled)


def bayesian_step(
    net: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor, weight: float = 1.0, compiled: bool = False
) -> Callable[[], None]:
    likelihood = Categorical("bound")
    return step_of(lambda: -elbo(net, likelihood, x, y, size=60_000, kl_weight=weight), optimizer, compiled)


def of_mlp() -> dict[str, Callable[[], None]]:
    x, y = torch.rand(100, 784), torch.randint(10, (100,))
    net = mlp()
    found = {"plain": plain_step(net, torch.optim.Adam(net.parameters()), x, y)}
    ways: dict[str, tuple[Prior, Any]] = {
        "VBP, normal": (Normal(var=0.1), "ap2"),
        "VBP, log-uniform": (LogUniform(), "ap2"),
        "local, log-uniform": (LogUniform(), "local"),
        "sample, normal": (Normal(var=0.1), "sample"),
    }
    for name, (prior, method) in ways.items():
        bayes = randomise(mlp(), MeanField(), only="*weight", prior=prior).set_method(method)
        found[name] = bayesian_step(bayes, torch.optim.Adam(bayes.parameters()), x, y)
    net = mlp()
    found["plain, compiled"] = plain_step(net, torch.optim.Adam(net.parameters()), x, y, compiled=True)
    bayes = randomise(mlp(), MeanField(), only="*weight", prior=Normal(var=0.1)).set_method("ap2")
    found["VBP, normal, compiled"] = bayesian_step(bayes, torch.optim.Adam(bayes.parameters()), x, y, compiled=True)
    return found


def of_lenet() -> dict[str, Callable[[], None]]:
    x = torch.rand(64, 1, 28, 28).to(memory_format=torch.channels_last)
    y = torch.randint(10, (64,))
    net = lenet(0.5)
    bayes = randomise(lenet(0.0), Tridiagonal(rate=50.0)).set_method("sample")
    return {
        "plain": plain_step(net, torch.optim.SGD(net.parameters(), 0.01, 0.9, weight_decay=5e-4), x, y),
        "correlated": bayesian_step(bayes, torch.optim.SGD(bayes.parameter_groups(0.01), 0.01, 0.9), x, y, 0.01),
    }


def of_pools(pool: Callable[[int], nn.Module]) -> dict[str, Callable[[], None]]:
    x = torch.rand(64, 1, 28, 28).to(memory_format=torch.channels_last)
    y = torch.randint(10, (64,))
    net = lenet(0.0, pool)
    bayes = randomise(lenet(0.0, pool), MeanField()).set_method("ap2")
    return {
        "plain": plain_step(net, torch.optim.Adam(net.parameters()), x, y),
        "VBP, normal": bayesian_step(bayes, torch.optim.Adam(bayes.parameters()), x, y),
    }


def milliseconds(contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Processor time a call, all taking turns of a few calls, so that caches are as in training."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
        run()
    for _ in range(rounds):
        for name, run in contestants.items():
            started = time.process_time()
            for _ in range(IN_A_ROW):
                run()
            found[name].append(1e3 * (time.process_time() - started) / IN_A_ROW)
    return found


def ratios(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Medians: milliseconds, and over plain's in the same round, eager or compiled as it is."""
    found = {}
    for name, values in times.items():
        plain = times["plain, compiled" if name.endswith("compiled") else "plain"]
        ratio = statistics.median(a / b for a, b in zip(values, plain, strict=True))
        found[name] = {"ms": round(statistics.median(values), 2), "over plain": round(ratio, 2)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = {
        "mlp": ratios(milliseconds(of_mlp(), arguments.rounds)),
        "lenet": ratios(milliseconds(of_lenet(), arguments.rounds)),
        "lenet, max pools": ratios(milliseconds(of_pools(nn.MaxPool2d), arguments.rounds)),
        "lenet, average pools": ratios(milliseconds(of_pools(nn.AvgPool2d), arguments.rounds)),
    }
    for name, rows in found.items():
        table = Table("", "ms", "over plain", title=f"{name}: a training step, processor time, one thread")
        for way, row in rows.items():
            table.add_row(way, f"{row['ms']:.1f}", f"{row['over plain']:.2f}")
        console.print(table)
    save("vi_steps", {"environment": environment(), "rounds": arguments.rounds, **found})


if __name__ == "__main__":
    main()
