"""What follows from σ of a trained network, against brute force: intervals, class flips, budgets, and their cost.

    python benchmarks/after_sigma.py --data DIR [--networks mlp lenet vit table]    # DIR holds mnist.npz and uci/
    python benchmarks/after_sigma.py --table    # the tables of docs/results/after-sigma.md, from the results on disk

Images are the first four of the test and the four of its first thousand whose two best classes are closest, with
independent noise on every pixel.  The table is concrete's strength by eight features; the plain perceptron 8-50-50-1
learns it in standard units.  Figures of a cell, over examples, outputs, and seeds:

    inside      share of the draws in the intervals of 95 %: mean, least, and largest over the outputs
    ends        error of their ends in σ, stated error, share within two stated errors, rms of z
    flips       the same of the probability that another class than the plain image's is best (of the regressor: that
                the answer is more than a σ of the targets, 1.0, above the average)
    first       the same of first-order shares of the variance: by block of 7 × 7 pixels, or by feature
    total       likewise of total shares, where the answer has them
    cost        processor seconds of σ over a plain pass of the batch, and of the others over those of σ

Brute force is plain draws; shares are by freezing a group (Saltelli et al. 2010; Jansen 1999).  z includes the error of
brute force.  Results are on disk after each cell.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _common import RESULTS, console, environment, write
from _trained import NETWORKS, cache_folder, images, trained
from torch import Tensor, nn

import momentgen
from momentgen import noisy

RESULT = RESULTS / "after_sigma.json"
#: standard deviations of the noise: of pixels between 0 and 1, and of features in standard units
NOISE = {"images": (0.1, 0.3), "table": (0.1, 0.3)}
#: rows that go through a network together
TOGETHER = 2048


class Case(NamedTuple):
    """A plain network, examples, the event that is asked for, and the group of each value of an example."""

    net: nn.Module
    x: Tensor
    event: Callable[[Tensor], Tensor]
    groups: Tensor


class Pair(NamedTuple):
    """Values and their standard errors."""

    value: Tensor
    error: Tensor


def case(name: str, arguments: argparse.Namespace) -> Case:
    """The trained network of that name, with its examples."""
    if name == "table":
        net, x = regressor(arguments.data)
        return Case(net, x[:8], lambda y: y[..., 0] > 1, torch.arange(8))
    one = trained(name, images(arguments.data), cache_folder(), arguments.quick)
    with torch.no_grad():
        best = one.net(one.x_test[:1000]).topk(2).values
        close = (best[:, 0] - best[:, 1])[4:].argsort()[:4] + 4
        x = one.x_test[torch.cat([torch.arange(4), close])]
        classes = one.net(x).argmax(-1)
    rows = torch.arange(28) // 7
    return Case(one.net, x, lambda y: y.argmax(-1) != classes, (4 * rows[:, None] + rows)[None])


def regressor(folder: Path | None) -> tuple[nn.Module, Tensor]:
    """A perceptron trained on the table, and the test rows; a made-up table without a folder."""
    torch.manual_seed(0)
    x, y = torch.randn(300, 8), torch.randn(300)
    if folder is not None:
        data = np.load(folder / "uci" / "concrete.npz")
        x, y = (torch.from_numpy(data[key]).float() for key in ("X", "y"))
        order = np.concatenate([data["train_idx"][0], data["test_idx"][0]])
        x, y = x[order], y[order]
    train = int(0.9 * len(x))
    x, y = ((part - part[:train].mean(0)) / part[:train].std(0) for part in (x, y))
    net = nn.Sequential(nn.Linear(8, 50), nn.SiLU(), nn.Linear(50, 50), nn.SiLU(), nn.Linear(50, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    for _ in range(200):
        for batch in torch.randperm(train).split(64):
            loss = (net(x[batch])[:, 0] - y[batch]).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
    net.eval().requires_grad_(False)
    error = (net(x[train:])[:, 0] - y[train:]).square().mean().sqrt()
    console.print(f"table: rms error {error:.2f} of the targets' σ")
    return net, x[train:]


# ---------------------------------------------------------------- brute force


@torch.no_grad()
def mapped(net: nn.Module, x: Tensor) -> Tensor:
    """The network's outputs of rows of examples, shape (rows, N, K)."""
    flat = x.flatten(0, 1)
    return torch.cat([net(part) for part in flat.split(TOGETHER)]).unflatten(0, x.shape[:2])


