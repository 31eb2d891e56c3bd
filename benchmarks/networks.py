"""What propagating variances costs: forward and backward of a network over moments, over the plain network's.

MLP 784-1024-1024-10, the paper's LeNet and ones with pools of 2 x 2, batch 256, float32.  The input's noise is one
variance for all pixels (``constant``) or one a pixel (``varying``); the loss is the negative log-likelihood of the
propagated posterior.  ``ap2`` is measured at input standard deviations of 1, 0.1 and 0.01, since units that are far on
the off side of a ReLU bring numbers below the normal range, with which many processors are slow.
All contestants take turns in every round of one run, and medians are compared: of processor time with one thread, of
elapsed time with more.

    python benchmarks/networks.py [--rounds 15] [--threads 2] [--batch 256] [--against DIR]

``--against DIR`` measures another checkout of momentgen beside this one, in processes that take turns, and compares.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _common import console, environment, interleaved_medians, results_table, save, taking_turns
from torch import Tensor

import momentgen
from momentgen import Moments, nn
from momentgen.nn import functional

#: the paper's unoptimised implementation (appendix D.1) and this project's goals.
PAPER = {"ap2": 3.0, "ap2, normalised": 6.0}
GOALS = {"mlp": 2.4, "lenet": 2.9, "lenet, average pools": 2.9, "lenet, max pools": 6.0}
#: input standard deviations at which ``ap2`` shall cost alike, and the largest ratio between them
SIGMAS = (1.0, 0.1, 0.01)
ALIKE = 1.3
#: what normalisation may add.
NORMALISATION = 0.3


def mlp(normalised: bool) -> nn.Sequential:
    sizes = [784, 1024, 1024, 10]
    layers: list[torch.nn.Module] = [nn.Flatten()]
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(inputs, outputs, bias=not normalised))
        layers += [nn.Normalize(outputs)] if normalised else []
        layers += [nn.ReLU()] if index < 2 else []
    return nn.Sequential(*layers)


def lenet(normalised: bool) -> nn.Sequential:
    sizes = [(1, 32, 5, 2), (32, 64, 5, 2), (64, 50, 4, 1), (50, 10, 1, 1)]
    layers: list[torch.nn.Module] = []
    for index, (inputs, outputs, kernel, stride) in enumerate(sizes):
        layers.append(nn.Conv2d(inputs, outputs, kernel, stride, bias=not normalised))
        layers += [nn.Normalize(outputs)] if normalised else []
        layers += [nn.LeakyReLU()] if index < 3 else []
    return nn.Sequential(*layers, nn.Flatten())


def pooled(normalised: bool, pool: type[torch.nn.Module]) -> nn.Sequential:
    layers: list[torch.nn.Module] = []
    for inputs, outputs in ((1, 32), (32, 64)):
        layers.append(nn.Conv2d(inputs, outputs, 5, bias=not normalised))
        layers += [nn.Normalize(outputs)] if normalised else []
        layers += [nn.ReLU(), pool(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))


def step(net: torch.nn.Module, x: Moments | Tensor, y: Tensor) -> Callable[[], object]:
    def run() -> None:
        for parameter in net.parameters():
            parameter.grad = None
        functional.nll_loss(net(x), y).backward()

    return run


def plain_step(net: torch.nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    def run() -> None:
        for parameter in net.parameters():
            parameter.grad = None
        torch.nn.functional.cross_entropy(net(x), y).backward()

    return run


def plain_twin(net: nn.Sequential) -> torch.nn.Sequential:
    """The same layers of torch.nn, batch norm in the place of analytic normalisation."""
    layers: list[torch.nn.Module] = []
    for part in net:
        if isinstance(part, nn.Linear):
            layers.append(torch.nn.Linear(part.in_features, part.out_features, part.bias is not None))
        elif isinstance(part, nn.Conv2d):
            layers.append(
                torch.nn.Conv2d(
                    part.in_channels,
                    part.out_channels,
                    part.kernel_size,
                    part.stride,
                    part.padding,
                    bias=part.bias is not None,
                )
            )
        elif isinstance(part, nn.Normalize):
            conv = isinstance(layers[-1], torch.nn.Conv2d)
            layers.append((torch.nn.BatchNorm2d if conv else torch.nn.BatchNorm1d)(part.num_features))
        elif isinstance(part, nn.AvgPool2d | nn.MaxPool2d):
            layers.append(getattr(torch.nn, type(part).__name__)(part.kernel_size))
        else:
            layers.append(getattr(torch.nn, type(part).__name__)())
    return torch.nn.Sequential(*layers)


def contestants(make: Callable[[bool], nn.Sequential], batch: int) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    x, y = torch.rand(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    one_channel = make is not mlp
    size = 1 if one_channel else 784
    constant, varying = Moments(x, torch.tensor(0.01).expand_as(x)), Moments(x, 0.01 * torch.rand_like(x))

    def normalised() -> torch.nn.Module:
        net = make(True)
        return nn.AnalyticNormalization(net, torch.full((size,), 0.13), torch.full((size,), 0.09))

    def at(sigma: float) -> Moments:
        return Moments(x, torch.tensor(sigma**2).expand_as(x))

    converted = momentgen.convert(plain_twin(make(False)), "ap2")
    return {
        "plain": plain_step(plain_twin(make(False)), x, y),
        "batch norm": plain_step(plain_twin(make(True)), x, y),
        "ap1": step(nn.set_method(make(False), "ap1"), x, y),
        "ap2": step(make(False), constant, y),
        **{f"ap2, σ {sigma:g}": step(make(False), at(sigma), y) for sigma in SIGMAS},
        "ap2, varying noise": step(make(False), varying, y),
        "ap2, converted": step(converted, constant, y),
        "ap2, normalised": step(normalised(), constant, y),
    }


def measured(rounds: int, threads: int, batch: int) -> dict[str, dict[str, float]]:
    """Seconds by network and propagation, of the momentgen that is imported."""
    clock = time.process_time if threads == 1 else time.perf_counter
    networks = {
        "mlp": mlp,
        "lenet": lenet,
        "lenet, average pools": functools.partial(pooled, pool=nn.AvgPool2d),
        "lenet, max pools": functools.partial(pooled, pool=nn.MaxPool2d),
    }
    return {
        name: interleaved_medians(contestants(make, batch), rounds=rounds, clock=clock)
        for name, make in networks.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--json", action="store_true", help="print the numbers of one process, and no more")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.json:
        print(json.dumps(measured(arguments.rounds, arguments.threads, arguments.batch)))
        return
    given = [f"--{name}={getattr(arguments, name)}" for name in ("rounds", "threads", "batch")]
    turns = taking_turns(__file__, given, arguments.against, 3 if arguments.against else 1)
    rows: list[dict[str, object]] = []
    spreads: dict[str, float] = {}
    columns = ["network", "propagation", "ms", "over plain", "the paper", "goal"]
    columns += ["over other"] if arguments.against else []
    table = results_table(*columns)
    for name, goal in GOALS.items():
        seconds, *other = (
            {who: statistics.median(turn[name][who] for turn in found) for who in found[0][name]}
            for found in turns.values()
        )
        for contestant, spent in seconds.items():
            ratio = spent / seconds["plain"]
            row = {
                "network": name,
                "propagation": contestant,
                "milliseconds": round(1e3 * spent, 2),
                "over_plain": round(ratio, 3),
            }
            most = goal
            if contestant == "ap2, normalised":
                most = min(goal, seconds["ap2"] / seconds["plain"]) + NORMALISATION
            cells = [
                name,
                contestant,
                f"{1e3 * spent:.1f}",
                f"{ratio:.2f} ×",
                f"{PAPER[contestant]:.0f} ×" if contestant in PAPER else "",
                f"{most:.1f} ×" if contestant.startswith("ap2") else "",
            ]
            if other:
                row["over_other"] = round(spent / other[0][contestant], 3)
                cells.append(f"{row['over_other']:.2f} ×")
            rows.append(row)
            table.add_row(*cells)
        at = [seconds[f"ap2, σ {sigma:g}"] for sigma in SIGMAS]
        spreads[name] = round(max(at) / min(at), 3)
    console.print(table)
    for name, spread in spreads.items():
        console.print(f"{name}: largest over smallest of ap2 at σ {SIGMAS}: {spread:.2f} (at most {ALIKE})")
    save(
        f"networks_{arguments.threads}_thread{'s' if arguments.threads > 1 else ''}",
        {
            "environment": environment(),
            "batch": arguments.batch,
            "rounds": arguments.rounds,
            "over_sigmas": spreads,
            "results": rows,
        },
    )


if __name__ == "__main__":
    main()
