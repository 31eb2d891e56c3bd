"""What the answer of a trained network is worth, by method: error of σ and of the mean, stated error, cost, memory.

    python benchmarks/answers.py --data DIR              # DIR holds mnist.npz
    python benchmarks/answers.py --data DIR --networks mlp lenet --methods "controlled, 16 rows" ap2
    python benchmarks/answers.py --table                 # the tables of the documentation, from the results on disk

Networks are plain torch modules trained on MNIST.  A cell is a network with one variance of independent noise on its
pixels, or with its own dropout.  The truth is plain draws, 20,000 of most networks.  Figures of a method in a cell,
over examples, outputs and seeds:

    rms            root mean square of log σ over the truth, less the truth's own error
    ratio          geometric mean of σ over the truth
    mean_error     root mean square of the mean's error in σ, less the truth's own error
    coverage       share of the σ within two stated errors of the truth; mean_coverage is that of the means
    rows           plain rows used
    cost           processor seconds over those of one plain forward pass of the same batch, of 64 examples
    cost_one       the same for a network of one output, the first
    memory         peak of what torch allocates in a call, over a plain forward pass; at the least noise alone
    equal_samples  plain samples with the same error of σ, by the fourth moments of the outputs
    gain           what so many plain samples cost, over the cost
    gain_normal    the same with 1 / 2 rms² samples, as many as would be equal if the outputs were normal

Units whose σ is below a hundredth of the mean σ are left out of ratios and coverage.  Results are on disk after each
cell; a run again measures the cells and methods that are named, and keeps the rest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _answers import METHODS, SAMPLES, Answer, contestant, figures, inputs, truth
from _common import RESULTS, allocated, console, environment, interleaved_medians, write
from _trained import NETWORKS, Trained, cache_folder, images, trained
from torch import Tensor, nn

from momentgen import Moments

Row = dict[str, Any]
Run = Callable[[Moments, int], Answer]

#: what others are compared with at equal error
BASELINE = "Monte Carlo"
#: the method whose cost for one output is measured
ONE_OUTPUT = "controlled, 16 rows"


# ------------------------------------------------------------------ measuring


class Only(nn.Module):
    """One of a network's outputs."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, 0]


def only(one: Trained) -> Trained:
    """The network with its first output alone."""
    part = Only(one.net)
    part.training = False  # its own flag only: dropout stays as it is
    return Trained(one.name, one.recipe, part, one.accuracy, one.seconds, one.key, one.x_test)


def costs(one: Trained, runs: dict[str, Run], x: Moments, rounds: int) -> dict[str, float]:
    """Processor seconds over the plain network's on the same batch, all taking turns."""

    @torch.no_grad()
    def plain() -> object:
        return one.net(x.mean)

    calls: dict[str, Callable[[], object]] = {"plain": plain}
    calls |= {name: lambda run=run: run(x, 0) for name, run in runs.items()}
    seconds = interleaved_medians(calls, rounds=rounds, clock=time.process_time, at_least=0.2)
    return {name: seconds[name] / seconds["plain"] for name in runs}


def cell(one: Trained, var: float, methods: list[str], arguments: argparse.Namespace) -> dict[str, Row]:
    """The figures of the methods for one network and noise."""
    x, batch = inputs(one, var, arguments.inputs), inputs(one, var, arguments.batch)
    expected = truth(one, x, arguments.checkpoints, arguments.quick)
    runs = {name: run for name in methods if (run := contestant(name, one)) is not None}
    rows: dict[str, Row] = {}
    for name, run in runs.items():
        seeds = range(arguments.seeds if METHODS[name] else 1)
        rows[name] = figures([run(x, seed) for seed in seeds], expected)
    part = only(one)
    alone = {f"{name}, one": run for name in runs if name == ONE_OUTPUT and (run := contestant(name, part))}
    baseline = contestant(BASELINE, one)
    assert baseline is not None
    spent = costs(one, {BASELINE: baseline, **runs, **alone}, batch, arguments.rounds)

    @torch.no_grad()
    def plain() -> object:
        return one.net(batch.mean)

    memory = arguments.memory and var == min(one.recipe.variances)
    least = allocated(plain) if memory else 0
    for name, row in rows.items():
        row["cost"] = spent[name]
        row["gain"] = row["equal_samples"] * spent[BASELINE] / SAMPLES / spent[name]
        row["gain_normal"] = row["gain"] / (row["equal_samples"] * 2 * row["rms"] ** 2)
        if f"{name}, one" in spent:
            row["cost_one"] = spent[f"{name}, one"]
        if memory:
            row["memory"] = allocated(lambda run=runs[name]: run(batch, 0)) / least
    return rows


# -------------------------------------------------------------------- results


class Results:
    """Rows by cell and method on disk, added to if the settings are the same."""

    def __init__(self, path: Path, settings: Row) -> None:
        self.path = path
        self.data: Row = {"environment": environment(), "settings": settings, "networks": {}, "cells": {}}
        if path.exists():
            earlier = json.loads(path.read_text())
            if earlier["settings"] == settings:
                self.data = {**earlier, "environment": environment()}
            else:
                console.print("the results on disk were measured with other settings and are replaced")

    def add(self, case: str, rows: dict[str, Row]) -> None:
        """Rows of a cell, in the order of the methods; written at once."""
        kept = self.data["cells"].setdefault(case, {})
        kept |= {name: {key: rounded(value) for key, value in row.items()} for name, row in rows.items()}
        self.data["cells"][case] = {name: kept[name] for name in METHODS if name in kept}
        self.data["cells"] = {name: self.data["cells"][name] for name in cases() if name in self.data["cells"]}
        self.data["summary"] = summary(self.data["cells"])
        write(self.path, self.data)


def rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def cases() -> dict[str, tuple[str, float]]:
    """Network and variance by the name of the cell."""
    return {
        f"{name} | {case}": (name, var) for name, recipe in NETWORKS.items() for case, var in recipe.cases().items()
    }


def summary(cells: dict[str, dict[str, Row]]) -> Row:
    """By method: the least and the median gain, the coverage over all cells, the largest costs."""
    found: Row = {}
    for method in METHODS:
        rows = [cell[method] for cell in cells.values() if method in cell]
        if not rows:
            continue
        found[method] = {
            "cells": len(rows),
            "least gain": min(row["gain"] for row in rows),
            "median gain": rounded(statistics.median(row["gain"] for row in rows)),
            "least and median gain, normal": [
                min(row["gain_normal"] for row in rows),
                rounded(statistics.median(row["gain_normal"] for row in rows)),
            ],
            "cost": [min(row["cost"] for row in rows), max(row["cost"] for row in rows)],
        }
        covered = [row["coverage"] for row in rows if "coverage" in row]
        if covered:
            found[method]["coverage"] = [min(covered), rounded(statistics.mean(covered)), max(covered)]
        alone = [row["cost_one"] for row in rows if "cost_one" in row]
        if alone:
            found[method]["cost of one output"] = [min(alone), max(alone)]
    return found


#: names of the networks in the documentation
TITLES = {
    "mlp": "MLP", "lenet": "LeNet", "mnist_example": "PyTorch's MNIST example", "resnet": "small ResNet",
    "nine_layers": "nine layers", "vit": "small ViT", "mlp_dropout": "MLP", "lenet_dropout": "LeNet",
}  # fmt: skip


def tables(data: Row) -> str:
    """The documented tables, in Markdown: ``controlled`` by itself, and all methods beside each other."""
    lines = [
        "| network, noise | rms of log σ, 16 rows | gain | coverage | cost | default: rows | rms of log σ | gain "
        "| coverage | cost | mean, in σ |",
        "| --- " * 11 + "|",
    ]
    others = [name for name in METHODS if name not in ("controlled", "Monte Carlo")]
    beside = [
        "| network, noise: rms of log σ (gain) | " + " | ".join(others) + " |",
        "| --- " * (len(others) + 1) + "|",
    ]
    for case, rows in data["cells"].items():
        network, _, noise = case.partition(" | ")
        title = f"{TITLES[network]}, {noise if 'dropout' in noise else noise.removeprefix('noise ')}"
        few, own = rows.get("controlled, 16 rows"), rows.get("controlled")
        if few and own:
            cells = [
                f"{few['rms']:.3f}", f"{few['gain']:.3g}", f"{few['coverage']:.0%}", f"{few['cost']:.0f}",
                f"{own['rows']:.0f}", f"{own['rms']:.3f}", f"{own['gain']:.3g}", f"{own['coverage']:.0%}",
                f"{own['cost']:.0f}", f"{own['mean_error']:.2f}",
            ]  # fmt: skip
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
        shown = [f"{rows[name]['rms']:.3f} ({rows[name]['gain']:.2g})" if name in rows else "–" for name in others]
        beside.append(f"| {title} | " + " | ".join(shown) + " |")
    return "\n".join([*lines, "", *beside])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--noise", nargs="+", type=float, help="variances, all if nothing is said")
    names = ", ".join(METHODS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD", help=names)
    parser.add_argument("--missing", action="store_true", help="only what the results on disk do not have")
    parser.add_argument("--inputs", type=int, default=16, help="test images")
    parser.add_argument("--seeds", type=int, default=12, help="of methods that draw")
    parser.add_argument("--batch", type=int, default=64, help="test images in the timing")
    parser.add_argument("--rounds", type=int, default=2, help="of timing")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave out what calls allocate")
    parser.add_argument("--checkpoints", type=Path, default=cache_folder(), help="folder for weights and plain draws")
    parser.add_argument("--out", type=Path, default=RESULTS / "answers.json")
    parser.add_argument("--table", action="store_true", help="print the documented tables, and measure nothing")
    parser.add_argument("--quick", action="store_true", help="seconds, to see that it runs; made-up images do")
    arguments = parser.parse_args()
    if arguments.table:
        print(tables(json.loads(arguments.out.read_text())))
        return
    torch.set_num_threads(1)
    if arguments.quick:
        arguments.inputs, arguments.seeds, arguments.batch, arguments.rounds = 2, 2, 2, 1
    elif arguments.data is None:
        parser.error("--data is needed, but for --quick")
    data = images(arguments.data)
    wanted = ("quick", "inputs", "seeds", "batch")
    results = Results(arguments.out, {"data": data.source, **{name: getattr(arguments, name) for name in wanted}})
    for case, (name, var) in cases().items():
        if name not in arguments.networks or (arguments.noise and var not in arguments.noise):
            continue
        known = results.data["cells"].get(case, {}) if arguments.missing else {}
        methods = [method for method in arguments.methods if method not in known]
        if not methods:
            continue
        one = trained(name, data, arguments.checkpoints, arguments.quick)
        size = sum(parameter.numel() for parameter in one.net.parameters())
        results.data["networks"][name] = {"accuracy": rounded(one.accuracy), "parameters": size}
        started = time.perf_counter()
        rows = cell(one, var, methods, arguments)
        results.add(case, rows)
        console.print(f"{case}: {time.perf_counter() - started:.0f} s", highlight=False)
        for method, row in rows.items():
            shown = "  ".join(f"{key} {value:.3g}" for key, value in row.items())
            console.print(f"  {method:20s} {shown}", highlight=False, soft_wrap=True)
    console.print_json(json.dumps(results.data.get("summary", {})))


if __name__ == "__main__":
    main()