def drawn(one: Case, std: float, count: int) -> Tensor:
    """Outputs of plain draws, shape (count, N, K)."""
    generator, size = torch.Generator().manual_seed(7), max(TOGETHER // len(one.x), 1)
    parts = []
    for first in range(0, count, size):
        noise = torch.randn(min(size, count - first), *one.x.shape, generator=generator)
        parts.append(mapped(one.net, one.x + std * noise))
    return torch.cat(parts)


def frozen(one: Case, std: float, count: int) -> tuple[Pair, Pair]:
    """First-order and total shares, shape (G, N, K), by rows that have one group of another row's noise."""
    generator, size = torch.Generator().manual_seed(8), max(TOGETHER // len(one.x), 1)
    number = int(one.groups.max()) + 1
    firsts, totals, whole = list[Tensor](), list[Tensor](), list[Tensor]()
    for _ in range(math.ceil(count / size)):
        a, b = (one.x + std * torch.randn(size, *one.x.shape, generator=generator) for _ in range(2))
        of_a, of_b = (mapped(one.net, part).double() for part in (a, b))
        moved = [mapped(one.net, torch.where(one.groups == group, b, a)).double() - of_a for group in range(number)]
        center = of_b - of_b.mean(0)
        firsts.append(torch.stack([center * part for part in moved], 1))
        totals.append(torch.stack([part.square() / 2 for part in moved], 1))
        whole += [of_a, of_b]
    var = torch.cat(whole).var(0)
    found = [torch.cat(part) / var for part in (firsts, totals)]
    first, total = (Pair(part.mean(0), part.std(0) / len(part) ** 0.5) for part in found)
    return first, total


# -------------------------------------------------------------------- figures


def compared(found: list[Pair], truth: Pair) -> dict[str, float]:
    """Error, stated error, share within two of them, z; over seeds and all numbers."""
    value, error = (torch.stack([getattr(one, part).double() for one in found]) for part in ("value", "error"))
    off = value - truth.value
    z = off / (error.square() + truth.error.square()).sqrt().clamp_min(1e-9)
    return {
        "error": float(off.square().mean().sqrt()),
        "stated": float(error.square().mean().sqrt()),
        "held": float((z.abs() <= 2).double().mean()),
        "z": float(z.square().mean().sqrt()),
        "truth_error": float(truth.error.square().mean().sqrt()),
    }


def measured(one: Case, std: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures of one network and one noise."""
    draws = drawn(one, std, arguments.draws)
    sigma, count = draws.std(0), len(draws)
    happens = one.event(draws).double()
    flips = Pair(happens.mean(0), (happens.var(0) / count).sqrt().clamp_min(1 / count))
    ends, off = [], round((0.025 * 0.975 * count) ** 0.5)
    ordered = draws.sort(0).values
    for level in (0.025, 0.975):
        place = round(level * (count - 1))
        width = (ordered[min(place + off, count - 1)] - ordered[max(place - off, 0)]) / 2
        ends.append(Pair(ordered[place] / sigma, width / sigma))
    known_ends = Pair(*(torch.stack(part) for part in zip(*ends, strict=True)))
    known_first, known_total = frozen(one, std, arguments.frozen)
    found: dict[str, list[Pair]] = {"ends": [], "flips": [], "first": [], "total": []}
    inside, seconds = [], dict.fromkeys(("plain", "sigma", "interval", "flips", "budget"), math.inf)

    def timed(name: str, run: Callable[[], Any]) -> Any:
        started = time.process_time()
        made = run()
        seconds[name] = min(seconds[name], time.process_time() - started)
        return made

    x = noisy(one.x, std=std)
    with torch.no_grad():
        for seed in range(arguments.seeds):
            net = momentgen.convert(one.net, seed=seed)
            timed("plain", lambda: one.net(one.x))
            out = timed("sigma", lambda: net(x))  # noqa: B023 - run at once
            lower, upper, *errors = timed("interval", lambda: out.interval(0.95))  # noqa: B023
            inside.append(((draws >= lower) & (draws <= upper)).double().mean(0))
            found["ends"].append(Pair(torch.stack([lower, upper]) / sigma, torch.stack(errors) / sigma))
            found["flips"].append(timed("flips", lambda: out.probability(one.event)))  # noqa: B023
            shares = timed("budget", lambda: momentgen.budget(one.net, x, groups=one.groups, seed=seed))  # noqa: B023
            found["first"].append(Pair(shares.first, shares.first_error))
            if shares.total is not None:
                found["total"].append(Pair(shares.total, shares.total_error))
    known = {"ends": known_ends, "flips": flips, "first": known_first, "total": known_total}
    every = torch.stack(inside)
    row: dict[str, Any] = {
        "passes": out.rows,
        "inside": [float(part) for part in (every.mean(), every.min(), every.max())],
    }
    row |= {name: compared(pairs, known[name]) for name, pairs in found.items() if pairs}
    row["flips"]["truth"] = [float(part) for part in (flips.value.min(), flips.value.max())]
    row["cost"] = {"sigma": seconds["sigma"] / seconds["plain"]} | {
        name: seconds[name] / seconds["sigma"] for name in ("interval", "flips", "budget")
    }
    return row


# --------------------------------------------------------------------- tables


def table() -> str:
    """Accuracy and cost by network and noise."""
    rows = json.loads(RESULT.read_text())["rows"]
    heads = (
        "network, σ of the noise",
        "passes",
        "in the intervals: mean, least, largest",
        "ends",
        "flips",
        "first",
        "total",
    )
    lines = [f"| {' | '.join(heads)} |"]
    lines.append("|" + " --- |" * 7)
    for name, row in rows.items():
        mean, least, most = (f"{part:.1%}" for part in row["inside"])
        cells = [
            "" if kind not in row else "{error:.1g}, {stated:.1g}, {held:.0%}".format(**row[kind])
            for kind in ("ends", "flips", "first", "total")
        ]
        lines.append(f"| {name} | {row['passes']} | {mean}, {least}, {most} | {' | '.join(cells)} |")
    lines += ["", "| network, σ of the noise | σ over a plain pass | interval over σ | flips over σ | budget over σ |"]
    lines.append("|" + " --- |" * 5)
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(f'{value:.2g}' for value in row['cost'].values())} |")
    return "\n".join(lines) + "\n"


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--networks", nargs="+", default=["mlp", "lenet", "vit", "table"], choices=[*NETWORKS, "table"])
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--frozen", type=int, default=10_000, help="pairs of rows of each group")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="hardly train")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--table", action="store_true", help="print the documented tables, and measure nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(), end="")
        return
    torch.set_num_threads(1)
    found = {"environment": environment(), "rows": {}}
    if arguments.out.exists():
        found["rows"] = json.loads(arguments.out.read_text())["rows"]
    for name in arguments.networks:
        one = case(name, arguments)
        for std in NOISE.get(name, NOISE["images"]):
            row = rounded(measured(one, std, arguments))
            found["rows"][f"{name}, {std:g}"] = row
            write(arguments.out, found)
            console.print(f"{name}, {std:g}: {row}", highlight=False)


if __name__ == "__main__":
    main()
